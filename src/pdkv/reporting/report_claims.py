"""The claims that a study is to test, with what the comparisons say of each."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from pdkv.analysing.claim_file import Claim, in_language
from pdkv.analysing.claims import Evidence, Finding, judge_claims
from pdkv.analysing.load_level import load_label
from pdkv.analysing.study_results import StudyResults
from pdkv.analysing.verdicts import MARGIN
from pdkv.reporting.report_blocks import Paragraph, Section, Table, Value, left, row, ruled_by
from pdkv.reporting.report_phrases import format_change, headline, is_suspect, level_of_label, listed
from pdkv.reporting.stored_texts import retell
from pdkv.reporting.wording import Wording
from pdkv.units import DASH

SUSPECT = "†"
VERDICTS = ("supported", "contradicted", "cannot tell", "not measured")


def describe_claims(
    results: StudyResults, claims: Mapping[str, Claim], say: Wording, margin: float = MARGIN
) -> list[Section]:
    """How many claims came out how, and a row for each test of each claim at each load level."""
    findings = list(_told_once(judge_claims(results, claims, margin)))
    rows: list[tuple[Value, ...]] = []
    shown: tuple[str, str] = ("", "")
    for finding in findings:
        claim, expected = claims[finding.claim], _expected(finding, say)
        said = (
            row("", "")
            if finding.claim == shown[0]
            else row(finding.claim, Value(in_language(claim.says, say.language), under=_saw(claim, say)))
        )
        test = "" if (finding.claim, expected) == shown else expected
        verdict = Value(say(f"claim_verdict.{_key(finding.verdict)}"), under=_undecided(finding, say))
        rows.append((*said, *row(test, *_measured(results, finding, claim, say), verdict)))
        shown = (finding.claim, expected)
    columns = (
        left(say("claims.id")),
        left(say("claims.says"), wide=True),
        left(say("claims.test"), wide=True),
        left(say("effects.level")),
        left(say("claims.measured"), wide=True),
        left(say("claims.verdict")),
    )
    counts = [
        say("claims.count", count=count, verdict=say(f"claim_verdict.{_key(verdict)}"))
        for verdict in VERDICTS
        if (count := sum(finding.verdict == verdict for finding in findings))
    ]
    text = say("claims.introduction", claims=len(claims), tests=len(findings), counts=listed(counts, say))
    doubtful = any(SUSPECT in value.text for each in rows for value in each)
    notes = (say("claims.note"), *([f"{SUSPECT} {say('note.suspect_claim')}"] if doubtful else []))
    table = Table(say("claims.caption"), columns, tuple(rows), notes, ruled_by(each.claim for each in findings))
    return [Section(say("claims.title"), (Paragraph(text), table))]


def _told_once(findings: list[Finding]) -> Iterator[Finding]:
    """Where a test is not measured at any load level for the same reasons, one row says so."""
    seen: set[object] = set()
    for finding in findings:
        if finding.verdict != "not measured":
            yield finding
            continue
        key = (finding.claim, finding.test, tuple((each.cells, each.why) for each in finding.evidence))
        if key not in seen:
            seen.add(key)
            yield replace(finding, concurrency=None)


def _key(words: str) -> str:
    return words.replace(" ", "_")


def _saw(claim: Claim, say: Wording) -> str:
    saw = in_language(claim.saw, say.language)
    return say("claims.saw", saw=saw) if saw else ""


def _undecided(finding: Finding, say: Wording) -> str:
    """Why a test cannot tell, each reason once: ``not decided: one launch``."""
    if finding.verdict != "cannot tell":
        return ""
    reasons = [retell(each.why, say) for each in finding.evidence if each.effect and each.effect.ratio and each.why]
    return say("list.semicolon").join(dict.fromkeys(reasons))


def _expected(finding: Finding, say: Wording) -> str:
    """``fp8 against bf16: TPOT mean lower``."""
    test = finding.test
    if test is None:
        return DASH
    number = headline(test.metric, test.stat, say) if say.has(f"metric.{test.metric}.short") else test.metric
    if test.at_least is not None:
        expected = say("claims.at_least", number=number, ratio=f"{test.at_least:g}")
    else:
        expected = say("claims.expected", number=number, expected=say(f"expect.{_key(str(test.expect))}"))
    if test.effect:
        return say("claims.interaction", expected=expected)
    return say("claims.pair", pair=_pair(finding.evidence[0], say), expected=expected) if finding.evidence else expected


def _pair(evidence: Evidence, say: Wording) -> str:
    """What differs between the two sides; a mode that is the same in both stands with each number."""
    mode, dtype, other_mode, other_dtype = evidence.cells
    if mode == other_mode:
        return say("claims.against", here=dtype, there=other_dtype)
    if dtype == other_dtype:
        return say("claims.against", here=mode, there=say("word.only_in", value=other_mode, cells=dtype))
    return say("claims.against", here=f"{mode}/{dtype}", there=f"{other_mode}/{other_dtype}")


def _measured(results: StudyResults, finding: Finding, claim: Claim, say: Wording) -> tuple[str, str]:
    """(load level, what was seen in each comparison)."""
    if finding.test is None:
        return DASH, in_language(claim.untested, say.language) or DASH
    if not finding.evidence:
        return DASH, say("claims.no_pair")
    level = level_of_label(finding.workload, finding.concurrency or "", results, say) or DASH
    seen = [_seen(each, _is_doubtful(results, finding, each), say) for each in finding.evidence]
    return level, say("list.semicolon").join(dict.fromkeys(seen))


def _is_doubtful(results: StudyResults, finding: Finding, evidence: Evidence) -> bool:
    """Whether a check raised doubt about a cell of the comparison, at this load level or as a whole."""
    mode, dtype, other_mode, other_dtype = evidence.cells
    names = {(m, d) for m in (mode, other_mode) for d in (dtype, other_dtype)}
    if finding.test is None or finding.test.effect is None:  # an interaction is made of all four cells
        names = {(mode, dtype), (other_mode, other_dtype)}
    labels = [load_label(point) for point in results.points_of(finding.workload)]
    indexes = [index for index, label in enumerate(labels) if label == finding.concurrency] or range(len(labels))
    cells = [cell for cell in results.cells_of(finding.workload) if (cell.mode, cell.dtype) in names]
    return any(is_suspect(cell, index) for cell in cells for index in indexes)


def _seen(evidence: Evidence, doubtful: bool, say: Wording) -> str:
    """``1p1d +2.3% [+1.0%, +3.6%]``, with a mark where a cell is suspect."""
    effect = evidence.effect
    if effect is None or effect.ratio is None:
        return retell(evidence.why, say)
    text = f"{evidence.cells[0]} {format_change(effect.ratio)}{SUSPECT if doubtful else ''}"
    if effect.interval is None:
        return text
    low, high = (format_change(end) for end in effect.interval)
    return f"{text} {say('effects.interval', low=low, high=high)}"
