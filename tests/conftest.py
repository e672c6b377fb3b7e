"""Signals as a person's terminal leaves them: a test run in the background inherits ignored ones and passes them on.

Tests that need a GPU are left out where NVML sees none.
"""

import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from whole_trials import MeasuredTrial, measure_whole

from pdkv.measuring.environment import fingerprint
from pdkv.measuring.gpu_visibility import list_gpus, open_nvml

for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
    if signal.getsignal(number) == signal.SIG_IGN:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    on_gpu = [item for item in items if item.get_closest_marker("gpu")]
    if on_gpu and not ((nvml := open_nvml()) and list_gpus(nvml)):
        items[:] = [item for item in items if item not in on_gpu]
        config.hook.pytest_deselected(items=on_gpu)


@pytest.fixture
def measure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, Any]], MeasuredTrial]:
    """Measures the trial of a plan on the fake engine and reads it; nothing of it may be left."""
    monkeypatch.setenv("PDKV_LEASE_DIR", str(tmp_path / "leases"))
    monkeypatch.setattr("pdkv.measuring.trial_devices.fingerprint", partial(fingerprint, look_s=0.01))
    return lambda plan: measure_whole(plan, tmp_path / "r1")
