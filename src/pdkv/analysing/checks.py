"""Whether a trial may be believed: every check has a name, its evidence, and what to do when it did not pass."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal

State = Literal["passed", "suspect", "failed", "unknown"]
TrialState = Literal["valid", "suspect", "invalid"]

MAX_FOREIGN_CPU = 0.10  # of the host's cores: where others took more, it was not idle


@dataclass(frozen=True)
class Check:
    """One question put to the evidence of a trial.

    ``state`` is ``unknown`` where the evidence is missing; ``evidence`` is what was seen, ``remedy`` what a person can
    do about it, empty where nothing needs doing.
    """

    name: str
    state: State
    evidence: str
    remedy: str = ""

    def as_json(self) -> dict[str, Any]:
        """The check as the artefacts carry it."""
        return asdict(self)


def state_of(checks: Iterable[Check]) -> TrialState:
    """``invalid`` if a check failed, ``suspect`` if one is suspect, else ``valid``.

    An unknown check neither passes nor fails a trial: it is shown beside the state.
    """
    states = {check.state for check in checks}
    if "failed" in states:
        return "invalid"
    return "suspect" if "suspect" in states else "valid"
