"""What a study would do on this machine: its trials, GPUs, memory and time, and whether it can run at all."""

from dataclasses import dataclass
from pathlib import Path

from pdkv.errors import UserError
from pdkv.installing.engine_env import check_supported, command_version
from pdkv.measuring.feasibility import (
    Host,
    estimate_seconds,
    find_crowding,
    find_obstacles,
    find_shortages,
    find_waits,
    look_at_host,
)
from pdkv.measuring.plan import plan_trial
from pdkv.measuring.resolve import choose_engine, require_engine, resolve_model
from pdkv.records import Trial
from pdkv.study.config import Study
from pdkv.units import DASH, format_bytes, format_duration


@dataclass(frozen=True)
class CellSurvey:
    """One cell: instances, GPUs and estimates of all its launches together. Bytes are None where unknown.

    ``shortages`` say why it will not start here, ``waits`` why not all its users will be served at once, ``crowding``
    which ranks will share cores.
    """

    name: str
    topology: str
    gpus: int
    memory_bytes: int | None
    seconds: float
    shortages: tuple[str, ...] = ()
    waits: tuple[str, ...] = ()
    crowding: tuple[str, ...] = ()


@dataclass(frozen=True)
class Survey:
    """The cells of a study on this machine."""

    engine: str
    host: Host
    cells: tuple[CellSurvey, ...]
    trials: int
    obstacles: tuple[str, ...]

    @property
    def seconds(self) -> float:
        """Estimated time of the whole study, one trial after another."""
        return sum(cell.seconds for cell in self.cells)


def survey_study(study: Study, home: Path) -> Survey:
    """Plan every cell and hold it against this machine.

    Raises :class:`UserError` for what can't work on any machine; what only this one lacks is among ``obstacles``.
    """
    try:
        return _survey_cells(study, home)
    except UserError as error:
        raise UserError(f"{study.source}: {error.problem}", remedy=error.remedy) from None


def _survey_cells(study: Study, home: Path) -> Survey:
    engine = choose_engine(study.engine, home)
    model_path, shape = resolve_model(study.model, home)
    host = look_at_host()
    version, obstacles = _look_at_engine(study, home)
    cells = []
    for workload, mode, dtype in study.cells():
        trial = study.trial(workload, mode, dtype, 1)
        plan = plan_trial(trial, engine, model_path, shape)
        obstacles += find_obstacles(trial, plan, host)
        cells.append(
            CellSurvey(
                name=f"{workload}/{mode}/{dtype}",
                topology=describe_topology(trial),
                gpus=sum(instance["gpus"] for instance in plan["instances"]),
                memory_bytes=plan["memory"]["total_bytes"] if plan["instances"] else None,
                seconds=estimate_seconds(trial, plan) * study.launch_count(workload, mode, dtype),
                shortages=tuple(find_shortages(plan, host)),
                waits=tuple(find_waits(plan, host)),
                crowding=tuple(find_crowding(plan, host)),
            )
        )
    if cells and all(
        cell.shortages for cell in cells
    ):  # else those that start are measured, and the others are results
        obstacles += [f"{cell.name}: {shortage}" for cell in cells for shortage in cell.shortages]
    seconds = sum(cell.seconds for cell in cells)
    if seconds > study.study_hours * 3600:
        obstacles.append(
            f"the study would take about {format_duration(seconds)}, more than limits.study_hours "
            f"({study.study_hours:g}) allows: lower requests, or raise limits.study_hours"
        )
    described = f"{engine.kind} ({engine.device})" + (f", vLLM {version}" if version else "")
    return Survey(described, host, tuple(cells), len(study.trials()), tuple(obstacles))


def refuse_obstacles(study: Study, survey: Survey) -> None:
    """Raise :class:`UserError` with all that keeps a study from running on this machine, each with its remedy."""
    if survey.obstacles:
        listed = "\n  ".join(survey.obstacles)
        raise UserError(f"{study.source} can't run on this machine:\n  {listed}")


def _look_at_engine(study: Study, home: Path) -> tuple[str | None, list[str]]:
    """The version that an ``engine.command`` tells, and what keeps the engine from being started here."""
    if all(mode.endpoint for mode in study.modes):  # nothing is launched
        return None, []
    version = None
    try:
        require_engine(study.engine, home)
        version = command_version(study.engine.command) if study.engine.command else None
        if version:
            check_supported(version)
    except UserError as error:
        return version, [f"{error.problem}: {error.remedy}" if error.remedy else error.problem]
    return version, []


def describe_topology(trial: Trial) -> str:
    """``1 prefill + 1 decode, TP=2``, ``2 replicas``, ``1 instance``, or the endpoint's address."""
    mode = trial.mode
    if mode.endpoint:
        return mode.endpoint
    size = f", TP={mode.tensor_parallel_size}" if mode.tensor_parallel_size > 1 else ""
    if mode.disaggregated:
        return f"{mode.prefill} prefill + {mode.decode} decode{size}"
    return ("1 instance" if mode.replicas == 1 else f"{mode.replicas} replicas") + size


def describe_survey(survey: Survey) -> str:
    """The survey as text: one line a cell, the sum at the end."""
    host = survey.host
    rows = [("cell", "servers", "GPUs", "memory", "time")]
    rows += [
        (
            cell.name,
            cell.topology,
            str(cell.gpus) if cell.gpus else DASH,
            format_bytes(cell.memory_bytes),
            f"~{format_duration(cell.seconds)}",
        )
        for cell in survey.cells
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    memory, time = format_bytes(host.memory_bytes), format_duration(survey.seconds)
    first = f"engine {survey.engine}; {host.cores} cores, {memory} memory, {len(host.gpus)} GPUs"
    lines += [f"{cell.name} will not start here: {text}" for cell in survey.cells for text in cell.shortages]
    lines += [f"{cell.name}: {text}" for cell in survey.cells if not cell.shortages for text in cell.waits]
    lines += [f"{cell.name}: {text}" for cell in survey.cells for text in cell.crowding]
    last = f"{len(survey.cells)} cells, {survey.trials} trials, roughly {time}"
    return "\n".join([first, *lines, last])
