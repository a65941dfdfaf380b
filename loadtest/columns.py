"""Records as arrays, one a reading, and the stretch of time that figures are of. Pure."""

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from loadtest.records import Record
from loadtest.rows import floats, only, that
from loadtest.stats import DECIMALS

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]
Hashes = NDArray[np.int64]

# What the user's own caps held back, or what was still opening its connection, the generator did not fail to send.
HELD_BACK = frozenset({"dropped", "never_sent", "cancelled"})


class Bounds(NamedTuple):
    """A stretch of the level in milliseconds from its t0, both ends included; empty when it ends before it starts."""

    start: float
    end: float
    sending_ended: float

    @property
    def length_s(self) -> float | None:
        """Its length, or None when it has none and nothing can be divided by it."""
        return (self.end - self.start) / 1000 if self.end > self.start else None


class Columns(NamedTuple):
    """The records as arrays of shape (n,). Times in ms from t0; NaN is "not measured"."""

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
    repeated: Floats  # 1 where the whole input had been sent before, 0 where not
    ok: Mask
    streamed: Mask
    unsent: Mask  # due, and the generator's own failure to send

    @classmethod
    def of(cls, records: Sequence[Record], prompts: Collection[int] | Hashes = ()) -> "Columns":
        """One pass over ``records`` for each column; ``prompts`` are the hashes of what was sent before them."""
        ok = that(records, "outcome", "ok".__eq__)
        unsent = np.zeros(len(records), dtype=np.bool_)
        unsent[~ok] = [*map(_failed_to_send, only(records, ~ok))]
        return cls(
            intended=floats(records, "intended_ms"),
            sent=floats(records, "sent_ms"),
            wait=floats(records, "wait_ms"),
            connect=floats(records, "connect_ms"),
            first_token=floats(records, "first_token_ms"),
            first_answer=floats(records, "first_answer_ms"),
            last_token=floats(records, "last_token_ms"),
            done=floats(records, "done_ms"),
            asked_input_tokens=floats(records, "asked_input_tokens"),
            input_tokens=floats(records, "input_tokens"),
            asked_output_tokens=floats(records, "asked_output_tokens"),
            output_tokens=floats(records, "output_tokens"),
            events=floats(records, "events"),
            samples=floats(records, "samples"),
            repeated=_repeated(records, prompts),
            ok=ok,
            streamed=that(records, "streamed", bool),
            unsent=unsent,
        )

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
        return self.sent - self.intended - self.wait

    def belonging_to(self, bounds: Bounds) -> Mask:
        """Which requests belong to the window, by their intended time."""
        mask: Mask = (self.intended >= bounds.start) & (self.intended <= bounds.end)
        return mask


class Requests(NamedTuple):
    """Some requests of a level, as records and as columns."""

    records: Sequence[Record]
    columns: Columns

    def only(self, chosen: Iterable[bool]) -> "Requests":
        """Those that ``chosen`` says, one answer a request."""
        mask = np.fromiter(chosen, dtype=np.bool_, count=len(self.records))
        return Requests(only(self.records, mask), Columns._make(column[mask] for column in self.columns))


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
    return np.round(values[~np.isnan(values)], DECIMALS)


def clip(starts: Floats, ends: Floats, start: float, end: float) -> tuple[Floats, Floats]:
    """The parts of the intervals within ``start..end``. One without an end was still going on."""
    ends = np.where(np.isnan(ends), np.inf, ends)
    touches = (starts <= end) & (ends >= start)
    return np.clip(starts[touches], start, end), np.clip(ends[touches], start, end)


def _repeated(records: Sequence[Record], prompts: Collection[int] | Hashes) -> Floats:
    found = np.full(len(records), np.nan)
    hashes, sent = floats(records, "prompt_hash"), floats(records, "sent_ms")
    known = np.flatnonzero(~np.isnan(hashes) & ~np.isnan(sent))
    known = known[np.lexsort((floats(records, "id")[known], sent[known]))]
    in_order = hashes[known].astype(np.int64)
    before = prompts if isinstance(prompts, np.ndarray) else np.array([*prompts], dtype=np.int64)
    again = np.ones(len(known), dtype=np.bool_)
    again[np.unique(in_order, return_index=True)[1]] = False
    found[known] = again | np.isin(in_order, before)
    return found


def _failed_to_send(record: Record) -> bool:
    if record.sent_ms is not None or record.outcome not in {"never_sent", "cancelled"}:
        return False
    return not record.wait_ms and (record.error is None or record.error.kind not in HELD_BACK)
