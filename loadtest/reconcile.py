"""Whether a level's figures agree with the records they were made from, and with each other. Pure.

A load tester that contradicts itself has a bug, and its figures are no ground for a decision. So every total is
computed here a second time, by another road than ``loadtest.summary`` takes (request by request and event by event
instead of column by column), and compared with the figure as it will be reported.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from loadtest.faults import CLOCK_SLACK_MS, faults, lost
from loadtest.level import Level, LevelRun
from loadtest.records import OUTCOMES, Record
from loadtest.result import Counts, Latency, LevelResult, Metric, ModelPart, Part, ProbeResult, Throughput, Turn
from loadtest.rows import Rows, values
from loadtest.stats import PERCENTILES, Dist, Due

# Figures are reported to 7 significant digits.
ROUNDING = 1e-5
_BLOCK = 4096  # records whose events are looked at together


class Stretch(NamedTuple):
    """A part of a level, in milliseconds from its t0, both ends included and the end after the start."""

    start: float
    end: float

    @property
    def length_s(self) -> float:
        """Its length in seconds."""
        return (self.end - self.start) / 1000

    def holds(self, at: float) -> bool:
        """Whether ``at`` lies within."""
        return self.start <= at <= self.end


def contradictions(
    level: Level,
    records: Sequence[Record],
    run: LevelRun | None,
    window: Stretch | None,
    figures: LevelResult,
    probes: Sequence[Record] = (),
) -> list[str]:
    """What in ``figures`` cannot be true, in words; empty when all is well.

    ``window`` is the stretch that the figures are of, or None when it is empty. ``probes`` are the records of the
    stream beside the load. Where the records themselves are impossible only that is said: everything else follows.
    Of ``Rows`` only what takes no memory of each is looked at: conservation, the lists, and the distributions.
    """
    if isinstance(records, Rows):
        return [
            *lost(level, records, run),
            *_counts(records, window, figures.counts),
            *_listed(figures),
            *_distributions(_metrics(figures.latency)),
            *_probe(probes, window, figures.probe),
        ]
    return faults(level, records, run, probes) or [
        *_counts(records, window, figures.counts),
        *_listed(figures),
        *_window(level, records, run, window, figures),
        *_distributions(_metrics(figures.latency)),
        *_samples(records, window, _metrics(figures.latency)),
        *_concurrency(records, window, figures),
        *_tokens(records, window, figures),
        *_sessions(records, window, figures),
        *_parts(records, window, figures),
        *_probe(probes, window, figures.probe),
    ]


def _alike(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=ROUNDING, abs_tol=ROUNDING)


# Counts and the window ------------------------------------------------------------------------------------------


def _counts(records: Sequence[Record], window: Stretch | None, counts: Counts) -> Iterator[str]:
    """Conservation."""
    ended = Counter(values(records, "outcome"))
    if not counts.scheduled == len(records) == counts.ok + counts.failed:
        yield (
            f"{counts.scheduled} requests are counted as scheduled, {len(records)} are recorded and "
            f"{counts.ok + counts.failed} have an outcome"
        )
    wrong = [name for name in OUTCOMES if getattr(counts, name) != ended[name]]
    if wrong:
        yield f"the counts of {', '.join(wrong)} are not those of the records"
    inside = sum(map(window.holds, values(records, "intended_ms"))) if window else counts.in_window
    if counts.in_window != inside or not counts.in_window <= counts.scheduled or not counts.sent <= counts.scheduled:
        yield f"{inside} requests were due in the window and {counts.in_window} are counted"


def _listed(figures: LevelResult) -> Iterator[str]:
    """That every list of requests adds up to the same ones, and no more are repeated than were sent."""
    counts, repeated = figures.counts, figures.workload.repeated_prompts
    if sum(group.count for group in figures.errors) != counts.failed:
        yield f"{counts.failed} requests failed and {sum(group.count for group in figures.errors)} errors are listed"
    if sum(figures.finish_reasons.values()) != counts.ok:
        yield f"{counts.ok} requests are ok and {sum(figures.finish_reasons.values())} finish reasons are listed"
    if repeated is not None and not 0 <= repeated <= counts.sent:
        yield f"{repeated} of {counts.sent} requests are said to repeat a prompt"


def _window(
    level: Level, records: Sequence[Record], run: LevelRun | None, window: Stretch | None, figures: LevelResult
) -> Iterator[str]:
    """That the window is the level's, and that rate × window is a number of requests."""
    measured_s, rates = figures.window.measured_s, figures.rates
    if (window is None) != (measured_s is None) or (figures.window.drain_s or 0.0) < 0:
        yield f"the window is said to last {measured_s} s and its drain {figures.window.drain_s} s"
    if run is not None and run.workers and run.end != "worker_lost":
        late = sum(r.intended_ms > run.sending_ended_ms + CLOCK_SLACK_MS for r in records)
        if late:
            yield f"{late} requests became due after the sending had ended"
    if window is None or measured_s is None:
        return
    expected = _planned(level, records, run)
    if not _alike(measured_s, window.length_s) or (expected is not None and not _alike(measured_s, expected)):
        yield f"the window lasts {measured_s} s in the result and {window.length_s if expected is None else expected} s"
    due = [r for r in records if window.holds(r.intended_ms)]
    counted = {
        "offered_per_s": sum(r.sent_ms is not None for r in due),
        "completed_per_s": sum(r.outcome == "ok" for r in due),
    }
    for name, count in counted.items():
        rate = getattr(rates, name)
        if rate is None or not _alike(rate * window.length_s, count):
            yield f"{name} of {rate} over {window.length_s:g} s is not {count} requests"


