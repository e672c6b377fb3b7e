"""Run pip on the locks of ``envs/``, and say in one sentence why it failed."""

import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

from pdkv.errors import UserError

ENVS = Path(__file__).resolve().parents[3] / "envs"  # of the clone that this package is installed from

_CAUSES: tuple[tuple[str, str, str], ...] = (
    (
        r"No space left on device|Errno 28|Errno 122",
        "the disk filled up during the installation",
        "free some space (pip also uses TMPDIR) and run the same command again",
    ),
    (
        r"ensurepip is not\s+available|No module named (ensurepip|pip|venv)",
        "this Python cannot make virtual environments",
        "install its venv package (Debian, Ubuntu: apt install python3-venv) and run the same command again",
    ),
    (
        r"NewConnectionError|NameResolutionError|Temporary failure in name resolution|ConnectTimeoutError"
        r"|ProxyError|SSLError|Connection (refused|reset|aborted)|Network is unreachable|[Rr]ead ?[Tt]imed? ?[Oo]ut",
        "the package index could not be reached",
        "check the network, or set a proxy (HTTPS_PROXY) or a mirror (PIP_INDEX_URL), and run the same command again",
    ),
    (
        r"Permission denied|Errno 13|Read-only file system",
        "the installation could not write its files",
        "make the project's folder writable for you and run the same command again",
    ),
)


def run_pip(python: Path, arguments: Sequence[str], log: Path) -> None:
    """``pip install`` in the folder of the locks. What it says goes to ``log``; raises :class:`UserError`."""
    pip = [str(python), "-m", "pip", "install", "--disable-pip-version-check", "--no-input", "--progress-bar", "off"]
    run_logged([*pip, *arguments], log)


def run_logged(argv: list[str], log: Path) -> None:
    """Run a step of an installation, its output in ``log``; raises :class:`UserError` that says why it failed."""
    # A PYTHONPATH of the caller would shadow what is installed here.
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as sink:
        begin = sink.tell()
        # Inheritable descriptors stay open in it, so that it keeps the caller's lock if it outlives the caller.
        status = subprocess.run(
            argv, cwd=ENVS, env=environment, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, close_fds=False
        ).returncode
    if status:
        problem, remedy = explain_pip(log.read_bytes()[begin:].decode("utf-8", errors="replace"))
        raise UserError(f"{problem} (all of it: {log})", remedy=remedy)


def explain_pip(text: str) -> tuple[str, str]:
    """(problem, remedy) for the output of a failed ``pip`` or ``venv``."""
    for pattern, problem, remedy in _CAUSES:
        if re.search(pattern, text):
            return problem, remedy
    missing = re.findall(r"No matching distribution found for (\S+)", text)
    if missing:
        doubt = ", or could not be reached" if "(from versions: none)" in text else ""
        return (
            f"the package index has no {missing[-1]} for this Python and machine{doubt}",
            "use a Python from 3.11 to 3.14 on Linux x86_64 with glibc 2.31 or newer; a mirror may lack the package",
        )
    said = [line for line in text.splitlines() if line.strip()]
    errors = [line for line in said if line.lower().startswith("error")] or said
    return (
        f"the installation failed: {errors[-1].strip() if errors else 'it said nothing'}",
        "read the log named above; once it is mended, run the same command again",
    )
