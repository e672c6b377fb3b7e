"""Config files as accidents and malice would write them: seeded mutations of files that work.

Of our own rather than of a library: what goes wrong in a config goes wrong in its text (a key, a value, a line, an
indentation, a byte), so that a list of such accidents on real files finds more in a thousand tries than random
structures, and a seed names each file again.
"""

import random
import re
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parent.parent

# Every key of docs/config.md, one value a line, so that any of them can be hit alone.
MAXIMAL = """\
model:
  name: acme/model-8b
  load_format: dummy
  revision: main
  tokenizer: acme/tokenizer
engine:
  kind: custom
  python: /opt/vllm/bin/python
  args:
    max_num_seqs: 64
    enable-log-requests: "no"
    compilation-config: {level: 3, sizes: [1, 2]}
  env:
    VLLM_LOGGING_LEVEL: INFO
    UCX_NET_DEVICES: all
  token_budget: 4096
  kv_cache_gib: 2
  gpu_memory_utilization: 0.9
workloads:
  short: &short
    input_tokens: 128
    output_tokens: 16
    concurrency: [1, 2]
    requests: 12
    max_model_len: 256
  open:
    <<: *short
    concurrency: []
    request_rate: [0.5, 2]
    arrival: constant
modes:
  default: {}
  chunked:
    chunked_prefill: true
    env:
      SOME_NAME: "1"
  1p1d:
    prefill_args:
      max_num_seqs: 8
    decode_args:
      max_num_seqs: 16
    kv_connector:
      name: NixlConnector
      config: {kv_connector_extra_config: {backends: [UCX]}}
  wide:
    replicas: 3
    tensor_parallel_size: 2
dtypes:
  - fp16
  - fp8
repeats: 2
seed: 7
load:
  ramp_interval_ms: 5
  warmup_rounds: 3
limits:
  launch_timeout_s: 100
  request_timeout_s: 50.5
  trial_hours: 48
  study_hours: 10000
slo:
  ttft_ms: 500
  tpot_ms: 50
  e2el_ms: 5000
  target_share: 0.9
report:
  title: A study
  language: both
  margin: 0.02
  claims: config/claims.yaml
  baseline:
    mode: default
    dtype: fp16
"""
ENDPOINT = """\
model: served-name
workloads: {w: {input_tokens: 8, output_tokens: 4, concurrency: 2, requests: 8, max_model_len: 16}}
modes:
  running:
    endpoint: http://127.0.0.1:8000
dtypes: bf16
"""
HOSTILE_TEXTS = (
    "$(touch pwned)",
    "`touch pwned`",
    "a; touch pwned",
    "a\ntouch pwned",
    "a'b\"c",
    "--output=/tmp/x",
    "-rf",
    "../../outside",
    "/etc/passwd",
    "..",
    ".",
    "~nobody-there",
    "~",
    "a/b",
    "$HOME",
    "${HOME}",
    "{input}",
    "{{x}}",
    "{port}",
    "%s%n",
    "x" * 300,
    "名前",
    "cafe\u0301",
    "\u202eevil",
    "\u2028",
    "a\x07b",
    "a\0b",
    "😀",
    " ",
    "",
    "NUL",
    "<script>alert(1)</script>",
    "| a | b |",
    '#import "x"',
    "http://[::1",
    "http://127.0.0.1:99999",
    "http://user:pw@host/",
    "http://\u2100/",
    "http://a b/",
    "file:///etc/passwd",
)
# As they stand in the file, not quoted.
YAML_VALUES = (
    "no", "on", "~", "null", "0", "-1", "1e400", "-.inf", ".nan", "1e-320", "99999999999999999999", "9" * 5000,
    "0x" + "f" * 5000, "0o17", "010", "1_000", "190:20:30", "2024-13-45", "2024-01-01", "2024-01-01 99:99:99",
    "1.5", "3.0", "true", "[]", "{}", "[[]]", "[null]", "[1, [2, [3]]]", "{a: 1, a: 2}", "{1: 2}", "{[a]: b}", "{? {}}",
    "[" * 400 + "]" * 400, "{a: " * 400 + "}" * 400, "[" * 5000 + "]" * 5000, "!!int abc", "!!float x",
    "!!binary ???", "!!timestamp x", "!!bool maybe", "!!null x", "!!python/object:os.system x",
    "!!python/object/apply:os.system ['touch pwned']", "!!set {a, b}", "!!omap [a: 1]", "!!str 5", "!custom x",
    "*unknown", "&a [*a]", "&b {<<: *b}", "<<", "{<<: 3}", "{<<: [1]}", "=", "|", ">-", "- a", "? a", ": a",
    "%YAML 1.1", "@a", "\"\\x00\"", "\"\\ud800\"", "\"\\UFFFFFFFF\"", "'unclosed", "[unclosed", "---", "...", "\t",
    "default", "fp8",
    "1p1d", "99p99d", "2x", "cuda", "cpu", "custom", "bundled", "zh", "both", "poisson", "closed",
)  # fmt: skip
KEYS = (
    "model", "engine", "workloads", "modes", "dtypes", "repeats", "name", "kind", "args", "env", "python", "command",
    "input_tokens", "concurrency", "request_rate", "endpoint", "prefill", "decode", "replicas", "kv_connector",
    "baseline", "config", "claims", "host", "port", "model_config", "__class__", "HF_TOKEN", "LD_PRELOAD", "PATH",
    "VLLM_CPU_KVCACHE_SPACE", "no", "1", "null", "<<", "''", "\"\\0\"", "[a]", "? a", "x" * 300, "--port", "-", "--",
    "a b", "A", "summary", "r1", "cell.json", "logs", ".hidden", "..", "a/b", "é", "1p1d", "0p0d", "0x", "64p64d",
    "99x",
)  # fmt: skip
BILLION_LAUGHS = "x0: &x0 [a, a, a, a, a, a, a, a, a]\n" + "".join(
    f"x{n + 1}: &x{n + 1} [{', '.join([f'*x{n}'] * 9)}]\n" for n in range(9)
)

