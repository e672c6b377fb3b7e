"""A process that does without pandas: Arrow imports it with the first array made of Python values, for up to 0.5 s.

Arrow asks only whether it is handed pandas objects, and works the same where pandas is not installed.
"""

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType


class _NoPandas:
    """Asked before all other finders of modules."""

    @staticmethod
    def find_spec(
        name: str, _path: Sequence[str] | None = None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name == "pandas":
            raise ModuleNotFoundError("pandas is kept out of this process (pdkv.without_pandas)", name=name)
        return None


def keep_pandas_out() -> None:
    """From now on ``import pandas`` fails in this process; for verbs whose start and end a person waits for.

    To be called before Arrow is used. What needs data frames (``to_pandas``) cannot run in such a process.
    """
    sys.meta_path.insert(0, _NoPandas())
