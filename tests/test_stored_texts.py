"""What results hold in English comes out in Chinese: every sentence that the source can write has its translation."""

import ast
import re
import tomllib
from pathlib import Path

import pytest
from stored_phrases import phrases, raises

import pdkv
from pdkv import wings
from pdkv.reporting.stored_texts import SUBJECT, retell, sentences
from pdkv.reporting.wording import Wording

SOURCE = Path(pdkv.__file__).parent
CATALOGUE = tomllib.loads((SOURCE / "reporting/templates/stored_texts.zh.toml").read_text(encoding="utf-8"))
ZH = Wording("zh")
# Modules whose sentences reach a screen or a log, and no result: a sentence of another module must be translated.
NOT_IN_RESULTS = {
    "analysing": {
        "claim_file",  # faults in a file of claims: a message
        "load_table",  # what `pdkv load` prints
        "server_log",  # patterns
        "scrapes",  # prefixes of names
    },
    "measuring": {
        "device_sampling", "devices", "environment", "event_loop", "feasibility", "host_readings", "interruption",
        "leftovers", "machine_checks", "process_tree", "router", "survey", "trial_folder", "url_load",
    },
}  # fmt: skip
# Of what a launch runs through: a plan is refused, or another measurement of the same trial goes on. Nothing is stored.
ENDS_THE_PROGRAM = {"container_client", "trial_folder"}
# An error for a person that is raised here while a trial is launched becomes the reason of its failure.
AT_LAUNCH = wings._closure(("trial", "node_agent")) - ENDS_THE_PROGRAM
NOT_STORED = {
    "{1}: had to kill process {2} ({3})", "{1}: removed {2}, {3} bytes", "tcp,self,sysv,posix,cma",
    "unkept: had to kill process {1} ({2})",
    "{url:{1}}", "http://{1}:{2}", "not ready yet", "load {1}", "round {1}", " and ", " or ",
    "not decided", "waiting for {1}: {2}", "alone {1}",
    "launches differ", "launches left out",
}  # fmt: skip
# Part of a longer literal, or of one that is not a whole sentence.
TYPES = re.compile(r"[\w.]+(\[.*\])? \| None|queue\.SimpleQueue\[.*|POST \{1\}/v1/completions.*", re.DOTALL)


def plain(template: str) -> str:
    return template.removeprefix(SUBJECT).replace("…}", "}")


def stored_phrases() -> dict[str, str]:
    """Template -> where it stands, for all that may reach a result."""
    found = {}
    for wing, left_out in NOT_IN_RESULTS.items():
        modules = {path.stem: path for path in (SOURCE / wing).glob("*.py")}
        assert left_out <= set(modules), left_out - set(modules)
        for name, path in modules.items():
            for line, text in phrases(path, with_errors=name in AT_LAUNCH) if name not in left_out else ():
                if text not in NOT_STORED and not TYPES.fullmatch(text):
                    found.setdefault(text, f"{wing}/{name}.py:{line}")
    return found


def test_every_sentence_of_the_source_is_translated() -> None:
    found = stored_phrases()
    assert len(found) > 250
    known = {plain(template) for template in CATALOGUE}
    assert not {text: where for text, where in found.items() if text not in known}


def test_no_reason_of_a_failed_launch_is_left_out() -> None:
    reasons = {name for name in AT_LAUNCH if raises(SOURCE / "measuring" / f"{name}.py", "UserError", "StageFailed")}
    assert {"leases", "ports", "trial_devices", "gpu_visibility", "job_nodes", "readiness"} <= reasons
    assert not reasons & NOT_IN_RESULTS["measuring"]


def test_a_new_sentence_would_be_found(tmp_path: Path) -> None:
    module = tmp_path / "new.py"
    module.write_text(
        '"""Doc string here."""\n\ndef check(n):\n    return Check("n", "failed", f"{n} new things went wrong")\n'
    )
    assert list(phrases(module)) == [(4, "{1} new things went wrong")]
    module.write_text('def launch(n):\n    raise UserError(f"{n} is taken", remedy="take another one")\n')
    assert [text for _, text in phrases(module, with_errors=True)] == ["{1} is taken", "take another one"]
    assert not list(phrases(module))


