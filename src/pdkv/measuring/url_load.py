"""A load on a server that is already running: the work behind ``pdkv load``."""

import os
import time
from pathlib import Path

from pdkv.errors import UserError
from pdkv.measuring.client import Target
from pdkv.measuring.evidence import Answer, Recorder
from pdkv.measuring.load import LoadPoint, PointRecord, Progress, run_point
from pdkv.measuring.prompts import Arrival, Prompts


def measure_url(
    url: str,
    model: str,
    *,
    input_tokens: int,
    output_tokens: int,
    requests: int,
    out_dir: Path,
    concurrency: int | None = None,
    rate: float | None = None,
    arrival: Arrival = "poisson",
    vocabulary: tuple[int, int] = (100, 30_000),
    seed: int | None = None,
    warm_requests: int = 3,
    ramp_interval_s: float = 0.01,
    timeout_s: float = 600.0,
    progress: Progress | None = None,
) -> PointRecord:
    """Load a running server at one level and write ``sends.parquet`` and ``events.parquet`` into ``out_dir``.

    Without a ``seed`` the prompts are new ones: a server that keeps prefixes must not know them from the last run.
    Raises :class:`UserError` if URL, ``model`` or ``out_dir`` cannot be used (then nothing is written), if a warm-up
    request is not answered with HTTP 200, or if the server hangs.
    """
    if (concurrency is None) == (rate is None):
        raise UserError("a load needs either a concurrency or a rate", remedy="give one of the two")
    if seed is None:
        seed = time.time_ns()
    _require_sendable(url, model)
    target = Target("endpoint", url, model)
    target.address()
    _prepare(out_dir)
    prompts = Prompts(seed, "load", input_tokens, *vocabulary)
    if rate is None:
        point = LoadPoint.closed(0, concurrency or 1, requests)
    else:
        point = LoadPoint.open(0, rate, requests, arrival)
    with Recorder(out_dir) as recorder:
        if warm_requests:
            warmup = LoadPoint(-1, "closed", warm_requests, concurrency=1)
            warm = run_point(target, warmup, prompts, output_tokens, phase="warmup", timeout_s=timeout_s)
            recorder.append("warmup", -1, target.name, input_tokens, output_tokens, warm.answers)
            _require_success(target, warm.answers)
        record = run_point(
            target,
            point,
            prompts,
            output_tokens,
            ramp_interval_s=ramp_interval_s,
            timeout_s=timeout_s,
            progress=progress,
        )
        recorder.append("load", point.point, target.name, input_tokens, output_tokens, record.answers)
    if record.failure:
        raise UserError(record.failure.reason, remedy="look into the server's own log")
    return record


def _require_sendable(url: str, model: str) -> None:
    """Names come from a command line, which may hold any bytes; the wire does not."""
    if not url.isascii():
        raise UserError(f"{url!r} holds other characters than ASCII", remedy="write them as %XX, or the host as xn--")
    try:
        model.encode()
    except UnicodeEncodeError:
        raise UserError(f"{model!r} is not UTF-8", remedy="give the model's name as the server lists it") from None


def _prepare(out_dir: Path) -> None:
    """Make the folder, without what was read from an earlier load: it must not stand beside the bytes of this one."""
    try:
        out_dir.mkdir(parents=True, exist_ok=True)
        (out_dir / "requests.parquet").unlink(missing_ok=True)
        writable = os.access(out_dir, os.W_OK | os.X_OK)
    except OSError as error:
        raise UserError(f"cannot write to {out_dir}: {error.strerror}", remedy=_OTHER_FOLDER) from None
    if not writable:
        raise UserError(f"cannot write to {out_dir}: no permission", remedy=_OTHER_FOLDER)


_OTHER_FOLDER = "give another folder with --out"


def _require_success(target: Target, answers: list[Answer]) -> None:
    for answer in answers:
        if answer.outcome != "answered":
            raise UserError(
                f"{target.url} does not answer: {answer.error}", remedy="see that the server runs and is ready"
            )
        status_line, _, rest = answer.piece_bytes.partition(b"\r\n")
        status = status_line.split(b" ")[1:2]
        if status != [b"200"]:
            said = rest.partition(b"\r\n\r\n")[2][:500].decode("utf-8", "replace")
            its_own_fault = bool(status) and status[0].startswith(b"5")
            raise UserError(
                f"{target.url} refuses: {status_line.decode('latin-1')}: {said}",
                remedy="look into the server's own log"
                if its_own_fault
                else "see that the model's name and the lengths are what the server offers",
            )