def _planned(level: Level, records: Sequence[Record], run: LevelRun | None) -> float | None:
    """How long the window of a complete level must be, in seconds; None where no plan says so."""
    if run is None or run.end != "completed" or not records:
        return None
    if level.duration_s is None or (level.requests is not None and len(records) >= level.requests):
        done = [r.done_ms for r in records if r.done_ms is not None]
        first = min(r.intended_ms for r in records)
        return max(done) / 1000 - max(level.warmup_s, first / 1000) if done else None
    return min(level.duration_s, run.sending_ended_ms / 1000) - level.warmup_s


# Distributions --------------------------------------------------------------------------------------------------


def _metrics(latency: Latency) -> dict[str, Metric]:
    return {name: getattr(latency, name) for name in latency.__struct_fields__}


def _distributions(metrics: Mapping[str, Metric]) -> Iterator[str]:
    """That percentiles rise and lie between the smallest and the largest sample."""
    for name, metric in metrics.items():
        if _disordered(metric.ok):
            yield f"{name} has percentiles or a mean outside its smallest and largest sample, or out of order"
        elif metric.due is not None and _disordered_due(metric.due, metric.ok):
            yield f"{name} with the failures inside has percentiles that its samples cannot have"


def _disordered(dist: Dist) -> bool:
    ascending = [dist.min, *(getattr(dist, name) for name in PERCENTILES), dist.max]
    known = [value for value in (*ascending, dist.mean) if value is not None]
    if dist.n == 0 or len(known) < len(ascending) + 1:
        return bool(known) or dist.n != 0
    return any(low > high for low, high in pairwise(known[:-1])) or not known[0] <= known[-1] <= known[-2]


def _disordered_due(due: Due, ok: Dist) -> bool:
    values = {name: getattr(due, name) for name in PERCENTILES}
    bounded = [name for name in PERCENTILES if values[name] is not None]
    unbounded = [name for name in PERCENTILES if values[name] is None]
    if due.n != ok.n + due.failed or due.unbounded != (unbounded if due.n else []):
        return True
    ascending = [values[name] for name in bounded]
    if bounded != list(PERCENTILES)[: len(bounded)] or any(low > high for low, high in pairwise(ascending)):
        return True
    # Failures in the tail can only move a percentile up, and never past the largest that was measured.
    return any(not getattr(ok, name) <= values[name] <= (ok.max or 0.0) for name in bounded)


