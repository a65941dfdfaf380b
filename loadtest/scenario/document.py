"""A YAML file as plain values, with the place of each.

The grammar is PyYAML's, the meaning of a plain scalar that of YAML 1.2 (core schema). PyYAML follows YAML 1.1,
where ``on`` is true, ``010`` is 8 and ``1:30`` is 90, each of them a surprise in a file about durations.
"""

import re
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import yaml

from loadtest.errors import ScenarioError

MAX_BYTES = 64 * 1024
MAX_VALUES = 5_000  # aliases multiply: a small file can stand for millions of values
MAX_DEPTH = 32  # tools in a body hold JSON Schemas, which nest

Keys = tuple[str | int, ...]
"""The way to a value: ``("levels", 0, "concurrency")``."""

_WORDS: dict[str, bool | None] = {
    "": None, "~": None, "null": None, "Null": None, "NULL": None,
    "true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False,
}  # fmt: skip
_INTEGER = re.compile(r"[-+]?[0-9]{1,18}")
_NUMBER = re.compile(r"[-+]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?")


class Place(NamedTuple):
    """Where a value stands: a file with line and column (from 1), or a flag or variable without."""

    origin: str
    line: int | None = None
    column: int | None = None

    def __str__(self) -> str:
        return self.source if self.column is None else f"{self.source}:{self.column}"

    @property
    def source(self) -> str:
        """The place without its column."""
        return self.origin if self.line is None else f"{self.origin}:{self.line}"


class Fault(NamedTuple):
    """One thing wrong with a scenario. ``field`` is empty where the place says it already."""

    place: Place
    field: str
    text: str

    def __str__(self) -> str:
        return ": ".join(filter(None, (str(self.place), self.field, self.text)))


class Document(msgspec.Struct, frozen=True):
    """A file's values, and where each key and each value stands; ``folder`` is what its paths are relative to.

    Of the scenario of a run that has been it is None: its files need not be there any more.
    """

    data: dict[str, Any]
    keys: dict[Keys, Place]
    values: dict[Keys, Place]
    faults: list[Fault]
    folder: Path | None


def dotted(keys: Keys) -> str:
    """``levels.0.concurrency``; a key that would garble a terminal is escaped."""
    return ".".join(text if (text := str(key)).isprintable() else ascii(text) for key in keys)


def scalar(text: str) -> str | int | float | bool | None:
    """The value of an unquoted scalar after YAML 1.2's core schema, hexadecimal and octal left out."""
    if text in _WORDS:
        return _WORDS[text]
    if _INTEGER.fullmatch(text):
        return int(text)
    if _NUMBER.fullmatch(text):
        return float(text)
    return text


def read(path: Path, origin: str) -> str:
    """The text of a scenario file; ``origin`` is its name in messages.

    Raises:
        ScenarioError: it cannot be read, is too large, or is not UTF-8.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except IsADirectoryError:
        raise ScenarioError(f"{origin}: is a folder: name a scenario file in it") from None
    except FileNotFoundError:
        raise ScenarioError(f"{origin}: no such file") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise ScenarioError(f"{origin}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if len(data) > MAX_BYTES:
        raise ScenarioError(f"{origin}: is larger than {MAX_BYTES // 1024} KiB: this is not a scenario")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ScenarioError(f"{origin}:{line}: is not UTF-8 text: save it as UTF-8") from None


def parse(text: str, origin: str, folder: Path = Path()) -> Document:
    """The document in ``text``; ``origin`` is the file's name in messages, ``folder`` the one that it lies in.

    Faults of single entries (a key given twice, a tag) are in the document; the rest of it is still good.

    Raises:
        ScenarioError: the text is not YAML, is not one mapping, or is beyond all bounds.
    """
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        raise ScenarioError(_syntax(error, text, origin)) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise ScenarioError(
            f"{origin}:{line}: YAML does not allow the character U+{error.character:04X}: remove it"
        ) from None
    except RecursionError:
        raise ScenarioError(f"{origin}: is nested too deeply for a scenario") from None
    if root is None:
        raise ScenarioError(f"{origin}: is empty: a scenario is a mapping, for example 'load: {{concurrency: 4}}'")
    if not isinstance(root, yaml.MappingNode):
        raise ScenarioError(
            f"{_place(root, origin)}: a scenario is a mapping of keys to values, for example "
            "'load: {concurrency: 4}'; here the file holds something else"
        )
    walk = _Walk(origin)
    data = walk.mapping(root, ())
    return Document(data, walk.keys, walk.values, walk.faults, folder)


class _Walk:
    """Turns nodes into values, remembering where each stood."""

    def __init__(self, origin: str) -> None:
        self.origin = origin
        self.keys: dict[Keys, Place] = {}
        self.values: dict[Keys, Place] = {}
        self.faults: list[Fault] = []

    def value(self, node: yaml.Node, at: Keys) -> Any:
        place = self.values[at] = _place(node, self.origin)
        if len(self.values) > MAX_VALUES:
            raise ScenarioError(f"{place}: more than {MAX_VALUES} values: this is not a scenario")
        if len(at) > MAX_DEPTH:  # also ends an alias that contains itself
            raise ScenarioError(f"{place}: is nested too deeply for a scenario")
        if not node.tag.startswith("tag:yaml.org,2002:") or "python" in node.tag:
            self.faults.append(Fault(place, dotted(at), f"the tag {node.tag} is not used here: remove it"))
            return None
        if isinstance(node, yaml.MappingNode):
            return self.mapping(node, at)
        if isinstance(node, yaml.SequenceNode):
            return [self.value(item, (*at, index)) for index, item in enumerate(node.value)]
        return scalar(node.value) if isinstance(node, yaml.ScalarNode) and node.style is None else node.value

    def mapping(self, node: yaml.MappingNode, at: Keys) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for key_node, value_node in node.value:
            place = _place(key_node, self.origin)
            if not isinstance(key_node, yaml.ScalarNode):
                self.faults.append(Fault(place, dotted(at), "a key must be a word"))
                continue
            key = (*at, key_node.value)
            if key_node.value in values:
                self.faults.append(
                    Fault(place, dotted(key), f"given twice, first on line {self.keys[key].line}: keep one")
                )
                continue
            self.keys[key] = place
            values[key_node.value] = self.value(value_node, key)
        return values


def _place(node: yaml.Node, origin: str) -> Place:
    return Place(origin, node.start_mark.line + 1, node.start_mark.column + 1)


def _syntax(error: yaml.MarkedYAMLError, text: str, origin: str) -> str:
    mark = error.problem_mark or error.context_mark
    if mark is None:
        return f"{origin}: is not valid YAML: {error.problem or error.context}"
    place = Place(origin, mark.line + 1, mark.column + 1)
    if text[mark.index : mark.index + 1] == "\t":
        return f"{place}: is not valid YAML: a tab stands where only spaces may: indent with spaces"
    if isinstance(error, yaml.composer.ComposerError) and "single document" in str(error.context):
        return f"{place}: a second document begins here ('---'): a scenario is one document"
    context = f" {error.context}" if error.context else ""
    return f"{place}: is not valid YAML: {error.problem}{context}"
