"""A user's file as a stream of items with the line where each begins: JSON (an array or lines), CSV, Parquet, text.

However large the file is, what is held of it is one item and about a megabyte.
"""

import codecs
import csv
import json
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

import msgspec

from loadtest.errors import ScenarioError, UsageError

_CHUNK = 1 << 20
MOST_ITEM = 64 << 20
"""The most characters that one item may have: what is longer is a file without an end of items, not an item."""

Items = Iterator[tuple[int, "Any | Skip"]]


class Skip(msgspec.Struct, frozen=True):
    """In place of an item that cannot be used, and why."""

    reason: str


def head(path: str) -> bytes:
    """The first bytes of a file, without its byte order mark and blank space.

    Raises:
        ScenarioError: there is no such file, it cannot be read, or it is empty.
    """
    if Path(path).exists() and not Path(path).is_file():  # a pipe could not be read twice
        raise ScenarioError(f"cannot read {path}: it is not a regular file")
    try:
        with Path(path).open("rb") as file:
            found = file.read(4096).removeprefix(codecs.BOM_UTF8).lstrip()
    except OSError as error:
        raise ScenarioError(f"cannot read {path}: {error.strerror}") from None
    if not found:
        raise ScenarioError(f"{path} is empty")
    return found


def lines(path: str) -> Iterator[tuple[int, str]]:
    """The lines of a text file without their ends, numbered from 1."""
    with _Text(path) as file:
        for number, line in enumerate(iter(lambda: file.readline(MOST_ITEM), ""), 1):
            if len(line) == MOST_ITEM:
                raise ScenarioError(f"{path}:{number}: a line of more than {MOST_ITEM >> 20} MiB")
            yield number, line.rstrip("\r\n")


def objects(path: str) -> Items:
    """The values of a JSON array, or of JSON Lines; blank lines are none."""
    return _array(path) if head(path).startswith(b"[") else _json_lines(path)


def table(path: str) -> tuple[list[str], Items]:
    """The column names of a CSV file, and its rows as dicts of strings. Blank lines are no rows."""
    found = _csv(path)
    _, names = next(found, (0, []))
    return [name.strip() for name in names], _records([name.strip() for name in names], found)


def parquet(path: str, wanted: Collection[str]) -> tuple[list[str], Items]:
    """The column names of a Parquet file, and its rows as dicts of those ``wanted``, numbered from 1.

    Raises:
        UsageError: pyarrow is not installed.
    """
    try:
        import pyarrow  # noqa: PLC0415 - heavy, and an extra
        import pyarrow.parquet  # noqa: PLC0415
    except ImportError:
        raise UsageError(f"{path}: reading Parquet needs pyarrow: pip install 'loadtest[parquet]'") from None
    try:
        file = pyarrow.parquet.ParquetFile(path, memory_map=True)
    except (pyarrow.ArrowException, OSError) as error:
        raise ScenarioError(f"{path} is not a Parquet file: {error}") from None

    names = list(file.schema_arrow.names)

    def rows() -> Items:
        number = 0
        try:
            for batch in file.iter_batches(batch_size=256, columns=[name for name in names if name in wanted]):
                for row in batch.to_pylist():
                    number += 1
                    yield number, row
        except (pyarrow.ArrowException, OSError) as error:
            raise ScenarioError(f"{path}: cannot read on after row {number}: {error}") from None

    return names, rows()


class _Text:
    """A file read as UTF-8, whose faults are named."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> TextIO:
        try:
            self._file = Path(self._path).open(encoding="utf-8-sig", newline="")
        except OSError as error:
            raise ScenarioError(f"cannot read {self._path}: {error.strerror}") from None
        return self._file

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._file.close()
        if isinstance(error, UnicodeDecodeError):
            raise ScenarioError(f"{self._path} is not UTF-8 text: save it as UTF-8") from None
        if isinstance(error, OSError):
            raise ScenarioError(f"cannot read {self._path}: {error.strerror}") from None


def _json_lines(path: str) -> Items:
    for number, line in lines(path):
        if line and not line.isspace():
            yield number, _decoded(line)


def _decoded(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return Skip("not JSON")


def _array(path: str) -> Items:
    """The items of one large array, each decoded as soon as it is there whole."""
    with _Text(path) as file:
        text, line = _Window(file), 1
        line += text.skip(" \t\r\n")
        text.at += 1  # the bracket
        while True:
            line += text.skip(" \t\r\n,")
            if text.at == len(text.buffer):
                raise ScenarioError(f"{path}:{line}: the file ends within its array: it was cut off")
            if text.buffer[text.at] == "]":
                return
            try:
                item = text.item()
            except ValueError as error:
                raise ScenarioError(f"{path}:{line}: the item that begins here is not JSON: {error}") from None
            # The standard library finds the end; what it lets through beside JSON (NaN, half surrogates) is skipped.
            yield line, _decoded(item)
            line += item.count("\n")


class _Window:
    """The part of a text file that is being looked at; ``at`` is the place in it."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._decode = json.JSONDecoder().raw_decode
        self.buffer = ""
        self.at = 0

    def skip(self, blank: str) -> int:
        """Go to the next character that is not ``blank``, or to the end; returns how many lines were passed."""
        passed = 0
        while self.at < len(self.buffer) or self._more():
            if self.buffer[self.at] not in blank:
                break
            passed += self.buffer[self.at] == "\n"
            self.at += 1
        return passed

    def item(self) -> str:
        """The text of the JSON value that begins here; goes behind it.

        Raises:
            ValueError: there is none.
        """
        while True:
            try:
                _, end = self._decode(self.buffer, self.at)
            except json.JSONDecodeError as error:
                # What is merely cut off fails at the end of the text read so far, or as a string that does not end.
                cut_off = error.pos > len(self.buffer) - 16 or error.msg.startswith("Unterminated")
                if not cut_off or len(self.buffer) - self.at > MOST_ITEM or not self._more():
                    raise ValueError(error.msg) from None
            except RecursionError:
                raise ValueError("it is too deep") from None
            else:
                start, self.at = self.at, end
                return self.buffer[start:end]

    def _more(self) -> bool:
        """Drop what was passed, and read as much again as is left (a chunk at least); False at the end of the file."""
        self.buffer = self.buffer[self.at :]
        self.at = 0
        part = self._file.read(max(_CHUNK, len(self.buffer)))
        self.buffer += part
        return bool(part)


def _csv(path: str) -> Iterator[tuple[int, list[str]]]:
    # The module's limit is one for the whole process; ours is no lower, and its own makes errors of long prompts.
    csv.field_size_limit(MOST_ITEM)
    with _Text(path) as file:
        reader = csv.reader(file, strict=True)
        while True:
            line = reader.line_num + 1
            try:
                fields = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                raise ScenarioError(f"{path}:{line}: not CSV ({error})") from None
            if fields:
                yield line, fields


def _records(names: Sequence[str], found: Iterator[tuple[int, list[str]]]) -> Items:
    for line, fields in found:
        if len(fields) == len(names):
            yield line, dict(zip(names, fields, strict=True))
        else:
            yield line, Skip("another number of columns than the first line")
