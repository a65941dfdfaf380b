"""A scenario made into levels, and a level into the requests of one worker. Pure."""

import itertools
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import msgspec

from loadtest.level import Batching, Level, Scheduler
from loadtest.scenario.model import Block, Combine, Scenario
from loadtest.schedule import Load, arrivals, share, stream
from loadtest.workload.lengths import Length, pair
from loadtest.workload.model import Data, Rows, Trace, Workload

_WARMUP_SHARE, _WARMUP_LEAST_S, _WARMUP_MOST_S = 0.1, 1.0, 30.0


class Request(msgspec.Struct, frozen=True):
    """One request before it is sent: what it asks, and the random stream that its prompt is written from.

    ``workload`` is its place in the level's. Of a conversation ``session`` and ``turn`` (from 1) say where it stands.
    Lengths of None are those of ``row``, the number of the row of the workload's data that it plays.
    """

    id: int
    input_tokens: int | None
    output_tokens: int | None
    rng: random.Random
    workload: int = 0
    session: int | None = None
    turn: int | None = None
    row: int | None = None


def levels(
    scenario: Scenario, *, bundled: bool, rows: Mapping[Data | Trace, Rows] = MappingProxyType({})
) -> list[Level]:
    """Every level of a run in the order it is played; a combination that stands in several blocks is played once.

    ``rows`` has what was made ready of each data file and trace. Batching is a setting of the bundled server: against
    another target its axes collapse. A repetition plays the same levels in another order, drawn by the seed.
    """
    seen: dict[Level, None] = {}
    for block in scenario.levels:
        for scheduler, size, model, in_, out, load in _combined(
            scenario.combine,
            block.scheduler if bundled else [None],
            block.max_batch_size if bundled else [None],
            block.model or [None],
            block.input_tokens or [None],
            block.output_tokens or [None],
            _loads(scenario, block, rows),
        ):
            duration_s = scenario.duration_s if load.duration_s is None else load.duration_s
            level = Level(
                0, "", load, _batching(scenario, scheduler, size), _workloads(scenario, block, in_, out, rows),
                duration_s, scenario.requests, _warmup(scenario, duration_s),
                scenario.timeout_s if scenario.grace_s is None else scenario.grace_s, model, scenario.probe,
            )  # fmt: skip
            seen.setdefault(level)
    found = list(seen)
    varies = {key for key in ("input_tokens", "output_tokens", "model") if len({getattr(it, key) for it in found}) > 1}
    names = _distinct(_name(level, varies) for level in found)
    named = [msgspec.structs.replace(level, name=name) for level, name in zip(found, names, strict=True)]
    played = []
    for repeat in range(1, scenario.repeat + 1):
        if repeat > 1:
            stream(scenario.seed or 0, "order", repeat).shuffle(named)
        of = f" ({repeat}/{scenario.repeat})" if scenario.repeat > 1 else ""
        played += [msgspec.structs.replace(level, name=level.name + of, repeat=repeat) for level in named]
    return [msgspec.structs.replace(level, index=index) for index, level in enumerate(played)]


def requests(level: Level, seed: int, worker: int, workers: int) -> Iterator[Request]:
    """The requests of one worker's slice, in order: numbers ``worker``, ``worker + workers``, … of the level.

    Of a closed loop the slots are dealt out like that and the numbers to the slots, so that a worker with fewer slots
    has fewer requests and all workers end together. Each request is a function of (seed, level, number) alone, so the
    level's requests are the same for any number of workers. Ends at the level's number of requests, or never.
    """
    turn = _turn(level, workers)
    for number in itertools.count() if worker < turn else ():  # without a slot there is nothing to play
        if level.requests is not None and number >= level.requests:
            return
        if number % turn % workers != worker:
            continue
        rng = stream(seed, "request", level.index, number)
        chosen = _chosen(level.workloads, rng)
        input_tokens, output_tokens = _lengths(level.workloads[chosen], rng)
        yield Request(number, input_tokens, output_tokens, rng, chosen)


def request_count(level: Level, worker: int, workers: int) -> int | None:
    """How many requests ``requests`` gives to one worker; None if it never ends."""
    if level.requests is None:
        return None
    turn = _turn(level, workers)
    whole, rest = divmod(level.requests, turn)
    return whole * share(turn, worker, workers) + share(rest, worker, workers)


