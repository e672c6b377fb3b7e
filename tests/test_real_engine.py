"""The whole chain on real vLLM on the CPU: a single instance and a prefill/decode pair, from the config to the PDF."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pyarrow.parquet as pq
import pytest

ROOT = Path(__file__).parent.parent
ENGINE = ROOT / ".engine/cpu/bin/python"
MODEL = ROOT / ".engine/models/bundled"
CELLS = (("single", "default", "fp16"), ("pair", "1p1d", "fp8"))
STUDY = """\
model: {model}
engine: {{python: {python}}}
workloads:
  {workload}: {{input_tokens: 64, output_tokens: 8, concurrency: [2], requests: 4, max_model_len: 128}}
modes: [{mode}]
dtypes: [{dtype}]
"""


@pytest.fixture(scope="module", params=CELLS, ids=lambda cell: "/".join(cell))
def study(request, tmp_path_factory) -> Path:
    """A folder in which one cell was measured and reported."""
    workload, mode, dtype = request.param
    folder = tmp_path_factory.mktemp(workload)
    (folder / "config").mkdir()
    text = STUDY.format(
        model=json.dumps(str(MODEL)), python=json.dumps(str(ENGINE)), workload=workload, mode=mode, dtype=dtype
    )
    (folder / "config/config.yaml").write_text(text, encoding="utf-8")
    run_study(folder)
    _, cell = cell_of(folder)
    if "requests sent on time" in failed_checks(cell["trials"][0]):  # something else took the cores: measure it again
        run_study(folder, "--forcerun", "measure", "--")
    return folder


def run_study(folder: Path, *options: str) -> None:
    command = [sys.executable, "-m", "snakemake", "--snakefile", str(ROOT / "Snakefile"), "--cores", "1"]
    done = subprocess.run(
        [*command, *options, "reports/summary.pdf"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        timeout=900,
    )
    assert done.returncode == 0, done.stdout


def failed_checks(trial: dict) -> dict[str, str]:
    return {check["name"]: check["evidence"] for check in trial["checks"] if check["state"] == "failed"}


def cell_of(study: Path) -> tuple[Path, dict]:
    [path] = study.glob("results/*/*/*/cell.json")
    return path.parent, json.loads(path.read_text(encoding="utf-8"))


@pytest.mark.engine
def test_real_cell_from_config_to_pdf(study: Path) -> None:
    folder, cell = cell_of(study)
    [trial] = cell["trials"]
    assert trial["failure"] is None, trial["failure"]
    assert not failed_checks(trial)

    asked = folder.name  # fp16 or fp8
    for facts in trial["launch"]["resolved"].values():
        assert facts["model_dtype"] == ("float16" if asked == "fp16" else "bfloat16")
        assert facts["chunked_prefill"] is True
        assert facts["max_num_batched_tokens"] == 2048
        assert facts["prefix_caching"] is False
    capacity = {instance["kv_cache_tokens"] for instance in trial["launch"]["instances"]}
    assert capacity == {46_592 if asked == "fp16" else 93_184}  # half the bytes, twice the tokens

    [point] = cell["points"]
    assert point["requests"]["measured_ok"] == 4
    for metric in ("ttft", "tpot", "itl", "e2el"):
        assert 0 < point["metrics"][metric]["median"] < 120, metric
    requests = pq.read_table(folder / "r1/requests.parquet").to_pylist()
    measured = [request for request in requests if request["part"] == "measured"]
    assert {(r["input_tokens"], r["output_tokens"], r["cached_tokens"] or 0) for r in measured} <= {
        (64, 8, 0),
        (64, 8, 64),
    }
    assert all(sum(request["token_n"]) == 8 for request in measured)

    with (study / "results/summary.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["workload", "mode", "dtype", "concurrency", "metric", "stat", "value", "unit", "n"]
    assert {"ttft", "tpot", "itl", "e2el", "output_throughput"} <= {row["metric"] for row in rows}
    assert (study / "reports/summary.pdf").read_bytes().startswith(b"%PDF-")
    assert "| default |" in (study / "reports/summary.md").read_text(encoding="utf-8") or "1p1d" in folder.parts


@pytest.mark.engine
def test_the_kv_cache_of_a_real_pair_travelled(study: Path) -> None:
    folder, cell = cell_of(study)
    server = json.loads((folder / "r1/metrics.json").read_text(encoding="utf-8"))["points"][0]["server"]
    if cell["mode"] == "default":
        assert server["kv_transfer"] is None
        return
    transfer = server["kv_transfer"]
    assert transfer["count"] == 7  # 2 ramp, 4 measured, 1 drain
    assert transfer["bytes"] >= 7 * 64 * 30 * 2 * 3 * 64  # tokens × layers × K and V × heads × head size, a byte each
    assert transfer["failed"] == 0 and transfer["expired"] == 0
    assert transfer["local_prefill_tokens"] == 0


@pytest.mark.engine
def test_a_real_engine_tells_where_ttft_goes(study: Path) -> None:
    """On a busy machine a token may come late out of an API server: more than 5% can be in no part."""
    folder, cell = cell_of(study)
    split = json.loads((folder / "r1/metrics.json").read_text(encoding="utf-8"))["points"][0]["ttft_parts"]
    places = ("prefill",) if cell["mode"] == "default" else ("router", "prefill", "decode")
    assert split["counted"] == dict.fromkeys(places, 7)  # as many as got a token at the client
    assert all(seconds is not None and seconds >= 0 for seconds in split["parts"].values()), split["parts"]
    assert abs(split["unexplained_share"]) < 0.2


@pytest.mark.engine
def test_nothing_of_a_real_engine_lives_on(study: Path) -> None:
    folder, _ = cell_of(study)
    stages = json.loads((folder / "r1/stages.json").read_text(encoding="utf-8"))
    assert stages["leftovers"] == []
    assert not [pid for pid in (instance["pid"] for instance in stages["instances"]) if psutil.pid_exists(pid)]
