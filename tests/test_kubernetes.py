"""profiles/kubernetes without a cluster: what Snakemake's own executor submits, and the study through object storage.

The executor speaks to a stand-in of the Kubernetes API over HTTP, so manifests are judged as they come over the wire,
by the JSON schemas of Kubernetes. Results are in a stand-in for S3.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from kubernetes_api import KubernetesApi
from s3_server import S3Server

from pdkv.measuring.job_request import request_job
from pdkv.study.config import load_study

ROOT = Path(__file__).parent.parent
PROFILE = ROOT / "profiles/kubernetes"
KUBERNETES = ("1.30", "1.36")  # an old one, and the first that has admission policies which change what is submitted
SOURCES = ("Snakefile", "workflow", "src", "profiles", "envs")
GPU_STUDY = """\
model: org/model
engine: {command: vllm, device: cuda}
workloads:
  w: {input_tokens: 16, output_tokens: 4, concurrency: [2], requests: 4, max_model_len: 64}
modes: {default: {}, 1p1d: {}, wide: {tensor_parallel_size: 4}}
dtypes: [fp16]
"""
FAKE_STUDY = f"""\
model: fake/model
engine: {{command: [{json.dumps(sys.executable)}, {json.dumps(str(ROOT / "tests/fake_engine.py"))}], device: cpu}}
workloads:
  w: {{input_tokens: 16, output_tokens: 4, concurrency: [2], requests: 4, max_model_len: 64}}
modes: [default]
dtypes: [fp16]
"""
TRIAL = "study/results/w/default/fp16/r1"
SECRET = "open-sesame"
# What a pod calls by these names. pip would fetch the storage plugin.
PROGRAMS = {
    "python": f'exec {sys.executable} "$@"',
    "pip": 'echo "pip $*"',
    "vllm": "echo 0.32.0",
}


class Study:
    """A clone in which Snakemake runs with the profile, and what stands for the cluster."""

    def __init__(self, folder: Path, text: str, storage: S3Server, *, runs: bool) -> None:
        self.clone, self.cluster = folder / "clone", folder / "cluster"
        for made in (self.clone, self.cluster, folder / "bin"):
            made.mkdir(parents=True)
        for name in SOURCES:
            copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
            copy(ROOT / name, self.clone / name)
        (self.clone / "my.yaml").write_text(text, encoding="utf-8")
        for name, body in PROGRAMS.items():
            program = folder / "bin" / name
            program.write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
            program.chmod(0o755)
        path = f"{folder / 'bin'}:{os.environ['PATH']}"
        own = {"PATH": path, "PYTHONPATH": "src", "PDKV_LEASE_DIR": str(folder / "leases")}
        self.environment = {**os.environ, **own}
        keys = {"ENDPOINT_URL": storage.url, "ACCESS_KEY": "open", "SECRET_KEY": SECRET}
        self.keys = {f"SNAKEMAKE_STORAGE_S3_{name}": value for name, value in keys.items()}
        self.runs = runs
        for command in (["init", "--quiet"], ["add", "--all"]):  # what git knows is what travels into a pod
            subprocess.run(["git", *command], cwd=self.clone, check=True)

    def snakemake(self, *arguments: str) -> tuple[subprocess.CompletedProcess[str], KubernetesApi]:
        options = ["--profile", "profiles/kubernetes", "--configfile", "my.yaml"]
        options += ["--seconds-between-status-checks", "1"]
        folder = self.cluster / str(len(list(self.cluster.iterdir())))
        folder.mkdir()
        with KubernetesApi(folder, self.environment if self.runs else None, fail_at=3) as api:
            done = subprocess.run(
                [sys.executable, "-m", "snakemake", *options, *arguments],
                cwd=self.clone,
                env={**self.environment, **self.keys, "KUBECONFIG": str(api.kubeconfig)},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                encoding="utf-8",
                timeout=300,
            )
        return done, api


@pytest.fixture(scope="module")
def storage() -> Iterator[S3Server]:
    with S3Server() as server:
        yield server


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, storage: S3Server) -> KubernetesApi:
    """After a study on GPUs was submitted to it; none of its pods runs."""
    done, api = Study(tmp_path_factory.mktemp("gpus"), GPU_STUDY, storage, runs=False).snakemake()
    assert api.manifests, done.stdout
    return api


@pytest.fixture(scope="module")
def submitted(cluster: KubernetesApi) -> dict[str, dict[str, Any]]:
    """The manifest of each mode's trial."""
    return {command_of(manifest).partition("mode=")[2].partition(",")[0]: manifest for manifest in cluster.manifests}


def command_of(manifest: dict[str, Any]) -> str:
    return str(container_of(manifest)["args"][1])


