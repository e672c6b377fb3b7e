"""What no value of a config may be, whatever its key: a secret, a number that is none, a text that is no text.

Asked of everything that was read before anything else is, so that no later message shows a secret.
"""

import re
from collections.abc import Iterator
from typing import Any

from pdkv.errors import UserError
from pdkv.redaction import SHORTEST, looks_secret
from pdkv.secret_names import is_secret_name
from pdkv.study.yaml_source import KeyPath, YamlSource, dotted, why_not_plain

_SETTINGS = {"env", "args", "prefill_args", "decode_args", "kv_connector"}  # keys below them are the user's own
_FLAG = re.compile(r"--?([A-Za-z][\w.-]*)")
# ``--name=value``, ``NAME=value``, ``?name=value``, ``"name": "value"``, ``--name value``, ``name: value`` of a header
_GIVEN = re.compile(
    r"(?:^|[\s?&;#'\"])-{0,2}(?P<name>[A-Za-z][\w.-]*)=[\"']?(?P<value>[^\s&;#\"']+)"
    r"|[\"'](?P<json_name>[\w.-]+)[\"']\s*:\s*[\"'](?P<json_value>[^\"']+)"
    r"|(?:^|[\s'\"])-{1,2}(?P<flag>[A-Za-z][\w.-]*)\s+[\"']?(?P<argument>[^\s\"'-][^\s\"']*)"
    r"|(?:^|[\"'])(?P<header>[A-Za-z]+-[A-Za-z-]+):\s+(?P<content>[^\s\"']+)"
)
_NO_SECRETS = {"true", "false", "none", "null", "auto", "on", "off", "yes", "no"}


def check_values(data: dict[str, Any], source: YamlSource) -> None:
    """Raise :class:`UserError` for the first key or value that may not stand in a config; a secret is not shown."""
    for path, value in _values(data, ()):
        if isinstance(value, dict):
            problem = next(filter(None, map(_why_no_name, value)), None)
        elif _is_secret(path, value) or _is_argument_of_secret(data, path):
            raise UserError(
                f"{source.where(path)}: {dotted(path)}: a secret can't stand in a config, which is copied into plans "
                "and results",
                remedy="take it out, and export it in the shell that starts snakemake: servers inherit it (except "
                "VLLM_… variables), and it is never written",
            )
        else:
            problem = why_not_plain(value)
        if problem:
            raise UserError(f"{source.where(path)}: {dotted(path) or 'the study'}: {problem}", remedy="mend it")


def _is_secret(path: KeyPath, value: Any) -> bool:
    below = next((path[place + 1 :] for place, key in enumerate(path) if key in _SETTINGS), ())
    named = any(is_secret_name(key) for key in below if isinstance(key, str))
    if isinstance(value, str):
        return bool(value) and (named or looks_secret(value) or _gives_secret(value))
    return named and isinstance(value, int | float) and len(str(value)) >= SHORTEST and not isinstance(value, bool)


def _gives_secret(text: str) -> bool:
    """Whether an argument, assignment, query or JSON in ``text`` gives a secret by its name; ``$NAME`` gives none."""
    for match in _GIVEN.finditer(text):
        name, value = (part for part in match.groups() if part is not None)
        if is_secret_name(name) and _may_be_secret(value):
            return True
        if "=" in value and _gives_secret(value):  # --env NAME=value, --env=NAME=value
            return True
    return False


def _is_argument_of_secret(data: Any, path: KeyPath) -> bool:
    """Whether what stands at ``path`` follows an item of the same list that names a secret: ``[--api-key, …]``."""
    if not path or not isinstance(path[-1], int) or path[-1] == 0:
        return False
    for key in path[:-1]:
        data = data[key]
    flag, value = data[path[-1] - 1 : path[-1] + 1]
    named = _FLAG.fullmatch(flag) if isinstance(flag, str) else None
    return named is not None and is_secret_name(named[1]) and _may_be_secret(str(value))


def _may_be_secret(value: str) -> bool:
    return not value.startswith(("-", "$")) and value.lower() not in _NO_SECRETS


def _why_no_name(key: Any) -> str | None:
    if not isinstance(key, str):
        return f"the key {key} is no text: quote it"
    return "a key holds a secret" if looks_secret(key) or _gives_secret(key) else why_not_plain(key)


def _values(value: Any, path: KeyPath) -> Iterator[tuple[KeyPath, Any]]:
    """Everything, with the way to it; structures before what is in them."""
    if isinstance(value, dict):
        yield path, value
        for key, item in value.items():
            yield from _values(item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _values(item, (*path, index))
    else:
        yield path, value
