"""The schedule of a load, how it stops, and the files it leaves."""

import gc
import os
import signal
import statistics
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import golden_server
import numpy as np
import pytest

from pdkv.analysing.responses import read_requests
from pdkv.artifacts import read_parquet
from pdkv.errors import UserError
from pdkv.measuring.client import Target
from pdkv.measuring.evidence import EVENTS_SCHEMA, SENDS_SCHEMA, Answer, Recorder
from pdkv.measuring.load import LoadPoint, PointRecord, run_point
from pdkv.measuring.prompts import Prompts
from pdkv.measuring.url_load import measure_url

PROMPTS = Prompts(1, "w", 16, 100, 30_000)


@pytest.fixture(scope="module")
def golden() -> Iterator[golden_server.RunningServer]:
    with golden_server.running("--ttft-s", "0.05", "--itl-s", "0.01") as server:
        yield server


def load(
    server: golden_server.RunningServer, point: LoadPoint, scenario: str = "steady", tokens: int = 8, **how: Any
) -> PointRecord:
    return run_point(Target("golden", server.url, f"golden/{scenario}"), point, PROMPTS, tokens, **how)


def ttfts_s(record: PointRecord, folder: Path, part: str) -> list[float]:
    with Recorder(folder) as recorder:
        recorder.append("load", 0, "golden", 16, 8, record.answers)
    points = [{"point": 0, "concurrency": record.point.concurrency, "rate": record.point.rate}]
    rows = read_requests(folder / "sends.parquet", folder / "events.parquet", points).to_pylist()
    assert all(row["status"] == "ok" for row in rows), [row["error"] for row in rows]
    return [row["ttft_s"] for row in rows if row["part"] == part]


# ---- the schedule ----------------------------------------------------------------------------------------------------


def test_closed_loop_keeps_its_level(golden: golden_server.RunningServer) -> None:
    record = load(golden, LoadPoint.closed(0, 4, 10))
    parts = [answer.part for answer in record.answers]
    assert parts == ["ramp"] * 4 + ["measured"] * 10 + ["drain"] * 3
    assert [answer.prompt for answer in record.answers] == [*range(4), *range(10), *range(3)]
    assert {answer.outcome for answer in record.answers} == {"answered"}
    assert Counter(answer.user for answer in record.answers if answer.part == "ramp") == dict.fromkeys(range(4), 1)
    assert record.max_in_flight == 4
    assert record.ramp_interval_s == 0.01
    assert record.start_s < min(answer.t_send_s or 0 for answer in record.answers)
    assert record.end_s >= max(answer.t_end_s or 0 for answer in record.answers)
    sends = [answer.t_send_s or 0.0 for answer in record.answers]
    assert sends == sorted(sends)


def test_level_is_full_while_measured_requests_are_sent(golden: golden_server.RunningServer) -> None:
    answers = load(golden, LoadPoint.closed(0, 4, 10)).answers
    for answer in answers:
        if answer.part == "measured":
            sent = answer.t_send_s or 0.0
            others = sum((other.t_send_s or 0) <= sent < (other.t_end_s or 0) for other in answers)
            assert others == 4


def test_users_start_apart(golden: golden_server.RunningServer) -> None:
    record = load(golden, LoadPoint.closed(0, 5, 1), ramp_interval_s=0.04, tokens=30)
    starts = [answer.t_send_s or 0.0 for answer in record.answers if answer.part == "ramp"]
    assert all(gap > 0.03 for gap in np.diff(starts))


def test_ramp_goes_on_until_every_user_has_started(golden: golden_server.RunningServer) -> None:
    """Answers take 0.05 s and the users need 0.4 s to start: what is sent meanwhile is not measured."""
    record = load(golden, LoadPoint.closed(0, 3, 6), ramp_interval_s=0.2, tokens=1)
    parts = Counter(answer.part for answer in record.answers)
    assert parts["measured"] == 6
    assert parts["ramp"] > 3
    assert parts["drain"] == 2
    ramp_prompts = [answer.prompt for answer in record.answers if answer.part == "ramp"]
    assert ramp_prompts == list(range(len(ramp_prompts)))
    last_start = next(answer.t_send_s for answer in record.answers if answer.user == 2)
    assert min(answer.t_send_s or 0 for answer in record.answers if answer.part == "measured") >= (last_start or 0)


def test_warmup_is_of_one_part_and_continues_the_prompts(golden: golden_server.RunningServer) -> None:
    record = load(golden, LoadPoint(-1, "closed", 3, concurrency=1), phase="warmup", first_prompt=5)
    assert [(answer.part, answer.prompt) for answer in record.answers] == [("warmup", 5), ("warmup", 6), ("warmup", 7)]
    assert record.max_in_flight == 1


