"""The claims that a study is to test, with what the comparisons say of each."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from pdkv.analysing.claim_file import Claim, in_language
from pdkv.analysing.claims import Finding, verdicts_of_claims
from pdkv.analysing.study_results import StudyResults
from pdkv.reporting.report_blocks import Paragraph, Section, Table, Value, left, row, ruled_by
from pdkv.reporting.report_claim_sides import (
    SUSPECT,
    contradicted_by,
    is_doubtful,
    tell_pair,
    tell_seen,
    unequal_hardware,
    unequal_hardware_by_claim,
    why_not_measured,
    with_hardware,
)
from pdkv.reporting.report_phrases import (
    counted,
    format_change,
    headline,
    level_of_label,
    listed,
    listed_some,
)
from pdkv.reporting.stored_texts import retell
from pdkv.reporting.wording import Wording
from pdkv.units import DASH

VERDICTS = ("supported", "contradicted", "cannot tell", "not measured")


def say_how_claims_came_out(results: StudyResults, findings: Sequence[Finding], say: Wording) -> str:
    """``14 claims put to the test: 3 supported, 2 contradicted, 9 cannot tell.``, and which on unequal hardware."""
    verdicts = list(verdicts_of_claims(findings).values())
    text = say("claims.came_out", claims=counted(len(verdicts), "claims.total", say), counts=_counts(verdicts, say))
    unequal = list(unequal_hardware_by_claim(results, findings, say))
    return text + (say("claims.unequal", claims=listed_some(unequal, say)) if unequal else "")


def describe_claims(
    results: StudyResults, claims: Mapping[str, Claim], findings: Sequence[Finding], say: Wording
) -> list[Section]:
    """How many claims came out how, each claim's verdict, and a row for each test of each claim at each load level.

    Where no comparison has an interval there are no verdicts: one row a claim then says what was seen.
    """
    told = list(_told_once(findings))
    seen = [each.effect for finding in told for each in finding.evidence if each.effect and each.effect.ratio]
    if seen and all(effect.interval is None for effect in seen):
        blocks = _observed(results, claims, told, say)
    else:
        counts = _counts([finding.verdict for finding in told], say)
        text = say("claims.introduction", claims=say_how_claims_came_out(results, findings, say), counts=counts)
        verdicts = verdicts_of_claims(findings)
        unequal = unequal_hardware_by_claim(results, findings, say)
        summary = _verdict_table(claims, verdicts, unequal, say)
        blocks = [Paragraph(text), summary, _test_table(results, claims, told, say)]
    return [Section(say("claims.title"), tuple(blocks))]


def _counts(verdicts: Sequence[str], say: Wording) -> str:
    counts = [(verdict, verdicts.count(verdict)) for verdict in VERDICTS]
    return listed(
        [say("claims.count", count=count, verdict=_verdict(verdict, say)) for verdict, count in counts if count], say
    )


def _verdict_table(
    claims: Mapping[str, Claim], verdicts: Mapping[str, str], unequal: Mapping[str, str], say: Wording
) -> Table:
    """The hardware has a column where cells on unequal amounts of it were compared."""
    hardware = [left(say("mode.hardware"))] if unequal else []
    columns = (left(say("claims.id")), left(say("claims.says"), wide=True), *hardware, left(say("claims.verdict")))
    rows = tuple(
        row(
            *_said(name, claim, say),
            *([unequal.get(name, DASH)] if unequal else []),
            _verdict(verdicts[name], say),
        )
        for name, claim in claims.items()
    )
    notes = (say("claims.verdict_note"), *([say("claims.hardware_note")] if unequal else []))
    return Table(say("claims.verdict_caption"), columns, rows, notes)


def _test_table(results: StudyResults, claims: Mapping[str, Claim], findings: Sequence[Finding], say: Wording) -> Table:
    rows: list[tuple[Value, ...]] = []
    shown: tuple[str, str] = ("", "")
    for finding in findings:
        expected = _expected(finding, say)
        name = "" if finding.claim == shown[0] else finding.claim
        test = "" if (finding.claim, expected) == shown else expected
        verdict = Value(_verdict(finding.verdict, say), under=_undecided(finding, say) or contradicted_by(finding, say))
        rows.append(row(name, test, *_measured(results, finding, claims[finding.claim], say), verdict))
        shown = (finding.claim, expected)
    columns = (
        left(say("claims.id"), carried=True),
        left(say("claims.test"), wide=True, carried=True),
        left(say("effects.level")),
        left(say("claims.measured"), wide=True),
        left(say("claims.verdict"), wide=True),
    )
    sized = any(finding.test and finding.test.at_least is not None for finding in findings)
    notes = (say("claims.note"), *([say("claims.size_note")] if sized else []), *_doubt(rows, say))
    return Table(say("claims.caption"), columns, tuple(rows), notes, ruled_by(each.claim for each in findings))


def _observed(
    results: StudyResults, claims: Mapping[str, Claim], findings: Sequence[Finding], say: Wording
) -> list[Paragraph | Table]:
    """One sentence why there are no verdicts, and a row for each claim with what was seen over all loads."""
    rows = []
    for name, claim in claims.items():
        tests: dict[str, list[Finding]] = {}
        for finding in findings:
            if finding.claim == name:
                tests.setdefault(_expected(finding, say), []).append(finding)
        seen = [
            _seen_over_loads(results, found, claim, say)
            if found[0].test is None
            else say("word.colon", name=expected, value=_seen_over_loads(results, found, claim, say))
            for expected, found in tests.items()
        ]
        rows.append(row(*_said(name, claim, say), say("list.semicolon").join(seen)))
    columns = (
        left(say("claims.id")),
        left(say("claims.says"), wide=True),
        left(say("claims.measured"), wide=True),
    )
    reasons = [reason for finding in findings if (reason := _undecided(finding, say))]
    text = say("claims.no_verdicts", reasons=say("list.semicolon").join(dict.fromkeys(reasons)))
    notes = (say("claims.observed_note"), *_doubt(rows, say))
    return [Paragraph(text), Table(say("claims.observed_caption"), columns, tuple(rows), notes)]


def _seen_over_loads(results: StudyResults, findings: Sequence[Finding], claim: Claim, say: Wording) -> str:
    """``default +1.0%, 1p1d +2.3% … +3.1%†``: the smallest and the largest change in each mode."""
    seen: dict[str, list[tuple[float, str]]] = {}
    other: list[str] = []
    for finding in findings:
        for each in finding.evidence:
            if each.effect is None or each.effect.ratio is None:
                other.append(why_not_measured(each, say))
                continue
            mark = SUSPECT if is_doubtful(results, finding, each) else ""
            name = with_hardware(each.cells[0], unequal_hardware(results, finding, each, say), say)
            seen.setdefault(name, []).append((each.effect.ratio, mark))
        if not finding.evidence:
            other.append(_measured(results, finding, claim, say)[1])
    texts = [f"{mode} {_span(changes, say)}" for mode, changes in seen.items()]
    return say("list.comma").join(dict.fromkeys([*texts, *other]))


def _span(changes: Sequence[tuple[float, str]], say: Wording) -> str:
    ends = [f"{format_change(ratio)}{mark}" for ratio, mark in (min(changes), max(changes))]
    return ends[0] if ends[0] == ends[1] else say("claims.span", low=ends[0], high=ends[1])


def _said(name: str, claim: Claim, say: Wording) -> tuple[Value, Value]:
    return Value(name), Value(in_language(claim.says, say.language), under=_saw(claim, say))


def _verdict(verdict: str, say: Wording) -> str:
    return say(f"claim_verdict.{_key(verdict)}")


def _doubt(rows: Sequence[tuple[Value, ...]], say: Wording) -> list[str]:
    doubtful = any(SUSPECT in value.text for each in rows for value in each)
    return [f"{SUSPECT} {say('note.suspect_claim')}"] if doubtful else []


def _told_once(findings: Sequence[Finding]) -> Iterator[Finding]:
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
    if not finding.evidence:
        return expected
    return say("claims.pair", pair=tell_pair(finding.evidence[0], say), expected=expected)


def _measured(results: StudyResults, finding: Finding, claim: Claim, say: Wording) -> tuple[str, str]:
    """(load level, what was seen in each comparison)."""
    if finding.test is None:
        return DASH, in_language(claim.untested, say.language) or DASH
    if not finding.evidence:
        return DASH, say("claims.no_pair")
    level = level_of_label(finding.workload, finding.concurrency or "", results, say) or DASH
    seen = [tell_seen(results, finding, each, say) for each in finding.evidence]
    return level, say("list.semicolon").join(dict.fromkeys(seen))
