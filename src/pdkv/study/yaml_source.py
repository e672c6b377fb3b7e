"""YAML read strictly, with the line and the spelling of everything in it.

YAML 1.1 loaders let the later of two equal keys win, and turn ``no`` and ``off`` into booleans, in keys too. Both would
make a study measure something else than was written, so here they are errors that name the line. So are values that
no study needs and that do harm further down: control characters, half characters, numbers that are none, and files
that grow without end when their aliases are written out.
"""

import math
import unicodedata
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from pdkv.errors import UserError

KeyPath = tuple[str | int, ...]
MOST_VALUES = 20_000  # with all aliases written out
DEEPEST = 50
TOO_DEEP = f"nested more than {DEEPEST} levels deep"


@dataclass
class YamlSource:
    """A parsed file: plain ``data``, and by key path the ``line`` (from 1) and the ``spelling`` of scalars."""

    path: Path
    data: Any = None
    lines: dict[KeyPath, int] = field(default_factory=dict)
    spellings: dict[KeyPath, str] = field(default_factory=dict)
    values: int = 0
    overridden: set[str] = field(default_factory=set)

    def where(self, key_path: KeyPath) -> str:
        """``config.yaml:12``, the line of the nearest ancestor that stands in the file, or ``--config``."""
        if key_path and key_path[0] in self.overridden:
            return "--config"
        while key_path and key_path not in self.lines:
            key_path = key_path[:-1]
        line = self.lines.get(key_path)
        return f"{self.path}:{line}" if line else str(self.path)

    def override(self, key: str) -> None:
        """A top-level key whose value was given on the command line: the file's lines and spellings are not its own."""
        self.overridden.add(key)
        self.spellings = {path: text for path, text in self.spellings.items() if path[:1] != (key,)}


class _ShallowLoader(yaml.SafeLoader):
    """One that stops before a file of thousands of brackets has cost seconds, or Python its stack."""

    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """A node and all below it."""
        self.depth += 1
        if self.depth > DEEPEST:
            raise yaml.MarkedYAMLError(problem=TOO_DEEP, problem_mark=self.get_mark())
        node: yaml.Node | None = super().compose_node(parent, index)
        self.depth -= 1
        return node


def read_yaml(path: Path) -> YamlSource:
    """Read one YAML file.

    Raises :class:`UserError` with file and line for what is not UTF-8, not YAML, or ambiguous (a key twice, a key that
    is not a string).
    """
    source = YamlSource(path)
    text = _decode(path)
    try:
        loader = _ShallowLoader(text)
        node = loader.get_single_node()
        if node is not None:
            source.data = _build(node, (), source, loader, ())
    except yaml.MarkedYAMLError as error:
        raise _syntax_error(path, text, error) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise UserError(
            f"{path}:{line}: the character U+{ord(text[error.position]):04X} can't stand in YAML", remedy="take it out"
        ) from None
    except OverflowError:  # "\UFFFFFFFF" is beyond what Python calls a character
        raise UserError(f"{path}: an escape code names a character that does not exist", remedy="mend it") from None
    return source


def _decode(path: Path) -> str:
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        raise UserError(
            f"{path}: there is no such file", remedy="name an existing config file, e.g. config/config.yaml"
        ) from None
    except OSError as error:
        raise UserError(
            f"{path} cannot be read: {error.strerror}", remedy="name a config file that you may read"
        ) from None
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise UserError(
            f"{path}:{line}: byte 0x{raw[error.start]:02X} is not UTF-8", remedy="save the file in UTF-8"
        ) from None


def _syntax_error(path: Path, text: str, error: yaml.MarkedYAMLError) -> UserError:
    mark = error.problem_mark or error.context_mark
    where = f"{path}:{mark.line + 1}" if mark else str(path)
    lines = text.splitlines()
    if mark and mark.line < len(lines) and "\t" in lines[mark.line]:
        return UserError(f"{where}: a tab, where YAML wants blanks", remedy="indent with blanks")
    return UserError(
        f"{where}: not valid YAML: {error.problem or error.context}", remedy="mend this line or the one above"
    )


