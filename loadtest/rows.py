"""The requests of a long level as rows of one size in a file, where records in memory would be too many.

A record in memory takes a kilobyte and more, a row ``ROW.itemsize`` bytes on disk and four a gap between tokens. Who
goes through ``Rows`` meets the same records, but for the text of paired answers, made a block at a time; who needs one
field of all takes it as a column, which is some fifty times as fast. Files are read and not mapped: pages of a mapping
would count as memory of this process.
"""

import tempfile
import threading
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from io import BufferedRandom
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from loadtest.errors import ResultError
from loadtest.records import Record, RequestError

_TIMES = (
    "intended_ms", "sent_ms", "wait_ms", "connected_ms", "connect_ms", "first_byte_ms", "first_token_ms",
    "first_answer_ms", "last_token_ms", "done_ms",
)  # fmt: skip
# Also what the target says, which may be any number.
_LARGE = ("id", "session", "prompt_hash", "bytes_in", "input_tokens", "cached_input_tokens", "output_tokens")
_SMALL = (
    "level", "worker", "workload", "asked_input_tokens", "asked_output_tokens", "events", "bad_events", "turn",
    "samples",
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
# So many rows lie together on disk, field by field, and are looked at together.
_BLOCK = 4096
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
        self._one = threading.Lock()  # at a place of a file: figures so far are made while requests come in
        try:
            self._rows: BufferedRandom = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115  # closed by close
            self._gaps: BufferedRandom = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115
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
            with self._one:
                self._write(rows)
                self._gaps.seek(self.gap_count * np.dtype(np.float32).itemsize)
                for own in gaps:
                    self._gaps.write(own if isinstance(own, array) and own.typecode == "f" else array("f", own))
                self._rows.flush()
                self._gaps.flush()
        except OSError as error:
            raise self._error(error) from None
        self.count += len(records)
        self.gap_count += int(sizes.sum())

    def _write(self, rows: NDArray[Any]) -> None:
        begin = 0
        while begin < len(rows):
            size = min(len(rows) - begin, _BLOCK - (self.count + begin) % _BLOCK)
            for name in ROW.names or ():
                self._rows.seek(_offset(name, self.count + begin))
                self._rows.write(rows[name][begin : begin + size].tobytes())
            begin += size

    def column(self, name: str, begin: int, end: int) -> NDArray[Any]:
        """The field ``name`` of the rows from ``begin`` to before ``end``."""
        found = np.empty(end - begin, ROW[name])
        at = begin
        while at < end:
            upto = min(end, at - at % _BLOCK + _BLOCK)
            self._read(self._rows, found[at - begin : upto - begin], _offset(name, at))
            at = upto
        return found

    def gaps(self, begin: int, end: int) -> NDArray[np.float32]:
        found = np.empty(end - begin, np.float32)
        self._read(self._gaps, found, begin * found.itemsize)
        return found

    def _read(self, file: BufferedRandom, into: NDArray[Any], offset: int) -> None:
        try:
            with self._one:
                file.seek(offset)
                read = file.readinto(into.data) if into.nbytes else 0
        except OSError as error:
            raise self._error(error) from None
        assert read == into.nbytes, "a row is read that was never written"

    def close(self) -> None:
        self._rows.close()
        self._gaps.close()

    def _error(self, error: OSError) -> ResultError:
        mend = "make room there or choose another folder with -o"
        return ResultError(f"cannot keep requests in {self._folder}: {error.strerror}; {mend}")


def _offset(name: str, row: int) -> int:
    """Where in the file the field ``name`` of a row is."""
    assert ROW.fields is not None
    dtype, before = ROW.fields[name][:2]
    return row // _BLOCK * _BLOCK * ROW.itemsize + before * _BLOCK + row % _BLOCK * dtype.itemsize


class _Kept(NamedTuple):
    """The rows of a sheet from ``begin`` to before ``end``, or those of them that ``chosen`` says."""

    sheet: _Sheet
    begin: int
    end: int
    chosen: Mask | None

    @property
    def size(self) -> int:
        return self.end - self.begin if self.chosen is None else int(np.count_nonzero(self.chosen))


class Rows(Sequence[Record]):
    """Requests in files of ``folder``; what ``only`` returns is some of them.

    Raises:
        ResultError: (also ``append``) the files cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        self._kept = _Kept(_Sheet(folder), 0, 0, None)

    @classmethod
    def _of(cls, kept: _Kept) -> "Rows":
        found = object.__new__(cls)
        found._kept = kept
        return found

    def append(self, records: Sequence[Record]) -> None:
        """Take in ``records`` after those that are there."""
        if records:
            self._kept.sheet.append(records)
            self._kept = self._kept._replace(end=self._kept.sheet.count)

    def only(self, mask: Mask) -> "Rows":
        """Those that ``mask``, of shape (n,), says."""
        if mask.all():
            return self
        chosen = mask
        if self._kept.chosen is not None:
            chosen = np.zeros(len(self._kept.chosen), dtype=np.bool_)
            chosen[self._kept.chosen] = mask
        return self._of(self._kept._replace(chosen=chosen))

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
        which = range(len(self))[place]
        wanted = [which] if isinstance(which, int) else [*which]
        mask = np.zeros(len(self), dtype=np.bool_)
        mask[wanted] = True
        found = dict(zip(sorted(wanted), self.only(mask), strict=True))
        return found[which] if isinstance(which, int) else [found[each] for each in which]

    def __iter__(self) -> Iterator[Record]:
        for block in self.blocks():
            columns = [block._boxed(name) for name in _FIELDS]
            yield from (Record(*values) for values in zip(*columns, strict=True))

    def blocks(self) -> Iterator["Rows"]:
        """All of them, some at a time."""
        sheet, first, last, chosen = self._kept
        for begin in range(first - first % _BLOCK, last, _BLOCK):
            low, high = max(first, begin), min(last, begin + _BLOCK)
            own = None if chosen is None else chosen[low - first : high - first]
            if own is None or own.any():
                yield self._of(_Kept(sheet, low, high, own))

    def values(self, name: str) -> Iterator[Any]:
        """The field ``name`` of each, as the records have it."""
        for block in self.blocks():
            yield from block._boxed(name)

    def floats(self, name: str) -> NDArray[np.float64]:
        """The field ``name``, a number, of each: shape (n,), NaN where it is None."""
        column = self._column(name)
        values = column.astype(np.float64, copy=False)
        if name not in _TIMES and name not in _FLAGS:
            values[column == _NO_NUMBER] = np.nan
        return values

    def that(self, name: str, holds: Callable[[Any], bool]) -> Mask:
        """Of which the field ``name`` ``holds``: shape (n,)."""
        found: list[Mask] = [np.empty(0, dtype=np.bool_)]
        for values, codes in self._coded(name):
            held = np.zeros(len(values), dtype=np.bool_)
            for code in np.flatnonzero(np.bincount(codes)).tolist():
                held[code] = holds(values[code])
            found.append(held[codes])
        return np.concatenate(found)

    def tally(self, name: str) -> Counter[Any]:
        """How many have each value of the field ``name``, in the order in which the values come first."""
        found: Counter[Any] = Counter()
        for values, codes in self._coded(name):
            counts = np.bincount(codes)
            present = np.flatnonzero(counts).tolist()
            for code in sorted(present, key=lambda code: int(np.argmax(codes == code))):
                found[values[code]] += int(counts[code])
        return found

    def gaps(self) -> NDArray[np.float32]:
        """The gaps between tokens of all of them, in ms, one request's after the other's."""
        sheet, begin, end, chosen = self._kept
        if begin == end:
            return np.empty(0, np.float32)
        first, last = sheet.column("gaps_from", begin, begin + 1), sheet.column("gaps_from", end - 1, end)
        sizes = sheet.column("gaps", begin, end)
        found = sheet.gaps(int(first[0]), int(last[0]) + int(sizes[-1]))
        return found if chosen is None else found[np.repeat(chosen, sizes)]

    def gap_counts(self) -> NDArray[np.int32]:
        """How many gaps each has: shape (n,)."""
        return self._column("gaps")

    def _column(self, name: str) -> NDArray[Any]:
        sheet, begin, end, chosen = self._kept
        if chosen is None:
            return sheet.column(name, begin, end)
        if end - begin <= _BLOCK:
            return sheet.column(name, begin, end)[chosen]
        return np.concatenate([np.empty(0, ROW[name]), *(block._column(name) for block in self.blocks())])

    def _coded(self, name: str) -> Iterator[tuple[list[Any], NDArray[Any]]]:
        """Of some at a time the values of a field, and of each which of them it has."""
        for block in self.blocks():
            column = block._column(name)
            if name in self._kept.sheet.words:
                yield self._kept.sheet.words[name].values, column
            elif name in _FLAGS:
                yield [False, True], column.view(np.uint8)
            else:
                found, codes = np.unique(column, return_inverse=True)
                yield self._box(found, name), codes

    def _boxed(self, name: str) -> list[Any]:
        """Of a block."""
        if name != "itl_ms":
            return self._box(self._column(name), name)
        gaps, ends = self.gaps(), np.cumsum(self.gap_counts()).tolist()
        pairs = zip([0, *ends], ends, strict=False)
        return [array("f", gaps[begin:end].tobytes()) if end > begin else None for begin, end in pairs]

    def _box(self, column: NDArray[Any], name: str) -> list[Any]:
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


def tally(records: Sequence[Record], name: str) -> Counter[Any]:
    """How many of ``records`` have each value of the field ``name``, in the order in which the values come first."""
    return records.tally(name) if isinstance(records, Rows) else Counter(map(attrgetter(name), records))


def blocks(records: Sequence[Record]) -> Iterator[Sequence[Record]]:
    """All of ``records``, some at a time."""
    if isinstance(records, Rows):
        return records.blocks()
    return (records[begin : begin + _BLOCK] for begin in range(0, len(records), _BLOCK))


def gap_counts(records: Sequence[Record]) -> NDArray[np.int32]:
    """How many gaps between tokens each of ``records`` has: shape (n,)."""
    if isinstance(records, Rows):
        return records.gap_counts()
    return np.fromiter((len(record.itl_ms or ()) for record in records), np.int32, len(records))


def gaps(records: Sequence[Record]) -> NDArray[np.float64]:
    """The gaps between tokens of ``records``, few enough for memory, in ms, one request's after the other's."""
    if isinstance(records, Rows):
        return records.gaps().astype(np.float64)
    # Those of the journal are arrays of four bytes, which are copied and not gone through.
    found = [np.asarray(record.itl_ms, np.float64) for record in records if record.itl_ms]
    return np.concatenate([np.empty(0), *found])


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
