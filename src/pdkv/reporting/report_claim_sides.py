"""The two sides of each comparison that a claim asks for: their hardware, who contradicts, and who was not compared."""

from collections.abc import Sequence

from pdkv.analysing.claims import NOT_COMPARED, Evidence, Finding, decided_interval, digits_of_size
from pdkv.analysing.load_level import load_label
from pdkv.analysing.study_results import StudyResults
from pdkv.reporting.report_phrases import change_digits, format_change, hardware_pair, is_suspect, listed_few
from pdkv.reporting.report_refusals import UNLIKE
from pdkv.reporting.stored_texts import retell
from pdkv.reporting.wording import Wording

SUSPECT = "†"


def unequal_hardware(results: StudyResults, finding: Finding, evidence: Evidence, say: Wording) -> str:
    """``2 GPUs against 1 GPU``; empty where both sides had the same, and where it is not known of one."""
    mode, dtype, other_mode, other_dtype = evidence.cells
    cells = {(cell.mode, cell.dtype): cell for cell in results.cells_of(finding.workload)}
    here, there = cells.get((mode, dtype)), cells.get((other_mode, other_dtype))
    if here is None or there is None or here.hardware == there.hardware or None in (here.hardware, there.hardware):
        return ""
    return hardware_pair(here, there, say)


def with_hardware(name: str, hardware: str, say: Wording) -> str:
    """``1p1d (2 GPUs against 1 GPU)``; the name alone where the hardware is equal."""
    return say("findings.entry", name=name, effects=hardware) if hardware else name


def unequal_hardware_by_claim(results: StudyResults, findings: Sequence[Finding], say: Wording) -> dict[str, str]:
    """What cells had that a claim sets against each other, for each claim in which some of it is unequal."""
    found: dict[str, list[str]] = {}
    equal: set[str] = set()
    for finding in findings:
        for each in finding.evidence:
            if each.effect is None or each.effect.ratio is None:
                continue
            if pair := unequal_hardware(results, finding, each, say):
                found.setdefault(finding.claim, []).append(pair)
            else:
                equal.add(finding.claim)
    return {
        claim: say("list.semicolon").join(dict.fromkeys([*([say("claims.equal")] if claim in equal else []), *pairs]))
        for claim, pairs in found.items()
    }


def contradicted_by(finding: Finding, say: Wording) -> str:
    """Which of several cells contradict a test; empty where there is one cell, or none does."""
    names = [_cell(each) for each in finding.evidence if each.verdict == "contradicted"]
    return say("claims.by", cells=listed_few(names, say)) if names and len(finding.evidence) > 1 else ""


def why_not_measured(evidence: Evidence, say: Wording) -> str:
    """``a/fp8 against a/fp16: no value``: which comparison has no number. What names its cell stands as it is."""
    why = retell(evidence.why.removeprefix(UNLIKE), say)
    if evidence.effect is None and evidence.why != NOT_COMPARED:
        return why
    mode, dtype, other_mode, other_dtype = evidence.cells
    here, there = f"{mode}/{dtype}", f"{other_mode}/{other_dtype}"
    if evidence.effect is not None and evidence.effect.row["factor"] == "interaction":  # the step in both modes
        here, there = (say("word.only_in", value=dtype, cells=each) for each in (mode, other_mode))
    sides = say("claims.against", here=here, there=there)
    key = "claims.refused" if evidence.why.startswith(UNLIKE) else "claims.no_number"
    return say(key, sides=sides, why=why)


def _cell(evidence: Evidence) -> str:
    return "/".join(evidence.cells[:2])


def tell_pair(evidence: Evidence, say: Wording) -> str:
    """What differs between the two sides; a mode that is the same in both stands with each number."""
    mode, dtype, other_mode, other_dtype = evidence.cells
    if mode == other_mode:
        return say("claims.against", here=dtype, there=other_dtype)
    if dtype == other_dtype:
        return say("claims.against", here=mode, there=say("word.only_in", value=other_mode, cells=dtype))
    return say("claims.against", here=f"{mode}/{dtype}", there=f"{other_mode}/{other_dtype}")


def tell_seen(results: StudyResults, finding: Finding, evidence: Evidence, say: Wording) -> str:
    """``1p1d (2 GPUs against 1 GPU) +2.3% [+1.0%, +3.6%]``: the hardware where it differs, the interval that decides,
    and a mark where a cell is suspect."""
    effect, test = evidence.effect, finding.test
    if effect is None or effect.ratio is None:
        return why_not_measured(evidence, say)
    size = None if test is None else test.at_least
    digits = change_digits(effect) if size is None else digits_of_size(size) - 2
    mark = SUSPECT if is_doubtful(results, finding, evidence) else ""
    name = with_hardware(evidence.cells[0], unequal_hardware(results, finding, evidence, say), say)
    text = f"{name} {format_change(effect.ratio, digits)}{mark}"
    interval = decided_interval(effect, test)
    if interval is None:
        return text
    low, high = (format_change(end, digits) for end in interval)
    return f"{text} {say('effects.interval', low=low, high=high)}"


def is_doubtful(results: StudyResults, finding: Finding, evidence: Evidence) -> bool:
    """Whether a check raised doubt about a cell of the comparison, at this load level or as a whole."""
    mode, dtype, other_mode, other_dtype = evidence.cells
    names = {(m, d) for m in (mode, other_mode) for d in (dtype, other_dtype)}
    if finding.test is None or finding.test.effect is None:  # an interaction is made of all four cells
        names = {(mode, dtype), (other_mode, other_dtype)}
    labels = [load_label(point) for point in results.points_of(finding.workload)]
    indexes = [index for index, label in enumerate(labels) if label == finding.concurrency] or range(len(labels))
    cells = [cell for cell in results.cells_of(finding.workload) if (cell.mode, cell.dtype) in names]
    return any(is_suspect(cell, index) for cell in cells for index in indexes)
