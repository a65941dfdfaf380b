"""From the records of a level to its figures. Pure: every name and formula is docs/metrics.md's.

The records' times are the truth; whatever the workers thought of a request (``in_window``) is computed again here.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain, compress
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from loadtest.level import Level, LevelRun
from loadtest.reconcile import Stretch, contradictions
from loadtest.records import OUTCOMES, Record
from loadtest.result import (
    Client,
    Concurrency,
    Counts,
    ErrorGroup,
    Latency,
    Lengths,
    LevelResult,
    Metric,
    Rates,
    Source,
    Spread,
    Status,
    Throughput,
    TokenLengths,
    Window,
    Workload,
)
from loadtest.stats import DECIMALS, Dist, distribution, due_distribution, significant

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

# docs/metrics.md, "When the client was the limit"
OWN_LAG_LIMIT_MS = 10.0
OWN_LAG_LIMIT_SHARE_OF_TTFT = 0.10
ERROR_BAR_LIMIT_MS = 5.0
SENT_FLOOR = 0.98
HELD_FLOOR = 0.95
# What the user's own caps held back, or what was still opening its connection, the generator did not fail to send.
HELD_BACK = frozenset({"dropped", "never_sent", "cancelled"})

# Of the requests that became due in the window, so many more waiting at its end than at its start: overloaded.
GROWTH_SHARE = 0.10

# Below this a closed loop's held concurrency says more about two or three requests than about the client.
HELD_SPAN_MS = 100.0

_STATUS: dict[str, Status] = {
    "completed": "ok",
    "interrupted": "aborted",
    "aborted": "aborted",
    "unusable": "aborted",
    "worker_lost": "degraded",
}


def summarise(level: Level, records: Sequence[Record], run: LevelRun | None) -> LevelResult:
    """The figures of ``level`` from all its ``records``, in any order.

    ``run`` is None when the run was killed and only the journal is left: the level is then aborted, its sending is
    taken to have lasted as planned but not beyond the last thing that was recorded, and what the generator saw of
    itself is null.
    """
    columns = Columns.of(records)
    bounds = _bounds(level, columns, run)
    inside = columns.belonging_to(bounds)
    whole = _Bounds(_low(columns.intended), _high(columns.done), bounds.sending_ended)
    latency = _latency(records, columns, inside)
    figures = LevelResult(
        name=level.name,
        status=_status(level, columns, bounds, run),
        load=level.load,
        batching=level.batching,
        workload=_workload(level, records, columns, inside & columns.ok),
        window=_window(level, columns, bounds, run),
        counts=_counts(records, columns, inside),
        rates=_rates(level, columns, inside, bounds),
        throughput=_throughput(records, columns, bounds),
        whole_run=_throughput(records, columns, whole),
        concurrency=_concurrency(columns, bounds),
        latency=latency,
        tokens_per_event=_tokens_per_event(columns, inside & columns.ok),
        single_burst=int(np.count_nonzero(inside & columns.ok & columns.in_one_burst)),
        bad_events=sum(r.bad_events for r in records),
        finish_reasons=_finish_reasons(records),
        errors=_errors(records),
        client=_client(level, records, columns, inside, bounds=bounds, latency=latency, run=run),
    )
    window = None if bounds.length_s is None else Stretch(bounds.start, bounds.end)
    return _reconciled(figures, contradictions(level, records, run, window, figures))


def _reconciled(figures: LevelResult, found: Sequence[str]) -> LevelResult:
    """The figures, invalid if they contradict themselves: an error of this program, and it says so."""
    if not found:
        return figures
    reasons = [
        f"the result contradicts its own records: {what}; this is a bug in loadtest, please report it and use none of "
        "these figures"
        for what in found
    ]
    client = msgspec.structs.replace(figures.client, valid=False, reasons=[*figures.client.reasons, *reasons])
    return msgspec.structs.replace(figures, client=client)


class _Bounds(NamedTuple):
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
    ok: Mask
    streamed: Mask
    unsent: Mask  # due, and the generator's own failure to send

    @classmethod
    def of(cls, records: Sequence[Record]) -> "Columns":
        """One pass over ``records`` for each column."""
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

    def belonging_to(self, bounds: _Bounds) -> Mask:
        """Which requests belong to the window, by their intended time."""
        mask: Mask = (self.intended >= bounds.start) & (self.intended <= bounds.end)
        return mask


def _failed_to_send(record: Record) -> bool:
    if record.sent_ms is not None or record.outcome not in {"never_sent", "cancelled"}:
        return False
    return not record.wait_ms and (record.error is None or record.error.kind not in HELD_BACK)


def _floats(values: Iterable[float | None]) -> Floats:
    return np.array(list(values), dtype=np.float64)  # None becomes NaN


def _low(values: Floats) -> float:
    return float(np.nanmin(values, initial=np.inf))


def _high(values: Floats) -> float:
    return float(np.nanmax(values, initial=-np.inf))


def _measured(values: Floats) -> Floats:
    """Those that were measured, without the noise that subtracting readings leaves behind their last decimal."""
    return np.round(values[~np.isnan(values)], DECIMALS)


def _seconds(value_ms: float) -> float:
    return round(value_ms / 1000, DECIMALS + 3)


# The window ---------------------------------------------------------------------------------------------------


def _status(level: Level, columns: Columns, bounds: _Bounds, run: LevelRun | None) -> Status:
    if run is None:
        return "aborted"
    status = _STATUS[run.end]
    return "overloaded" if status == "ok" and _queue_grew(level, columns, bounds) else status


def _queue_grew(level: Level, columns: Columns, bounds: _Bounds) -> bool:
    """Whether an open loop asked for more than the target can do: requests that were due and not done piled up.

    They grow from quarter to quarter of the window, and by its end by a tenth of all that became due in it and by more
    than three standard deviations of a Poisson count of those, which chance does not do.
    """
    if level.load.kind == "closed" or bounds.length_s is None:
        return False
    marks = np.linspace(bounds.start, bounds.end, 5)
    due = np.searchsorted(np.sort(columns.intended), marks, side="right")
    done = np.searchsorted(np.sort(columns.done[~np.isnan(columns.done)]), marks, side="right")
    waiting = due - done
    growth, arrived = int(waiting[-1] - waiting[0]), int(due[-1] - due[0])
    return bool((np.diff(waiting) > 0).all()) and growth > max(GROWTH_SHARE * arrived, 3 * arrived**0.5)


def _count_bounded(level: Level, columns: Columns) -> bool:
    """Whether the number of requests ended the level (or was to end it), rather than its duration."""
    return level.duration_s is None or (level.requests is not None and len(columns.ok) >= level.requests)


def _bounds(level: Level, columns: Columns, run: LevelRun | None) -> _Bounds:
    """The level's window: after warm-up to the end of sending, or first intended to last done if count-bounded."""
    last_seen = max(_high(columns.done), _high(columns.sent), _high(columns.intended))
    told = run.sending_ended_ms if run and run.workers else None  # without a worker left nobody told
    planned = np.inf if level.duration_s is None else level.duration_s * 1000
    if _count_bounded(level, columns):
        # The end of an interrupted or lost request may be missing; then what was sent last is all there is.
        end = _high(columns.done) if np.isfinite(_high(columns.done)) else last_seen
        sending_ended = _high(columns.sent) if told is None else told
        start = max(level.warmup_s * 1000, _low(columns.intended))
    else:
        sending_ended = min(planned, last_seen if told is None else told)
        end = sending_ended
        start = level.warmup_s * 1000
    return _Bounds(start, end, sending_ended)


