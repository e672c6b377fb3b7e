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
    return job.cores * max(1, job.gpus) if is_on_cluster() else measure_threads()


def cores_of_gpu(wildcards):
    return job_of(trial_name(wildcards)).cores


def job_memory_mb(wildcards):
    return job_of(trial_name(wildcards)).memory_mb


def job_minutes(wildcards):
    return job_of(trial_name(wildcards)).minutes


def job_sharing(wildcards):
    """Nothing runs beside a measurement on processor cores: it has a node for itself."""
    return "" if job_of(trial_name(wildcards)).gpus else "--exclusive"
