# What a trial asks a scheduler for. A profile replaces single numbers (set-resources, set-threads); docs/cluster-slurm.md.
from functools import cache

from pdkv.measuring.job_request import request_job

# snakemake-storage-plugin-s3 (0.3.6) keeps the answer that a folder is not there, from before a job has made it: the run
# would end with `server (missing in storage)` after the first trial. So it is asked anew each time.
if s3 := sys.modules.get("snakemake_storage_plugin_s3"):
    s3.StorageObject.is_dir = lambda self: any(self.get_subkeys())


@cache
def job_of(name):
    return request_job(trials[name], Path(".engine"))


def is_on_cluster():
    """Whether trials are jobs of a scheduler: in the Snakemake that submits them, and in those within the jobs."""
    return workflow.remote_exec or not (workflow.local_exec or workflow.dryrun)


def has_shared_disk():
    """Whether jobs see the files of this folder, or only what they get through object storage."""
    return bool(workflow.storage_settings.shared_fs_usage)


def job_threads(wildcards):
    """Cores of a job. Not of the node: a job that has begun must not find that it wants more than it asked for."""
    job = job_of(trial_name(wildcards))
    if not is_on_cluster():
        return measure_threads()
    return job.cores * max(1, job.gpus // job.nodes)


def cores_of_gpu(wildcards):
    return job_of(trial_name(wildcards)).cores


def job_memory_mb(wildcards):
    return job_of(trial_name(wildcards)).memory_mb


def job_minutes(wildcards):
    return job_of(trial_name(wildcards)).minutes


def job_sharing(wildcards):
    """Nothing runs beside a measurement on processor cores. Several GPUs of several nodes are as many on each."""
    job = job_of(trial_name(wildcards))
    if not job.gpus:
        return "--exclusive"
    return (
        f"--gpus-per-node={job.gpus // job.nodes}" if job.gpus > job.nodes > 1 else ""
    )


def job_options(jobs):
    """Of each measurement: the options of sbatch that it needs, and those that it gets from the rule or the profile."""
    return (
        (job_sharing(job.wildcards), str(job.resources.get("slurm_extra") or ""))
        for job in jobs
        if job.rule.name == "measure"
    )


def nodes_of_mode(wildcards):
    return trials[trial_name(wildcards)].mode.nodes


def if_several_nodes(value):
    """A resource of jobs on several nodes that those on one do not have."""
    return lambda wildcards: value if nodes_of_mode(wildcards) > 1 else None


# Unless it is told how many nodes, Slurm takes the GPUs of a job from as many as it likes. On several of them the
# measurement starts steps itself: for Snakemake's executor it is a job of MPI then. In a large study each function costs
# seconds, so that one without such modes has none.
NODES = (
    {
        "nodes": nodes_of_mode,
        "tasks": lambda wildcards: (
            nodes if (nodes := nodes_of_mode(wildcards)) > 1 else None
        ),
        "tasks_per_gpu": if_several_nodes(0),
        "mpi": if_several_nodes("srun"),
    }
    if any(mode.nodes > 1 for mode in study.modes)
    else {"nodes": 1}
)
