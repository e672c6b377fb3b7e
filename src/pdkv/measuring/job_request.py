"""What a scheduler is asked for to run one trial: from its plan, with room to spare.

A job that gets too little is killed and costs a measurement, one that asks for too much only waits longer. A profile
can replace each of these numbers.
"""

import math
from dataclasses import dataclass, replace
from pathlib import Path

from pdkv.errors import UserError
from pdkv.measuring.feasibility import UNKNOWN_WEIGHTS, estimate_seconds
from pdkv.measuring.plan import ResolvedEngine, plan_trial
from pdkv.measuring.resolve import choose_engine, resolve_model
from pdkv.records import Engine, Trial

CORES_OF_GPU = 8  # API server, engine core and worker of an instance, and a share of load client and router
CORES_OF_CPU_TRIAL = 16  # the same for every mode: cells on unequal numbers of cores are not compared
CLIENT_BYTES = 4 << 30  # Snakemake, load client, evidence that is kept until the end
RUNTIME_BYTES = 16 << 30  # Python, PyTorch, vLLM and CUDA of the processes of one GPU
SPARE_MEMORY = 1.25
SPARE_TIME = 3.0  # the estimate is coarse
OVERHEAD_S = 600.0  # imports from a network disk, shutdown, writing


@dataclass(frozen=True)
class JobRequest:
    """``gpus`` of all ``nodes`` together, host memory of each in MiB, minutes; ``cores`` are per GPU, else per node."""

    gpus: int
    cores: int
    memory_mb: int
    minutes: int
    nodes: int


def engine_here(engine: Engine, home: Path) -> ResolvedEngine:
    """The engine, before anything is measured; where it can't be told which GPUs are meant, as on a machine without.

    Reading finished results needs none. What is about to measure is refused with the reason when it starts.
    """
    try:
        return choose_engine(engine, home)
    except UserError:
        return choose_engine(replace(engine, device="cpu"), home)


def count_gpus(trial: Trial, device: str) -> int:
    """How many GPUs the servers of a trial take: none on a CPU, and none for a server that the user runs."""
    if device != "cuda" or trial.mode.endpoint:
        return 0
    return trial.mode.instance_count * trial.mode.tensor_parallel_size


def request_job(trial: Trial, home: Path) -> JobRequest:
    """What to ask for; ``home`` is the folder of the embedded engines.

    A trial that cannot be planned asks for what is known of it: planning it says what is wrong.
    """
    engine = engine_here(trial.engine, home)
    gpus = count_gpus(trial, engine.device)
    try:
        plan = plan_trial(trial, engine, *resolve_model(trial.model, home))
    except UserError:
        memory, seconds = None, 0.0
    else:
        memory, seconds = plan["memory"], estimate_seconds(trial, plan)
    total = memory["total_bytes"] if memory else None
    if engine.device == "cuda" or total is None:  # weights pass through the host, whatever then holds them
        weights = (memory["weights_bytes"] if memory else None) or UNKNOWN_WEIGHTS
        total = trial.mode.instance_count * weights + max(1, gpus) * RUNTIME_BYTES
    if trial.mode.endpoint:
        total, launch_s = 0, 0.0
    else:
        launch_s = trial.limits.launch_timeout_s
    return JobRequest(
        gpus=gpus,
        cores=CORES_OF_GPU if engine.device == "cuda" else CORES_OF_CPU_TRIAL,
        memory_mb=math.ceil((total / trial.mode.nodes * SPARE_MEMORY + CLIENT_BYTES) / 2**20),
        minutes=math.ceil((launch_s + seconds * SPARE_TIME + OVERHEAD_S) / 60),
        nodes=trial.mode.nodes,
    )


def require_kept_options(needed: str, given: str) -> None:
    """Raise :class:`UserError` where ``given``, options of sbatch, lacks ``needed``, one that a trial can't do without.

    What a profile says in ``slurm_extra`` takes the place of what the workflow says there.
    """
    if needed and needed.partition("=")[0] not in given:
        raise UserError(
            f"slurm_extra: {given or 'nothing'} takes the place of {needed}, which keeps trials from each other",
            remedy=f"write both: slurm_extra: \"'{f'{needed} {given}'.strip()}'\"",
        )


def require_known_device(engine: Engine) -> None:
    """Raise :class:`UserError` where trials run on other machines and nobody said what these have."""
    if engine.named_device is None:
        raise UserError(
            "engine: what the nodes of the cluster have can't be seen from here",
            remedy="write engine: cuda or engine: cpu; with engine.python or engine.command, "
            "engine.device: cuda or cpu",
        )
