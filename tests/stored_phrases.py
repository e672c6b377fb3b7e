"""The English sentences that the source can write into an artefact, found in its syntax tree.

Every literal with words in it counts, except where it can be seen that it is none of them: docstrings, messages of
errors that end the program, arguments of calls that look text up, keys. So a new sentence is found wherever it stands.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

# What a call of these is given does not reach an artefact.
NOT_STORED = {
    "UserError", "ValueError", "TypeError", "AssertionError", "KeyError", "compile", "match", "fullmatch", "search",
    "sub", "split", "info", "warning", "debug", "error", "add_argument", "ArgumentParser", "print",
}  # fmt: skip
WORDS = re.compile(r"[A-Za-z]{2,}[ ,:;]|[ ][A-Za-z]{2,}")


def phrases(path: Path, *, with_errors: bool = False) -> Iterator[tuple[int, str]]:
    """(line, template) for each sentence of a module; what is filled in stands as ``{1}``, ``{2}`` …

    ``with_errors``: a ``UserError`` of this module does not end the program, it is kept as the reason of a failure.
    """
    tree = ast.parse(path.read_text(encoding="utf-8"))
    yield from _phrases(tree, NOT_STORED - {"UserError"} if with_errors else NOT_STORED)


def raises(path: Path, *errors: str) -> bool:
    """Whether a module makes such an error."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return any(isinstance(node, ast.Call) and _called(node) in errors for node in ast.walk(tree))


def _phrases(node: ast.AST, left_out: set[str]) -> Iterator[tuple[int, str]]:
    if isinstance(node, ast.JoinedStr):
        yield from _if_words(node.lineno, _template(node))
        for part in node.values:
            if isinstance(part, ast.FormattedValue):
                yield from _phrases(part.value, left_out)
        return
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield from _if_words(node.lineno, node.value)
        return
    if isinstance(node, ast.Call) and _called(node) in left_out:
        return
    for child in ast.iter_child_nodes(node):
        if not (isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant)):  # a docstring
            yield from _phrases(child, left_out)


def _called(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def _template(node: ast.JoinedStr) -> str:
    text, number = "", 0
    for part in node.values:
        if isinstance(part, ast.Constant):
            text += str(part.value)
        else:
            number += 1
            text += f"{{{number}}}"
    return text


def _if_words(line: int, text: str) -> Iterator[tuple[int, str]]:
    if WORDS.search(re.sub(r"\{\d+\}", "", text)):
        yield line, text
