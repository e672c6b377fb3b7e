"""Config files as users write them: what works, and what a wrong one is told."""

import re
from pathlib import Path

import pytest

from pdkv.errors import UserError
from pdkv.records import Trial
from pdkv.study.config import load_study
from pdkv.study.launch_counts import describe_repeats, find_few_launches

STUDY = """\
model: bundled
workloads: {w: {input_tokens: 128, output_tokens: 16, concurrency: [2], requests: 8, max_model_len: 512}}
modes: {default: {}}
dtypes: [fp16]
repeats: 1
"""
MODES, DTYPES, LEVELS = "modes: {default: {}}", "[fp16]", "[2]"
ROOT = Path(__file__).parent.parent


def load(tmp_path: Path, text: str | bytes):
    path = tmp_path / "study.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return load_study(path)


def message(tmp_path: Path, text: str | bytes) -> str:
    with pytest.raises(UserError) as caught:
        load(tmp_path, text)
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (STUDY.replace(MODES, "modes: {no: {}, on: {}, default: {}}"), ["study.yaml:3", "modes.no", 'quote it: "no"']),
        (STUDY.replace(MODES, "modes: {default, no}"), ["study.yaml:3", "modes.no", "quote it"]),
        (
            STUDY.replace(DTYPES, "[fp16, off]"),
            ["study.yaml:4", "dtypes[1]", "found off", 'quote it if you mean the name: "off"'],
        ),
        (STUDY.replace(MODES, "modes: [default, off]"), ["study.yaml:3", "modes", "quote"]),
        (STUDY + "repeats: 5\n", ["study.yaml:6", "repeats stands twice", "line 5"]),
        (STUDY.replace("{w:", "{w: {}, w:"), ["workloads.w stands twice"]),
        ("a:\n\tb: 1\n", ["study.yaml:2", "tab", "blanks"]),
        (b"model: bundled\n# caf\xe9\n", ["study.yaml:2", "0xE9", "UTF-8"]),
        ("", ["is empty", "config/config.yaml"]),
        ("- a\n", ["holds a list"]),
        ("a: [1, 2\nb: 3\n", ["study.yaml:2", "not valid YAML"]),
        ("a: &x [*x]\n", ["study.yaml:1", "contains itself"]),
        (STUDY.replace(DTYPES, "[]"), ["study.yaml:4", "dtypes", "found []", "fp8_e5m2"]),
        (STUDY.replace(MODES, "modes:"), ["study.yaml:3", "modes", "found nothing"]),
        (STUDY.replace(LEVELS, "[0]"), ["concurrency[0]", "found 0", "1 to 65536"]),
        (STUDY.replace(LEVELS, "[-1]"), ["concurrency[0]", "found -1"]),
        (STUDY.replace(LEVELS, "[2, 2]"), ["workloads.w", "lists a level twice"]),
        (STUDY.replace(LEVELS, "[yes]"), ["concurrency[0]", "found yes", "not a whole number"]),
        (STUDY.replace(LEVELS, "['2']"), ["concurrency[0]", "found 2", "not a whole number"]),
        (STUDY.replace(LEVELS, "[1.5]"), ["concurrency[0]", "found 1.5"]),
        (STUDY.replace("concurrency: [2], ", ""), ["workloads.w", "needs concurrency or request_rate"]),
        (STUDY.replace("input_tokens: 128", "input_tokens: 500"), ["500 + 16 = 516 does not fit max_model_len 512"]),
        (STUDY.replace("repeats: 1", "repeat: 3"), ["study.yaml:5", "repeat: unknown key", "did you mean repeats?"]),
        (STUDY.replace("input_tokens", "input_token"), ["unknown key", "did you mean input_tokens?", "is missing"]),
        (STUDY.replace(MODES, "modes: {1: {}, '1': {}}"), ["modes.1", "a number", 'quote it: "1"']),
        (
            STUDY.replace(MODES, "modes: {café: {replicas: 1}, cafe\u0301: {replicas: 1}}"),
            ["stands twice", "two codings"],
        ),
        (STUDY.replace(MODES, "modes: {a: {replicas: 1}, A: {replicas: 1}}"), ["A and a would share a folder"]),
        (STUDY.replace(MODES, "modes: {r1: {replicas: 1}}"), ["name of something else"]),
        (STUDY.replace(DTYPES, "[fp8, FP8]"), ["found FP8", "did you mean fp8?"]),
        (STUDY.replace(DTYPES, "[fp8, fp8]"), ["listed twice"]),
        (STUDY.replace(MODES, "modes: {chunkd: {}}"), ["not a known mode", "did you mean chunked?"]),
        (STUDY.replace(MODES, "modes: {1p1d: {prefill: 2}}"), ["its name says 1 prefill and 1 decode"]),
        (STUDY.replace(MODES, "modes: {2x: {replicas: 3}}"), ["its name says 2 replicas"]),
        (STUDY.replace(MODES, "modes: {x: {prefill: 2}}"), ["a topology that does not exist"]),
        (
            STUDY.replace(MODES, "modes: {x: {replicas: 1, kv_connector: NixlConnector}}"),
            ["without prefill and decode"],
        ),
        (STUDY.replace(MODES, "modes: {chunked: {chunked_prefill: false}}"), ["contradicts the mode's name"]),
        (
            STUDY.replace(MODES, "modes: {x: {args: {max_num_seqs: 8, max-num-seqs: 9}}}"),
            ["the same flag as max_num_seqs"],
        ),
        (
            STUDY.replace(MODES, "modes: {x: {args: {kv_cache_dtype: fp8}}}"),
            ["pdkv sets --kv-cache-dtype itself", "dtypes"],
        ),
        (STUDY.replace(MODES, "modes: {x: {endpoint: localhost}}"), ["modes.x.endpoint", "found localhost", "http://"]),
        (STUDY.replace(MODES, "modes: {x: {endpoint: 'http://127.0.0.1:99999'}}"), ["modes.x.endpoint", "found http"]),
        (STUDY.replace(MODES, "modes: {x: {endpoint: 'http://:80'}}"), ["modes.x.endpoint", "found http"]),
        (STUDY.replace(MODES, "modes: {1p1d: {endpoint: 'http://127.0.0.1:80'}}"), ["modes.1p1d", "another name"]),
        (
            STUDY.replace(MODES, "modes: {x: {endpoint: 'http://127.0.0.1:80', replicas: 2}}"),
            ["replicas beside endpoint"],
        ),
        (
            STUDY.replace(MODES, "modes: {x: {endpoint: 'http://127.0.0.1:80'}}").replace(DTYPES, "[fp16, fp8]"),
            ["dtypes", "beside an endpoint", "one dtype"],
        ),
        (STUDY.replace(DTYPES, "[fp16, bf16, fp8]"), ["dtypes", "weights of one 16-bit type only"]),
        (
            STUDY.replace(MODES, "modes: {default: {args: {max_num_seqs: 1}}}"),
            ["modes.default", "not what default means"],
        ),
        (STUDY.replace(MODES, "modes: {chunked: {replicas: 2}}"), ["modes.chunked", "not what chunked means"]),
        (STUDY.replace(MODES, "modes: {x: {env: {A=B: c}}}"), ["modes.x.env", "can't be an environment variable"]),
        (STUDY + "engine: {env: {VLLM_CPU_KVCACHE_SPACE: '40'}}\n", ["engine.env", "use engine.kv_cache_gib"]),
        (STUDY.replace(MODES, "modes: {x: {args: {data_parallel_size: 2}}}"), ["pdkv sets --data-parallel-size", "2x"]),
        (STUDY + "engine: vllm\n", ["engine.kind", "found vllm", "auto, cpu, cuda"]),
        (STUDY + "engine: {python: a, command: b}\n", ["engine", "more than one engine"]),
        (STUDY + "engine: {device: cuda}\n", ["engine.device", "what python or command computes on", "kind: cuda"]),
        (STUDY + "engine: {python: a, device: gpu}\n", ["engine.device", "found gpu", "auto, cpu or cuda"]),
        (STUDY + "report: {baseline: {mode: defalt}}\n", ["report.baseline.mode", "found defalt"]),
        (STUDY + "slo: {}\n", ["study.yaml:6", "slo: names no limit", "at least one of ttft_ms"]),
        (STUDY + "slo: {target_share: 0.5}\n", ["slo: names no limit"]),
        (STUDY + "slo: 500\n", ["study.yaml:6", "slo: found 500", "{ttft_ms: 500, tpot_ms: 50}"]),
        (STUDY + "slo: {ttft: 500}\n", ["slo.ttft: unknown key", "did you mean ttft_ms?"]),
        (STUDY + "slo: {tpot_ms: 0}\n", ["slo.tpot_ms: found 0", "milliseconds, above 0"]),
        (STUDY + "slo: {e2el_ms: '500'}\n", ["slo.e2el_ms: found 500: not a number"]),
        (STUDY + "slo: {e2el_ms: .inf}\n", ["slo.e2el_ms: found .inf"]),
        (STUDY + "slo: {ttft_ms: 5, target_share: 90}\n", ["slo.target_share: found 90", "above 0 and up to 1"]),
        (STUDY + "slo: {ttft_ms: 5, target_share: 0}\n", ["slo.target_share: found 0"]),
        (STUDY + "cost: {}\n", ["study.yaml:6", "cost: names no price", "per_gpu_hour"]),
        (STUDY + "cost: 2.5\n", ["cost: found 2.5", "{per_gpu_hour: 2.5, currency: USD}"]),
        (STUDY + "cost: {per_gpu_hour: 0}\n", ["cost.per_gpu_hour: found 0", "above 0"]),
        (STUDY + "cost: {per_gpu: 2.5}\n", ["cost.per_gpu: unknown key", "did you mean per_gpu_hour?"]),
        (STUDY + "cost: {per_host_hour: '1'}\n", ["cost.per_host_hour: found 1: not a number"]),
        (STUDY + "cost: {per_gpu_hour: 1, currency: ''}\n", ["cost.currency"]),
    ],
)
@pytest.mark.fault(
    "input",
    "keys twice, misspelt or of YAML's own kind, tabs, Latin-1, nothing, too little, too much",
    "one message with file, line, what was found and what is allowed",
)
def test_wrong_config_is_one_message(tmp_path, text, parts):
    found = message(tmp_path, text)
    for part in parts:
        assert part in found
    assert "Traceback" not in found


