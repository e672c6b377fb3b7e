"""The workflow on a real Slurm: real engines on processor cores, and a fake one for what goes wrong on a cluster."""

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from slurm_cluster import Cluster
from slurm_study import ENDED, ROOT, Run, Study, await_state, end_of, living, survivors_of, wait_amid

UUIDS = {"GPU-fake-0", "GPU-fake-1"}
PLAIN = "{replicas: 1}"
FAULTS = {
    "cancelled": "{env: {FAKE_READY_S: never, FAKE_WORKERS: '2', FAKE_DEAF_S: '120'}}",
    "hungry": "{env: {FAKE_READY_S: never, FAKE_MEMORY_MB: '4000'}}",
    "late": "{env: {FAKE_READY_S: never, FAKE_WORKERS: '1'}}",
    "toobig": "{tensor_parallel_size: 3}",
    "broken": "{env: {FAKE_EXIT: '3'}}",
    "fine": PLAIN,
}
SLOW = "{env: {FAKE_READY_S: '8'}}"
MENDED = {**FAULTS, "cancelled": SLOW, "hungry": SLOW, "late": SLOW, "toobig": "{tensor_parallel_size: 2}"}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    # Not below pytest's folder, which only its owner may walk: munge wants others to reach its socket.
    with tempfile.TemporaryDirectory(prefix="pdkv-slurm-") as folder, Cluster(Path(folder)) as running:
        yield running


# ---- what goes wrong on a cluster --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def study(sources: Path, tmp_path_factory: pytest.TempPathFactory) -> Study:
    return Study(tmp_path_factory.mktemp("faults") / "study", sources)


@pytest.fixture(scope="module")
def faulty(cluster: Cluster, study: Study) -> Run:
    """Six trials of which Slurm ends three and refuses one, and one whose engine fails."""
    study.write(**FAULTS)
    limits = ("measure:runtime=1", "measure:mem_mb=2500", "measure:cpus_per_gpu=2")
    survivors = {}
    with study.running("--until", "plan_server") as run:  # so that jobs are submitted in the study's order: late first
        assert end_of(run, study, 120) == 0, study.said()
    with study.running("--set-resources", *limits) as run:
        wait_amid(run, study, lambda: "worker" in study.server_log("cancelled"), "the server has started")
        job = cluster.running_job("w/cancelled/fp16/r1")
        assert job is not None
        assert living(study, "cancelled", job), "a test that sees no process proves nothing"
        cluster.cancel(job)
        await_state(cluster, job, ENDED)
        survivors["cancelled"] = survivors_of(study, "cancelled", job)
        status = end_of(run, study, 240)
    jobs = {mode: cluster.jobs_of(f"w/{mode}/fp16/r1") for mode in FAULTS}
    for mode in ("hungry", "late"):
        [job] = jobs[mode]
        survivors[mode] = survivors_of(study, mode, job.partition(" ")[0])
    return Run(status, study.said(), jobs, survivors)


def test_a_fault_of_the_cluster_is_an_error_and_stops_no_other_trial(faulty: Run, study: Study) -> None:
    assert faulty.status == 1
    assert study.measured() == {"fine", "broken"}
    assert study.stages("fine")["outcome"]["status"] == "ok"
    for mode in ("cancelled", "hungry", "late", "toobig"):
        assert not (study.trial(mode) / "events.parquet").exists(), mode


@pytest.mark.fault(
    "host",
    "a Slurm job is cancelled, runs out of time or memory, or asks for more GPUs than a node has",
    "an error with Slurm's own reason and the job's log; the other trials are measured",
)
def test_every_fault_is_told_with_its_reason_and_where_to_look(faulty: Run, study: Study) -> None:
    states = {mode: [job.partition(" ")[2] for job in jobs] for mode, jobs in faulty.jobs.items()}
    assert states["cancelled"] == ["CANCELLED"]
    assert states["late"] == ["TIMEOUT"]
    assert states["fine"] == states["broken"] == ["COMPLETED"]
    assert "SLURM status is: 'CANCELLED'" in faulty.said
    assert "SLURM status is: 'TIMEOUT'" in faulty.said
    assert "Requested node configuration is not available" in faulty.said  # three GPUs, of two
    assert "CANCELLED" in study.job_logs("cancelled") and "DUE TO TIME LIMIT" in study.job_logs("late")
    assert "memory limit" in study.job_logs("hungry")
    assert "results/logs/slurm/rule_measure/w_late_fp16_1/" in faulty.said


