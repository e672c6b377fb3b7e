"""How long launches took that had to compile, and those that took their graphs from the cache of an earlier one."""

from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any

from pdkv.analysing.study_results import StudyResults
from pdkv.reporting.report_blocks import Block, Column, Paragraph, Table, left, row
from pdkv.reporting.report_phrases import is_launched
from pdkv.reporting.wording import Wording
from pdkv.units import format_duration

KINDS = ("cold", "warm")


def describe_cold_and_warm_launches(results: StudyResults, say: Wording) -> list[Block]:
    """A table of medians, or a sentence where no server told; nothing where the study launches none."""
    launches = list(_launches(results))
    if not launches:
        return []
    if not any(_kind(instances) for _, instances in launches):
        return [Paragraph(say("launches.untold"))]
    rows = []
    for kind in KINDS:
        whole = [seconds for seconds, instances in launches if _kind(instances) == kind and seconds is not None]
        servers = [each["startup"] for _, instances in launches for each in instances if _cache(each) == kind]
        times = [_median([each.get(key) for each in servers]) for key in ("ready_s", "compile_s", "graph_capture_s")]
        counted = (str(len(whole)), _median(whole), str(len(servers)))
        rows.append(row(say(f"launches.{kind}"), *counted, *times))
    titles = ("count", "stage", "servers", "ready", "compile", "graphs")
    columns = (left(say("launches.cache")), *(Column(say(f"launches.{title}")) for title in titles))
    return [Table(say("launches.caption"), columns, tuple(rows), (say("launches.note"),))]


def _launches(results: StudyResults) -> Iterator[tuple[float | None, list[dict[str, Any]]]]:
    """(seconds of the launch stage, instances) of every launch that brought up its servers."""
    for cell in results.cells:
        for trial in cell.trials if is_launched(cell) else ():
            launch = trial.get("launch") or {}
            if launch.get("status", "ok") == "ok" and launch.get("instances"):
                yield (trial.get("stages") or {}).get("launch_s"), launch["instances"]


def _cache(instance: dict[str, Any]) -> str | None:
    kind = (instance.get("startup") or {}).get("compile_cache")
    return None if kind is None else str(kind)


def _kind(instances: Sequence[dict[str, Any]]) -> str | None:
    """A launch is cold if one of its servers compiled, and warm if none did; unknown if one does not say."""
    kinds = {_cache(each) for each in instances}
    return "cold" if "cold" in kinds else "warm" if kinds == {"warm"} else None


def _median(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    return format_duration(median(known) if known else None)
