"""From the records of a level to its figures. Pure: every name and formula is docs/metrics.md's.

The records' times are the truth; whatever the workers thought of a request (``in_window``) is computed again here.
"""

from collections.abc import Collection, Sequence

import msgspec
import numpy as np

from loadtest import measures, parts, sessions
from loadtest.client import client
from loadtest.columns import Bounds, Columns, Hashes, Requests, high, low
from loadtest.level import Level, LevelRun
from loadtest.reconcile import Stretch, contradictions
from loadtest.records import Record
from loadtest.result import LevelResult, Status, Window
from loadtest.rows import only, tally, that
from loadtest.stats import DECIMALS, significant
from loadtest.steady import drifting, steady_from

_STATUS: dict[str, Status] = {
    "completed": "ok",
    "interrupted": "aborted",
    "aborted": "aborted",
    "unusable": "aborted",
    "worker_lost": "degraded",
}


def summarise(
    level: Level, records: Sequence[Record], run: LevelRun | None, prompts: Collection[int] | Hashes = (),
    gated_ms: float | None = None,
) -> LevelResult:  # fmt: skip
    """The figures of ``level`` from all its ``records``, in any order.

    ``run`` is None when the run was killed and only the journal is left: the level is then aborted, its sending is
    taken to have lasted as planned but not beyond the last thing that was recorded, and what the generator saw of
    itself is null. ``prompts`` are the hashes of what the run had sent before this level (``columns.prompts``), and
    ``gated_ms`` the lowest limit on a time that an SLO sets.
    """
    beside = that(records, "probe", bool)
    probes, records = only(records, beside), only(records, ~beside)
    columns = Columns.of(records, prompts)
    requests = Requests(records, columns)
    bounds = window_of(level, columns, run)
    inside = columns.belonging_to(bounds)
    whole = Bounds(low(columns.intended), high(columns.done), bounds.sending_ended)
    latency = measures.latency(requests, inside)
    target_per_s = _target(level, bounds, int(np.count_nonzero(inside)))
    figures = LevelResult(
        name=level.name,
        status=_status(level, columns, bounds, run),
        load=level.load,
        batching=level.batching,
        workload=measures.workload(level, None, requests, inside),
        window=_window(level, columns, bounds, run),
        counts=measures.counts(requests, inside),
        rates=measures.rates(requests, inside, bounds.length_s, target_per_s),
        throughput=measures.throughput(requests, bounds),
        whole_run=measures.throughput(requests, whole),
        concurrency=measures.concurrency(columns.sent, columns.done, bounds),
        latency=latency,
        tokens_per_event=measures.tokens_per_event(columns, inside & columns.ok),
        single_burst=int(np.count_nonzero(inside & columns.ok & columns.in_one_burst)),
        bad_events=sum(bad * count for bad, count in tally(records, "bad_events").items()),
        finish_reasons=measures.finish_reasons(records),
        errors=measures.errors(records),
        client=client(
            level,
            requests,
            inside,
            bounds=bounds,
            counted=_count_bounded(level, columns),
            latency=latency,
            run=run,
            gated_ms=gated_ms,
        ),
        began_at=run.began_at if run else None,
        model=level.model,
        batch_size=level.batch_size,
        repeat=level.repeat,
        workloads=parts.workloads(level, requests, bounds, target_per_s),
        turns=parts.turns(requests, bounds),
        sessions=sessions.summarised(level, records, bounds),
        models=parts.models(requests, bounds),
        probe=parts.probe(level, probes, bounds),
    )
    window = None if bounds.length_s is None else Stretch(bounds.start, bounds.end)
    return _reconciled(figures, contradictions(level, records, run, window, figures, probes))


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


# The window ---------------------------------------------------------------------------------------------------


def _status(level: Level, columns: Columns, bounds: Bounds, run: LevelRun | None) -> Status:
    if run is None:
        return "aborted"
    status = _STATUS[run.end]
    return "overloaded" if status == "ok" and _queue_grew(level, columns, bounds) else status


def _queue_grew(level: Level, columns: Columns, bounds: Bounds) -> bool:
    """Whether an open loop asked for more than the target can do."""
    if level.load.kind == "closed" or bounds.length_s is None:
        return False
    return drifting(columns.intended, columns.done, bounds.start, bounds.end)


def _count_bounded(level: Level, columns: Columns) -> bool:
    """Whether the number of requests ended the level (or was to end it), rather than its duration."""
    return level.duration_s is None or (level.requests is not None and len(columns.ok) >= level.requests)


def window_of(level: Level, columns: Columns, run: LevelRun | None) -> Bounds:
    """The level's window: after warm-up to the end of sending, or first intended to last done if count-bounded."""
    last_seen = max(high(columns.done), high(columns.sent), high(columns.intended))
    told = run.sending_ended_ms if run and run.workers else None  # without a worker left nobody told
    planned = np.inf if level.duration_s is None else level.duration_s * 1000
    if _count_bounded(level, columns):
        # The end of an interrupted or lost request may be missing; then what was sent last is all there is.
        end = high(columns.done) if np.isfinite(high(columns.done)) else last_seen
        sending_ended = high(columns.sent) if told is None else told
        start = max(level.warmup_s * 1000, low(columns.intended))
    else:
        sending_ended = min(planned, last_seen if told is None else told)
        end = sending_ended
        start = level.warmup_s * 1000
    return Bounds(start, end, sending_ended)


def _window(level: Level, columns: Columns, bounds: Bounds, run: LevelRun | None) -> Window:
    over = run.ended_ms if run and run.workers else high(columns.done)
    drain = over - bounds.sending_ended
    return Window(
        warmup_s=level.warmup_s,
        measured_s=None if bounds.length_s is None else _seconds(bounds.end - bounds.start),
        drain_s=_seconds(max(0.0, drain)) if np.isfinite(drain) else None,
        steady_from_s=_steady_from_s(columns),
    )


def _steady_from_s(columns: Columns) -> float | None:
    took = columns.ended
    answered = columns.ok & ~np.isnan(took)
    took, due = took[answered], columns.intended[answered]
    took -= due
    order = np.argsort(due, kind="stable")
    first = steady_from(took[order])
    return None if first is None else _seconds(float(due[order[first]]))


def _seconds(value_ms: float) -> float:
    return round(value_ms / 1000, DECIMALS + 3)


def _target(level: Level, bounds: Bounds, due: int) -> float | None:
    """The requests per second that were asked for: of stages the mean over the window, of a trace those due in it.

    Of conversations only the sessions have a rate that was asked for.
    """
    if level.load.kind == "trace":
        return None if bounds.length_s is None else significant(due / bounds.length_s)
    if level.of_sessions:
        return None
    between = () if bounds.length_s is None else (bounds.start / 1000, bounds.end / 1000)
    rate = level.load.mean_rate_per_s(*between)
    return rate if rate is None or level.load.stages is None else significant(rate)
