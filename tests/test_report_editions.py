"""Languages of the report: the files of each, and the font that Chinese needs, asked for early."""

import json
from pathlib import Path

import pytest

from pdkv import cli, run_lock, verbs
from pdkv.errors import UserError
from pdkv.reporting import typefaces
from pdkv.study.config import load_study
from pdkv.study.report_editions import LANGUAGES, Edition, editions, left_editions

CONFIG = """
workloads: {short: {input_tokens: 8, output_tokens: 4, concurrency: 2, requests: 4, max_model_len: 64}}
modes: [default]
dtypes: [bf16]
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "study.yaml"
    path.write_text(CONFIG)
    return path


def test_first_language_has_the_plain_names() -> None:
    assert editions("en") == [Edition("en", "")]
    assert editions("zh") == [Edition("zh", "")]
    assert editions("both") == [Edition("en", ""), Edition("zh", ".zh")]


def test_a_report_of_an_earlier_run_in_another_language_is_named(tmp_path: Path) -> None:
    """Beside this run's report it would be sent along, and be another study."""
    for name in ("summary.md", "summary.pdf", "summary.zh.md", "summary.zh.pdf", "notes.zh.md"):
        (tmp_path / name).write_text("")
    assert left_editions("both", tmp_path) == []
    named = [tmp_path / "summary.zh.md", tmp_path / "summary.zh.pdf"]
    assert left_editions("en", tmp_path) == left_editions("zh", tmp_path) == named
    assert left_editions("en", tmp_path / "nothing") == []


def test_config_allows_just_these(config: Path) -> None:
    for language in LANGUAGES:
        assert load_study(config, {"report": {"language": language}}).report.language == language
    assert load_study(config).report.language == "en"
    with pytest.raises(UserError, match=r"report\.language"):
        load_study(config, {"report": {"language": "de"}})


def test_schema_allows_just_these() -> None:
    schema = json.loads((Path(__file__).parents[1] / "workflow/schemas/config.schema.json").read_text())
    assert schema["$defs"]["ReportSection"]["properties"]["language"]["enum"] == list(LANGUAGES)


@pytest.mark.parametrize("language", ["zh", "both"])
def test_check_says_how_to_get_a_chinese_font(
    config: Path, language: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config.write_text(f"{CONFIG}report: {{language: {language}}}\n")
    monkeypatch.setattr(typefaces, "_installed_fonts", list)
    monkeypatch.setattr(verbs, "tell_survey", lambda _study, stream: print("surveyed", file=stream))
    with pytest.raises(SystemExit) as ended:
        cli.main(["check", "--config", str(config)])
    assert ended.value.code == 2
    said = capsys.readouterr()
    assert said.out == "surveyed\n"
    assert "no installed font has the Chinese" in said.err
    assert "pip install cvttf-notosanscjk-regular" in said.err
    assert "apt-get install fonts-noto-cjk" in said.err


def test_start_of_a_run_says_so_too(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(typefaces, "_installed_fonts", list)
    study = load_study(config, {"report": {"language": "both"}})
    monkeypatch.setattr(run_lock, "lock_run", lambda _folder: None)
    cli.start_or_exit(study, measures=False, writes=False)  # results can be read without a font
    with pytest.raises(SystemExit) as ended:
        cli.start_or_exit(study, measures=False, writes=True)
    assert ended.value.code == 2
    assert "fonts-noto-cjk" in capsys.readouterr().err


def test_english_asks_for_no_font(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(typefaces, "_installed_fonts", list)
    monkeypatch.setattr(verbs, "tell_survey", lambda _study, stream: None)
    with pytest.raises(SystemExit) as ended:
        cli.main(["check", "--config", str(config)])
    assert ended.value.code == 0


def test_chinese_font_of_the_environment_is_found() -> None:
    chosen = typefaces.choose_typefaces(["预填充"])
    assert len(chosen.families) == 2