@pytest.mark.fault("host", "Slurm ends a job under load", "no server of it lives on")
def test_no_server_of_a_job_that_was_ended_lives_on(faulty: Run) -> None:
    assert faulty.survivors == {"cancelled": [], "hungry": [], "late": []}


def test_a_cell_that_fails_is_a_result_and_is_not_tried_twice(faulty: Run, study: Study) -> None:
    assert len(faulty.jobs["broken"]) == 1
    outcome = study.stages("broken")["outcome"]
    assert (outcome["status"], outcome["stage"]) == ("failed", "launch")
    assert "told to fail" in outcome["excerpt"]
    assert [f"{study.stages('broken')['job']} COMPLETED"] == faulty.jobs["broken"]
    assert "failed in launch" in study.job_logs("broken")  # kept, although the job has succeeded


# ---- the next run, on a node that is drained and then lost in the middle -------------------------------------------


@pytest.fixture(scope="module")
def mended(cluster: Cluster, study: Study, faulty: Run) -> Run:
    """The same study without its faults: two trials run, two wait when the node is drained; one is lost with it."""
    study.write(**MENDED)
    # What docs/cluster-slurm.md says about blocks: all cells of a repeat on a node that the profile names.
    block = "measure:slurm_extra='--nodelist=' + ['elsewhere', 'pdkv-node'][int(wildcards.repeat) % 2]"
    with study.running("--set-resources", "measure:cpus_per_gpu=2", block) as run:
        wait_amid(run, study, lambda: cluster.count_jobs("RUNNING") == 2, "two trials run")
        cluster.set_node("drain")
        wait_amid(run, study, lambda: cluster.node_state() == "drained", "the drained node is empty")
        assert cluster.count_jobs("RUNNING") == 0 and cluster.count_jobs("PENDING") > 0
        assert run.poll() is None
        cluster.set_node("resume")
        wait_amid(run, study, lambda: cluster.count_jobs("RUNNING") > 0, "trials run again")
        lost = cluster.first_running_job()
        cluster.set_node("down")
        wait_amid(run, study, lambda: cluster.job_states()[lost] == "PENDING", "the lost job is queued anew")
        [mode] = [mode for mode in MENDED if f"{lost} PENDING" in cluster.jobs_of(f"w/{mode}/fp16/r1")]
        survivors = {lost: survivors_of(study, mode, lost)}
        cluster.set_node("resume")
        status = end_of(run, study, 240)
    return Run(status, study.said(), {mode: cluster.jobs_of(f"w/{mode}/fp16/r1") for mode in MENDED}, survivors)


@pytest.mark.fault(
    "host",
    "a study that Slurm ended in part is run again",
    "what is missing is measured, and nothing else; the report is written",
)
def test_the_next_run_measures_what_is_missing_and_writes_the_report(faulty: Run, mended: Run, study: Study) -> None:
    assert mended.status == 0, mended.said[-3000:]
    assert study.measured() == set(MENDED)
    assert mended.jobs["fine"] == faulty.jobs["fine"]  # measured once
    assert (study.folder / "reports/summary.pdf").read_bytes().startswith(b"%PDF-")
    assert "told to fail" in (study.folder / "reports/summary.md").read_text(encoding="utf-8")


@pytest.mark.fault(
    "host", "a node goes down with the trial on it", "Slurm queues the job anew, and the trial is measured"
)
def test_a_trial_that_was_lost_with_its_node_is_measured_without_anybody_s_help(mended: Run, cluster: Cluster) -> None:
    [(lost, survivors)] = mended.survivors.items()
    assert survivors == []
    assert cluster.job_states()[lost] == "COMPLETED"
    assert "Restarts=1" in cluster.describe_job(lost)


