"""Whole results to report on, computed from the records of a simulated target: the same on every machine."""

import random
from collections.abc import Callable

import msgspec
import pytest

from loadtest.caveats import caveats
from loadtest.level import Batching, Level, LevelRun, Scheduler, WorkerHealth
from loadtest.records import Record, RequestError
from loadtest.repeats import repeats
from loadtest.result import Conditions, Endpoint, Hardware, LevelResult, Result, ScenarioRef, Tool, not_reached
from loadtest.schedule import Load
from loadtest.summary import summarise
from loadtest.workload.distribution import Distribution
from loadtest.workload.lengths import Length
from loadtest.workload.model import Conversation, Data, Probe, Rows, Weighted, Workload

_CONVERSATION = Conversation(Length(2, 4), Distribution.parse("0.4"))


def _level(index: int = 0, load: Load = Load("closed", concurrency=4), **given: object) -> Level:  # noqa: B008
    values: dict[str, object] = {
        "index": index,
        "name": str(load),
        "load": load,
        "batching": None,
        "workloads": (Workload(Length(64, 64), Length(32, 32)),),
        "duration_s": 3.0,
        "requests": None,
        "warmup_s": 0.5,
        "grace_s": 5.0,
    }
    return Level(**{**values, **given})  # type: ignore[arg-type]


def _play(level: Level, ttft_ms: float, tpot_ms: float, failing: float = 0.0, late_ms: float = 0.1) -> LevelResult:
    """The level against a target with these mean times, of whose requests a share of ``failing`` gets a 503."""
    rng = random.Random(level.name)
    duration = (level.duration_s or 0.0) * 1000
    if level.load.concurrency:
        starts = [slot * 0.05 for slot in range(level.load.concurrency)]
    else:
        gap = 1000 / (level.load.rate_per_s or 1.0)
        starts = [gap * i for i in range(int(duration / gap))]
    records: list[Record] = []
    for start in starts:
        at = start
        while at < duration:
            record = _request(len(records), at, level, rng, ttft_ms, tpot_ms, failing, late_ms)
            records.append(record)
            if not level.load.concurrency:
                break
            at = (record.done_ms or 0.0) + 0.05
    ended = max(record.done_ms or 0.0 for record in records)
    run = LevelRun(
        level=level.index, end="completed", sending_ended_ms=duration, ended_ms=ended, workers=[_health(level)]
    )
    return summarise(level, records, run)


def _health(level: Level) -> WorkerHealth:
    return WorkerHealth(
        worker=0, cpu_share=0.2, loop_lag_p99_ms=0.3, loop_lag_max_ms=1.2, reads=1000, coalesced_reads=12,
        connections_opened=level.load.concurrency or 8, error_bar_p50_ms=0.034, error_bar_p99_ms=0.213,
    )  # fmt: skip


def _converse(level: Level, ttft_ms: float, tpot_ms: float, think_ms: float = 400.0) -> LevelResult:
    """The level, some of whose workloads are conversations of two to four turns, with a probe stream beside it."""
    rng = random.Random(level.name)
    duration = (level.duration_s or 0.0) * 1000
    records: list[Record] = []
    weights = [workload.weight for workload in level.workloads]

    def played(at: float, session: int) -> float:
        """One session, or one request, from ``at`` on; returns when it has ended."""
        place = rng.choices(range(len(weights)), weights)[0]
        of = level.workloads[place]
        turns = rng.randint(2, 4) if of.conversation else 1
        for turn in range(1, turns + 1):
            if at >= duration:
                return duration
            record = _request(len(records), at, level, rng, ttft_ms * (1 + turn / 4), tpot_ms, 0.0, 0.1, place)
            model = (
                rng.choices([one.name for one in of.models], [one.weight for one in of.models])[0]
                if of.models
                else None
            )
            extra: dict[str, object] = {"prompt_hash": rng.getrandbits(48), "model": model}
            if of.conversation:
                extra |= {"session": session, "turn": turn, "input_tokens": 64 + 96 * (turn - 1),
                          "cached_input_tokens": 80 * (turn - 1), "asked_input_tokens": 64 if turn == 1 else None,
                          "ends": "completed" if turn == turns else None}  # fmt: skip
            records.append(msgspec.structs.replace(record, **extra))
            at = (record.done_ms or 0.0) + think_ms * rng.uniform(0.5, 1.5)
        return (records[-1].done_ms or 0.0) + 0.05

    if level.load.concurrency:
        for slot in range(level.load.concurrency):
            at, number = slot * 0.05, 0
            while at < duration:
                at = played(at, slot + 1000 * number)
                number += 1
    else:
        for number in range(int((level.load.rate_per_s or 0.0) * duration / 1000)):
            played(1000 * number / (level.load.rate_per_s or 1.0), number)
    if level.probe:
        for number in range(int(level.probe.rate_per_s * duration / 1000)):
            beside = _request(number, 1000 * number / level.probe.rate_per_s, level, rng, ttft_ms / 4, 1.0, 0.0, 0.1)
            records.append(msgspec.structs.replace(beside, probe=True))
    ended = max(record.done_ms or 0.0 for record in records)
    run = LevelRun(
        level=level.index, end="completed", sending_ended_ms=duration, ended_ms=ended, workers=[_health(level)]
    )
    return summarise(level, records, run)


