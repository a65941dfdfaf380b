"""Prompts that take long to make are made by a process of their own, and say so when that ends."""

import asyncio
import io
import json
import os
import pickle
import signal
from pathlib import Path
from typing import Any

import pytest
import uvloop

from loadtest.engine import ahead
from loadtest.engine.ahead import Ahead, pays
from loadtest.engine.maker import Maker, Unit
from loadtest.engine.orders import Prepare
from loadtest.errors import LoadtestError, UsageError
from loadtest.level import Level
from loadtest.schedule import Load
from loadtest.workload.lengths import Length
from loadtest.workload.model import Images, Prefix, Rows, Workload
from loadtest.workload.tokens import Tokens
from tests.engine.playing import level, play, wiring

OPEN = Load("constant", rate_per_s=100.0)
SHORT = Workload(Length(20, 20), Length(5, 5))
LONG = Workload(Length(20_000, 20_000), Length(5, 5))
CASE = Path(__file__).parent.parent / "cases" / "recorded" / "sched-late-first-request"


def order(asked: Level) -> Prepare:
    return Prepare(wiring("http://h:1", Path()), asked, 0, 1)


@pytest.mark.parametrize(
    ("workload", "tokens", "expected"),
    [
        (SHORT, Tokens("bytes"), False),
        (SHORT, Tokens("words"), False),
        (SHORT, Tokens("tokenizer", path="t"), True),
        (LONG, Tokens("words"), True),
        (Workload(Length(20, 20), None, images=Images(1, 8, 8)), Tokens("words"), True),
        (Workload(Length(20, 20), None, prefix=Prefix(1.0, 9000, 1)), Tokens("words"), True),
        (Workload(None, None, rows=Rows("p", "s", 1, "")), Tokens("words"), True),
    ],
)
def test_a_process_makes_what_would_keep_the_loop_from_sending(
    workload: Workload, tokens: Tokens, expected: bool
) -> None:
    assert pays(level(OPEN, SHORT, workload), tokens) is expected


async def delivered(asked: Level, count: int) -> tuple[list[Unit], int]:
    """So many arrivals in order, and how many were ready before the first was asked for."""
    found: list[Unit] = []
    whole = asyncio.Event()

    def deliver(unit: Unit, due: int) -> None:
        assert due == len(found)
        found.append(unit)
        if len(found) == count:
            whole.set()

    supply = Ahead(order(asked), 0, deliver)
    await supply.prepare()
    ready = len(supply)
    for due in range(count):
        supply.next(due)
    await whole.wait()
    await supply.close()
    return found, ready


def test_it_makes_the_same_as_the_loop_itself_and_more_than_fit_at_once() -> None:
    asked = level(OPEN, SHORT, requests=700)
    found, ready = uvloop.run(delivered(asked, 700))
    assert found == list(Maker(order(asked)))
    assert ready == 256


def test_sched_late_first_request(tmp_path: Path) -> None:
    case = json.loads((CASE / "scenario.json").read_text("utf-8"))
    length, requests = case["prompt_tokens"], case["requests"]
    asked = level(
        Load("constant", rate_per_s=float(case["rate"])), Workload(Length(length, length), Length(1, 1)),
        requests=requests, duration_s=float(case["duration_s"]),
    )  # fmt: skip
    _, ready = uvloop.run(delivered(asked, 1))
    assert ready == requests, "all of them are made before the clock starts"
    played = play(level(OPEN, LONG, requests=20), tmp_path)
    assert [r.outcome for r in played.load] == ["ok"] * 20
    assert {len(sent.body["messages"][0]["content"]) for sent in played.asked} == {length}


def test_the_prompts_that_wait_are_bounded_in_bytes() -> None:
    huge = level(OPEN, Workload(Length(8_000_000, 8_000_000), Length(1, 1)), requests=40)
    _, ready = uvloop.run(delivered(huge, 1))
    assert 8 <= ready <= 10


async def killed() -> None:
    supply = Ahead(order(level(OPEN, LONG)), 0, lambda *_: None)
    await supply.prepare()
    assert supply._process is not None
    os.kill(supply._process.pid, signal.SIGKILL)
    assert supply.task is not None
    for due in range(1000):
        supply.next(due)
    try:
        await supply.task
    finally:
        await supply.close()


def test_its_death_is_told() -> None:
    with pytest.raises(LoadtestError, match="the process that makes the prompts ended by itself"):
        uvloop.run(killed())


def test_what_is_wrong_with_a_corpus_is_told_as_it_is(tmp_path: Path) -> None:
    missing = Workload(Length(9000, 9000), Length(1, 1), corpus=str(tmp_path / "none.txt"))
    with pytest.raises(UsageError, match=r"none\.txt"):
        uvloop.run(delivered(level(OPEN, missing), 1))


def test_a_bug_of_it_is_told_without_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: Any) -> Any:
        raise ZeroDivisionError("by zero")

    monkeypatch.setattr(ahead, "Maker", broken)
    out = io.BytesIO()
    ahead.main(io.BytesIO(pickle.dumps(order(level(OPEN)))), out)
    assert b"bug in loadtest: ZeroDivisionError('by zero')" in out.getvalue()


def test_a_worker_that_has_gone_ends_it() -> None:
    class Gone(io.BytesIO):
        def flush(self) -> None:
            raise BrokenPipeError

    ahead.main(io.BytesIO(pickle.dumps(order(level(OPEN)))), Gone())  # endless otherwise
