"""What is sent when, by the clock of the level and what is answered."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from loadtest.records import Record
from loadtest.schedule import Load
from loadtest.workload.distribution import Distribution
from loadtest.workload.lengths import Length
from loadtest.workload.model import Conversation, Data, Probe, Trace, Workload
from loadtest.workload.rows import prepare, prepare_trace
from tests.engine.playing import Played, level, play

NOW = Distribution("fixed", (0.0,))
CLOSED = Load("closed", concurrency=2)
OPEN = Load("constant", rate_per_s=100.0)


def talk(turns: int, think_s: float = 0.0, **given: Any) -> Workload:
    think = Distribution("fixed", (think_s,))
    return Workload(Length(20, 20), Length(8, 8), conversation=Conversation(Length(turns, turns), think, **given))


def sessions(played: Played) -> dict[int | None, list[Record]]:
    found: dict[int | None, list[Record]] = {}
    for record in played.load:
        found.setdefault(record.session, []).append(record)
    return found


@pytest.mark.parametrize("load", [CLOSED, OPEN], ids=["closed", "open"])
def test_each_turn_carries_what_was_really_said_before_it(load: Load, tmp_path: Path) -> None:
    played = play(level(load, talk(3), requests=12), tmp_path)
    assert [r.outcome for r in played.load] == ["ok"] * 12
    assert [r.id for r in played.load] == [*range(12)]
    assert played.done[0].scheduled == 12
    bodies = sorted(played.asked, key=lambda asked: len(asked.body["messages"]))
    assert [len(asked.body["messages"]) for asked in bodies] == [1] * 4 + [3] * 4 + [5] * 4
    for last in bodies[-4:]:
        messages = last.body["messages"]
        assert [m["role"] for m in messages] == ["user", "assistant", "user", "assistant", "user"]
        assert [m["content"] for m in messages[1::2]] == ["answer to 1", "answer to 3"]
        before = [asked.body["messages"] for asked in bodies[:8]]
        assert messages[:1] in before
        assert messages[:3] in before
    assert len({r.prompt_hash for r in played.load}) == 12
    for turns in sessions(played).values():
        assert [(r.turn, r.ends) for r in turns] == [(1, None), (2, None), (3, "completed")]
        assert [r.asked_input_tokens for r in turns] == [20, None, None]


def test_the_next_turn_is_due_when_the_answer_has_been_thought_about(tmp_path: Path) -> None:
    played = play(level(CLOSED, talk(3, think_s=0.05), requests=6), tmp_path)
    for turns in sessions(played).values():
        for before, after in pairwise(turns):
            assert before.done_ms is not None
            assert after.intended_ms - before.done_ms == pytest.approx(50, abs=0.001)
            assert after.wait_ms == 0


def test_a_slot_plays_one_session_after_the_other_thinking_included(tmp_path: Path) -> None:
    played = play(level(Load("closed", concurrency=1), talk(2, think_s=0.02), requests=6), tmp_path)
    assert [(r.session, r.turn) for r in sorted(played.load, key=lambda r: r.intended_ms)] == [
        (0, 1), (0, 2), (1, 1), (1, 2), (2, 1), (2, 2),
    ]  # fmt: skip


def test_a_canned_history_says_the_same_whatever_was_answered(tmp_path: Path) -> None:
    asked = level(OPEN, talk(2, history="canned"), requests=4)
    (tmp_path / "one").mkdir()
    (tmp_path / "other").mkdir()
    one = play(asked, tmp_path / "one")
    other = play(asked, tmp_path / "other", lambda _: ("quite another", 0.0))
    assert {r.id: r.prompt_hash for r in one.load} == {r.id: r.prompt_hash for r in other.load}
    answers = [a.body["messages"][1]["content"] for a in one.asked if len(a.body["messages"]) == 3]
    assert [len(answer) for answer in answers] == [8, 8]


def test_a_failed_turn_ends_its_session_and_frees_its_slot(tmp_path: Path) -> None:
    def second_fails(body: dict[str, Any]) -> tuple[str | None, float]:
        return (None if len(body["messages"]) == 3 else "fine"), 0.0

    played = play(level(Load("closed", concurrency=1), talk(3), requests=9), tmp_path, second_fails)
    assert [(r.session, r.turn, r.outcome) for r in sorted(played.load, key=lambda r: r.intended_ms)] == [
        (session, turn, outcome) for session in range(3) for turn, outcome in ((1, "ok"), (2, "http_error"))
    ]  # fmt: skip
    assert played.done[0].scheduled == 6


def test_turns_that_would_be_due_after_the_end_never_become_due(tmp_path: Path) -> None:
    played = play(level(OPEN, talk(5, think_s=10.0), duration_s=0.2), tmp_path)
    assert {r.turn for r in played.load} == {1}
    assert {r.outcome for r in played.load} == {"ok"}
    assert played.done[0].scheduled == len(played.load) == 20


def test_a_user_who_leaves_leaves_after_a_turn_that_the_seed_has_chosen(tmp_path: Path) -> None:
    played = play(level(CLOSED, talk(4, abandon=0.5), requests=40), tmp_path)
    ends = {turns[-1].ends for turns in sessions(played).values()}
    assert {"abandoned", "completed"} <= ends
    for turns in sessions(played).values():
        if turns[-1].ends == "abandoned":
            assert len(turns) < 4


def test_single_requests_and_sessions_mix(tmp_path: Path) -> None:
    single = Workload(Length(30, 30), Length(8, 8), name="single", weight=3.0)
    played = play(level(CLOSED, talk(2), single, requests=60), tmp_path)
    assert [r.id for r in played.load] == [*range(60)]
    for record in played.load:
        assert (record.session is None) == (record.workload == 1)
        assert record.asked_input_tokens in ((20, None) if record.workload == 0 else (30,))
    assert {r.workload for r in played.load} == {0, 1}


def trace(folder: Path, *lines: tuple[float, int, int, str | None]) -> Workload:
    path = folder / "trace.jsonl"
    rows = [
        f'{{"timestamp": {at}, "input_tokens": {in_}, "output_tokens": {out}'
        + (f', "session": "{session}"' if session else "")
        + "}"
        for at, in_, out, session in lines
    ]
    path.write_text("\n".join(rows) + "\n")
    return Workload(None, None, rows=prepare_trace(Trace(str(path)), folder, 1))


def traced(workload: Workload) -> tuple[Load, float]:
    assert workload.rows is not None
    assert workload.rows.span_s is not None
    return Load("trace", events=workload.rows.count, span_s=workload.rows.span_s), workload.rows.span_s


def test_a_trace_is_replayed_at_its_own_times_with_its_own_lengths(tmp_path: Path) -> None:
    times = [0.0, 0.05, 0.05, 0.12, 0.2]
    workload = trace(tmp_path, *((at, 30 + number, 5 + number, None) for number, at in enumerate(times)))
    load, span_s = traced(workload)
    played = play(level(load, workload, duration_s=span_s), tmp_path)
    assert [r.intended_ms for r in played.load] == pytest.approx([at * 1000 for at in times], abs=0.001)
    assert [(r.asked_input_tokens, r.asked_output_tokens) for r in played.load] == [(30 + n, 5 + n) for n in range(5)]
    assert sorted(len(a.body["messages"][0]["content"]) for a in played.asked) == [30, 31, 32, 33, 34]
    assert {r.session for r in played.load} == {None}


def test_a_later_turn_of_a_trace_waits_for_the_answer_before_it(tmp_path: Path) -> None:
    workload = trace(tmp_path, (0.0, 20, 5, "a"), (0.05, 30, 5, "a"), (0.4, 40, 5, "a"), (0.5, 10, 5, None))
    load, span_s = traced(workload)
    slow = play(level(load, workload, duration_s=span_s), tmp_path, lambda _: ("late", 0.15))
    first, second, third = sessions(slow)[0]
    assert first.done_ms is not None
    assert (second.intended_ms, third.intended_ms) == pytest.approx((50, 400), abs=0.001)
    assert second.wait_ms == pytest.approx(first.done_ms - 50, abs=0.001)
    assert third.wait_ms == 0
    assert [r.turn for r in (first, second, third)] == [1, 2, 3]
    assert [r.asked_input_tokens for r in (first, second, third)] == [20, 30, 40]


def test_turns_of_a_trace_that_the_answers_held_up_to_the_end_were_due_and_never_sent(tmp_path: Path) -> None:
    workload = trace(tmp_path, (0.0, 20, 5, "a"), (0.05, 30, 5, "a"), (0.1, 40, 5, "a"))
    load, span_s = traced(workload)
    played = play(level(load, workload, duration_s=span_s), tmp_path, lambda _: ("late", 0.6))
    assert [(r.turn, r.outcome) for r in played.load] == [(1, "ok"), (2, "never_sent"), (3, "never_sent")]
    assert [r.intended_ms for r in played.load] == pytest.approx([0, 50, 100], abs=0.001)
    assert played.done[0].scheduled == 3


def test_probes_are_played_beside_the_load_and_apart_from_it(tmp_path: Path) -> None:
    probe = Probe(100.0, Length(12, 12), Length(1, 1))
    asked = level(OPEN, duration_s=0.3, probe=probe)
    (tmp_path / "without").mkdir()
    played = play(asked, tmp_path, max_in_flight=1)
    without = play(level(OPEN, duration_s=0.3), tmp_path / "without")
    probes = [r for r in played.records if r.probe]
    assert len(probes) > 5
    assert {(r.asked_input_tokens, r.asked_output_tokens, r.outcome) for r in probes} == {(12, 1, "ok")}
    assert sorted(r.id for r in probes) == [*range(len(probes))]
    assert max(r.intended_ms for r in probes) <= played.done[0].sending_ended_ms
    assert played.done[0].scheduled == len(played.load) == 30
    assert [r.prompt_hash for r in played.load] == [r.prompt_hash for r in without.load]
    assert not {r.prompt_hash for r in probes} & {r.prompt_hash for r in played.load}


def test_only_the_first_worker_plays_the_probes(tmp_path: Path) -> None:
    asked = level(OPEN, duration_s=0.2, probe=Probe(100.0, Length(12, 12), Length(1, 1)))
    played = play(asked, tmp_path, workers=2)
    assert {r.worker for r in played.records if r.probe} == {0}
    assert {r.worker for r in played.load} == {0, 1}
    assert sum(done.scheduled for done in played.done) == len(played.load) == 20


def test_rows_of_data_are_sent_as_they_stand(tmp_path: Path) -> None:
    path = tmp_path / "prompts.txt"
    path.write_text("one\ntwo\nthree\n")
    data = Data(str(path), order="file")
    workload = Workload(None, Length(4, 4), data=data, rows=prepare(data, tmp_path, len, conversation=False))
    played = play(level(CLOSED, workload, requests=7), tmp_path)
    assert sorted(a.body["messages"][0]["content"] for a in played.asked) == ["one"] * 3 + ["three"] * 2 + ["two"] * 2
    assert [r.asked_output_tokens for r in played.load] == [4] * 7
    assert len({r.prompt_hash for r in played.load}) == 3


def test_a_level_that_ends_with_a_number_of_requests_ends_when_the_last_is_answered(tmp_path: Path) -> None:
    played = play(level(CLOSED, requests=5), tmp_path)
    assert len(played.load) == 5
    assert played.done[0].ended_ms == max(r.done_ms or 0 for r in played.load)
