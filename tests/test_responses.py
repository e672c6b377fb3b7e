"""Bytes with stamps of our own choosing: every expected time is exact."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from pdkv.analysing.event_stream import split_events
from pdkv.analysing.pieces import Pieces
from pdkv.analysing.responses import REQUESTS_SCHEMA, read_requests, read_response
from pdkv.measuring.evidence import Answer, Recorder

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
DONE = b"data: [DONE]\n\n"
END = b"0\r\n\r\n"
Timed = list[tuple[float, bytes]]


def token(*ids: int, text: str = "t", finish: str | None = None) -> bytes:
    choice = {"index": 0, "text": text, "token_ids": list(ids), "finish_reason": finish}
    return b"data: " + json.dumps({"choices": [choice]}, ensure_ascii=False).encode() + b"\n\n"


def usage(count: int, **details: Any) -> bytes:
    told = {"prompt_tokens": 128, "completion_tokens": count, **details}
    return b"data: " + json.dumps({"choices": [], "usage": told}).encode() + b"\n\n"


def compact(event: bytes) -> bytes:
    """As servers write it."""
    return event.replace(b'": ', b'":').replace(b", ", b",")


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def stream(*timed: tuple[float, bytes], end_s: float = 9.0) -> Timed:
    """Events in chunks of their own, with a head before and a good end after them."""
    return [(0.0, HEAD), *((at_s, chunk(data)) for at_s, data in timed), (end_s, chunk(DONE) + END)]


def pieces(timed: Timed) -> Pieces:
    return Pieces(np.array([at_s for at_s, _ in timed]), [data for _, data in timed])


THREE_TOKENS = ((0.5, token(1)), (0.6, token(2)), (0.8, token(3, finish="length")), (0.8, usage(3)))


def test_plain_stream() -> None:
    read = read_response(pieces(stream(*THREE_TOKENS)))
    assert read.error is None
    assert (read.http_status, read.input_tokens, read.output_tokens, read.finish_reason) == (200, 128, 3, "length")
    assert read.token_t_s.tolist() == [0.5, 0.6, 0.8]
    assert list(read.token_n) == [1, 1, 1]
    assert read.cached_tokens is None


def test_cached_tokens_where_told() -> None:
    timed = stream(*THREE_TOKENS[:3], (0.8, usage(3, prompt_tokens_details={"cached_tokens": 16})))
    assert read_response(pieces(timed)).cached_tokens == 16


@pytest.mark.fault(
    "load",
    "the network cuts the stream at any byte",
    "no token is lost or doubled; each counts when its last byte is there",
)
def test_bytes_cut_anywhere_keep_their_tokens_and_take_the_stamp_of_the_last_byte() -> None:
    events = [token(7 * k, k, text="é\u2028", finish="length" if k == 19 else None) for k in range(20)]
    whole = HEAD + b"".join(chunk(event) for event in [*events, usage(40)]) + chunk(DONE) + END
    lasts = [whole.index(chunk(event)) + len(chunk(event)) - 2 for event in events]  # before the chunk's own CR LF
    draw = random.Random(1)
    for _ in range(200):
        cuts = sorted(draw.sample(range(1, len(whole)), draw.randrange(0, 60)))
        parts = [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
        read = read_response(pieces([(float(number), part) for number, part in enumerate(parts)]))
        assert read.error is None
        assert list(read.token_n) == [2] * 20
        expected = [sum(cut < last for cut in cuts) for last in lasts]
        assert read.token_t_s.tolist() == expected


def test_events_of_one_shape_are_read_like_all_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Most events are told by their bytes, without parsing them: that must change nothing, whatever comes between."""
    draw = random.Random(2)
    texts = ["t", "", "é\u2028", 'say "no"', "\\", 'x\\"', '","token_ids":[9', "}]}", "7"]
    others = [
        token(1, 2),
        token(),
        usage(3),
        b": ping\n\n",
        b'data: {"error": {"message": "no"}}\n\n',
        b'data: {"choices":[{"index":0,"text":"t","token_ids":[1',
        b'data: {"choices": [{"index": 0, "text": "t", "token_ids": [], "finish_reason": null}]}\n\n',
        b'data: {"choices": [{"index": 0, "text": "t", "token_ids": [x1], "finish_reason": null}]}\n\n',
        token(5, finish="stop"),
        DONE,
    ]

    for _ in range(300):
        events = [token(draw.randrange(50_000), text=draw.choice(texts)) for _ in range(draw.randrange(1, 12))]
        for other in draw.sample(others, draw.randrange(0, 4)):
            events.insert(draw.randrange(0, len(events) + 1), other)
        written = [compact(event) if draw.random() < 0.7 else event for event in events]
        timed = stream(*((float(number), event) for number, event in enumerate(written)))
        quick = read_response(pieces(timed))
        with monkeypatch.context() as patch:
            patch.setattr("pdkv.analysing.completion_stream.token_shape", lambda *_: None)
            parsed = read_response(pieces(timed))
        assert quick.token_t_s.tolist() == parsed.token_t_s.tolist()
        assert list(quick.token_n) == list(parsed.token_n)
        assert quick.error == parsed.error
        assert (quick.output_tokens, quick.finish_reason) == (parsed.output_tokens, parsed.finish_reason)


