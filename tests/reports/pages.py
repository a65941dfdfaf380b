"""Runs with their journals, as pages are made of them: the same on every machine."""

import random
from collections.abc import Sequence

import msgspec

from loadtest.level import Batching
from loadtest.records import Record
from loadtest.reports.charts_requests import Journal, journal
from loadtest.result import LevelResult, Result, SloResult, Verdict
from loadtest.schedule import Load
from tests.comparing import a_level, a_result, played, requests

LIMIT = SloResult(
    expression="p99(ttft) < 200ms", value=120.5, ci=(100.0, None), n=400, verdict="PASS", reason="all were in time"
)
TRAP = "<script>alert('x')</script><img src=x onerror=alert(1)>&\"'"


def lines(records: Sequence[Record]) -> list[bytes]:
    """As a journal has them."""
    return [msgspec.json.encode(record) + b"\n" for record in records]


def a_page_of(*loads: Load, count: int = 400, spread: bool = True, **given: object) -> tuple[Result, list[bytes]]:
    """A run of so many requests at each of ``loads``, its result and its journal; some fail at the last of them."""
    figures: list[LevelResult] = []
    written: list[bytes] = []
    for index, load in enumerate(loads):
        level = a_level(load, count, index)
        failing = 0.05 if index == len(loads) - 1 and len(loads) > 1 else 0.0
        records = requests(level, 1, slower=1 + index / 2, failing=failing, tail=3.0)
        if spread:
            rng = random.Random(index)
            records = [_of_length(record, rng.randint(20, 200)) for record in records]
        figures.append(msgspec.structs.replace(played(level, records), slo=[LIMIT]))
        written += lines(records)
    verdict = Verdict(outcome="PASS")
    return a_result(figures, **{"verdict": verdict, **given}), written


def a_matrix() -> Result:
    """Two batching settings, each at two loads."""
    settings = [(size, load) for size in (1, 16) for load in closed(1, 8)]
    levels = [
        a_level(load, 100, index, name=f"continuous {size} {load}", batching=Batching("continuous", size, 50.0))
        for index, (size, load) in enumerate(settings)
    ]
    return a_result([played(level, requests(level, 1)) for level in levels])


def read(written: Sequence[bytes]) -> dict[int, Journal]:
    return journal(written, "records.jsonl")


def closed(*slots: int) -> list[Load]:
    return [Load("closed", concurrency=c) for c in slots]


def _of_length(record: Record, tokens: int) -> Record:
    return msgspec.structs.replace(record, input_tokens=tokens if record.outcome == "ok" else None)
