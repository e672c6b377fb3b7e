"""The stages of a trial whose devices are leased: launch, warm-up, load, shutdown."""

import contextlib
import logging
import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from pdkv.errors import StageFailed
from pdkv.measuring.deployment import DEATH_IS_KNOWN_S, Deployment
from pdkv.measuring.devices import DeviceSampler
from pdkv.measuring.evidence import Answer, Recorder
from pdkv.measuring.interruption import raise_if_told_to_stop
from pdkv.measuring.load import LoadPoint, PointRecord, run_point
from pdkv.measuring.other_node import instances_on
from pdkv.measuring.process_tree import descendants
from pdkv.measuring.prompts import Prompts
from pdkv.measuring.scraper import Scraper
from pdkv.measuring.shared_memory import list_segments, note_segments
from pdkv.measuring.stage_record import StageRecord
from pdkv.measuring.trial_devices import TrialDevices
from pdkv.measuring.trial_folder import SEGMENTS
from pdkv.measuring.warmup import Warmup, ways_to_warm, why_not_served
from pdkv.progress import Progress
from pdkv.records import Trial

EVERYTHING = ("metrics", "version", "server_info")
DYING_S = 5.0  # vLLM whose engine core was killed answers everything with an error for some seconds before it ends
logger = logging.getLogger("pdkv.measure")