def test_the_usual_event_is_told_by_its_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[bytes] = []

    def loads(payload: bytes) -> Any:
        parsed.append(payload)
        return json.loads(payload)

    monkeypatch.setattr("pdkv.analysing.completion_stream.orjson.loads", loads)
    events = [compact(token(number, text=f" {number}")) for number in range(100)]
    timed = stream(*((float(number), event) for number, event in enumerate(events)), (100.0, usage(100)))
    assert len(read_response(pieces(timed)).token_n) == 100
    assert len(parsed) == 2  # the first event and the usage


def test_one_event_over_several_chunks_and_several_events_in_one() -> None:
    event = token(1)
    timed = [
        (0.0, HEAD),
        (0.1, chunk(event[:20])),
        (0.2, chunk(event[20:])),
        (0.3, chunk(token(2) + token(3, finish="length") + usage(3) + DONE) + END),
    ]
    read = read_response(pieces(timed))
    assert read.error is None
    assert read.token_t_s.tolist() == [0.2, 0.3, 0.3]


@pytest.mark.fault(
    "load", "line separators in a text, a character cut in two", "one event, one token, the text unchanged"
)
def test_characters_that_python_calls_line_ends_and_half_a_character() -> None:
    """The event is one event, stamped at its second segment."""
    event = b'data: {"choices":[{"index":0,"text":"a\xe2\x80\xa8b\xc2\x85c\xc3\xa9","token_ids":[1]}]}\n\n'
    whole = chunk(event)
    cut = whole.index(b"\xc3\xa9") + 1
    timed = [
        (0.0, HEAD),
        (0.1, whole[:cut]),
        (0.4, whole[cut:]),
        *stream((0.5, token(2, finish="length")), (0.5, usage(2)))[1:],
    ]
    read = read_response(pieces(timed))
    assert read.error is None
    assert read.token_t_s.tolist() == [0.4, 0.5]
    assert split_events(event)[0] == [event[6:-2]]


@pytest.mark.fault(
    "load",
    "keep-alive comments, empty events and pings before the first token",
    "none of them is a token, TTFT is that of the first token",
)
def test_comments_empty_data_and_pings_are_not_tokens() -> None:
    early = [
        (0.1, b": keep-alive\n\n"),
        (0.2, b": keep-alive\n\n"),
        (0.3, b"data:\n\n"),
        (0.4, b"event: ping\ndata: {}\n\n"),
    ]
    read = read_response(
        pieces(
            stream(*early, (0.5, token(1)), (0.55, b": ping\n\n"), (0.6, token(2, finish="length")), (0.6, usage(2)))
        )
    )
    assert read.error is None
    assert read.token_t_s.tolist() == [0.5, 0.6]


def test_ping_whose_data_is_not_json() -> None:
    read = read_response(pieces(stream((0.1, b"event: ping\ndata: hello\n\n"), *THREE_TOKENS)))
    assert read.error is None


def test_empty_first_event_is_not_the_first_token() -> None:
    read = read_response(pieces(stream((0.1, token(text="")), *THREE_TOKENS)))
    assert read.error is None
    assert read.token_t_s[0] == 0.5


def test_held_back_text_without_ids_is_not_a_token_where_ids_are_given() -> None:
    late = b'data: {"choices":[{"index":0,"text":"rest","token_ids":[],"finish_reason":"length"}]}\n\n'
    read = read_response(pieces(stream((0.5, token(1)), (0.6, token(2)), (0.7, late), (0.7, usage(2)))))
    assert read.error is None
    assert read.token_t_s.tolist() == [0.5, 0.6]


def test_several_tokens_in_an_event() -> None:
    read = read_response(pieces(stream((0.5, token(1, 2, 3)), (0.6, token(4, finish="length")), (0.6, usage(4)))))
    assert read.error is None
    assert list(read.token_n) == [3, 1]


@pytest.mark.parametrize(("told", "counts"), [(2, [1, 1]), (5, [None, None])])
@pytest.mark.fault(
    "load",
    "the server sends no token ids",
    "how many tokens an event bore is null, unless usage shows that it was one each",
)
def test_server_without_token_ids(told: int, counts: list[int | None]) -> None:
    """Events with text bear tokens; how many is known only if usage says one each."""
    event = b'data: {"choices":[{"index":0,"text":"x","finish_reason":"stop"}]}\n\n'
    read = read_response(pieces(stream((0.5, event), (0.6, event), (0.7, usage(told)))))
    assert read.error is None
    assert read.token_t_s.tolist() == [0.5, 0.6]
    assert list(read.token_n) == counts
    assert read.output_tokens == told


