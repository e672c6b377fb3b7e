"""Inputs of a step that were written at a later time than it is now: a clock was set back, or another one runs ahead.

Snakemake takes the outputs of a step that are older than its inputs for a fault of the clock, and removes them: a
finished measurement too. So a step gives inputs that come from the future the time of now, as it begins and as it ends.
"""

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def inputs_of_the_past(paths: Iterable[Path]) -> Iterator[None]:
    """Of folders, the files that lie in them. What may not be changed is left as it is."""
    inputs = list(paths)
    _bring_back(inputs)
    try:
        yield
    finally:
        _bring_back(inputs)


def _bring_back(paths: Iterable[Path]) -> None:
    now_s = time.time()
    for path in paths:
        with suppress(OSError):
            for each in [path, *path.iterdir()] if path.is_dir() else [path]:
                if each.stat().st_mtime > now_s:
                    os.utime(each)