def container_of(manifest: dict[str, Any]) -> dict[str, Any]:
    (container,) = manifest["spec"]["template"]["spec"]["containers"]
    return dict(container)


def require_valid(manifest: dict[str, Any], *versions: str) -> None:
    for version in versions:
        kubernetes_validate.validate(manifest, version, strict=True)


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((PROFILE / name).read_text(encoding="utf-8")))


# ---- what is submitted ----


def test_only_measurements_become_jobs_one_for_each_trial(submitted: dict[str, dict[str, Any]]) -> None:
    assert set(submitted) == {"default", "1p1d", "wide"}
    for manifest in submitted.values():
        assert "--allowed-rules measure --" in command_of(manifest)


def test_the_executor_s_jobs_are_what_kubernetes_takes(submitted: dict[str, dict[str, Any]]) -> None:
    assert {"default", "1p1d", "wide"} <= set(submitted)
    for manifest in submitted.values():
        # Over the wire the client leaves out what its path says.
        require_valid({"apiVersion": "batch/v1", "kind": "Job", **manifest}, *KUBERNETES)


def test_a_wrong_manifest_would_be_seen(submitted: dict[str, dict[str, Any]]) -> None:
    wrong = json.loads(json.dumps({"apiVersion": "batch/v1", "kind": "Job", **submitted["default"]}))
    container_of(wrong)["resources"]["limit"] = {"nvidia.com/gpu": "1"}
    with pytest.raises(kubernetes_validate.ValidationError):
        require_valid(wrong, KUBERNETES[0])


@pytest.mark.parametrize(("mode", "gpus"), [("default", 1), ("1p1d", 2), ("wide", 4)])
def test_a_pod_is_limited_to_what_its_trial_needs(
    submitted: dict[str, dict[str, Any]], tmp_path: Path, mode: str, gpus: int
) -> None:
    (tmp_path / "my.yaml").write_text(GPU_STUDY, encoding="utf-8")
    (trial,) = (trial for trial in load_study(tmp_path / "my.yaml").trials() if trial.mode.id == mode)
    needed = request_job(trial, tmp_path)
    resources = container_of(submitted[mode])["resources"]
    # Equal: so that the pod is not throttled, not killed for memory that it was promised, and may get its own cores.
    assert resources["limits"] == resources["requests"]
    assert resources["limits"]["nvidia.com/gpu"] == str(gpus) == str(needed.gpus)
    assert resources["limits"]["cpu"] == f"{needed.cores * gpus * 1000}m"
    assert resources["limits"]["memory"] == f"{needed.memory_mb}M"


def test_a_pod_has_our_image_and_the_models(submitted: dict[str, dict[str, Any]]) -> None:
    for manifest in submitted.values():
        container, pod = container_of(manifest), manifest["spec"]["template"]["spec"]
        assert (
            container["image"]
            == profile()["container-image"]
            == documents("cluster.yaml")[-1]["spec"]["containers"][0]["image"]
        )
        assert {"name": "pdkv-models", "mountPath": "/models"} in container["volumeMounts"]
        assert {"name": "pdkv-models", "persistentVolumeClaim": {"claimName": "pdkv-models"}} in pod["volumes"]
        assert pod["restartPolicy"] == "Never" and manifest["spec"]["backoffLimit"] == 0
        assert "securityContext" not in container  # not privileged: that would show every GPU of the node


def test_keys_travel_in_a_secret_and_stand_in_no_manifest(cluster: KubernetesApi) -> None:
    assert SECRET not in json.dumps(cluster.manifests)
    (secret,) = cluster.secrets
    require_valid({"apiVersion": "v1", "kind": "Secret", **secret}, *KUBERNETES)
    for manifest in cluster.manifests:
        (named,) = (each for each in container_of(manifest)["env"] if each["name"] == "SNAKEMAKE_STORAGE_S3_SECRET_KEY")
        place = {"name": secret["metadata"]["name"], "key": "snakemake_storage_s3_secret_key"}
        assert named == {"name": named["name"], "valueFrom": {"secretKeyRef": place}}


# ---- what is set up by hand ----


def profile() -> dict[str, Any]:
    return dict(yaml.safe_load((PROFILE / "profile.v9+.yaml").read_text(encoding="utf-8")))


def test_what_is_applied_by_hand_is_what_kubernetes_takes() -> None:
    cluster, memory = list(documents("cluster.yaml")), list(documents("shared-memory.yaml"))
    assert cluster and memory
    for document in cluster:
        require_valid(document, *KUBERNETES)
    for document in memory:
        require_valid(document, KUBERNETES[-1])


