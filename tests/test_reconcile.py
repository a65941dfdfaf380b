"""Every contradiction is planted once, in an inner step of the summary or in the records, and must be found."""

import dataclasses
import itertools
import random
from collections.abc import Callable
from types import ModuleType
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadtest import measures, summary
from loadtest.level import LevelRun
from loadtest.records import Record
from loadtest.stats import Dist
from loadtest.summary import summarise
from tests.test_summary import OPEN, answer, busy, counted, failure, level, run

replace = msgspec.structs.replace


@dataclasses.dataclass
class Plant:
    """Puts a mistake into one inner step of the summary."""

    patch: pytest.MonkeyPatch

    def into(self, step: str, change: Callable[[Any], Any], room: ModuleType = measures) -> None:
        real = getattr(room, step)
        self.patch.setattr(room, step, lambda *args, **kwargs: change(real(*args, **kwargs)))


@pytest.fixture
def plant(monkeypatch: pytest.MonkeyPatch) -> Plant:
    return Plant(monkeypatch)


def mixed() -> list[Record]:
    """Requests over both ends of the window, of each outcome that has times, some without an end or a token."""
    return [
        *busy(), failure(900, 5000.0), failure(901, 6000.0, "never_sent", sent_ms=None, error=None),
        failure(902, 9990.0, "cancelled", done_ms=None), failure(903, 4000.0, "timed_out", done_ms=9999.0),
        answer(904, 9960.0), answer(905, 930.0),
        answer(906, 8000.0, events=0, output_tokens=0, itl_ms=None, first_token_ms=None, first_answer_ms=None,
               last_token_ms=None),
        answer(907, 9500.0, events=60, itl_ms=[10.0] * 20, last_token_ms=10_400.0, done_ms=10_401.0, output_tokens=70),
        answer(908, 3000.0, streamed=False, first_token_ms=None, first_answer_ms=None, last_token_ms=None, events=0,
               itl_ms=None),
    ]  # fmt: skip


def reasons(records: list[Record], how: LevelRun | None = None, **given: Any) -> list[str]:
    figures = summarise(level(load=OPEN, **given), records, how or run())
    return [reason for reason in figures.client.reasons if "contradicts" in reason]


def test_sound_figures_are_not_doubted() -> None:
    assert reasons(mixed()) == []
    assert reasons(mixed(), run(4000.0, "interrupted")) != []  # of requests due after the sending had ended
    records = [r for r in mixed() if r.intended_ms < 4000.0]
    assert reasons(records, run(4000.0, "interrupted")) == []
    assert summarise(level(), records, None).client.valid
    assert reasons([]) == []
    # An answer of one token would have had no TPOT, and its failure is not in TPOT's tail.
    assert reasons([*mixed(), failure(909, 7000.0, asked_output_tokens=1)]) == []
    assert summarise(counted(len(busy())), busy(), run()).client.valid
    one = answer(0, 0.0, last_token_ms=101.0, itl_ms=None, events=1, output_tokens=1)
    assert summarise(counted(1), [one], run(0.0)).client.valid


@settings(deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 80), st.booleans())
def test_no_level_that_could_have_been_played_is_called_contradictory(seed: int, n: int, whole: bool) -> None:
    rng = random.Random(seed)
    records = []
    for number in range(n):
        at = round(rng.uniform(0, 10_000), 4)
        sent = round(at + rng.expovariate(1.0), 4)
        first = round(sent + rng.expovariate(1 / 200), 4)
        stamps = [first]
        for _ in range(rng.randrange(40)):
            stamps.append(round(stamps[-1] + rng.choice([0.0, rng.expovariate(1 / 30)]), 4))
        gaps = [round(b - a, 4) for a, b in itertools.pairwise(stamps)][: rng.choice([5, 100])]
        done = round(stamps[-1] + rng.choice([0.0, 0.3]), 4)
        tokens = rng.choice([None, len(stamps), 3 * len(stamps)])
        kind = rng.choice(["ok", "ok", "ok", "http_error", "cancelled", "never_sent"])
        if kind == "ok":
            records.append(
                answer(number, at, sent_ms=sent, first_token_ms=first, first_answer_ms=first, last_token_ms=stamps[-1],
                       done_ms=done, events=len(stamps), itl_ms=gaps or None, output_tokens=tokens)
            )  # fmt: skip
        else:
            lost = {"sent_ms": None, "done_ms": None} if kind == "never_sent" else {"sent_ms": sent, "done_ms": done}
            records.append(failure(number, at, kind, asked_output_tokens=rng.choice([1, 4]), **lost))
    if whole:
        figures = summarise(counted(n, load=OPEN), records, run())
    else:
        figures = summarise(level(load=OPEN), records, run())
    assert not [reason for reason in figures.client.reasons if "contradicts" in reason]


