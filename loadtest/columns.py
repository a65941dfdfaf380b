"""Records as arrays, one a reading, and the stretch of time that figures are of. Pure."""

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from loadtest.records import Record
from loadtest.rows import Rows, floats, only, that
from loadtest.stats import DECIMALS

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]
Hashes = NDArray[np.int64]

# What the user's own caps held back, or what was still opening its connection, the generator did not fail to send.
HELD_BACK = frozenset({"dropped", "never_sent", "cancelled"})

_AS_RECORDED = frozenset(
    {
        "asked_input_tokens", "input_tokens", "asked_output_tokens", "output_tokens", "cached_input_tokens", "events",
        "samples",
    }
)  # fmt: skip


class Bounds(NamedTuple):
    """A stretch of the level in milliseconds from its t0, both ends included; empty when it ends before it starts."""

    start: float
    end: float
    sending_ended: float

    @property
    def length_s(self) -> float | None:
        """Its length, or None when it has none and nothing can be divided by it."""
        return (self.end - self.start) / 1000 if self.end > self.start else None


class Columns:
    """Requests as arrays of shape (n,), each made when it is asked for. Times in ms from t0; NaN is "not measured".

    ``source`` makes the one of a name. ``keeps`` says that this costs more than to hold it, as of records in memory.
    """

    intended: Floats
    sent: Floats
    wait: Floats
    connect: Floats
    first_token: Floats
    first_answer: Floats
    last_token: Floats
    done: Floats
    asked_input_tokens: Floats
    input_tokens: Floats
    asked_output_tokens: Floats
    output_tokens: Floats
    events: Floats
    samples: Floats
    cached_input_tokens: Floats
    repeated: NDArray[np.int8]  # 1 where the whole input had been sent before, 0 where not, -1 where nobody knows
    ok: Mask
    streamed: Mask
    unsent: Mask  # due, and the generator's own failure to send

    def __init__(self, source: Callable[[str], NDArray[Any]], *, keeps: bool = True) -> None:
        self._source = source
        self._keeps = keeps

    @classmethod
    def of(cls, records: Sequence[Record], prompts: Collection[int] | Hashes = ()) -> "Columns":
        """Those of ``records``; ``prompts`` are the hashes of what was sent before them."""
        return cls(partial(_column, records, prompts), keeps=not isinstance(records, Rows))

    def __getattr__(self, name: str) -> NDArray[Any]:
        if name not in Columns.__annotations__:
            raise AttributeError(name)
        made = self._source(name)
        if self._keeps or made.itemsize == 1:
            setattr(self, name, made)
        return made

    def only(self, chosen: Mask) -> "Columns":
        """Those of the requests that ``chosen`` says."""
        return Columns(lambda name: getattr(self, name)[chosen], keeps=self._keeps)

    @property
    def ended(self) -> Floats:
        """When the answer was complete: last token, or done where nothing was streamed."""
        return np.where(self.streamed, self.last_token, self.done)

    @property
    def in_one_burst(self) -> Mask:
        """Streams of several events that all arrived at once, so that there is no time between them."""
        burst: Mask = self.streamed & (self.events >= 2) & (self.last_token <= self.first_token)
        return burst

    @property
    def own_lag(self) -> Floats:
        """The generator's own lateness."""
        found = self.sent - self.intended
        found -= self.wait
        return found

    def belonging_to(self, bounds: Bounds) -> Mask:
        """Which requests belong to the window, by their intended time."""
        mask: Mask = (self.intended >= bounds.start) & (self.intended <= bounds.end)
        return mask


class Requests(NamedTuple):
    """Some requests of a level, as records and as columns."""

    records: Sequence[Record]
    columns: Columns

    def only(self, chosen: Mask) -> "Requests":
        """Those that ``chosen``, of shape (n,), says."""
        return Requests(only(self.records, chosen), self.columns.only(chosen))


def prompts(records: Sequence[Record]) -> Hashes:
    """The hashes of the whole inputs that the load sent, as far as they are known: rising, each once."""
    hashes = floats(records, "prompt_hash")  # 48 bits: exact in a float
    known = ~np.isnan(hashes) & ~np.isnan(floats(records, "sent_ms")) & ~that(records, "probe", bool)
    return np.unique(hashes[known].astype(np.int64))


def low(values: Floats) -> float:
    """The smallest of those that were measured; infinite when none was."""
    return float(np.nanmin(values, initial=np.inf))


def high(values: Floats) -> float:
    """The largest of those that were measured; minus infinity when none was."""
    return float(np.nanmax(values, initial=-np.inf))


def measured(values: Floats) -> Floats:
    """Those that were measured, without the noise that subtracting readings leaves behind their last decimal."""
    found = values[~np.isnan(values)]
    return np.round(found, DECIMALS, out=found)


def clip(starts: Floats, ends: Floats, start: float, end: float) -> tuple[Floats, Floats]:
    """The parts of the intervals within ``start..end``. One without an end was still going on."""
    touches = (starts <= end) & ~(ends < start)
    starts, ends = starts[touches], ends[touches]
    ends[np.isnan(ends)] = end
    return np.clip(starts, start, end, out=starts), np.clip(ends, start, end, out=ends)


def _column(records: Sequence[Record], prompts: Collection[int] | Hashes, name: str) -> NDArray[Any]:
    if name == "repeated":
        return _repeated(records, prompts)
    if name == "ok":
        return that(records, "outcome", "ok".__eq__)
    if name == "streamed":
        return that(records, "streamed", bool)
    if name == "unsent":
        failed = that(records, "outcome", {"never_sent", "cancelled"}.__contains__)
        failed[failed] = [*map(_failed_to_send, only(records, failed))]
        return failed
    return floats(records, name if name in _AS_RECORDED else f"{name}_ms")


def _repeated(records: Sequence[Record], prompts: Collection[int] | Hashes) -> NDArray[np.int8]:
    found = np.full(len(records), -1, dtype=np.int8)
    hashes, sent = floats(records, "prompt_hash"), floats(records, "sent_ms")
    known = ~np.isnan(hashes) & ~np.isnan(sent)
    hashes, sent = hashes[known], sent[known]
    order = np.lexsort((floats(records, "id")[known], sent, hashes))
    in_order = hashes[order]
    del hashes, sent
    again = np.zeros(len(order), dtype=np.bool_)
    again[order[1:]] = in_order[1:] == in_order[:-1]
    before = np.sort(prompts if isinstance(prompts, np.ndarray) else np.array([*prompts], dtype=np.int64))
    if len(before):
        at = np.minimum(np.searchsorted(before, in_order.astype(np.int64)), len(before) - 1)
        again[order] |= before[at] == in_order
    found[known] = again
    return found


def _failed_to_send(record: Record) -> bool:
    return (
        record.sent_ms is None and not record.wait_ms and (record.error is None or record.error.kind not in HELD_BACK)
    )
