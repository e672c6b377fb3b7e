"""Did every server run through the whole load? One that is started anew is alive before and after, and cold between."""

from collections.abc import Iterable, Mapping
from typing import Any

from pdkv.analysing.checks import Check
from pdkv.analysing.scrapes import Scrape, counter, read_scrape

NAME = "servers ran through the load"
ENDPOINT = "endpoint"  # the name of a server that the user runs


def check_restarts(rows: Iterable[Mapping[str, Any]], names: Iterable[str], point: int) -> Check:
    """For one point. ``rows`` are those of scrapes.jsonl, ``names`` the instances."""
    rows = list(rows)
    begun = {
        name: _has_begun_anew(read_scrape(rows, "before", name, point), read_scrape(rows, "after", name, point))
        for name in names
    }
    if begun.get(ENDPOINT):  # whatever stands there is not ours
        evidence = "the server began anew during the load, or several stand behind its address"
        return Check(
            NAME, "suspect", evidence, "give the address of one server, and let nothing start it again meanwhile"
        )
    if anew := [name for name, answer in begun.items() if answer]:
        remedy = "look into its log for why it ended, and let nothing start it again during a trial"
        return Check(NAME, "failed", f"{', '.join(anew)} began anew during the load", remedy)
    if silent := [name for name, answer in begun.items() if answer is None]:
        evidence = f"{', '.join(silent)} did not say before and after the load since when it runs"
        return Check(NAME, "unknown", evidence, "look into scrapes.jsonl for why /metrics did not answer")
    return Check(NAME, "passed", "all were started before it")


def _has_begun_anew(before: Scrape | None, after: Scrape | None) -> bool | None:
    """By when the process was started; where that is not told, by a counter that was set back."""
    for name in ("process_start_time_seconds", "prompt_tokens"):
        old, new = counter(before, name), counter(after, name)
        if old is not None and new is not None:
            return new != old if name == "process_start_time_seconds" else new < old
    return None