def _request(
    number: int, at: float, level: Level, rng: random.Random, ttft: float, tpot: float, failing: float, late: float,
    place: int = 0,
) -> Record:  # fmt: skip
    of = level.workloads[place]
    asked = of.output_tokens.sample(rng)
    sent = at + late * rng.uniform(0.5, 1.5)
    common = {
        "id": number, "level": level.index, "worker": 0, "intended_ms": at, "workload": place,
        "in_window": at >= level.warmup_s * 1000, "asked_input_tokens": of.input_tokens.low,
        "asked_output_tokens": asked, "sent_ms": sent,
    }  # fmt: skip
    if rng.random() < failing:
        error = RequestError(kind="http_status", status=503, message="the server said: overloaded,\x1b[31m try later")
        return Record(**common, outcome="http_error", done_ms=sent + 5.0, error=error)  # type: ignore[arg-type]
    first = sent + ttft * rng.uniform(0.7, 1.6)
    gaps = [tpot * rng.uniform(0.8, 1.3) for _ in range(asked - 1)]
    last = first + sum(gaps)
    return Record(
        **common, outcome="ok", first_byte_ms=first, first_token_ms=first, first_answer_ms=first, last_token_ms=last,
        done_ms=last + 0.2, input_tokens=of.input_tokens.low, output_tokens=asked, token_source="usage",
        events=asked, finish_reason="length", itl_ms=gaps, bytes_in=40 * asked,
    )  # type: ignore[arg-type]  # fmt: skip


def _result(levels: list[LevelResult], **given: object) -> Result:
    values: dict[str, object] = {
        "tool": Tool(name="loadtest", version="0.1.0"),
        "command": "loadtest run",
        "started_at": "2025-01-31T12:00:00Z",
        "seed": 1,
        "complete": True,
        "exit_code": 0,
        "conditions": Conditions(
            endpoint=Endpoint(kind="chat", url="http://127.0.0.1:8000", model="demo"),
            precision="fp32",
            software={"loadtest": "0.1.0", "Python": "3.11.7", "onnxruntime": "1.31.0"},
            hardware=Hardware(server="CPUExecutionProvider, 1 thread", client="2 × x86_64, Linux 6.1"),
            scenario=ScenarioRef(name="quickstart", sha256="0" * 64),
        ),
        "warnings": [text for one in levels for text in caveats(one)],
        "levels": levels,
        "repeats": repeats(levels),
    }
    return Result(**{**values, **given})  # type: ignore[arg-type]


def _batched(scheduler: Scheduler, size: int, concurrency: int, ttft_ms: float, tpot_ms: float) -> LevelResult:
    batching = Batching(scheduler=scheduler, max_batch_size=size, timeout_ms=50.0)
    load = Load("closed", concurrency=concurrency)
    return _play(_level(load=load, batching=batching, name=f"{batching} {load}"), ttft_ms, tpot_ms)


