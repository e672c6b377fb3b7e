"""What no config may hold, whatever the key: secrets, and values that do harm further down."""

import pytest
from config_mutations import BILLION_LAUGHS
from test_config import MODES, STUDY, load, message

HF = "hf_" + "aB3" * 12


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("engine: {env: {HF_TOKEN: hunter22}}", "hunter22"),
        ("engine: {env: {OPENAI_API_KEY: hunter22}}", "hunter22"),
        ("engine: {env: {VLLM_API_KEY: hunter22}}", "hunter22"),
        ("engine: {env: {AWS_SECRET_ACCESS_KEY: hunter22}}", "hunter22"),
        ("engine: {env: {DB_PASSWORD_2: hunter22}}", "hunter22"),
        ("engine: {args: {api-key: hunter22}}", "hunter22"),
        ("engine: {args: {hf_token: hunter22}}", "hunter22"),
        (f"engine: {{env: {{HARMLESS: {HF}}}}}", HF),
        (f"report: {{title: see {HF}}}", HF),
        ("engine: {env: {https_proxy: 'http://me:hunter22@proxy:3128'}}", "hunter22"),
        ("engine: {env: {HF_TOKEN: hunter22}, kind: nonsense}", "hunter22"),
    ],
)
def test_a_secret_is_refused_and_not_shown(tmp_path, text, secret):
    found = message(tmp_path, STUDY + text + "\n")
    assert "study.yaml:6" in found and "a secret can't stand in a config" in found
    assert "export it in the shell" in found
    assert secret not in found


def test_a_secret_as_a_key_is_not_shown(tmp_path):
    found = message(tmp_path, STUDY + f"{HF}: 1\n")
    assert "a key holds a secret" in found and HF not in found


@pytest.mark.parametrize(
    "text",
    [
        "engine: {env: {TOKENIZERS_PARALLELISM: 'false', HF_TOKEN_PATH: /run/token, MONKEY: x, HF_TOKEN: ''}}",
        "engine: {args: {max_num_batched_token_slots: 3, long-prefill-token-threshold: 4}}",
        "report: {title: 'Tokens and keys: http://host:80/a@b'}",
    ],
)
def test_what_only_sounds_like_a_secret_is_none(tmp_path, text):
    load(tmp_path, STUDY + text + "\n")


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("seed: " + "[" * 5000 + "]" * 5000, ["study.yaml:6", "nested more than 50 levels"]),
        (BILLION_LAUGHS + "seed: *x9", ["more than 20,000 values"]),
        ("seed: " + "9" * 5000, ["study.yaml:6", "seed", "reads 999", "as int"]),
        ("seed: 99999999999999999999", ["study.yaml:6", "seed", "more than 64 bits"]),
        ("seed: 2024-13-45", ["study.yaml:6", "seed", "as timestamp"]),
        ("seed: 2024-01-01", ["study.yaml:6", "seed", "read as a date"]),
        ("seed: !!float x", ["study.yaml:6", "reads x as float"]),
        ("seed: !!bool maybe", ["study.yaml:6", "reads maybe as bool"]),
        ("seed: !!python/object/apply:os.system ['touch pwned']", ["study.yaml:6", "seed"]),
        ('report: {title: "\\UFFFFFFFF"}', ["study.yaml", "a character that does not exist"]),
        ('report: {title: "\\ud800"}', ["study.yaml:6", "report.title", "U+D800"]),
        ('report: {title: "a\\x1b[2J"}', ["study.yaml:6", "report.title", "U+001B"]),
        ("report: {title: a\0b}", ["study.yaml:6", "U+0000"]),
        ("engine: {command: 'vllm \"'}", ["study.yaml:6", "engine.command", "No closing quotation"]),
        ("engine: {args: {max_num_seqs: .nan}}", ["study.yaml:6", "max_num_seqs", "found .nan: no finite number"]),
        ("engine: {args: {'host=0.0.0.0': 1}}", ["study.yaml:6", "can't be a flag"]),
        ("engine: {args: {hos: 0.0.0.0}}", ["pdkv sets --host itself", "loopback"]),
        ("engine: {args: {tensor-parallel: 2}}", ["pdkv sets --tensor-parallel-size itself"]),
        ("report: {claims: 'a{b}.yaml'}", ["report.claims", "without braces"]),
    ],
)
def test_what_does_harm_further_down_is_named(tmp_path, text, parts):
    found = message(tmp_path, STUDY + text + "\n")
    for part in parts:
        assert part in found, found
    assert len(found) < 1000


@pytest.mark.parametrize("key", ["name", "load_format", "revision", "tokenizer"])
def test_a_model_that_reads_as_an_argument_is_refused(tmp_path, key):
    text = STUDY.replace("model: bundled", f"model: {{{key}: --trust-remote-code}}")
    assert f"model.{key}: found --trust-remote-code" in message(tmp_path, text)


@pytest.mark.parametrize("address", ["http://[::1", "http://h:99999", "http://\u2100/", "http://a\u202eb/", "ftp://h"])
def test_an_address_that_is_none_is_refused(tmp_path, address):
    text = STUDY.replace(MODES, f'modes: {{x: {{endpoint: "{address}"}}}}')
    assert "modes.x.endpoint" in message(tmp_path, text)
