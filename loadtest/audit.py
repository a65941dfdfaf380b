"""What pairs of the same request tell of a target before it is measured: whether the same request brings the same text,
and whether it is answered faster the second time. Pure.

The first of a pair was never sent before. docs/checks.md says what comes of it and why.
"""

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec
import numpy as np

from loadtest.evidence import gate
from loadtest.judgement import share_interval
from loadtest.level import Level
from loadtest.records import Record
from loadtest.result import Audit, VerdictName
from loadtest.scenario.model import AuditSettings
from loadtest.schedule import Load
from loadtest.shift import CONFIDENCE
from loadtest.stats import significant
from loadtest.tails import at_most
from loadtest.workload.model import Workload

LEAST = 20  # pairs
FASTER = 0.10  # from here on the second of a pair was not computed again
INDEX = -1  # of the level, among those of the run
_AROUND = 20  # characters of two texts that are shown on each side of where they part

Pair = tuple[Record, Record]
_Timed = Callable[[Record], float | None]


def pairs_of(level: Level, pairs: int, greedy: str | None) -> Level:
    """The level that sends pairs of what ``level`` asks: one request at a time, no prompt with a start of another's.

    ``greedy`` are keys of a body, above which the user's own stand. A trace has no texts: of it there are the lengths.
    Of a conversation it is the first turn.
    """
    return msgspec.structs.replace(
        level,
        index=INDEX,
        name="audit",
        load=Load("closed", concurrency=1),
        workloads=tuple(_alone(workload, greedy) for workload in level.workloads),
        duration_s=None,
        requests=2 * pairs,
        warmup_s=0.0,
        probe=None,
        repeat=1,
        paired=True,
    )


def _alone(workload: Workload, greedy: str | None) -> Workload:
    asked, answer, rows = workload.input_tokens, workload.output_tokens, workload.rows
    if rows is not None and workload.data is None:
        asked, answer, rows = asked or rows.input_tokens, answer or rows.output_tokens, None
    return msgspec.structs.replace(
        workload,
        input_tokens=asked,
        output_tokens=answer,
        rows=rows,
        body=_merged(greedy, workload.body),
        prefix=None,
        conversation=None,
        checks=(),
    )


def _merged(greedy: str | None, body: str | None) -> str | None:
    """Our keys with the user's above them; two objects by the same key are one, key by key."""
    if greedy is None or body is None:
        return greedy or body
    ours: dict[str, Any] = msgspec.json.decode(greedy)
    for key, value in msgspec.json.decode(body).items():
        both = isinstance(value, dict) and isinstance(ours.get(key), dict)
        ours[key] = {**ours[key], **value} if both else value
    return msgspec.json.encode(ours).decode()


def audits(asked: AuditSettings, records: Iterable[Record]) -> list[Audit]:
    """What the pairs among ``records`` come to."""
    found = _pairs(records)
    said = [_deterministic(found, asked.pairs)] if asked.deterministic else []
    return [*said, *([_cache(found, asked.pairs, declared=asked.cache == "declared")] if asked.cache else [])]


def _pairs(records: Iterable[Record]) -> list[Pair]:
    """The pairs that were both answered, in the order in which they were sent."""
    by_id: dict[int, list[Record]] = defaultdict(list)
    for record in records:
        if record.outcome == "ok":
            by_id[record.id].append(record)
    both = [sorted(each, key=_sent) for _, each in sorted(by_id.items()) if len(each) == 2]
    return [(first, second) for first, second in both]


def _sent(record: Record) -> float:
    assert record.sent_ms is not None, "an answer is one to something that was sent"
    return record.sent_ms


def _too_few(kind: Any, pairs: Sequence[Pair], asked: int) -> Audit:
    words = f"{len(pairs)} of {asked} pairs were answered, and it takes {LEAST} to tell"
    return Audit(kind=kind, outcome="INCONCLUSIVE", value=None, ci=None, n=len(pairs), words=words)


def _deterministic(pairs: Sequence[Pair], asked: int) -> Audit:
    """A single pair that differs is proof enough; that none does is proof of no more than that many."""
    told = [pair for pair in pairs if pair[0].text or pair[1].text]
    differing = np.array([first.text != second.text for first, second in told], dtype=np.bool_)
    count, n = int(np.count_nonzero(differing)), len(told)
    if n < LEAST and not count:
        return _too_few("deterministic", told, asked)
    low, high = share_interval(gate(differing, None, 0.5))
    words = f"the same request brought the same text, in each of {n} pairs"
    if count:
        first, second = told[int(np.flatnonzero(differing)[0])]
        parted = _parted(first.text or "", second.text or "")
        words = f"the same request brought another text in {count} of {n} pairs, such as {parted}"
    return Audit(
        kind="deterministic",
        outcome="FAIL" if count else "PASS",
        value=significant(count / n),
        ci=(significant(low), significant(high)),
        n=n,
        words=words,
    )


def _parted(one: str, other: str) -> str:
    """Where two texts part, with what is around."""
    at = next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    start = max(0, at - _AROUND)
    shown = (
        f"{'…' * (start > 0)}{text[start : at + _AROUND]}{'…' * (len(text) > at + _AROUND)}" for text in (one, other)
    )
    before, after = shown
    return f"from character {at + 1} on: {before!r}, then {after!r}"


def _cache(pairs: Sequence[Pair], asked: int, *, declared: bool) -> Audit:
    name, timed = ("TTFT", _ttft) if all(_ttft(record) for pair in pairs for record in pair) else ("E2E", _e2e)
    times = [(first, second) for first, second in ((timed(a), timed(b)) for a, b in pairs) if first and second]
    if len(times) < LEAST:
        return _too_few("cache", pairs, asked)
    gain, low, high = _median([1 - second / first for first, second in times])
    said = f"asked again at once, a request took {abs(gain):.1%} {'less' if gain >= 0 else 'more'} {name}"
    outcome: VerdictName
    if declared:
        outcome, more = "PASS", "a cache is declared"
    elif low > FASTER:
        outcome = "INVALID"
        more = "the target answers from a cache; if that is meant, declare it with audit.cache: declared"
    elif high <= FASTER:
        outcome, more = "PASS", "no cache shows"
    else:
        outcome, more = "INCONCLUSIVE", f"whether it is more than {FASTER:.0%} is not sure; more audit.pairs would tell"
    return Audit(
        kind="cache",
        outcome=outcome,
        value=significant(gain),
        ci=(significant(low), significant(high)),
        n=len(times),
        words=f"{said} (95 % confidence interval {low:.1%} to {high:.1%}): {more}",
    )


def _median(samples: Sequence[float]) -> tuple[float, float, float]:
    """The median with the 95 % confidence interval of a sign test.

    What drifts from pair to pair is the same within each, so that pairs are as good as independent.
    """
    ascending, n = sorted(samples), len(samples)
    outside = next(place for place in range(n) if at_most(place, n, 0.5) > (1 - CONFIDENCE) / 2)
    return statistics.median(ascending), ascending[outside - 1], ascending[n - outside]


def _ttft(record: Record) -> float | None:
    """From when it was sent: there is no schedule that it could be late by."""
    return None if record.first_token_ms is None else record.first_token_ms - _sent(record)


def _e2e(record: Record) -> float | None:
    return None if record.done_ms is None else record.done_ms - _sent(record)
