"""The commands that README and docs tell a user to type."""

import re
from pathlib import Path

import pytest

from pdkv.study.config import load_study

ROOT = Path(__file__).parent.parent
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/*.md"), *ROOT.glob("config/*.yaml")])
COMMAND = re.compile(r"snakemake [^`\n#]*--configfile[^`\n#]*")


def commands() -> list[tuple[str, str]]:
    found = [(page.name, match.strip()) for page in PAGES for match in COMMAND.findall(page.read_text("utf-8"))]
    assert len(found) >= 8, found
    return found


@pytest.mark.parametrize(("page", "command"), commands())
def test_no_target_follows_the_config_file(page: str, command: str) -> None:
    """Snakemake takes any number of files after ``--configfile``: a target there would be read as a config."""
    values = re.split(r"\s--?\w", command.split("--configfile", 1)[1])[0].split()
    assert len(values) <= 1, f"{page}: {command}"


def test_a_folder_that_the_readme_removes_is_one_of_the_default_study() -> None:
    [path] = re.findall(r"rm -r results/(\S+)", (ROOT / "README.md").read_text("utf-8"))
    assert path in [trial.name for trial in load_study(ROOT / "config/config.yaml").trials()]
