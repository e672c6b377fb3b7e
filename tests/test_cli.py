"""The command line: verbs, messages and exit statuses, run as a user runs them."""

import contextlib
import http.server
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import jsonschema
import pyarrow.parquet as pq
import pytest
import yaml

from pdkv import cli, verbs, wings
from pdkv.cli import _parser
from pdkv.study.config_schema import StudySection

ROOT = Path(__file__).parent.parent
SCHEMA = ROOT / "workflow/schemas/config.schema.json"
VERBS = {
    *("check", "plan", "measure", "read-trial", "summarize-cell"),
    *("aggregate", "compare", "rank-objectives", "draw-figures", "write-markdown", "write-pdf"),
    *("install-engine", "prepare-model", "schema", "load", "doctor", "merge"),
}


def pdkv(*arguments: object, cwd: Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pdkv", *map(str, arguments)],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        encoding="utf-8",
        errors="surrogateescape",
        timeout=60,
    )


@pytest.fixture(scope="module")
def golden_url() -> Iterator[str]:
    """A server that answers after 20 ms with a token every 5 ms."""
    command = [
        sys.executable,
        str(ROOT / "tests/golden_server.py"),
        "--port",
        "0",
        "--ttft-s",
        "0.02",
        "--itl-s",
        "0.005",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout
        port = re.search(r"\d+", server.stdout.readline())
        assert port
        yield f"http://127.0.0.1:{port[0]}"
        server.terminate()


@contextlib.contextmanager
def failing_server(after: int, usage: bytes = b'"prompt_tokens":8') -> Iterator[str]:
    """URL of a server that answers ``after`` requests with one token each and then all with HTTP 500."""
    answered = itertools.count()

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            status, body = (
                (200, ONE_TOKEN.replace(b'"prompt_tokens":8', usage))
                if next(answered) < after
                else (500, b'{"error":{"message":"told to fail"}}')
            )
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


ONE_TOKEN = (
    b'data: {"choices":[{"index":0,"text":"t","token_ids":[1],"finish_reason":"length"}]}\n\n'
    b'data: {"choices":[],"usage":{"prompt_tokens":8,"completion_tokens":1}}\n\ndata: [DONE]\n\n'
)


class TestVerbs:
    def test_there_is_one_for_each_rule_and_need(self) -> None:
        action = next(action for action in _parser()._actions if action.dest == "==SUPPRESS==" or action.choices)
        assert set(action.choices or ()) == VERBS

    def test_each_explains_itself_quickly(self) -> None:
        began = time.monotonic()
        done = pdkv("load", "--help")
        assert done.returncode == 0
        assert "--concurrency" in done.stdout and "--request-rate" in done.stdout
        assert time.monotonic() - began < 5, "importing the command line must stay light"

    def test_parsing_imports_nothing_heavy(self) -> None:
        """Every job pays for what the command line imports, and so does every `nothing to be done`."""
        code = "import sys, pdkv.cli, pdkv.study.config, pdkv.wings; print(*sys.modules)"
        modules = set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.split())
        assert "pdkv.study.config" in modules
        assert not modules & {"pandas", "pyarrow", "numpy", "scipy", "matplotlib", "pynvml", "uvloop", "snakemake"}

    def test_a_load_imports_neither_pandas_nor_what_else_of_arrow_is_slow(
        self, golden_url: str, tmp_path: Path
    ) -> None:
        """Each would cost a fifth of a second or more, before the load or after it."""
        arguments = ["--url", golden_url, *TestLoad.LENGTHS, "--concurrency", "2", "--requests", "4"]
        code = (
            "import sys\nfrom pdkv.cli import main\n"
            f"try: main({['load', *arguments, '--out', str(tmp_path)]!r})\n"
            "except SystemExit as end: print(end.code, *sys.modules)"
        )
        said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.splitlines()[-1]
        status, *modules = said.split()
        assert status == "0"
        assert "pyarrow" in modules
        assert not set(modules) & {"pandas", "pyarrow.dataset", "pyarrow.compute", "scipy", "matplotlib"}

    def test_modules_behind_the_verbs_exist(self) -> None:
        missing = [name for name in wings.imports_of("cli") if wings.place_of(name) is None]
        assert not missing


