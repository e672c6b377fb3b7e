"""Which settings hold secrets, and how they are kept out of text."""

import json
from pathlib import Path

import pytest

from pdkv.redaction import is_secret_name, looks_secret, redact, redact_files, secret_values


@pytest.mark.parametrize(
    "name",
    ["HF_TOKEN", "OPENAI_API_KEY", "api-key", "DB_PASSWORD_1", "SECRET_ID", "apikey", "GITHUB_PAT", "BASIC_AUTH"],
)
def test_names_of_secrets(name):
    assert is_secret_name(name)


@pytest.mark.parametrize(
    "name", ["TOKENIZERS_PARALLELISM", "max-num-batched-tokens", "HF_TOKEN_PATH", "MONKEY", "KEYBOARD", "", "_", "123"]
)
def test_names_that_only_sound_like_it(name):
    assert not is_secret_name(name)


def test_forms_of_secrets():
    assert looks_secret("x hf_" + "a1" * 15) and looks_secret("http://me:pw@host/") and looks_secret("AKIA" + "A" * 16)
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
