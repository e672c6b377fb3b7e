"""A study from its config file: validated, every name resolved, cut into trials.

Every fault ends in one :class:`UserError` that names file, line, key, what was found and what is allowed.
"""

import random
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from pdkv.errors import UserError
from pdkv.records import Engine, KvDtype, Limits, LoadPoint, Mode, Model, Trial, Workload
from pdkv.study.config_engine import resolve_engine
from pdkv.study.config_messages import choices, explain, fault
from pdkv.study.config_mode import resolve_mode
from pdkv.study.config_names import check_names
from pdkv.study.config_promises import EIGHT_BIT, SIXTEEN_BIT, check_precisions
from pdkv.study.config_schema import (
    CostSection,
    LimitsSection,
    ReportSection,
    ServiceLevelSection,
    StudySection,
    WorkloadSection,
)
from pdkv.study.config_values import check_values
from pdkv.study.yaml_source import YamlSource, read_yaml

MINIMUM_TOKEN_BUDGET = 2048


@dataclass(frozen=True)
class Study:
    """All cells of a study and how often each is launched.

    ``slo``, ``cost``, ``report`` and ``study_hours`` never reach a trial.
    """

    model: Model
    engine: Engine
    workloads: tuple[Workload, ...]
    modes: tuple[Mode, ...]
    dtypes: tuple[KvDtype, ...]
    repeats: int
    launches: dict[str, int]
    seed: int
    limits: Limits
    slo: ServiceLevelSection | None
    cost: CostSection | None
    report: ReportSection
    baseline_mode: str
    baseline_dtype: str
    study_hours: float
    source: Path

    def cells(self) -> list[tuple[str, str, str]]:
        """(workload, mode, dtype) of what is measured, in the order of the config: the order of tables."""
        product = ((w.id, m.id, d.id) for w in self.workloads for m in self.modes for d in self.dtypes)
        return [cell for cell in product if self.launch_count(*cell)]

    def launch_count(self, workload: str, mode: str, dtype: str) -> int:
        """How often a cell is launched: ``repeats``, or what the last pattern of ``launches`` says that fits it."""
        name = f"{workload}/{mode}/{dtype}"
        said = [count for pattern, count in self.launches.items() if fnmatchcase(name, pattern)]
        return said[-1] if said else self.repeats

    def trials(self) -> list[Trial]:
        """Every launch in the order of measuring.

        A repeat is a block that holds once every cell of that many launches, shuffled by the study's seed, so that
        drift of the machine does not favour a cell.
        """
        ordered = []
        counts = {cell: self.launch_count(*cell) for cell in self.cells()}
        for repeat in range(1, max(counts.values()) + 1):
            block = [cell for cell, count in counts.items() if count >= repeat]
            random.Random(f"{self.seed}/{repeat}").shuffle(block)
            ordered += [self.trial(*cell, repeat) for cell in block]
        return ordered

    def trial(self, workload: str, mode: str, dtype: str, repeat: int) -> Trial:
        """One launch by the ids that name it."""
        chosen = next(w for w in self.workloads if w.id == workload)
        budget = self.engine.token_budget or max(MINIMUM_TOKEN_BUDGET, chosen.max_model_len)
        return Trial(
            workload=chosen,
            mode=next(m for m in self.modes if m.id == mode),
            dtype=next(d for d in self.dtypes if d.id == dtype),
            repeat=repeat,
            model=self.model,
            engine=replace(self.engine, token_budget=budget),
            limits=self.limits,
            seed=self.seed,
        )


def load_study(path: Path, overrides: dict[str, Any] | None = None) -> Study:
    """Read and validate one config file; ``overrides`` replace top-level keys (Snakemake's ``--config``).

    Raises :class:`UserError` for anything that can't be run as written.
    """
    source = read_yaml(path)
    if source.data is None:
        raise UserError(f"{path} is empty", remedy="write a study into it; config/config.yaml is an example")
    if not isinstance(source.data, dict):
        raise UserError(
            f"{path} holds a {type(source.data).__name__}, not keys with values", remedy="see config/config.yaml"
        )
    data = _overlay(source.data, overrides or {})
    for key in overrides or {}:
        source.override(key)
    check_values(data, source)
    try:
        section = StudySection.model_validate(data)
    except ValidationError as error:
        raise explain(error, source) from None
    return _resolve(section, source)


def _overlay(data: dict[str, Any], overrides: dict[str, Any]) -> dict[str, Any]:
    merged = dict(data)
    for key, value in overrides.items():
        below = merged.get(key)
        merged[key] = _overlay(below, value) if isinstance(value, dict) and isinstance(below, dict) else value
    return merged


