"""A scenario in the small: shorter, lighter, and with shorter prompts and answers. Pure."""

import math

import msgspec

from loadtest.scenario.model import Block, Scenario
from loadtest.schedule import Stage
from loadtest.workload.model import Trace, Workload

_SHORTEST_S = 0.5
_FEWEST = 5  # requests that an open loop is still expected to send


def scaled(scenario: Scenario, factor: float) -> Scenario:
    """The scenario with durations, requests, rates, slots, lengths and think times times ``factor``, 0 to 1.

    Nothing falls below 0.5 s, a request, a slot or a token, and no rate so far that fewer than five requests are
    expected of it, unless it was as low before. Where a number of requests alone ends a level, its rate stays and its
    time is what shrinks. A trace keeps its rate: so many of its arrivals are left in so much of the time.
    """
    duration_s = scenario.duration_s and _time(scenario.duration_s, factor)
    probe = scenario.probe
    return msgspec.structs.replace(
        scenario,
        workloads=tuple(_workload(workload, factor) for workload in scenario.workloads),
        levels=[_block(block, factor, duration_s) for block in scenario.levels],
        duration_s=duration_s,
        requests=scenario.requests and _count(scenario.requests, factor),
        warmup_s=scenario.warmup_s and round(scenario.warmup_s * factor, 6),
        cooldown_s=round(scenario.cooldown_s * factor, 6),
        max_in_flight=scenario.max_in_flight and _count(scenario.max_in_flight, factor),
        probe=probe
        and msgspec.structs.replace(
            probe,
            rate_per_s=_rate(probe.rate_per_s, factor, duration_s),
            input_tokens=probe.input_tokens.scaled(factor),
            output_tokens=probe.output_tokens.scaled(factor),
        ),
    )


def _block(block: Block, factor: float, duration_s: float | None) -> Block:
    return msgspec.structs.replace(
        block,
        concurrency=block.concurrency and [_count(slots, factor) for slots in block.concurrency],
        rate_per_s=block.rate_per_s and [_rate(rate, factor, duration_s) for rate in block.rate_per_s],
        stages=block.stages and _stages(block.stages, factor),
        trace=block.trace and _trace(block.trace, factor),
        input_tokens=block.input_tokens and [length.scaled(factor) for length in block.input_tokens],
        output_tokens=block.output_tokens and [length.scaled(factor) for length in block.output_tokens],
    )


def _workload(workload: Workload, factor: float) -> Workload:
    prefix, talk = workload.prefix, workload.conversation
    return msgspec.structs.replace(
        workload,
        input_tokens=workload.input_tokens and workload.input_tokens.scaled(factor),
        output_tokens=workload.output_tokens and workload.output_tokens.scaled(factor),
        prefix=prefix and msgspec.structs.replace(prefix, tokens=_count(prefix.tokens, factor)),
        conversation=talk
        and msgspec.structs.replace(
            talk,
            think_s=talk.think_s.scaled(factor),
            next_input=talk.next_input and talk.next_input.scaled(factor),
        ),
    )


def _stages(stages: tuple[Stage, ...], factor: float) -> tuple[Stage, ...]:
    lasting = [(stage, _time(stage.duration_s, factor)) for stage in stages]
    expected = math.fsum((stage.from_per_s + stage.to_per_s) / 2 * seconds for stage, seconds in lasting)
    slower = max(factor, min(1.0, float(f"{_FEWEST / expected:.3g}")))
    return tuple(
        Stage(round(stage.from_per_s * slower, 6), round(stage.to_per_s * slower, 6), seconds)
        for stage, seconds in lasting
    )


def _trace(trace: Trace, factor: float) -> Trace:
    return msgspec.structs.replace(
        trace, speed=trace.speed / factor, scale=trace.scale * factor, lengths=trace.lengths * factor
    )


def _rate(rate: float, factor: float, duration_s: float | None) -> float:
    if duration_s is None:
        return rate
    return max(rate * factor, min(rate, float(f"{_FEWEST / duration_s:.3g}")))


def _time(seconds: float, factor: float) -> float:
    return max(round(seconds * factor, 6), min(seconds, _SHORTEST_S))


def _count(number: int, factor: float) -> int:
    return max(1, round(number * factor))
