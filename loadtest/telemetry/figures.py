"""The figures of a level that others saw: the server, its GPUs, this host. Made of looks at them. Pure.

A look is taken each second. What nobody told is null. Means and maxima are over the window, as those of all figures;
a level too short to have a look in its window takes all of its looks.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta

from loadtest.stats import significant

MOST_POINTS = 600
Looks = Sequence[tuple[float, Mapping[str, float]]]
"""What was seen, each with its time in ms from the level's t0, in the order of these."""


def _says(text: str) -> Meta:
    return Meta(description=text)


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """One figure of a level over time."""

    mean: Annotated[float, _says("over the window")]
    max: Annotated[float, _says("over the window; between two looks it may have been higher")]
    series: Annotated[
        list[tuple[float, float]], _says("ms from the level's t0, and the value; of a long level evenly thinned out")
    ]


class Counted(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens of the whole level, warm-up included, counted on both sides."""

    server: Annotated[int, _says("by its counters, from before the first request until after the last")]
    client: Annotated[int | None, _says("by the records; null: they do not say, as of failed requests")] = None


class Server(msgspec.Struct, frozen=True, kw_only=True):
    """What the server said of itself. Null: its kind does not tell it, or it did not answer."""

    kind: Annotated[str, _says("whose names its metrics have: loadtest (the bundled one), vllm, sglang, …")]
    url: Annotated[str, _says("where they are, secrets redacted")]
    looks: Annotated[int, _says("how often it was asked and answered")]
    running: Annotated[Figure | None, _says("requests being computed")] = None
    waiting: Annotated[Figure | None, _says("requests in its queue")] = None
    queue_ms: Annotated[Figure | None, _says("time in its queue, of those that left it")] = None
    batch_size: Annotated[Figure | None, _says("requests of one step; vLLM and SGLang: see running")] = None
    kv_usage: Annotated[Figure | None, _says("share of the key/value cache in use, 0..1; the fullest engine's")] = None
    prefix_hit_share: Annotated[Figure | None, _says("prompt tokens found in the prefix cache ÷ looked up")] = None
    prefill_share: Annotated[Figure | None, _says("of the time of prefill and decode, that of prefill")] = None
    prompt_tokens_per_s: Figure | None = None
    generation_tokens_per_s: Figure | None = None
    preemptions: Annotated[int | None, _says("of the whole level")] = None
    prompt_tokens: Counted | None = None
    generation_tokens: Counted | None = None
    restarted: Annotated[
        bool, _says("its counters went back, so those of the level are null: restarted, or several behind one address")
    ] = False


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU."""

    id: Annotated[str, _says("its index, with the host where a DCGM exporter names one")]
    name: str | None = None
    utilisation: Annotated[Figure | None, _says("share of the time in which anything ran on it, 0..1")] = None
    memory_share: Annotated[Figure | None, _says("of its memory, in use, 0..1")] = None
    power_w: Figure | None = None
    power_limit_w: float | None = None
    sm_clock_mhz: Figure | None = None
    energy_j: Annotated[float | None, _says("of the whole level")] = None
    throttled: Annotated[
        dict[str, float], _says("share of the looks in which its clock was held down, by why; empty: never, or unknown")
    ] = {}


class Host(msgspec.Struct, frozen=True, kw_only=True):
    """This host, all that runs on it included."""

    cpu_share: Annotated[Figure | None, _says("of all its cores, 0..1")] = None
    received_mb_per_s: Annotated[Figure | None, _says("of all networks, loopback too")] = None
    sent_mb_per_s: Figure | None = None
    tcp_sockets: Annotated[Figure | None, _says("in use")] = None


class Span(NamedTuple):
    """The window of a level, and when the last of its requests had ended, all in ms from its t0."""

    start: float
    end: float
    over: float


class _Point(NamedTuple):
    at: float
    value: float
    weight: float


def server(kind: str, url: str, looks: Looks, span: Span) -> Server:
    """What a server said in a level."""
    counters = ("preemptions", "prompt_tokens", "generation_tokens")
    restarted = any(_went_back(looks, name) for name in (*counters, "dequeued"))
    totals: dict[str, float | None] = {name: None if restarted else _delta(looks, name, span) for name in counters}

    def ratio(over: str, under: str, unit: float = 1.0) -> Figure | None:
        return _figure(_ratios(looks, over, [under], unit), span)

    def counted(name: str) -> Counted | None:
        total = totals[name]
        return None if total is None else Counted(server=round(total))

    preemptions = totals["preemptions"]
    return Server(
        kind=kind,
        url=url,
        looks=len(looks),
        running=_figure(_gauge(looks, "running"), span),
        waiting=_figure(_gauge(looks, "waiting") or _gauge(looks, "pending"), span),
        queue_ms=ratio("queued_s", "dequeued", 1000.0),
        batch_size=ratio("batch_sum", "batch_count"),
        kv_usage=_figure(_gauge(looks, "kv_usage"), span),
        prefix_hit_share=ratio("cache_hit", "cache_queried"),
        prefill_share=_figure(_ratios(looks, "prefill_s", ["prefill_s", "decode_s"]), span),
        prompt_tokens_per_s=_figure(_rates(looks, "prompt_tokens"), span),
        generation_tokens_per_s=_figure(_rates(looks, "generation_tokens"), span),
        preemptions=None if preemptions is None else round(preemptions),
        prompt_tokens=counted("prompt_tokens"),
        generation_tokens=counted("generation_tokens"),
        restarted=restarted,
    )


def gpu(name: str, model: str | None, looks: Looks, reasons: Iterable[str], span: Span) -> Gpu:
    """What was seen of one GPU in a level; ``reasons`` are the readings that say why its clock was held down."""
    energy = _delta(looks, "energy_j", span)
    limits = [seen["power_limit_w"] for _, seen in looks if "power_limit_w" in seen]
    shares = {why: _figure(_gauge(looks, why), span) for why in reasons}
    return Gpu(
        id=name,
        name=model,
        utilisation=_figure(_gauge(looks, "utilisation"), span),
        memory_share=_figure(_gauge(looks, "memory_share"), span),
        power_w=_figure(_gauge(looks, "power_w"), span),
        power_limit_w=limits[-1] if limits else None,
        sm_clock_mhz=_figure(_gauge(looks, "sm_clock_mhz"), span),
        energy_j=None if energy is None or energy < 0 else significant(energy),
        throttled={why: share.mean for why, share in shares.items() if share is not None and share.mean > 0},
    )


def host(looks: Looks, span: Span) -> Host:
    """What was seen of this host in a level."""
    # Jiffies and our own clock are not read at one instant, and a full second may come out at a little more.
    busy = [point._replace(value=min(point.value, 1.0)) for point in _rates(looks, "busy_share_s")]
    return Host(
        cpu_share=_figure(busy, span),
        received_mb_per_s=_figure(_rates(looks, "received_mb"), span),
        sent_mb_per_s=_figure(_rates(looks, "sent_mb"), span),
        tcp_sockets=_figure(_gauge(looks, "tcp_sockets"), span),
    )


def _gauge(looks: Looks, name: str) -> list[_Point]:
    return [_Point(at, seen[name], 1.0) for at, seen in looks if name in seen]


def _pairs(looks: Looks, *names: str) -> Iterable[tuple[float, float, list[float]]]:
    """Of each two looks that have all of ``names``: when they were, in ms, and by how much each of these grew.

    None from one at which a counter had gone back.
    """
    known = [(at, [seen[name] for name in names]) for at, seen in looks if all(name in seen for name in names)]
    for (start, before), (end, after) in pairwise(known):
        grown = [new - old for old, new in zip(before, after, strict=True)]
        if end > start and all(each >= 0 for each in grown):
            yield start, end, grown


def _rates(looks: Looks, name: str) -> list[_Point]:
    """Of a counter, by how much it grew a second."""
    return [_Point(end, grown / (end - start) * 1000, end - start) for start, end, (grown,) in _pairs(looks, name)]


def _ratios(looks: Looks, over: str, under: Sequence[str], unit: float = 1.0) -> list[_Point]:
    """Of counters, by how much one grew for what the others did."""
    return [
        _Point(end, unit * grown[0] / sum(grown[1:]), sum(grown[1:]))
        for _, end, grown in _pairs(looks, over, *under)
        if sum(grown[1:]) > 0
    ]


def _delta(looks: Looks, name: str, span: Span) -> float | None:
    """By how much a counter grew in the whole level; None where a look before it or one after it is missing."""
    known = [(at, seen[name]) for at, seen in looks if name in seen]
    if not known or known[0][0] > 0 or known[-1][0] < span.over:
        return None
    return known[-1][1] - known[0][1]


def _went_back(looks: Looks, name: str) -> bool:
    known = [seen[name] for _, seen in looks if name in seen]
    return any(after < before for before, after in pairwise(known))


def _figure(points: Sequence[_Point], span: Span) -> Figure | None:
    inside = [point for point in points if span.start <= point.at <= span.end] or points
    weight = sum(point.weight for point in inside)
    if not inside or weight <= 0:
        return None
    step = -(-len(points) // MOST_POINTS)
    return Figure(
        mean=significant(sum(point.value * point.weight for point in inside) / weight),
        max=significant(max(point.value for point in inside)),
        series=[(round(point.at, 1), significant(point.value)) for point in points[::step]],
    )
