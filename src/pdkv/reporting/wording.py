"""The words of figures and reports by key, one file per language: ``templates/wording.{language}.toml``."""

import re
import string
import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from pdkv.errors import UserError

_CHINESE = re.compile("[\u4e00-\u9fff]")
_MARK = re.compile("[，。：；、（）“”…]")
_CHINESE_OR_MARK = re.compile(f"{_CHINESE.pattern}|{_MARK.pattern}")
_LATIN = re.compile("[A-Za-z0-9%+±`−-]")


class Wording:
    """Call it with a key to get its text: ``say("load.closed", concurrency=2)``."""

    def __init__(self, language: str) -> None:
        self.language = language
        self.texts: Mapping[str, str] = _read(language)

    def __call__(self, key: str, **values: object) -> str:
        """The text of ``key`` with ``{name}`` filled in. An unknown key is a fault of the program: KeyError."""
        text = self.texts[key]
        return fill_in(text, values, self.language) if values else text

    def without_marks(self, *keys: str) -> "Wording":
        """The same words, but that these texts, each ``{cell}`` with a mark, are the cell's name alone."""
        plain = Wording(self.language)
        plain.texts = {**self.texts, **dict.fromkeys(keys, "{cell}")}
        return plain

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


def fill_in(template: str, values: Mapping[str, object], language: str) -> str:
    """``template`` with ``{name}`` filled in; in Chinese with a blank where a letter or digit meets a character."""
    if language != "zh":
        return template.format(**values)
    told = ""
    for fixed, name, form, _ in string.Formatter().parse(template):
        told = _beside(told, fixed)
        if name is not None:
            told = _beside(told, format(values[name], form or ""))
    return told


def _beside(left: str, right: str) -> str:
    """Both texts side by side: between Chinese no blank, between Chinese and anything else that is a word, one."""
    before, after = left.rstrip(" "), right.lstrip(" ")
    if not before or not after:
        return left + right
    one, other = before[-1], after[0]
    if (_CHINESE.match(one) and _CHINESE_OR_MARK.match(other)) or (_MARK.match(one) or _MARK.match(other)):
        return before + after
    if (_CHINESE.match(one) and _LATIN.match(other)) or (_LATIN.match(one) and _CHINESE.match(other)):
        return f"{before} {after}"
    return left + right


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
