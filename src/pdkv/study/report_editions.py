"""A report is written in one language or in several: which, and what the files of each are called.

Known from the config alone, so that rules can name them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

LANGUAGES: dict[str, tuple[str, ...]] = {"en": ("en",), "zh": ("zh",), "both": ("en", "zh")}


@dataclass(frozen=True)
class Edition:
    """``summary{suffix}.md`` and so on, and its figures in ``figures{suffix}``; the first language has no suffix."""

    language: str
    suffix: str


def editions(setting: str) -> Sequence[Edition]:
    """Those that ``report.language`` asks for: ``both`` is English, and Chinese in files of their own."""
    first, *others = LANGUAGES[setting]
    return [Edition(first, ""), *(Edition(language, f".{language}") for language in others)]


def left_editions(setting: str, folder: Path) -> list[Path]:
    """Reports below ``folder`` in languages that are not asked for: of an earlier run, perhaps of another study."""
    wanted = {edition.suffix for edition in editions(setting)}
    known = {edition.suffix for each in LANGUAGES for edition in editions(each)}
    named = (folder / f"summary{suffix}.{kind}" for suffix in sorted(known - wanted) for kind in ("md", "pdf"))
    return [path for path in named if path.exists()]
