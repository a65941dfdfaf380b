"""The sessions of a level, put together from the records of their turns. Pure."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from loadtest import measures
from loadtest.columns import Bounds, Floats
from loadtest.level import Level
from loadtest.records import Record
from loadtest.result import Sessions
from loadtest.rows import floats, only, that
from loadtest.stats import significant

# What the end of the level cut off is no failure of the session's; a turn that met a full cap is.
_CUT = frozenset({"cancelled", "never_sent"})
_DROPPED = "dropped"


class Session(NamedTuple):
    """The turns of one session that became due, in their order; one at least."""

    turns: list[Record]

    @property
    def outcome(self) -> Literal["completed", "abandoned", "failed", "cut_short"]:
        """How it ended; a turn that fails ends it."""
        last = self.turns[-1]
        if last.outcome != "ok":
            dropped = last.error is not None and last.error.kind == _DROPPED
            return "cut_short" if last.outcome in _CUT and not dropped else "failed"
        return last.ends or "cut_short"

    def span(self, sending_ended: float) -> tuple[float | None, float | None]:
        """From when until when its user was there, in ms; None is "never sent" and "still there"."""
        first, last = self.turns[0], self.turns[-1]
        start = None if first.sent_ms is None else first.sent_ms - first.wait_ms
        if last.done_ms is None or last.outcome != "ok" or last.ends:
            return start, last.done_ms
        return start, max(last.done_ms, sending_ended)  # thinking of a next turn that was never due


def sessions(records: Sequence[Record]) -> list[Session]:
    """Every session among ``records``, of which those without one are left out."""
    turns: dict[int, list[Record]] = defaultdict(list)
    for record in only(records, that(records, "session", lambda session: session is not None)):
        assert record.session is not None
        turns[record.session].append(record)
    return [Session(sorted(found, key=lambda record: record.turn or 0)) for found in turns.values()]


def users(records: Sequence[Record], sending_ended: float) -> tuple[Floats, Floats]:
    """From when until when each user was there: one a session, and one a request without. In ms, NaN as in columns."""
    spans = np.array([session.span(sending_ended) for session in sessions(records)], dtype=np.float64).reshape(-1, 2)
    alone = np.isnan(floats(records, "session"))
    starts, ends = floats(records, "sent_ms") - floats(records, "wait_ms"), floats(records, "done_ms")
    return np.concatenate([spans[:, 0], starts[alone]]), np.concatenate([spans[:, 1], ends[alone]])


def summarised(level: Level, records: Sequence[Record], bounds: Bounds) -> Sessions | None:
    """The figures of the level's sessions; None when it has none."""
    found = sessions(records)
    if not found:
        return None
    ended = Counter(session.outcome for session in found)
    spans = np.array([session.span(bounds.sending_ended) for session in found], dtype=np.float64)
    begun = sum(bounds.start <= session.turns[0].intended_ms <= bounds.end for session in found)
    # Of a mix some of the arrivals are single requests.
    target = level.load.mean_rate_per_s(bounds.start / 1000, bounds.end / 1000) if level.load.kind != "trace" else None
    weights = sum(one.weight for one in level.workloads)
    share = sum(one.weight for one in level.workloads if one.conversation) / weights
    return Sessions(
        started=len(found),
        completed=ended["completed"],
        abandoned=ended["abandoned"],
        failed=ended["failed"],
        cut_short=ended["cut_short"],
        mean_turns=significant(sum(len(session.turns) for session in found) / len(found)),
        target_per_s=None if target is None else significant(target * share),
        started_per_s=None if bounds.length_s is None else significant(begun / bounds.length_s),
        concurrency=measures.concurrency(spans[:, 0], spans[:, 1], bounds),
    )
