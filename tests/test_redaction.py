"""Which settings hold secrets, and how they are kept out of text."""

import json
from pathlib import Path

import pytest

from pdkv.redaction import looks_secret, redact, redact_answer, redact_files, secret_values
from pdkv.secret_names import is_secret_name

SECRET = """
    HF_TOKEN OPENAI_API_KEY api-key DB_PASSWORD_1 SECRET_ID apikey GITHUB_PAT BASIC_AUTH DB_PASS
    MYSQL_PWD PGPASSWORD HUGGINGFACEHUB_APITOKEN TOKEN_PROD API_KEYS AUTH_TOKENS SESSION_COOKIE
    AUTH_HEADER KEY_1 HF_TOKEN_2 apiKey dbPassword Authorization
"""


@pytest.mark.parametrize("name", SECRET.split())
def test_names_of_secrets(name):
    assert is_secret_name(name)


HARMLESS = """
    TOKENIZERS_PARALLELISM max-num-batched-tokens HF_TOKEN_PATH MONKEY KEYBOARD _ 123
    VLLM_MULTI_STREAM_GEMM_TOKEN_THRESHOLD SOME_TOKEN_BUDGET VLLM_MAX_TOKENS_PER_EXPERT_FP4_MOE
    VLLM_ENABLE_PREGRAD_PASSES VLLM_MAX_BAD_WORDS_TOTAL_TOKENS VLLM_USE_FASTOKENS tokens token_ids
    CACHE_KEY cache_keys sort-key PUBLIC_KEY num_keys eos_token per_token prompt_tokens PWD OLDPWD
    SSH_AUTH_SOCK SSH_ASKPASS BYPASS XAUTHORITY fuse_first_pass
"""


@pytest.mark.parametrize("name", ["", *HARMLESS.split()])
def test_names_that_only_sound_like_it(name):
    assert not is_secret_name(name)


def test_forms_of_secrets():
    assert (
        looks_secret("x hf_" + "a1" * 15) and looks_secret("http://me:1234@host/") and looks_secret("AKIA" + "A" * 16)
    )
    assert not looks_secret("hf_short") and not looks_secret("http://host:80/a@b") and not looks_secret("sk-learn")


def test_values_are_hidden_the_longest_first():
    environment = {
        "A_KEY": "abcdefgh",
        "B_KEY": "abcdefghij",
        "C_KEY": "abc",
        "D": "x://u:password@h",
        "E": "plain-text",
    }
    assert secret_values(environment) == ["abcdefghij", "abcdefgh", "password"]
    text = "abcdefghij abcdefgh abc password plain-text"
    assert redact(text, secret_values(environment)) == "[hidden] [hidden] abc [hidden] plain-text"


@pytest.mark.parametrize(
    ("name", "value", "secrets"),
    [
        ("API_KEYS", "firstkey1,secondkey2", {"firstkey1,secondkey2", "firstkey1", "secondkey2"}),
        (
            "SESSION_COOKIE",
            "id=cookievalue; Path=/",
            {"id=cookievalue; Path=/", "id=cookievalue", "cookievalue"},
        ),
        ("AUTH_HEADER", "Bearer bearervalue", {"Bearer bearervalue", "bearervalue"}),
        ("X", "Bearer bearervalue", {"bearervalue"}),
        ("X", "Basic bWU6aHVudGVyMjI=", {"bWU6aHVudGVyMjI="}),
        ("X", "Basic comparison", set()),
        ("FOO", "hf_abcdefghijklmnopqrstuvwxyz0123", {"hf_abcdefghijklmnopqrstuvwxyz0123"}),
        ("INDEX", "https://ghp_abcdefghijklmnopqrstuvwxyz@github.com", {"ghp_abcdefghijklmnopqrstuvwxyz"}),
        ("INDEX", "https://someone@github.com", set()),
        ("http_proxy", "http://u:p@ssw0rdlong@127.0.0.1:9/", {"p@ssw0rdlong"}),
        ("HOOK", "https://h/x?a=1&api_key=ourhook22", {"ourhook22"}),
        ("HF_TOKEN", "abcdef\n", {"abcdef\n", "abcdef"}),
        ("HF_TOKEN", " 'abc def' ", {" 'abc def' ", "'abc def'", "abc def"}),
        ("VLLM_SOME_TOKEN_BUDGET", "131072", set()),
        ("TOKENIZERS_PARALLELISM", "parallel", set()),
    ],
)
def test_values_that_are_hidden(name, value, secrets):
    found = set(secret_values({name: value}))
    assert found >= secrets and (not secrets) == (not found)


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        ("x hf_" + "a1" * 15 + " y", "x [hidden] y"),
        (r'{"log": "FOO=1\nhf_' + "a1" * 15 + r'\n"}', r'{"log": "FOO=1\n[hidden]\n"}'),
        ("proxy http://u:p@ss@h:9/ and http://me:pw1@h", "proxy http://u:[hidden]@h:9/ and http://me:[hidden]@h"),
        ("https://" + "t0ken" * 5 + "@github.com/x", "https://[hidden]@github.com/x"),
        ("GET /v1?api_key=abc&n=1", "GET /v1?api_key=[hidden]&n=1"),
        ("authorization: Basic bWU6aHVudGVyMjI= end", "authorization: Basic [hidden] end"),
        ("got Bearer abcdef123456.", "got Bearer [hidden]"),
    ],
)
def test_what_has_the_form_of_a_secret_is_hidden_whosever_it_is(text, hidden):
    assert redact(text, []) == hidden
    assert redact(hidden, []) == hidden


