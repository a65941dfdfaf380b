"""What is said of conversations: how they ended, how many went on at once, and what the client held of them."""

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadtest.level import Level
from loadtest.records import Record, RequestError
from loadtest.schedule import Load
from loadtest.sessions import conversations
from loadtest.summary import summarise
from loadtest.workload.distribution import Distribution
from loadtest.workload.lengths import Length
from loadtest.workload.model import Conversation, Workload
from tests.test_summary import OPEN, answer, failure, level, run

TALK = Workload(Length(8, 8), Length(4, 4), conversation=Conversation(Length(2, 2), Distribution.parse("1")))


def talk(**given: Any) -> Level:
    return level(**{"load": OPEN, "workloads": (TALK,), **given})


def turn(id: int, session: int, turn: int, at: float, **given: Any) -> Record:
    return answer(id, at, session=session, turn=turn, **given)


def played() -> list[Record]:
    """One session that was completed, one abandoned, one failed, one cut off in its turn and one while thinking."""
    return [
        turn(0, 1, 1, 2000.0), turn(1, 1, 2, 4000.0, ends="completed"),
        turn(2, 2, 1, 2500.0, ends="abandoned"),
        turn(3, 3, 1, 3000.0), failure(4, 4000.0, session=3, turn=2),
        turn(5, 4, 1, 6000.0), failure(6, 9000.0, "cancelled", session=4, turn=2, done_ms=10_400.0),
        turn(7, 5, 1, 8000.0),
    ]  # fmt: skip


def test_every_session_is_accounted_for_by_how_it_ended() -> None:
    figures = summarise(talk(), played(), run())
    assert figures.client.valid, figures.client.reasons
    found = figures.sessions
    assert found is not None
    assert (found.started, found.completed, found.abandoned, found.failed, found.cut_short) == (5, 1, 1, 1, 2)
    assert found.mean_turns == 8 / 5
    assert (found.target_per_s, figures.rates.target_per_s) == (10.0, None)
    assert found.started_per_s == pytest.approx(5 / 9)
    # From the first turn sent to the last one done; the last session thinks until the sending ends.
    spans = [4132 - 2001, 2632 - 2501, 4005 - 3001, 10_000 - 6001, 10_000 - 8001]
    assert found.concurrency.mean == pytest.approx(sum(spans) / 9000)
    assert found.concurrency.peak == 2
    assert summarise(level(load=OPEN), [answer(0, 2000.0)], run()).sessions is None


def test_a_turn_that_met_a_full_cap_fails_its_session() -> None:
    dropped = failure(1, 4000.0, "never_sent", session=1, turn=2, sent_ms=None,
                      error=RequestError(kind="dropped", message="2 requests were in flight"))  # fmt: skip
    assert conversations([turn(0, 1, 1, 2000.0), dropped], 10_000.0).failed.tolist() == [True]


def test_turns_are_reported_apart_with_what_was_cached() -> None:
    records = [
        turn(0, 1, 1, 2000.0, cached_input_tokens=0),
        turn(1, 1, 2, 3000.0, input_tokens=40, asked_input_tokens=None, cached_input_tokens=30, ends="completed"),
        turn(2, 2, 1, 500.0, cached_input_tokens=0),
        turn(3, 2, 2, 4000.0, input_tokens=60, asked_input_tokens=None, cached_input_tokens=30, ends="completed"),
    ]
    first, second = summarise(talk(), records, run()).turns
    assert (first.turn, first.counts.scheduled, first.counts.in_window, first.input_tokens.mean) == (1, 2, 1, 8.0)
    assert (second.turn, second.counts.in_window, second.input_tokens.mean) == (2, 2, 50.0)
    assert (first.cached_input_tokens, second.cached_input_tokens) == (0, 60)
    assert (second.ttft_ms.ok.n, second.e2e_ms.ok.p50) == (2, 131.0)


def test_part_of_a_mix_that_converses_has_its_share_of_the_arrivals() -> None:
    single = Workload(Length(8, 8), Length(4, 4), name="single", weight=3.0)
    figures = summarise(talk(workloads=(TALK, single)), [turn(0, 1, 1, 2000.0), answer(1, 2100.0, workload=1)], run())
    assert figures.sessions is not None
    assert figures.sessions.target_per_s == 2.5
    assert [part.rates.target_per_s for part in figures.workloads] == [None, None]
    assert figures.client.valid, figures.client.reasons


