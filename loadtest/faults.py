"""What in the records of a level cannot have been, whatever the target did. Pure."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise

from loadtest.level import Level, LevelRun
from loadtest.records import Record

# A timer may fire early by its resolution, and readings are rounded in the journal; more is a contradiction.
CLOCK_SLACK_MS = 1.0


def faults(level: Level, records: Sequence[Record], run: LevelRun | None, probes: Sequence[Record]) -> list[str]:
    """What no level and no request can have had, in words, of the load's ``records`` and of the stream beside it."""
    return [
        *lost(level, records, run),
        *(f"{count} sessions {fault}" for fault, count in _sessions(records).items()),
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


def _sessions(records: Sequence[Record]) -> Counter[str]:
    """How many sessions have turns that are not one after the other, or went on when they were over."""
    found: Counter[str] = Counter()
    turns: dict[int | None, list[Record]] = defaultdict(list)
    for record in records:
        if record.session is not None or record.turn is not None:
            turns[record.session].append(record)
    for session in turns.values():
        session.sort(key=lambda record: record.turn or 0)
        if [record.turn for record in session] != list(range(1, len(session) + 1)) or session[0].session is None:
            found["have turns that are not the first, the second and so on"] += 1
        for before, after in pairwise(session):
            if after.sent_ms is None:
                continue
            if before.outcome != "ok" or before.ends:
                found["went on after the turn that ended them"] += 1
            elif after.sent_ms < (before.done_ms or 0.0) - CLOCK_SLACK_MS:
                found["sent a turn before they had the answer to the last one"] += 1
    return found


def _requests(level: Level, records: Sequence[Record], what: str) -> Iterator[str]:
    """What is wrong with single ones of the requests that ``what`` names."""
    repeated = len(records) - len({record.id for record in records})
    if repeated:
        yield f"{repeated} {what} are recorded twice"
    found = Counter(_fault(record, level) for record in records)
    yield from (f"{count} {what} {fault}" for fault, count in found.items() if fault)


def _fault(record: Record, level: Level) -> str:
    if record.workload not in range(len(level.workloads)):
        return "are of a workload that the level does not have"
    if record.probe and level.probe is None:
        return "are recorded, and the level has none"
    if record.outcome == "ok" and (record.sent_ms is None or record.done_ms is None):
        return "are ok and have no time of sending or of ending"
    if _backwards(record):
        return "have times that run backwards"
    if _wrong_gaps(record):
        return "have events that do not add up to the time between their first and last token"
    return ""


def _backwards(record: Record) -> bool:
    latest = record.intended_ms
    for at in (record.sent_ms, record.first_token_ms, record.first_answer_ms, record.last_token_ms, record.done_ms):
        if at is not None:
            if at < latest - CLOCK_SLACK_MS:
                return True
            latest = max(latest, at)
    return False


def _wrong_gaps(record: Record) -> bool:
    if record.outcome != "ok" or not record.streamed:
        return False
    first, last, gaps = record.first_token_ms, record.last_token_ms, record.itl_ms or []
    if first is None or last is None or not record.events:
        return bool(first is not None or last is not None or record.events or gaps)
    if len(gaps) > record.events - 1 or min(gaps, default=0.0) < 0:
        return True
    sum_of_gaps, generating = math.fsum(gaps), last - first
    # Each gap is rounded on its own. Those past the cap of what is kept are missing.
    slack = CLOCK_SLACK_MS + 1e-4 * len(gaps)
    whole = len(gaps) == record.events - 1
    return sum_of_gaps > generating + slack or (whole and sum_of_gaps < generating - slack)