def _window(level: Level, columns: Columns, bounds: _Bounds, run: LevelRun | None) -> Window:
    over = run.ended_ms if run and run.workers else _high(columns.done)
    drain = over - bounds.sending_ended
    return Window(
        warmup_s=level.warmup_s,
        measured_s=None if bounds.length_s is None else _seconds(bounds.end - bounds.start),
        drain_s=_seconds(max(0.0, drain)) if np.isfinite(drain) else None,
    )


# Counts and rates ---------------------------------------------------------------------------------------------


def _counts(records: Sequence[Record], columns: Columns, inside: Mask) -> Counts:
    by_outcome = Counter(r.outcome for r in records)
    return Counts(
        scheduled=len(records),
        sent=int(np.count_nonzero(~np.isnan(columns.sent))),
        resent=sum(r.resent for r in records),
        in_window=int(np.count_nonzero(inside)),
        **{outcome: by_outcome[outcome] for outcome in OUTCOMES},
    )


def _rates(level: Level, columns: Columns, inside: Mask, bounds: _Bounds) -> Rates:
    if bounds.length_s is None:
        return Rates(target_per_s=_target(level))
    return Rates(
        target_per_s=_target(level, bounds.start / 1000, bounds.end / 1000),
        offered_per_s=significant(np.count_nonzero(inside & ~np.isnan(columns.sent)) / bounds.length_s),
        completed_per_s=significant(np.count_nonzero(inside & columns.ok) / bounds.length_s),
    )


