"""All that is read from the evidence of one launch: what was launched, its warmup and load, its devices."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from pdkv.analysing.launch_facts import read_launch
from pdkv.analysing.load_facts import read_load
from pdkv.analysing.utilization import trace_devices
from pdkv.errors import UserError


def read_trial(trial: Path, source: str = "") -> None:
    """Write launch.json, requests.parquet, metrics.json, trace.parquet and trace.json of the trial folder.

    ``source`` is the digest of all that reads here, which metrics.json keeps for all of them.
    A spoilt file does not hide another: what can be read without the first is read, and the :class:`UserError` names
    each of them with its remedy.
    """
    launch_faults = _faults_of(read_launch, trial)
    load_faults = _faults_of(partial(read_load, source=source), trial)
    device_faults = _faults_of(trace_devices, trial)
    # Two readers say the same of a file that both read.
    faults = {str(fault): fault for fault in (*launch_faults, *load_faults, *device_faults)}
    if len(faults) > 1:
        raise UserError("\n".join(faults))
    for fault in faults.values():
        raise fault


def _faults_of(read: Callable[[Path], None], trial: Path) -> list[UserError]:
    try:
        read(trial)
    except UserError as error:
        return [error]
    return []
