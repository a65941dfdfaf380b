"""The requests of a long level as rows of one size in a file, where records in memory would be too many.

A record in memory takes a kilobyte and more, a row ``ROW.itemsize`` bytes on disk and four a gap between tokens. Who
goes through ``Rows`` meets the same records, but for the text of paired answers, made a block at a time; who needs one
field of all takes it as a column, which is some fifty times as fast.
"""

import tempfile
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import IO, Any, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from loadtest.errors import ResultError
from loadtest.records import Record, RequestError

_TIMES = (
    "intended_ms", "sent_ms", "wait_ms", "connected_ms", "connect_ms", "first_byte_ms", "first_token_ms",
    "first_answer_ms", "last_token_ms", "done_ms",
)  # fmt: skip
_LARGE = ("id", "session", "prompt_hash", "bytes_in")
_SMALL = (
    "level", "worker", "workload", "asked_input_tokens", "asked_output_tokens", "input_tokens", "cached_input_tokens",
    "output_tokens", "events", "bad_events", "turn", "samples",
)  # fmt: skip
_WORDS = ("outcome", "token_source", "finish_reason", "model", "ends", "error")
_FLAGS = ("in_window", "streamed", "resent", "probe")
ROW = np.dtype(
    [
        *((name, "f8") for name in _TIMES),
        *((name, "i8") for name in (*_LARGE, "gaps_from")),
        *((name, "i4") for name in (*_SMALL, "gaps")),
        *((name, "u2") for name in _WORDS),
        *((name, "?") for name in _FLAGS),
    ]
)
_NO_NUMBER = -1
_BLOCK = 8192
# Servers that put an id into each message would fill the memory with them: beyond so many the first alike stands for
# the others.
_MOST_WORDS = 2000
_FIELDS = tuple(name for name in Record.__struct_fields__ if name != "text")

Mask = NDArray[np.bool_]


class _Words:
    """Values that few requests differ in, each kept once; the code of None is 0."""

    def __init__(self) -> None:
        self.values: list[Any] = [None]
        self._codes: dict[object, int] = {None: 0}

    def code(self, value: object) -> int:
        """The code of ``value``, or where there are too many already that of one alike."""
        found = self._codes.get(value)
        if found is None:
            alike = (value.kind, value.status) if isinstance(value, RequestError) else ()
            found = self._codes.get(alike)
            if found is None or len(self.values) < _MOST_WORDS:
                self.values.append(value)
                found = self._codes[value] = len(self.values) - 1
                self._codes.setdefault(alike, found)
        return found


class _Sheet:
    """The files. They have no name, so that nothing of them is left whatever happens to the process."""

    def __init__(self, folder: Path) -> None:
        self.count = self.gap_count = 0
        self.words = {name: _Words() for name in _WORDS}
        self._folder = folder
        try:
            self._rows: IO[bytes] = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115  # closed by close
            self._gaps: IO[bytes] = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115
        except OSError as error:
            raise self._error(error) from None

    def append(self, records: Sequence[Record]) -> None:
        rows = np.zeros(len(records), dtype=ROW)
        for name in _TIMES:
            rows[name] = np.array([getattr(r, name) for r in records], dtype=np.float64)  # None becomes NaN
        for name in (*_LARGE, *_SMALL):
            rows[name] = [_NO_NUMBER if (value := getattr(r, name)) is None else value for r in records]
        for name, words in self.words.items():
            rows[name] = [words.code(getattr(r, name)) for r in records]
        for name in _FLAGS:
            rows[name] = [getattr(r, name) for r in records]
        gaps = [r.itl_ms or () for r in records]
        rows["gaps"] = sizes = np.array([len(own) for own in gaps], dtype=np.int64)
        rows["gaps_from"] = self.gap_count + np.cumsum(sizes) - sizes
        try:
            self._rows.write(rows.tobytes())
            for own in gaps:
                self._gaps.write(own if isinstance(own, array) and own.typecode == "f" else array("f", own))
            self._rows.flush()
            self._gaps.flush()
        except OSError as error:
            raise self._error(error) from None
        self.count += len(records)
        self.gap_count += int(sizes.sum())

    def rows(self) -> NDArray[Any]:
        """All of them, read from the file where they are looked at."""
        return np.memmap(self._rows, ROW, "r", shape=(self.count,)) if self.count else np.empty(0, ROW)

    def gaps(self) -> NDArray[np.float32]:
        if not self.gap_count:
            return np.empty(0, np.float32)
        return np.memmap(self._gaps, np.float32, "r", shape=(self.gap_count,))

    def close(self) -> None:
        self._rows.close()
        self._gaps.close()

    def _error(self, error: OSError) -> ResultError:
        mend = "make room there or choose another folder with -o"
        return ResultError(f"cannot keep requests in {self._folder}: {error.strerror}; {mend}")


