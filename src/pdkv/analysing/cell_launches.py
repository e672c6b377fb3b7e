"""What was read of one launch of a cell: its state, its checks, and why it is in the numbers of a load level or not."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pdkv.analysing.checks import Check, state_of
from pdkv.artifacts import read_json


@dataclass(frozen=True)
class Launch:
    """What was read of one trial; the contents of its artefacts."""

    folder: Path
    plan: dict[str, Any]
    stages: dict[str, Any]
    launch: dict[str, Any]
    metrics: dict[str, Any]
    trace: dict[str, Any]

    @classmethod
    def read(cls, folder: Path) -> "Launch":
        """Read all artefacts of a trial folder but its requests."""
        parts = {
            name: read_json(folder / f"{name}.json", f"{name}/1")
            for name in ("plan", "stages", "launch", "metrics", "trace")
        }
        return cls(folder, **parts)

    @property
    def repeat(self) -> int:
        """Which launch of its cell."""
        return int(self.plan["trial"]["repeat"])

    @property
    def failure(self) -> dict[str, Any] | None:
        """Stage, reason and log excerpt if the trial did not come to its end."""
        outcome = self.stages["outcome"]
        return None if outcome["status"] == "ok" else {key: outcome[key] for key in ("stage", "reason", "excerpt")}

    @property
    def environment(self) -> dict[str, Any]:
        """What it was measured on, and ``source``, the digest of what measured it; empty where it got no devices."""
        recorded: dict[str, Any] = self.stages["environment"] or {}
        source = self.stages.get("source")  # not in launches from before it was recorded
        return {**recorded, "source": source} if recorded and source else recorded

    @property
    def checks(self) -> list[dict[str, Any]]:
        """All checks of the trial, each with the source it came from."""
        sources = {"launch": self.launch, "warmup": self.metrics["warmup"], "load": self.metrics, "trace": self.trace}
        return [
            {**check, "source": source} for source, content in sources.items() for check in content.get("checks") or []
        ]

    @property
    def state(self) -> str:
        """``failed``, or the worst of its checks. A bad point among good ones makes a launch suspect, not invalid."""
        if self.failure:
            return "failed"
        whole = {state_of(checks_of(self.whole_checks)), self.metrics["state"]}
        return next(state for state in ("failed", "invalid", "suspect", "valid") if state in whole)

    @property
    def counts(self) -> bool:
        """Whether any number of its cell is of this launch."""
        return self.state in ("valid", "suspect")

    @property
    def whole_checks(self) -> list[dict[str, Any]]:
        """The checks that concern the launch as a whole rather than one of its points."""
        return [check for check in self.checks if check["source"] != "load"]

    def point(self, index: int) -> dict[str, Any] | None:
        """What metrics.json says of one load point."""
        return next((point for point in self.metrics["points"] if point["point"] == index), None)

    def why_excluded(self, index: int) -> str | None:
        """Why this launch is not in the numbers of a point; ``None`` if it is in them."""
        if self.failure:
            return f"failed at {self.failure['stage']}: {self.failure['reason']}"
        point = self.point(index)
        if point is None:
            return "the point was not measured"
        bad = [check for check in [*self.whole_checks, *point["checks"]] if check["state"] == "failed"]
        return "; ".join(f"{check['name']}: {check['evidence']}" for check in bad) or None


def checks_of(found: Sequence[Mapping[str, Any]]) -> list[Check]:
    """Checks as artefacts hold them, read back."""
    return [Check(check["name"], check["state"], check["evidence"], check["remedy"]) for check in found]