def _target(level: Level, *between_s: float) -> float | None:
    """The rate asked for: of stages the mean of what was asked between two times, or of all."""
    rate = level.load.mean_rate_per_s(*between_s)
    return rate if rate is None or level.load.stages is None else significant(rate)


def _finish_reasons(records: Sequence[Record]) -> dict[str, int]:
    reasons = Counter(r.finish_reason or "unknown" for r in records if r.outcome == "ok")
    return dict(reasons.most_common())


def _errors(records: Sequence[Record]) -> list[ErrorGroup]:
    counts: Counter[tuple[str, int | None]] = Counter()
    examples: dict[tuple[str, int | None], str] = {}
    oldest: dict[tuple[str, int | None], float] = {}
    for record in records:
        if record.outcome == "ok":
            continue
        error = record.error
        key = (error.kind, _telling(error.status)) if error else (record.outcome, None)
        counts[key] += 1
        if error:
            examples.setdefault(key, error.message)
        if record.outcome == "cancelled" and record.done_ms is not None:
            oldest[key] = max(oldest.get(key, 0.0), (record.done_ms - record.intended_ms) / 1000)
    # How long a request had been waiting when it was cut off tells a slow answer from one that never came.
    for key, age_s in oldest.items():
        examples[key] = f"{examples.get(key, 'cut off')} (the oldest {age_s:.1f} s after it was due)"
    return [
        ErrorGroup(kind=key[0], status=key[1], count=count, example=examples.get(key))
        for key, count in counts.most_common()
    ]


def _telling(status: int | None) -> int | None:
    """A status that is part of what went wrong; a 200 before the stream broke is not."""
    return status if status is not None and status >= 300 else None


# Tokens -------------------------------------------------------------------------------------------------------


def _throughput(records: Sequence[Record], columns: Columns, bounds: _Bounds) -> Throughput:
    """Tokens and events of every ok request that arrived within ``bounds``, whenever the request was due."""
    if bounds.length_s is None:
        return Throughput()
    ok = columns.ok
    first = np.where(columns.streamed & ~np.isnan(columns.first_token), columns.first_token, columns.done)
    last = np.where(columns.streamed & ~np.isnan(columns.last_token), columns.last_token, columns.done)
    touches = ok & (last >= bounds.start) & (first <= bounds.end)
    whole = touches & (first >= bounds.start) & (last <= bounds.end)
    share = whole.astype(np.float64)
    # Only the few requests that straddle an end of the window need the times of their events.
    for index in np.flatnonzero(touches & ~whole).tolist():
        share[index] = _share_inside(records[index], bounds)
    output = _rate(columns.output_tokens, share, ok, bounds.length_s)
    first_inside = (ok & (first >= bounds.start) & (first <= bounds.end)).astype(np.float64)
    input_ = _rate(columns.input_tokens, first_inside, ok, bounds.length_s)
    return Throughput(
        output_tokens_per_s=output,
        total_tokens_per_s=None if output is None or input_ is None else significant(output + input_),
        events_per_s=_rate(np.where(columns.streamed, columns.events, np.nan), share, ok, bounds.length_s),
    )


