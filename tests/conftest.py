"""Signals as a person's terminal leaves them: a test run in the background inherits ignored ones and passes them on.

Tests that need a GPU are left out where NVML sees none.
"""

import signal

import pytest

from pdkv.measuring.gpu_visibility import list_gpus, open_nvml

for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
    if signal.getsignal(number) == signal.SIG_IGN:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    on_gpu = [item for item in items if item.get_closest_marker("gpu")]
    if on_gpu and not ((nvml := open_nvml()) and list_gpus(nvml)):
        items[:] = [item for item in items if item not in on_gpu]
        config.hook.pytest_deselected(items=on_gpu)
