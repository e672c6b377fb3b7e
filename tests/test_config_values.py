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
        ("engine: {env: {DB_PASS: hunter22}}", "hunter22"),
        ("engine: {env: {MYSQL_PWD: hunter22}}", "hunter22"),
        ("engine: {env: {TOKEN_PROD: hunter22}}", "hunter22"),
        ("engine: {env: {DB_PASSWORD: 12345678}}", "12345678"),
        ("engine: {env: {X: 'Bearer hunterhunter'}}", "hunterhunter"),
        ("engine: {env: {X: 'Basic aHVudGVyOmh1bnRlcjIy'}}", "aHVudGVy"),
        ("engine: {env: {EXTRA: '--password=hunter22'}}", "hunter22"),
        ("engine: {env: {EXTRA: '--verbose --password hunter22'}}", "hunter22"),
        ("engine: {env: {EXTRA: 'X-Api-Key: hunter22'}}", "hunter22"),
        ("engine: {env: {https_proxy: 'http://me:hun@ter22@proxy:3128'}}", "ter22"),
        ("engine: {env: {INDEX: 'https://ghp_abcdefghijklmnopqrstuvwxyz0123@github.com/x'}}", "ghp_abc"),
        ("engine: {args: {api-key: [hunter22]}}", "hunter22"),
        ('engine: {args: {some-config: \'{"api_key": "hunter22"}\'}}', "hunter22"),
        ("engine: {args: {some-config: {nested: {hf_token: hunter22}}}}", "hunter22"),
        ("engine: {args: {'api-key=hunter22': true}}", "hunter22"),
        ("engine: {command: [vllm, --api-key, hunter22]}", "hunter22"),
        ("engine: {command: [vllm, --api-key, 12345678]}", "12345678"),
        ("engine: {command: [vllm, --hf-token=hunter22]}", "hunter22"),
        ("engine: {command: [env, HF_TOKEN=hunter22, vllm]}", "hunter22"),
        ("engine: {command: 'vllm --api-key hunter22'}", "hunter22"),
        ("engine: {command: 'docker run -e DB_PASS=hunter22 IMAGE vllm'}", "hunter22"),
        ("engine: {command: 'docker run --env HF_TOKEN=hunter22 IMAGE vllm'}", "hunter22"),
        ("engine: {command: 'docker run --env=VLLM_API_KEY=hunter22 IMAGE vllm'}", "hunter22"),
        ("engine: {command: 'docker run -e \"HF_TOKEN=hunter22\" IMAGE vllm'}", "hunter22"),
        ("engine: {command: [docker, run, -e, DB_PASS=hunter22, IMAGE, vllm]}", "hunter22"),
        ("engine: {command: [docker, run, --env=DB_PASS=hunter22, IMAGE, vllm]}", "hunter22"),
    ],
)
def test_a_secret_is_refused_and_not_shown(tmp_path, text, secret):
    found = message(tmp_path, STUDY + text + "\n")
    assert "study.yaml:6" in found
    assert ("a secret can't stand in a config" in found and "export it in the shell" in found) or "a key holds" in found
    assert secret not in found


@pytest.mark.parametrize("address", ["http://h:80/?api_key=hunter22", "http://h:80/v1?a=1&token=hunter22"])
def test_an_address_that_holds_a_secret_is_refused_and_not_shown(tmp_path, address):
    found = message(tmp_path, STUDY.replace(MODES, f'modes: {{x: {{endpoint: "{address}"}}}}'))
    assert "modes.x.endpoint: a secret can't stand in a config" in found and "hunter22" not in found


def test_a_secret_as_a_key_is_not_shown(tmp_path):
    found = message(tmp_path, STUDY + f"{HF}: 1\n")
    assert "a key holds a secret" in found and HF not in found


@pytest.mark.parametrize(
    "text",
    [
        "engine: {env: {TOKENIZERS_PARALLELISM: 'false', HF_TOKEN_PATH: /run/token, MONKEY: x, HF_TOKEN: ''}}",
        "engine: {args: {max_num_batched_token_slots: 3, long-prefill-token-threshold: 4}}",
        "report: {title: 'Tokens and keys: http://host:80/a@b'}",
        "report: {title: Basic comparison}",
        "report: {title: 'Key: figures'}",
        "report: {title: 'Token: 5, key --fast, Bearer of news'}",
        "engine: {env: {A_TOKEN_BUDGET: '131072', CACHE_KEY: abcdefgh, PUBLIC_KEY: abcdefgh, SSH_AUTH_SOCK: /run/a}}",
        "engine: {env: {PWD: /home/someone, A_PASSES: abcdefgh, EXTRA: '--max-tokens=512 --num-tokens 4096'}}",
        "engine: {env: {EXTRA: '--api-key $OUR_KEY --auth none'}}",
        "engine: {command: [vllm, --api-key, $OUR_KEY, --max-tokens, '8192', --cache-key, abcdefgh, -e, HF_TOKEN, x]}",
        'engine: {args: {some-config: \'{"num_tokens": "1234567", "pad_token": "<padding>"}\'}}',
        "engine: {args: {hf-overrides: {eos_token: '<|endoftext|>'}, return_token_ids: true}}",
    ],
)
def test_what_only_sounds_like_a_secret_is_none(tmp_path, text):
    assert load(tmp_path, STUDY + text + "\n").cells(), "read as written, and nothing refused"


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
        ("engine: {args: {kv_cache_memory_bytes: 9}}", ["sets --kv-cache-memory-bytes itself", "engine.kv_cache_gib"]),
        ("engine: {args: {kv-cache-m: 9}}", ["sets --kv-cache-memory-bytes itself", "engine.gpu_memory_utilization"]),
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
