"""The sessions of a level, put together from the records of their turns. Pure."""

from collections.abc import Sequence
from functools import partial
from operator import eq
from typing import NamedTuple

import numpy as np

from loadtest import measures
from loadtest.columns import Bounds, Floats, Mask
from loadtest.level import Level
from loadtest.records import Record
from loadtest.result import Sessions
from loadtest.rows import floats, only, that
from loadtest.stats import significant

# What the end of the level cut off is no failure of the session's; a turn that met a full cap is.
_CUT = frozenset({"cancelled", "never_sent"})
_DROPPED = "dropped"


class Conversations(NamedTuple):
    """Sessions as arrays of shape (n,), of the turns that became due. Times in ms, NaN where there is none."""

    turns: int
    begun: Floats  # when the first turn was due
    starts: Floats  # from when until when the user was there; one who still is has no end
    ends: Floats
    completed: Mask
    abandoned: Mask
    failed: Mask  # a turn that fails ends its session


def conversations(records: Sequence[Record], sending_ended: float) -> Conversations:
    """Every session among ``records``, of which those without one are left out."""
    turns = only(records, ~np.isnan(floats(records, "session")))
    session = floats(turns, "session")
    order = np.lexsort((floats(turns, "turn"), session))
    session = session[order]
    changes = session[1:] != session[:-1]
    first, last = order[np.append(True, changes)[: len(order)]], order[np.append(changes, True)[: len(order)]]
    ok = that(turns, "outcome", "ok".__eq__)[last]
    cut = that(turns, "outcome", _CUT.__contains__)[last]
    cut &= ~that(turns, "error", lambda error: error is not None and error.kind == _DROPPED)[last]
    completed, abandoned = (ok & that(turns, "ends", partial(eq, how))[last] for how in ("completed", "abandoned"))
    ends = floats(turns, "done_ms")[last]
    # Whose next turn was never due thought of it until then.
    ends[ok & ~completed & ~abandoned & (ends < sending_ended)] = sending_ended
    return Conversations(
        turns=len(turns),
        begun=floats(turns, "intended_ms")[first],
        starts=(floats(turns, "sent_ms") - floats(turns, "wait_ms"))[first],
        ends=ends,
        completed=completed,
        abandoned=abandoned,
        failed=~ok & ~cut,
    )


def users(records: Sequence[Record], sending_ended: float) -> tuple[Floats, Floats]:
    """From when until when each user was there: one a session, and one a request without. In ms, NaN as in columns."""
    found = conversations(records, sending_ended)
    alone = np.isnan(floats(records, "session"))
    starts, ends = floats(records, "sent_ms") - floats(records, "wait_ms"), floats(records, "done_ms")
    return np.concatenate([found.starts, starts[alone]]), np.concatenate([found.ends, ends[alone]])


def summarised(level: Level, records: Sequence[Record], bounds: Bounds) -> Sessions | None:
    """The figures of the level's sessions; None when it has none."""
    found = conversations(records, bounds.sending_ended)
    started = len(found.begun)
    if not started:
        return None
    completed, abandoned, failed = (int(each.sum()) for each in (found.completed, found.abandoned, found.failed))
    begun = int(np.count_nonzero((found.begun >= bounds.start) & (found.begun <= bounds.end)))
    # Of a mix some of the arrivals are single requests.
    target = level.load.mean_rate_per_s(bounds.start / 1000, bounds.end / 1000) if level.load.kind != "trace" else None
    weights = sum(one.weight for one in level.workloads)
    share = sum(one.weight for one in level.workloads if one.conversation) / weights
    return Sessions(
        started=started,
        completed=completed,
        abandoned=abandoned,
        failed=failed,
        cut_short=started - completed - abandoned - failed,
        mean_turns=significant(found.turns / started),
        target_per_s=None if target is None else significant(target * share),
        started_per_s=None if bounds.length_s is None else significant(begun / bounds.length_s),
        concurrency=measures.concurrency(found.starts, found.ends, bounds),
    )
