"""A scenario made into levels, and a level into the requests of one worker. Pure."""

import contextlib
import itertools
import math
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec

from loadtest.errors import ScenarioError
from loadtest.level import Batching, Level, Scheduler, input_words
from loadtest.records import SessionEnd
from loadtest.scenario.model import Block, Combine, Scenario
from loadtest.schedule import Load, arrivals, share, stream
from loadtest.workload.lengths import Length, pair
from loadtest.workload.model import Data, Rows, Trace, Weighted, Workload
from loadtest.workload.request import Request
from loadtest.workload.rows import Reader, row_of

_WARMUP_SHARE, _WARMUP_LEAST_S, _WARMUP_MOST_S = 0.1, 1.0, 30.0


class _Drawn(NamedTuple):
    """What is known of an arrival before its lengths: which workload and row, and of a session how many turns."""

    rng: random.Random
    workload: int
    row: int | None
    session: int | None = None
    turns: int = 1
    ends: SessionEnd | None = None
    others: tuple[int, ...] = ()


def levels(
    scenario: Scenario, *, bundled: bool, rows: Mapping[Data | Trace, Rows] = MappingProxyType({})
) -> list[Level]:
    """Every level of a run in the order it is played; a combination that stands in several blocks is played once.

    ``rows`` has what was made ready of each data file and trace. Batching is a setting of the bundled server: against
    another target its axes collapse. A repetition plays the same levels in another order, drawn by the seed.
    """
    seen: dict[Level, None] = {}
    for block in scenario.levels:
        for scheduler, size, model, in_, out, batch, load in _combined(
            scenario.combine,
            block.scheduler if bundled else [None],
            block.max_batch_size if bundled else [None],
            block.model or [None],
            block.input_tokens or [None],
            block.output_tokens or [None],
            block.batch_size or [1],
            _loads(scenario, block, rows),
        ):
            duration_s = scenario.duration_s if load.duration_s is None else load.duration_s
            if load.kind == "trace" and duration_s and (scenario.warmup_s or 0) >= duration_s:
                raise ScenarioError(
                    f"load.warmup: {scenario.warmup_s:g} s leave nothing to measure of a trace of {duration_s:g} s: "
                    "shorten it"
                )
            level = Level(
                0, "", load, _batching(scenario, scheduler, size), _workloads(scenario, block, in_, out, rows),
                duration_s, scenario.requests, _warmup(scenario, duration_s),
                scenario.timeout_s if scenario.grace_s is None else scenario.grace_s, model, scenario.probe,
                batch_size=batch,
            )  # fmt: skip
            seen.setdefault(level)
    found = list(seen)
    axes = ("output_tokens", "model", "batch_size")
    varies = {key for key in axes if len({getattr(it, key) for it in found}) > 1}
    if len({input_words(level.workloads, 1) for level in found}) > 1:
        varies.add("input_tokens")
    names = _distinct(_name(level, varies) for level in found)
    named = [msgspec.structs.replace(level, name=name) for level, name in zip(found, names, strict=True)]
    played = []
    for repeat in range(1, scenario.repeat + 1):
        if repeat > 1:
            stream(scenario.seed or 0, "order", repeat).shuffle(named)
        of = f" ({repeat}/{scenario.repeat})" if scenario.repeat > 1 else ""
        played += [msgspec.structs.replace(level, name=level.name + of, repeat=repeat) for level in named]
    return [msgspec.structs.replace(level, index=index) for index, level in enumerate(played)]


def trial(scenario: Scenario, level: Level, index: int, load: Load, at_least_s: float, number: int) -> Level:
    """The ``number``-th playing of ``level`` at another load, and for ``at_least_s``; a number of requests stays."""
    duration_s = level.duration_s if level.requests is not None else max(level.duration_s or 0.0, at_least_s)
    name = level.name.replace(str(level.load), str(load))
    return msgspec.structs.replace(
        level,
        index=index,
        name=name if number == 1 else f"{name} #{number}",
        load=load,
        duration_s=duration_s,
        warmup_s=_warmup(scenario, duration_s),
    )


