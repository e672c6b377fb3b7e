"""A report is written in one language or in several: which, and what the files of each are called.

Known from the config alone, so that rules can name them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

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