class _Kept(NamedTuple):
    """Some of the rows of a sheet as they were at a time: ``places`` of None is all of them."""

    sheet: _Sheet
    size: int
    places: NDArray[np.int64] | None

    def block(self, begin: int, end: int) -> NDArray[Any]:
        rows, end = self.sheet.rows(), min(end, self.size)
        return np.array(rows[begin:end] if self.places is None else rows[self.places[begin:end]])


class Rows(Sequence[Record]):
    """Requests in files of ``folder``; what ``only`` returns is some of them.

    Raises:
        ResultError: (also ``append``) the files cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        self._kept = _Kept(_Sheet(folder), 0, None)

    def append(self, records: Sequence[Record]) -> None:
        """Take in ``records`` after those that are there."""
        if records:
            self._kept.sheet.append(records)
            self._kept = self._kept._replace(size=self._kept.sheet.count)

    def only(self, mask: Mask) -> "Rows":
        """Those that ``mask``, of shape (n,), says."""
        if mask.all():
            return self
        places = np.flatnonzero(mask)
        found = object.__new__(Rows)
        own = self._kept.places
        found._kept = self._kept._replace(size=len(places), places=places if own is None else own[places])
        return found

    def close(self) -> None:
        """Give the disk back; nothing of what ``only`` has returned can be read then."""
        self._kept.sheet.close()

    def __len__(self) -> int:
        return self._kept.size

    @overload
    def __getitem__(self, place: int) -> Record: ...
    @overload
    def __getitem__(self, place: slice) -> list[Record]: ...
    def __getitem__(self, place: int | slice) -> Record | list[Record]:
        rows, places = self._kept.sheet.rows(), self._kept.places
        if isinstance(place, slice):
            which = np.arange(len(self))[place]
            return list(self._made(np.array(rows[which if places is None else places[which]])))
        at = range(len(self))[place]
        row = rows[at if places is None else places[at]]
        return next(self._made(np.array([row], dtype=ROW)))

    def __iter__(self) -> Iterator[Record]:
        for begin in range(0, len(self), _BLOCK):
            yield from self._made(self._kept.block(begin, begin + _BLOCK))

    def values(self, name: str) -> Iterator[Any]:
        """The field ``name`` of each, as the records have it."""
        column, places = self._kept.sheet.rows()[name], self._kept.places
        for begin in range(0, len(self), _BLOCK):
            end = min(begin + _BLOCK, len(self))
            yield from self._boxed(np.array(column[begin:end] if places is None else column[places[begin:end]]), name)

    def floats(self, name: str) -> NDArray[np.float64]:
        """The field ``name``, a number, of each: shape (n,), NaN where it is None."""
        values = self._column(name).astype(np.float64)
        if name not in _TIMES and name not in _FLAGS:
            values[values == _NO_NUMBER] = np.nan
        return values

    def that(self, name: str, holds: Callable[[Any], bool]) -> Mask:
        """Of which the field ``name`` ``holds``: shape (n,)."""
        if name not in self._kept.sheet.words:
            return np.fromiter(map(holds, self.values(name)), dtype=np.bool_, count=len(self))
        codes, words = self._column(name), self._kept.sheet.words[name].values
        found = np.zeros(len(words), dtype=np.bool_)
        for code in np.flatnonzero(np.bincount(codes)).tolist():
            found[code] = holds(words[code])
        mask: Mask = found[codes]
        return mask

    def _column(self, name: str) -> NDArray[Any]:
        column, places = self._kept.sheet.rows()[name], self._kept.places
        return np.array(column[: len(self)] if places is None else column[places])

    def gap_blocks(self) -> Iterator[NDArray[np.float32]]:
        """The gaps between tokens of all of them, in ms and some at a time."""
        for begin in range(0, len(self), _BLOCK):
            yield self.gaps(begin, begin + _BLOCK)

    def gaps(self, begin: int, end: int) -> NDArray[np.float32]:
        """The gaps between tokens of those from ``begin`` to before ``end``, in ms, one request's after the other's."""
        block = self._kept.block(begin, end)
        sizes = block["gaps"].astype(np.int64)
        first = np.repeat(block["gaps_from"] - (np.cumsum(sizes) - sizes), sizes)
        return self._kept.sheet.gaps()[first + np.arange(len(first))]

    def gap_counts(self) -> NDArray[np.int64]:
        """How many gaps each has: shape (n,)."""
        return np.nan_to_num(self.floats("gaps")).astype(np.int64)

    def _made(self, block: NDArray[Any]) -> Iterator[Record]:
        columns = [self._field(block, name) for name in _FIELDS]
        return (Record(*values) for values in zip(*columns, strict=True))

    def _field(self, block: NDArray[Any], name: str) -> list[Any]:
        if name == "itl_ms":
            gaps = self._kept.sheet.gaps()
            return [
                array("f", gaps[start : start + size].tobytes()) if size else None
                for start, size in zip(block["gaps_from"].tolist(), block["gaps"].tolist(), strict=True)
            ]
        return self._boxed(block[name], name)

    def _boxed(self, column: NDArray[Any], name: str) -> list[Any]:
        if name in _FLAGS:
            return list(column.tolist())
        if name in self._kept.sheet.words:
            words = self._kept.sheet.words[name].values
            return [words[code] for code in column.tolist()]
        missing = np.isnan(column) if name in _TIMES else column == _NO_NUMBER
        if not missing.any():
            return list(column.tolist())
        boxed = column.astype(object)
        boxed[missing] = None
        return list(boxed.tolist())


def values(records: Sequence[Record], name: str) -> Iterable[Any]:
    """The field ``name`` of each of ``records``."""
    return records.values(name) if isinstance(records, Rows) else map(attrgetter(name), records)


def floats(records: Sequence[Record], name: str) -> NDArray[np.float64]:
    """The field ``name``, a number, of each of ``records``: shape (n,), NaN where it is None."""
    if isinstance(records, Rows):
        return records.floats(name)
    return np.array([*map(attrgetter(name), records)], dtype=np.float64)


def gap_counts(records: Sequence[Record]) -> NDArray[np.int64]:
    """How many gaps between tokens each of ``records`` has: shape (n,)."""
    if isinstance(records, Rows):
        return records.gap_counts()
    return np.fromiter((len(record.itl_ms or ()) for record in records), np.int64, len(records))


def gaps(records: Sequence[Record], begin: int, end: int) -> NDArray[np.float64]:
    """Those of the ``records`` from ``begin`` to before ``end``, in ms, one request's after the other's."""
    if isinstance(records, Rows):
        return records.gaps(begin, end).astype(np.float64)
    return np.fromiter(chain.from_iterable(record.itl_ms or () for record in records[begin:end]), np.float64)


def only(records: Sequence[Record], mask: Mask) -> Sequence[Record]:
    """Those of ``records`` that ``mask``, of shape (n,), says."""
    if isinstance(records, Rows):
        return records.only(mask)
    return [record for record, chosen in zip(records, mask.tolist(), strict=True) if chosen]


def that(records: Sequence[Record], name: str, holds: Callable[[Any], bool]) -> Mask:
    """Of which of ``records`` the field ``name`` ``holds``: shape (n,)."""
    if isinstance(records, Rows):
        return records.that(name, holds)
    return np.fromiter((holds(getattr(record, name)) for record in records), dtype=np.bool_, count=len(records))
