"""The article's own layout, config/article.yaml, on four invented GPUs and a fake engine: roles, GPUs, what is told."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from fake_nvml import write_pynvml
from test_workflow_reruns import ROOT, STUDY, Workspace

from pdkv.artifacts import read_json

ARTICLE = ROOT / "config/article.yaml"
# 0 and 2 are joined, and so are 1 and 3. The second GPU of a pair works half as much as the first.
SETUP = "def at(percent): return {'nvmlDeviceGetUtilizationRates': SimpleNamespace(gpu=percent, memory=percent // 2)}"
GPUS = ", ".join(
    f'FakeGpu("GPU-{number}", bus={number}, memory_total=140 * 2**30, answers=at({percent}), joined={{"GPU-{mate}"}})'
    for number, percent, mate in ((0, 80, 2), (1, 80, 3), (2, 40, 0), (3, 40, 1))
)
TOPOLOGIES = {
    "default": {"single": [4]},
    "chunked": {"single": [4]},
    "1p1d": {"prefill": [2], "decode": [2]},
    "2x": {"replica": [2, 2]},
}


def environment(workspace: Workspace, nvml: Path) -> dict[str, str]:
    return {**workspace.environment, "PYTHONPATH": f"{nvml}{os.pathsep}{workspace.source}"}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shipped study with a fake engine and few short requests, once each."""
    folder = tmp_path_factory.mktemp("article")
    study = yaml.safe_load(ARTICLE.read_text(encoding="utf-8"))
    fake = yaml.safe_load(STUDY)
    study |= {"model": fake["model"], "engine": {**fake["engine"], "env": {"FAKE_TOKEN_S": "0.05"}}, "repeats": 1}
    lengths = {"input_tokens": 16, "output_tokens": 12, "max_model_len": 64}
    study["workloads"]["article"] |= {**lengths, "concurrency": [2], "requests": 8}
    study["report"]["claims"] = str(ROOT / study["report"]["claims"])
    workspace = Workspace(folder / "study")
    workspace.write_study(yaml.safe_dump(study, sort_keys=False))
    nvml = write_pynvml(folder / "nvml", GPUS, f"from types import SimpleNamespace\n{SETUP}")
    done = subprocess.run(
        workspace.command("--resources", "gpu=4"),
        cwd=workspace.folder,
        env=environment(workspace, nvml),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        timeout=600,
    )
    assert done.returncode == 0, done.stdout
    assert re.search(r"^pdkv: cells: 8 \w+", done.stdout, re.MULTILINE), done.stdout
    return workspace.folder


def stages_of(folder: Path, mode: str, dtype: str) -> dict[str, Any]:
    return read_json(folder / f"results/article/{mode}/{dtype}/r1/stages.json", "stages/1")


@pytest.mark.parametrize("dtype", ["bf16", "fp8"])
@pytest.mark.parametrize(("mode", "topology"), TOPOLOGIES.items())
def test_every_role_has_the_gpus_of_its_tensor_parallel_size(finished, mode, dtype, topology) -> None:
    instances = stages_of(finished, mode, dtype)["instances"]
    found: dict[str, list[int]] = {}
    for instance in instances:
        found.setdefault(instance["role"], []).append(len(instance["gpus"]))
        size = instance["argv"][instance["argv"].index("--tensor-parallel-size") + 1]
        assert size == str(len(instance["gpus"]))
        assert instance["env"]["CUDA_VISIBLE_DEVICES"].split(",") == instance["gpus"]
    assert found == topology
    used = [uuid for instance in instances for uuid in instance["gpus"]]
    assert sorted(used) == [f"GPU-{number}" for number in range(4)], "all four, none twice"


def test_gpus_of_an_instance_are_joined(finished: Path) -> None:
    for mode in ("1p1d", "2x"):
        for instance in stages_of(finished, mode, "bf16")["instances"]:
            assert instance["gpus"] in (["GPU-0", "GPU-2"], ["GPU-1", "GPU-3"])


def test_the_report_tells_of_both_gpus_of_each_role(finished: Path) -> None:
    text = (finished / "reports/summary.md").read_text(encoding="utf-8")
    assert "4 GPUs each" in text, "every comparison is on equal hardware"
    assert re.search(r"\| 1p1d/bf16 \| prefill \| 2 GPUs \|", text)
    assert re.search(r"\| 1p1d/bf16 \| decode \| 2 GPUs \|", text)
    apart = re.search(r"- 1p1d/bf16, c = 2, decode, 2 GPUs: ([\d.]+)% in duty cycle", text)
    assert apart, "whether the load between the GPUs of decode is uneven, as the article saw"
    assert float(apart[1]) == pytest.approx(100 * (80 - 40) / 60, abs=0.1)
    for claim in range(1, 15):
        assert f"\n| C{claim} |" in text


def test_what_the_study_would_take_is_told_before(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path / "study")
    nvml = write_pynvml(tmp_path / "nvml", GPUS, f"from types import SimpleNamespace\n{SETUP}")
    config = ARTICLE.read_text(encoding="utf-8").replace("config/claims.yaml", str(ROOT / "config/claims.yaml"))
    workspace.write_study(config.replace("engine: cuda", f"engine: {{python: '{sys.executable}', device: cuda}}"))
    done = subprocess.run(
        [sys.executable, "-m", "pdkv", "check", "--config", "config/config.yaml"],
        cwd=workspace.folder,
        env=environment(workspace, nvml),
        capture_output=True,
        encoding="utf-8",
        timeout=100,
    )
    rows = dict(re.findall(r"^article/(\S+/\S+) +(.+?)  +4 ", done.stdout, re.MULTILINE))
    told = {"default": "1 instance, TP=4", "chunked": "1 instance, TP=4"}
    told |= {"1p1d": "1 prefill + 1 decode, TP=2", "2x": "2 replicas, TP=2"}
    assert rows == {f"{mode}/{dtype}": text for mode, text in told.items() for dtype in ("bf16", "fp8")}
