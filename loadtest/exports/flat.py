"""Each level of a result as one flat row of stable columns, which CSV and trackers of experiments take. Pure.

Columns are only ever added. A name ends in its unit (``_ms``, ``_s``, ``_per_s``) or is a count, a share (0 to 1) or a
text; what was not measured is None.
"""

from collections.abc import Iterator
from itertools import chain

from loadtest.result import LevelResult, Metric, Result
from loadtest.stats import Dist, Due

Value = str | float | int | bool | None
_OF_EACH = ("ttft", "ttfat", "e2e", "tpot", "service_ttft", "service_e2e")
_PERCENTILES = ("p50", "p90", "p95", "p99", "p999")
_COUNTS = (
    "scheduled", "sent", "ok", "http_error", "stream_error", "transport_error", "timed_out", "cancelled", "never_sent",
    "resent", "in_window",
)  # fmt: skip


def rows(result: Result) -> list[dict[str, Value]]:
    """A row for each level, all with the same columns in the same order."""
    run = dict(_run(result))
    return [{**run, "level": number, **dict(_level(level))} for number, level in enumerate(result.levels, 1)]


def _run(result: Result) -> Iterator[tuple[str, Value]]:
    conditions = result.conditions
    yield "run_id", result.run_id
    yield "started_at", result.started_at
    yield "loadtest_version", result.tool.version
    yield "scenario", conditions.scenario.name
    yield "endpoint", conditions.endpoint.kind
    yield "url", conditions.endpoint.url
    yield "precision", conditions.precision
    yield "server_hardware", conditions.hardware.server
    yield "client_hardware", conditions.hardware.client
    yield "seed", result.seed
    yield "run_model", conditions.endpoint.model


def _level(level: LevelResult) -> Iterator[tuple[str, Value]]:
    load, batching, workload = level.load, level.batching, level.workload
    yield "name", level.name
    yield "repeat", level.repeat
    yield "status", level.status
    yield "began_at", level.began_at
    yield "model", level.model
    yield "load", load.kind
    yield "concurrency", load.concurrency
    yield "rate_per_s", load.rate_per_s
    yield "scheduler", batching.scheduler if batching else None
    yield "max_batch_size", batching.max_batch_size if batching else None
    yield "batch_timeout_ms", batching.timeout_ms if batching else None
    for name, lengths in (("input_tokens", workload.input_tokens), ("output_tokens", workload.output_tokens)):
        yield f"{name}_requested", lengths.requested
        yield f"{name}_mean", lengths.observed.mean
        yield f"{name}_p50", lengths.observed.p50
        yield f"{name}_p99", lengths.observed.p99
    yield "token_source", workload.source
    yield "cached_input_tokens", workload.cached_input_tokens
    yield "repeated_prompts", workload.repeated_prompts
    yield "warmup_s", level.window.warmup_s
    yield "measured_s", level.window.measured_s
    yield "drain_s", level.window.drain_s
    yield from ((name, getattr(level.counts, name)) for name in _COUNTS)
    yield "target_per_s", level.rates.target_per_s
    yield "offered_per_s", level.rates.offered_per_s
    yield "requests_per_s", level.rates.completed_per_s
    yield "good_per_s", level.rates.good_per_s
    yield "good_share", level.goodput.share_of_scheduled if level.goodput else None
    yield "output_tokens_per_s", level.throughput.output_tokens_per_s
    yield "total_tokens_per_s", level.throughput.total_tokens_per_s
    yield "samples_per_s", level.throughput.samples_per_s
    yield "events_per_s", level.throughput.events_per_s
    yield "concurrency_mean", level.concurrency.mean
    yield "concurrency_peak", level.concurrency.peak
    yield from chain.from_iterable(_both(name, getattr(level.latency, f"{name}_ms")) for name in _OF_EACH)
    yield from _dist("itl", level.latency.itl_ms.ok)
    yield "tokens_per_event", level.tokens_per_event
    yield "own_lag_p99_ms", level.latency.own_lag_ms.ok.p99
    yield "loop_lag_p99_ms", level.client.loop_lag_ms.p99 if level.client.loop_lag_ms else None
    yield "error_bar_p99_ms", level.client.error_bar_ms
    yield "client_cpu_share", level.client.cpu_share
    yield "client_valid", level.client.valid


def _both(name: str, metric: Metric) -> Iterator[tuple[str, Value]]:
    """Of the good requests, and (``due``) of all that became due, failures without end."""
    yield from _dist(name, metric.ok)
    due = metric.due or Due(n=0, failed=0)
    yield f"{name}_due_n", due.n
    yield f"{name}_due_failed", due.failed
    yield from ((f"{name}_due_{percentile}_ms", getattr(due, percentile)) for percentile in _PERCENTILES)


def _dist(name: str, dist: Dist) -> Iterator[tuple[str, Value]]:
    yield f"{name}_n", dist.n
    yield from ((f"{name}_{each}_ms", getattr(dist, each)) for each in ("mean", *_PERCENTILES, "min", "max"))
