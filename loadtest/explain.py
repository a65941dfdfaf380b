"""What limited each level of a run: plain rules over its figures, each with its evidence. Pure.

A rule is a function of a level and of the run that it is part of. What it finds has a weight, 0 to 1: the share of a
request's time that goes where the rule says, or, where there is no such share, how sure it is that the limit is there.
The heaviest comes first. The limits that the rules go by are docs/explain.md's.
"""

from collections.abc import Callable, Sequence
from typing import Annotated, Literal, NamedTuple

import msgspec
from msgspec import Meta

from loadtest.caveats import CPU_SHARE
from loadtest.result import LevelResult, Result
from loadtest.telemetry.figures import Figure

Limit = Literal[
    "client",
    "before_server",
    "server_queue",
    "kv_cache",
    "prefill",
    "decode",
    "gpu_power",
    "nothing",
    "cannot_tell",
]
NAMES: dict[Limit, str] = {
    "client": "the client",
    "before_server": "waiting before the server",
    "server_queue": "the server's queue",
    "kv_cache": "the key/value cache",
    "prefill": "prefill",
    "decode": "decode",
    "gpu_power": "the GPU's power or heat",
    "nothing": "nothing: the load is below the capacity",
    "cannot_tell": "cannot tell",
}
# From this share of a request's time on, where it goes is worth a word; below it, it limits nothing.
SHARE = 0.20
# So many requests that are in flight for us and neither running nor waiting at the server are more than a moment's.
UNSEEN = 1.0
# A cache so full, with requests waiting for a place in it, is what they wait for.
KV_FULL = 0.95
# A clock held down in so many of the looks.
THROTTLED = 0.10
# A queue this short is that of requests which arrive while a step is going on.
QUEUED = 0.5
# An open loop of which so much is answered keeps up.
KEPT_UP = 0.95
# More throughput than this from a larger load: the smaller one was not at the limit.
GROWTH = 1.10
# With so much more it is sure that the server was not: where its requests spent their time was no limit.
SURE_GROWTH = 0.25


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that limited a level, or that would have been known with more to go by."""

    limit: Limit
    weight: Annotated[float, Meta(ge=0, le=1)]
    words: str
    evidence: dict[str, float] = {}


class Explained(msgspec.Struct, frozen=True, kw_only=True):
    """A level and what limited it, the heaviest first."""

    level: str
    findings: list[Finding]


class Overall(msgspec.Struct, frozen=True, kw_only=True):
    """One limit over all levels of a run: those in which it came first."""

    limit: Limit
    weight: Annotated[float, Meta(description="the sum of its weights, ÷ levels played")]
    levels: list[str]


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """All levels that were played, and all of them together."""

    levels: list[Explained]
    matrix: list[Overall]


def explain(result: Result) -> Explanation:
    """What limited the levels of ``result``."""
    played = [level for level in result.levels if level.counts.in_window]
    levels = [Explained(level=level.name, findings=_findings(level, played)) for level in played]
    overall = []
    for limit in NAMES:
        weights = [found.weight for level in levels for found in level.findings if found.limit == limit]
        first = [level.level for level in levels if level.findings[0].limit == limit]
        if first:
            overall.append(Overall(limit=limit, weight=round(sum(weights) / len(levels), 3), levels=first))
    return Explanation(
        levels=levels, matrix=sorted(overall, key=lambda one: (len(one.levels), one.weight), reverse=True)
    )


def _findings(level: LevelResult, played: Sequence[LevelResult]) -> list[Finding]:
    found = [finding for rule in RULES if (finding := rule(level, played)) is not None]
    if not any(finding.weight >= SHARE for finding in found):
        found.append(_cannot_tell(level))
    return sorted(found, key=lambda finding: finding.weight, reverse=True)


def _found(limit: Limit, weight: float, words: str, **evidence: float | None) -> Finding:
    known = {name: round(value, 4) for name, value in evidence.items() if value is not None}
    return Finding(limit=limit, weight=round(min(1.0, max(0.0, weight)), 3), words=words, evidence=known)


# The rules ----------------------------------------------------------------------------------------------------


def _client(level: LevelResult, _: Sequence[LevelResult]) -> Finding | None:
    """The client was late, or was about to be."""
    client = level.client
    if not client.valid:
        return _found(
            "client", 1.0, f"its figures do not hold: {'; '.join(client.reasons)}", cpu_share=client.cpu_share
        )
    if client.cpu_share is not None and client.cpu_share >= CPU_SHARE:
        words = f"a generator process used {client.cpu_share:.0%} of its core; use more --workers"
        return _found("client", 0.5, words, cpu_share=client.cpu_share)
    return None


def _before(level: LevelResult, _: Sequence[LevelResult]) -> Finding | None:
    """Requests waited for a cap of ours, or somewhere between us and the server's own queue."""
    e2e, lag, own = (getattr(level.latency, name).ok.mean for name in ("e2e_ms", "lag_ms", "own_lag_ms"))
    if e2e and lag is not None and own is not None and (share := (lag - own) / e2e) >= SHARE:
        words = (
            f"requests waited {lag - own:,.0f} ms on average for --max-in-flight, --max-rate or the turn before, "
            f"{share:.0%} of their time"
        )
        return _found("before_server", share, words, wait_ms=lag - own, e2e_ms=e2e)
    server, ours = level.server, level.concurrency.mean
    if server is None or server.running is None or server.waiting is None or not ours:
        return None
    unseen = ours - server.running.mean - server.waiting.mean
    if unseen < max(UNSEEN, SHARE * ours):
        return None
    words = (
        f"{ours:,.1f} requests were in flight, and the server knew of {ours - unseen:,.1f}: the others were in front "
        "of it, in a proxy or gateway, or in its HTTP server"
    )
    return _found("before_server", unseen / ours, words, in_flight=ours, running=server.running.mean,
                  waiting=server.waiting.mean)  # fmt: skip