def test_every_file_that_the_workflow_writes_beside_the_workloads_is_no_name_for_one(tmp_path: Path) -> None:
    rules = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "workflow/rules").glob("*.smk"))
    written = set(re.findall(r'"results/([\w.]+)["/]', rules))
    assert {"objectives.csv", "logs"} <= written
    for name in written:
        assert "name of something else" in message(tmp_path, STUDY.replace("{w:", f"{{{name}:"))


@pytest.mark.parametrize("name", ["my mode", "a;touch pwned", "$HOME", "x{y}", "..", "-rf", "a/b", "", "a" * 65])
@pytest.mark.fault(
    "input", "names with blanks, slashes, `..`, `$`, `;` or 65 characters", "refused by name, with what is allowed"
)
def test_names_that_a_shell_or_path_would_read_are_refused(tmp_path, name):
    assert "can't be a name" in message(tmp_path, STUDY.replace(MODES, f"modes: {{'{name}': {{replicas: 1}}}}"))


@pytest.mark.parametrize("name", ["no", "预填充", "café", "tp2+eager", "v1.2"])
@pytest.mark.fault("input", "names in Chinese, with accents, or a quoted `no`", "work as they are")
def test_names_that_work(tmp_path, name):
    study = load(tmp_path, STUDY.replace(MODES, f"modes: {{'{name}': {{replicas: 1}}}}"))
    assert study.trials()[0].name == f"w/{name}/fp16/r1"


