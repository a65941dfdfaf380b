"""Runs to compare, made of the records of a simulated target: the same on every machine."""

import math
import random
from collections.abc import Sequence
from functools import cache

import msgspec

from loadtest.level import Level, LevelRun, WorkerHealth
from loadtest.likeness import Run
from loadtest.records import Record, RequestError
from loadtest.result import Conditions, Endpoint, Hardware, LevelResult, Result, ScenarioRef, Tool
from loadtest.schedule import Load
from loadtest.summary import summarise
from loadtest.workload.lengths import Length
from loadtest.workload.model import Workload

CLOSED = Load("closed", concurrency=4)
OPEN = Load("poisson", rate_per_s=20.0)


def a_level(load: Load = CLOSED, requests: int = 400, index: int = 0, **given: object) -> Level:
    values: dict[str, object] = {
        "index": index, "name": str(load), "load": load, "batching": None,
        "workloads": (Workload(Length(64, 64), Length(8, 8)),), "duration_s": None, "requests": requests,
        "warmup_s": 0.0, "grace_s": 5.0,
    }  # fmt: skip
    return Level(**{**values, **given})  # type: ignore[arg-type]


def requests(level: Level, seed: int, slower: float = 1.0, failing: float = 0.0, tail: float = 1.0) -> list[Record]:
    """As many as the level has; ``slower`` is all of it, ``tail`` the slowest in 20."""
    rng = random.Random(f"{level.name} {seed}")
    free = [0.0] * (level.load.concurrency or 1)
    found, at = [], 0.0
    for number in range(level.requests or 0):
        slot = min(range(len(free)), key=free.__getitem__)
        at = free[slot] if level.load.concurrency else at + rng.expovariate(level.load.rate_per_s or 1.0) * 1000
        ttft, tpot = rng.lognormvariate(math.log(50), 0.2) * slower, rng.uniform(4.5, 5.5) * slower
        ttft *= tail if rng.random() < 0.05 else 1.0
        failed = rng.random() < failing
        first = at + 0.1 + ttft
        done = at + 5.0 if failed else first + 7 * tpot
        error = RequestError(kind="http_status", status=503, message="busy") if failed else None
        times: dict[str, object] = {} if failed else {
            "first_byte_ms": first, "first_token_ms": first, "first_answer_ms": first, "last_token_ms": done,
            "input_tokens": 64, "output_tokens": 8, "token_source": "usage", "events": 8, "itl_ms": [tpot] * 7,
        }  # fmt: skip
        found.append(
            Record(
                id=number, level=level.index, worker=0, intended_ms=at, outcome="http_error" if failed else "ok",
                in_window=True, asked_input_tokens=64, asked_output_tokens=8, sent_ms=at + 0.1, done_ms=done,
                error=error, **times,  # type: ignore[arg-type]
            )
        )  # fmt: skip
        free[slot] = done + 0.01
    return found


def played(level: Level, records: Sequence[Record]) -> LevelResult:
    ended = max(record.done_ms or 0.0 for record in records)
    health = WorkerHealth(
        worker=0, cpu_share=0.2, loop_lag_p99_ms=0.3, loop_lag_max_ms=1.2, reads=1, coalesced_reads=0,
        connections_opened=4,
    )  # fmt: skip
    sent = max(record.sent_ms or 0.0 for record in records)
    return summarise(level, records, LevelRun(level.index, "completed", sent, ended, [health]))


def a_result(levels: list[LevelResult], **given: object) -> Result:
    values: dict[str, object] = {
        "tool": Tool(name="loadtest", version="0.1.0"), "command": "loadtest run", "started_at": "2025-01-31T12:00:00Z",
        "seed": 1, "complete": True, "exit_code": 0, "levels": levels,
        "conditions": Conditions(
            endpoint=Endpoint(kind="chat", url="http://127.0.0.1:8000", model="demo", transport="fast"),
            precision="fp32", software={"loadtest": "0.1.0", "server": "1.0"},
            hardware=Hardware(server="8 × H100", client="2 × x86_64"),
            scenario=ScenarioRef(name="chat", sha256="0" * 64),
        ),
    }  # fmt: skip
    return Result(**{**values, **given})  # type: ignore[arg-type]


@cache
def a_run(name: str = "base", seed: int = 1, *levels: Level, **of: float) -> Run:
    """A run of ``levels``; ``of`` as ``requests`` has it."""
    asked = levels or (a_level(),)
    records = {level.index: requests(level, seed, **of) for level in asked}
    return Run(name, a_result([played(level, records[level.index]) for level in asked]), records, {})


def several(name: str, count: int, first_seed: int, *levels: Level, **of: float) -> list[Run]:
    return [a_run(f"{name}/{number}", first_seed + number, *levels, **of) for number in range(1, count + 1)]


def changed(run: Run, **of: object) -> Run:
    """The run, its result changed."""
    return run._replace(result=msgspec.structs.replace(run.result, **of))


def conditions(run: Run, **of: object) -> Run:
    """The run under other conditions."""
    return changed(run, conditions=msgspec.structs.replace(run.result.conditions, **of))


def level_changed(run: Run, **of: object) -> Run:
    """The run, its first level changed."""
    first, *others = run.result.levels
    return changed(run, levels=[msgspec.structs.replace(first, **of), *others])