def _chosen(workloads: tuple[Workload, ...], rng: random.Random) -> int:
    """Which workload of a mix a request is of."""
    if len(workloads) == 1:
        return 0
    return rng.choices(range(len(workloads)), [workload.weight for workload in workloads])[0]


def _lengths(workload: Workload, rng: random.Random) -> tuple[int | None, int | None]:
    """The lengths of one request; None where the data have them."""
    asked, answer = workload.input_tokens, workload.output_tokens
    if asked is not None and answer is not None and workload.correlation:
        return pair(asked, answer, workload.correlation, rng)
    return (asked.sample(rng) if asked else None), (answer.sample(rng) if answer else None)


def _turn(level: Level, workers: int) -> int:
    """After how many requests it is the first worker's turn again."""
    return level.load.concurrency or workers


def due_times(level: Level, seed: int, worker: int, workers: int) -> Iterator[float]:
    """When the requests of one worker's slice are due in an open loop, in seconds from t0."""
    every = arrivals(level.load, seed, level.index, level.duration_s, level.requests)
    return itertools.islice(every, worker, None, workers)


def slots(level: Level, worker: int, workers: int) -> int:
    """One worker's share of a closed loop's slots."""
    return share(level.load.concurrency or 0, worker, workers)


def _warmup(scenario: Scenario, duration: float | None) -> float:
    if scenario.warmup_s is not None:
        return scenario.warmup_s
    if duration is None or scenario.requests is not None:
        return 0.0
    warmup = min(max(duration * _WARMUP_SHARE, _WARMUP_LEAST_S), _WARMUP_MOST_S)
    # Of a very short level most should be left to measure.
    return warmup if warmup <= duration / 2 else duration * _WARMUP_SHARE


def _combined(combine: Combine, *axes: list[Any]) -> Iterator[tuple[Any, ...]]:
    """What one value of each axis makes together: all with all, or the first of each, the second of each, …"""
    if combine == "product":
        return itertools.product(*axes)
    most = max(map(len, axes))
    return zip(*(axis * most if len(axis) == 1 else axis for axis in axes), strict=True)


def _loads(scenario: Scenario, block: Block, rows: Mapping[Data | Trace, Rows]) -> list[Load]:
    if block.trace is not None:
        return [Load("trace", events=rows[block.trace].count, span_s=rows[block.trace].span_s)]
    if block.concurrency is not None:
        return [Load("closed", concurrency=slots) for slots in block.concurrency]
    burstiness = scenario.burstiness if scenario.arrival == "gamma" else None
    if block.stages is not None:
        return [Load("stages", burstiness=burstiness, stages=block.stages, arrival=scenario.arrival)]
    return [Load(scenario.arrival, rate_per_s=rate, burstiness=burstiness) for rate in block.rate_per_s or ()]


def _batching(scenario: Scenario, scheduler: Scheduler | None, size: int | None) -> Batching | None:
    if scheduler is None or size is None:
        return None
    # Without batching there is no batch size to vary.
    return Batching(scheduler, 1 if scheduler == "none" else size, scenario.server.batch_timeout_ms)


def _workloads(
    scenario: Scenario, block: Block, in_: Length | None, out: Length | None, rows: Mapping[Data | Trace, Rows]
) -> tuple[Workload, ...]:
    """The scenario's workloads with what they play from; one that is alone has the lengths of the level."""
    played = [
        msgspec.structs.replace(workload, rows=rows[source]) if (source := block.trace or workload.data) else workload
        for workload in scenario.workloads
    ]
    if in_ or out:
        return (msgspec.structs.replace(played[0], input_tokens=in_, output_tokens=out),)
    return tuple(played)


def _name(level: Level, varies: set[str]) -> str:
    parts = [str(level.batching)] if level.batching else []
    parts.append(str(level.load))
    if "input_tokens" in varies:
        parts.append(f"in={level.input_tokens}")
    if "output_tokens" in varies:
        parts.append(f"out={level.output_tokens}")
    if "model" in varies:
        parts.append(f"model={level.model}")
    return " ".join(parts)


def _distinct(names: Iterable[str]) -> Iterator[str]:
    """The names, numbered where they repeat: of loads too long to be written out, two may read alike."""
    seen: Counter[str] = Counter()
    for name in names:
        seen[name] += 1
        yield name if seen[name] == 1 else f"{name} #{seen[name]}"
