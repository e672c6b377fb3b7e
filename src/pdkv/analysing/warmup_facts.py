"""Was it warm? stages.json and the requests of the warmup phase -> ``warmup`` of metrics.json.

The first request to an instance, and the first between a prefill and a decode instance, pays for what later ones find
ready: compiled kernels, memory pools, the handshake of the connector. So every pair must have answered, and its last
two answers must have taken about as long.
"""

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

from pdkv.analysing.checks import Check

WARMUP_COLUMNS = ["phase", "request", "user", "status", "e2el_s"]  # of requests.parquet
SETTLED_WITHIN = 0.20  # of the longer of the last two latencies of a pair


def describe_warmup(stages: Mapping[str, Any], requests: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The entry ``warmup`` of metrics.json.

    ``requests`` are rows of requests.parquet with :data:`WARMUP_COLUMNS`; warmup request ``i`` took the way
    ``stages["pairs"][i]``. Requests without a user were sent one at a time: only their latencies are compared with each
    other, since those of a load depend on what else is under way.
    """
    if stages["outcome"]["stage"] in ("plan", "launch"):  # nothing could be warmed, and the failure says why
        return {"pairs": [], "settled": None, "checks": []}
    rows = sorted((row for row in requests if row["phase"] == "warmup"), key=lambda row: row["request"])
    ways = [_way(each) for each in stages.get("pairs") or []]
    expected = _expected_ways(stages)
    if not set(ways) & set(expected) and len(expected) == 1:
        ways = expected * len(ways)  # all went to the router, which had no choice
    taken: dict[Way, list[Mapping[str, Any]]] = {way: [] for way in [*expected, *ways]}
    for way, row in zip(ways, rows, strict=False):  # a warmup that broke off may hold a way without its request
        taken[way].append(row)
    pairs = [_describe_pair(way, members) for way, members in taken.items()]
    addressed = not expected or bool(set(ways) & set(expected))
    settled = _settled([_latencies(taken[way]) for way in expected or taken]) if addressed else None
    checks = [_check_reached(pairs, addressed), _check_settled(settled, pairs)]
    return {"pairs": pairs, "settled": settled, "checks": [check.as_json() for check in checks]}


Way = tuple[str | None, str | None, str | None]  # prefill, decode, or instance (the router is one too)


def _way(entry: Mapping[str, Any]) -> Way:
    return entry.get("prefill"), entry.get("decode"), entry.get("instance")


def _expected_ways(stages: Mapping[str, Any]) -> list[Way]:
    names = {role: [each["name"] for each in stages["instances"] if each["role"] == role] for role in _ROLES}
    alone = [(None, None, name) for name in [*names["single"], *names["replica"]]]
    return [*((prefill, decode, None) for prefill, decode in product(names["prefill"], names["decode"])), *alone]


_ROLES = ("single", "replica", "prefill", "decode")


def _latencies(rows: Sequence[Mapping[str, Any]]) -> list[float]:
    """Of the successful requests that were sent one at a time, or of all of them if there were no such requests."""
    ok = [row for row in rows if row["status"] == "ok" and row["e2el_s"] is not None]
    return [row["e2el_s"] for row in [each for each in ok if each["user"] is None] or ok]


def _describe_pair(way: Way, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    latencies = _latencies(rows)
    return {
        "prefill": way[0],
        "decode": way[1],
        "instance": way[2],
        "requests": len(rows),
        "first_e2el_s": latencies[0] if latencies else None,
        "last_e2el_s": latencies[-1] if latencies else None,
        "reached": bool(latencies),
    }


def _settled(latencies: Sequence[Sequence[float]]) -> bool | None:
    """Whether the last two answers of every way took about as long; None where some way has no two answers."""
    if not latencies or any(len(values) < 2 for values in latencies):
        return None
    return all(abs(values[-1] - values[-2]) <= SETTLED_WITHIN * max(values[-2:]) for values in latencies)


def _check_reached(pairs: Sequence[Mapping[str, Any]], addressed: bool) -> Check:
    name = "every instance and pair warmed"
    cold = [_name(pair) for pair in pairs if not pair["reached"]]
    if not pairs:
        return Check(name, "unknown", "the warmup was not recorded")
    if cold and not addressed:
        evidence = f"only the router was asked, which does not say whether it reached {', '.join(cold)}"
        return Check(name, "unknown", evidence, "raise the warmup rounds: the router deals in turn")
    if cold:
        remedy = "look into these instances' logs; raise the warmup rounds"
        return Check(name, "failed", f"no answer from {', '.join(cold)}", remedy)
    return Check(name, "passed", f"answers from {', '.join(_name(pair) for pair in pairs)}")


def _check_settled(settled: bool | None, pairs: Sequence[Mapping[str, Any]]) -> Check:
    name = "warmup settled"
    if settled is None:
        return Check(name, "unknown", "fewer than two answers of some pair", "raise the warmup rounds")
    evidence = ", ".join(f"{_name(pair)}: {pair['first_e2el_s']:.3g} s → {pair['last_e2el_s']:.3g} s" for pair in pairs)
    if settled:
        return Check(name, "passed", evidence)
    return Check(
        name,
        "suspect",
        f"the last two latencies differ by more than {SETTLED_WITHIN:.0%} ({evidence})",
        "raise the warmup rounds, or look for other work on the machine",
    )


def _name(pair: Mapping[str, Any]) -> str:
    return str(pair["instance"] or f"{pair['prefill']} → {pair['decode']}")