Mutation = Callable[[random.Random, list[str]], None]


def mutated_config(seed: int) -> bytes:
    """A config file that works, with one to three things wrong with it: the same one for the same seed."""
    rng = random.Random(seed)
    text = rng.choices(_originals(), weights=[4, 1, 1, 1, 1])[0]
    lines = text.split("\n")
    for _ in range(rng.choice((1, 1, 2, 3))):
        rng.choices(list(_MUTATIONS), weights=list(_MUTATIONS.values()))[0](rng, lines)
    raw = "\n".join(lines).encode("utf-8", "surrogatepass")
    return _with_bad_byte(rng, raw) if rng.random() < 0.05 else raw


def _originals() -> list[str]:
    shipped = [(ROOT / "config" / name).read_text("utf-8") for name in ("config.yaml", "smoke.yaml", "article.yaml")]
    return [MAXIMAL, ENDPOINT, *shipped]


def quoted(text: str) -> str:
    """As a double-quoted YAML scalar."""
    escaped = (f"\\U{ord(c):08x}" if ord(c) < 32 or c in '"\\\u2028\u202e' else c for c in text)
    return f'"{"".join(escaped)}"'


def _keyed_line(rng: random.Random, lines: list[str]) -> tuple[int, re.Match[str]] | None:
    found = [(at, match) for at, line in enumerate(lines) if (match := re.match(r"( *(?:- )?)([^:#]*): ?(.*)$", line))]
    return rng.choice(found) if found else None


def _some_value(rng: random.Random) -> str:
    return rng.choice(YAML_VALUES) if rng.random() < 0.6 else quoted(rng.choice(HOSTILE_TEXTS))


def _replace_value(rng: random.Random, lines: list[str]) -> None:
    if place := _keyed_line(rng, lines):
        at, match = place
        lines[at] = f"{match[1]}{match[2]}: {_some_value(rng)}"


