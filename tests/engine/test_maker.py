"""Same scenario and seed, same bytes, whatever the number of workers."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadtest import plan
from loadtest.engine.maker import Letters, Made, Maker
from loadtest.engine.orders import Prepare
from loadtest.level import Level
from loadtest.schedule import Load, Stage
from loadtest.trace import traceparent
from loadtest.workload.distribution import Distribution
from loadtest.workload.lengths import Length
from loadtest.workload.model import (
    Conversation,
    Data,
    Images,
    Message,
    Order,
    Prefix,
    Probe,
    Rows,
    Trace,
    Weighted,
    Workload,
)
from loadtest.workload.rows import prepare, prepare_trace
from tests.engine.playing import level, wiring

COUNT = 40
THINK = Distribution("exponential", (1.0,))
PLAIN = Workload(Length(20, 40), Length(5, 9))
TALK = Workload(
    Length(20, 40), Length(5, 9), conversation=Conversation(Length(1, 4), THINK, "canned", 0.2, Length(5, 8))
)  # fmt: skip
OPEN = Load("poisson", rate_per_s=50.0)
CLOSED = Load("closed", concurrency=8)
STAGES = Load("stages", stages=(Stage(10.0, 90.0, 2.0),), arrival="gamma", burstiness=0.5)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rows")
    (path / "prompts.txt").write_text("\n".join(f"prompt {number}" for number in range(17)) + "\n")
    said = [[f"{row} says {turn}" for turn in range(2 * (row % 4) + 2)] for row in range(9)]
    chats = [
        {"conversations": [{"from": ("human", "gpt")[n % 2], "value": text} for n, text in enumerate(texts)]}
        for texts in said
    ]
    (path / "chats.json").write_text(json.dumps(chats))
    lines = [
        {"timestamp": number * 0.03, "input_tokens": 20 + number, "output_tokens": 3, "session": str(number % 23)}
        for number in range(COUNT)
    ]
    (path / "trace.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def of_data(folder: Path, name: str, order: Order, **given: Any) -> Workload:
    data = Data(str(folder / name), order=order)
    rows = prepare(data, folder, len, conversation="conversation" in given)
    return Workload(None, Length(4, 9), data=data, rows=rows, **given)


def traced(folder: Path) -> tuple[Load, Workload]:
    rows: Rows = prepare_trace(Trace(str(folder / "trace.jsonl")), folder, 1)
    return Load("trace", events=rows.count, span_s=rows.span_s), Workload(None, None, rows=rows)


@pytest.fixture(scope="module")
def levels(folder: Path) -> dict[str, Level]:
    load, replayed = traced(folder)
    return {
        "plain": level(OPEN, PLAIN, requests=COUNT),
        "closed": level(CLOSED, PLAIN, requests=COUNT),
        "stages": level(STAGES, PLAIN, requests=COUNT),
        "prefix and models": level(
            OPEN,
            msgspec.structs.replace(
                PLAIN, prefix=Prefix(0.5, 12, 3), models=(Weighted("a", 2), Weighted("b", 1)), images=Images(2, 4, 4)
            ),
            requests=COUNT,
        ),
        "mix": level(OPEN, PLAIN, msgspec.structs.replace(PLAIN, input_tokens=Length(90, 99)), requests=COUNT),
        "conversation": level(OPEN, TALK, requests=COUNT),
        "conversation in a mix, closed": level(CLOSED, TALK, PLAIN, requests=COUNT),
        **{f"data {order}": level(OPEN, of_data(folder, "prompts.txt", order), requests=COUNT) for order in ORDERS},
        "data in a mix": level(OPEN, of_data(folder, "prompts.txt", "file"), PLAIN, requests=COUNT),
        "data of conversations": level(
            CLOSED,
            of_data(folder, "chats.json", "shuffle", conversation=Conversation(None, THINK, "canned")),
            requests=COUNT,
        ),
        "trace": level(load, replayed, duration_s=load.span_s),
    }


ORDERS: tuple[Order, ...] = ("file", "shuffle", "random")
NAMES = (
    "plain", "closed", "stages", "prefix and models", "mix", "conversation", "conversation in a mix, closed",
    *(f"data {order}" for order in ORDERS), "data in a mix", "data of conversations", "trace",
)  # fmt: skip


def slices(asked: Level, seed: int, workers: int) -> tuple[list[Any], list[float]]:
    """All requests as they are sent, by their ids, and all instants at which arrivals are due."""
    order = wiring("http://h:1", Path(), seed=seed)
    letters = Letters(order, None, 0)
    found: list[Made] = []
    due: list[float] = []
    for worker in range(workers):
        for unit in Maker(Prepare(order, asked, worker, workers)):
            history: list[Message] = []
            for made in unit:
                if made.ask is None:
                    found.append(made)
                    continue
                found.append(letters.turn(made, history))
                history += [*made.ask.messages, Message("assistant", made.answer or "")]
        if asked.load.kind != "closed":
            due += plan.due_times(asked, seed, worker, workers)
    return sorted(found, key=lambda made: made.id), sorted(due)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=4, deadline=None)
@given(st.sampled_from([2, 3, 8]), st.integers(0, 2**31))
def test_requests_and_instants_are_the_same_for_any_number_of_workers(
    name: str, levels: dict[str, Level], workers: int, seed: int
) -> None:
    asked = levels[name]
    alone = slices(asked, seed, 1)
    assert slices(asked, seed, workers) == alone
    assert [made.id for made in alone[0]] == [*range(COUNT)]
    assert all(made.payload for made in alone[0])
    assert slices(asked, seed + 1, 1)[0] != alone[0] or name == "trace"


def test_probes_are_a_stream_of_their_own() -> None:
    asked = level(OPEN, PLAIN, duration_s=1.0, probe=Probe(20.0, Length(12, 12), Length(1, 1)))
    beside, seed = plan.probe(asked, 7)
    again, same = plan.probe(asked, 7)
    assert (beside, seed) == (again, same)
    assert plan.probe(asked, 8)[1] != seed
    times = plan.due_times(beside, seed, 0, 1)
    first = [next(times) for _ in range(200)]
    assert first == sorted(first)
    assert first[-1] == pytest.approx(10, rel=0.25)
    assert first[:5] != [*plan.due_times(asked, 7, 0, 1)][:5]


def test_a_mix_plays_the_rows_of_its_data_one_after_the_other(folder: Path) -> None:
    asked = level(OPEN, PLAIN, of_data(folder, "prompts.txt", "file"), requests=COUNT)
    rows = [request.row for request in plan.requests(asked, 3, 0, 1) if request.workload == 1]
    assert rows == [number % 17 for number in range(len(rows))]


def test_sessions_of_data_have_the_turns_that_their_rows_have(folder: Path) -> None:
    workload = of_data(folder, "chats.json", "file", conversation=Conversation(None, THINK, "canned"))
    turns: dict[int | None, int] = {}
    for request in plan.requests(level(OPEN, workload, requests=10), 3, 0, 1):
        turns[request.session] = request.turn or 0
    assert turns == {0: 1, 1: 2, 2: 3, 3: 4}


def test_models_of_a_session_stay_and_are_asked_by_weight() -> None:
    workload = msgspec.structs.replace(TALK, models=(Weighted("a", 3.0), Weighted("b", 1.0)))
    models: dict[int | None, set[str | None]] = {}
    for request in plan.requests(level(OPEN, workload, requests=1000), 3, 0, 1):
        models.setdefault(request.session, set()).add(request.model)
    assert all(len(found) == 1 for found in models.values())
    share = sum(found == {"a"} for found in models.values()) / len(models)
    assert share == pytest.approx(0.75, abs=0.08)


def test_each_request_says_its_own_trace_where_that_is_asked() -> None:
    run, asked = "a" * 32, level(CLOSED, TALK, requests=COUNT)
    order, plain = wiring("http://h:1", Path(), trace=run), wiring("http://h:1", Path())
    letters = Letters(order, None, 0)
    units = [*Maker(Prepare(order, level(OPEN, PLAIN, requests=COUNT), 0, 1)), *Maker(Prepare(order, asked, 0, 1))]
    for made in (made for unit in units for made in unit):
        payload = made.payload if made.ask is None else letters.turn(made, []).payload
        head, _, body = payload.partition(b"\r\n\r\n")
        assert f"\r\ntraceparent: {traceparent(run, 0, made.id)}\r\n".encode() in head
        assert f"\r\nContent-Length: {len(body)}".encode() in head
    assert not any(
        b"traceparent" in made.payload for (made,) in Maker(Prepare(plain, level(OPEN, PLAIN, requests=9), 0, 1))
    )