def _rate(amounts: Floats, share: Floats, ok: Mask, length_s: float) -> float | None:
    """``amounts × share`` per second; None when there are ok requests and not one has an amount."""
    known = ok & ~np.isnan(amounts)
    if ok.any() and not known.any():
        return None
    return significant(float(np.dot(amounts[known], share[known])) / length_s)


def _share_inside(record: Record, bounds: _Bounds) -> float:
    """The share of a streamed request's events that arrived within ``bounds``; its tokens are spread alike."""
    times = _event_times(record)
    return float(np.mean((times >= bounds.start) & (times <= bounds.end)))


def _event_times(record: Record) -> Floats:
    """When each output event of a streamed request arrived, in ms from t0. Shape (events,), at least one.

    Gaps past the cap of what is kept are unknown: those events are spread evenly up to the last token.
    """
    first = record.first_token_ms if record.first_token_ms is not None else record.done_ms
    times = np.cumsum(np.array([first, *(record.itl_ms or [])], dtype=np.float64))
    missing = record.events - len(times)
    if missing > 0 and record.last_token_ms is not None:
        rest = np.linspace(times[-1], record.last_token_ms, missing + 1)[1:]
        times = np.concatenate([times, rest])
    return times


def _tokens_per_event(columns: Columns, good: Mask) -> float | None:
    known = good & ~np.isnan(columns.output_tokens) & (columns.events > 0)
    events = float(columns.events[known].sum())
    return significant(float(columns.output_tokens[known].sum()) / events) if events else None


def _workload(level: Level, records: Sequence[Record], columns: Columns, good: Mask) -> Workload:
    chosen = list(compress(records, good.tolist()))
    sources: set[Source] = {r.token_source or "unknown" for r in chosen}
    cached = [r.cached_input_tokens for r in chosen if r.cached_input_tokens is not None]
    return Workload(
        input_tokens=TokenLengths(
            requested=level.input_tokens,
            asked=_lengths(columns.asked_input_tokens[good]),
            observed=_lengths(columns.input_tokens[good]),
        ),
        output_tokens=TokenLengths(
            requested=level.output_tokens,
            asked=_lengths(columns.asked_output_tokens[good]),
            observed=_lengths(columns.output_tokens[good]),
        ),
        source=sources.pop() if len(sources) == 1 else "mixed" if sources else "unknown",
        cached_input_tokens=sum(cached) if cached else None,
    )


def _lengths(tokens: Floats) -> Lengths:
    whole = distribution(_measured(tokens))
    return Lengths(n=whole.n, mean=whole.mean, p50=whole.p50, p99=whole.p99)


# Times --------------------------------------------------------------------------------------------------------


def _latency(records: Sequence[Record], columns: Columns, inside: Mask) -> Latency:
    good = inside & columns.ok
    failed = inside & ~columns.ok
    # A failure takes the place of what it was due: a first token unless nothing is streamed here, and TPOT unless a
    # single token was asked. Whether a failed request was to be streamed only the others can tell.
    streaming = bool(columns.streamed.any()) or not columns.ok.any()
    failed_stream = failed & streaming
    failed_tokens = failed_stream & (columns.asked_output_tokens >= 2)
    intended, sent = columns.intended, columns.sent
    first_token = np.where(columns.streamed, columns.first_token, np.nan)
    first_answer = np.where(columns.streamed, columns.first_answer, np.nan)
    has_tpot = columns.streamed & (columns.output_tokens >= 2) & (columns.events >= 2) & ~columns.in_one_burst
    generating = np.where(has_tpot, columns.last_token - columns.first_token, np.nan)
    return Latency(
        ttft_ms=_metric(first_token - intended, good, failed_stream),
        ttfat_ms=_metric(first_answer - intended, good, failed_stream),
        e2e_ms=_metric(columns.ended - intended, good, failed),
        tpot_ms=_metric(generating / np.where(has_tpot, columns.output_tokens - 1, 1.0), good, failed_tokens),
        itl_ms=_itl(records, good, columns.in_one_burst),
        lag_ms=_metric(sent - intended, good),
        own_lag_ms=_metric(columns.own_lag, good),
        connect_ms=_metric(columns.connect, good),
        service_ttft_ms=_metric(first_token - sent, good),
        service_e2e_ms=_metric(columns.ended - sent, good),
    )


