"""Each level of a result as one flat row of stable columns, which CSV and trackers of experiments take. Pure.

Columns are only ever added. A name ends in its unit (``_ms``, ``_s``, ``_per_s``) or is a count, a share (0 to 1) or a
text; what was not measured is None.
"""

from collections.abc import Iterator, Sequence
from itertools import chain

from loadtest.result import LevelResult, Metric, Result
from loadtest.stats import Dist, Due
from loadtest.telemetry.figures import Figure, Gpu, Host, Server

Value = str | float | int | bool | None
_OF_EACH = ("ttft", "ttfat", "e2e", "tpot", "service_ttft", "service_e2e")
_PERCENTILES = ("p50", "p90", "p95", "p99", "p999")
_COUNTS = (
    "scheduled", "sent", "ok", "http_error", "stream_error", "transport_error", "timed_out", "cancelled", "never_sent",
    "resent", "in_window",
)  # fmt: skip
# Of figures over time, each by its key in the result in two parts: the statistic stands before the unit.
_OF_SERVER = (
    ("running", ""), ("waiting", ""), ("queue", "_ms"), ("batch_size", ""), ("kv_usage", ""), ("prefix_hit", "_share"),
    ("prefill", "_share"), ("prompt", "_tokens_per_s"), ("generation", "_tokens_per_s"),
)  # fmt: skip
_OF_GPUS = (("utilisation", ""), ("memory", "_share"), ("power", "_w"), ("sm_clock", "_mhz"))
_OF_HOST = (("cpu", "_share"), ("received", "_mb_per_s"), ("sent", "_mb_per_s"), ("tcp_sockets", ""))


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
    yield from _server(level.server)
    yield from _gpus(level.gpus)
    yield "energy_per_output_token_j", level.energy_per_output_token_j
    yield from chain.from_iterable(_over_time("host", *of, [level.host]) for of in _OF_HOST)


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


def _server(server: Server | None) -> Iterator[tuple[str, Value]]:
    yield "server_kind", server.kind if server else None
    yield from chain.from_iterable(_over_time("server", *of, [server]) for of in _OF_SERVER)
    yield "server_preemptions", server.preemptions if server else None
    for name in ("prompt_tokens", "generation_tokens"):
        counted = getattr(server, name, None)
        yield f"server_{name}", counted.server if counted else None


def _gpus(gpus: Sequence[Gpu]) -> Iterator[tuple[str, Value]]:
    """Of all GPUs: the mean of their means, the largest of their maxima, the sum of their energy if all tell it."""
    known = [gpu.energy_j for gpu in gpus if gpu.energy_j is not None]
    yield "gpus", len(gpus) or None
    yield from chain.from_iterable(_over_time("gpu", *of, gpus) for of in _OF_GPUS)
    held = [share for gpu in gpus for share in gpu.throttled.values()]
    yield "gpu_throttled_share", max(held, default=None)
    yield "gpu_energy_j", sum(known) if gpus and len(known) == len(gpus) else None


def _over_time(
    whose: str, name: str, unit: str, of: Sequence[Server | Gpu | Host | None]
) -> Iterator[tuple[str, Value]]:
    found: list[Figure] = [figure for one in of if (figure := getattr(one, name + unit, None)) is not None]
    yield f"{whose}_{name}_mean{unit}", sum(figure.mean for figure in found) / len(found) if found else None
    yield f"{whose}_{name}_max{unit}", max((figure.max for figure in found), default=None)