def test_first_wave_is_not_in_the_measured_part(tmp_path: Path) -> None:
    """Serial prefill: the first wave queues behind itself, later requests do not; more requests change nothing."""
    with golden_server.running("--ttft-s", "0.02", "--itl-s", "0.05", "--scenario", "serial-prefill") as server:
        few, many = (
            load(server, LoadPoint.closed(0, 16, requests), "serial-prefill", tokens=14, ramp_interval_s=0.001)
            for requests in (32, 96)
        )
    ramp = ttfts_s(few, tmp_path, "ramp")
    assert len(ramp) == 16
    assert max(ramp) > 0.25  # sixteen prefills, one after the other
    p99s = [float(np.percentile(ttfts_s(record, tmp_path, "measured"), 99)) for record in (few, many)]
    assert max(p99s) < 0.6 * max(ramp)
    assert abs(p99s[0] - p99s[1]) < 0.15  # the first wave would add 0.3 to the p99 of the few


@pytest.mark.parametrize("arrival", ["poisson", "constant"])
def test_open_loop_sends_on_time_whatever_the_server_does(golden: golden_server.RunningServer, arrival: Any) -> None:
    record = load(golden, LoadPoint.open(0, 40.0, 20, arrival), "hang", timeout_s=1.5)
    parts = [answer.part for answer in record.answers]
    assert parts == ["ramp"] * 2 + ["measured"] * 20 + ["drain"] * 2
    assert record.max_in_flight >= 15  # none was ever answered, and yet all were sent
    lags = [(answer.t_send_s or 0) - answer.scheduled_s for answer in record.answers]
    assert min(lags) >= 0
    assert statistics.median(lags) < 0.05
    assert record.ramp_interval_s is None
    gaps = np.diff([answer.scheduled_s for answer in record.answers])
    assert np.allclose(gaps, 0.025) == (arrival == "constant")


def test_token_times_are_close_to_the_truth(golden: golden_server.RunningServer, tmp_path: Path) -> None:
    """Bounds for a busy machine; benchmarks/client_accuracy.py measures how close it is on a quiet one."""
    record = load(golden, LoadPoint.closed(0, 2, 20))
    measured = ttfts_s(record, tmp_path, "measured")
    ids = [
        answer.piece_bytes.split(b'"id":"', 1)[1].split(b'"', 1)[0].decode()
        for answer in record.answers
        if answer.part == "measured"
    ]
    truths = golden.truth()
    true_ttfts = [truths[name]["token_s"][0] - truths[name]["received_s"] for name in ids]
    errors = [ours - true for ours, true in zip(measured, true_ttfts, strict=True)]
    assert min(errors) > 0  # bytes cannot arrive before they are written
    assert statistics.median(errors) < 0.01


# ---- how it stops ----------------------------------------------------------------------------------------------------


class Told(Exception):
    pass


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signal_stops_the_load_and_reaches_its_own_handler(
    golden: golden_server.RunningServer, number: signal.Signals
) -> None:
    def tell(_number: int, _frame: FrameType | None) -> None:
        raise Told(_number)

    before = signal.signal(number, tell)
    try:
        timer = threading.Timer(0.4, os.kill, (os.getpid(), number))
        timer.start()
        start = time.monotonic()
        with pytest.raises(Told):
            load(golden, LoadPoint.closed(0, 4, 100), "pings-forever", timeout_s=60)
        assert time.monotonic() - start < 10
        assert signal.getsignal(number) is tell
    finally:
        timer.join()
        signal.signal(number, before)
    assert gc.isenabled()


def test_ctrl_c_without_a_handler_of_ours(golden: golden_server.RunningServer) -> None:
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        load(golden, LoadPoint.closed(0, 2, 100), "hang", timeout_s=60)
    timer.join()


