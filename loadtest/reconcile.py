"""Whether a level's figures agree with the records they were made from, and with each other. Pure.

A load tester that contradicts itself has a bug, and its figures are no ground for a decision. So every total is
computed here a second time, by another road than ``loadtest.summary`` takes (event by event, and by what goes on at
each moment), and compared with the figure as it will be reported.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from operator import eq
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from loadtest.faults import CLOCK_SLACK_MS, faults
from loadtest.level import Level, LevelRun
from loadtest.records import OUTCOMES, Record
from loadtest.result import Counts, Latency, LevelResult, Metric, ModelPart, Part, ProbeResult, Throughput, Turn
from loadtest.rows import Mask, blocks, floats, gap_counts, gaps, only, tally, that
from loadtest.stats import PERCENTILES, Dist, Due

# Figures are reported to 7 significant digits.
ROUNDING = 1e-5
Floats = NDArray[np.float64]
_BLOCK = 4096  # requests of which starts and ends are put in order together


class Stretch(NamedTuple):
    """A part of a level, in milliseconds from its t0, both ends included and the end after the start."""

    start: float
    end: float

    @property
    def length_s(self) -> float:
        """Its length in seconds."""
        return (self.end - self.start) / 1000


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
    """
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
    ended = tally(records, "outcome")
    if not counts.scheduled == len(records) == counts.ok + counts.failed:
        yield (
            f"{counts.scheduled} requests are counted as scheduled, {len(records)} are recorded and "
            f"{counts.ok + counts.failed} have an outcome"
        )
    wrong = [name for name in OUTCOMES if getattr(counts, name) != ended[name]]
    if wrong:
        yield f"the counts of {', '.join(wrong)} are not those of the records"
    inside = counts.in_window if window is None else int(np.count_nonzero(_due(records, window)))
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
        late = np.count_nonzero(floats(records, "intended_ms") > run.sending_ended_ms + CLOCK_SLACK_MS)
        if late:
            yield f"{late} requests became due after the sending had ended"
    if window is None or measured_s is None:
        return
    expected = _planned(level, records, run)
    if not _alike(measured_s, window.length_s) or (expected is not None and not _alike(measured_s, expected)):
        yield f"the window lasts {measured_s} s in the result and {window.length_s if expected is None else expected} s"
    due = _due(records, window)
    counted = {
        "offered_per_s": int(np.count_nonzero(due & ~np.isnan(floats(records, "sent_ms")))),
        "completed_per_s": int(np.count_nonzero(due & _ok(records))),
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
        last = float(np.nanmax(floats(records, "done_ms"), initial=-math.inf))
        first = float(floats(records, "intended_ms").min())
        return last / 1000 - max(level.warmup_s, first / 1000) if last > -math.inf else None
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
    due, ok = _due(records, window), _ok(records)
    good, failed = np.count_nonzero(due & ok), due & ~ok
    several = np.count_nonzero(failed & (floats(records, "asked_output_tokens") != 1))
    for name, metric in metrics.items():
        if name != "itl_ms" and metric.ok.n + metric.excluded != good:
            yield f"{name} has {metric.ok.n} samples and {metric.excluded} excluded of {good} ok requests"
        # An answer of one token would have had no TPOT. Where nothing is streamed, nothing but E2E is due.
        inside = several if name == "tpot_ms" else np.count_nonzero(failed)
        if metric.due is not None and metric.due.failed not in ({inside} if name == "e2e_ms" else {0, inside}):
            yield f"{name} has {metric.due.failed} failures inside of {inside}"
    recorded, itl = int(gap_counts(records)[due & ok].sum(dtype=np.int64)), metrics.get("itl_ms")
    if itl is not None and (itl.ok.n > recorded or itl.excluded > good):
        yield f"itl_ms has {itl.ok.n} samples of {recorded} recorded gaps"


# Concurrency ----------------------------------------------------------------------------------------------------


def _concurrency(records: Sequence[Record], window: Stretch | None, figures: LevelResult) -> Iterator[str]:
    """Little's law on the path that was seen: L = λ·W, its terms for both ends of the window included.

    Source: S. Stidham, "A last word on L = λW", Operations Research 22 (1974): it holds for any finite stretch when
    what reaches over the ends is counted, whatever the distributions. L is also integrated over time here.
    """
    reported, rates = figures.concurrency, figures.rates
    if window is None or reported.mean is None:
        return
    records = only(records, ~np.isnan(floats(records, "sent_ms")))
    starts, ends = floats(records, "sent_ms"), floats(records, "done_ms")
    mean, peak = _held(starts, ends, window)
    if not _alike(reported.mean, mean) or reported.peak != peak:
        yield (
            f"concurrency is {reported.mean:g} on average and {reported.peak} at most in the result, and {mean:g} and "
            f"{peak} by counting over time"
        )
    ends[np.isnan(ends)] = window.end
    np.maximum(starts, ends, out=ends)
    arrived = _due(records, window)
    stays_s = float((ends - starts)[arrived].sum()) / 1000
    inside = np.minimum(ends, window.end)
    inside -= np.maximum(starts, window.start)
    over_the_ends_s = float(np.maximum(0.0, inside, out=inside).sum()) / 1000 - stays_s
    stay_s = stays_s / np.count_nonzero(arrived) if arrived.any() else 0.0
    expected = (rates.offered_per_s or 0.0) * stay_s + over_the_ends_s / window.length_s
    if not _alike(reported.mean, expected):
        yield (
            f"Little's law does not hold: {reported.mean:g} in flight on average, but {rates.offered_per_s or 0.0:g}/s "
            f"of {stay_s:g} s each make {expected:g}"
        )


def _held(starts: Floats, ends: Floats, window: Stretch) -> tuple[float, int]:
    """Time-weighted mean and peak of how many spans go on, by going through every start and end in turn.

    One whose end is NaN goes on.
    """
    starts, ends = np.sort(starts), np.sort(ends)  # NaN after all others
    total, peak, ended = 0.0, 0, 0
    for begin in range(0, len(starts), _BLOCK):
        some = starts[begin : begin + _BLOCK]
        until = starts[begin + _BLOCK] if begin + _BLOCK < len(starts) else np.inf
        upto = int(np.searchsorted(ends, until))
        at, over = np.append(some, ends[ended:upto]), upto - ended
        order = np.argsort(at, kind="stable")
        held = begin - ended + np.cumsum(np.repeat([1, -1], [len(some), over])[order])
        lasts = np.diff(np.clip(np.append(at[order], until), window.start, window.end))
        total, peak, ended = total + float(np.dot(held, lasts)), max(peak, int(held[lasts > 0].max(initial=0))), upto
    return total / 1000 / window.length_s, peak


# Tokens ---------------------------------------------------------------------------------------------------------


class _Range(NamedTuple):
    """What arrived in a stretch, at least and at most, for events near its ends may fall on either side."""

    low: float
    high: float

    def allows(self, amount: float) -> bool:
        return self.low * (1 - ROUNDING) - ROUNDING <= amount <= self.high * (1 + ROUNDING) + ROUNDING


def _tokens(records: Sequence[Record], window: Stretch | None, figures: LevelResult) -> Iterator[str]:
    """That throughput × window is the tokens and events whose time lies within, counted one by one."""
    whole = Stretch(
        float(floats(records, "intended_ms").min(initial=math.inf)),
        float(np.nanmax(floats(records, "done_ms"), initial=-math.inf)),
    )
    good = only(records, _ok(records))
    produced: list[float | None] = []
    for name, stretch, throughput in (
        ("throughput", window, figures.throughput),
        ("whole_run", whole if whole.end > whole.start else None, figures.whole_run),
    ):
        output_per_s = throughput.output_tokens_per_s
        if stretch is None:
            continue
        output, input_, events, samples = _arrived(good, stretch)
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
    for some in blocks(good):
        streamed, done, seen = that(some, "streamed", bool), floats(some, "done_ms"), floats(some, "events")
        first_token, last_token = floats(some, "first_token_ms"), floats(some, "last_token_ms")
        firsts = np.where(streamed & ~np.isnan(first_token), first_token, done)
        lasts = np.where(streamed & (seen > 0), last_token, done)
        amounts = (np.nan_to_num(floats(some, name)) for name in ("output_tokens", "input_tokens", "samples"))
        output, input_, samples = amounts
        counts = gap_counts(some)
        sizes = 1 + np.where(streamed, counts, 0)
        begins = np.cumsum(sizes) - sizes
        steps, later = np.zeros(sizes.sum()), np.ones(sizes.sum(), dtype=np.bool_)
        later[begins] = False
        steps[later] = gaps(some)[np.repeat(streamed, counts)]
        passed = np.cumsum(steps)
        times = passed + np.repeat(firsts - passed[begins], sizes)
        known = np.cumsum(sizes) - 1
        events = np.where(streamed, np.maximum(seen, 1), 1)
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
                np.dot(share, output),
                np.dot(_within(firsts, stretch, slack), input_),
                np.dot(share, np.where(streamed, seen, 0)),
                np.dot(share, samples),
            ]
    return [_Range(float(least), float(most)) for least, most in zip(low, high, strict=True)]


