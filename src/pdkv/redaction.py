"""Secrets: how they are told from other settings, and how they are kept out of what is written.

They belong into the environment that starts a study. From there they reach the servers and are never written: a config
that holds one is refused (its values stand in plans and results), and what a server said is cleared of them.
"""

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

HIDDEN = "[hidden]"
SHORTEST = 6  # a shorter value would be found by chance all over a log
_SECRET_PARTS = {"secret", "secrets", "password", "passwd", "passphrase", "credential", "credentials", "apikey"}
_SECRET_ENDS = {"key", "token", "pat", "auth"}  # at the end: TOKENIZERS_PARALLELISM and HF_TOKEN_PATH hold none
_SECRET_TEXT = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{20,}|sk-[A-Za-z0-9_-]{20,}|gh[pousr]_[A-Za-z0-9]{20,}|glpat-[\w-]{20,}|AKIA[0-9A-Z]{16})\b"
    r"|://[^\s/:@]*:[^\s/@]+@"  # a password in an address
)


def is_secret_name(name: str) -> bool:
    """Whether a variable or argument of this name holds a secret: ``HF_TOKEN``, ``api-key``, ``DB_PASSWORD_1``."""
    parts = [part for part in re.split(r"[^a-z]+", name.lower()) if part]
    return bool(parts) and (parts[-1] in _SECRET_ENDS or not _SECRET_PARTS.isdisjoint(parts))


def looks_secret(text: str) -> bool:
    """Whether a text has the form of a token of a well-known service, or is an address with a password."""
    return _SECRET_TEXT.search(text) is not None


def secret_values(environment: Mapping[str, str] = os.environ) -> list[str]:
    """Values of the variables that hold secrets by their names, passwords in addresses; the longest first."""
    found = {value for name, value in environment.items() if is_secret_name(name) and len(value) >= SHORTEST}
    for value in environment.values():
        found |= {word for word in re.findall(r"://[^\s/:@]*:([^\s/@]+)@", value) if len(word) >= SHORTEST}
    return sorted(found, key=lambda text: (-len(text), text))


def redact(text: str, secrets: Iterable[str] | None = None) -> str:
    """``text`` with every secret value of this process's environment (or of ``secrets``) hidden."""
    for secret in secret_values() if secrets is None else secrets:
        text = text.replace(secret, HIDDEN)
    return text


def redact_values(value: Any, secrets: Sequence[str] | None = None) -> Any:
    """The same structure of dicts, lists and scalars with secrets hidden in every text."""
    chosen = secret_values() if secrets is None else secrets
    if isinstance(value, str):
        return redact(value, chosen)
    if isinstance(value, dict):
        return {key: redact_values(item, chosen) for key, item in value.items()}
    return [redact_values(item, chosen) for item in value] if isinstance(value, list | tuple) else value


def redact_files(paths: Iterable[Path], secrets: Iterable[str] | None = None) -> list[Path]:
    """Hide secret values in text files, as plain text and as JSON spells them; the files that held some."""
    chosen = secret_values() if secrets is None else secrets
    spellings = [spelling.encode("utf-8", "surrogateescape") for secret in chosen for spelling in _spellings(secret)]
    changed = []
    for path in paths if spellings else ():
        before = after = path.read_bytes()
        for spelling in spellings:
            after = after.replace(spelling, HIDDEN.encode())
        if after != before:
            path.write_bytes(after)
            changed.append(path)
    return changed


def _spellings(secret: str) -> list[str]:
    """Plain, in JSON, and in JSON that is a text in JSON, the longest first."""
    found = {secret}
    for _ in range(2):
        found |= {json.dumps(text, ensure_ascii=ascii_only)[1:-1] for text in found for ascii_only in (True, False)}
    return sorted(found, key=lambda text: (-len(text), text))