def _server_queue(level: LevelResult, _: Sequence[LevelResult]) -> Finding | None:
    """Requests waited in the server's own queue."""
    server, e2e = level.server, level.latency.service_e2e_ms.ok.mean
    if server is None:
        return None
    waiting, running, spent = _mean(server.waiting), _mean(server.running), _spent(level)
    if spent is None or spent.queued < SHARE or (waiting is not None and waiting < QUEUED):
        return None
    said = []
    if waiting is not None and running is not None:
        said.append(f"{waiting:,.1f} requests waited while {running:,.1f} ran")
    if server.queue_ms is not None:
        said.append(f"each waited {server.queue_ms.mean:,.0f} ms on average")
    batch = _mean(server.batch_size)
    if batch is not None:
        said.append(f"{batch:,.1f} shared a step")
    return _found("server_queue", spent.queued, "; ".join(said), waiting=waiting, running=running, batch_size=batch,
                  queue_ms=_mean(server.queue_ms), service_e2e_ms=e2e)  # fmt: skip


def _kv_cache(level: LevelResult, _: Sequence[LevelResult]) -> Finding | None:
    """The cache was full: requests waited for it, or were thrown out and begun anew."""
    server = level.server
    if server is None:
        return None
    usage, waiting, spent = server.kv_usage, _mean(server.waiting) or 0.0, _spent(level)
    if server.preemptions:
        again = server.preemptions / level.counts.sent if level.counts.sent else 1.0
        words = f"{server.preemptions:,} requests lost their place in it and were begun anew, of {level.counts.sent:,}"
        return _found("kv_cache", max(0.6, again), words, preemptions=server.preemptions, usage_max=_max(usage))
    if usage is None or usage.max < KV_FULL or waiting < QUEUED or spent is None or spent.queued < SHARE:
        return None
    words = f"it was up to {usage.max:.0%} full while {waiting:,.1f} requests waited"
    # As heavy as that wait, but for the time in which there was room.
    return _found("kv_cache", spent.queued * usage.mean, words, usage_mean=usage.mean, usage_max=usage.max,
                  waiting=waiting)  # fmt: skip


