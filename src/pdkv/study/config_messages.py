"""Messages about a config file: where, what was found, what is allowed, and the nearest valid name."""

import difflib
from collections.abc import Iterable

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from pdkv.errors import UserError
from pdkv.study import config_schema
from pdkv.study.yaml_source import KeyPath, YamlSource, dotted, shorten

MOST_MESSAGES = 10


def fault(source: YamlSource, key_path: KeyPath, problem: str, allowed: str = "") -> UserError:
    """An error about one key."""
    return UserError(
        f"{source.where(key_path)}: {dotted(key_path)}: {shorten(problem, 300)}",
        remedy=f"allowed: {allowed}" if allowed else "change one of the two",
    )


def choices(allowed: Iterable[str], found: str, otherwise: str = "") -> str:
    """The allowed names, and the one that was probably meant."""
    names = list(allowed)
    text = ", ".join([*names, *([otherwise] if otherwise else [])])
    nearest = difflib.get_close_matches(found, names, n=1, cutoff=0.5)
    return f"{text}\n  did you mean {nearest[0]}?" if nearest else text


def explain(error: ValidationError, source: YamlSource) -> UserError:
    """All faults that pydantic found, as one message."""
    messages = []
    for fault in error.errors():
        key_path: KeyPath = tuple(part for part in fault["loc"] if part != "[key]")
        field = _field(key_path)
        if fault["type"] == "extra_forbidden":
            siblings = list(_section_keys(key_path[:-1]))
            text = f"unknown key\n  allowed: {choices(siblings, str(key_path[-1]))}"
        elif fault["type"] == "missing":
            text = f"is missing\n  allowed: {field.description if field else 'a value'}"
        else:
            found = source.spellings.get(key_path) or fault["input"]
            found = found if found is None or isinstance(found, dict) else shorten(str(found))
            text = "found nothing" if found is None else f"found {found}"
            if fault["type"] == "value_error":  # our own words; of a whole section there is no "found" to show
                text = f"{fault['ctx']['error']}" if isinstance(found, dict) else f"{text}: {fault['ctx']['error']}"
            if isinstance(fault["input"], bool):
                text += f'\n  YAML reads {found} as true or false; quote it if you mean the name: "{found}"'
            if field:
                text += f"\n  allowed: {field.description}"
        messages.append(f"{source.where(key_path)}: {dotted(key_path) or 'the study'}: {text}")
    if len(messages) > MOST_MESSAGES:
        messages[MOST_MESSAGES:] = [f"… and {len(messages) - MOST_MESSAGES} more"]
    return UserError("\n".join(messages), remedy="")


def _section_keys(key_path: KeyPath) -> dict[str, FieldInfo]:
    model: type[BaseModel] | None = config_schema.StudySection
    skip_name = False
    for part in key_path:
        if skip_name:
            skip_name = False
            continue
        model, skip_name = _below(model, str(part))
        if model is None:
            return {}
    return model.model_fields if model else {}


def _below(model: type[BaseModel] | None, key: str) -> tuple[type[BaseModel] | None, bool]:
    """The section type under ``key`` and whether a free name stands between (``workloads.NAME.…``)."""
    named: dict[str, type[BaseModel]] = {"workloads": config_schema.WorkloadSection, "modes": config_schema.ModeSection}
    plain: dict[str, type[BaseModel]] = {
        "model": config_schema.ModelSection,
        "engine": config_schema.EngineSection,
        "load": config_schema.LoadSection,
        "limits": config_schema.LimitsSection,
        "slo": config_schema.ServiceLevelSection,
        "cost": config_schema.CostSection,
        "report": config_schema.ReportSection,
        "baseline": config_schema.BaselineSection,
        "kv_connector": config_schema.KvConnectorSection,
    }
    if model is config_schema.StudySection and key in named:
        return named[key], True
    return plain.get(key), False


def _field(key_path: KeyPath) -> FieldInfo | None:
    names = [part for part in key_path if isinstance(part, str)]
    return _section_keys(tuple(names[:-1])).get(names[-1]) if names else None