def test_the_same_study_spelt_otherwise_gives_the_same_slice(tmp_path):
    plain = load(tmp_path, STUDY).trials()[0].to_slice()
    for other in (
        STUDY.replace("128", "0x80"),
        STUDY.replace("repeats: 1", "repeats: 1.0"),
        STUDY.replace("[2]", "2"),
        STUDY.replace(MODES, "modes: [default]"),
        STUDY.replace("fp16]", "fp16] # a comment"),
        "\n".join(reversed(STUDY.splitlines())) + "\n",
        STUDY + "seed: 0\nengine: auto\n",
        STUDY.replace("model: bundled", "model: {name: bundled, load_format: auto}"),
        STUDY.replace("{w: {", "{w: &base {").replace("512}}", "512}, v: {<<: *base, requests: 9}}"),
        STUDY.replace(MODES, "modes: {1p1d: {}, default: {}}"),
    ):
        slices = {trial.name: trial.to_slice() for trial in load(tmp_path, other).trials()}
        assert slices["w/default/fp16/r1"] == plain, other


def test_anchor_with_override(tmp_path):
    study = load(tmp_path, STUDY.replace("{w: {", "{w: &base {").replace("512}}", "512}, v: {<<: *base, requests: 9}}"))
    assert [w.points[0].requests for w in study.workloads] == [8, 9]
    assert study.workloads[1].input_tokens == 128