def _prefill(level: LevelResult, _: Sequence[LevelResult]) -> Finding | None:
    """The server's time went into prompts."""
    (share, known), spent = _prefill_share(level), _spent(level)
    if share is None or spent is None or share < 0.5 or share * spent.worked < SHARE:
        return None
    prompt = level.workload.input_tokens.observed.mean
    words = f"{share:.0%} of {known} went into prompts" + (f" of {prompt:,.0f} tokens on average" if prompt else "")
    return _found("prefill", share * spent.worked, words, prefill_share=share, input_tokens=prompt,
                  ttft_p50_ms=level.latency.service_ttft_ms.ok.p50)  # fmt: skip


def _decode(level: LevelResult, _: Sequence[LevelResult]) -> Finding | None:
    """The server's time went into answers, a token after the other."""
    (share, known), spent = _prefill_share(level), _spent(level)
    if share is None or spent is None or share >= 0.5 or (1 - share) * spent.worked < SHARE:
        return None
    tpot, batch = level.latency.tpot_ms.ok.p50, level.server and _mean(level.server.batch_size or level.server.running)
    words = f"{1 - share:.0%} of {known} went into answers"
    if tpot is not None:
        words += f", {tpot:,.3g} ms a token"
    if batch:
        words += f" with {batch:,.1f} sharing a step"
    return _found("decode", (1 - share) * spent.worked, words, decode_share=1 - share, tpot_p50_ms=tpot,
                  batch_size=batch or None)  # fmt: skip


def _gpu_power(level: LevelResult, _: Sequence[LevelResult]) -> Finding | None:
    """A GPU's clock was held down."""
    held = [(share, why, gpu) for gpu in level.gpus for why, share in gpu.throttled.items() if share >= THROTTLED]
    if not held:
        return None
    share, why, gpu = max(held, key=lambda one: one[0])
    words = f"the clock of GPU {gpu.id} was held down in {share:.0%} of the looks ({why.replace('_', ' ')})"
    if gpu.power_w is not None:
        of = f" of {gpu.power_limit_w:,.0f} W" if gpu.power_limit_w else ""
        words += f"; it took {gpu.power_w.mean:,.0f} W{of}"
    return _found("gpu_power", share, words, share=share, power_w=_mean(gpu.power_w), power_limit_w=gpu.power_limit_w,
                  sm_clock_mhz=_mean(gpu.sm_clock_mhz))  # fmt: skip


def _nothing(level: LevelResult, played: Sequence[LevelResult]) -> Finding | None:
    """More load would have brought more, or all that was asked came out and nothing queued."""
    own = _throughput(level)
    larger = [other for other in played if _like(level, other) and _load(other) > _load(level)]
    best = max(larger, key=_throughput, default=None)
    queued = level.server is not None and (_mean(level.server.waiting) or 0.0) >= QUEUED
    if level.status != "ok" or queued:
        return None
    if best is not None and own and (times := _throughput(best) / own) >= GROWTH:
        words = f"{best.name} brought {times:.2g} times as much"
        return _found("nothing", (times - 1) / SURE_GROWTH, words, throughput=own, throughput_of_more=_throughput(best))
    # Of a Poisson schedule: what came in this window, and not its rate.
    due = level.counts.in_window / level.window.measured_s if level.window.measured_s else None
    done, server = level.rates.completed_per_s, level.server
    if level.load.concurrency or not due or done is None or level.counts.failed or done / due < KEPT_UP:
        return None
    if server is None or server.waiting is None or _before(level, played) is not None:
        return None
    words = f"{done:,.3g} of {due:,.3g} requests/s were answered, and none waited for another"
    return _found("nothing", 1.0, words, completed_per_s=done, due_per_s=due, waiting=server.waiting.mean)