@pytest.mark.parametrize("line_end", [b"\r\n", b"\r"])
def test_other_line_ends(line_end: bytes) -> None:
    timed = stream(*((at_s, data.replace(b"\n", line_end)) for at_s, data in THREE_TOKENS))
    read = read_response(pieces(timed))
    assert read.error is None
    assert read.token_t_s.tolist() == [0.5, 0.6, 0.8]


def test_single_crlf_is_no_blank_line() -> None:
    body = b"event: x\r\ndata: 1\r\ndata: 2\r\n\r\ndata: 3\r\n\r\n"
    data, ends = split_events(body)
    assert data == [b"1\n2", b"3", b""]
    assert ends.tolist() == [body.index(b"data: 3"), len(body), len(body)]


@pytest.mark.parametrize("odd", [b": ping\n\n", b"data: 7\ndata: 8\n\n", b"id: 1\ndata: 7\n\n", b"\n", b"data: 7\n"])
def test_both_ways_to_split_agree(odd: bytes) -> None:
    """Bodies of plain data lines are split at once, others event by event."""
    plain = [token(number) for number in range(5)]
    data, ends = split_events(b"".join(plain))
    odd_data, odd_ends = split_events(b"".join(plain) + odd)
    assert data == odd_data[:5] == [event[6:-2] for event in plain]
    assert ends.tolist() == odd_ends.tolist()[:5]


def test_byte_order_mark_and_data_without_a_blank() -> None:
    assert split_events(b"\xef\xbb\xbfdata:1\n\ndata: 2\n\n")[0] == [b"1", b"2", b""]


def test_content_length_instead_of_chunks() -> None:
    body = b"".join(data for _, data in THREE_TOKENS) + DONE
    read = read_response(pieces([(0.7, b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)]))
    assert read.error is None
    assert read.token_t_s.tolist() == [0.7] * 3