def _resolve(section: StudySection, source: YamlSource) -> Study:
    for kind, names in (("workloads", section.workloads), ("modes", section.modes)):
        check_names(kind, list(names), source)
    modes = tuple(resolve_mode(name, mode, source) for name, mode in section.modes.items())
    dtypes = _dtypes(section.dtypes, source)
    check_precisions(modes, section.dtypes, source)
    study = Study(
        model=Model(**section.model.model_dump()),
        engine=resolve_engine(section.engine, source),
        workloads=tuple(_workload(name, workload) for name, workload in section.workloads.items()),
        modes=modes,
        dtypes=dtypes,
        repeats=section.repeats,
        launches=section.launches,
        seed=section.seed,
        limits=_limits(section.limits, section.load.ramp_interval_ms, section.load.warmup_rounds),
        slo=section.slo,
        cost=section.cost,
        report=section.report,
        baseline_mode=_baseline("mode", section.report.baseline.mode, [m.id for m in modes], source),
        baseline_dtype=_baseline("dtype", section.report.baseline.dtype, [d.id for d in dtypes], source),
        study_hours=section.limits.study_hours,
        source=source.path,
    )
    _check_launches(study, source)
    return study


def _check_launches(study: Study, source: YamlSource) -> None:
    """A pattern that fits no cell is a slip of the pen, and a workload, mode or dtype without a cell is none."""
    names = [f"{w.id}/{m.id}/{d.id}" for w in study.workloads for m in study.modes for d in study.dtypes]
    for pattern in study.launches:
        if not any(fnmatchcase(name, pattern) for name in names):
            allowed = f"WORKLOAD/MODE/DTYPE with * for any, such as {names[-1]}"
            raise fault(source, ("launches", pattern), "fits no cell", allowed)
    columns = [set(column) for column in zip(*study.cells(), strict=True)] or [set[str]()] * 3
    listed = {
        "workloads": [workload.id for workload in study.workloads],
        "modes": [mode.id for mode in study.modes],
        "dtypes": [dtype.id for dtype in study.dtypes],
    }
    for (kind, ids), left in zip(listed.items(), columns, strict=True):
        for name in ids:
            if name not in left:
                raise fault(source, ("launches",), f"leaves no cell of {name}", f"{kind} without {name}")


def _workload(name: str, section: WorkloadSection) -> Workload:
    levels = len(section.concurrency) + len(section.request_rate)
    counts = section.requests * levels if len(section.requests) == 1 else section.requests
    requests = iter(counts)
    closed = [LoadPoint("closed", level, None, next(requests)) for level in section.concurrency]
    opened = [LoadPoint(section.arrival, None, float(rate), next(requests)) for rate in section.request_rate]
    return Workload(name, section.input_tokens, section.output_tokens, section.max_model_len, tuple(closed + opened))


def _dtypes(names: list[str], source: YamlSource) -> tuple[KvDtype, ...]:
    """FP8 cells keep the weights in the study's 16-bit type, so that nothing but the KV cache differs."""
    known = (*SIXTEEN_BIT, *EIGHT_BIT)
    for index, name in enumerate(names):
        if name not in known:
            raise fault(source, ("dtypes", index), f"found {name}", choices(known, name.lower()))
        if name in names[:index]:
            raise fault(source, ("dtypes", index), f"{name} is listed twice")
    listed = [name for name in names if name in SIXTEEN_BIT]
    weights = SIXTEEN_BIT[listed[0]] if listed else "auto"
    return tuple(
        KvDtype(name, SIXTEEN_BIT[name], "auto") if name in SIXTEEN_BIT else KvDtype(name, weights, name)
        for name in names
    )


def _limits(section: LimitsSection, ramp_interval_ms: float, warmup_rounds: int) -> Limits:
    return Limits(
        section.launch_timeout_s,
        section.request_timeout_s,
        ramp_interval_ms / 1e3,
        warmup_rounds,
        section.trial_hours * 3600,
    )


def _baseline(kind: str, asked: str | None, ids: list[str], source: YamlSource) -> str:
    if asked is None:
        preferred = ("default",) if kind == "mode" else tuple(SIXTEEN_BIT)
        return next((name for name in ids if name in preferred), ids[0])
    if asked not in ids:
        raise fault(source, ("report", "baseline", kind), f"found {asked}", choices(ids, asked))
    return asked
