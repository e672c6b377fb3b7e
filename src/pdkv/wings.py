"""What a module may import, by its floor and wing, and a digest of the source behind each step of the study.

Imports go downward only, and the wing that measures never imports the one that analyses: they meet through files. So
the source of one step is its module and what that imports within its wing, and a change elsewhere reruns nothing.

A wing is a folder; the analysing one has ``reporting`` beside ``analysing``, the shared one ``study`` (the config).
Floors 0 and 1 belong to no wing and no digest: they carry values and do not make any. What they change in a trial shows
in its config slice, and what installing changes shows in the environment that each trial records.
"""

import ast
import hashlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from pdkv.floors import WINGS

SOURCE = Path(__file__).parent
PACKAGE = "pdkv"
# The steps behind plan.json and behind the evidence of a launch, whose digests these files keep.
PLANNER = ("plan", "resolve")
MEASURER = (*PLANNER, "trial", "keeper")


@cache
def place_of(module: str) -> tuple[str, int] | None:
    """(wing, floor) of a module by its bare name; None if the house does not know it."""
    for wing, floors in WINGS.items():
        for floor, modules in floors.items():
            if module in modules:
                return wing, floor
    return None


@cache
def digest(*steps: str) -> str:
    """The source of some steps' modules and of all that these import within their wing, as 16 hex digits.

    Blind to comments, docstrings and layout.
    """
    total = hashlib.sha256()
    for module in sorted(_closure(steps)):
        total.update(f"{module}\n{_dump(module)}\n".encode())
    return total.hexdigest()[:16]


@cache
def folder_digest(folder: str) -> str:
    """Every file below a folder of the package (templates), as 16 hex digits."""
    total = hashlib.sha256()
    for path in sorted((SOURCE / folder).rglob("*")):
        if path.is_file():
            total.update(path.relative_to(SOURCE).as_posix().encode() + b"\n" + path.read_bytes())
    return total.hexdigest()[:16]


@cache
def imports_of(module: str) -> frozenset[str]:
    """Bare names of the package's modules that ``module`` imports, inside functions too."""
    return frozenset(_imports(_parse(module)))


def _closure(steps: tuple[str, ...]) -> set[str]:
    wing = _wing(steps[0])
    found: set[str] = set()
    due = list(steps)
    while due:
        module = due.pop()
        if module not in found and _wing(module) == wing:
            found.add(module)
            due += imports_of(module)
    return found


def _wing(module: str) -> str | None:
    place = place_of(module)
    return place[0] if place else None


@cache
def _dump(module: str) -> str:
    """The module as text. Most modules are in several digests, and this costs as much as all else here."""
    return ast.dump(_parse(module))


@cache
def _parse(module: str) -> ast.Module:
    """The module without comments, layout and docstrings."""
    tree = ast.parse(_path(module).read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                node.body = node.body[1:]
    return tree


def _imports(tree: ast.Module) -> Iterator[str]:
    """A module's name is its own in the whole package, which imports from itself by full names alone."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            paths = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            paths = [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
        else:
            continue
        yield from (path.rpartition(".")[2] for path in paths if path.split(".")[0] == PACKAGE and _is_module(path))


def _is_module(path: str) -> bool:
    return SOURCE.parent.joinpath(*path.split(".")).with_suffix(".py").is_file()


def _path(module: str) -> Path:
    return _paths()[module]


@cache
def _paths() -> dict[str, Path]:
    return {path.stem: path for path in SOURCE.rglob("*.py")}