def _within(times: Floats, stretch: Stretch, slack: float = 0.0) -> Mask:
    found: Mask = (times >= stretch.start - slack) & (times <= stretch.end + slack)
    return found


def _due(records: Sequence[Record], window: Stretch) -> Mask:
    """Which were due in the window."""
    return _within(floats(records, "intended_ms"), window)


def _ok(records: Sequence[Record]) -> Mask:
    return that(records, "outcome", "ok".__eq__)


# Parts of the level ---------------------------------------------------------------------------------------------


def _sessions(records: Sequence[Record], window: Stretch | None, figures: LevelResult) -> Iterator[str]:
    """That every session is accounted for, and goes on at least while a turn of it is in flight."""
    found, turns = figures.sessions, only(records, ~np.isnan(floats(records, "session")))
    started = len(np.unique(floats(turns, "session")))
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
    sent = floats(turns, "sent_ms")
    asked = ~np.isnan(sent)
    least, at_once = _held(sent[asked], floats(turns, "done_ms")[asked], window)
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
    if by_place:
        yield from _kind("workload", by_place, records, window)
    yield from _kind("turn", by_turn, records, window)
    yield from _kind("model", by_model, records, window)
    for name in Throughput.__struct_fields__ if figures.workloads else ():
        total, made = getattr(figures.throughput, name), [getattr(part.throughput, name) for part in figures.workloads]
        # A part whose tokens nobody counted is in neither.
        if total is not None and None not in made and not _alike(total, math.fsum(made)):
            yield f"{name} is {total:g} and the workloads make {math.fsum(made):g}"


def _kind(
    kind: str, parts: Mapping[Any, Part | Turn | ModelPart], records: Sequence[Record], window: Stretch | None
) -> Iterator[str]:  # fmt: skip
    """That parts by the field ``kind`` of records, which may be None, are sound."""
    recorded = {*tally(records, kind)} - {None}
    if not recorded <= set(parts):
        yield f"of {len(recorded)} {kind}s only {len(parts)} are reported"
    for which, part in parts.items():
        metrics = _metrics(part.latency) if isinstance(part, Part) else {"ttft_ms": part.ttft_ms, "e2e_ms": part.e2e_ms}
        own = only(records, that(records, kind, partial(eq, which)))
        found = [*_counts(own, window, part.counts), *_distributions(metrics), *_samples(own, window, metrics)]
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
