"""Rows of a user's file, made ready once and then read at random: one file of rows, their offsets and times behind.

The main process prepares, before workers start; each worker opens a ``Reader`` of its own. Nothing of the user's file
stays in memory but a few numbers a row.
"""

import contextlib
import functools
import hashlib
import os
import tempfile
import threading
from array import array
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec

from loadtest.errors import ResultError, ScenarioError
from loadtest.schedule import stream
from loadtest.workload import datasets, traces
from loadtest.workload.lengths import Length
from loadtest.workload.model import Data, Order, Row, Rows, Trace
from loadtest.workload.sources import Skip

_WORD = 8  # bytes of an offset and of a time
_OBSERVED = 1000  # rows whose lengths are looked at


def prepare(data: Data, folder: Path, count: Callable[[str], int], conversation: bool) -> Rows:
    """A data file made ready in ``folder``, item by item.

    ``count`` gives the tokens of a text. It is used where the file has no lengths: for every row if filters ask for
    them, else for a thousand rows, evenly spread, whose lengths are the ones observed. With ``conversation`` a row is
    a session of all its turns; without, it is the user's first message and what stands before it.

    Raises:
        ScenarioError: the file is missing, unreadable, of another format, or has no row that can be played.
        ResultError: ``folder`` cannot be written.
    """
    with _stored(folder) as store:
        for line, row in datasets.rows(data, count, conversation):
            store.add(line, row)
    return _ready(store, data.path, count)


def prepare_trace(trace: Trace, folder: Path, seed: int) -> Rows:
    """A trace made ready in ``folder``: a row for each session, by the time of its first turn.

    The rows of the file that share a session are its turns; without sessions each is one row.

    Raises:
        ScenarioError: as ``prepare``, or the window is empty.
        ResultError: ``folder`` cannot be written.
    """
    with _stored(folder) as store:
        span_s = traces.rows(trace, seed, store.add)
    return _ready(store, trace.path, len, span_s)


def row_of(count: int, order: Order, seed: int, level: int, number: int) -> int:
    """Which of ``count`` rows the request (or session) ``number`` of a level plays.

    ``file``: one after the other, again and again. ``shuffle``: each row once before any comes again, in another order
    each time through. ``random``: any row, with replacement.
    """
    if order == "random":
        return stream(seed, "row", level, number).randrange(count)
    epoch, place = divmod(number, count)
    return place if order == "file" else _shuffled(place, count, _key(seed, level, epoch))


def left_out(rows: Rows) -> str | None:
    """A sentence on the rows that were skipped, why, and where the first of each is; None where there are none."""
    if not rows.skipped:
        return None
    total = sum(many for _, many, _ in rows.skipped)
    count = f"{total} row{'s' if total > 1 else ''}"
    return f"{Path(rows.source).name}: {count} left out: {_reasons(rows.source, rows.skipped)}"


class Reader:
    """Random access to prepared rows; any thread may read."""

    def __init__(self, rows: Rows) -> None:
        self._file = Path(rows.path).open("rb", buffering=0)  # noqa: SIM115 - open as long as the reader is there
        self._count = rows.count
        self._lock = threading.Lock()
        self._decode = msgspec.msgpack.Decoder(Row).decode
        words = rows.count * (1 if rows.span_s is None else 2)
        self._index = os.fstat(self._file.fileno()).st_size - words * _WORD

    def __len__(self) -> int:
        return self._count

    def row(self, index: int) -> Row:
        """The row at ``index`` (0..len-1)."""
        # A row ends where the next begins, and the last where the index does.
        first = max(0, index - 1)
        ends = array("Q", self._read(self._index + first * _WORD, (index - first + 1) * _WORD))
        start = ends[0] if index else 0
        return self._decode(self._read(start, ends[-1] - start))

    def times(self, worker: int, workers: int) -> Iterator[float]:
        """When the rows ``worker``, ``worker + workers``, … of a trace begin, in seconds from its start, ascending."""
        times = self._index + self._count * _WORD
        step = 1024
        for first in range(0, self._count, step):
            part = array("d", self._read(times + first * _WORD, min(step, self._count - first) * _WORD))
            yield from part[(worker - first) % workers :: workers]

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _read(self, offset: int, size: int) -> bytes:
        with self._lock:
            self._file.seek(offset)
            found = bytearray()
            while len(found) < size and (part := self._file.read(size - len(found))):
                found += part
        return bytes(found)