def test_slice_round_trip(tmp_path):
    study = load(tmp_path, STUDY.replace(MODES, "modes: [default, 2p1d, 2x]").replace(DTYPES, "[bf16, fp8_e4m3]"))
    for trial in study.trials():
        assert Trial.from_slice(trial.to_slice()) == trial


def test_repeats_are_blocks_in_an_order_that_the_seed_shuffles(tmp_path):
    text = (
        STUDY.replace(MODES, "modes: [default, chunked, 1p1d]")
        .replace(DTYPES, "[fp16, fp8]")
        .replace("repeats: 1", "repeats: 3")
    )
    trials = load(tmp_path, text).trials()
    blocks = [[t.name.rsplit("/", 1)[0] for t in trials if t.repeat == r] for r in (1, 2, 3)]
    assert [t.repeat for t in trials] == [1] * 6 + [2] * 6 + [3] * 6
    assert all(sorted(block) == sorted(blocks[0]) for block in blocks)
    assert len({tuple(block) for block in blocks}) > 1
    assert [t.name for t in load(tmp_path, text).trials()] == [t.name for t in trials]


def test_eight_bit_cells_keep_the_weights_of_the_sixteen_bit_ones(tmp_path):
    study = load(tmp_path, STUDY.replace(DTYPES, "[bf16, fp8]"))
    assert [(d.model_dtype, d.kv_cache_dtype) for d in study.dtypes] == [("bfloat16", "auto"), ("bfloat16", "fp8")]


def test_flags_understand_yaml_booleans_quoted_or_not(tmp_path):
    for value in ("no", '"no"', "false"):
        study = load(tmp_path, STUDY.replace(MODES, f"modes: {{x: {{args: {{async_scheduling: {value}}}}}}}"))
        assert study.modes[0].args == {"async-scheduling": False}


def test_overrides_replace_keys_as_on_the_command_line(tmp_path):
    path = tmp_path / "study.yaml"
    path.write_text(STUDY)
    assert load_study(path, {"repeats": 2}).repeats == 2


def test_some_cells_have_other_numbers_of_launches_and_others_none(tmp_path):
    text = STUDY.replace(MODES, "modes: [default, unchunked, 1p1d]").replace(DTYPES, "[bf16, fp8]")
    text = text.replace("repeats: 1", "repeats: 3")
    text += 'launches: {"*/unchunked/*": 0, "*/unchunked/bf16": 1, "*/1p1d/*": 2}\n'
    study = load(tmp_path, text)
    workload = study.workloads[0].id
    counts = {cell[1:]: study.launch_count(*cell) for cell in study.cells()}
    others = {("1p1d", "bf16"): 2, ("1p1d", "fp8"): 2}
    assert counts == {("default", "bf16"): 3, ("default", "fp8"): 3, ("unchunked", "bf16"): 1, **others}
    names = [trial.name for trial in study.trials()]
    assert len(names) == len(set(names)) == 3 + 3 + 1 + 2 + 2
    assert {name for name in names if name.endswith("r3")} == {f"{workload}/default/{d}/r3" for d in ("bf16", "fp8")}
    assert [name[-1] for name in names] == sorted(name[-1] for name in names), "blocks one after another"
    cells = "w/unchunked/bf16 (1), w/1p1d/bf16 (2), w/1p1d/fp8 (2)"
    assert find_few_launches(study, 3) == [f"launches: {cells}: fewer than 3 launches show an effect and no verdict"]


def test_a_baseline_with_two_launches_is_warned_of_by_name(tmp_path):
    text = STUDY.replace(MODES, "modes: [default, unchunked]").replace("repeats: 1", "repeats: 3")
    (said,) = find_few_launches(load(tmp_path, text + 'launches: {"*/default/*": 2}\n'), 3)
    assert said.startswith("launches: the baseline w/default/fp16 (2): fewer than 3 launches")
    assert find_few_launches(load(tmp_path, text + 'launches: {"*/default/*": 4}\n'), 3) == []
    assert find_few_launches(load(tmp_path, text.replace("repeats: 3", "repeats: 1")), 3) == [], "asked for, and known"