@pytest.mark.parametrize(
    "text",
    [
        '{"tokens": ["Hello"], "token": " world", "max_num_batched_tokens": 8192, "cache_key": "abcdefgh"}',
        "non-default args: {'max_num_batched_tokens': 2048, 'api_server_count': 1}",
        "Started server on http://127.0.0.1:8000, tcp://127.0.0.1:5557 (rank 0@host)",
        '{"a":"http://h:80","b":"me@h"} http://h:80,x@y https://user@host/ git@github.com:x/y http://h:80/a@b',
        "http://h:80\\nme@host",
        "Basic comparison, Bearer authentication of hf_overrides, sk-learn-is-a-library-of-models, hf_transformers",
        "GET /v1/models?max_tokens=512&sort_key=name",
    ],
)
def test_what_is_no_secret_stays(text):
    assert redact(text, []) == text


def test_a_secret_too_short_without_its_line_end_hides_nothing_more():
    assert secret_values({"HF_TOKEN": '"abc"\n\n'}) == ['"abc"\n\n']


def test_a_list_of_keys_hides_no_plain_word_and_no_attribute_of_a_cookie():
    assert secret_values({"API_KEYS": "default,key-one-1"}) == ["default,key-one-1", "key-one-1"]
    assert secret_values({"A_COOKIE": "a=bcdef1; Path=/results"}) == ["a=bcdef1; Path=/results", "a=bcdef1", "bcdef1"]


def test_a_secret_of_digits_makes_no_number_unreadable():
    text = '{"at": 123456, "ratio": 0.123456, "x": "x 123456\\ny{a=\\"1234567\\"} 3", "PIN": "123456"}\nPIN=123456\n'
    assert redact(text, ["123456"]) == text.replace('"123456"', '"[hidden]"').replace("=123456\n", "=[hidden]\n")


def test_this_process_is_asked_by_default(monkeypatch):
    monkeypatch.setenv("SOME_TOKEN", "a-token-of-ours")
    assert redact("it is a-token-of-ours.") == "it is [hidden]."


def test_files_are_cleared_however_json_spells_it(tmp_path: Path):
    secret = 'pass"word\\é'
    nested = json.dumps({"page": json.dumps({"env": secret})})
    (tmp_path / "a.json").write_text(nested, encoding="utf-8")
    (tmp_path / "b.log").write_bytes(f"x={secret}\n".encode() + b"\xff")
    (tmp_path / "c.log").write_text("nothing here")
    changed = redact_files(sorted(tmp_path.iterdir()), [secret])
    assert [path.name for path in changed] == ["a.json", "b.log"]
    assert json.loads(json.loads((tmp_path / "a.json").read_text())["page"]) == {"env": "[hidden]"}
    assert (tmp_path / "b.log").read_bytes() == b"x=[hidden]\n\xff"


HEAD = b"HTTP/1.1 401 Unauthorized\r\ncontent-length: 60\r\n\r\n"


@pytest.mark.fault(
    "input",
    "an answer of a server echoes an API key or token",
    "covered before it is stored, by as many bytes: lengths and times of the answer stay as they came",
)
@pytest.mark.parametrize(
    ("data", "stored"),
    [
        (HEAD + b'{"error": "no key our-own-key"}', HEAD + b'{"error": "no key [hidden]***"}'),
        (HEAD + b"key hf_" + b"a1" * 15, HEAD + b"key [hidden]" + b"*" * 25),  # nobody's that we know
        (HEAD + "say pässword.".encode(), HEAD + b"say [hidden]*."),
        (b"HTTP/1.1 200 OK\r\n\r\ndata: our-own-key\n\n", b"HTTP/1.1 200 OK\r\n\r\ndata: [hidden]***\n\n"),
        (b"HTTP/1.1 200 OK\r\n\r\n\xff\xfe 12345678", b"HTTP/1.1 200 OK\r\n\r\n\xff\xfe 12345678"),
    ],
)
def test_an_answer_keeps_its_lengths(data: bytes, stored: bytes) -> None:
    covered = redact_answer(data, ["our-own-key", "12345678", "pässword"])
    assert covered == stored
    assert len(covered) == len(data)