class Measurement:
    """The stages of a trial on a deployment that was placed."""

    def __init__(
        self,
        plan: Mapping[str, Any],
        trial: Trial,
        deployment: Deployment,
        devices: TrialDevices,
        recorder: Recorder,
        record: StageRecord,
        progress: Progress,
        sampler: DeviceSampler,
    ) -> None:
        self.sampler = sampler
        self.plan = plan
        self.trial = trial
        self.deployment = deployment
        self.devices = devices
        self.recorder = recorder
        self.record = record
        self.progress = progress
        self.points = [LoadPoint(**point) for point in plan["points"]]
        # A server that the user runs may keep prefixes from one trial to the next: there, prompts never come twice.
        prompted = trial.name if plan["endpoint"] else trial.workload.id
        self.prompts = Prompts(trial.seed, prompted, trial.workload.input_tokens, *plan["token_range"])
        self.connector = plan["asked"]["kv_connector"]

    def run(self, folder: Path) -> None:
        """All stages in order. What fails is in the record; the servers have ended in any case."""
        self.segments = folder / SEGMENTS
        try:
            with Scraper(folder / "scrapes.jsonl", self.deployment.sources()) as self.scraper:
                self.launch()
                self.warm_up()
                self.load()
                self.scraper.scrape("end")
        except StageFailed as failure:
            self.record.failure = self.deployment.explain(failure)
            logger.warning("failed in %s: %s", self.record.failure.stage, self.record.failure.reason)
        finally:
            self.shut_down()

    def launch(self) -> None:
        """Start the servers; ready means that each has answered."""
        if self.deployment.endpoint:
            return
        self.begin("launch")
        with self.record.stage("launch"):
            self.devices.require_memory({**self.plan, "instances": instances_on(self.plan, 0)})
            self.deployment.nodes.require_memory()
            others = list_segments()
            self.deployment.start()
            self.watch_processes()
            waiting = partial(self.wait_on, "not ready yet")
            self.deployment.await_ready(self.trial.limits.launch_timeout_s, waiting)
            if self.deployment.find_containers():
                self.watch_processes()
            versions = self.record.environment["engine"]
            versions["vllm"] = versions["vllm"] or self.deployment.engine_version()  # nobody could ask a mere command
            note_segments(self.segments, (process.pid for process in descendants(os.getpid())), others)
            if self.deployment.router:
                self.sampler.assign("router", "router", pid=self.deployment.router.server.pid)
            self.deployment.bind("ready")
            self.scraper.scrape("ready", kinds=EVERYTHING)

    def warm_up(self) -> None:
        """Every instance and pair, then the way of the load, at its lowest concurrency."""
        self.begin("warmup")
        pairs, singles = ways_to_warm(self.deployment.targets_by_role(), self.connector)
        warmup = Warmup(
            entry=self.deployment.entry,
            pairs=pairs,
            singles=singles,
            prompts=self.prompts,
            output_tokens=self.trial.workload.output_tokens,
            concurrency=min(point.concurrency or 1 for point in self.points),
            rounds=self.trial.limits.warmup_rounds,
            timeout_s=self.trial.limits.request_timeout_s,
            recorder=self.recorder,
            progress=self.wait_on,
        )
        self.record.pairs = warmup.addressed
        with self.record.stage("warmup"):
            warmup.run()
        self.scraper.scrape("warm")

    def load(self) -> None:
        """Every load point, in order."""
        with self.record.stage("load"), self.on_client_cores():
            for point in self.points:
                record = self.walk(point)
                self.recorder.append(
                    "load",
                    point.point,
                    self.deployment.entry.name,
                    self.trial.workload.input_tokens,
                    self.trial.workload.output_tokens,
                    record.answers,
                )
                if record.failure:
                    raise record.failure
                self.record.add_point(record)
                self.require_served(point, record.answers)

    def walk(self, point: LoadPoint) -> PointRecord:
        """One load point, with the servers' counters read before, during and after."""
        self.begin(f"load {describe_point(point)}")
        self.deployment.bind(f"before point {point.point}")
        self.scraper.scrape("before", point.point)
        self.scraper.repeat(point.point)
        try:
            record = run_point(
                self.deployment.entry,
                point,
                self.prompts,
                self.trial.workload.output_tokens,
                ramp_interval_s=self.trial.limits.ramp_interval_s,
                timeout_s=self.trial.limits.request_timeout_s,
                progress=self.watch_load,
            )
        finally:
            self.scraper.pause()
        self.scraper.scrape("after", point.point)
        return record

    def require_served(self, point: LoadPoint, answers: Sequence[Answer]) -> None:
        """Raise :class:`StageFailed` (load) if a server died or not one request was served.

        Single requests that failed are evidence, judged later.
        """
        served = [why_not_served(answer) for answer in answers]
        problems = Counter(filter(None, served))
        last = served[-(point.concurrency or 1) :]
        patience_s = DYING_S if all(last) else DEATH_IS_KNOWN_S if problems else 0.0
        self.deployment.require_alive("load", patience_s)
        if problems.total() == len(answers):
            most = problems.most_common(1)[0][0] if problems else "none was sent"
            where = describe_point(point)
            raise StageFailed("load", f"none of {len(answers)} requests was served at {where}: {most}")

    def shut_down(self) -> None:
        """End all servers; what is left of them is recorded."""
        self.devices.look_beside(at_once=True)
        with contextlib.suppress(StageFailed):  # of a node that is lost nothing more is known
            self.record.beside |= self.deployment.nodes.beside()
        self.record.beside.discard(self.trial.name)  # its own leases on the other nodes, where these share a folder
        self.record.instances = self.deployment.records()
        if self.deployment.endpoint:
            return
        with self.record.stage("shutdown"):
            self.record.bindings = self.deployment.bindings
            self.record.router = self.deployment.router.record() if self.deployment.router else None
            self.record.leftovers = self.deployment.stop()
        self.segments.unlink(missing_ok=True)
        for line in self.deployment.aftermath():
            logger.info("%s", line)
        for left in self.record.leftovers:
            logger.warning("still there after shutdown: %s", left)

    def begin(self, what: str) -> None:
        """The next stage or load point, unless the measurement was told to stop."""
        raise_if_told_to_stop()
        self.stage = what.partition(" ")[0]
        self.devices.look_beside(at_once=True)
        self.progress.stage(what)

    def wait_on(self, what: str) -> None:
        """Still in the stage, unless the measurement was told to stop or has taken too long."""
        raise_if_told_to_stop()
        self.require_time()
        self.devices.look_beside()
        self.progress.waiting(what)

    def watch_load(self, done: int, total: int) -> None:
        """Progress of the load, which is broken off as soon as a server has ended."""
        self.deployment.require_alive("load")
        self.require_time()
        self.devices.look_beside()
        self.progress.requests(done, total)

    def require_time(self) -> None:
        """Raise :class:`StageFailed` if the trial has taken longer than it may; each request has a limit of its own."""
        limit_s = self.trial.limits.trial_timeout_s
        if time.monotonic() > self.record.started_s + limit_s:
            took = f"the trial was not over {limit_s:g} s after its start (limits.trial_hours)"
            raise StageFailed(self.stage, took)

    def watch_processes(self) -> None:
        """Tell the device sampler whose the processes, cores and GPUs are; all are watched from their start."""
        for instance in self.deployment.instances:
            if instance.server.elsewhere:  # the same numbers are other processes and cores here
                continue
            self.sampler.assign(
                instance.name,
                instance.role,
                pid=instance.server.pid,
                cores=instance.cores or (),
                gpus=instance.gpus,
            )
        self.sampler.assign("client", "client", pid=os.getpid())

    @contextlib.contextmanager
    def on_client_cores(self) -> Iterator[None]:
        """Keep the load client off the instances' cores where it has some of its own."""
        before = os.sched_getaffinity(0)
        os.sched_setaffinity(0, self.deployment.client_cores or before)
        self.record.set_client_cores(sorted(os.sched_getaffinity(0)))
        try:
            yield
        finally:
            os.sched_setaffinity(0, before)


def describe_point(point: LoadPoint) -> str:
    """``c=2``, or ``0.5/s`` in an open loop."""
    return f"c={point.concurrency}" if point.concurrency is not None else f"{point.rate:g}/s"
