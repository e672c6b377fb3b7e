"""Make the lock files of this folder: ``make lock`` keeps what is pinned, ``make lock UPGRADE=1`` takes what is newest.

They hold for Linux on x86-64 and every Python from 3.11 on ([tool.uv] in pyproject.toml). They are resolved, not
installed: after a change, `make test` says whether the result works.
"""

import subprocess
import sys
from pathlib import Path

ENVS = Path(__file__).parent
HEADERS = {
    "pipeline": "The pipeline's own packages, from the dependencies in pyproject.toml.",
    "kubernetes": "The pipeline's packages with what profiles/kubernetes needs. Whole, and for the Dockerfile.",
    "dev": "What `make test` needs beside the pipeline, from dev.in.",
    "vllm-cpu": "The engine for CPUs, from vllm-cpu.in and its overrides. Whole but for torch.txt: for --no-deps.",
    "vllm-cuda": "The engine for NVIDIA GPUs (CUDA 13), from vllm-cuda.in. Whole: for --no-deps.",
}
ARGUMENTS = {
    "pipeline": ["pyproject.toml", "--constraint", "envs/constraints.in"],
    "kubernetes": ["pyproject.toml", "--extra", "kubernetes", "--constraint", "envs/pipeline.txt"],
    "dev": ["envs/dev.in", "--constraint", "envs/pipeline.txt"],
    "vllm-cpu": ["envs/vllm-cpu.in", "--overrides", "envs/vllm-cpu-overrides.in"],
    "vllm-cuda": ["envs/vllm-cuda.in"],
}
PLATFORM = ("implementation_name == 'cpython'", "platform_machine == 'x86_64'", "sys_platform == 'linux'")
PLATFORM += ("platform_python_implementation != 'PyPy'",)


def without_platform(line: str) -> str:
    """``numpy==1 ; python_full_version < '3.12' and sys_platform == 'linux'`` without what is said of every line."""
    pin, _, marker = line.partition(" ; ")
    rest = [part for part in marker.split(" and ") if part and part not in PLATFORM]
    return f"{pin} ; {' and '.join(rest)}" if rest else pin


def lock(name: str, options: list[str]) -> None:
    """Resolve one lock file; pins that still fit are kept unless ``options`` hold ``--upgrade``."""
    target = ENVS / f"{name}.txt"
    command = [sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--universal", "--python-version", "3.11"]
    command += ["--no-header", "--no-annotate", *options, *ARGUMENTS[name], "--output-file", f"envs/{name}.txt"]
    subprocess.run(command, cwd=ENVS.parent, check=True)
    lines = [without_platform(line) for line in target.read_text().splitlines()]
    pins = [line for line in lines if line and not line.startswith(("#", "-"))]  # no addresses of an index
    target.write_text(f"# {HEADERS[name]} Made by `make lock`.\n" + "".join(f"{pin}\n" for pin in pins))
    print(f"envs/{name}.txt: {len(pins)} packages")


if __name__ == "__main__":
    for lock_name in HEADERS:
        lock(lock_name, sys.argv[1:])
