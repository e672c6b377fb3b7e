"""The fonts of figures and reports: DejaVu, which comes with matplotlib, and an installed font for what that lacks.

A compiler that meets an unknown character prints a box and says nothing; so every character is looked up beforehand.
"""

import sysconfig
import tempfile
import unicodedata
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import matplotlib
from matplotlib.font_manager import findSystemFonts
from matplotlib.ft2font import FT2Font

from pdkv.errors import UserError

TEXT_FONT = "DejaVu Sans"
MONO_FONT = "DejaVu Sans Mono"
_BUNDLED = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
_FILES = (
    "DejaVuSans.ttf",
    "DejaVuSans-Bold.ttf",
    "DejaVuSans-Oblique.ttf",
    "DejaVuSans-BoldOblique.ttf",
    "DejaVuSansMono.ttf",
)
_STYLES = ("fallback", "bold", "black", "heavy", "medium", "light", "thin", "italic", "oblique")
_CJK = ("CJK", "HIRAGANA", "KATAKANA", "HANGUL", "BOPOMOFO", "FULLWIDTH", "IDEOGRAPHIC")


@dataclass(frozen=True)
class Typefaces:
    """``families`` in order of preference, the files that hold them, and whether one of them has no bold."""

    families: tuple[str, ...]
    files: tuple[Path, ...]
    one_weight: bool = False

    @contextmanager
    def folder(self) -> Iterator[Path]:
        """A folder with just these files, so that nothing else that is installed can change a page."""
        with tempfile.TemporaryDirectory(prefix="pdkv-fonts-") as name:
            for number, path in enumerate(self.files):
                (Path(name) / f"{number}{path.suffix}").symlink_to(path)
            yield Path(name)


def choose_typefaces(texts: Iterable[str]) -> Typefaces:
    """Fonts that together have every character of ``texts``; raises :class:`UserError` where none is installed."""
    files = [_BUNDLED / name for name in _FILES]
    missing = _printed(texts) - _characters(files[0])
    families, one_weight = [TEXT_FONT], False
    while missing:
        path = _best_font(missing)
        if path is None:
            raise _no_glyph(missing)
        families.append(FT2Font(str(path)).family_name)
        files.append(path)
        bold = Path(str(path).replace("Regular", "Bold"))
        if bold != path and bold.is_file():
            files.append(bold)
        else:
            one_weight = True
        missing -= _characters(path)
    return Typefaces(tuple(families), tuple(files), one_weight)


def _best_font(missing: set[int]) -> Path | None:
    """The installed font that has most of these characters: the fewer fonts, the more even a line looks."""
    best, most = None, 0
    for path in sorted(_installed_fonts(), key=_is_special):
        found = len(missing & _characters(path))
        if found == len(missing):
            return path
        if found > most:
            best, most = path, found
    return best


def _is_special(path: Path) -> bool:
    """Whether a font is bold, thin or slanted, or one to fall back on (whose marks overlap), by its name."""
    return any(word in path.stem.lower() for word in _STYLES)


def printable_log(text: str) -> str:
    """``text`` with what the monospace font lacks written as ``\\u9884``: a log line never stops a report."""
    known = _characters(_BUNDLED / "DejaVuSansMono.ttf")
    return "".join(
        char if char == "\n" or (ord(char) in known and char.isprintable()) else _escaped(char) for char in text
    )


def _escaped(char: str) -> str:
    if char == "\t":
        return "    "
    return f"\\x{ord(char):02x}" if ord(char) < 256 else f"\\u{ord(char):04x}"


def _printed(texts: Iterable[str]) -> set[int]:
    return {ord(char) for text in texts for char in text if char not in "\n\u200b"}


@cache
def _characters(path: Path) -> frozenset[int]:
    try:
        return frozenset(FT2Font(str(path)).get_charmap())
    except (RuntimeError, OSError):  # not every file that is called a font is one that FreeType reads
        return frozenset()


def _installed_fonts() -> list[Path]:
    """Other fonts of this machine and of this environment; looked for each time, so that a new one is found at once."""
    packages = Path(sysconfig.get_path("purelib")).glob("cvttf_*/*.[ot]tf")
    system = sorted(Path(name) for name in findSystemFonts())
    # A last-resort font has a box for every character: the very thing that must not be printed.
    return [path for path in (*sorted(packages), *system) if "lastresort" not in path.name.lower()]


def _no_glyph(missing: set[int]) -> UserError:
    sample = "".join(chr(code) for code in sorted(missing)[:8] if chr(code).isprintable())
    codes = ", ".join(f"U+{code:04X}" for code in sorted(missing)[:4])
    names = [unicodedata.name(chr(code), "") for code in missing]
    if any(name.startswith(_CJK) for name in names):
        return UserError(
            f"no installed font has the Chinese, Japanese or Korean characters {sample} ({codes}) of the report",
            remedy="run again after: pip install cvttf-notosanscjk-regular (it is in pdkv[zh]), "
            "or apt-get install fonts-noto-cjk",
        )
    script = next((name.split()[0].capitalize() for name in names if name), "unnamed")
    return UserError(
        f"no installed font has the {script} characters {sample} ({codes}) of the report",
        remedy="install a font of that script (apt-get install fonts-noto), or take the characters out of the names",
    )
