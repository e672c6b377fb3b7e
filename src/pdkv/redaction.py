"""Secrets: how they are told from other settings, and how they are kept out of what is written.

They belong into the environment that starts a study. From there they reach the servers and are never written: a config
that holds one is refused (its values stand in plans and results), and what a server said is cleared of them.
"""

import base64
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pdkv.secret_names import holds_several, is_secret_name

HIDDEN = "[hidden]"
SHORTEST = 6  # a shorter value would be found by chance all over a log
_BEGINS = r"(?:(?<![A-Za-z0-9])|(?<=\\[nrt]))"  # of a word, after a line end as JSON spells it too
LONG = 10  # no word of a log
_PLAIN_WORD = re.compile(r"[A-Z]?[a-z]*")
_COOKIE_ATTRIBUTES = {"path", "domain", "expires", "max-age", "samesite", "httponly", "secure"}
# As services issue them, whatever the variable is called.
_TOKEN = re.compile(
    _BEGINS + r"(?:hf_[A-Za-z0-9]{20,}|sk-(?=[\w-]*[0-9])[\w-]{20,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}"
    r"|glpat-[\w-]{20,}|AKIA[0-9A-Z]{16}|xox[abprs]-[\w-]{10,}|npm_[A-Za-z0-9]{30,}|nvapi-[\w-]{20,}"
    r"|eyJ[\w-]{10,}\.eyJ[\w-]{10,}\.[\w-]*)"
)
# A password in an address may hold an @; a user alone is a token only if it is as long as one.
_ADDRESS = re.compile(
    r"(?P<before>://[^\s/:@?#\"'\\]*:)(?!\d{1,5}[,;)\]])(?P<secret>[^\s/\"'\\]+)(?=@)"
    r"|(?P<scheme>https?://)(?P<user>[^\s/:@?#\"'\\]{20,})(?=@)"
)
_QUERY = re.compile(r"(?P<before>[?&;](?P<name>[\w.-]+)=)(?P<secret>[^\s&;#\"'\\]+)")
_HEADER = re.compile(
    r"(?P<before>(?:\bBearer\s+(?=[\w.~+/-]*\d)|\bauthorization[\"']?\s*[:=]\s*[\"']?(?:Bearer|Basic|Token)\s+))"
    r"(?P<secret>[\w.~+/-]{6,}=*)",
    re.IGNORECASE,
)
_SCHEME = re.compile(r"\s*(?P<scheme>Bearer|Basic|Token)\s+(?P<secret>\S{6,})\s*", re.IGNORECASE)


def looks_secret(text: str) -> bool:
    """Whether a text holds a token of a well-known service, an address with a password, or what a header proves."""
    return hide_forms(text) != text or bool(_of_scheme(text))


def secret_values(environment: Mapping[str, str] = os.environ) -> list[str]:
    """Values of the variables that hold secrets by their names or by their form; the longest first."""
    found: set[str] = set()
    for name, value in environment.items():
        if is_secret_name(name):
            found.update(_bare(value))
            found.update(_parts(value) if holds_several(name) else ())
        found.update(_of_form(value))
    return sorted({value for value in found if len(value) >= SHORTEST}, key=lambda text: (-len(text), text))


def _bare(value: str) -> Iterator[str]:
    """As it was set, and as programs take it that strip a line end or quotes of a file."""
    yield value
    yield (stripped := value.strip())
    if stripped[:1] in ("'", '"') and stripped[:1] == stripped[-1:]:
        yield stripped[1:-1].strip()


def _parts(value: str) -> Iterator[str]:
    """Of a list, or of a cookie, whose attributes have names; no plain words, which stand everywhere (``default``)."""
    for part in re.split(r"[\s,;]+", value):
        name, _, content = part.partition("=")
        if name.lower() not in _COOKIE_ATTRIBUTES:
            yield from (text for text in (part, content) if len(text) >= LONG or not _PLAIN_WORD.fullmatch(text))


def _of_form(value: str) -> Iterator[str]:
    """What in a value is secret for its form; elsewhere it may stand without what gave it away here."""
    yield from _TOKEN.findall(value)
    yield from (match["secret"] or match["user"] for match in _ADDRESS.finditer(value))
    yield from (match["secret"] for match in _QUERY.finditer(value) if is_secret_name(match["name"]))
    yield from _of_scheme(value)


def _of_scheme(value: str) -> list[str]:
    """The secret of a value that is what an Authorization header holds: ``Bearer …``; not of ``Basic comparison``."""
    match = _SCHEME.fullmatch(value)
    if match is None or (match["scheme"].lower() != "bearer" and not _is_login(match["secret"])):
        return []
    return [match["secret"]]


def _is_login(text: str) -> bool:
    """Whether it is ``user:password`` in base64."""
    try:
        return b":" in base64.b64decode(text, validate=True)
    except ValueError:
        return False


def hide_forms(text: str, cover: Callable[[str], str] = lambda _secret: HIDDEN) -> str:
    """``text`` with everything hidden that is a secret by its form, whoever it belongs to."""
    text = _TOKEN.sub(lambda match: cover(match[0]), text)
    text = _ADDRESS.sub(
        lambda match: (match["before"] or match["scheme"]) + cover(match["secret"] or match["user"]), text
    )
    text = _HEADER.sub(lambda match: match["before"] + cover(match["secret"]), text)
    return _QUERY.sub(
        lambda match: match["before"] + cover(match["secret"]) if is_secret_name(match["name"]) else match[0], text
    )


def redact(text: str, secrets: Iterable[str] | None = None) -> str:
    """``text`` without the secret values of this process's environment (or ``secrets``), and what has their form."""
    for secret in secret_values() if secrets is None else secrets:
        text = _hide(secret, text)
    return hide_forms(text)


def redact_answer(data: bytes, secrets: Iterable[str]) -> bytes:
    """The bytes of an HTTP answer with secrets covered, each by as many: all lengths in it stay true.

    What is secret for its form takes long to find, 1 s for 1 MB. It is looked for in errors and beside addresses: a
    stream of tokens, of which there may be gigabytes, is neither.
    """
    found = [spelling for secret in secrets for spelling in _spellings(secret) if spelling.encode() in data]
    has_succeeded = data.startswith((b"HTTP/1.1 200", b"HTTP/1.0 200")) and b'"error"' not in data
    may_hold_forms = not has_succeeded or b"://" in data
    if not found and not may_hold_forms:
        return data
    text = data.decode("latin-1")  # a character for each byte
    for spelling in found:
        text = _hide(spelling.encode().decode("latin-1"), text, _cover)
    return (hide_forms(text, _cover) if may_hold_forms else text).encode("latin-1")


def _cover(secret: str) -> str:
    return f"{HIDDEN:*<{len(secret)}}" if len(secret) >= len(HIDDEN) else "*" * len(secret)


def _hide(secret: str, text: str, cover: Callable[[str], str] = lambda _secret: HIDDEN) -> str:
    """A secret of digits only where it is given as a text: a measured number must stay one, in JSON and in metrics."""
    if re.fullmatch(r"[0-9.]+", secret):
        return re.sub(rf"(?<=[=\"']){re.escape(secret)}(?![\w.])", lambda _: cover(secret), text)
    return text.replace(secret, cover(secret))


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
    spellings = [spelling for secret in chosen for spelling in _spellings(secret)]
    changed = []
    for path in paths:
        before = path.read_bytes()
        after = redact(before.decode("utf-8", "surrogateescape"), spellings).encode("utf-8", "surrogateescape")
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
