"""The launches that a folder's ``results/`` holds: each is what was measured there, whole, or a fault with its name."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pdkv.artifacts import read_json
from pdkv.errors import UserError
from pdkv.seals import check_seals
from pdkv.wings import PLANNER, digest

OWN_FILES = ("plan.json", "stages.json")
LOG = "logs/measure.log"


@dataclass(frozen=True, eq=False)
class StoredTrial:
    """One launch: ``home`` is the folder that holds ``results/``, ``name`` the trial's, ``workload/mode/dtype/r1``."""

    home: Path
    name: str
    plan: dict[str, Any]
    stages: dict[str, Any]

    @property
    def folder(self) -> Path:
        """Where its files lie."""
        return self.home / "results" / self.name

    @property
    def cell(self) -> str:
        """``workload/mode/dtype``."""
        return self.name.rpartition("/")[0]

    @property
    def repeat(self) -> int:
        """Which launch of its cell."""
        return int(self.plan["trial"]["repeat"])

    @property
    def failed(self) -> bool:
        """Whether it did not come to its end."""
        return bool(self.stages["outcome"]["status"] != "ok")

    @property
    def files(self) -> list[str]:
        """What makes up its evidence, by path in its folder, and the log of the measurement where there is one."""
        logs = [LOG] if (self.folder / LOG).is_file() else []
        return [*OWN_FILES, *self.stages["files"], *logs]

    @property
    def source(self) -> str | None:
        """Digest of what measured it; None for an earlier version, which did not record it."""
        said: str | None = self.stages.get("source")
        return said

    @property
    def job_log(self) -> Path | None:
        """The log of its Slurm job, from ``home``, where it lies below ``results/``."""
        said = self.stages.get("job_log")
        if not said:
            return None
        path, results = Path(said), self.home.absolute() / "results"
        lies_there = not path.is_absolute() and (self.home / path).resolve().is_relative_to(results.resolve())
        return path if lies_there and path.parts[0] == "results" and (self.home / path).is_file() else None

    @cached_property
    def machine(self) -> str:
        """Processor and GPUs on which it ran, in one line."""
        environment = self.stages["environment"] or {}
        gpus = sorted(gpu["name"] or "GPU" for gpu in environment.get("gpus") or [])
        counted = [f"{gpus.count(name)} × {name}" for name in dict.fromkeys(gpus)]
        return ", ".join([environment.get("host_cpu") or "an unknown processor", *counted])

    def is_same_launch(self, other: "StoredTrial") -> bool:
        """Whether both are copies of one measurement: the seals in ``stages.json`` stand for all other files."""
        return self.stages == other.stages and self.plan == other.plan


def trial_names(home: Path) -> list[str]:
    """Names of the trials that were measured; raises :class:`UserError` where ``home`` holds no results."""
    results = home / "results"
    if not home.is_dir():
        raise UserError(f"there is no folder {home}", remedy="name the folder that holds results/")
    if not results.is_dir():
        raise UserError(f"{home} has no folder results/", remedy="name the folder that holds results/")
    names = sorted(path.parent.relative_to(results).as_posix() for path in results.glob("*/*/*/r*/stages.json"))
    if not names:
        raise UserError(f"{results} holds no trial that was measured", remedy="name a folder in which a study has run")
    return names


def unfinished_names(home: Path) -> list[str]:
    """Names of trials that were planned or begun and never measured."""
    results = home / "results"
    plans = results.glob("*/*/*/r*/plan.json")
    return sorted(
        path.parent.relative_to(results).as_posix() for path in plans if not path.with_name("stages.json").exists()
    )


def read_trial(home: Path, name: str) -> StoredTrial:
    """One launch, every file of it looked at; raises :class:`UserError` for what was cut, edited, lost or mixed up."""
    folder = home / "results" / name
    plan, stages = (read_json(folder / file, f"{Path(file).stem}/1") for file in OWN_FILES)
    trial = plan["trial"]
    own_name = "/".join((*(trial[part]["id"] for part in ("workload", "mode", "dtype")), f"r{trial['repeat']}"))
    if own_name != name:
        raise UserError(f"{folder} is another trial: {own_name}", remedy="bring it back to where it was measured")
    if stages["trial"] != trial:
        raise UserError(
            f"{folder} was not measured as it is planned", remedy="run snakemake there, or delete the trial"
        )
    if stages.get("files") is None:
        raise UserError(
            f"{folder} was measured by an earlier version, which sealed nothing: nobody can say whether it is whole",
            remedy="measure it again",
        )
    if plan["source"] != digest(*PLANNER):
        raise UserError(
            f"{folder} was planned by another version of pdkv: snakemake would measure it again",
            remedy="merge with the version that measured it",
        )
    check_seals(folder, stages, *stages["files"])
    return StoredTrial(home, name, plan, stages)


def definitions(trial: StoredTrial) -> Iterator[tuple[str, dict[str, Any]]]:
    """What a trial's slice says of its study, part by part: the same name must mean the same thing in all trials."""
    said = trial.plan["trial"]
    engine = dict(said["engine"])
    budget = engine.pop("token_budget")  # unless it is set, the longest prompt of the workload decides it
    yield "model", said["model"]
    yield "engine", engine
    yield "limits", said["limits"]
    yield "seed", {"seed": said["seed"]}
    yield f"workload {said['workload']['id']}", {**said["workload"], "token_budget": budget}
    for kind in ("mode", "dtype"):
        yield f"{kind} {said[kind]['id']}", said[kind]
