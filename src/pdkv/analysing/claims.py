"""Claims against what was measured: supported, contradicted, cannot tell, or not measured and why.

A verdict rests on that of the comparison, with its interval: a difference without one supports nothing.
"""

import math
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Literal

from pdkv.analysing.claim_file import EVERY, SAME_FORMAT, Claim, ClaimTest
from pdkv.analysing.study_results import Effect, StudyResults
from pdkv.analysing.verdicts import MARGIN, is_no_larger, within_yardstick
from pdkv.study.config_promises import SIXTEEN_BIT

ClaimVerdict = Literal["supported", "contradicted", "cannot tell", "not measured"]
Cells = tuple[str, str, str, str]  # mode, dtype, mode and dtype of the other
NOT_COMPARED = "the study makes no such comparison"
SAME = "same resolved configuration"  # as comparisons.csv notes it
SHOWN_DIGITS = 3  # of a ratio that is told as a change with one decimal: +100.0%
DECIDED = ("lower", "higher", "equivalent")
FULFIL = {
    "lower": {"lower"},
    "higher": {"higher"},
    "equivalent": {"equivalent"},
    "different": {"lower", "higher"},
    "not lower": {"higher", "equivalent"},
    "not higher": {"lower", "equivalent"},
}


@dataclass(frozen=True)
class Evidence:
    """One comparison that a test asks for. ``effect`` is None where there is none; ``why`` tells what is missing."""

    cells: Cells
    effect: Effect | None
    verdict: ClaimVerdict
    why: str = ""


@dataclass(frozen=True)
class Finding:
    """A test of a claim at one load level (``concurrency`` as in comparisons.csv, None where nothing was measured)."""

    claim: str
    test: ClaimTest | None
    workload: str
    concurrency: str | None
    evidence: tuple[Evidence, ...]
    verdict: ClaimVerdict


def judge_claims(results: StudyResults, claims: Mapping[str, Claim], margin: float = MARGIN) -> list[Finding]:
    """What the comparisons of a study say of each claim, in the order of the claims."""
    return [finding for name, claim in claims.items() for finding in _test_claim(results, name, claim, margin)]


def verdicts_of_claims(findings: Sequence[Finding]) -> dict[str, ClaimVerdict]:
    """The verdict of each claim as a whole, by its id: that of all its tests at all load levels together."""
    verdicts: dict[str, list[ClaimVerdict]] = {}
    for finding in findings:
        verdicts.setdefault(finding.claim, []).append(finding.verdict)
    return {claim: verdict_of_all(found) for claim, found in verdicts.items()}


def _test_claim(results: StudyResults, name: str, claim: Claim, margin: float) -> Iterator[Finding]:
    if claim.untested is not None:
        yield Finding(name, None, "", None, (), "not measured")
    for test in claim.tests:
        for workload in results.workloads:
            rows = [effect for effect in results.effects if effect.row["workload"] == workload and _is_of(effect, test)]
            levels: list[str | None] = list(dict.fromkeys(effect.row["concurrency"] for effect in rows))
            held = {(cell.mode, cell.dtype) for cell in results.cells_of(workload)}
            wanted = list(_cells(results, test))
            if EVERY in test.mode:  # every one that the study holds in both: what it leaves out is no counter-example
                wanted = [cells for cells in wanted if {cells[:2], cells[2:]} <= held] or wanted
            for level in levels or [None]:
                # A pair may stand there twice, first as one with the baseline: the later kind is the nearer one.
                at_level = {_cells_of(e): e for e in rows if e.row["concurrency"] == level}
                evidence = tuple(_judge(held, cells, at_level, test, margin) for cells in wanted)
                yield Finding(
                    name, test, workload, level, evidence, verdict_of_all([each.verdict for each in evidence])
                )


def verdict_of_all(verdicts: Sequence[ClaimVerdict]) -> ClaimVerdict:
    """Of several cells, or several tests: one counter-example contradicts a claim, and only all of them support it."""
    found = set(verdicts)
    if "contradicted" in found:
        return "contradicted"
    if found <= {"not measured"}:
        return "not measured"
    return "supported" if found == {"supported"} else "cannot tell"


def _is_of(effect: Effect, test: ClaimTest) -> bool:
    row = effect.row
    same_kind = (row["factor"] == "interaction") == (test.effect == "interaction")
    return same_kind and (row["metric"], row["stat"]) == (test.metric, test.stat)


def _cells_of(effect: Effect) -> Cells:
    row = effect.row
    return row["mode"], row["dtype"], row["base_mode"], row["base_dtype"]


def _cells(results: StudyResults, test: ClaimTest) -> Iterator[Cells]:
    """The pairs that a test is about, in the names of this study. A pair of a cell with itself is none."""
    modes = results.modes if EVERY in test.mode else test.mode
    dtype = _own_name(results, test.dtype)
    for mode in modes:
        if test.effect == "interaction":
            other_mode, other_dtype = _base_of_interaction(results, mode, dtype)
            if mode == other_mode:  # what the precision does there is what the others are held against
                continue
        else:
            other_mode = test.against.mode or mode
            other_dtype = _own_name(results, test.against.dtype or test.dtype)
        if (mode, dtype) != (other_mode, other_dtype):
            yield mode, dtype, other_mode, other_dtype


