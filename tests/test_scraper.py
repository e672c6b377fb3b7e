"""What servers say is kept as text, by a process of its own while a load runs."""

import json
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from pdkv.artifacts import read_json_lines
from pdkv.measuring.scraper import Scraper, Source, sources_of

AWKWARD = 'x:occupancy NaN\nx:a +Inf\nname{text="\u2028 é"} 1\nvllm:prompt_tok'


class Pages(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = AWKWARD.encode()
        self.send_response(200 if self.path == "/metrics" else 404)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def url() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Pages)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()


def test_every_page_is_fetched_and_what_is_not_there_is_said(url: str, tmp_path: Path) -> None:
    gone = Source("router", "metrics", "http://127.0.0.1:1/metrics")
    with Scraper(tmp_path / "scrapes.jsonl", [*sources_of("single", url + "/"), gone]) as scraper:
        scraper.scrape("ready", kinds=("metrics", "version", "server_info"))
        scraper.scrape("before", 3)
    lines = {(row["when"], row["instance"], row["kind"]): row for row in read_json_lines(tmp_path / "scrapes.jsonl")}
    assert len(lines) == 6
    assert lines["before", "single", "metrics"]["point"] == 3
    assert lines["ready", "single", "metrics"]["text"] == AWKWARD
    assert (lines["ready", "single", "version"]["ok"], lines["ready", "single", "version"]["status"]) == (False, 404)
    refused = lines["ready", "router", "metrics"]
    assert (refused["ok"], refused["status"]) == (False, None)
    assert "refused" in refused["text"]


def test_every_line_is_strict_json(url: str, tmp_path: Path) -> None:
    with Scraper(tmp_path / "scrapes.jsonl", sources_of("single", url)) as scraper:
        scraper.scrape("end")
    for line in (tmp_path / "scrapes.jsonl").read_text(encoding="utf-8").rstrip("\n").split("\n"):
        json.loads(line, parse_constant=lambda name: pytest.fail(f"bare {name}"))


def test_metrics_are_fetched_by_another_process_until_the_pause(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "scrapes.jsonl"
    with Scraper(path, sources_of("single", url)) as scraper:
        scraper.repeat(1)
        deadline = time.monotonic() + 20
        while len(read_json_lines(path)) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        scraper.pause()
        rows = read_json_lines(path)
        time.sleep(1.2)
        assert read_json_lines(path) == rows
    assert {(row["when"], row["point"], row["kind"]) for row in rows} == {("during", 1, "metrics")}
    assert rows[1]["t_s"] - rows[0]["t_s"] > 0.5