def thinking(slots: int, until: float = 10_000.0) -> list[Record]:
    """Users who are there all the time, three turns a session, and think for a second after each answer."""
    records: list[Record] = []
    for slot in range(slots):
        at, session = slot * 0.25, slot
        while at < until:
            for number in (1, 2, 3):
                if at >= until:
                    break
                ends = "completed" if number == 3 else None
                records.append(turn(len(records), session, number, at, ends=ends))
                at += 1132.0 if number < 3 else 132.0
            session += slots
    return records


def test_users_who_think_are_held_all_the_same() -> None:
    figures = summarise(talk(load=Load("closed", concurrency=4)), thinking(4), run())
    assert figures.client.valid, figures.client.reasons
    assert figures.client.held_concurrency == pytest.approx(4, rel=0.01)
    assert figures.concurrency.mean is not None
    assert figures.concurrency.mean < 1  # of the requests; that is the load, and not the client's fault
    assert figures.sessions is not None
    assert figures.sessions.concurrency.mean == pytest.approx(4, rel=0.01)
    (reason,) = summarise(talk(load=Load("closed", concurrency=4)), thinking(3), run()).client.reasons
    assert reason.startswith("the load was not held: 3.0 of 4 slots were busy on average (75%, limit 95%)")


def test_users_and_single_requests_both_hold_slots() -> None:
    single = Workload(Length(8, 8), Length(4, 4), name="single")
    records = thinking(2)
    for slot in range(2):
        at = slot * 0.25
        while at < 10_000.0:
            records.append(answer(len(records), at, workload=1))
            at += 132.0
    figures = summarise(talk(load=Load("closed", concurrency=4), workloads=(TALK, single)), records, run())
    assert figures.client.valid, figures.client.reasons
    assert figures.client.held_concurrency == pytest.approx(4, rel=0.02)


def test_failed_turn_takes_the_later_ones_of_a_counted_level_with_it() -> None:
    counted = talk(duration_s=None, requests=4, warmup_s=0.0)
    records = [turn(0, 1, 1, 0.0), turn(1, 1, 2, 900.0, ends="completed"), failure(2, 1000.0, session=2, turn=1)]
    assert summarise(counted, records, run(1000.0)).client.valid
    more = [*records, *(turn(i, i, 1, 1000.0, ends="completed") for i in (3, 4))]
    assert not summarise(counted, more, run(1000.0)).client.valid


def test_load_that_grows_with_its_sessions_is_not_called_overloaded() -> None:
    """Sessions arrive evenly and each asks again and again: requests in flight grow as sessions do, up to a point."""
    records: list[Record] = []
    for session in range(300):
        at = 100.0 * session
        number = 1
        while at < 30_000.0:
            end = at + 3000.0
            records.append(
                turn(len(records), session, number, at, first_token_ms=end, first_answer_ms=end, last_token_ms=end,
                     done_ms=end, itl_ms=None)
            )  # fmt: skip
            at, number = end + 1000.0, number + 1
    figures = summarise(talk(duration_s=30.0), records, run(30_000.0))
    assert figures.status == "ok"
    assert figures.client.valid, figures.client.reasons


@settings(deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 30), st.sampled_from([OPEN, Load("closed", concurrency=5)]))
def test_no_conversation_that_could_have_been_played_is_called_contradictory(seed: int, n: int, load: Load) -> None:
    rng = random.Random(seed)
    records: list[Record] = []
    models = [None, "base", "adapter"]
    for session in range(n):
        at = round(rng.uniform(0, 10_000), 4)
        for number in range(1, rng.randint(1, 5) + 1):
            id_ = len(records)
            place, model = rng.randrange(2), rng.choice(models)
            kind = rng.choice(["ok"] * 6 + ["http_error", "cancelled", "never_sent"])
            if kind != "ok":
                lost = {"sent_ms": None, "done_ms": None} if kind == "never_sent" else {}
                records.append(
                    failure(id_, at, kind, session=session, turn=number, workload=place, model=model, **lost)
                )
                break
            end = rng.choice([None, None, None, "completed", "abandoned"])
            records.append(
                turn(id_, session, number, at, workload=place, model=model, ends=end,
                     prompt_hash=rng.choice([None, id_, 1]), cached_input_tokens=rng.choice([None, 3]))
            )  # fmt: skip
            at = round(at + 132.0 + rng.expovariate(1 / 500), 4)
            if end or at >= 10_000:
                break
    other = Workload(Length(8, 8), Length(4, 4), name="other", weight=2.0)
    figures = summarise(talk(load=load, workloads=(TALK, other)), records, run())
    assert not [reason for reason in figures.client.reasons if "contradicts" in reason]
