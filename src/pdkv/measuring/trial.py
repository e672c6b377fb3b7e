"""One trial from end to end: launch, warm-up, load, shutdown, with devices sampled around all of it.

Writes raw evidence only. A stage that can't be completed is a result like any other: it is recorded with its reason and
the measurement ends normally. Being told to stop is not: then nothing is written, and the trial is measured next time.
"""

import json
import logging
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pdkv.artifacts import read_json, write_json
from pdkv.errors import StageFailed, UserError
from pdkv.measuring.deployment import Deployment
from pdkv.measuring.devices import start_sampler, write_no_samples
from pdkv.measuring.evidence import Recorder
from pdkv.measuring.interruption import Interrupted, raise_if_told_to_stop, raise_when_told_to_stop
from pdkv.measuring.leftovers import end_orphans
from pdkv.measuring.other_node import instances_on, join_nodes
from pdkv.measuring.plan_refresh import refresh_plan
from pdkv.measuring.ports import reserved_ports
from pdkv.measuring.process_tree import adopted_orphans, process_start_s
from pdkv.measuring.scraper import Scraper
from pdkv.measuring.server_environment import inherited_settings
from pdkv.measuring.stage_record import StageRecord
from pdkv.measuring.trial_devices import lease_devices
from pdkv.measuring.trial_folder import SERVER_LOGS, gathering_folder, seal_evidence
from pdkv.measuring.trial_stages import Measurement
from pdkv.progress import Progress
from pdkv.records import Trial
from pdkv.redaction import redact_values

logger = logging.getLogger("pdkv.measure")


def measure(folder: Path, *, attempt: int, position: str, log: Path, home: Path = Path(".engine")) -> None:
    """Measure the trial whose ``plan.json`` lies in ``folder``; notes go to the file ``log``, progress to stderr.

    ``home`` is the folder of the embedded engines. A plan that does not hold here is made anew.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    notes = logging.FileHandler(log, encoding="utf-8")
    notes.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    logger.addHandler(notes)
    logger.setLevel(logging.INFO)
    try:
        started_s, obstacle = process_start_s(), None
        plan = read_json(folder / "plan.json", "plan/1")
        try:
            plan = refresh_plan(plan, folder / "plan.json", home)
        except UserError as error:
            obstacle = error
        measure_trial(
            plan,
            folder,
            attempt=attempt,
            position=position,
            debris=log.parent,
            started_s=started_s,
            obstacle=obstacle,
        )
    except Interrupted as error:
        logger.info("%s: nothing was written, the trial is measured next time", error)
        raise
    finally:
        logger.removeHandler(notes)
        notes.close()


def measure_trial(
    plan: Mapping[str, Any],
    out: Path,
    *,
    attempt: int = 1,
    position: str = "",
    debris: Path | None = None,
    started_s: float | None = None,
    obstacle: UserError | None = None,
) -> StageFailed | None:
    """Run the trial of a plan and write its evidence into ``out``; returns why it failed, or None.

    Everything appears together at the end, ``stages.json`` last. ``started_s``: monotonic time at which the command
    began; ``debris``: where server logs go if the measurement is broken off; ``obstacle``: why it can't be launched, if
    that is known. Raises :class:`Interrupted` on SIGINT,
    SIGTERM and SIGHUP after all servers have ended, :class:`UserError` if another measurement of the trial goes on, and
    ``OSError`` where nothing can be written.
    """
    trial = Trial.from_slice(json.dumps(plan["trial"]))
    record = StageRecord(plan, attempt, time.monotonic() if started_s is None else started_s)
    with (
        raise_when_told_to_stop(),
        Progress(trial.name, position) as progress,
        gathering_folder(out, debris or out / "logs") as folder,
    ):
        for orphan in end_orphans(out):
            logger.info("ended process %d (%s), which a dead trial had left", orphan.pid, orphan.name)
        try:
            if obstacle:
                raise obstacle
            _measure_on_devices(plan, trial, folder, record, progress)
        except UserError as error:  # no driver, too few GPUs, no free port: a failure of this cell, as others are
            record.failure = StageFailed("launch", f"{error.problem}: {error.remedy}")
            _write_no_evidence(folder)
        raise_if_told_to_stop()
        content = redact_values(record.content())
        write_json(folder / "stages.json", "stages/1", {**content, "files": seal_evidence(folder)})
        took_s = time.monotonic() - record.started_s
        if record.failure:
            progress.failed(record.failure.stage, record.failure.reason, took_s)
        else:
            progress.measured(took_s, record.durations_s())
    return record.failure


def _measure_on_devices(
    plan: Mapping[str, Any], trial: Trial, folder: Path, record: StageRecord, progress: Progress
) -> None:
    """All stages, on devices of its own, which are sampled until they are free again."""
    of_this_node = {**plan, "instances": instances_on(plan, 0)}
    with (
        adopted_orphans(),  # what a killed keeper leaves comes to us instead of to init, and is ended with the servers
        lease_devices(of_this_node, trial.name, progress.say) as devices,
        join_nodes(plan, trial.name, progress.say) as nodes,
        reserved_ports(*nodes.addresses) as ports,
    ):
        record.started_s += devices.waited_s + nodes.waited_s
        record.environment, record.beside = nodes.describe(devices.describe(plan["engine"]["python"])), devices.beside
        if not plan["endpoint"]:
            record.environment["inherited"] = inherited_settings(plan["instances"])  # by servers on all nodes
        record.nodes = nodes.names
        devices.take_cores()
        with (
            Recorder(folder) as recorder,
            start_sampler(folder, gpus=devices.gpus, cores=sorted(os.sched_getaffinity(0))) as sampler,
        ):
            devices.stay_idle()
            deployment = Deployment.place(plan, folder / SERVER_LOGS, ports, devices.gpus, nodes)
            Measurement(plan, trial, deployment, devices, recorder, record, progress, sampler).run(folder)
            record.leftovers += devices.leftovers()
            devices.stay_idle()
            if problem := sampler.stop(folder / "samples.parquet"):
                logger.warning("%s", problem)


def _write_no_evidence(folder: Path) -> None:
    """The files of a trial of which nothing was started."""
    with Recorder(folder), Scraper(folder / "scrapes.jsonl", ()):
        write_no_samples(folder / "samples.parquet")