def test_no_translation_has_outlived_its_sentence() -> None:
    literals: set[str] = set()
    for wing in NOT_IN_RESULTS:
        for path in (SOURCE / wing).glob("*.py"):
            literals |= {text for _, text in phrases(path, with_errors=True)}
            nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            literals |= {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    of_others = {"Not Supported"}  # NVML's own words
    assert not {template for template in CATALOGUE if plain(template) not in literals | of_others}


@pytest.mark.parametrize("template", CATALOGUE)
def test_every_translation_fills_in_what_was_filled_in(template: str) -> None:
    said = set(re.findall(r"(?<![A-Za-z])\{(\d+)…?\}", template))  # without the s of a plural
    assert set(re.findall(r"\{(\d+)\}", CATALOGUE[template])) == said
    assert template.startswith(SUBJECT) == CATALOGUE[template].startswith(SUBJECT)


@pytest.mark.parametrize("template", CATALOGUE)
def test_every_sentence_is_recognised_once_it_is_filled_in(template: str) -> None:
    english = re.sub(r"([A-Za-z])\{\d+\}", r"\1", template)
    english = re.sub(r"\{(\d+)…?\}", r"x\1", english).replace(SUBJECT, "decode-0 ", 1)
    expected = sorted(re.findall(r"x\d", english))
    told = retell(english, ZH)
    assert told != english or "kill" in english
    assert "“" not in told.replace("不满足“", "")
    assert sorted(re.findall(r"x\d", told)) == expected


TOLD = {
    "about 3 more repeats would likely decide": "大约再重复 3 次，很可能得出判定",
    "about 1 more repeat would likely decide": "大约再重复 1 次，很可能得出判定",
    "chunked · fp8 is suspect": "chunked · fp8 存疑",
    "same resolved configuration; chunked · fp8 is suspect": "实际配置相同；chunked · fp8 存疑",
    "not comparable: engine.vllm: 0.32.0 / 0.33.0; host load: idle / busy in 1 of 3 launches":
        "不可比较：engine.vllm: 0.32.0 / 0.33.0；主机负载：空闲 / 3 次启动中有 1 次繁忙",
    "decode-0 was killed by signal 9 (SIGKILL)": "decode-0 被信号 9（SIGKILL）终止",
    "at concurrency 2: 3 of 40 failed, most often: timeout: not answered within 5 s; at concurrency 4: all 40 requests":
        "在并发 2：40 个中有 3 个失败，最常见的是：超时：5 s 内没有应答；在并发 4：全部 40 个请求",
    "asked on, resolved off on decode-0, off on decode-1": "要求开启，实际 decode-0 上为关闭、decode-1 上为关闭",
    "hardware slowdown in 5% of the samples, power brake in 3% of the samples":
        "5% 的样本中出现硬件降速、3% 的样本中出现功率制动",
    "single ended with status 1: RuntimeError: NIXL agent could not be created":
        "single 以状态 1 退出：RuntimeError：“NIXL agent could not be created”",
    "no lease of 2 of 4 GPUs within 2 min: GPU-1 is used by process 5 (python), 3.0 GiB of its memory taken; "
    "GPU-2 is held by process 7 (w/1p1d/fp8/r1): wait until the other measurement has ended, or end it":
        "2 min 内未能占得 4 块 GPU 中的 2 块：GPU-1 正被进程 5 (python)使用，显存已占用 3.0 GiB；"
        "GPU-2 被进程 7（w/1p1d/fp8/r1）占用：请等待另一个测量结束，或将其终止",
    "w/1p1d/fp8/r1 needs 2 GPUs, and none can be used on this host: use a host (or a job) with more GPUs, make more of "
    "them visible, or leave this mode out":
        "w/1p1d/fp8/r1 需要 2 块 GPU，此主机上可用的为无："
        "请换用 GPU 更多的主机（或作业），使更多 GPU 可见，或去掉该模式",
    "w/1p1d/fp8/r1 needs GPUs, and NVML sees no NVIDIA driver here: use a host with GPUs, or engine: cpu":
        "w/1p1d/fp8/r1 需要 GPU，而 NVML 在此没有找到 NVIDIA 驱动：请换用有 GPU 的主机，或设置 engine: cpu",
    "no 2 free ports in a row were found in 64 tries: end servers that are no longer needed (ss -ltn shows them)":
        "尝试 64 次，没有找到 2 个连续的空闲端口：请结束不再需要的服务（ss -ltn 会列出它们）",
    "a mode with nodes: 2 needs a Slurm job of 2 nodes, and this is none: run the study with --profile profiles/slurm "
    "(docs/pd-across-nodes.md), or leave nodes out":
        "nodes: 2 的模式需要一个 2 节点的 Slurm 作业，而此处不是：请用 --profile profiles/slurm 运行研究"
        "（docs/pd-across-nodes.md），或去掉 nodes",
    "single ended with status 0: its process VLLM::EngineCor (17) had been killed by signal 9 (SIGKILL): the kernel "
    "has killed a process because the host or job was out of memory":
        "single 以状态 0 退出：此前其进程 VLLM::EngineCor（17）被信号 9（SIGKILL）终止："
        "内核因主机或作业内存不足终止了一个进程",
}  # fmt: skip


@pytest.mark.parametrize("english", TOLD)
def test_a_text_is_told_with_what_it_holds(english: str) -> None:
    assert retell(english, ZH) == TOLD[english]


def test_what_is_not_known_is_quoted_and_never_dropped() -> None:
    assert retell("the operating system said no", ZH) == "“the operating system said no”"
    told = retell("decode-0 ended with status 1: the operating system said no", ZH)
    assert told == "decode-0 以状态 1 退出：“the operating system said no”"
    assert retell("fp8_e4m3", ZH) == "fp8_e4m3"
    assert retell("", ZH) == ""


def test_english_stays_as_it_is_stored() -> None:
    for template in CATALOGUE:
        assert retell(template, Wording("en")) == template
    assert sentences("en") == ()


def test_a_long_foreign_text_is_told_at_once() -> None:
    text = "; ".join(["at x: 1 of 2 failed, most often: no connection"] * 40) + " (" * 300
    assert text.count("(") == retell(text, ZH).count("(")
