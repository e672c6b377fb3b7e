"""Walks the schedule of one load point: a closed loop of users, or an open loop of sends at given times.

Only requests of the part ``measured`` count in the statistics. Those sent before the level is reached are ``ramp``,
those sent to keep it while the last measured ones run are ``drain``: no first wave and no emptying server in the p99,
and the number of measured requests is the same at every level.
"""

import asyncio
import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from pdkv.errors import StageFailed
from pdkv.measuring.client import Client, Target
from pdkv.measuring.event_loop import first_of, run_until_stopped
from pdkv.measuring.evidence import Answer, Phase
from pdkv.measuring.prompts import Arrival, Part, Prompts, encode_body, send_offsets
from pdkv.measuring.wakefulness import Lateness, Watch

OPEN_LOOP_MARGIN = 0.1  # ramp and drain of an open loop, as a part of the measured requests
HANGS_AFTER = 3  # time-outs in a row
OPEN_LOOP_CONNECTIONS = 16  # opened ahead of an open loop; more are added as they are needed
PROGRESS_INTERVAL_S = 0.5

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class LoadPoint:
    """One load level: ``concurrency`` users in a closed loop, or ``rate`` requests per second in an open one.

    ``requests`` are measured; ``ramp`` come before and ``drain`` after them.
    """

    point: int
    arrival: Arrival
    requests: int
    concurrency: int | None = None
    rate: float | None = None
    ramp: int = 0
    drain: int = 0

    @classmethod
    def closed(cls, point: int, concurrency: int, requests: int) -> "LoadPoint":
        """``concurrency`` users, each with one request in flight: as many ramp requests, one less to drain."""
        return cls(point, "closed", requests, concurrency=concurrency, ramp=concurrency, drain=concurrency - 1)

    @classmethod
    def open(cls, point: int, rate: float, requests: int, arrival: Arrival = "poisson") -> "LoadPoint":
        """``rate`` requests per second whatever the server does; a tenth more before and after."""
        margin = math.ceil(OPEN_LOOP_MARGIN * requests)
        return cls(point, arrival, requests, rate=rate, ramp=margin, drain=margin)


@dataclass(frozen=True)
class PointRecord:
    """What happened at one point. Times are monotonic seconds; ``cpu_s`` is the client's CPU time between them.

    ``client_late``: by how much the client itself was late, None where the load was too short to see it. ``failure``:
    why the load was broken off; the answers are then those until there.
    """

    point: LoadPoint
    start_s: float
    end_s: float
    ramp_interval_s: float | None
    max_in_flight: int
    cpu_s: float
    pieces: int
    answers: list[Answer]
    client_late: Lateness | None = None
    failure: StageFailed | None = None


def run_point(
    target: Target,
    point: LoadPoint,
    prompts: Prompts,
    output_tokens: int,
    *,
    phase: Phase = "load",
    first_prompt: int = 0,
    ramp_interval_s: float = 0.01,
    timeout_s: float = 600.0,
    progress: Progress | None = None,
) -> PointRecord:
    """Send the requests of ``point`` to ``target`` and wait until all are over or timed out.

    In the phase ``warmup`` every request is of the part ``warmup``; ``first_prompt`` continues the numbering of
    earlier runs, so that no prompt comes twice. ``progress(done, total)`` is called at most twice a second, must
    return at once, and stops the load by raising. Failed requests are in the record; nothing is raised for them. The
    load is broken off, and the record says why, where ``progress`` raises :class:`StageFailed` or the server answers
    nobody any more: else each request would wait out its time. On SIGINT, SIGTERM or SIGHUP with a Python handler the
    load is abandoned, then that handler is called.
    """
    source = _Requests(target, point, prompts, output_tokens, phase, first_prompt, timeout_s)
    walk = _open_loop if point.concurrency is None else _closed_loop

    async def load() -> PointRecord:
        client = Client(target, timeout_s)
        watch = Watch()
        await client.open(min(point.concurrency or OPEN_LOOP_CONNECTIONS, source.total))
        start_s, start_cpu_s = time.monotonic(), time.thread_time()
        failure = None
        try:
            async with asyncio.TaskGroup() as tasks:
                beside = [tasks.create_task(watch.run())]
                beside += [tasks.create_task(_report(progress, source))] if progress else []
                await walk(client, source, ramp_interval_s)
                for task in beside:
                    task.cancel()
            if progress:
                progress(source.done, source.total)
        except* StageFailed as group:
            failure = first_of(group)
        finally:
            end_s, cpu_s = time.monotonic(), time.thread_time() - start_cpu_s
            client.close()
        pieces = sum(len(answer.piece_lengths) for answer in source.answers)
        interval_s = ramp_interval_s if point.concurrency and point.ramp else None
        in_flight, late = client.max_in_flight, watch.lateness()
        return PointRecord(point, start_s, end_s, interval_s, in_flight, cpu_s, pieces, source.answers, late, failure)

    return run_until_stopped(load())


