"""Sentences that results hold in English, in the report's language: templates/stored_texts.{language}.toml says how.

The analysing wing writes checks, notes and reasons once, in English, and every report tells them. A text is matched
against the sentence templates of the source; what is filled in may be a sentence again.
"""

import re
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from pdkv.reporting.typefaces import printable_log
from pdkv.reporting.wording import Wording, fill_in

SUBJECT = "… "  # before a template that follows a name: "… ended with status {1}"
_PLACE = re.compile(r"\{(\d+)(…?)\}")
_WORDS = re.compile(r"[A-Za-z']{2,},? [A-Za-z]{2,}")
# A name or a number: a few words, none of which ends a part of a sentence. {1…} takes anything.
_WORD = r"(?:(?![,;:] |/ )\S)+"
_FEW_LETTERS = 4  # "{1} on {2}": filled with more than a word each, it would match anything
_NAME = rf"{_WORD}(?: {_WORD}){{0,7}}?"


@dataclass(frozen=True)
class Sentence:
    """A template: what its English looks like, the pieces of it that are fixed, and its translation."""

    pattern: re.Pattern[str]
    fixed: tuple[str, ...]
    translation: str


def retell(text: str, say: Wording) -> str:
    """``text``, one that the results hold, in the language of ``say``; what has no translation stands in quotes.

    What cannot be printed is escaped.
    """
    text = printable_log(text)
    if not sentences(say.language):
        return text
    found = _parts(text, say.language)
    if found is not None:
        return found
    return f"“{text}”" if _WORDS.search(text) else text


@cache
def sentences(language: str) -> tuple[Sentence, ...]:
    """The templates of a language, the most specific first; none for that in which results are written."""
    path = files("pdkv.reporting") / "templates" / f"stored_texts.{language}.toml"
    if not path.is_file():
        return ()
    found = [_sentence(*item) for item in tomllib.loads(path.read_text(encoding="utf-8")).items()]
    return tuple(sorted(found, key=lambda sentence: -sum(map(len, sentence.fixed))))


def _sentence(english: str, translation: str) -> Sentence:
    if english.startswith(SUBJECT):
        english, translation = f"{{0}} {english.removeprefix(SUBJECT)}", translation.replace(SUBJECT, "{0} ", 1)
    letters = sum(char.isalpha() for char in _PLACE.sub("", english))
    fixed, pattern, end = [], "", 0
    for place in _PLACE.finditer(english):
        piece = english[end : place.start()]
        fixed.append(piece)
        pattern += f"{re.escape(piece)}(?P<p{place[1]}>{_filling(piece, place, letters)})"
        end = place.end()
    fixed.append(english[end:])
    pattern += re.escape(english[end:])
    return Sentence(re.compile(pattern, re.DOTALL), tuple(fixed), translation.replace("{", "{p"))


def _filling(before: str, place: re.Match[str], letters: int) -> str:
    if place[2]:
        return ".+?"
    if before[-1:].isalpha():  # the s of a plural
        return r"\w*"
    return _WORD if place[1] == "0" or letters < _FEW_LETTERS else _NAME


def _parts(text: str, language: str) -> str | None:
    """The translation of a text that may be several sentences; None where nothing in it is known."""
    whole = _whole(text, language)
    if whole is not None:
        return whole
    for separator, mark in (("; ", "；"), (": ", "："), (", ", "、"), (" / ", " / ")):
        told = _joined(text.split(separator), separator, mark, language)
        if told is not None:
            return told
    return None


def _joined(parts: list[str], separator: str, mark: str, language: str) -> str | None:
    """Parts told one by one. A sentence may itself hold the separator: the longest run that is known is taken."""
    told: list[str] = []
    known = False
    start = 0
    while start < len(parts) and len(parts) > 1:
        runs = ((end, _whole(separator.join(parts[start:end]), language)) for end in range(len(parts), start, -1))
        end, found = next(((end, found) for end, found in runs if found), (start + 1, None))
        if found is None:
            found = _parts(parts[start], language)
        known |= found is not None
        told.append(_quoted(parts[start]) if found is None else found)
        start = end
    return mark.join(told) if known else None


@cache
def _whole(text: str, language: str) -> str | None:
    """The translation by the most specific template that the whole text matches."""
    for sentence in sentences(language):
        if _may_match(sentence, text) and (match := sentence.pattern.fullmatch(text)):
            values = {name: _value(value, language) for name, value in match.groupdict().items()}
            return fill_in(sentence.translation, values, language)
    return None


def _may_match(sentence: Sentence, text: str) -> bool:
    """Whether the fixed pieces stand in the text in their order: cheaper to see than a failed match."""
    at = 0
    for piece in sentence.fixed:
        at = text.find(piece, at)
        if at < 0:
            return False
        at += len(piece)
    return True


def _value(text: str, language: str) -> str:
    """What was filled in: a sentence again, a name or number as it is, foreign words in quotes."""
    found = _parts(text, language)
    return _quoted(text) if found is None else found


def _quoted(text: str) -> str:
    return f"“{text}”" if len(_WORDS.findall(text)) > 1 else text
