"""Was it warm? stages.json and the requests of the warmup phase -> warmup.json.

The first request to an instance, and the first between a prefill and a decode instance, pays for what later ones find
ready: compiled kernels, memory pools, the handshake of the connector. So every pair must have answered, and its last
two answers must have taken about as long.
"""

from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from pdkv.artifacts import read_json, read_parquet, write_json
from pdkv.checks import Check

SETTLED_WITHIN = 0.20  # of the longer of the last two latencies of a pair


def read_warmup(trial: Path) -> None:
    """Write ``warmup.json`` of the trial folder from its stages.json and requests.parquet."""
    stages = read_json(trial / "stages.json", "stages/1")
    columns = ["phase", "request", "status", "e2el_s"]
    requests = read_parquet(trial / "requests.parquet").select(columns).to_pylist()
    write_json(trial / "warmup.json", "warmup/1", describe_warmup(stages, requests))


def describe_warmup(stages: Mapping[str, Any], requests: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The content of warmup.json.

    ``requests`` are rows of requests.parquet (``phase``, ``request``, ``status``, ``e2el_s``). Warmup request ``i``
    went to pair ``i`` of ``stages["pairs"]``; where there are more requests than pairs, these come round again.
    """
    if stages["outcome"]["stage"] in ("plan", "launch"):  # nothing could be warmed, and the failure says why
        return {"pairs": [], "settled": None, "checks": []}
    addressed = [_pair(each) for each in stages.get("pairs") or []]
    rows = sorted((row for row in requests if row["phase"] == "warmup"), key=lambda row: row["request"])
    latencies: dict[Pair, list[float]] = {pair: [] for pair in [*_expected_pairs(stages), *addressed]}
    sent = dict.fromkeys(latencies, 0)
    for position, row in enumerate(rows if addressed else []):
        pair = addressed[position % len(addressed)]
        sent[pair] += 1
        if row["status"] == "ok" and row["e2el_s"] is not None:
            latencies[pair].append(row["e2el_s"])
    pairs = [_describe_pair(pair, sent[pair], values) for pair, values in latencies.items()]
    settled = _settled(list(latencies.values()))
    checks = [_check_reached(pairs), _check_settled(settled, pairs)]
    return {"pairs": pairs, "settled": settled, "checks": [check.as_json() for check in checks]}


Pair = tuple[str | None, str | None, str | None]  # prefill, decode, instance


def _pair(entry: Mapping[str, Any]) -> Pair:
    return entry.get("prefill"), entry.get("decode"), entry.get("instance")


def _expected_pairs(stages: Mapping[str, Any]) -> list[Pair]:
    names = {role: [each["name"] for each in stages["instances"] if each["role"] == role] for role in _ROLES}
    alone = [(None, None, name) for name in [*names["single"], *names["replica"]]]
    return [*((prefill, decode, None) for prefill, decode in product(names["prefill"], names["decode"])), *alone]


_ROLES = ("single", "replica", "prefill", "decode")


def _describe_pair(pair: Pair, requests: int, latencies: Sequence[float]) -> dict[str, Any]:
    return {
        "prefill": pair[0],
        "decode": pair[1],
        "instance": pair[2],
        "requests": requests,
        "first_e2el_s": latencies[0] if latencies else None,
        "last_e2el_s": latencies[-1] if latencies else None,
        "reached": bool(latencies),
    }


def _settled(latencies: Sequence[Sequence[float]]) -> bool | None:
    """Whether the last two answers of every pair took about as long; None where some pair has no two answers."""
    if not latencies or any(len(values) < 2 for values in latencies):
        return None
    return all(abs(values[-1] - values[-2]) <= SETTLED_WITHIN * max(values[-2:]) for values in latencies)


def _check_reached(pairs: Sequence[Mapping[str, Any]]) -> Check:
    name = "every instance and pair warmed"
    cold = [_name(pair) for pair in pairs if not pair["reached"]]
    if not pairs:
        return Check(name, "unknown", "the warmup was not recorded")
    if cold:
        return Check(
            name,
            "failed",
            f"no answer from {', '.join(cold)}",
            "look into these instances' logs; raise the warmup rounds",
        )
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
