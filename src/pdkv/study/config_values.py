"""What no value of a config may be, whatever its key: a secret, a number that is none, a text that is no text.

Asked of everything that was read before anything else is, so that no later message shows a secret.
"""

from collections.abc import Iterator
from typing import Any

from pdkv.errors import UserError
from pdkv.redaction import is_secret_name, looks_secret
from pdkv.study.yaml_source import KeyPath, YamlSource, dotted, why_not_plain

_SETTINGS = {"env", "args", "prefill_args", "decode_args", "kv_connector"}  # keys below them are the user's own


def check_values(data: dict[str, Any], source: YamlSource) -> None:
    """Raise :class:`UserError` for the first key or value that may not stand in a config; a secret is not shown."""
    for path, value in _values(data, ()):
        if isinstance(value, dict):
            problem = next(filter(None, map(_why_no_name, value)), None)
        elif _is_secret(path, value):
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
    if not isinstance(value, str) or not value:
        return False
    return looks_secret(value) or (not _SETTINGS.isdisjoint(path[:-1]) and is_secret_name(str(path[-1])))


def _why_no_name(key: Any) -> str | None:
    if not isinstance(key, str):
        return f"the key {key} is no text: quote it"
    return "a key holds a secret" if looks_secret(key) else why_not_plain(key)


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