def _metric(values: Floats, good: Mask, failed: Mask | None = None) -> Metric:
    """The distributions of ``values`` over the ``good`` requests, and over these and the ``failed`` ones."""
    samples = _measured(values[good])
    return Metric(
        ok=distribution(samples),
        due=None if failed is None else due_distribution(samples, int(np.count_nonzero(failed))),
        excluded=int(np.count_nonzero(good)) - len(samples),
    )


def _itl(records: Sequence[Record], good: Mask, in_one_burst: Mask) -> Metric:
    """Gaps pooled over requests; those without gaps, or with some past the cap, are counted as excluded.

    So are those whose events all arrived at once: a gap needs two arrivals, and 0 ms is not a speed.
    """
    chosen = list(compress(records, good.tolist()))
    gaps = [[] if burst else r.itl_ms or [] for r, burst in zip(chosen, in_one_burst[good].tolist(), strict=True)]
    pooled = np.fromiter(chain.from_iterable(gaps), dtype=np.float64, count=sum(map(len, gaps)))
    partial = sum(r.events < 2 or len(kept) < r.events - 1 for r, kept in zip(chosen, gaps, strict=True))
    return Metric(ok=distribution(pooled), excluded=partial)


def _concurrency(columns: Columns, bounds: _Bounds) -> Concurrency:
    if bounds.length_s is None:
        return Concurrency()
    starts, ends = _clip(columns.sent, columns.done, bounds.start, bounds.end)
    # At each start: what had started by then less what had ended by then. A slot that is free is used again in
    # the same instant, so an end counts before a start.
    starts, ends = np.sort(starts), np.sort(ends)
    in_flight = np.arange(1, len(starts) + 1) - np.searchsorted(ends, starts, side="right")
    return Concurrency(
        mean=significant(float((ends - starts).sum()) / 1000 / bounds.length_s),
        peak=int(in_flight.max(initial=0)),
    )


def _clip(starts: Floats, ends: Floats, low: float, high: float) -> tuple[Floats, Floats]:
    """The parts of the intervals within ``low..high``. One without an end was still going on."""
    ends = np.where(np.isnan(ends), np.inf, ends)
    touches = (starts <= high) & (ends >= low)
    return np.clip(starts[touches], low, high), np.clip(ends[touches], low, high)


# The generator itself -----------------------------------------------------------------------------------------


def _client(
    level: Level,
    records: Sequence[Record],
    columns: Columns,
    inside: Mask,
    *,
    bounds: _Bounds,
    latency: Latency,
    run: LevelRun | None,
) -> Client:
    send_lag = _spread(distribution(_measured(columns.own_lag[inside])))
    sent_share = _sent_share(columns, inside)
    held = _held(level, records, columns, bounds, run)
    workers = run.workers if run else []
    reads = sum(w.reads for w in workers)
    lags_p99 = [w.loop_lag_p99_ms for w in workers if w.loop_lag_p99_ms is not None]
    lags_max = [w.loop_lag_max_ms for w in workers if w.loop_lag_max_ms is not None]
    error_bar = max((w.error_bar_p99_ms for w in workers if w.error_bar_p99_ms is not None), default=None)
    reasons = [
        *_late(send_lag, latency.ttft_ms.ok.p50),
        *_blurred(error_bar),
        *_unsent(sent_share, columns, inside),
        *_not_held(held, level.load.concurrency),
        *_no_port(sum(w.no_free_port for w in workers)),
        *_lost(level, records, run),
    ]
    return Client(
        workers=len(workers) if run else None,
        cpu_share=max((w.cpu_share for w in workers), default=None),
        loop_lag_ms=Spread(p99=max(lags_p99), max=max(lags_max)) if lags_p99 and lags_max else None,
        send_lag_ms=send_lag,
        sent_share=None if sent_share is None else significant(sent_share),
        held_concurrency=None if held is None else significant(held),
        error_bar_p50_ms=max((w.error_bar_p50_ms for w in workers if w.error_bar_p50_ms is not None), default=None),
        error_bar_ms=error_bar,
        coalesced_read_share=significant(sum(w.coalesced_reads for w in workers) / reads) if reads else None,
        valid=not reasons,
        reasons=reasons,
    )