class _Store:
    """The prepared file while it is written, and what is counted on the way."""

    def __init__(self, file: BinaryIO, path: str) -> None:
        self.path = path
        self.turns = 0
        self.shares = False
        self._file = file
        self._encode = msgspec.msgpack.Encoder().encode
        self._skipped: dict[str, tuple[int, int]] = {}
        self._ends = array("Q")
        self._times = array("d")

    @property
    def count(self) -> int:
        return len(self._ends)

    @property
    def skipped(self) -> tuple[tuple[str, int, int], ...]:
        return tuple((reason, many, line) for reason, (many, line) in self._skipped.items())

    def add(self, line: int, row: Row | Skip) -> None:
        if isinstance(row, Skip):
            many, first = self._skipped.get(row.reason, (0, line))
            self._skipped[row.reason] = many + 1, first
            return
        coded = self._encode(row)
        self._file.write(coded)
        self._ends.append((self._ends[-1] if self._ends else 0) + len(coded))
        self.turns += len(row.turns)
        self.shares = self.shares or any(turn.blocks for turn in row.turns)
        if row.turns[0].at_s is not None:
            self._times.append(row.turns[0].at_s)

    def finish(self) -> None:
        """Write the index behind the rows."""
        self._file.write(self._ends)
        self._file.write(self._times)


@contextlib.contextmanager
def _stored(folder: Path) -> Iterator[_Store]:
    """A store in a new file of ``folder``. What cannot be read has been named where it was read."""
    try:
        handle, path = tempfile.mkstemp(suffix=".rows", dir=folder)
        with os.fdopen(handle, "wb", buffering=1 << 20) as file:
            store = _Store(file, path)
            yield store
            store.finish()
    except OSError as error:
        raise ResultError(f"cannot write to {folder}: {error.strerror}") from None


def _ready(store: _Store, source: str, count: Callable[[str], int], span_s: float | None = None) -> Rows:
    if not store.count:
        raise ScenarioError(f"{source}: no row can be played: {_reasons(source, store.skipped) or 'there is none'}")
    try:
        with Path(source).open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise ScenarioError(f"cannot read {source}: {error.strerror}") from None
    rows = Rows(store.path, source, store.count, sha256, store.skipped, span_s, store.shares, store.turns)
    reader = Reader(rows)
    inputs, outputs = _observed(reader, count)
    reader.close()
    return msgspec.structs.replace(rows, input_tokens=inputs, output_tokens=outputs)


def _observed(reader: Reader, count: Callable[[str], int]) -> tuple[Length, Length | None]:
    """Lengths of prompts and of answers, of rows spread evenly over all."""
    inputs: list[int] = []
    outputs: list[int] = []
    looked_at = min(len(reader), _OBSERVED)
    for number in range(looked_at):
        for turn in reader.row(number * len(reader) // looked_at).turns:
            inputs.append(max(1, datasets.input_tokens(turn, count)))
            answer = datasets.output_tokens(turn, count)
            if answer is not None:
                outputs.append(answer)
    return Length.of_values(inputs), Length.of_values(outputs) if outputs else None


def _reasons(source: str, skipped: Iterable[tuple[str, int, int]]) -> str:
    place = "row" if Path(source).suffix.lower() == ".parquet" else "line"
    found = sorted(skipped, key=lambda skip: -skip[1])
    return ", ".join(f"{reason} ({many}, first in {place} {line})" for reason, many, line in found)


@functools.lru_cache(maxsize=64)
def _key(seed: int, level: int, epoch: int) -> int:
    return stream(seed, "rows", level, epoch).getrandbits(64)


def _shuffled(place: int, count: int, key: int) -> int:
    """The place under a keyed permutation of ``count`` places that takes no memory.

    A Feistel network permutes the next larger square of two; what falls outside ``count`` goes round again. Source:
    Black and Rogaway, "Ciphers with Arbitrary Finite Domains", CT-RSA 2002, section 3 (cycle walking).
    """
    half = max(1, ((count - 1).bit_length() + 1) // 2)
    mask = (1 << half) - 1
    while True:
        left, right = place >> half, place & mask
        for turn in range(6):
            mixed = (right + turn * 0x9E3779B97F4A7C15 ^ key) * 0xBF58476D1CE4E5B9 & 0xFFFFFFFFFFFFFFFF
            mixed = (mixed ^ mixed >> 29) * 0x94D049BB133111EB & 0xFFFFFFFFFFFFFFFF
            left, right = right, left ^ (mixed >> 32 & mask)
        place = left << half | right
        if place < count:
            return place