ERROR_EVENT = b'data: {"error":{"message":"EngineCore died","type":"InternalServerError","code":500}}\n\n'
FAULTS = {
    "error in mid-stream: EngineCore died": stream(*THREE_TOKENS[:2], (0.7, ERROR_EVENT)),
    "usage says 4 output tokens, 3 were received": stream(*THREE_TOKENS[:3], (0.8, usage(4))),
    "usage says 2 output tokens, 3 were received": stream(*THREE_TOKENS[:3], (0.8, usage(2))),
    "stream without a finish reason": stream(*THREE_TOKENS[:2], (0.8, usage(2))),
    "stream without [DONE]": stream(*THREE_TOKENS)[:-1],
    "stream without a token": stream((0.8, usage(0))),
    "not a completion event: {cut": stream(*THREE_TOKENS, (0.8, b"data: {cut\n\n")),
    "not a completion event: 7": stream(*THREE_TOKENS, (0.8, b"data: 7\n\n")),
    "HTTP 500: no memory": [(0.1, b'HTTP/1.1 500 Oops\r\nContent-Length: 33\r\n\r\n{"error":{"message":"no memory"}}')],
    "HTTP 404: Not Found": [(0.1, b'HTTP/1.1 404 Oops\r\nContent-Length: 9\r\n\r\nNot Found')],
    "not an HTTP response": [(0.1, b"SSH-2.0-OpenSSH_9.2\r\n")],
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_named(fault: str) -> None:
    assert (read_response(pieces(FAULTS[fault])).error or "").startswith(fault)


@pytest.mark.fault(
    "load", "the server says nowhere how many tokens it sent", "the request fails by name, no number rests on it"
)
def test_neither_usage_nor_ids() -> None:
    event = b'data: {"choices":[{"index":0,"text":"x","finish_reason":"stop"}]}\n\n'
    read = read_response(pieces(stream((0.5, event))))
    assert read.output_tokens is None
    assert "not known" in (read.error or "")


# ---- whole files -----------------------------------------------------------------------------------------------------


def answer(timed: Timed, outcome: Any = "answered", error: str | None = None, part: str = "measured") -> Answer:
    made = Answer(part, 0, 1, 0.0)
    made.t_send_s, made.t_end_s, made.connection = 0.1, 1.0, "new"
    made.outcome, made.error = outcome, error
    made.keep([value for at_s, data in timed for value in (at_s, data)])
    return made


def requests_of(folder: Path, answers: list[Answer], output_tokens: int = 3) -> list[dict[str, Any]]:
    with Recorder(folder) as recorder:
        recorder.append("load", 0, "single", 128, output_tokens, answers)
    points = [{"point": 0, "concurrency": 2, "rate": None}]
    table = read_requests(folder / "sends.parquet", folder / "events.parquet", points)
    assert table.schema == REQUESTS_SCHEMA
    return table.to_pylist()


def test_latencies_by_their_definitions(tmp_path: Path) -> None:
    (row,) = requests_of(tmp_path, [answer(stream(*THREE_TOKENS))])
    assert row["status"] == "ok"
    assert row["ttft_s"] == pytest.approx(0.4)
    assert row["e2el_s"] == pytest.approx(0.7)
    assert row["tpot_s"] == pytest.approx(0.15)
    assert (row["t_first_s"], row["t_last_s"], row["t_end_s"]) == (0.5, 0.8, 1.0)
    assert (row["asked_input_tokens"], row["asked_output_tokens"], row["concurrency"], row["rate"]) == (128, 3, 2, None)
    assert row["token_t_s"] == [0.5, 0.6, 0.8]
    assert row["token_n"] == [1, 1, 1]


@pytest.mark.fault("load", "outputs of one token", "TPOT and ITL are null, TTFT stays")
def test_one_token_has_no_tpot(tmp_path: Path) -> None:
    (row,) = requests_of(tmp_path, [answer(stream((0.5, token(1, finish="length")), (0.5, usage(1))))])
    assert row["status"] == "ok"
    assert row["ttft_s"] == pytest.approx(0.4)
    assert row["tpot_s"] is None


@pytest.mark.fault(
    "load",
    "requests that were refused, timed out, broke off or got HTTP 500",
    "no latency and each its own reason; what had come is kept as evidence",
)
def test_nothing_to_average(tmp_path: Path) -> None:
    failed = [
        answer(FAULTS["HTTP 500: no memory"]),
        answer(stream(*THREE_TOKENS[:2])[:-1], "timeout", "not answered within 1 s"),
        answer([], "refused", "no connection"),
        answer(stream(*THREE_TOKENS)[:-1], "closed", "connection closed in mid-response"),
    ]
    rows = requests_of(tmp_path, failed)
    assert {row["status"] for row in rows} == {"error"}
    assert all(row[name] is None for row in rows for name in ("ttft_s", "tpot_s", "e2el_s"))
    assert [row["error"] for row in rows] == [
        "HTTP 500: no memory",
        "timeout: not answered within 1 s",
        "refused: no connection",
        "closed: connection closed in mid-response",
    ]
    assert [len(row["token_t_s"]) for row in rows] == [0, 2, 0, 3]  # what had come is kept as evidence


def test_answered_without_bytes_is_an_error(tmp_path: Path) -> None:
    (row,) = requests_of(tmp_path, [answer([])])
    assert row["status"] == "error"


def test_requests_across_row_groups(tmp_path: Path) -> None:
    whole = requests_of(tmp_path, [answer(stream(*THREE_TOKENS)) for _ in range(5)])
    table = pq.read_table(tmp_path / "events.parquet")
    pq.write_table(table, tmp_path / "small.parquet", row_group_size=4)
    points = [{"point": 0, "concurrency": 2, "rate": None}]
    assert read_requests(tmp_path / "sends.parquet", tmp_path / "small.parquet", points).to_pylist() == whole
    assert len(whole) == 5


def test_phases_and_points_are_kept_apart(tmp_path: Path) -> None:
    with Recorder(tmp_path) as recorder:
        recorder.append("warmup", -1, "prefill-0", 128, 3, [answer(stream(*THREE_TOKENS), part="warmup")])
        recorder.append("load", 0, "router", 128, 3, [answer(stream(*THREE_TOKENS)), answer([], "refused", "x")])
        recorder.append(
            "load", 1, "router", 128, 3, [answer(stream((0.5, token(1, finish="length")), (0.5, usage(1))))]
        )
    points = [{"point": 0, "concurrency": 2, "rate": None}, {"point": 1, "concurrency": None, "rate": 0.5}]
    rows = read_requests(tmp_path / "sends.parquet", tmp_path / "events.parquet", points).to_pylist()
    assert [(row["phase"], row["point"], row["request"], row["output_tokens"]) for row in rows] == [
        ("warmup", -1, 0, 3),
        ("load", 0, 0, 3),
        ("load", 0, 1, None),
        ("load", 1, 0, 1),
    ]
    assert [(row["concurrency"], row["rate"]) for row in rows] == [(None, None), (2, None), (2, None), (None, 0.5)]


def test_no_requests_at_all(tmp_path: Path) -> None:
    with Recorder(tmp_path):
        pass
    assert read_requests(tmp_path / "sends.parquet", tmp_path / "events.parquet", []).schema == REQUESTS_SCHEMA