class _Requests:
    """Hands out the requests of a point in send order; all are encoded before the first is sent."""

    def __init__(
        self,
        target: Target,
        point: LoadPoint,
        prompts: Prompts,
        output_tokens: int,
        phase: Phase,
        first_prompt: int,
        timeout_s: float,
    ) -> None:
        self.point = point
        self.prompts = prompts
        self.answers: list[Answer] = []
        self.done = 0
        self.users_started = 0
        self._phase = phase
        self._timeout_s = timeout_s
        self._timeouts = 0  # in a row
        self._answered_s = -math.inf
        self._target = target
        self._output_tokens = output_tokens
        measured: Part = "measured" if phase == "load" else "warmup"
        self._parts: list[tuple[Part, int]] = [("ramp", point.ramp), (measured, point.requests), ("drain", point.drain)]
        self._encoded = iter(
            [
                (part, number, self._encode(part, number))
                for part, count in self._parts
                for number in range(first_prompt, first_prompt + count)
            ]
        )
        self._extra_ramp = first_prompt + point.ramp
        self.total = sum(count for _, count in self._parts)

    def _encode(self, part: Part, number: int) -> bytes:
        tokens = self.prompts.tokens(self.point.point, part, number)
        return self._target.request(encode_body(self._target.model, tokens, self._output_tokens))

    def next(self, user: int | None, scheduled_s: float) -> tuple[bytes, Answer] | None:
        """The next request to send, or None when all are sent.

        Where answers come faster than users start, the ramp is prolonged until every user has started.
        """
        level_reached = not self.point.ramp or user is None or self.users_started == self.point.concurrency
        if len(self.answers) >= self.point.ramp and not level_reached:
            part: Part = "ramp"
            number = self._extra_ramp
            request = self._encode(part, number)
            self._extra_ramp += 1
            self.total += 1
        else:
            upcoming = next(self._encoded, None)
            if upcoming is None:
                return None
            part, number, request = upcoming
        answer = Answer(part, number, user, scheduled_s)
        self.answers.append(answer)
        return request, answer

    def end(self, answer: Answer) -> None:
        """Count a request that is over. Raises :class:`StageFailed` if more are to be sent and nobody is answered.

        That is so where several in a row ran out of time and, while the last of them waited, no other was answered.
        """
        self.done += 1
        if answer.outcome == "answered":
            self._timeouts, self._answered_s = 0, answer.t_end_s or 0.0
        elif answer.outcome == "timeout":
            self._timeouts += 1
            hangs = self._timeouts >= HANGS_AFTER and self._answered_s < (answer.t_send_s or 0.0)
            if hangs and len(self.answers) < self.total:
                raise StageFailed(
                    self._phase,
                    f"{self._target.name} hangs: {self._timeouts} requests in a row were not answered within "
                    f"{self._timeout_s:g} s, and no other one meanwhile",
                )


async def _closed_loop(client: Client, source: _Requests, ramp_interval_s: float) -> None:
    """Users start ``ramp_interval_s`` apart; each sends its next request when its last is answered."""
    start_s = time.monotonic()

    async def user(number: int) -> None:
        free_s = start_s + number * ramp_interval_s
        await asyncio.sleep(free_s - time.monotonic())
        source.users_started += 1
        while upcoming := source.next(number, free_s):
            request, answer = upcoming
            await client.ask(request, answer)
            free_s = answer.t_end_s or time.monotonic()
            source.end(answer)

    async with asyncio.TaskGroup() as users:
        for number in range(source.point.concurrency or 0):
            users.create_task(user(number))


async def _open_loop(client: Client, source: _Requests, _ramp_interval_s: float) -> None:
    """Each request is sent at its time, however many are still unanswered."""
    point, prompts = source.point, source.prompts
    if point.rate is None:
        raise ValueError("an open loop needs a rate")
    offsets = send_offsets(
        point.arrival, point.rate, source.total, seed=prompts.seed, workload=prompts.workload, point=point.point
    )
    start_s = time.monotonic()

    async def send(request: bytes, answer: Answer) -> None:
        await client.ask(request, answer)
        source.end(answer)

    async with asyncio.TaskGroup() as sends:
        for offset_s in offsets:
            due_s = start_s + offset_s
            while (wait_s := due_s - time.monotonic()) > 0:
                await asyncio.sleep(math.ceil(wait_s * 1e3) / 1e3)  # the loop's timers count whole milliseconds
            if upcoming := source.next(None, due_s):
                sends.create_task(send(*upcoming))


async def _report(progress: Progress, source: _Requests) -> None:
    while True:
        await asyncio.sleep(PROGRESS_INTERVAL_S)
        progress(source.done, source.total)
