"""Records as arrays, one a reading, and the stretch of time that figures are of. Pure."""

from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from itertools import compress
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from loadtest.records import Record
from loadtest.stats import DECIMALS

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

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
    def of(cls, records: Sequence[Record], prompts: AbstractSet[int] = frozenset()) -> "Columns":
        """One pass over ``records`` for each column; ``prompts`` are the hashes of what was sent before them."""
        return cls(
            intended=_floats(r.intended_ms for r in records),
            sent=_floats(r.sent_ms for r in records),
            wait=_floats(r.wait_ms for r in records),
            connect=_floats(r.connect_ms for r in records),
            first_token=_floats(r.first_token_ms for r in records),
            first_answer=_floats(r.first_answer_ms for r in records),
            last_token=_floats(r.last_token_ms for r in records),
            done=_floats(r.done_ms for r in records),
            asked_input_tokens=_floats(r.asked_input_tokens for r in records),
            input_tokens=_floats(r.input_tokens for r in records),
            asked_output_tokens=_floats(r.asked_output_tokens for r in records),
            output_tokens=_floats(r.output_tokens for r in records),
            events=_floats(r.events for r in records),
            samples=_floats(r.samples for r in records),
            repeated=_repeated(records, prompts),
            ok=np.array([r.outcome == "ok" for r in records], dtype=np.bool_),
            streamed=np.array([r.streamed for r in records], dtype=np.bool_),
            unsent=np.array([_failed_to_send(r) for r in records], dtype=np.bool_),
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
        return Requests(
            list(compress(self.records, mask.tolist())), Columns._make(column[mask] for column in self.columns)
        )


def prompts(records: Iterable[Record]) -> Iterator[int]:
    """The hashes of the whole inputs that the load sent, as far as they are known."""
    return (r.prompt_hash for r in records if r.prompt_hash is not None and r.sent_ms is not None and not r.probe)


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


def _floats(values: Iterable[float | None]) -> Floats:
    return np.array(list(values), dtype=np.float64)  # None becomes NaN


def _repeated(records: Sequence[Record], prompts: AbstractSet[int]) -> Floats:
    found = np.full(len(records), np.nan)
    sent = [(r.sent_ms, r.id, index) for index, r in enumerate(records) if r.sent_ms is not None]
    seen: set[int] = set()
    for _, _, index in sorted(sent):
        prompt = records[index].prompt_hash
        if prompt is not None:
            found[index] = prompt in seen or prompt in prompts
            seen.add(prompt)
    return found


def _failed_to_send(record: Record) -> bool:
    if record.sent_ms is not None or record.outcome not in {"never_sent", "cancelled"}:
        return False
    return not record.wait_ms and (record.error is None or record.error.kind not in HELD_BACK)
