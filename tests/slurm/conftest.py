"""Told to stop, the tests end what they started, as after Ctrl-C; they run on sources that nobody edits meanwhile."""

import shutil
import signal
from pathlib import Path

import pytest
from slurm_study import ROOT

for number in (signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.default_int_handler)


@pytest.fixture(scope="session")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The repository as it is now, without what was made in it."""
    copy = tmp_path_factory.mktemp("sources")
    for name in ("src", "workflow", "profiles", "config", "envs"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    shutil.copy(ROOT / "Snakefile", copy)
    return copy
