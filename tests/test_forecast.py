"""What plan says of a run is what the run would send."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from loadtest import plan
from loadtest.engine.maker import Maker
from loadtest.engine.orders import Prepare
from loadtest.forecast import Forecast, Prices, Source, forecast
from loadtest.level import Level
from loadtest.schedule import Load
from loadtest.workload.distribution import Distribution
from loadtest.workload.lengths import Length
from loadtest.workload.model import Conversation, Data, Prefix, Probe, Workload
from loadtest.workload.rows import prepare
from tests.engine.playing import wiring

FIXED = Workload(Length(100, 100), Length(10, 10))
CLOSED = Load("closed", concurrency=4)
OPEN = Load("poisson", rate_per_s=20.0)


def level(load: Load = CLOSED, *workloads: Workload, **given: Any) -> Level:
    values: dict[str, Any] = {
        "index": 0, "name": str(load), "load": load, "batching": None, "workloads": workloads or (FIXED,),
        "duration_s": None, "requests": None, "warmup_s": 0.0, "grace_s": 5.0,
    }  # fmt: skip
    return Level(**{**values, **given})


def of(*levels: Level, prices: Prices | None = None, cooldown_s: float = 0.0) -> Forecast:
    source = Source(name="test", question="", sha256="", values={}, sources={})
    return forecast(
        source, levels, 7, target=None, workers=1, cooldown_s=cooldown_s, prices=prices, warnings=[], count=len
    )


def drawn(one: Level, requests: int) -> Sequence[plan.Request]:
    return [request for request, _ in zip(plan.requests(one, 7, 0, 1), range(requests), strict=False)]


def test_a_number_of_requests_is_exact_in_requests_tokens_and_cost() -> None:
    one = level(CLOSED, Workload(Length(1, 200), Length(1, 50)), requests=50)
    found = of(one, prices=Prices(2.0, 10.0)).levels[0]
    asked = drawn(one, 50)
    assert (found.count, found.requests) == ("exact", 50)
    assert found.input_tokens == pytest.approx(sum(request.input_tokens or 0 for request in asked))
    assert found.output_tokens == pytest.approx(sum(request.output_tokens or 0 for request in asked))
    assert found.cost == pytest.approx(((found.input_tokens or 0) * 2 + (found.output_tokens or 0) * 10) / 1e6)
    assert found.sending_s is None


def test_answers_of_which_the_data_say_nothing_are_as_long_as_they_are_asked(tmp_path: Path) -> None:
    (tmp_path / "q.csv").write_text("question,output_tokens\nwho,7\nwhat,\nwhere,\n", "utf-8")
    data = Data(str(tmp_path / "q.csv"), order="file")
    rows = prepare(data, tmp_path, len, conversation=False)
    one = level(CLOSED, Workload(None, None, data=data, rows=rows), requests=3)
    made = [made.output_tokens for (made,) in Maker(Prepare(wiring("http://h:1", tmp_path), one, 0, 1))]
    found = of(one)
    assert found.levels[0].output_tokens == sum(made)
    assert found.workloads[0].output_tokens is not None
    assert found.workloads[0].output_tokens.max == max(made) > 7


def test_a_closed_loop_by_time_says_that_the_answers_decide() -> None:
    found = of(level(duration_s=30.0), prices=Prices(1.0, 1.0))
    assert (found.levels[0].count, found.levels[0].requests, found.levels[0].cost) == ("unknown", None, None)
    assert (found.levels[0].mean_input_tokens, found.levels[0].mean_output_tokens) == (100, 10)
    assert (found.estimate.open_ended, found.estimate.sending_s) == (1, 30.0)


def test_a_number_that_time_may_cut_short_is_at_most_so_many() -> None:
    found = of(level(duration_s=30.0, requests=50)).levels[0]
    assert (found.count, found.requests, found.sending_s) == ("at_most", 50, 30.0)


def test_an_open_loop_has_the_very_arrivals_that_run_would_play() -> None:
    one = level(OPEN, duration_s=10.0)
    times = list(plan.due_times(one, 7, 0, 1))
    found = of(one).levels[0]
    assert (found.count, found.requests) == ("exact", len(times))
    assert found.first_arrivals_s == pytest.approx(times[:6], abs=1e-6)
    assert found.input_tokens == len(times) * 100


def test_an_open_loop_of_so_many_requests_sends_until_the_last_is_due() -> None:
    one = level(OPEN, requests=40)
    found = of(one).levels[0]
    assert (found.count, found.requests) == ("exact", 40)
    assert found.sending_s == pytest.approx(list(plan.due_times(one, 7, 0, 1))[-1], abs=1e-6)


def test_what_is_too_long_to_be_counted_is_estimated_and_said_to_be() -> None:
    found = of(level(Load("poisson", rate_per_s=5000.0), duration_s=3600.0)).levels[0]
    assert (found.count, found.requests, found.input_tokens) == ("expected", 18_000_000, 1_800_000_000)
    assert len(found.first_arrivals_s) == 6


def test_prefixes_and_the_conversation_so_far_are_among_the_tokens_that_are_sent() -> None:
    talk = Conversation(
        turns=Length(3, 3), think_s=Distribution("fixed", (0.0,)), next_input=Length(20, 20)
    )  # fmt: skip
    workload = msgspec.structs.replace(FIXED, conversation=talk, prefix=Prefix(share=1.0, tokens=1000, pool=1))
    found = of(level(CLOSED, workload, requests=6))
    assert found.levels[0].sessions == 2
    # 1,000 + 100 in front of the first answer of 10; then 20 and 10 more each turn
    assert found.levels[0].input_tokens == 2 * (1100 + 1130 + 1160)
    lengths = found.workloads[0]
    assert lengths.input_tokens is not None
    assert lengths.sent_tokens is not None
    assert (lengths.input_tokens.max, lengths.sent_tokens.max) == (100, 1160)


def test_sessions_that_are_too_many_to_be_counted_have_the_turns_of_those_looked_at() -> None:
    talk = Conversation(turns=Length(4, 4), think_s=Distribution("fixed", (0.0,)))
    workload = msgspec.structs.replace(FIXED, conversation=talk)
    found = of(level(Load("poisson", rate_per_s=1000.0), workload, duration_s=1000.0)).levels[0]
    assert (found.count, found.requests, found.sessions) == ("expected", 4_000_000, None)


def test_a_number_of_turns_ends_the_sending_with_the_last_session_it_allows() -> None:
    talk = Conversation(turns=Length(4, 4), think_s=Distribution("fixed", (0.0,)))
    one = level(OPEN, msgspec.structs.replace(FIXED, conversation=talk), requests=12)
    found = of(one).levels[0]
    assert (found.requests, found.sessions) == (12, 3)
    assert found.sending_s == pytest.approx(list(plan.due_times(one, 7, 0, 1))[2], abs=1e-6)


def test_the_parts_of_a_mix_are_told_apart_and_levels_of_one_workload_are_put_together() -> None:
    mix = (
        msgspec.structs.replace(FIXED, name="short", weight=3.0),
        Workload(Length(900, 900), Length(10, 10), name="long"),
    )
    found = of(level(CLOSED, *mix, requests=200), level(CLOSED, *mix, requests=200, index=1))
    assert [workload.name for workload in found.workloads] in (["short", "long"], ["long", "short"])
    counts = {workload.name: workload.input_tokens.n for workload in found.workloads if workload.input_tokens}
    assert sum(counts.values()) == 400
    assert counts["short"] > counts["long"]


def test_probes_are_counted_beside_the_load_and_paid_for() -> None:
    probe = Probe(rate_per_s=0.5, input_tokens=Length(16, 16), output_tokens=Length(1, 1))
    found = of(level(OPEN, duration_s=10.0, probe=probe)).levels[0]
    assert found.probe_requests == 5
    assert found.input_tokens == (found.requests or 0) * 100 + 5 * 16


def test_cooldown_stands_between_the_levels_and_grace_behind_each() -> None:
    total = of(*(level(duration_s=10.0, index=index) for index in range(3)), cooldown_s=5.0).estimate
    assert (total.sending_s, total.cooldown_s, total.grace_s) == (30.0, 10.0, 15.0)


def test_a_histogram_counts_every_length_once() -> None:
    lengths = of(level(CLOSED, Workload(Length(1, 1000), Length(5, 7)), requests=300)).workloads[0]
    assert lengths.input_tokens is not None
    assert lengths.output_tokens is not None
    assert (sum(lengths.input_tokens.histogram), len(lengths.input_tokens.histogram)) == (300, 16)
    assert len(lengths.output_tokens.histogram) == 3


def test_it_is_the_same_every_time() -> None:
    levels = (level(OPEN, Workload(Length(1, 200), Length(1, 50)), duration_s=5.0),)
    assert msgspec.json.encode(of(*levels)) == msgspec.json.encode(of(*levels))