class TestWrongUse:
    def test_user_error_is_one_message_and_status_2(self, tmp_path: Path) -> None:
        config = tmp_path / "study.yaml"
        config.write_text("repeat: 3\nworkloads: {}\nmodes: [default]\ndtypes: [fp16]\n")
        done = pdkv("check", "--config", config)
        assert done.returncode == 2
        assert done.stdout == ""
        assert f"{config}:1: repeat: unknown key" in done.stderr
        assert "did you mean repeats?" in done.stderr
        assert "Traceback" not in done.stderr

    def test_check_warns_of_cells_that_get_too_few_launches(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        config = tmp_path / "study.yaml"
        workload = "{input_tokens: 128, output_tokens: 16, concurrency: [2], requests: 8, max_model_len: 512}"
        config.write_text(
            f"model: bundled\nworkloads: {{w: {workload}}}\nmodes: [default, 2x]\ndtypes: [fp16]\nrepeats: 3\n"
            'launches: {"*/2x/*": 2}\n'
        )
        monkeypatch.setattr(verbs, "tell_survey", lambda *arguments: None)
        with pytest.raises(SystemExit) as end:
            cli.main(["check", "--config", str(config)])
        assert not end.value.code
        assert f"warning: {config}: launches: w/2x/fp16 (2): fewer than 3 launches" in capsys.readouterr().out

    def test_missing_config(self, tmp_path: Path) -> None:
        done = pdkv("check", cwd=tmp_path)
        assert done.returncode == 2
        assert "config/config.yaml: there is no such file" in done.stderr

    def test_missing_evidence(self, tmp_path: Path) -> None:
        done = pdkv("read-trial", tmp_path)
        assert done.returncode == 2
        assert "plan.json is not there" in done.stderr
        assert "Traceback" not in done.stderr

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            (["--concurrency", "0", "--requests", "1"], "0 is not above 0"),
            (["--concurrency", "1.5", "--requests", "1"], "invalid whole number value: '1.5'"),
            (["--request-rate", "inf", "--requests", "1"], "inf is not above 0"),
            (["--requests", "1"], "one of the arguments --concurrency --request-rate is required"),
            (["--concurrency", "1", "--request-rate", "1", "--requests", "1"], "not allowed with"),
        ],
    )
    def test_senseless_loads(self, arguments: list[str], said: str) -> None:
        fixed = [
            "--url",
            "http://127.0.0.1:9",
            "--model",
            "m",
            "--input-tokens",
            "8",
            "--output-tokens",
            "2",
            "--out",
            "x",
        ]
        done = pdkv("load", *fixed, *arguments)
        assert done.returncode == 2
        assert said in done.stderr

    LOAD = ("--model", "m", "--input-tokens", "8", "--output-tokens", "2", "--concurrency", "1", "--requests", "4")

    @pytest.mark.parametrize(
        ("url", "said"),
        [
            ("http://127.0.0.1:9", "does not answer: no connection"),
            ("http://no-such-host.invalid", "does not answer: no connection"),
            ("https://127.0.0.1:9", "https://127.0.0.1:9 is encrypted: the load client speaks plain HTTP only"),
            ("http://127.0.0.1:99999", "is not a URL: Port out of range"),
            ("localhost:8000", "localhost:8000 is not an http:// URL"),
        ],
    )
    def test_a_url_that_cannot_be_loaded(self, tmp_path: Path, url: str, said: str) -> None:
        (tmp_path / "requests.parquet").write_bytes(b"of an earlier load")
        done = pdkv("load", "--url", url, *self.LOAD, "--out", tmp_path)
        assert done.returncode == 2
        assert done.stdout == ""
        assert said in done.stderr
        assert "Traceback" not in done.stderr
        left = {path.name for path in tmp_path.iterdir()}
        assert left in ({"requests.parquet"}, {"sends.parquet", "events.parquet"})  # never of two loads

    def test_a_server_that_fails_from_the_start_is_told_once(self, tmp_path: Path) -> None:
        with failing_server(after=0) as url:
            done = pdkv("load", "--url", url, *self.LOAD, "--out", tmp_path)
        assert done.returncode == 2
        assert "refuses: HTTP/1.1 500 Internal Server Error" in done.stderr
        assert "told to fail" in done.stderr
        assert "server's own log" in done.stderr
        assert "Traceback" not in done.stderr

    def test_a_server_that_fails_under_load_gives_dashes_and_its_error(self, tmp_path: Path) -> None:
        with failing_server(after=3) as url:  # the warm-up is answered
            done = pdkv("load", "--url", url, *self.LOAD, "--out", tmp_path)
        assert done.returncode == 1
        assert done.stderr.splitlines()[-1] == "pdkv: no measured request succeeded"
        assert "Traceback" not in done.stderr
        lines = done.stdout.splitlines()
        for name in ("TTFT", "TPOT", "ITL", "E2EL"):
            assert next(line for line in lines if line.startswith(name)).split() == [name, *"––––––", "0"]
        assert "output throughput: – tok/s" in lines
        assert "failed 5 times: HTTP 500: told to fail" in lines
        rows = pq.read_table(tmp_path / "requests.parquet").to_pylist()
        assert {row["status"] for row in rows if row["phase"] == "load"} == {"error"}

    @pytest.mark.parametrize(
        ("url", "model", "said"),
        [
            ("http://127.0.0.1:9", os.fsdecode(b"a\xffb"), "'a\\udcffb' is not UTF-8"),
            (os.fsdecode(b"http://127.0.0.1:9/\xff"), "m", "holds other characters than ASCII"),
        ],
    )
    def test_names_that_cannot_be_sent(self, tmp_path: Path, url: str, model: str, said: str) -> None:
        done = pdkv("load", "--url", url, *self.LOAD, "--model", model, "--out", tmp_path / "out")
        assert done.returncode == 2
        assert said in done.stderr
        assert "Traceback" not in done.stderr
        assert not (tmp_path / "out").exists()

    def test_the_password_of_a_url_is_not_told(self, tmp_path: Path) -> None:
        done = pdkv("load", "--url", "http://bob:pw@127.0.0.1:9", *self.LOAD, "--out", tmp_path)
        assert done.returncode == 2
        assert "http://bob:[hidden]@127.0.0.1:9 does not answer" in done.stderr

    @pytest.mark.parametrize("out", ["/proc/nowhere", "{file}"])
    def test_a_folder_that_cannot_be_written(self, tmp_path: Path, out: str) -> None:
        (tmp_path / "file").write_text("")
        done = pdkv("load", "--url", "http://127.0.0.1:9", *self.LOAD, "--out", out.format(file=tmp_path / "file"))
        assert done.returncode == 2
        assert "cannot write to" in done.stderr
        assert "--out" in done.stderr
        assert "Traceback" not in done.stderr

    def test_ascii_locale_does_not_break_messages(self, tmp_path: Path) -> None:
        config = tmp_path / "étude.yaml"
        done = pdkv("check", "--config", config, LC_ALL="POSIX", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
        assert done.returncode == 2
        assert "étude.yaml" in done.stderr


class TestLoad:
    LENGTHS = ("--model", "golden", "--input-tokens", "16", "--output-tokens", "8")

    def test_closed_loop_writes_evidence_and_prints_the_table(self, golden_url: str, tmp_path: Path) -> None:
        done = pdkv("load", "--url", golden_url, *self.LENGTHS, "--concurrency", 2, "--requests", 6, "--out", tmp_path)
        assert done.returncode == 0, done.stderr
        assert {path.name for path in tmp_path.iterdir()} == {"sends.parquet", "events.parquet", "requests.parquet"}
        rows = pq.read_table(tmp_path / "requests.parquet").to_pylist()
        measured = [row for row in rows if row["phase"] == "load" and row["part"] == "measured"]
        assert len(measured) == 6
        assert all(row["status"] == "ok" and row["output_tokens"] == 8 and row["concurrency"] == 2 for row in measured)
        ttft = next(line for line in done.stdout.splitlines() if line.startswith("TTFT")).split()
        mean_ms, n = float(ttft[1]), int(ttft[-1])
        assert n == 6
        assert mean_ms == pytest.approx(1e3 * sum(row["ttft_s"] for row in measured) / 6, rel=0.01)
        assert "asked: 2 users" in done.stdout
        assert "6 measured, 2 ramp and 1 drain left out, 0 failed" in done.stdout

    @pytest.mark.parametrize(("ramp_ms", "full_after_s"), [(0, (0, 2)), (600, (2.5, 60))])
    def test_users_start_apart_or_all_at_once(self, golden_url, tmp_path, ramp_ms, full_after_s) -> None:
        load = ("--concurrency", 6, "--requests", 6, "--ramp-interval-ms", ramp_ms, "--out", tmp_path)
        done = pdkv("load", "--url", golden_url, *self.LENGTHS, *load)
        assert done.returncode == 0, done.stderr
        rows = pq.read_table(tmp_path / "requests.parquet").to_pylist()
        first = {part: min(row["t_send_s"] for row in rows if row["part"] == part) for part in ("ramp", "measured")}
        shortest_s, longest_s = full_after_s
        assert shortest_s <= first["measured"] - first["ramp"] <= longest_s

    def test_open_loop(self, golden_url: str, tmp_path: Path) -> None:
        rate = ("--request-rate", 40, "--arrival", "constant", "--requests", 10)
        done = pdkv("load", "--url", golden_url, *self.LENGTHS, *rate, "--out", tmp_path)
        assert done.returncode == 0, done.stderr
        assert "asked: 40 requests/s" in done.stdout
        rows = pq.read_table(tmp_path / "requests.parquet").to_pylist()
        assert {row["rate"] for row in rows if row["phase"] == "load"} == {40.0}
        assert {row["concurrency"] for row in rows if row["phase"] == "load"} == {None}

    def test_a_load_as_asked_has_no_check_that_failed(self, golden_url: str, tmp_path: Path) -> None:
        done = pdkv("load", "--url", golden_url, *self.LENGTHS, "--concurrency", 1, "--requests", 9, "--out", tmp_path)
        assert done.returncode == 0, done.stderr
        assert "check failed" not in done.stdout
        assert "as asked" not in done.stdout

    def test_answers_of_other_lengths_than_asked_are_told(self, golden_url: str, tmp_path: Path) -> None:
        lengths = ("--model", "golden/wrong-usage", "--input-tokens", 16, "--output-tokens", 8)
        done = pdkv("load", "--url", golden_url, *lengths, "--concurrency", 1, "--requests", 4, "--out", tmp_path)
        assert "check " in done.stdout and "output lengths" in done.stdout

    def test_cached_prompts_and_short_answers_are_told(self, tmp_path: Path) -> None:
        usage = b'"prompt_tokens":8,"prompt_tokens_details":{"cached_tokens":4}'
        with failing_server(after=99, usage=usage) as url:
            done = pdkv("load", "--url", url, *TestWrongUse.LOAD, "--out", tmp_path)
        assert done.returncode == 0, done.stderr
        assert "check failed: prompts not answered from a cache: 50.0% of the prompt tokens" in done.stdout
        assert "4 of 4 with other output lengths than asked (e.g. 1 instead of 2)" in done.stdout

    def test_an_overload_is_told(self, golden_url: str, tmp_path: Path) -> None:
        """Prefills of 20 ms one after the other: at most 50 of the 200 requests per second."""
        lengths = ("--model", "golden/serial-prefill", "--input-tokens", 16, "--output-tokens", 8)
        rate = ("--request-rate", 200, "--arrival", "constant", "--requests", 40)
        done = pdkv("load", "--url", golden_url, *lengths, *rate, "--out", tmp_path)
        assert done.returncode == 0, done.stderr
        assert "check suspect: server kept up with the rate: requests were finished at 2" in done.stdout

    @pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
    def test_stopped_by_a_signal_says_so_without_a_traceback(
        self, golden_url: str, tmp_path: Path, number: int, status: int
    ) -> None:
        arguments = [
            "--url",
            golden_url,
            *self.LENGTHS,
            "--concurrency",
            "2",
            "--requests",
            "100000",
            "--out",
            tmp_path,
        ]
        command = [sys.executable, "-m", "pdkv", "load", *map(str, arguments)]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as load:
            assert load.stderr
            load.stderr.readline()  # its first line of progress: it is about to send
            time.sleep(0.5)
            load.send_signal(number)
            try:
                _, said = load.communicate(timeout=20)
            finally:
                load.kill()  # or the block would wait for it for ever
        assert load.returncode == status
        assert "interrupted" in said
        assert "Traceback" not in said
        assert not (tmp_path / "requests.parquet").exists()


class TestSchema:
    def test_file_is_current(self) -> None:
        current = StudySection.model_json_schema()
        assert json.loads(SCHEMA.read_text(encoding="utf-8")) == current, (
            f"run: pdkv schema > {SCHEMA.relative_to(ROOT)}"
        )

    @pytest.mark.parametrize(
        "config",
        sorted(path for path in (ROOT / "config").glob("*.yaml") if path.name != "claims.yaml"),
        ids=lambda path: path.name,
    )
    def test_shipped_configs_keep_to_it(self, config: Path) -> None:
        study = yaml.safe_load(config.read_text(encoding="utf-8"))
        faults = jsonschema.Draft202012Validator(StudySection.model_json_schema()).iter_errors(study)
        assert [fault.message for fault in faults] == []

    def test_it_refuses(self) -> None:
        study = yaml.safe_load((ROOT / "config/config.yaml").read_text(encoding="utf-8"))
        with pytest.raises(jsonschema.ValidationError, match="repeat"):
            jsonschema.validate({**study, "repeat": 3}, StudySection.model_json_schema())
