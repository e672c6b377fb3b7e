"""What happened when in a trial, and how it ended: the content of ``stages.json``."""

import contextlib
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from pdkv.errors import StageFailed
from pdkv.measuring.job_nodes import job_log
from pdkv.measuring.load import PointRecord
from pdkv.wings import MEASURER, digest


class StageRecord:
    """Filled while a trial runs. Times are monotonic seconds."""

    def __init__(self, plan: Mapping[str, Any], attempt: int, started_s: float) -> None:
        self.started_s = started_s
        self.failure: StageFailed | None = None
        self.instances: list[dict[str, Any]] = []
        self.router: dict[str, Any] | None = None
        self.bindings: list[dict[str, Any]] = []
        self.pairs: list[dict[str, str]] = []
        self.nodes: list[str] = []
        self.environment: dict[str, Any] = {}
        self.leftovers: list[dict[str, Any]] = []
        self.beside: set[str] = set()
        self._trial = plan["trial"]
        self._attempt = attempt
        # Of the code that runs here and now: a study may go on while its pdkv is replaced by another one.
        self._source = digest(*MEASURER)
        self._clock = {"monotonic_s": time.monotonic(), "unix_s": time.time()}
        self._stages: list[dict[str, Any]] = []
        self._points: list[dict[str, Any]] = []
        self._client: dict[str, Any] = {"cpu_s": None, "tokens_events": None, "loop": "uvloop", "cores": None}

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Time a stage, whether it succeeds or not."""
        start_s = time.monotonic()
        try:
            yield
        finally:
            self._stages.append({"name": name, "start_s": start_s, "end_s": time.monotonic()})

    def add_point(self, record: PointRecord) -> None:
        """A load point that was walked to its end."""
        point = record.point
        self._points.append(
            {
                "point": point.point,
                "arrival": point.arrival,
                "concurrency": point.concurrency,
                "rate": point.rate,
                "start_s": record.start_s,
                "end_s": record.end_s,
                "ramp_interval_s": record.ramp_interval_s,
                "max_in_flight": record.max_in_flight,
                "client_late": asdict(record.client_late) if record.client_late else None,
            }
        )
        self._client["cpu_s"] = (self._client["cpu_s"] or 0.0) + record.cpu_s
        self._client["tokens_events"] = (self._client["tokens_events"] or 0) + record.pieces

    def set_client_cores(self, cores: list[int]) -> None:
        """The cores that the load client was allowed to run on."""
        self._client["cores"] = cores

    def durations_s(self) -> dict[str, float]:
        """How long each stage took, in order, shutdown left out."""
        return {each["name"]: each["end_s"] - each["start_s"] for each in self._stages if each["name"] != "shutdown"}

    def content(self) -> dict[str, Any]:
        """The file's content, as of now the end of the trial."""
        failure = self.failure
        return {
            "trial": self._trial,
            "attempt": self._attempt,
            "source": self._source,
            "job": os.environ.get("SLURM_JOB_ID"),
            "job_log": job_log(),
            "nodes": self.nodes,
            "clock": self._clock,
            "outcome": {
                "status": "failed" if failure else "ok",
                "stage": failure.stage if failure else None,
                "reason": failure.reason if failure else None,
                "excerpt": failure.excerpt if failure else None,
            },
            "stages": self._stages,
            "wall": {"start_s": self.started_s, "end_s": time.monotonic()},
            "instances": self.instances,
            "router": self.router,
            "points": self._points,
            "bindings": self.bindings,
            "pairs": self.pairs,
            # Nothing is known of a trial that was given no devices.
            "environment": {**self.environment, "beside": int(bool(self.beside))} if self.environment else {},
            "beside": sorted(self.beside),
            "client": self._client,
            "leftovers": self.leftovers,
        }