def _samples(records: Sequence[Record], window: Stretch | None, metrics: Mapping[str, Metric]) -> Iterator[str]:
    """That each distribution rests on every ok request of the window, save those it says it leaves out."""
    if window is None:
        return
    due = [r for r in records if window.holds(r.intended_ms)]
    good = sum(r.outcome == "ok" for r in due)
    failed = [r for r in due if r.outcome != "ok"]
    for name, metric in metrics.items():
        if name != "itl_ms" and metric.ok.n + metric.excluded != good:
            yield f"{name} has {metric.ok.n} samples and {metric.excluded} excluded of {good} ok requests"
        # An answer of one token would have had no TPOT. Where nothing is streamed, nothing but E2E is due.
        inside = sum((r.asked_output_tokens or 2) >= 2 for r in failed) if name == "tpot_ms" else len(failed)
        if metric.due is not None and metric.due.failed not in ({inside} if name == "e2e_ms" else {0, inside}):
            yield f"{name} has {metric.due.failed} failures inside of {inside}"
    gaps = sum(len(r.itl_ms or []) for r in due if r.outcome == "ok")
    itl = metrics.get("itl_ms")
    if itl is not None and (itl.ok.n > gaps or itl.excluded > good):
        yield f"itl_ms has {itl.ok.n} samples of {gaps} recorded gaps"


# Concurrency ----------------------------------------------------------------------------------------------------


def _concurrency(records: Sequence[Record], window: Stretch | None, figures: LevelResult) -> Iterator[str]:
    """Little's law on the path that was seen: L = λ·W, its terms for both ends of the window included.

    Source: S. Stidham, "A last word on L = λW", Operations Research 22 (1974): it holds for any finite stretch when
    what reaches over the ends is counted, whatever the distributions. L is also integrated over time here.
    """
    reported, rates = figures.concurrency, figures.rates
    if window is None or reported.mean is None:
        return
    sent = [r for r in records if r.sent_ms is not None]
    mean, peak = _held([(r.sent_ms or 0.0, math.inf if r.done_ms is None else r.done_ms) for r in sent], window)
    if not _alike(reported.mean, mean) or reported.peak != peak:
        yield (
            f"concurrency is {reported.mean:g} on average and {reported.peak} at most in the result, and {mean:g} and "
            f"{peak} by counting over time"
        )
    stays, over_the_ends, arrivals = [0.0], [0.0], 0
    for record in sent:
        start = record.sent_ms or 0.0
        end = window.end if record.done_ms is None else record.done_ms
        end = max(start, end)
        inside = max(0.0, min(end, window.end) - max(start, window.start))
        if window.holds(record.intended_ms):
            arrivals += 1
            stays.append(end - start)
            over_the_ends.append(inside - (end - start))
        else:
            over_the_ends.append(inside)
    stay_s = math.fsum(stays) / 1000 / arrivals if arrivals else 0.0
    expected = (rates.offered_per_s or 0.0) * stay_s + math.fsum(over_the_ends) / 1000 / window.length_s
    if not _alike(reported.mean, expected):
        yield (
            f"Little's law does not hold: {reported.mean:g} in flight on average, but {rates.offered_per_s or 0.0:g}/s "
            f"of {stay_s:g} s each make {expected:g}"
        )


def _held(spans: Sequence[tuple[float, float]], window: Stretch) -> tuple[float, int]:
    """Time-weighted mean and peak of how many of ``spans`` go on, by going through every start and end in turn."""
    at = np.array([*(start for start, _ in spans), *(end for _, end in spans)], dtype=np.float64)
    order = np.argsort(at, kind="stable")
    held = np.cumsum(np.repeat([1, -1], len(spans))[order])
    lasts = np.diff(np.clip(np.append(at[order], np.inf), window.start, window.end))
    peak = int(held[lasts > 0].max(initial=0))
    return float(np.dot(held, lasts)) / 1000 / window.length_s, peak


# Tokens ---------------------------------------------------------------------------------------------------------


class _Range(NamedTuple):
    """What arrived in a stretch, at least and at most, for events near its ends may fall on either side."""

    low: float
    high: float

    def allows(self, amount: float) -> bool:
        return self.low * (1 - ROUNDING) - ROUNDING <= amount <= self.high * (1 + ROUNDING) + ROUNDING


