"""A scenario made into levels, and a level into the requests of one worker. Pure."""

import itertools
import random
from collections import Counter
from collections.abc import Iterable, Iterator

import msgspec

from loadtest.level import Batching, Level
from loadtest.scenario.model import Block, Scenario
from loadtest.schedule import Load, arrivals, share, stream
from loadtest.workload.lengths import pair
from loadtest.workload.model import Workload

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


def levels(scenario: Scenario, *, bundled: bool) -> list[Level]:
    """Every level of a run in the order it is played; a combination that stands in several blocks is played once.

    Batching is a setting of the bundled server: against another target its axes collapse.
    """
    seen: dict[Level, None] = {}
    for block in scenario.levels:
        for batching, in_, out, load in itertools.product(
            _batchings(scenario, block) if bundled else [None],
            block.input_tokens,
            block.output_tokens,
            _loads(scenario, block),
        ):
            duration_s = scenario.duration_s if load.stages is None else load.duration_s
            level = Level(
                0, "", load, batching, (Workload(in_, out),), duration_s, scenario.requests,
                _warmup(scenario, duration_s),
                scenario.timeout_s if scenario.grace_s is None else scenario.grace_s,
            )  # fmt: skip
            seen.setdefault(level)
    found = list(seen)
    varies = {key for key in ("input_tokens", "output_tokens") if len({getattr(level, key) for level in found}) > 1}
    names = _distinct(_name(level, varies) for level in found)
    return [
        msgspec.structs.replace(level, index=index, name=name)
        for index, (level, name) in enumerate(zip(found, names, strict=True))
    ]


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


def _loads(scenario: Scenario, block: Block) -> list[Load]:
    if block.concurrency is not None:
        return [Load("closed", concurrency=slots) for slots in block.concurrency]
    burstiness = scenario.burstiness if scenario.arrival == "gamma" else None
    if block.stages is not None:
        return [Load("stages", burstiness=burstiness, stages=block.stages, arrival=scenario.arrival)]
    return [Load(scenario.arrival, rate_per_s=rate, burstiness=burstiness) for rate in block.rate_per_s or ()]


def _batchings(scenario: Scenario, block: Block) -> list[Batching]:
    timeout_ms = scenario.server.batch_timeout_ms
    # Without batching there is no batch size to vary.
    return [
        Batching(scheduler, 1 if scheduler == "none" else size, timeout_ms)
        for scheduler, size in itertools.product(block.scheduler, block.max_batch_size)
    ]


def _name(level: Level, varies: set[str]) -> str:
    parts = [str(level.batching)] if level.batching else []
    parts.append(str(level.load))
    if "input_tokens" in varies:
        parts.append(f"in={level.input_tokens}")
    if "output_tokens" in varies:
        parts.append(f"out={level.output_tokens}")
    return " ".join(parts)


def _distinct(names: Iterable[str]) -> Iterator[str]:
    """The names, numbered where they repeat: of loads too long to be written out, two may read alike."""
    seen: Counter[str] = Counter()
    for name in names:
        seen[name] += 1
        yield name if seen[name] == 1 else f"{name} #{seen[name]}"
