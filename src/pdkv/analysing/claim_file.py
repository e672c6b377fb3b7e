"""Claims as data: which comparison each of them is about, and what it expects of it. See config/claims.yaml."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from pdkv.errors import UserError
from pdkv.study.yaml_source import KeyPath, dotted, read_yaml

Expectation = Literal["lower", "higher", "equivalent", "different", "not lower", "not higher"]
Text = Annotated[str, Field(min_length=1)] | Annotated[dict[Literal["en", "zh"], str], Field(min_length=1)]
EVERY = "every"


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
    source = read_yaml(path)
    remedy = "write `ID: {says: …, tests: […]}`; config/claims.yaml is an example"
    if not isinstance(source.data, dict):
        raise UserError(f"{path} holds no claims", remedy=remedy)
    claims, faults = {}, []
    for name, content in source.data.items():
        try:
            claims[name] = Claim.model_validate(content)
        except ValidationError as error:
            for fault in error.errors():
                where: KeyPath = (name, *fault["loc"])
                faults.append(f"{source.where(where)}: {dotted(where)}: {fault['msg'].removeprefix('Value error, ')}")
    if faults:
        raise UserError("\n".join(faults), remedy=remedy)
    return claims
