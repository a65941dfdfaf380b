"""What in the records of a level cannot have been, whatever the target did. Pure."""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from loadtest.level import Level, LevelRun
from loadtest.records import Record
from loadtest.rows import Mask, blocks, floats, gap_counts, gaps, only, that

# A timer may fire early by its resolution, and readings are rounded in the journal; more is a contradiction.
CLOCK_SLACK_MS = 1.0


def faults(level: Level, records: Sequence[Record], run: LevelRun | None, probes: Sequence[Record]) -> list[str]:
    """What no level and no request can have had, in words, of the load's ``records`` and of the stream beside it."""
    return [
        *lost(level, records, run),
        *_sessions(records),
        *_requests(level, records, "requests"),
        *_requests(level, probes, "requests of the probe stream"),
    ]


def lost(level: Level, records: Sequence[Record], run: LevelRun | None) -> Iterator[str]:
    """Requests that were counted otherwise than they are recorded."""
    if run is not None and run.scheduled not in {None, len(records)}:
        yield f"{run.scheduled} requests became due and {len(records)} are recorded"
    complete = run is not None and run.end == "completed"
    # A turn that fails takes those after it with it.
    fewer = level.of_sessions and len(records) < (level.requests or 0)
    if complete and level.duration_s is None and level.requests not in {None, len(records)} and not fewer:
        yield f"{level.requests} requests were scheduled and {len(records)} recorded"


def _sessions(records: Sequence[Record]) -> Iterator[str]:
    """What sessions have turns that are not one after the other, or went on when they were over."""
    chosen = ~np.isnan(floats(records, "session")) | ~np.isnan(floats(records, "turn"))
    turns = only(records, chosen)
    if not turns:
        return
    session, turn = (np.nan_to_num(floats(turns, name), nan=-1.0) for name in ("session", "turn"))
    order = np.lexsort((turn, session))
    session, turn = session[order], turn[order]
    again = session[1:] == session[:-1]
    begins = np.flatnonzero(np.append(True, ~again))
    place = np.arange(len(session)) - np.repeat(begins, np.diff(np.append(begins, len(session)))) + 1
    wrong = len(np.unique(session[(turn != place) | (session < 0)]))
    sent, done = floats(turns, "sent_ms")[order][1:], floats(turns, "done_ms")[order][:-1]
    over = (that(turns, "outcome", "ok".__ne__) | that(turns, "ends", bool))[order][:-1]
    went_on = again & ~np.isnan(sent)
    early = went_on & ~over & (sent < np.nan_to_num(done) - CLOCK_SLACK_MS)
    yield from _said(
        "sessions",
        [
            (wrong, "have turns that are not the first, the second and so on"),
            (int(np.count_nonzero(went_on & over)), "went on after the turn that ended them"),
            (int(np.count_nonzero(early)), "sent a turn before they had the answer to the last one"),
        ],
    )


def _requests(level: Level, records: Sequence[Record], what: str) -> Iterator[str]:
    """What is wrong with single ones of the requests that ``what`` names: of each the first that is found."""
    found = [(len(records) - len(np.unique(floats(records, "id"))), "are recorded twice")]
    sound = np.ones(len(records), dtype=np.bool_)
    for faulty, fault in _faulty(level, records):
        found.append((int(np.count_nonzero(sound & faulty)), fault))
        sound &= ~faulty
    yield from _said(what, found)


def _said(what: str, found: Iterable[tuple[int, str]]) -> Iterator[str]:
    return (f"{count} {what} {fault}" for count, fault in found if count)


def _faulty(level: Level, records: Sequence[Record]) -> Iterator[tuple[Mask, str]]:
    workload, ok = floats(records, "workload"), that(records, "outcome", "ok".__eq__)
    yield ~((workload >= 0) & (workload < len(level.workloads))), "are of a workload that the level does not have"
    yield that(records, "probe", bool) & (level.probe is None), "are recorded, and the level has none"
    untimed = np.isnan(floats(records, "sent_ms")) | np.isnan(floats(records, "done_ms"))
    yield ok & untimed, "are ok and have no time of sending or of ending"
    yield _backwards(records), "have times that run backwards"
    wrong = np.concatenate([np.empty(0, dtype=np.bool_), *map(_wrong_gaps, blocks(records))])
    wrong &= ok & that(records, "streamed", bool)
    yield wrong, "have events that do not add up to the time between their first and last token"


def _backwards(records: Sequence[Record]) -> Mask:
    latest, found = floats(records, "intended_ms"), np.zeros(len(records), dtype=np.bool_)
    for name in ("sent_ms", "first_token_ms", "first_answer_ms", "last_token_ms", "done_ms"):
        at = floats(records, name)  # NaN where it was not: neither earlier nor later than anything
        found |= at < latest - CLOCK_SLACK_MS
        latest = np.fmax(latest, at)
    return found


def _wrong_gaps(records: Sequence[Record]) -> Mask:
    first, last, events = (floats(records, name) for name in ("first_token_ms", "last_token_ms", "events"))
    counts, own = gap_counts(records), gaps(records)
    ends = np.cumsum(counts)
    begins = ends - counts
    added, below = (np.append(0.0, np.cumsum(values)) for values in (own, own < 0))
    sums, negative = added[ends] - added[begins], below[ends] > below[begins]
    missing = np.isnan(first) | np.isnan(last) | (events == 0)
    something = ~np.isnan(first) | ~np.isnan(last) | (events > 0) | (counts > 0)
    # Each gap is rounded on its own. Those past the cap of what is kept are missing.
    slack, beyond = CLOCK_SLACK_MS + 1e-4 * counts, sums - (last - first)
    wrong = (counts > events - 1) | negative | (beyond > slack) | ((counts == events - 1) & (beyond < -slack))
    found: Mask = np.where(missing, something, wrong)
    return found
