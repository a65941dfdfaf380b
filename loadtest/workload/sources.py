"""A user's file as a stream of items with the line where each begins: JSON (an array or lines), CSV, Parquet, text.

However large the file is, what is held of it is one item and about a megabyte.
"""

import codecs
import csv
import json
from collections.abc import Iterator, Sequence
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


def parquet(path: str) -> tuple[list[str], Items]:
    """The column names of a Parquet file, and its rows as dicts, numbered from 1.

    Raises:
        UsageError: pyarrow is not installed.
    """
    try:
        import pyarrow  # noqa: PLC0415 - heavy, and an extra
        import pyarrow.parquet  # noqa: PLC0415
    except ImportError:
        raise UsageError(f"{path}: reading Parquet needs pyarrow: pip install 'loadtest[parquet]'") from None
    head(path)
    try:
        file = pyarrow.parquet.ParquetFile(path, memory_map=True)
    except pyarrow.ArrowException as error:
        raise ScenarioError(f"{path} is not a Parquet file: {error}") from None

    def rows() -> Items:
        number = 0
        try:
            for batch in file.iter_batches(batch_size=256):
                for row in batch.to_pylist():
                    number += 1
                    yield number, row
        except pyarrow.ArrowException as error:
            raise ScenarioError(f"{path}: cannot read on after row {number}: {error}") from None

    return list(file.schema_arrow.names), rows()


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
            raise ScenarioError(f"{self._path} is not UTF-8 text; save it as UTF-8") from None
        if isinstance(error, OSError):
            raise ScenarioError(f"cannot read {self._path}: {error.strerror}") from None


def _json_lines(path: str) -> Items:
    decode = msgspec.json.Decoder().decode
    for number, line in lines(path):
        if line and not line.isspace():
            try:
                yield number, decode(line)
            except (msgspec.DecodeError, RecursionError):
                yield number, Skip("not JSON")


def _array(path: str) -> Items:
    """The items of one large array, each decoded as soon as it is there whole."""
    decode = json.JSONDecoder().raw_decode
    with _Text(path) as file:
        text, at, line = _Window(file), 0, 1
        # ``text.buffer[at:]`` is what was not looked at yet.
        at, line = text.skip(0, 1, " \t\r\n")
        at += 1
        while True:
            at, line = text.skip(at, line, " \t\r\n,")
            if at == len(text.buffer):
                raise ScenarioError(f"{path}:{line}: the file ends within its array: it was cut off")
            if text.buffer[at] == "]":
                return
            while True:
                try:
                    item, end = decode(text.buffer, at)
                    break
                except json.JSONDecodeError as error:
                    # What is only cut off shows at the end of the text read so far, or as a string that does not end.
                    cut_off = error.pos > len(text.buffer) - 16 or error.msg.startswith("Unterminated")
                    fault = f"not JSON ({error.msg})" if not cut_off else "an item that does not end"
                    where = line + text.buffer.count("\n", at, error.pos)
                except RecursionError:
                    cut_off, fault, where = False, "JSON too deep to be data", line
                if not cut_off or len(text.buffer) - at > MOST_ITEM or not text.more(at):
                    raise ScenarioError(f"{path}:{where}: {fault}")
                at = 0
            yield line, item
            line += text.buffer.count("\n", at, end)
            at = end


class _Window:
    """The part of a text file that is being looked at."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self.buffer = ""

    def more(self, at: int) -> bool:
        """Drop what is before ``at`` and read as much again as is left (a chunk at least); False at the end."""
        rest = self.buffer[at:]
        part = self._file.read(max(_CHUNK, len(rest)))
        self.buffer = rest + part
        return bool(part)

    def skip(self, at: int, line: int, blank: str) -> tuple[int, int]:
        """Where the next character that is not ``blank`` is, and its line."""
        while True:
            while at < len(self.buffer) and self.buffer[at] in blank:
                line += self.buffer[at] == "\n"
                at += 1
            if at < len(self.buffer) or not self.more(at):
                return (at, line) if at < len(self.buffer) else (len(self.buffer), line)
            at = 0


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