def _own_name(results: StudyResults, dtype: str) -> str:
    """What this study calls a precision of the claim; the claim's own name where it has none."""
    if dtype == "16bit":
        return next((name for name in results.dtypes if name in SIXTEEN_BIT), dtype)
    other = SAME_FORMAT.get(dtype, dtype)
    return other if dtype not in results.dtypes and other in results.dtypes else dtype


def _base_of_interaction(results: StudyResults, mode: str, dtype: str) -> tuple[str, str]:
    for effect in results.effects:
        if effect.row["factor"] == "interaction" and (effect.row["mode"], effect.row["dtype"]) == (mode, dtype):
            return effect.row["base_mode"], effect.row["base_dtype"]
    return "default", _own_name(results, "16bit")


def _judge(
    held: Set[tuple[str, str]], cells: Cells, effects: Mapping[Cells, Effect], test: ClaimTest, margin: float
) -> Evidence:
    for cell in (cells[:2], cells[2:]):
        if cell not in held:
            return Evidence(cells, None, "not measured", f"{'/'.join(cell)} is not in the study")
    effect = effects.get(cells)
    if effect is None:
        return Evidence(cells, None, "not measured", NOT_COMPARED)
    if effect.ratio is None:
        return Evidence(cells, effect, "not measured", effect.row.get("note") or "no value")
    return Evidence(cells, effect, *_verdict(effect, test, margin))


def _verdict(effect: Effect, test: ClaimTest, margin: float) -> tuple[ClaimVerdict, str]:
    """The verdict; where it is "cannot tell", why."""
    if effect.interval is None or effect.verdict not in (*DECIDED, "cannot tell"):
        return "cannot tell", effect.row.get("note", "") if effect.verdict == "cannot tell" else effect.verdict
    if effect.verdict != "equivalent" and SAME in effect.row.get("note", ""):
        return "cannot tell", "both ran the same configuration, so that a difference between them is noise"
    if test.at_least is not None:
        return _verdict_on_size(effect, test.at_least)
    low, high = effect.interval
    if effect.verdict not in DECIDED or test.expect is None:
        return "cannot tell", effect.row.get("note", "")
    if effect.verdict in FULFIL[test.expect]:
        return "supported", ""
    if effect.verdict == "equivalent":
        return _verdict_within_margin(effect, test.expect, margin)
    # A difference that is sure, and may yet be smaller than what matters, does not contradict "about the same".
    may_be_small = high > 1 / (1 + margin) and low < 1 + margin
    if "equivalent" in FULFIL[test.expect] and may_be_small:
        return "cannot tell", f"there is an effect, and it may be within ±{margin * 100:g}%"
    return "contradicted", ""


def decided_interval(effect: Effect, test: ClaimTest | None) -> tuple[float, float] | None:
    """The interval that decides: of a claimed size that of the whole family, for no verdict corrects it otherwise."""
    if test is None or test.at_least is None:
        return effect.interval
    return effect.family_interval or effect.interval


def _verdict_on_size(effect: Effect, claimed: float) -> tuple[ClaimVerdict, str]:
    """On a claimed ratio. The ends of the interval count as they are shown: 1.9997 is +100.0%, and twice as much."""
    ends = effect.family_interval or effect.interval
    ratio = effect.ratio
    if ends is None or ratio is None or claimed <= 0:
        return "cannot tell", effect.row.get("note", "")
    low, high = (round(end, digits_of_size(claimed)) for end in ends)
    if low < claimed <= high:
        return "cannot tell", "the claimed ratio lies within the interval"
    yardstick = round(effect.yardstick or 0.0, SHOWN_DIGITS)
    if yardstick and (is_no_larger(ratio, yardstick) or is_no_larger(ratio / claimed, yardstick)):
        return "cannot tell", within_yardstick(yardstick)
    return ("supported" if low >= claimed else "contradicted"), ""


def digits_of_size(claimed: float) -> int:
    """Decimals of a ratio that is held against a claimed one: as many as are shown."""
    return max(SHOWN_DIGITS, len(f"{claimed:.9f}".rstrip("0").partition(".")[2]))


def _verdict_within_margin(effect: Effect, expected: str, margin: float) -> tuple[ClaimVerdict, str]:
    """Of a difference that was claimed and is equivalent: it may be there and small, which "equivalent" does not deny.

    It supports nothing either: whether equality was rejected in the whole family is not told of what is equivalent.
    """
    low, high = effect.family_interval or effect.interval or (0.0, math.inf)
    if low <= 1 <= high:
        return "cannot tell", f"no effect beyond ±{margin * 100:g}%, and a smaller one cannot be told"
    if effect.yardstick is not None and effect.is_within_yardstick:
        return "cannot tell", within_yardstick(effect.yardstick)
    if expected != "different" and (expected == "higher") != (low > 1):
        return "contradicted", ""
    return (
        "cannot tell",
        f"the effect has the claimed direction and is within ±{margin * 100:g}%, which the study calls equivalent",
    )
