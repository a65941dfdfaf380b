"""What becomes of the journal while levels are played: it is read as it grows, and its parts are packed, or thinned.

So neither memory nor disk grows without bound over hours: requests are rows on disk from ``LARGE`` on, a part of the
journal that is full is packed (a third of its size), and of a run that keeps a sample, or nothing, it is not kept.
"""

import copy
import gzip
import heapq
import time
import zlib
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from loadtest.errors import ResultError
from loadtest.records import JOURNAL, Mode, Record, entries, last_part, part

if TYPE_CHECKING:
    from loadtest.rows import Rows

PART_BYTES = 64 << 20
"""A file of the journal that has grown so long is followed by another."""
LARGE = 100_000
"""A level of more requests is kept as rows."""
SHARE = 100
"""Of a sample: one request in so many, besides each that failed and the slowest."""
SLOWEST = 100
"""Of each level."""
_LOOK_S = 1.0
_FIRST_S = 30.0  # levels that are over by then are read in one go, and nothing is done beside them
_BATCH = 20_000


class _File:
    """A file of the journal, and how much of it has been taken in."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.offset = 0


def together(found: "list[Record] | Rows", more: list[Record], folder: Path) -> "list[Record] | Rows":
    """``found`` and then ``more``: rows in ``folder`` from ``LARGE`` on, and then ``found`` is these.

    Raises:
        ResultError: the rows cannot be written.
    """
    if isinstance(found, list):
        more = [*found, *more]
        if len(more) <= LARGE:
            return more
        from loadtest.rows import Rows  # noqa: PLC0415  # numpy comes with it, which a short level need not wait for

        rows = Rows(folder)
    else:
        rows = found
    try:
        for begin in range(0, len(more), _BATCH):
            rows.append(more[begin : begin + _BATCH])
    except ResultError:
        if rows is not found:
            rows.close()
        raise
    return rows


class Keeper:
    """Of the journal in ``folder``: takes in what is written to it, and leaves of it what ``mode`` says.

    ``seed`` decides which requests a sample has.
    """

    def __init__(self, folder: Path, mode: Mode, seed: int) -> None:
        self.turned = last_part(folder)
        """How often the journal has been gone on with in a new file."""
        self.whole = True
        """Whether ``requests`` are all that could be read: false when the disk was full or the journal damaged."""
        self._folder = folder
        self._mode = mode
        self._seed = seed
        self._full: _File | None = None  # that some worker may still write to
        self._current = _File(folder / JOURNAL)
        self._looked = self._began = time.monotonic()
        self._requests: list[Record] | Rows = []
        self._sample: list[bytes] = []  # of the file that is read
        self._slowest: list[tuple[float, int, bytes]] = []  # a heap

    def skip(self) -> None:
        """Leave out what is there already, of levels that were played before."""
        path = self._current.path
        self._current.offset = path.stat().st_size if path.exists() else 0

    def begin(self) -> None:
        """A level begins; the requests of the one before are another's now."""
        self._requests, self._slowest = [], []
        self._began = time.monotonic()

    @property
    def requests(self) -> "list[Record] | Rows":
        """Those of the level that have been taken in; ``Rows`` if they are many, which whoever plays it closes."""
        return self._requests

    def so_far(self) -> "list[Record] | Rows":
        """``requests`` as they are now, whatever comes to them later."""
        return copy.copy(self._requests)

    def look(self, written: int) -> bool:
        """Take in what has been written; tells whether the workers are now to go on in a new file.

        ``written`` is how often each of them, at least, has turned to a new one.

        Raises:
            ResultError: the journal cannot be read, or what is kept of it not be written.
        """
        now = time.monotonic()
        if now - self._looked < _LOOK_S:
            return False
        self._looked = now
        path = self._current.path
        size = path.stat().st_size if path.exists() else 0
        if size < PART_BYTES and self._full is None and now - self._began < _FIRST_S:
            return False
        self._take_in()
        if self._full is not None:
            if written >= self.turned:
                self._settle()
            return False
        if size < PART_BYTES:
            return False
        self._turn()
        return True

    def end(self) -> None:
        """The level is over and nobody writes any more: take in the rest, and leave what is to stay.

        Raises:
            ResultError: the journal cannot be read, or what is kept of it not be written.
        """
        self._take_in()
        if self._full is not None:
            try:
                self._settle()
            finally:
                self._take_in()
        path = self._current.path
        if self._mode != "all" or (path.exists() and path.stat().st_size >= PART_BYTES):
            self._sample += [line for _, _, line in sorted(self._slowest)]
            if path.exists():
                self._turn()
                self._settle()

    def _take_in(self) -> None:
        self.whole = False
        if self._full is not None:
            self._read(self._full)
        if self._full is None or self._mode == "all":  # a sample is of one file at a time
            self._read(self._current)
        self.whole = True

    def _read(self, file: _File) -> None:
        if not file.path.exists():
            return
        found = entries(file.path, file.offset)
        while some := [*islice(found, _BATCH)]:
            self._requests = together(self._requests, [record for record, _ in some], self._folder)
            for record, line in some:
                file.offset += len(line)
                if self._mode == "sampled":
                    self._choose(record, line)

    def _choose(self, record: Record, line: bytes) -> None:
        if record.outcome != "ok" or zlib.crc32(b"%d %d" % (self._seed, record.id)) % SHARE == 0:
            self._sample.append(line)
            return
        took = ((record.last_token_ms if record.streamed else None) or record.done_ms or 0.0) - record.intended_ms
        if len(self._slowest) < SLOWEST:
            heapq.heappush(self._slowest, (took, record.id, line))
        elif took > self._slowest[0][0]:
            heapq.heapreplace(self._slowest, (took, record.id, line))

    def _turn(self) -> None:
        """Give the current file the name of a part."""
        self.turned += 1
        path = part(self._folder, self.turned)
        full = self._current
        try:
            full.path.rename(path)
        except OSError as error:
            raise ResultError(f"cannot rename {full.path}: {error.strerror}") from None
        full.path, self._full, self._current = path, full, _File(full.path)

    def _settle(self) -> None:
        """Nobody writes to the full part any more, and it has been read: leave of it what is to stay."""
        assert self._full is not None
        path, self._full = self._full.path, None
        packed = path.with_name(f"{path.name}.gz")
        new = packed.with_name(f".{packed.name}")
        try:
            if self._mode == "all" or self._sample:
                with path.open("rb") as source, gzip.open(new, "wb", compresslevel=1) as target:
                    if self._mode == "all":
                        while block := source.read(1 << 20):
                            target.write(block)
                    else:
                        target.writelines(self._sample)
                new.replace(packed)
            path.unlink()
        except OSError as error:
            new.unlink(missing_ok=True)
            mend = "make room there or choose another folder with -o"
            raise ResultError(
                f"cannot write {packed}: {error.strerror}; {mend}. What was written can be loaded"
            ) from None
        self._sample = []
