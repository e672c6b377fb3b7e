"""The words of figures and reports by key, one file per language: ``templates/wording.{language}.toml``."""

import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from pdkv.errors import UserError


class Wording:
    """Call it with a key to get its text: ``say("load.closed", concurrency=2)``."""

    def __init__(self, language: str) -> None:
        self.language = language
        self.texts: Mapping[str, str] = _read(language)

    def __call__(self, key: str, **values: object) -> str:
        """The text of ``key`` with ``{name}`` filled in. An unknown key is a fault of the program: KeyError."""
        text = self.texts[key]
        return text.format(**values) if values else text

    def has(self, key: str) -> bool:
        """Whether there is a text for ``key``."""
        return key in self.texts

    def section(self, prefix: str) -> dict[str, str]:
        """All texts below ``prefix``, by the rest of their key, in the file's order."""
        start = f"{prefix}."
        return {key.removeprefix(start): text for key, text in self.texts.items() if key.startswith(start)}

    def all_texts(self) -> list[str]:
        """Every text, to know which characters the fonts must have."""
        return list(self.texts.values())


@cache
def _read(language: str) -> dict[str, str]:
    folder = files("pdkv.reporting") / "templates"
    known = sorted(name.split(".")[1] for entry in folder.iterdir() if (name := entry.name).startswith("wording."))
    if language not in known:
        raise UserError(f"report.language: found {language!r}", remedy=f"allowed: {', '.join(known)}")
    return dict(_flat(tomllib.loads((folder / f"wording.{language}.toml").read_text(encoding="utf-8"))))


def _flat(tree: dict[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    pairs = []
    for key, value in tree.items():
        pairs += _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else [(prefix + key, str(value))]
    return pairs
