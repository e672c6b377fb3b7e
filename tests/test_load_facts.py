import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pdkv.analysing.load_facts import read_load
from pdkv.artifacts import read_json, read_parquet, write_json, write_parquet

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def token(number: int, finish: str | None = None) -> bytes:
    return _chunk({"choices": [{"index": 0, "text": "t", "token_ids": [number], "finish_reason": finish}]})


def usage(n: int) -> bytes:
    return _chunk({"choices": [], "usage": {"prompt_tokens": 128, "completion_tokens": n}})


def _chunk(event: dict[str, Any]) -> bytes:
    data = f"data: {json.dumps(event)}\n\n".encode()
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


DONE = b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"


def write_evidence(folder: Path, requests: int, status: str = "ok", roles: tuple[str, ...] = ("single",)) -> None:
    """A user who gets three tokens, 0.2, 0.3 and 0.4 s after each send, one request a second; two before to warm up."""
    sends, events = [], []
    sent_keys = [("warmup", -1, number) for number in range(2)] + [("load", 0, number) for number in range(requests)]
    for phase, point, request in sent_keys if requests else []:
        t = float(request if phase == "load" else request - 2)
        key = {"phase": phase, "point": point, "request": request}
        part = "warmup" if phase == "warmup" else "measured" if request else "ramp"
        sent = {"scheduled_s": t, "t_send_s": t, "t_end_s": t + 0.5, "input_tokens": 128, "output_tokens": 3}
        how = {"target": "single", "connection": "reused", "outcome": "answered", "error": None}
        sends.append({**key, **sent, **how, "part": part, "prompt": request, "user": 0 if phase == "load" else None})
        pieces = [(0.1, HEAD), (0.2, token(1)), (0.3, token(2)), (0.4, token(3, "length")), (0.5, usage(3) + DONE)]
        events += [{**key, "t_s": t + after, "data": data} for after, data in pieces]
    keys = [("phase", pa.string()), ("point", pa.int16()), ("request", pa.int32())]
    numbers = [(name, pa.int32()) for name in ("prompt", "user", "input_tokens", "output_tokens")]
    times = [(name, pa.float64()) for name in ("scheduled_s", "t_send_s", "t_end_s")]
    texts = [(name, pa.string()) for name in ("target", "part", "connection", "outcome", "error")]
    write_parquet(
        folder / "sends.parquet", pa.Table.from_pylist(sends, schema=pa.schema(keys + numbers + times + texts))
    )
    schema = pa.schema([*keys, ("t_s", pa.float64()), ("data", pa.binary())])
    write_parquet(folder / "events.parquet", pa.Table.from_pylist(events, schema=schema))
    point = {"point": 0, "arrival": "closed", "concurrency": 1, "rate": None}
    write_json(folder / "plan.json", "plan/1", {"points": [point]})
    stages = {
        "outcome": {"status": status, "stage": None if status == "ok" else "launch"},
        "instances": [{"name": role, "role": role} for role in roles],
        "pairs": [{"instance": "single"}] * 2,
        "points": [{**point, "start_s": 0.0, "end_s": float(requests)}] if requests else [],
        "client": {"cpu_s": 0.1},
    }
    write_json(folder / "stages.json", "stages/1", stages)
    (folder / "scrapes.jsonl").write_text("")


def test_bytes_to_metrics(tmp_path: Path) -> None:
    write_evidence(tmp_path, 11)
    read_load(tmp_path)
    content = read_json(tmp_path / "metrics.json", "metrics/1")
    point = content["points"][0]
    assert point["metrics"]["ttft"]["mean"] == pytest.approx(0.2)
    assert point["metrics"]["itl"]["mean"] == point["metrics"]["tpot"]["mean"] == pytest.approx(0.1)
    assert point["metrics"]["e2el"]["mean"] == pytest.approx(0.4)
    assert point["metrics"]["ttft"]["n"] == 10
    assert point["metrics"]["output_throughput"]["value"] == pytest.approx(3, rel=0.06)
    assert point["window"] == {"start_s": 1.0, "end_s": 10.5}
    assert point["requests"]["measured_ok"] == 10
    assert read_parquet(tmp_path / "requests.parquet").num_rows == 13  # two warmed up
    assert {check["state"] for check in content["checks"] if "lengths" in check["name"]} == {"passed"}
    assert content["warmup"]["settled"] is True
    assert [(pair["instance"], pair["requests"]) for pair in content["warmup"]["pairs"]] == [("single", 2)]


@pytest.mark.fault(
    "pd", "no metrics page of prefill and decode ever answers", "suspect: nothing shows that the KV cache travelled"
)
def test_disaggregation_without_a_single_scrape_is_never_valid(tmp_path: Path) -> None:
    """Nothing shows that KV went from prefill to decode: decode may have prefilled by itself."""
    write_evidence(tmp_path, 11, roles=("prefill", "decode"))
    read_load(tmp_path)
    content = read_json(tmp_path / "metrics.json", "metrics/1")
    states = {check["name"]: check["state"] for check in content["checks"]}
    assert states["KV cache transferred for every request"] == "suspect"
    assert states["no KV transfer failed or expired"] == "unknown"
    assert states["no prefill on decode instances"] == "unknown"
    assert content["state"] == content["points"][0]["state"] == "suspect"
    assert content["points"][0]["server"]["kv_transfer"]["bytes"] is None


@pytest.mark.fault("launch", "the load of a trial never began", "failed, with empty tables: nothing is made up")
def test_a_trial_whose_load_never_began(tmp_path: Path) -> None:
    write_evidence(tmp_path, 0, status="failed")
    read_load(tmp_path)
    content = read_json(tmp_path / "metrics.json", "metrics/1")
    assert (content["points"], content["state"]) == ([], "failed")
    assert read_parquet(tmp_path / "requests.parquet").num_rows == 0
