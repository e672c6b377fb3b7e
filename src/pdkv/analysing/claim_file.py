"""Claims as data: which comparison each of them is about, and what it expects of it. See config/claims.yaml."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from pdkv.analysing.compared_quantities import STATS_OF
from pdkv.errors import UserError
from pdkv.study.config_messages import choices
from pdkv.study.config_promises import SIXTEEN_BIT
from pdkv.study.yaml_source import KeyPath, YamlSource, dotted, read_yaml, shorten

Expectation = Literal["lower", "higher", "equivalent", "different", "not lower", "not higher"]
Text = Annotated[str, Field(min_length=1)] | Annotated[dict[Literal["en", "zh"], str], Field(min_length=1)]
EVERY = "every"
SAME_FORMAT = {"fp8": "fp8_e4m3", "fp8_e4m3": "fp8"}
TEXTS = ("says", "saw", "untested")
ALLOWED = {
    **dict.fromkeys(TEXTS, "a text, or one in each language of the report: {en: …, zh: …}"),
    "tests": "a list of tests, each {mode, dtype, against, metric, stat, expect}",
    "mode": "a mode, a list of modes, or every",
    "dtype": "a KV precision, or 16bit",
    "against": "{mode: …}, {dtype: …} or both",
    "effect": "interaction",
    "metric": "a metric of results/comparisons.csv",
    "stat": "mean, median, p90, p99, value",
    "expect": "lower, higher, equivalent, different, not lower, not higher",
    "at_least": "a number above 0",
}


def _listed(value: Any) -> Any:
    return value if isinstance(value, list) else [value]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Against(_Strict):
    """The other cell of a test; what is left out is the same as in the first."""

    mode: str | None = None
    dtype: str | None = None


class ClaimTest(_Strict):
    """One comparison, for each of ``mode``, at every load level of every workload."""

    mode: Annotated[tuple[str, ...], BeforeValidator(_listed)] = Field(min_length=1)
    dtype: str
    against: Against = Against()
    effect: Literal["interaction"] | None = None
    metric: str
    stat: Literal["mean", "median", "p90", "p99", "value"]
    expect: Expectation | None = None
    at_least: float | None = Field(default=None, gt=0)

    @field_validator("metric")
    @classmethod
    def _is_compared(cls, metric: str) -> str:
        if metric not in STATS_OF:
            raise ValueError(f"found {metric}\n  allowed: {choices(STATS_OF, metric)}")
        return metric

    @field_validator("stat")
    @classmethod
    def _is_a_statistic_of_the_metric(cls, stat: str, known: ValidationInfo) -> str:
        allowed = STATS_OF.get(known.data.get("metric", ""), ())
        if allowed and stat not in allowed:
            raise ValueError(f"found {stat}\n  allowed for {known.data['metric']}: {', '.join(allowed)}")
        return stat

    @model_validator(mode="after")
    def _expects_one_thing(self) -> "ClaimTest":
        if (self.expect is None) == (self.at_least is None):
            raise ValueError("needs either expect or at_least")
        if (self.effect is None) == (self.against == Against()):
            raise ValueError("needs either against or effect: interaction")
        return self


class Claim(_Strict):
    """``says`` in words what the ``tests`` test; ``saw`` is what it was based on; ``untested`` why it has no tests.

    Texts are in one language or in several.
    """

    says: Text
    saw: Text | None = None
    tests: tuple[ClaimTest, ...] = ()
    untested: Text | None = None

    @model_validator(mode="after")
    def _is_tested_or_says_why_not(self) -> "Claim":
        if bool(self.tests) == (self.untested is not None):
            raise ValueError("needs either tests or untested")
        return self


def in_language(text: Text | None, language: str) -> str:
    """A claim's text in the report's language; in that in which it was written where there is no other."""
    if text is None or isinstance(text, str):
        return text or ""
    told = {str(key): words for key, words in text.items()}
    return told.get(language) or told.get("en") or next(iter(told.values()))


def read_claims(path: Path) -> dict[str, Claim]:
    """Claims by their id, in the file's order. Raises :class:`UserError` that names file, line and key."""
    if not path.exists():
        raise UserError(
            f"{path}: there is no such file",
            remedy="name an existing claims file, as seen from the project's folder; config/claims.yaml is an example",
        )
    source = read_yaml(path)
    remedy = "write `ID: {says: …, tests: […]}`; config/claims.yaml is an example"
    if not isinstance(source.data, dict):
        raise UserError(f"{path} holds no claims", remedy=remedy)
    claims, faults = {}, []
    for name, content in source.data.items():
        try:
            claims[name] = Claim.model_validate(content)
        except ValidationError as error:
            faults += _explain(error, name, source)
    if faults:
        raise UserError("\n".join(faults), remedy=remedy)
    return claims