def test_the_role_allows_what_the_executor_asks_for_and_no_more(cluster: KubernetesApi) -> None:
    verbs = {"POST": "create", "GET": "get", "DELETE": "delete"}
    asked = set()
    for request in cluster.requests:
        method, path = request.split()
        _, _, below = path.partition("/namespaces/default/")
        resource, _, rest = below.partition("/")
        name, _, part = rest.partition("/")
        verb = "list" if method == "GET" and not name else verbs[method]
        asked.add((f"{resource}/{part}" if part else resource, verb))
    (role,) = (document for document in documents("cluster.yaml") if document["kind"] == "Role")
    allowed = {(resource, verb) for rule in role["rules"] for resource in rule["resources"] for verb in rule["verbs"]}
    assert asked <= allowed
    assert allowed - asked <= {("jobs", "delete"), ("pods", "delete")}  # asked for when a job is over or is cancelled


def test_shared_memory_policy_gives_each_pod_its_own(submitted: dict[str, dict[str, Any]]) -> None:
    """The executor can't mount memory, so the cluster adds it. Merged here by hand, as server-side apply would."""
    policy, binding = documents("shared-memory.yaml")
    labels = policy["spec"]["matchConstraints"]["objectSelector"]["matchLabels"]
    assert binding["spec"]["policyName"] == policy["metadata"]["name"]
    (namespace,) = binding["spec"]["matchResources"]["namespaceSelector"]["matchLabels"].values()
    assert namespace == profile()["kubernetes-namespace"]
    (mutation,) = policy["spec"]["mutations"]
    expression = mutation["applyConfiguration"]["expression"]
    for key, kind in re.findall(r"(\w+): \[?Object([.\w]+)\{", expression):
        assert kind.endswith(f".{key}")
    added = yaml.safe_load(re.sub(r"Object[.\w]*\{", "{", expression))["spec"]["template"]["spec"]
    manifest = json.loads(json.dumps(submitted["wide"]))
    assert manifest["metadata"]["labels"] == labels
    pod = manifest["spec"]["template"]["spec"]
    (container,), (addition,) = pod["containers"], added["containers"]
    assert container["name"] == addition["name"]
    container["volumeMounts"] += addition["volumeMounts"]
    pod["volumes"] += added["volumes"]
    require_valid({"apiVersion": "batch/v1", "kind": "Job", **manifest}, *KUBERNETES)
    (mount,) = (mount for mount in container["volumeMounts"] if mount["mountPath"] == "/dev/shm")
    (volume,) = (volume for volume in pod["volumes"] if volume["name"] == mount["name"])
    assert volume["emptyDir"]["medium"] == "Memory"


def test_a_model_that_no_pod_would_see_is_refused_before_anything_is_submitted(
    tmp_path: Path, storage: S3Server
) -> None:
    study = Study(tmp_path, GPU_STUDY.replace("org/model", "bundled"), storage, runs=False)
    done, api = study.snakemake()
    assert "model: bundled is made in this folder, which the jobs do not see" in done.stdout
    assert done.returncode != 0 and not api.manifests


# ---- the study, where nothing but the bucket is shared ----


def test_a_study_goes_through_the_bucket_to_its_report(tmp_path: Path) -> None:
    with S3Server() as storage:
        study = Study(tmp_path, FAKE_STUDY, storage, runs=True)
        done, api = study.snakemake()
        logs = "\n".join(pod.log.read_text(encoding="utf-8") for pod in api.pods.values())
        assert done.returncode == 0, f"{done.stdout}\n{logs}"
        again, second = study.snakemake()
        stages = f"{TRIAL}/stages.json"
        first = json.loads(storage.objects[stages][0])
        failed = {**first, "outcome": {"status": "failed", "stage": "launch", "reason": "told to", "excerpt": ""}}
        storage.objects[stages] = (json.dumps(failed).encode(), storage.objects[stages][1])
        retried, third = study.snakemake()
    assert again.returncode == 0 and "Nothing to be done" in again.stdout, again.stdout
    assert len(api.manifests) == 1 and not second.manifests
    assert (study.clone / "reports/summary.pdf").is_file() and (study.clone / "reports/summary.md").is_file()
    assert not (study.clone / "results").exists()
    assert (first["attempt"], first["outcome"]["status"]) == (1, "ok")
    # The pod must count attempts as Snakemake does outside of it, or it would be tried again for ever.
    assert retried.returncode == 0 and len(third.manifests) == 1, retried.stdout
    last = json.loads(storage.objects[stages][0])
    assert (last["attempt"], last["outcome"]["status"]) == (2, "ok")
    assert {f"{TRIAL}/server/single.log", f"{TRIAL}/logs/measure.log", "study/results/summary.csv"} <= set(
        storage.objects
    )
    assert not [key for key in storage.objects if "reports" in key or "sources" in key]