def requests(level: Level, seed: int, worker: int, workers: int) -> Iterator[Request]:
    """The requests of one worker's slice, in order: of the arrivals ``worker``, ``worker + workers``, … of the level.

    Of a closed loop the slots are dealt out like that and the arrivals to the slots, so that a worker with fewer slots
    has fewer requests and all workers end together. An arrival is one request, or a session, whose turns follow each
    other here. Of a level that is paired, two requests that follow each other are the same one, with the same number.
    Each request is a function of (seed, level, number) alone, so the level's requests are the same for any number of
    workers. Ends at the level's number of requests (the last session cut short), with its trace, or never.
    """
    turn = level.load.concurrency or workers  # after so many arrivals it is the first worker's turn again
    if worker >= turn:
        return  # without a slot there is nothing to play
    trace = level.load.kind == "trace"
    alike = 2 if level.paired else 1
    with contextlib.ExitStack() as files:
        sessions = [_turns(workload, files, trace=trace) for workload in level.workloads]
        # Where each arrival is one request that plays the row of its own number, others' need not be looked at.
        apart = not any(sessions) and (
            len(level.workloads) == 1 or not any(workload.rows for workload in level.workloads)
        )
        most = math.inf if level.requests is None else level.requests
        played = [0] * len(level.workloads)
        number = 0
        for arrival in range(_trace(level).count) if trace else itertools.count():
            if number >= most:
                return
            mine = arrival % turn % workers == worker
            if apart and not mine:
                number += 1
                continue
            rng = stream(seed, "request", level.index, number // alike)
            chosen = _chosen(level.workloads, rng)
            workload, turns_of = level.workloads[chosen], sessions[chosen]
            rows: list[int] = []
            if workload.rows is not None and trace:
                rows = [arrival]
            elif workload.rows is not None:
                first = (arrival if apart else played[chosen]) // alike * level.batch_size
                rows = [_row(workload, seed, level.index, first + place) for place in range(level.batch_size)]
            row = rows[0] if rows else None
            played[chosen] += 1
            drawn = _Drawn(rng, chosen, row, others=tuple(rows[1:]))
            if turns_of is not None:
                planned, ends = _until(workload, turns_of(row), rng)
                turns = int(min(planned, most - number))
                drawn = _Drawn(rng, chosen, row, arrival, turns, ends if turns == planned else None)
            if mine:
                yield from _played(level, seed, number // alike, drawn)
            number += drawn.turns


def due_times(level: Level, seed: int, worker: int, workers: int) -> Iterator[float]:
    """When the arrivals of one worker's slice are due in an open loop, in seconds from t0."""
    if level.load.kind == "trace":
        count = None if level.requests is None else share(level.requests, worker, workers)
        with contextlib.closing(Reader(_trace(level))) as reader:
            yield from itertools.islice(reader.times(worker, workers), count)
        return
    every = arrivals(level.load, seed, level.index, level.duration_s, level.requests)
    yield from itertools.islice(every, worker, None, workers)


def probe(level: Level, seed: int) -> tuple[Level, int]:
    """The stream of probes beside a level that has one, as a level of its own without an end, and its seed.

    Its arrivals are Poisson: they see the server as it is on average in time, and in no step with anything it does.
    """
    asked = level.probe
    assert asked is not None
    beside = msgspec.structs.replace(
        level,
        load=Load("poisson", rate_per_s=asked.rate_per_s),
        workloads=(
            Workload(asked.input_tokens, asked.output_tokens, name="probe", tensors=level.workloads[0].tensors),
        ),
        batch_size=1,
        duration_s=math.inf,
        requests=None,
        probe=None,
    )
    return beside, stream(seed, "probe").getrandbits(53)


def _chosen(workloads: tuple[Workload, ...], rng: random.Random) -> int:
    """Which workload of a mix a request is of."""
    if len(workloads) == 1:
        return 0
    return rng.choices(range(len(workloads)), [workload.weight for workload in workloads])[0]


def _trace(level: Level) -> Rows:
    rows = level.workloads[0].rows
    assert rows is not None, "a trace is prepared before its level is made"
    return rows


def _row(workload: Workload, seed: int, level: int, number: int) -> int:
    """The row that the request or session ``number`` of a workload with data plays."""
    assert workload.rows is not None
    assert workload.data is not None
    return row_of(workload.rows.count, workload.data.order, seed, level, number)


def _turns(
    workload: Workload, files: contextlib.ExitStack, *, trace: bool
) -> Callable[[int | None], int | None] | None:
    """How many turns the data have for a session of this workload (None: as many as one likes), by its row.

    None where each arrival is one request.
    """
    rows = workload.rows
    if workload.conversation is None and not (trace and rows is not None and rows.turns > rows.count):
        return None
    if rows is None:
        return lambda _: None
    reader = files.enter_context(contextlib.closing(Reader(rows)))
    return lambda row: len(reader.row(row or 0).turns)


def _until(workload: Workload, most: int | None, rng: random.Random) -> tuple[int, SessionEnd]:
    """After how many turns a session ends, and why: its user leaves, or there are no more."""
    conversation = workload.conversation
    if conversation is None:
        return most or 1, "completed"
    count = conversation.turns.sample(rng) if conversation.turns else most or 1
    count = min(count, most or count)
    if conversation.abandon:
        for turn in range(1, count):
            if rng.random() < conversation.abandon:
                return turn, "abandoned"
    return count, "completed"


def _played(level: Level, seed: int, number: int, drawn: _Drawn) -> Iterator[Request]:
    """The requests of one arrival, the first of them the ``number``-th of the level, with their lengths."""
    workload, rng = level.workloads[drawn.workload], drawn.rng
    model = _model(workload.models, rng)
    session = drawn.session
    for turn in range(1, drawn.turns + 1):
        later = workload.conversation if turn > 1 else None
        if turn > 1:
            rng = stream(seed, "request", level.index, number + turn - 1)
        asked = (later and later.next_input) or workload.input_tokens
        input_tokens, output_tokens = _lengths(workload, asked, rng)
        yield Request(
            number + turn - 1, input_tokens, output_tokens, rng, drawn.workload, session,
            None if session is None else turn, drawn.row, model,
            later.think_s.at(rng.random()) if later else 0.0, drawn.ends if turn == drawn.turns else None,
            level.batch_size, drawn.others,
        )  # fmt: skip


def _model(models: Sequence[Weighted], rng: random.Random) -> str | None:
    return rng.choices(models, [model.weight for model in models])[0].name if models else None


def _lengths(workload: Workload, asked: Length | None, rng: random.Random) -> tuple[int | None, int | None]:
    """The lengths of one request; None where the data have them."""
    answer = workload.output_tokens
    if asked is not None and answer is not None and workload.correlation:
        return pair(asked, answer, workload.correlation, rng)
    return (asked.sample(rng) if asked else None), (answer.sample(rng) if answer else None)


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
    """The scenario's workloads with what they play from, and all their checks; one alone has the level's lengths."""
    played = [
        msgspec.structs.replace(
            workload,
            rows=rows[source] if (source := block.trace or workload.data) else workload.rows,
            checks=(*scenario.checks, *workload.checks),
        )
        for workload in scenario.workloads
    ]
    if in_ or out:
        return (msgspec.structs.replace(played[0], input_tokens=in_, output_tokens=out),)
    return tuple(played)


def _name(level: Level, varies: set[str]) -> str:
    parts = [str(level.batching)] if level.batching else []
    parts.append(str(level.load))
    if "batch_size" in varies:
        parts.append(f"batch={level.batch_size}")
    if "input_tokens" in varies:
        parts.append(f"in={input_words(level.workloads, 1)}")
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