@pytest.mark.parametrize(
    ("step", "change", "says"),
    [
        ("counts", lambda it: replace(it, scheduled=it.scheduled + 1), "are counted as scheduled"),
        ("counts", lambda it: replace(it, ok=it.ok - 1, timed_out=it.timed_out + 1), "the counts of ok, timed_out"),
        ("counts", lambda it: replace(it, in_window=it.in_window - 1), "were due in the window and"),
        ("errors", lambda it: it[1:], "errors are listed"),
        ("finish_reasons", lambda it: {**it, "stop": 5}, "finish reasons are listed"),
        ("rates", lambda it: replace(it, completed_per_s=1.01 * it.completed_per_s), "completed_per_s of"),
        ("rates", lambda it: replace(it, offered_per_s=1.01 * it.offered_per_s), "offered_per_s of"),
        ("rates", lambda it: replace(it, offered_per_s=1.01 * it.offered_per_s), "Little's law does not hold"),
        ("_window", lambda it: replace(it, measured_s=10.0), "the window lasts 10.0 s in the result and 9.0 s"),
        ("_window", lambda it: replace(it, measured_s=None), "the window is said to last None s"),
        ("_bounds", lambda it: it._replace(end=9000.0), "the window lasts 8.0 s in the result and 9.0 s"),
        ("concurrency", lambda it: replace(it, mean=1.01 * it.mean), "by counting over time"),
        ("concurrency", lambda it: replace(it, mean=1.01 * it.mean), "Little's law does not hold"),
        ("concurrency", lambda it: replace(it, peak=it.peak + 1), "by counting over time"),
        ("throughput", lambda it: replace(it, output_tokens_per_s=2 * it.output_tokens_per_s), "output tokens"),
        ("throughput", lambda it: replace(it, events_per_s=1.1 * it.events_per_s), "events of"),
        ("throughput", lambda it: replace(it, total_tokens_per_s=it.output_tokens_per_s), "input and output tokens"),
        ("_itl", lambda it: replace(it, ok=replace(it.ok, n=10**6)), "itl_ms has 1000000 samples"),
    ],
)
def test_wrong_step_of_the_summary_is_found(
    step: str, change: Callable[[Any], Any], says: str, plant: Plant
) -> None:  # fmt: skip
    plant.into(step, change, summary if hasattr(summary, step) else measures)
    found = reasons(mixed())
    assert any(says in reason for reason in found), found
    assert all("this is a bug in loadtest, please report it" in reason for reason in found)


def test_more_in_the_window_than_in_the_whole_level_is_found(plant: Plant) -> None:
    amounts = iter([1000.0, 10.0])
    plant.into("throughput", lambda it: replace(it, output_tokens_per_s=next(amounts)))
    assert any("output tokens arrived in the window and" in reason for reason in reasons(mixed()))


@pytest.mark.parametrize(
    "change",
    [
        lambda it: replace(it, p50=it.max, max=it.p50),
        lambda it: replace(it, p99=it.max + 0.0001),
        lambda it: replace(it, min=it.p50 + 0.0001),
        lambda it: replace(it, mean=it.max + 1.0),
        lambda it: replace(it, p90=None),
        lambda _: Dist(n=0, max=1.0),
    ],
)
def test_percentiles_out_of_order_or_range_are_found(change: Callable[[Dist], Dist], plant: Plant) -> None:
    plant.into("distribution", lambda it: change(it) if it.n else it)
    assert any("out of order" in reason for reason in reasons(mixed()))


@pytest.mark.parametrize(
    "change",
    [
        lambda it: replace(it, p50=0.0),
        lambda it: replace(it, p90=it.p95 + 1.0),
        lambda it: replace(it, p95=10_000.0),
        lambda it: replace(it, n=it.n + 1),
        lambda it: replace(it, unbounded=[*it.unbounded, "p50"]),
        lambda it: replace(it, p50=None, unbounded=["p50", *it.unbounded]),
    ],
)
def test_percentiles_that_failures_cannot_give_are_found(change: Callable[[Any], Any], plant: Plant) -> None:
    plant.into("due_distribution", lambda it: change(it) if it.n else it)
    assert any("with the failures inside" in reason for reason in reasons(mixed()))


def test_samples_that_went_missing_are_found(plant: Plant) -> None:
    plant.into("metric", lambda it: replace(it, excluded=it.excluded + 1))
    assert any("excluded of" in reason for reason in reasons(mixed()))


def test_failures_that_went_missing_are_found(plant: Plant) -> None:
    plant.into("due_distribution", lambda it: replace(it, failed=it.failed - 1, n=it.n - 1) if it.failed else it)
    assert any("failures inside of" in reason for reason in reasons(mixed()))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"itl_ms": [10.0, 10.0, 10.0, 10.0]}, "do not add up"),  # more gaps than events
        ({"itl_ms": [10.0, 10.0, 20.0]}, "do not add up"),
        ({"itl_ms": [10.0, 25.0]}, "do not add up"),  # one is missing, and these are too long already
        ({"itl_ms": [-10.0, 20.0, 20.0]}, "do not add up"),
        ({"events": 0, "itl_ms": None}, "do not add up"),
        ({"first_token_ms": None, "first_answer_ms": None}, "do not add up"),
        ({"done_ms": 2100.0}, "times that run backwards"),
        ({"first_answer_ms": 2050.0}, "times that run backwards"),
        ({"sent_ms": 1990.0}, "times that run backwards"),
        ({"sent_ms": None}, "no time of sending or of ending"),
    ],
)
def test_impossible_record_is_found_and_said_once(given: dict[str, Any], says: str) -> None:
    (reason,) = reasons([answer(0, 2000.0, **given), answer(1, 3000.0)])
    assert reason.startswith("the result contradicts its own records: 1 requests ")
    assert says in reason


def test_requests_that_the_workers_counted_and_nobody_recorded_are_found() -> None:
    (reason,) = reasons(mixed(), run(scheduled=len(mixed()) + 3))
    assert "became due and" in reason
    assert reasons(mixed(), run(scheduled=len(mixed()))) == []
