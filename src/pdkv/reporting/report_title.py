"""The line under a report's title: engine, model and hardware."""

from pdkv.analysing.study_results import StudyResults
from pdkv.reporting.report_setup import gpu_counts, model_name, uses_random_weights
from pdkv.reporting.wording import Wording


def subtitle(results: StudyResults, say: Wording) -> str:
    """Engine, model and hardware in one line."""
    parts = (_engine(results, say), _model(results, say), _machine(results, say))
    return " · ".join(dict.fromkeys(part for part in parts if part))


def _engine(results: StudyResults, say: Wording) -> str:
    found = {((cell.content.get("environment") or {}).get("engine") or {}).get("vllm") for cell in results.cells} - {
        None
    }
    return say("summary.engine", versions=", ".join(sorted(str(each) for each in found))) if found else ""


def _model(results: StudyResults, say: Wording) -> str:
    text = ", ".join(dict.fromkeys(name for cell in results.cells if (name := model_name(cell, say))))
    return say("summary.random_weights", model=text) if text and uses_random_weights(results) else text


def _machine(results: StudyResults, say: Wording) -> str:
    """The GPUs that the study used, the most of each kind that a cell had; without GPUs the CPU of the host."""
    environments = [environment for cell in results.cells if (environment := cell.content.get("environment"))]
    if not any(cell.content.get("gpus") for cell in results.cells):
        return ", ".join(dict.fromkeys(str(cpu) for each in environments if (cpu := each.get("host_cpu"))))
    counts: dict[str, set[int]] = {}
    for environment in environments:
        for kind, count in gpu_counts(environment).items():
            counts.setdefault(kind, set()).add(count)
    texts = [
        (f"{max(found)} × {kind}" if len(found) == 1 else say("summary.up_to", count=max(found), kind=kind))
        for kind, found in counts.items()
    ]
    return ", ".join(texts)