def test_the_cells_of_a_repeat_can_be_kept_on_one_node(mended: Run, cluster: Cluster) -> None:
    for mode in ("cancelled", "toobig"):
        assert "ReqNodeList=pdkv-node" in cluster.describe_job(mended.jobs[mode][-1].partition(" ")[0])


def test_two_trials_ran_beside_each_other_on_gpus_of_their_own(mended: Run, study: Study) -> None:
    spans = {}
    for mode in ("cancelled", "hungry", "late"):
        stages = study.stages(mode)
        [gpus] = [instance["gpus"] for instance in stages["instances"]]
        assert len(gpus) == 1 and set(gpus) <= UUIDS
        spans[mode] = (stages["wall"]["start_s"], stages["wall"]["end_s"], gpus[0])
    pairs = [
        (one, other)
        for one in spans.values()
        for other in spans.values()
        if one[2] != other[2] and one[0] < other[0] < one[1]
    ]
    assert pairs, spans
    for one in spans.values():
        for other in spans.values():
            assert one is other or one[2] != other[2] or one[1] <= other[0] or other[1] <= one[0], spans
    assert {gpu for instance in study.stages("toobig")["instances"] for gpu in instance["gpus"]} == UUIDS


# ---- real engines ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def real(cluster: Cluster, sources: Path, tmp_path_factory: pytest.TempPathFactory) -> Study:
    """config/smoke.yaml, with vLLM on processor cores: one instance, and a prefill/decode pair."""
    study = Study(tmp_path_factory.mktemp("real") / "study", sources, fake_gpus=False)
    study.folder.mkdir()
    (study.folder / ".engine").symlink_to(ROOT / ".engine")
    smoke = str(sources / "config/smoke.yaml")
    with study.running("--configfile", smoke, "--config", "engine=cpu") as run:
        status = end_of(run, study, 500)
    assert status == 0, study.said()[-4000:]
    return study


def test_the_smoke_study_on_slurm_gives_a_report(real: Study) -> None:
    cells = {
        path.parent.parent.name: json.loads(path.read_text(encoding="utf-8"))
        for path in real.folder.glob("results/smoke/*/fp16/cell.json")
    }
    assert set(cells) == {"default", "1p1d"}
    for cell in cells.values():
        [trial] = cell["trials"]
        assert trial["failure"] is None, trial["failure"]
        assert cell["points"][0]["requests"]["measured_ok"] == 4
    transfer = cells["1p1d"]["points"][0]["server"]["kv_transfer"]
    assert transfer["count"] > 0 and transfer["failed"] == 0
    assert (real.folder / "reports/summary.pdf").read_bytes().startswith(b"%PDF-")


def test_real_engines_had_the_node_for_themselves_and_are_gone(real: Study) -> None:
    spans = []
    for mode in ("default", "1p1d"):
        path = real.folder / f"results/smoke/{mode}/fp16/r1/stages.json"
        stages = json.loads(path.read_text(encoding="utf-8"))
        assert stages["leftovers"] == []
        spans.append((stages["wall"]["start_s"], stages["wall"]["end_s"]))
        assert not [instance["pid"] for instance in stages["instances"] if Path(f"/proc/{instance['pid']}").exists()]
    (_, first_end), (second_start, _) = sorted(spans)
    assert first_end <= second_start


def test_where_nobody_says_what_the_nodes_have_nothing_is_submitted(
    cluster: Cluster, sources: Path, tmp_path: Path
) -> None:
    study = Study(tmp_path / "study", sources, fake_gpus=False)
    jobs = cluster.job_states()
    with study.running("--configfile", str(sources / "config/smoke.yaml")) as run:
        assert end_of(run, study, 60) == 2
    assert "write engine: cuda or engine: cpu" in study.said()
    assert cluster.job_states() == jobs