@pytest.mark.parametrize(("repeats", "told"), [(1, True), (2, True), (3, False)])
def test_a_study_without_verdicts_is_told(tmp_path, repeats, told):
    text = STUDY.replace(MODES, "modes: [default, 1p1d]").replace("repeats: 1", f"repeats: {repeats}")
    words = f"repeats: {repeats}: the report will show effects and no verdicts; these need 3 launches of each cell"
    assert describe_repeats(load(tmp_path, text), 3) == (words if told else None)


def test_one_cell_has_nothing_to_be_compared_with(tmp_path):
    assert describe_repeats(load(tmp_path, STUDY), 3) is None


@pytest.mark.parametrize(
    ("launches", "words"),
    [
        ('{"*/chunked/*": 1}', r"fits no cell\n.*such as .*/default/bf16"),
        ('{"*/1p1d/*": 0}', "leaves no cell of 1p1d"),
        ('{"*": 0}', "leaves no cell of"),
        ('{"*/1p1d/*": -1}', "found -1"),
        ('{"*/1p1d/*": half}', "found half"),
        ("[default]", "launches: found"),
    ],
)
def test_launches_that_cannot_be_meant(tmp_path, launches, words):
    text = STUDY.replace(MODES, "modes: [1p1d, default]").replace(DTYPES, "[bf16]")
    with pytest.raises(UserError, match=words) as error:
        load(tmp_path, text + f"launches: {launches}\n")
    assert "launches" in error.value.problem


@pytest.mark.parametrize("name", ["config", "article", "smoke", "h200"])
def test_shipped_studies_are_valid(name):
    assert load_study(ROOT / "config" / f"{name}.yaml").trials()


def test_service_levels_are_no_part_of_a_trial(tmp_path: Path) -> None:
    """They are asked of what was measured: changing them must measure nothing again."""
    without, with_levels = load(tmp_path, STUDY), load(tmp_path, STUDY + "slo: {ttft_ms: 500, tpot_ms: 50}\n")
    assert without.slo is None
    assert with_levels.slo is not None
    assert with_levels.slo.model_dump() == {"ttft_ms": 500, "tpot_ms": 50, "e2el_ms": None, "target_share": 0.9}
    assert [t.to_slice() for t in without.trials()] == [t.to_slice() for t in with_levels.trials()]


def test_limits_of_a_trial_are_seconds(tmp_path: Path) -> None:
    limits = load(tmp_path, STUDY + "limits: {launch_timeout_s: 60, trial_hours: 0.5}\n").limits
    assert (limits.launch_timeout_s, limits.request_timeout_s, limits.trial_timeout_s) == (60, 600, 1800)
    assert load(tmp_path, STUDY).limits.trial_timeout_s == 86_400


def test_requests_for_each_level_follow_the_order_of_the_levels(tmp_path: Path) -> None:
    levels = STUDY.replace("concurrency: [2], requests: 8", "concurrency: [64, 2], request_rate: 0.5, requests: {}")
    each = load(tmp_path, levels.replace("requests: {}", "requests: [128, 24, 9]")).workloads[0].points
    assert [(point.label, point.requests) for point in each] == [("64", 128), ("2", 24), ("0.5/s", 9)]
    one, listed = (load(tmp_path, levels.replace("requests: {}", f"requests: {text}")) for text in ("7", "[7]"))
    assert [point.requests for point in one.workloads[0].points] == [7, 7, 7]
    assert [trial.to_slice() for trial in one.trials()] == [trial.to_slice() for trial in listed.trials()]
    with pytest.raises(UserError, match="requests lists 2 numbers for 3 load levels"):
        load(tmp_path, levels.replace("requests: {}", "requests: [1, 2]"))


def test_prices_are_no_part_of_a_trial(tmp_path: Path) -> None:
    without, priced = load(tmp_path, STUDY), load(tmp_path, STUDY + "cost: {per_gpu_hour: 2}\n")
    assert without.cost is None
    assert priced.cost is not None
    assert priced.cost.model_dump() == {"per_gpu_hour": 2, "per_host_hour": None, "currency": "USD"}
    assert [t.to_slice() for t in without.trials()] == [t.to_slice() for t in priced.trials()]


def test_all_requests_may_be_asked_to_meet(tmp_path: Path) -> None:
    slo = load(tmp_path, STUDY + "slo: {e2el_ms: 1.5, target_share: 1}\n").slo
    assert slo is not None and (slo.e2el_ms, slo.target_share) == (1.5, 1)