def _build(
    node: yaml.Node, path: KeyPath, source: YamlSource, loader: yaml.SafeLoader, above: tuple[yaml.Node, ...]
) -> Any:
    if any(node is ancestor for ancestor in above):
        raise UserError(f"{source.path}:{_line(node)}: an alias that contains itself", remedy="write the value out")
    if len(above) > DEEPEST:
        raise UserError(f"{source.path}:{_line(node)}: {TOO_DEEP}", remedy="write it flatter")
    source.values += 1
    if source.values > MOST_VALUES:
        raise UserError(f"{source.path}: more than {MOST_VALUES:,} values, aliases written out", remedy="write less")
    source.lines.setdefault(path, _line(node))
    if isinstance(node, yaml.MappingNode):
        return _build_mapping(node, path, source, loader, (*above, node))
    if isinstance(node, yaml.SequenceNode):
        return [_build(item, (*path, i), source, loader, (*above, node)) for i, item in enumerate(node.value)]
    source.spellings.setdefault(path, node.value)
    try:
        value = loader.construct_object(node)
    except (ValueError, KeyError, AttributeError):  # how PyYAML says that a tag and its value don't match
        kind = node.tag.rsplit(":", 1)[-1]
        raise UserError(
            f"{source.path}:{_line(node)}: {dotted(path)}: YAML reads {shorten(node.value)} as {kind}, which it is not",
            remedy="quote it, or mend it",
        ) from None
    if problem := why_not_plain(value):
        found = "" if isinstance(value, str) else f"found {shorten(node.value)}: "
        raise UserError(f"{source.path}:{_line(node)}: {dotted(path)}: {found}{problem}", remedy="quote it, or mend it")
    return value


def why_not_plain(value: Any) -> str | None:
    """What is wrong with a scalar that no config needs and that does harm further down; None if nothing is."""
    if isinstance(value, str):
        odd = next((char for char in value if unicodedata.category(char) in ("Cc", "Cs") and char not in "\n\t"), None)
        return f"holds the character U+{ord(odd):04X}, which no text needs" if odd else None
    if isinstance(value, float) and not math.isfinite(value):
        return "no finite number"
    if isinstance(value, int) and abs(value) >= 2**63:
        return "a number of more than 64 bits"
    if value is None or isinstance(value, bool | int | float):
        return None
    return f"is read as a {type(value).__name__}"


def shorten(text: str, most: int = 100) -> str:
    """At most ``most`` characters of what was found, for a message."""
    return text if len(text) <= most else f"{text[:most]}… ({len(text):,} characters)"


def _build_mapping(
    node: yaml.MappingNode, path: KeyPath, source: YamlSource, loader: yaml.SafeLoader, above: tuple[yaml.Node, ...]
) -> dict[str, Any]:
    first_lines: dict[str, tuple[str, int]] = {}
    result: dict[str, Any] = {}
    for key_node, value_node in node.value:
        if key_node.tag == "tag:yaml.org,2002:merge":
            continue
        key = _key(key_node, path, source)
        same = unicodedata.normalize("NFC", key)
        if same in first_lines:
            spelling, line = first_lines[same]
            spelt = "" if spelling == key else " (two codings of the same characters)"
            raise UserError(
                f"{source.path}:{_line(key_node)}: {dotted((*path, key))} stands twice{spelt}, first in line {line}",
                remedy="keep one of the two",
            )
        first_lines[same] = (key, _line(key_node))
        source.lines.setdefault((*path, key), _line(key_node))
        result[key] = _build(value_node, (*path, key), source, loader, above)
    for key_node, value_node in node.value:  # merged keys only fill what the mapping itself does not say
        if key_node.tag == "tag:yaml.org,2002:merge":
            bases = value_node.value if isinstance(value_node, yaml.SequenceNode) else [value_node]
            for base in bases:
                merged = _build(base, path, source, loader, above)
                if not isinstance(merged, dict):
                    raise UserError(
                        f"{source.path}:{_line(base)}: << wants a mapping", remedy="name an anchor of a mapping"
                    )
                for key, value in merged.items():
                    result.setdefault(key, value)
    return result


def _key(node: yaml.Node, path: KeyPath, source: YamlSource) -> str:
    if not isinstance(node, yaml.ScalarNode):
        raise UserError(
            f"{source.path}:{_line(node)}: a key must be a name", remedy="write a plain name in front of the colon"
        )
    if node.tag != "tag:yaml.org,2002:str":
        kind = node.tag.rsplit(":", 1)[-1]
        kind = {"bool": "true or false", "int": "a number", "float": "a number", "null": "nothing"}.get(kind, kind)
        raise UserError(
            f"{source.path}:{_line(node)}: {dotted((*path, node.value))}: YAML reads the key {node.value} as {kind}",
            remedy=f'quote it: "{node.value}"',
        )
    if problem := why_not_plain(node.value):
        raise UserError(f"{source.path}:{_line(node)}: a key {problem}", remedy="mend it")
    return str(node.value)


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def dotted(key_path: KeyPath) -> str:
    """``workloads.short.concurrency[1]``."""
    text = ""
    for part in key_path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text