@pytest.fixture(scope="session")
def matrix() -> Result:
    """The quickstart's twelve levels."""
    return _result(
        [
            _batched("continuous", 1, 1, 12, 2.9), _batched("continuous", 1, 4, 300, 2.9),
            _batched("continuous", 1, 16, 1350, 2.9), _batched("continuous", 4, 1, 12, 2.9),
            _batched("continuous", 4, 4, 25, 5.1), _batched("continuous", 4, 16, 530, 5.3),
            _batched("continuous", 16, 1, 12, 2.9), _batched("continuous", 16, 4, 25, 5.1),
            _batched("continuous", 16, 16, 61, 12.4), _batched("dynamic", 16, 16, 320, 13.0),
            _batched("static", 16, 16, 390, 13.0), _batched("none", 16, 16, 1350, 2.9),
        ]
    )  # fmt: skip


@pytest.fixture(scope="session")
def sweep() -> Callable[..., Result]:
    """A concurrency sweep against a URL; options as ``play`` has them, for its last level."""

    def build(**last: float) -> Result:
        times = {1: (40, 8), 8: (45, 9), 64: (70, 20), 256: (900, 60)}
        levels = [
            _play(
                _level(
                    load=Load("closed", concurrency=c),
                    duration_s=30.0,
                    warmup_s=3.0,
                    workloads=(Workload(Length(64, 64), Length(16, 48)),),
                ),
                *of,
                **(last if c == 256 else {}),
            )
            for c, of in times.items()
        ]
        return _result(levels)

    return build


@pytest.fixture(scope="session")
def interrupted() -> Result:
    """A run that was stopped in its second level."""
    loads = [Load("poisson", rate_per_s=rate) for rate in (2, 5, 10)]
    first, second, third = (_level(index=i, load=load, duration_s=20.0) for i, load in enumerate(loads))
    stopped = msgspec.structs.replace(_play(second, 50, 10), status="aborted")
    return _result([_play(first, 50, 10), stopped, not_reached(third)], complete=False, exit_code=130)


@pytest.fixture(scope="session")
def mix() -> Result:
    """A mix of single requests out of a file and of conversations, with a probe beside it, played three times."""
    rows = Rows("/tmp/1.rows", "/data/sharegpt.json", 1234, "0" * 64)
    workloads = (
        Workload(
            Length(200, 200),
            Length(16, 48),
            name="chat",
            weight=0.7,
            data=Data("sharegpt.json", order="random"),
            rows=rows,
        ),
        Workload(Length(64, 64), Length(32, 32), name="agent", weight=0.3, conversation=_CONVERSATION),
    )
    load = Load("constant", rate_per_s=4.0)
    levels = [
        _level(index=repeat - 1, load=load, name=f"{load} ({repeat}/3)", duration_s=20.0, workloads=workloads,
               probe=Probe(2.0, Length(16, 16), Length(1, 1)), repeat=repeat)
        for repeat in (1, 2, 3)
    ]  # fmt: skip
    result = _result([_converse(level, 40 + 10 * level.index, 6) for level in levels])
    why = ["--rate changed load.rate of a locked scenario", "--scale 0.1"]
    return msgspec.structs.replace(result, conditions=msgspec.structs.replace(result.conditions, not_comparable=why))


@pytest.fixture(scope="session")
def users() -> Result:
    """Users who think, in a closed loop, and ask two adapters."""
    models = (Weighted("base", 0.8), Weighted("adapter-a", 0.2))
    workload = Workload(Length(64, 64), Length(32, 32), conversation=_CONVERSATION, models=models)
    levels = [
        _level(index=index, load=load, name=str(load), duration_s=20.0, workloads=(workload,))
        for index, load in enumerate(Load("closed", concurrency=slots) for slots in (4, 16))
    ]
    return _result([_converse(level, 40 + 20 * level.index, 6) for level in levels])


@pytest.fixture(scope="session")
def level() -> Callable[..., Level]:
    return _level


@pytest.fixture(scope="session")
def converse() -> Callable[..., LevelResult]:
    return _converse


@pytest.fixture(scope="session")
def play() -> Callable[..., LevelResult]:
    return _play


@pytest.fixture(scope="session")
def result() -> Callable[..., Result]:
    return _result
