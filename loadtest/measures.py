"""The figures of any requests of a level: all of them, a part of a mix, a turn, a model, the probe stream. Pure.

Every name and formula is docs/metrics.md's. ``inside`` is always a mask of shape (n,): the requests of the window.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import chain, compress

import numpy as np

from loadtest.columns import Bounds, Columns, Floats, Mask, Requests, clip, measured
from loadtest.level import Level, input_words, output_words
from loadtest.records import OUTCOMES, Record
from loadtest.result import (
    Concurrency,
    Counts,
    ErrorGroup,
    Latency,
    Lengths,
    Metric,
    Rates,
    Source,
    Throughput,
    TokenLengths,
    Workload,
    data_of,
)
from loadtest.rows import Rows, floats, gap_counts, only, tally, that
from loadtest.selection import Selection
from loadtest.stats import distribution, due_distribution, significant

# Counts and rates ---------------------------------------------------------------------------------------------


def counts(requests: Requests, inside: Mask) -> Counts:
    """How many there are, and how each of them ended."""
    records, columns = requests
    by_outcome = tally(records, "outcome")
    return Counts(
        scheduled=len(records),
        sent=int(np.count_nonzero(~np.isnan(columns.sent))),
        resent=tally(records, "resent")[True],
        in_window=int(np.count_nonzero(inside)),
        **{outcome: by_outcome[outcome] for outcome in OUTCOMES},
    )


def rates(requests: Requests, inside: Mask, length_s: float | None, target_per_s: float | None) -> Rates:
    """Requests per second; without a window there is only the one that was asked for."""
    if length_s is None:
        return Rates(target_per_s=target_per_s)
    sent = ~np.isnan(requests.columns.sent)
    return Rates(
        target_per_s=target_per_s,
        offered_per_s=significant(np.count_nonzero(inside & sent) / length_s),
        completed_per_s=significant(np.count_nonzero(inside & requests.columns.ok) / length_s),
    )


def finish_reasons(records: Sequence[Record]) -> dict[str, int]:
    """Of the ok ones, the most frequent first."""
    reasons: Counter[str] = Counter()
    for reason, count in tally(only(records, that(records, "outcome", "ok".__eq__)), "finish_reason").items():
        reasons[reason or "unknown"] += count
    return dict(reasons.most_common())


def errors(records: Sequence[Record]) -> list[ErrorGroup]:
    """The failed ones by how they failed, the most frequent first."""
    counts: Counter[tuple[str, int | None]] = Counter()
    examples: dict[tuple[str, int | None], str] = {}
    oldest: dict[tuple[str, int | None], float] = {}
    for record in only(records, that(records, "outcome", "ok".__ne__)):
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


def throughput(requests: Requests, bounds: Bounds) -> Throughput:
    """Tokens and events of every ok request that arrived within ``bounds``, whenever the request was due."""
    if bounds.length_s is None:
        return Throughput()
    records, columns = requests
    ok = columns.ok
    first, last = arrival(columns)
    touches = ok & (last >= bounds.start) & (first <= bounds.end)
    first_inside = ok & (first >= bounds.start) & (first <= bounds.end)
    whole = touches & first_inside & (last <= bounds.end)
    del first, last
    share = whole.astype(np.float64)
    # Only the few requests that straddle an end of the window need the times of their events.
    straddling = touches & ~whole
    share[straddling] = [_share_inside(record, bounds) for record in only(records, straddling)]
    output = _rate(columns.output_tokens, share, ok, bounds.length_s)
    input_ = _rate(columns.input_tokens, first_inside, ok, bounds.length_s)
    return Throughput(
        output_tokens_per_s=output,
        total_tokens_per_s=None if output is None or input_ is None else significant(output + input_),
        samples_per_s=None if np.isnan(columns.samples).all() else _rate(columns.samples, share, ok, bounds.length_s),
        events_per_s=_rate(np.where(columns.streamed, columns.events, np.nan), share, ok, bounds.length_s),
    )


def arrival(columns: Columns) -> tuple[Floats, Floats]:
    """When the first and the last of each answer arrived."""
    first = np.where(columns.streamed & ~np.isnan(columns.first_token), columns.first_token, columns.done)
    return first, np.where(columns.streamed & ~np.isnan(columns.last_token), columns.last_token, columns.done)


def _rate(amounts: Floats, share: Floats | Mask, ok: Mask, length_s: float) -> float | None:
    """``amounts × share`` per second; None when there are ok requests and not one has an amount."""
    known = ok & ~np.isnan(amounts)
    if ok.any() and not known.any():
        return None
    return significant(float(np.dot(amounts[known], share[known])) / length_s)


def _share_inside(record: Record, bounds: Bounds) -> float:
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


def tokens_per_event(columns: Columns, good: Mask) -> float | None:
    """Output tokens ÷ stream events of the ``good`` requests."""
    known = good & ~np.isnan(columns.output_tokens) & (columns.events > 0)
    events = float(columns.events[known].sum())
    return significant(float(columns.output_tokens[known].sum()) / events) if events else None


def workload(level: Level, place: int | None, requests: Requests, inside: Mask) -> Workload:
    """What was asked and answered: of the whole level, or of the workload at that ``place`` of its mix alone."""
    records, columns = requests
    good = inside & columns.ok
    sources: set[Source] = {source or "unknown" for source in tally(only(records, good), "token_source")}
    of = level.workloads if place is None else [level.workloads[place]]
    return Workload(
        input_tokens=_token_lengths(
            input_words(of, level.batch_size), columns.asked_input_tokens[good], columns.input_tokens[good]
        ),
        output_tokens=_token_lengths(output_words(of), columns.asked_output_tokens[good], columns.output_tokens[good]),
        source=sources.pop() if len(sources) == 1 else "mixed" if sources else "unknown",
        repeated_prompts=int(np.count_nonzero(columns.repeated == 1)) if (columns.repeated >= 0).any() else None,
        cached_input_tokens=cached_input_tokens(columns, good),
        data=data_of(of),
    )


def cached_input_tokens(columns: Columns, good: Mask) -> int | None:
    """What the server took from its cache, of the ``good`` requests; None where it did not say."""
    cached = columns.cached_input_tokens[good]
    return None if np.isnan(cached).all() else int(np.nansum(cached))


def _token_lengths(requested: str, asked: Floats, observed: Floats) -> TokenLengths:
    both = ~np.isnan(asked) & ~np.isnan(observed)
    return TokenLengths(
        requested=requested,
        asked=lengths(asked),
        observed=lengths(observed),
        observed_per_asked=significant(float(observed[both].sum() / asked[both].sum())) if both.any() else None,
    )


def lengths(tokens: Floats) -> Lengths:
    """Mean and percentiles of those that are known."""
    whole = distribution(measured(tokens))
    return Lengths(n=whole.n, mean=whole.mean, p50=whole.p50, p99=whole.p99)


# Times --------------------------------------------------------------------------------------------------------


def latency(requests: Requests, inside: Mask) -> Latency:
    """Every time of the requests ``inside``."""
    records, columns = requests
    good = inside & columns.ok

    def of(name: str) -> Metric:
        return metric(time_of(columns, name), good, inside & failed_of(columns, name))

    return Latency(
        ttft_ms=of("ttft"),
        ttfat_ms=of("ttfat"),
        e2e_ms=of("e2e"),
        tpot_ms=of("tpot"),
        itl_ms=_itl(records, good, columns.in_one_burst),
        lag_ms=metric(columns.sent - columns.intended, good),
        own_lag_ms=metric(columns.own_lag, good),
        connect_ms=metric(columns.connect, good),
        service_ttft_ms=metric(time_of(columns, "service_ttft"), good),
        service_e2e_ms=metric(time_of(columns, "service_e2e"), good),
    )


def time_of(columns: Columns, name: str) -> Floats:
    """The time of that name, of which a request has one; in ms, NaN where there is none.

    They are ttft, ttfat, e2e, tpot, service_ttft and service_e2e.
    """
    if name == "tpot":
        has = columns.streamed & (columns.output_tokens >= 2) & (columns.events >= 2) & ~columns.in_one_burst
        found = np.where(has, columns.last_token - columns.first_token, np.nan)
        found /= np.where(has, columns.output_tokens - 1, 1.0)
        return found
    if name.endswith("e2e"):
        found = columns.ended
    else:
        found = np.where(columns.streamed, columns.first_answer if name == "ttfat" else columns.first_token, np.nan)
    found -= columns.sent if name.startswith("service_") else columns.intended
    return found


def failed_of(columns: Columns, name: str) -> Mask:
    """Where a request that failed takes a place among the times of that name, as one without end.

    That of what it was due: a first token unless nothing is streamed here, and TPOT unless a single token was asked.
    Whether a failed request was to be streamed only the others can tell.
    """
    failed = ~columns.ok
    if not name.endswith("e2e"):
        failed &= bool(columns.streamed.any()) or not columns.ok.any()
    if name == "tpot":
        failed &= ~(columns.asked_output_tokens < 2)
    return failed


def metric(values: Floats, good: Mask, failed: Mask | None = None) -> Metric:
    """The distributions of ``values`` over the ``good`` requests, and over these and the ``failed`` ones."""
    samples = measured(values[good])
    samples.sort()
    return Metric(
        ok=distribution(samples),
        due=None if failed is None else due_distribution(samples, int(np.count_nonzero(failed))),
        excluded=int(np.count_nonzero(good)) - len(samples),
    )


def _itl(records: Sequence[Record], good: Mask, in_one_burst: Mask) -> Metric:
    """Gaps pooled over requests; those without gaps, or with some past the cap, are counted as excluded.

    So are those whose events all arrived at once: a gap needs two arrivals, and 0 ms is not a speed.
    """
    if isinstance(records, Rows):
        return _itl_of_rows(records, good, in_one_burst)
    chosen = list(compress(records, good.tolist()))
    gaps = [[] if burst else r.itl_ms or [] for r, burst in zip(chosen, in_one_burst[good].tolist(), strict=True)]
    pooled = np.fromiter(chain.from_iterable(gaps), dtype=np.float64, count=sum(map(len, gaps)))
    partial = sum(r.events < 2 or len(kept) < r.events - 1 for r, kept in zip(chosen, gaps, strict=True))
    return Metric(ok=distribution(pooled), excluded=partial)


def _itl_of_rows(records: Rows, good: Mask, in_one_burst: Mask) -> Metric:
    """The same of more gaps than memory holds."""
    chosen = records.only(good & ~in_one_burst)
    events, kept = floats(records, "events"), np.where(in_one_burst, 0, gap_counts(records))
    return Metric(
        ok=Selection(lambda: (block.gaps() for block in chosen.blocks())).distribution(),
        excluded=int(np.count_nonzero(good & ((events < 2) | (kept < events - 1)))),
    )


def concurrency(starts: Floats, ends: Floats, bounds: Bounds) -> Concurrency:
    """How many of the intervals hold each moment within ``bounds``; one without an end was still going on."""
    if bounds.length_s is None:
        return Concurrency()
    starts, ends = clip(starts, ends, bounds.start, bounds.end)
    # At each start: what had started by then less what had ended by then. A slot that is free is used again in
    # the same instant, so an end counts before a start.
    starts.sort()
    ends.sort()
    in_flight = np.arange(1, len(starts) + 1)
    in_flight -= np.searchsorted(ends, starts, side="right")
    ends -= starts
    return Concurrency(
        mean=significant(float(ends.sum()) / 1000 / bounds.length_s),
        peak=int(in_flight.max(initial=0)),
    )