def test_progress_counts_and_can_stop(golden: golden_server.RunningServer) -> None:
    seen: list[tuple[int, int]] = []
    load(golden, LoadPoint.closed(0, 2, 20), progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (23, 23)
    assert len(seen) >= 2

    def stop(_done: int, _total: int) -> None:
        raise Told

    with pytest.raises(Told):
        load(golden, LoadPoint.closed(0, 2, 100), "hang", timeout_s=60, progress=stop)


# ---- the files -------------------------------------------------------------------------------------------------------


def test_files_follow_the_contract(golden: golden_server.RunningServer, tmp_path: Path) -> None:
    warm = load(golden, LoadPoint(-1, "closed", 2, concurrency=1), phase="warmup")
    record = load(golden, LoadPoint.closed(0, 2, 3))
    with Recorder(tmp_path) as recorder:
        recorder.append("warmup", -1, "prefill-0", 16, 8, warm.answers)
        recorder.append("warmup", -1, "decode-0", 16, 8, warm.answers)
        recorder.append("load", 0, "router", 16, 8, record.answers)
    sends, events = read_parquet(tmp_path / "sends.parquet"), read_parquet(tmp_path / "events.parquet")
    assert sends.schema == SENDS_SCHEMA
    assert events.schema == EVENTS_SCHEMA
    keys = [(row["phase"], row["point"], row["request"], row["target"]) for row in sends.to_pylist()]
    assert keys == [
        *(("warmup", -1, number, "prefill-0") for number in (0, 1)),
        *(("warmup", -1, number, "decode-0") for number in (2, 3)),
        *(("load", 0, number, "router") for number in range(6)),
    ]
    kept: dict[tuple[str, int, int], bytes] = {}
    for row in events.to_pylist():
        key = row["phase"], row["point"], row["request"]
        kept[key] = kept.get(key, b"") + row["data"]
    assert [kept["load", 0, number] for number in range(6)] == [answer.piece_bytes for answer in record.answers]
    assert events["t_s"].to_pylist()[-1] == record.answers[-1].piece_times_s[-1]


def test_files_after_an_error_and_after_an_interruption(tmp_path: Path) -> None:
    for error, left in ((ValueError, True), (KeyboardInterrupt, False)):
        folder = tmp_path / error.__name__
        with pytest.raises(error), Recorder(folder) as recorder:
            recorder.append("load", 0, "single", 16, 8, [Answer("measured", 0, 0, 1.0)])
            raise error
        names = sorted(path.name for path in folder.iterdir())
        assert names == (["events.parquet", "sends.parquet"] if left else [])


def test_measure_url(golden: golden_server.RunningServer, tmp_path: Path) -> None:
    record = measure_url(
        golden.url, "golden", input_tokens=16, output_tokens=4, requests=6, concurrency=2, out_dir=tmp_path
    )
    assert record.point == LoadPoint.closed(0, 2, 6)
    sends = read_parquet(tmp_path / "sends.parquet").to_pylist()
    assert Counter((row["phase"], row["part"]) for row in sends) == {
        ("warmup", "warmup"): 3,
        ("load", "ramp"): 2,
        ("load", "measured"): 6,
        ("load", "drain"): 1,
    }


def test_measure_url_asks_new_prompts_each_time_unless_seeded(tmp_path: Path) -> None:
    with golden_server.running("--ttft-s", "0.001", "--itl-s", "0.001") as server:
        how: dict[str, Any] = {
            "input_tokens": 16,
            "output_tokens": 2,
            "requests": 1,
            "concurrency": 1,
            "out_dir": tmp_path,
        }
        seeds = [measure_url(server.url, "golden", seed=seed, **how) for seed in (None, None, 3, 3)]
        prompts = server.prompts()
    assert len(seeds) == 4
    per_run = [tuple(prompts[run * 5 : run * 5 + 5]) for run in range(4)]  # three warm-up requests, ramp, measured
    assert per_run[0] != per_run[1]
    assert per_run[2] == per_run[3]


@pytest.mark.parametrize(
    ("scenario", "said"), [("status-500", "no memory left"), ("truncated", "closed in mid-response")]
)
def test_measure_url_stops_at_a_server_that_does_not_serve(
    golden: golden_server.RunningServer, tmp_path: Path, scenario: str, said: str
) -> None:
    with pytest.raises(UserError, match=said):
        measure_url(
            golden.url,
            f"golden/{scenario}",
            input_tokens=16,
            output_tokens=4,
            requests=6,
            concurrency=2,
            out_dir=tmp_path,
        )


@pytest.mark.fault(
    "load", "a server that was named to `pdkv load` hangs", "it stops after the time-out of a few requests and says so"
)
@pytest.mark.parametrize("level", [{"concurrency": 2}, {"rate": 20.0}])
def test_measure_url_stops_at_a_server_that_hangs(
    golden: golden_server.RunningServer, tmp_path: Path, level: dict[str, Any]
) -> None:
    lengths = {"input_tokens": 16, "output_tokens": 4, "requests": 400}
    with pytest.raises(UserError, match=r"endpoint hangs: \d+ requests in a row were not answered within 0.5 s"):
        measure_url(golden.url, "golden/hang", **lengths, out_dir=tmp_path, warm_requests=0, timeout_s=0.5, **level)


@pytest.mark.parametrize("level", [{}, {"concurrency": 1, "rate": 1.0}])
def test_measure_url_needs_one_level(tmp_path: Path, level: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="either"):
        measure_url("http://127.0.0.1:1", "m", input_tokens=1, output_tokens=1, requests=1, out_dir=tmp_path, **level)
