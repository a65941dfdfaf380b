"""What a reader of a level's figures should know, short of making them invalid. Pure."""

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

from loadtest.alert import PERCENTILES, Alert, Figure
from loadtest.result import LevelResult, Metric, TokenLengths, Workload
from loadtest.slo import TIMES, Unit
from loadtest.telemetry.tokens import apart

# docs/metrics.md, "When the client was the limit": CPU share only warns.
CPU_SHARE = 0.90
# Answers this much shorter, and prompts this much off, make the level another workload than the one that was meant.
SHORT_ANSWERS = 0.90
INPUT_LENGTH = 0.02
# Above these a gap between events says little of the time between tokens.
TOKENS_PER_EVENT = 1.5
COALESCED = 0.10
# So few answers without a speed move no percentile of those that have one; result.json counts them all the same.
SINGLE_BURST = 0.05
# A generator process that once stood still for so much of the window, and for so long, may have missed what went on.
STOOD_STILL = 0.05
STOOD_STILL_MS = 250.0
# As far apart as the workers of a cluster may start.
CLOCK_DRIFT_MS = 100.0


_HOLDS: dict[str, Callable[[float, float], Any]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip


def caveats(level: LevelResult, prompts_sized: str | None = None, alerts: Sequence[Alert] = ()) -> list[str]:
    """The caveats of one level, each naming it; none of a level that never started.

    ``prompts_sized`` is the result's: how prompts got their lengths. ``alerts`` are what the user wants to be told.
    """
    if level.status == "not_reached":
        return []
    mend = "it ended before its warm-up did" if level.status == "aborted" else "lengthen the level"
    nothing = f"no request was due in the window, so there is nothing to report; {mend}"
    said = [nothing] if level.counts.in_window == 0 else []
    said += [*_client(level), *_lengths(level.workload, prompts_sized)]
    said += [f"{part.name}: {text}" for part in level.workloads for text in _lengths(part.workload, prompts_sized)]
    said += [*_cache(level.workload), *_stream(level), *_beside(level), *_server(level)]
    said += [text for alert in alerts if alert.is_of(level.name) and (text := _alerted(level, alert))]
    return [f"{level.name}: {text}" for text in said]


def _client(level: LevelResult) -> list[str]:
    said: list[str] = []
    cpu, coalesced = level.client.cpu_share, level.client.coalesced_read_share
    if cpu is not None and cpu >= CPU_SHARE:
        said.append(f"the busiest generator process used {cpu:.0%} of its core; more --workers would be safer")
    if coalesced is not None and coalesced > COALESCED:
        said.append(
            f"{coalesced:.0%} of reads held several events, which then share one arrival: the server sends them "
            "together, or the client reads late (see its error bar)"
        )
    lag, measured_s = level.client.loop_lag_ms, level.window.measured_s
    if lag is not None and measured_s is not None and lag.max > max(STOOD_STILL_MS, STOOD_STILL * measured_s * 1000):
        said.append(
            f"a generator process stood still for {lag.max / 1000:,.1f} s at worst (stopped, or starved): "
            "what came meanwhile was read late, and a closed loop sent nothing; run the level again"
        )
    if level.counts.resent:
        said.append(
            f"{level.counts.resent} request{'s were' if level.counts.resent > 1 else ' was'} sent once more, because "
            "the server had closed the kept-alive connection"
        )
    worst = max(level.client.cluster, key=lambda worker: abs(worker.clock_drift_ms or 0.0), default=None)
    if worst is not None and (drift_ms := abs(worst.clock_drift_ms or 0.0)) > CLOCK_DRIFT_MS:
        said.append(
            f"the clock of worker {worst.worker} on {worst.host} went {drift_ms:,.0f} ms away from ours: towards the "
            "end, rates and concurrency over time put its requests so far from where they were (latencies are of one "
            "clock, and right); have its host keep time (NTP)"
        )
    return said


def _server(level: LevelResult) -> list[str]:
    """Where the server's own counts are not the client's, short of making the level invalid."""
    server = level.server
    if server is None:
        return []
    if server.restarted:
        return [
            "the server's counters went back, so what it counted is not known: it was started anew, or several servers "
            "answer at this address"
        ]
    tokens, share = server.generation_tokens, apart(server.generation_tokens)
    if tokens is None or share is None:
        return []
    if share > 0:
        why = "others used it too, and their load is in these figures, or not all that it wrote was told"
    elif level.client.valid:
        why = "they are a tokenizer's, which may be another than its own"
    else:
        return []  # the reason why it is not valid
    more = "more" if share > 0 else "fewer"
    return [f"the server counted {abs(share):.1%} {more} output tokens than the client ({tokens.server:,}): {why}"]


def _lengths(workload: Workload, prompts_sized: str | None) -> list[str]:
    """Where what was played is not what was asked for."""
    said: list[str] = []
    input_, output = workload.input_tokens, workload.output_tokens
    if output.observed.n < output.asked.n:
        said.append(
            f"{output.asked.n - output.observed.n} of {output.asked.n} answers had no token count, and tokens/s "
            "is without them"
        )
    if output.observed_per_asked is not None and output.observed_per_asked < SHORT_ANSWERS:
        said.append(f"answers were shorter than asked: {_instead(output)}")
    if input_.observed_per_asked is not None and abs(input_.observed_per_asked - 1) > INPUT_LENGTH:
        sized = f"; they were sized {prompts_sized}" if prompts_sized else ""
        said.append(f"prompts were not as long as asked: {_instead(input_)}{sized}")
    return said


def _instead(lengths: TokenLengths) -> str:
    if lengths.asked.n == lengths.observed.n:
        return f"{lengths.observed.mean:.1f} tokens on average instead of {lengths.asked.mean:.1f}"
    return f"{lengths.observed_per_asked:.0%} of the tokens, of those requests that tell"


def _cache(workload: Workload) -> list[str]:
    """Where the server may have had a part of the answer before it was asked."""
    said: list[str] = []
    cached = workload.cached_input_tokens
    total = (workload.input_tokens.observed.mean or 0.0) * workload.input_tokens.observed.n
    if cached:
        share = f" ({cached / total:.0%})" if total else ""
        said.append(
            f"warm prefix cache: {cached:,} input tokens{share} came from the server's cache, so TTFT is not a cold one"
        )
    if workload.repeated_prompts and any(data.order == "random" for data in workload.data):
        # Without a number, so that it is one line for all levels.
        said.append(
            "prompts repeat, as order: random of their data has it: a cache of the server's answers them faster"
        )
    elif workload.repeated_prompts:
        many = "request" if workload.repeated_prompts == 1 else "requests"
        said.append(
            f"{workload.repeated_prompts:,} {many} repeated a prompt that this run had sent before: a cache of the "
            "server's answers them faster; give it data of more rows, or longer prompts"
        )
    return said


def _stream(level: LevelResult) -> list[str]:
    """Where the way in which the answers came makes a figure mean something else, or nothing."""
    said: list[str] = []
    no_token = level.latency.ttft_ms.excluded
    if no_token and level.whole_run.events_per_s is not None:
        said.append(f"TTFT not measured: {no_token} ok answers brought no token, or were not streamed")
    if level.single_burst > SINGLE_BURST * _ok(level):
        said.append(
            f"single-burst: {level.single_burst} of {_ok(level)} answers arrived all at once; TPOT and ITL are "
            "without them, for they have no speed"
        )
    each = level.tokens_per_event
    if each is not None and each > TOKENS_PER_EVENT:
        said.append(f"the server bundles tokens, {each:.1f} a stream event: ITL is between events, not between tokens")
    if level.bad_events:
        said.append(f"{level.bad_events} stream events could not be read and were skipped")
    return said


def _beside(level: LevelResult) -> list[str]:
    """Where the stream beside the load tells less than it was to."""
    if level.probe is None or not level.probe.counts.failed:
        return []
    counts, (worst, *_) = level.probe.counts, level.probe.errors
    return [f"{counts.failed} of {counts.scheduled} requests of the probe stream failed, mostly {worst.kind}"]


def _ok(level: LevelResult) -> int:
    """Requests of the window that ended ok."""
    return level.latency.e2e_ms.ok.n + level.latency.e2e_ms.excluded


# What the user asked to be told -------------------------------------------------------------------------------


def _alerted(level: LevelResult, alert: Alert) -> str:
    """What is to be said by it; nothing where it does not hold."""
    left, right = (_value(level, side) for side in (alert.left, alert.right))
    if left is None or right is None:
        missing = alert.left if left is None else alert.right
        return f"warn {alert.text}: nothing to tell it by, as {missing} was not measured"
    if not _HOLDS[alert.op](left, right):
        return ""
    unit = alert.left.measure.unit
    against = f", and {alert.right} is {_in_words(right, unit)}" if isinstance(alert.right, Figure) else ""
    return f"warn {alert.text}: {alert.left} is {_in_words(left, unit)}{against}"


def _value(level: LevelResult, of: Figure | float) -> float | None:
    """What it was, failures inside; infinite where it falls among them, and None where it was not measured."""
    if not isinstance(of, Figure):
        return of
    metric = of.measure.metric
    value: float | None
    if metric in TIMES:
        value = _time(getattr(level.latency, f"{metric}_ms"), of.measure.quantile)
    elif metric == "error_rate":
        due = level.latency.e2e_ms.due
        value = due.failed / level.counts.in_window if due and level.counts.in_window else None
    elif metric == "goodput":
        value = level.goodput.share_of_scheduled if level.goodput else None
    elif metric == "requests_per_s":
        value = level.rates.completed_per_s
    else:
        value = getattr(level.throughput, metric)
    return None if value is None else of.factor * value


def _time(metric: Metric, quantile: float | None) -> float | None:
    failed = metric.due.failed if metric.due else 0
    if quantile is None:
        return math.inf if failed else metric.ok.mean
    name = PERCENTILES[quantile]
    if metric.due and name in metric.due.unbounded:
        return math.inf
    value: float | None = getattr(metric.met, name)
    return value


def _in_words(value: float, unit: Unit) -> str:
    if math.isinf(value):
        return "without end, as requests failed"
    rounded = float(f"{value * 100 if unit == 'share' else value:.3g}")
    return f"{rounded:,.15g}" + {"ms": " ms", "share": "%", "per_s": " per s"}[unit]
