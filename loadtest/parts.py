"""A level taken apart: the workloads of its mix, the turns of its conversations, its models, the probe beside it. Pure.

Each part is of the same stretch of time as the level, and those of one kind add up to it.
"""

from collections.abc import Sequence
from functools import partial
from operator import eq

from loadtest import measures
from loadtest.columns import Bounds, Columns, Requests
from loadtest.level import Level
from loadtest.records import Record
from loadtest.result import ModelPart, Part, ProbeResult, Turn
from loadtest.rows import tally, that
from loadtest.stats import significant


def workloads(level: Level, requests: Requests, bounds: Bounds, target_per_s: float | None) -> list[Part]:
    """Each workload of a mix; of a level that is none, nothing."""
    if len(level.workloads) < 2:
        return []
    weights = sum(workload.weight for workload in level.workloads)
    parts = []
    for place, workload in enumerate(level.workloads):
        own = requests.only(that(requests.records, "workload", partial(eq, place)))
        inside = own.columns.belonging_to(bounds)
        share = None if target_per_s is None else significant(target_per_s * workload.weight / weights)
        parts.append(
            Part(
                name=workload.name,
                weight=workload.weight,
                counts=measures.counts(own, inside),
                workload=measures.workload(level, place, own, inside),
                rates=measures.rates(own, inside, bounds.length_s, share),
                throughput=measures.throughput(own, bounds),
                latency=measures.latency(own, inside),
            )
        )
    return parts


def turns(requests: Requests, bounds: Bounds) -> list[Turn]:
    """Each turn of the sessions."""
    found = []
    for turn in sorted({*tally(requests.records, "turn")} - {None}):
        own = requests.only(that(requests.records, "turn", partial(eq, turn)))
        inside = own.columns.belonging_to(bounds)
        good = inside & own.columns.ok
        latency = measures.latency(own, inside)
        found.append(
            Turn(
                turn=turn,
                counts=measures.counts(own, inside),
                input_tokens=measures.lengths(own.columns.input_tokens[good]),
                cached_input_tokens=measures.cached_input_tokens(own.columns, good),
                ttft_ms=latency.ttft_ms,
                e2e_ms=latency.e2e_ms,
            )
        )
    return found


def models(requests: Requests, bounds: Bounds) -> list[ModelPart]:
    """Each model that the records name, in the order of the names."""
    found = []
    for model in sorted({*tally(requests.records, "model")} - {None}):
        own = requests.only(that(requests.records, "model", partial(eq, model)))
        inside = own.columns.belonging_to(bounds)
        latency = measures.latency(own, inside)
        found.append(
            ModelPart(
                model=model,
                counts=measures.counts(own, inside),
                ttft_ms=latency.ttft_ms,
                e2e_ms=latency.e2e_ms,
            )
        )
    return found


def probe(level: Level, records: Sequence[Record], bounds: Bounds) -> ProbeResult | None:
    """The probe stream, whose ``records`` these are; None when the level has none."""
    if level.probe is None:
        return None
    own = Requests(records, Columns.of(records))
    inside = own.columns.belonging_to(bounds)
    return ProbeResult(
        rate_per_s=level.probe.rate_per_s,
        counts=measures.counts(own, inside),
        latency=measures.latency(own, inside),
        errors=measures.errors(records),
    )