def find_strangers(claims: Mapping[str, Claim], modes: Sequence[str], dtypes: Sequence[str]) -> list[str]:
    """Modes and precisions that claims name and the study does not have: ``C1.tests[0]: the study has no mode tp4``."""
    known = {*dtypes, *(SAME_FORMAT[name] for name in dtypes if name in SAME_FORMAT)}
    if set(dtypes) & set(SIXTEEN_BIT):
        known.add("16bit")
    found = []
    for name, claim in claims.items():
        for number, test in enumerate(claim.tests):
            named = dict.fromkeys([*test.mode, *([test.against.mode] if test.against.mode else [])])
            strange = [f"mode {mode}" for mode in named if mode not in (*modes, EVERY)]
            named = dict.fromkeys([test.dtype, *([test.against.dtype] if test.against.dtype else [])])
            strange += [f"dtype {dtype}" for dtype in named if dtype not in known]
            found += [f"{name}.tests[{number}]: the study has no {each}: not measured" for each in strange]
    return found


def _explain(error: ValidationError, name: str, source: YamlSource) -> list[str]:
    """Each fault of a claim once: file and line, key, what was found, what is allowed."""
    faults: dict[KeyPath, str] = {}
    for each in error.errors():
        key_path = _path_in_file((name, *each["loc"]), source.data, missing=each["type"] == "missing")
        faults.setdefault(key_path, _fault(each["type"], each["msg"], key_path, source))
    # A text that is a mapping is no string either: what is wrong inside it says more.
    told = [path for path in faults if not any(other != path and other[: len(path)] == path for other in faults)]
    return [f"{source.where(path)}: {dotted(path)}: {faults[path]}" for path in told]


def _path_in_file(loc: KeyPath, data: Any, *, missing: bool) -> KeyPath:
    """The keys of a fault that stand in the file; the rest of ``loc`` is the checker's own."""
    path: KeyPath = ()
    for number, part in enumerate(loc):
        inside = (isinstance(data, dict) and part in data) or (
            isinstance(data, list) and isinstance(part, int) and part < len(data)
        )
        if inside:
            data = data[part]
        if inside or (missing and number == len(loc) - 1):
            path = (*path, part)
    return path


def _fault(kind: str, message: str, key_path: KeyPath, source: YamlSource) -> str:
    key = next((str(part) for part in reversed(key_path) if isinstance(part, str)), "")
    if kind == "missing":
        return f"is missing\n  allowed: {ALLOWED.get(key, 'a value')}"
    if kind == "value_error":
        return message.removeprefix("Value error, ")
    above = [str(part) for part in key_path[:-1] if isinstance(part, str)]
    if above and above[-1] in TEXTS and len(above) > 1:
        return f"found {shorten(str(source.spellings.get(key_path, key)))}\n  allowed: {ALLOWED[above[-1]]}"
    if kind == "extra_forbidden":
        model = Against if above[-1] == "against" else ClaimTest if "tests" in above[1:] else Claim
        return f"unknown key\n  allowed: {choices(model.model_fields, key)}"
    found = source.spellings.get(key_path)
    shown = f"found {shorten(found)}" if found else "found something else" if found is None else "found nothing"
    return f"{shown}\n  allowed: {ALLOWED.get(key if len(key_path) > 1 else '', 'a claim: {says: …, tests: […]}')}"