def _tokens(records: Sequence[Record], window: Stretch | None, figures: LevelResult) -> Iterator[str]:
    """That throughput × window is the tokens and events whose time lies within, counted one by one."""
    done = [r.done_ms for r in records if r.done_ms is not None]
    first = min((r.intended_ms for r in records), default=math.inf)
    whole = Stretch(first, max(done, default=-math.inf))
    produced: list[float | None] = []
    for name, stretch, throughput in (
        ("throughput", window, figures.throughput),
        ("whole_run", whole if whole.end > whole.start else None, figures.whole_run),
    ):
        output_per_s = throughput.output_tokens_per_s
        if stretch is None:
            continue
        output, input_, events, samples = _arrived([r for r in records if r.outcome == "ok"], stretch)
        both = _Range(output.low + input_.low, output.high + input_.high)
        produced.append(None if output_per_s is None else output_per_s * stretch.length_s)
        found = {
            "output tokens": (output_per_s, output),
            "input and output tokens": (throughput.total_tokens_per_s, both),
            "events": (throughput.events_per_s, events),
            "samples": (throughput.samples_per_s, samples),
        }
        for what, (rate, counted) in found.items():
            if rate is not None and not counted.allows(rate * stretch.length_s):
                yield (
                    f"{name} makes {rate * stretch.length_s:.1f} {what} of {stretch.length_s:g} s, and the records "
                    f"have {counted.low:.1f} to {counted.high:.1f}"
                )
    if len(produced) == 2 and None not in produced and (produced[0] or 0.0) > (produced[1] or 0.0) * (1 + ROUNDING):
        yield f"{produced[0]:g} output tokens arrived in the window and {produced[1]:g} in the whole level"


def _arrived(good: Sequence[Record], stretch: Stretch) -> list[_Range]:
    """Output tokens, input tokens, stream events and samples of ok requests within ``stretch``.

    Each token arrives with its event, an input token with the first one. Events whose gaps were not kept arrived at
    some time between the last known one and the last token.
    """
    low, high = np.zeros(4), np.zeros(4)
    for begin in range(0, len(good), _BLOCK):
        block = good[begin : begin + _BLOCK]
        firsts = np.array([_first(r) for r in block])
        lasts = np.array([r.last_token_ms if r.streamed and r.events else r.done_ms for r in block], dtype=np.float64)
        gaps = [(r.itl_ms or []) if r.streamed else [] for r in block]
        sizes = np.array([1 + len(kept) for kept in gaps])
        begins = np.cumsum(sizes) - sizes
        passed = np.cumsum(np.fromiter(chain.from_iterable((0.0, *kept) for kept in gaps), np.float64, sizes.sum()))
        times = passed + np.repeat(firsts - passed[begins], sizes)
        known = np.add.accumulate(sizes) - 1
        events = np.array([max(1, r.events) if r.streamed else 1 for r in block])
        for bound, slack in ((low, -CLOCK_SLACK_MS), (high, CLOCK_SLACK_MS)):
            inside = _within(times, stretch, slack)
            arrived = np.add.reduceat(inside.astype(np.float64), begins)
            if slack < 0:
                rest = _within(times[known], stretch, slack) & _within(lasts, stretch, slack)
            else:
                rest = (times[known] <= stretch.end + slack) & (lasts >= stretch.start - slack)
            arrived += np.where(rest, events - sizes, 0)
            share = arrived / events
            bound += [
                np.dot(share, [r.output_tokens or 0 for r in block]),
                np.dot(_within(firsts, stretch, slack), [r.input_tokens or 0 for r in block]),
                np.dot(share, [r.events if r.streamed else 0 for r in block]),
                np.dot(share, [r.samples or 0 for r in block]),
            ]
    return [_Range(float(least), float(most)) for least, most in zip(low, high, strict=True)]


def _first(record: Record) -> float:
    """When an ok request's first output arrived."""
    first = record.first_token_ms if record.streamed and record.first_token_ms is not None else record.done_ms
    assert first is not None, "an ok request without an end is impossible and was reported"
    return first


