"""Every contradiction is planted once, in an inner step of the summary or in the records, and must be found."""

import dataclasses
import itertools
import random
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadtest import measures, parts, sessions, summary
from loadtest.level import Level, LevelRun
from loadtest.records import Record
from loadtest.rows import Rows
from loadtest.stats import Dist
from loadtest.summary import summarise
from loadtest.workload.distribution import Distribution
from loadtest.workload.lengths import Length
from loadtest.workload.model import Conversation, Probe, Workload
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


def contradictions(played: Level, records: list[Record], how: LevelRun | None) -> list[str]:
    """What is found of the records as rows on disk, as those of a long level are; as records it is found as well."""

    def found(made: Sequence[Record]) -> list[str]:
        return [reason for reason in summarise(played, made, how).client.reasons if "contradicts" in reason]

    with tempfile.TemporaryDirectory() as folder:
        rows = Rows(Path(folder))
        rows.append(records)
        of_rows = found(rows)
        rows.close()
    # Gaps of rows are counted by another road: what is planted into that of records is not in theirs.
    assert {*of_rows} <= {*found(records)}
    return of_rows


def reasons(records: list[Record], how: LevelRun | None = None, **given: Any) -> list[str]:
    return contradictions(level(load=OPEN, **given), records, how or run())


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
    assert not contradictions(counted(n, load=OPEN) if whole else level(load=OPEN), records, run())


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
        ("window_of", lambda it: it._replace(end=9000.0), "the window lasts 8.0 s in the result and 9.0 s"),
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


TALK = Workload(
    Length(8, 8), Length(4, 4), conversation=Conversation(Length(2, 2), Distribution.parse("1")), name="talk"
)
SINGLE = Workload(Length(8, 8), Length(4, 4), name="single")
WHOLE = {"workloads": (SINGLE, TALK), "probe": Probe(1.0, Length(1, 1), Length(1, 1))}


def parted() -> list[Record]:
    """Single requests and sessions, models, failures, and probes beside them."""
    return [
        *mixed(),
        answer(1000, 2000.0, workload=1, session=1, turn=1, model="a", prompt_hash=1),
        answer(1001, 4000.0, workload=1, session=1, turn=2, model="b", prompt_hash=1, ends="completed"),
        answer(1002, 3000.0, workload=1, session=2, turn=1, model="a"),
        failure(1003, 9000.0, workload=1, session=2, turn=2, model="b"),
        answer(0, 2000.0, probe=True), failure(1, 3000.0, probe=True),
    ]  # fmt: skip


def test_sound_parts_are_not_doubted() -> None:
    assert reasons(parted(), **WHOLE) == []
    figures = summarise(level(load=OPEN, **WHOLE), parted(), run())
    assert len(figures.workloads) == len(figures.turns) == len(figures.models) == 2
    assert figures.workload.repeated_prompts == 1


def _first(change: Callable[[Any], Any]) -> Callable[[list[Any]], list[Any]]:
    return lambda parts: [change(parts[0]), *parts[1:]]


def _counted(part: Any) -> Any:
    return replace(part, counts=replace(part.counts, ok=part.counts.ok + 1))


def _unsampled(part: Any) -> Any:
    return replace(part, e2e_ms=replace(part.e2e_ms, excluded=part.e2e_ms.excluded + 1))


def _faster(part: Any) -> Any:
    more = part.throughput.output_tokens_per_s + 1.0
    return replace(part, throughput=replace(part.throughput, output_tokens_per_s=more))


@pytest.mark.parametrize(
    ("room", "step", "change", "says"),
    [
        (parts, "workloads", _first(_counted), "workload 0: "),
        (parts, "workloads", _first(_faster), "output_tokens_per_s is"),
        (parts, "workloads", lambda it: it[:1], "of 2 workloads only 1 are reported"),
        (parts, "turns", _first(_counted), "turn 1: "),
        (parts, "turns", _first(_unsampled), "turn 1: e2e_ms has"),
        (parts, "turns", lambda it: it[:1], "of 2 turns only 1 are reported"),
        (parts, "models", _first(_counted), "model a: "),
        (parts, "models", lambda it: it[1:], "of 2 models only 1 are reported"),
        (parts, "probe", _counted, "probe stream: "),
        (parts, "probe", lambda it: replace(it, errors=[]), "probe stream: 1 requests failed and 0 errors are listed"),
        (sessions, "summarised", lambda _: None, "2 sessions are recorded and none is reported"),
        (sessions, "summarised", lambda it: replace(it, failed=0), "are counted as started, 1 as ended"),
        (sessions, "summarised", lambda it: replace(it, mean_turns=3.0), "2 sessions of 3 turns are counted"),
        (
            sessions, "summarised", lambda it: replace(it, concurrency=replace(it.concurrency, mean=0.01)),
            "and their turns in flight alone are",
        ),
        (
            measures, "workload", lambda it: replace(it, repeated_prompts=10_000),
            "requests are said to repeat a prompt",
        ),
    ],
)  # fmt: skip
def test_wrong_part_is_found(
    room: ModuleType, step: str, change: Callable[[Any], Any], says: str, plant: Plant
) -> None:  # fmt: skip
    plant.into(step, change, room)
    found = reasons(parted(), **WHOLE)
    assert any(says in reason for reason in found), found


@pytest.mark.parametrize(
    ("records", "says"),
    [
        ([answer(0, 2000.0, workload=2)], "1 requests are of a workload that the level does not have"),
        ([answer(0, 2000.0, session=1)], "1 sessions have turns that are not the first, the second"),
        ([answer(0, 2000.0, session=1, turn=2)], "1 sessions have turns that are not the first, the second"),
        (
            [answer(0, 2000.0, session=1, turn=1, ends="completed"), answer(1, 3000.0, session=1, turn=2)],
            "1 sessions went on after the turn that ended them",
        ),
        ([failure(0, 2000.0, session=1, turn=1), answer(1, 3000.0, session=1, turn=2)], "1 sessions went on after"),
        (
            [answer(0, 2000.0, session=1, turn=1), answer(1, 2050.0, session=1, turn=2)],
            "1 sessions sent a turn before they had the answer to the last one",
        ),
        ([answer(0, 2000.0, probe=True), answer(0, 3000.0, probe=True)], "of the probe stream are recorded twice"),
        ([answer(0, 2000.0, probe=True, done_ms=None)], "1 requests of the probe stream are ok and have no time"),
    ],
)
def test_sessions_and_probes_that_cannot_have_been_are_found(records: list[Record], says: str) -> None:
    (reason,) = reasons(records, **WHOLE)
    assert says in reason


def test_probe_of_a_level_that_has_none_is_found() -> None:
    (reason,) = reasons([answer(0, 2000.0, probe=True)])
    assert "1 requests of the probe stream are recorded, and the level has none" in reason


def test_more_in_the_window_than_in_the_whole_level_is_found(plant: Plant) -> None:
    amounts = itertools.cycle([1000.0, 10.0])
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
