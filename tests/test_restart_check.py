"""A server that was started again under load is told from one that ran through it, and from one that says nothing."""

from typing import Any

import pytest

from pdkv.analysing.checks import Check
from pdkv.analysing.restart_check import check_restarts

STARTED = "process_start_time_seconds {}\n"
COUNTED = 'vllm:prompt_tokens_total{{engine="0"}} {}\n'


def scraped(when: str, text: str | None, instance: str = "single") -> dict[str, Any]:
    answer = {"ok": text is not None, "status": 200 if text is not None else None, "text": text or "refused"}
    return {"t_s": 1.0, "when": when, "point": 0, "instance": instance, "kind": "metrics", **answer}


def judge(before: str | None, after: str | None) -> Check:
    return check_restarts([scraped("before", before), scraped("after", after)], ["single"], 0)


@pytest.mark.parametrize(
    ("before", "after", "state"),
    [
        (STARTED.format(1.79e9), STARTED.format(1.79e9), "passed"),
        (STARTED.format(1.79e9), STARTED.format(1.79e9 + 60), "failed"),
        (STARTED.format(1.79e9), STARTED.format(1.79e9 - 60), "failed"),  # the clock was set back meanwhile
        (COUNTED.format(100), COUNTED.format(5000), "passed"),
        (COUNTED.format(100), COUNTED.format(20), "failed"),
        (STARTED.format(1.79e9) + COUNTED.format(100), STARTED.format(1.79e9 + 60) + COUNTED.format(900), "failed"),
        (STARTED.format(1.79e9), None, "unknown"),
        ("", "", "unknown"),
    ],
)
def test_one_server(before: str | None, after: str | None, state: str) -> None:
    check = judge(before, after)
    assert check.state == state
    assert bool(check.remedy) is (state != "passed")


def test_one_of_two_is_named_though_the_other_is_silent() -> None:
    rows = [
        *(scraped(when, None, "decode-0") for when in ("before", "after")),
        *(scraped(when, COUNTED.format(count), "prefill-0") for when, count in (("before", 9), ("after", 1))),
    ]
    check = check_restarts(rows, ["prefill-0", "decode-0"], 0)
    assert (check.state, check.evidence) == ("failed", "prefill-0 began anew during the load")


def test_of_a_users_own_address_nobody_knows_how_many_answer_there() -> None:
    rows = [scraped(when, STARTED.format(start), "endpoint") for when, start in (("before", 1.0), ("after", 2.0))]
    assert check_restarts(rows, ["endpoint"], 0).state == "suspect"