def _replace_key(rng: random.Random, lines: list[str]) -> None:
    if place := _keyed_line(rng, lines):
        at, match = place
        key = rng.choice(KEYS) if rng.random() < 0.6 else quoted(rng.choice(HOSTILE_TEXTS))
        lines[at] = f"{match[1]}{key}: {match[3]}"


def _misspell_key(rng: random.Random, lines: list[str]) -> None:
    if place := _keyed_line(rng, lines):
        at, match = place
        cut = rng.randrange(len(match[2]) + 1)
        lines[at] = f"{match[1]}{match[2][:cut]}{rng.choice('xX _-.')}{match[2][cut + 1 :]}: {match[3]}"


def _replace_scalar(rng: random.Random, lines: list[str]) -> None:
    """One word anywhere, in flow style too."""
    words = [(at, match) for at, line in enumerate(lines) for match in re.finditer(r"[\w./-]+", line)]
    if words:
        at, match = rng.choice(words)
        lines[at] = lines[at][: match.start()] + _some_value(rng) + lines[at][match.end() :]


def _drop_line(rng: random.Random, lines: list[str]) -> None:
    del lines[rng.randrange(len(lines))]
    lines.append("")


def _repeat_line(rng: random.Random, lines: list[str]) -> None:
    lines.insert(rng.randrange(len(lines) + 1), rng.choice(lines))


def _move_line(rng: random.Random, lines: list[str]) -> None:
    line = lines.pop(rng.randrange(len(lines)))
    lines.insert(rng.randrange(len(lines) + 1), line)


def _indent_line(rng: random.Random, lines: list[str]) -> None:
    at = rng.randrange(len(lines))
    lines[at] = rng.choice((" ", "  ", "\t", "    ")) + lines[at] if rng.random() < 0.5 else lines[at].lstrip()


def _add_line(rng: random.Random, lines: list[str]) -> None:
    indent = " " * rng.choice((0, 2, 4, 6))
    lines.insert(rng.randrange(len(lines) + 1), f"{indent}{rng.choice(KEYS)}: {_some_value(rng)}")


def _break_line(rng: random.Random, lines: list[str]) -> None:
    at = rng.randrange(len(lines))
    cut = rng.randrange(len(lines[at]) + 1)
    lines[at : at + 1] = [lines[at][:cut], lines[at][cut:]]


def _insert_sign(rng: random.Random, lines: list[str]) -> None:
    at = rng.randrange(len(lines))
    cut = rng.randrange(len(lines[at]) + 1)
    lines[at] = lines[at][:cut] + rng.choice("{}[]:,&*!|>'\"%@`#?-\\\0\x85\u2028\ufeff\ud800") + lines[at][cut:]


def _truncate(rng: random.Random, lines: list[str]) -> None:
    del lines[rng.randrange(len(lines)) :]
    lines.append("")


def _share_by_anchor(rng: random.Random, lines: list[str]) -> None:
    first, second = _keyed_line(rng, lines), _keyed_line(rng, lines)
    if first and second:
        lines[first[0]] = f"{first[1][1]}{first[1][2]}: &shared {first[1][3]}"
        lines[second[0]] = f"{second[1][1]}{rng.choice((second[1][2], '<<'))}: *shared"


def _laugh(rng: random.Random, lines: list[str]) -> None:
    lines[0:0] = BILLION_LAUGHS.split("\n")
    if place := _keyed_line(rng, lines):
        lines[place[0]] = f"{place[1][1]}{place[1][2]}: *x9"


def _with_bad_byte(rng: random.Random, raw: bytes) -> bytes:
    at = rng.randrange(len(raw) + 1)
    return raw[:at] + bytes([rng.randrange(256)]) + raw[at + rng.randrange(2) :]


_MUTATIONS: dict[Mutation, int] = {
    _replace_value: 30,
    _replace_scalar: 15,
    _replace_key: 12,
    _misspell_key: 6,
    _add_line: 10,
    _drop_line: 4,
    _repeat_line: 4,
    _move_line: 4,
    _indent_line: 4,
    _break_line: 3,
    _insert_sign: 5,
    _truncate: 2,
    _share_by_anchor: 4,
    _laugh: 1,
}