def _within(times: NDArray[np.float64], stretch: Stretch, slack: float) -> NDArray[np.bool_]:
    found: np.ndarray[tuple[int], np.dtype[np.bool_]] = (times >= stretch.start - slack) & (
        times <= stretch.end + slack
    )
    return found


# Parts of the level ---------------------------------------------------------------------------------------------


def _sessions(records: Sequence[Record], window: Stretch | None, figures: LevelResult) -> Iterator[str]:
    """That every session is accounted for, and goes on at least while a turn of it is in flight."""
    found, turns = figures.sessions, [r for r in records if r.session is not None]
    started = len({r.session for r in turns})
    if found is None:
        if started:
            yield f"{started} sessions are recorded and none is reported"
        return
    ended = found.completed + found.abandoned + found.failed + found.cut_short
    if not found.started == started == ended or not _alike(found.mean_turns * started, len(turns)):
        yield (
            f"{found.started} sessions of {found.mean_turns:g} turns are counted as started, {ended} as ended, and "
            f"{started} with {len(turns)} turns are recorded"
        )
    if window is None or found.concurrency.mean is None:
        return
    asked = [(r.sent_ms, math.inf if r.done_ms is None else r.done_ms) for r in turns if r.sent_ms is not None]
    least, at_once = _held(asked, window)
    if found.concurrency.mean < least * (1 - ROUNDING) - ROUNDING or (found.concurrency.peak or 0) < at_once:
        yield (
            f"{found.concurrency.mean:g} sessions are said to go on on average and {found.concurrency.peak} at most, "
            f"and their turns in flight alone are {least:g} and {at_once}"
        )


def _parts(records: Sequence[Record], window: Stretch | None, figures: LevelResult) -> Iterator[str]:
    """That parts of one kind are sound, each by itself, and add up to the requests that have such a part."""
    by_place = dict(enumerate(figures.workloads))
    by_turn = {part.turn: part for part in figures.turns}
    by_model = {part.model: part for part in figures.models}
    yield from _kind("workload", by_place, records if by_place else [], lambda r: r.workload, window)
    yield from _kind("turn", by_turn, [r for r in records if r.turn is not None], lambda r: r.turn, window)
    yield from _kind("model", by_model, [r for r in records if r.model is not None], lambda r: r.model, window)
    for name in Throughput.__struct_fields__ if figures.workloads else ():
        total, made = getattr(figures.throughput, name), [getattr(part.throughput, name) for part in figures.workloads]
        # A part whose tokens nobody counted is in neither.
        if total is not None and None not in made and not _alike(total, math.fsum(made)):
            yield f"{name} is {total:g} and the workloads make {math.fsum(made):g}"


def _kind(
    kind: str,
    parts: Mapping[Any, Part | Turn | ModelPart],
    records: Sequence[Record],
    of: Callable[[Record], object],
    window: Stretch | None,
) -> Iterator[str]:
    own: dict[object, list[Record]] = defaultdict(list)
    for record in records:
        own[of(record)].append(record)
    if not set(own) <= set(parts):
        yield f"of {len(own)} {kind}s only {len(parts)} are reported"
    for which, part in parts.items():
        metrics = _metrics(part.latency) if isinstance(part, Part) else {"ttft_ms": part.ttft_ms, "e2e_ms": part.e2e_ms}
        found = [
            *_counts(own[which], window, part.counts),
            *_distributions(metrics),
            *_samples(own[which], window, metrics),
        ]
        yield from (f"{kind} {which}: {what}" for what in found)


def _probe(probes: Sequence[Record], window: Stretch | None, figures: ProbeResult | None) -> Iterator[str]:
    """Conservation and samples of the probe stream, apart from those of the load."""
    if figures is None:
        return
    metrics = _metrics(figures.latency)
    found = [
        *_counts(probes, window, figures.counts),
        *_distributions(metrics),
        *_samples(probes, window, metrics),
    ]
    yield from (f"probe stream: {what}" for what in found)
    listed = sum(group.count for group in figures.errors)
    if listed != figures.counts.failed:
        yield f"probe stream: {figures.counts.failed} requests failed and {listed} errors are listed"
