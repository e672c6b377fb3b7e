"""The Dockerfile without Docker: what it copies is there, and what it installs is what the locks say."""

import re
import tomllib
from pathlib import Path

import yaml

from pdkv.installing.engine_env import KINDS, PYTHONS, engine_python
from pdkv.secret_names import is_secret_name

ROOT = Path(__file__).parent.parent


def instructions() -> list[tuple[str, str]]:
    """``(INSTRUCTION, arguments)`` in order, continued lines joined, comments left out."""
    lines = [line for line in (ROOT / "Dockerfile").read_text(encoding="utf-8").splitlines() if line[:1] != "#"]
    joined = "\n".join(lines).replace("\\\n", " ")
    return [(line.split()[0], line.split(maxsplit=1)[1]) for line in joined.splitlines() if line.strip()]


def arguments_of(name: str) -> list[str]:
    return [arguments for instruction, arguments in instructions() if instruction == name]


def locked(name: str) -> dict[str, str]:
    pins = (ROOT / f"envs/{name}.txt").read_text(encoding="utf-8").splitlines()
    found = [re.match(r"([\w.-]+)==(\S+)", pin) for pin in pins]
    return {pin[1]: pin[2] for pin in found if pin}


def test_every_source_of_a_copy_is_there_and_reaches_the_builder() -> None:
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    kept = [line.removeprefix("!") for line in ignored if line.startswith("!")]
    copied = [words for arguments in arguments_of("COPY") if "--from" not in (words := arguments.split())[0]]
    sources = [source for words in copied for source in words[:-1]]
    assert "src" in sources and "envs" in sources
    for source in sources:
        assert (ROOT / source).exists()
        assert source in kept
    assert ignored[1] == "*" and set(kept) == set(sources)


def test_nothing_is_installed_but_from_the_locks() -> None:
    for command in [part for arguments in arguments_of("RUN") for part in arguments.split("&&")]:
        if "pip install" in command or "pip download" in command:
            assert "--no-deps" in command  # a lock is whole; what it lacks must not be found by chance
            lock = re.search(r"(?:--requirement|--constraint) (\S+)", command)
            assert (ROOT / lock[1]).is_file() if lock else "--editable ." in command
            assert "==" not in command
    (engine,) = [arguments for arguments in arguments_of("RUN") if "install-engine" in arguments]
    assert '"${ENGINE}"' in engine
    assert "ENGINE=cuda" in arguments_of("ARG") and "cuda" in KINDS


def test_the_image_s_lock_is_the_pipeline_s_with_the_executor() -> None:
    pipeline, image = locked("pipeline"), locked("kubernetes")
    assert pipeline.items() <= image.items()
    assert {"snakemake-executor-plugin-kubernetes", "snakemake-storage-plugin-s3"} <= set(image)
    assert image["snakemake-executor-plugin-kubernetes"] == locked("dev")["snakemake-executor-plugin-kubernetes"]


def test_python_is_one_for_which_the_engines_have_builds() -> None:
    (python,) = [arguments.partition("=")[2] for arguments in arguments_of("ARG") if arguments.startswith("PYTHON=")]
    assert PYTHONS[0] <= tuple(int(part) for part in python.split(".")) <= PYTHONS[1]
    assert all("${PYTHON}" in image or image.startswith("pipeline") for image in arguments_of("FROM"))


def test_it_runs_as_nobody_special_and_holds_no_secret() -> None:
    last_stage = instructions()[max(i for i, (name, _) in enumerate(instructions()) if name == "FROM") :]
    (user,) = [arguments for name, arguments in last_stage if name == "USER"]
    assert user not in ("0", "root") and f"useradd --uid {user} " in " ".join(arguments_of("RUN"))
    *_, pod = yaml.safe_load_all((ROOT / "profiles/kubernetes/cluster.yaml").read_text(encoding="utf-8"))
    assert str(pod["spec"]["securityContext"]["fsGroup"]) == user
    set_here = re.findall(r"(\w+)=", " ".join([*arguments_of("ENV"), *arguments_of("ARG")]))
    assert set_here and not [name for name in set_here if is_secret_name(name)]


def test_version_and_paths_are_those_that_the_pages_name() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    profile = yaml.safe_load((ROOT / "profiles/kubernetes/profile.v9+.yaml").read_text(encoding="utf-8"))
    assert profile["container-image"].endswith(f"/pdkv:{version}")
    assert f"--tag {profile['container-image']}" in (ROOT / "Dockerfile").read_text(encoding="utf-8")
    python = engine_python("cuda", Path("/opt/pdkv/.engine"))
    for page in ("cluster-kubernetes.md", "engine-in-container.md"):
        assert str(python) in (ROOT / "docs" / page).read_text(encoding="utf-8")