def _spread(lag: Dist) -> Spread | None:
    return None if lag.p99 is None or lag.max is None else Spread(p99=lag.p99, max=lag.max)


def _late(lag: Spread | None, median_ttft_ms: float | None) -> list[str]:
    limit = max(OWN_LAG_LIMIT_MS, OWN_LAG_LIMIT_SHARE_OF_TTFT * (median_ttft_ms or 0.0))
    if lag is None or lag.p99 <= limit:
        return []
    return [
        f"the generator sent late: own lag p99 {lag.p99:.1f} ms, limit {limit:.1f} ms; "
        "use more --workers or another host"
    ]


def _blurred(error_bar_p99_ms: float | None) -> list[str]:
    if error_bar_p99_ms is None or error_bar_p99_ms <= ERROR_BAR_LIMIT_MS:
        return []
    return [
        f"the generator read late: bytes waited for it, error bar p99 {error_bar_p99_ms:.1f} ms, limit "
        f"{ERROR_BAR_LIMIT_MS:.1f} ms; use more --workers, another host or fewer streams"
    ]


def _sent_share(columns: Columns, inside: Mask) -> float | None:
    """The share of what was due that the generator did not fail to send; None when nothing was due."""
    due = int(np.count_nonzero(inside))
    return 1 - np.count_nonzero(inside & columns.unsent) / due if due else None


def _unsent(sent_share: float | None, columns: Columns, inside: Mask) -> list[str]:
    if sent_share is None or sent_share >= SENT_FLOOR:
        return []
    due, unsent = int(np.count_nonzero(inside)), int(np.count_nonzero(inside & columns.unsent))
    return [
        f"the schedule was not held: {due - unsent} of {due} due requests were sent ({sent_share:.1%}, "
        f"limit {SENT_FLOOR:.0%}); use more --workers, another host or a lower rate"
    ]


def _held(
    level: Level, records: Sequence[Record], columns: Columns, bounds: _Bounds, run: LevelRun | None
) -> float | None:
    """How many slots of a closed loop were busy on average; None where that says nothing of the client.

    Only a level that ended as it should is judged, and without its tail.
    """
    asked = level.load.concurrency
    if asked is None or run is None or run.end != "completed":
        return None
    if any(r.sent_ms is None and r.outcome in {"transport_error", "timed_out"} for r in records):
        return None  # after a refused connection a slot pauses, and that is the target's doing
    low, high = bounds.start, bounds.end
    if _count_bounded(level, columns):
        # The first round fills the slots and the last one empties them: both are the load, not the client.
        sends = np.sort(columns.sent[~np.isnan(columns.sent)])
        if len(sends) <= asked:
            return None
        low, high = max(low, float(sends[asked - 1])), float(sends[-1])
    if not high - low >= HELD_SPAN_MS:
        return None
    # A slot is busy while its request opens a connection.
    starts, ends = _clip(columns.sent - columns.wait, columns.done, low, high)
    return float((ends - starts).sum()) / (high - low)


def _not_held(held: float | None, asked: int | None) -> list[str]:
    if held is None or asked is None or held / asked >= HELD_FLOOR:
        return []
    return [
        f"the load was not held: {held:.1f} of {asked} slots were busy on average ({held / asked:.0%}, "
        f"limit {HELD_FLOOR:.0%}); use more --workers, another host or fewer streams"
    ]


def _no_port(refused: int) -> list[str]:
    if not refused:
        return []
    return [
        f"this host ran out of ports: {refused} connections found none free, limit 0; use fewer streams, a wider "
        "port range (net.ipv4.ip_local_port_range) or another host"
    ]


def _lost(level: Level, records: Sequence[Record], run: LevelRun | None) -> list[str]:
    if run is None or run.end != "worker_lost":
        return []
    missing = "its unfinished requests"
    if level.requests is not None and level.duration_s is None:
        missing = f"{level.requests - len(records)} of {level.requests} requests"
    why = f" ({run.reason})" if run.reason else ""
    return [f"a generator process was lost{why}: {missing} have no record; run the level again"]