Rule = Callable[[LevelResult, Sequence[LevelResult]], Finding | None]
RULES: tuple[Rule, ...] = (
    _client, _before, _server_queue, _kv_cache, _prefill, _decode, _gpu_power, _nothing,
)  # fmt: skip


def _cannot_tell(level: LevelResult) -> Finding:
    """What the rules would have needed."""
    missing = []
    if level.server is None:
        missing.append("the server's metrics were not seen")
    else:
        unsaid = [name for name in ("waiting", "running") if getattr(level.server, name) is None]
        missing += [f"the server does not tell how many requests are {' or '.join(unsaid)}"] if unsaid else []
    if level.latency.ttft_ms.ok.n == 0:
        missing.append("no answer has a time to first token")
    if level.counts.failed and not level.counts.ok:
        missing.append("every request failed")
    if not missing:
        missing.append(f"no part of a request's time is {SHARE:.0%} of it, and no larger load was tried")
    return Finding(limit="cannot_tell", weight=0.0, words=f"because {', and '.join(missing)}")


# Parts of a request's time ------------------------------------------------------------------------------------


def _prefill_share(level: LevelResult) -> tuple[float | None, str]:
    """Of the time that requests are worked on, that of prefill; and whose time it is.

    Without the server's word it is what the client saw, of which the server's queue has to be known to be taken off.
    """
    server = level.server
    if server is not None and server.prefill_share is not None:
        return server.prefill_share.mean, "the server's time"
    ttft, e2e = level.latency.service_ttft_ms.ok.mean, level.latency.service_e2e_ms.ok.mean
    queue = None if server is None or server.queue_ms is None else server.queue_ms.mean
    if queue is None and server is not None and server.waiting is not None and server.waiting.mean < QUEUED:
        queue = 0.0
    if not e2e or ttft is None or queue is None or e2e <= queue:
        return None, ""
    return max(0.0, ttft - queue) / (e2e - queue), "the time of requests"


class _Spent(NamedTuple):
    """Shares of a request's time: in the server's queue, and worked on."""

    queued: float
    worked: float


def _spent(level: LevelResult) -> _Spent | None:
    """Where requests spend their time at the server; None: nothing tells.

    By the number of requests that are there or there, as far as that is known: times are of those that ended. Time in
    flight of which the server does not know, and time behind a cap of ours, is neither.
    """
    server, e2e, service = level.server, level.latency.e2e_ms.ok.mean, level.latency.service_e2e_ms.ok.mean
    if server is None:
        return None
    sent = min(1.0, service / e2e) if e2e and service is not None else 1.0
    waiting, running = _mean(server.waiting), _mean(server.running)
    if waiting is not None and running is not None:
        every = max(waiting + running, level.concurrency.mean or 0.0)
        return _Spent(sent * waiting / every, sent * running / every) if every else _Spent(0.0, sent)
    if server.queue_ms is None or not service:
        return None
    queued = min(1.0, server.queue_ms.mean / service)
    return _Spent(sent * queued, sent * (1 - queued))


def _mean(figure: Figure | None) -> float | None:
    return None if figure is None else figure.mean


def _max(figure: Figure | None) -> float | None:
    return None if figure is None else figure.max


def _throughput(level: LevelResult) -> float:
    done = level.throughput
    return done.samples_per_s or done.output_tokens_per_s or level.rates.completed_per_s or 0.0


def _load(level: LevelResult) -> float:
    return level.load.concurrency or level.load.rate_per_s or 0.0


def _like(one: LevelResult, other: LevelResult) -> bool:
    """Whether only the size of the load differs."""

    def rest(level: LevelResult) -> tuple[object, ...]:
        work = level.workload
        return (
            level.load.kind, level.batching, level.model, level.batch_size, work.input_tokens.requested,
            work.output_tokens.requested,
        )  # fmt: skip

    return rest(one) == rest(other)
