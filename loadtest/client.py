"""The generator's own health in a level: whether it, and not the target, was the limit. Pure.

Every limit is docs/metrics.md's, "When the client was the limit".
"""

from collections.abc import Sequence

import numpy as np

from loadtest.columns import Bounds, Columns, Mask, Requests, clip, measured
from loadtest.level import Level, LevelRun, WorkerHealth
from loadtest.records import Record
from loadtest.result import Client, Generator, Latency, Spread
from loadtest.rows import floats, only, that
from loadtest.sessions import users
from loadtest.stats import Dist, distribution, significant

OWN_LAG_LIMIT_MS = 10.0
OWN_LAG_LIMIT_SHARE_OF_TTFT = 0.10
ERROR_BAR_LIMIT_MS = 5.0
ERROR_BAR_LIMIT_SHARE = 0.10  # of the tightest gated limit
START_SKEW_LIMIT_MS = 100.0
SENT_FLOOR = 0.98
HELD_FLOOR = 0.95

# Below this a closed loop's held concurrency says more about two or three requests than about the client.
HELD_SPAN_MS = 100.0


def client(
    level: Level, requests: Requests, inside: Mask, *, bounds: Bounds, counted: bool, latency: Latency,
    run: LevelRun | None, gated_ms: float | None = None,
) -> Client:  # fmt: skip
    """What the generator saw of itself, and what of it makes the level invalid.

    ``counted`` says that the number of requests ended the level; ``latency`` is of the requests ``inside``, and
    ``gated_ms`` the lowest limit on a time that an SLO sets.
    """
    records, columns = requests
    send_lag = _spread(distribution(measured(columns.own_lag[inside])))
    sent_share = _sent_share(columns, inside)
    held = _held(level, records, bounds, counted, run)
    workers = run.workers if run else []
    reads = sum(w.reads for w in workers)
    lags_p99 = [w.loop_lag_p99_ms for w in workers if w.loop_lag_p99_ms is not None]
    lags_max = [w.loop_lag_max_ms for w in workers if w.loop_lag_max_ms is not None]
    error_bar = max((w.error_bar_p99_ms for w in workers if w.error_bar_p99_ms is not None), default=None)
    reasons = [
        *_late(send_lag, latency.ttft_ms.ok.p50),
        *_blurred(error_bar, gated_ms),
        *_unsent(sent_share, columns, inside),
        *_not_held(held, level.load.concurrency),
        *_no_port(sum(w.no_free_port for w in workers)),
        *_apart(workers),
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
        start_skew_ms=_skew(workers) if len(workers) > 1 else None,
        cluster=[
            Generator(
                worker=w.worker,
                host=w.host,
                clock_offset_ms=w.clock_offset_ms or 0.0,
                clock_error_ms=w.clock_error_ms or 0.0,
                start_late_ms=w.start_late_ms,
                cpu_share=w.cpu_share,
                clock_drift_ms=w.clock_drift_ms,
                clock_drift_error_ms=w.clock_drift_error_ms,
            )
            for w in workers
            if w.host is not None
        ],
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


def _blurred(error_bar_p99_ms: float | None, gated_ms: float | None) -> list[str]:
    limit = max(ERROR_BAR_LIMIT_MS, ERROR_BAR_LIMIT_SHARE * (gated_ms or 0.0))
    if error_bar_p99_ms is None or error_bar_p99_ms <= limit:
        return []
    return [
        f"the generator read late: bytes waited for it, error bar p99 {error_bar_p99_ms:.1f} ms, limit "
        f"{limit:.1f} ms; use more --workers, another host or fewer streams"
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


def _held(level: Level, records: Sequence[Record], bounds: Bounds, counted: bool, run: LevelRun | None) -> float | None:
    """How many slots of a closed loop were busy on average; None where that says nothing of the client.

    Only a level that ended as it should is judged, and without its tail. Of conversations a slot is busy from the
    first turn to the last: its user is there while thinking, too.
    """
    asked = level.load.concurrency
    if asked is None or run is None or run.end != "completed":
        return None
    failed = only(records, that(records, "outcome", {"transport_error", "timed_out"}.__contains__))
    if np.isnan(floats(failed, "sent_ms")).any():
        return None  # after a refused connection a slot pauses, and that is the target's doing
    starts, ends = users(records, bounds.sending_ended)
    low, high = bounds.start, bounds.end
    if counted:
        if level.of_sessions:
            return None  # the sessions still to be played do not fall to the slots evenly
        # The first round fills the slots and the last one empties them: both are the load, not the client.
        begun = np.sort(starts[~np.isnan(starts)])
        if len(begun) <= asked:
            return None
        low, high = max(low, float(begun[asked - 1])), float(begun[-1])
    if not high - low >= HELD_SPAN_MS:
        return None
    starts, ends = clip(starts, ends, low, high)
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


def _skew(workers: Sequence[WorkerHealth]) -> float:
    late = [w.start_late_ms for w in workers]
    return significant(max(late) - min(late))


def _apart(workers: Sequence[WorkerHealth]) -> list[str]:
    if not workers or (skew := _skew(workers)) <= START_SKEW_LIMIT_MS:
        return []
    last = max(workers, key=lambda w: w.start_late_ms)
    return [
        f"the workers did not start together: worker {last.worker} {skew:.0f} ms after the first, limit "
        f"{START_SKEW_LIMIT_MS:.0f} ms; see that nothing else runs on {last.host or 'this host'}"
    ]


def _lost(level: Level, records: Sequence[Record], run: LevelRun | None) -> list[str]:
    if run is None or run.end != "worker_lost":
        return []
    missing = "its unfinished requests"
    if level.requests is not None and level.duration_s is None:
        missing = f"{level.requests - len(records)} of {level.requests} requests"
    why = f" ({run.reason})" if run.reason else ""
    return [f"a generator process was lost{why}: {missing} have no record; run the level again"]
