import itertools
import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest import plan, scenario
from loadtest.errors import UsageError
from loadtest.level import Batching, Level
from loadtest.scenario.model import Override
from loadtest.schedule import Load, Stage
from loadtest.workload.lengths import Length
from loadtest.workload.model import Data, Rows, Trace, Workload


def levels(source: str | None, *, bundled: bool = True, **flags: str) -> list[Level]:
    overrides = {name: Override(value, "--" + name) for name, value in flags.items()}
    return plan.levels(scenario.load(source, overrides).scenario, bundled=bundled)


def level(**given: Any) -> Level:
    values = {
        "index": 3, "name": "", "load": Load("poisson", rate_per_s=50.0), "batching": None,
        "workloads": (Workload(Length(10, 20), Length(5, 9)),), "duration_s": 2.0, "requests": None,
        "warmup_s": 0.0, "grace_s": 1.0,
    }  # fmt: skip
    return Level(**{**values, **given})


def test_the_quickstart_is_nine_levels_and_three_policies() -> None:
    found = levels("quickstart")
    assert len(found) == 12
    assert [level.index for level in found] == list(range(12))
    assert len({level.name for level in found}) == 12
    assert {level.batching for level in found[9:]} == {
        Batching("dynamic", 16, 50.0), Batching("static", 16, 50.0), Batching("none", 1, 50.0),
    }  # fmt: skip


def test_against_a_url_batching_collapses_and_no_level_is_played_twice() -> None:
    found = levels("quickstart", bundled=False)
    assert [level.load.concurrency for level in found] == [1, 4, 16]
    assert {level.batching for level in found} == {None}


def test_flags_choose_the_axes() -> None:
    found = levels("quickstart", max_batch_size="2,8", scheduler="continuous,none", concurrency="3")
    assert [str(level.batching) for level in found] == ["continuous 2", "continuous 8", "none"]


@pytest.mark.parametrize(
    ("flags", "warmup_s"),
    [
        ({}, 3.0),
        ({"duration": "600s"}, 30.0),
        ({"duration": "4s"}, 1.0),
        ({"duration": "1s"}, 0.1),
        ({"duration": "10s", "warmup": "2s"}, 2.0),
        ({"requests": "10"}, 0.0),
        ({"requests": "10", "duration": "60s"}, 0.0),
    ],
)
def test_the_warm_up_is_a_tenth_within_bounds_and_none_for_a_number_of_requests(
    flags: dict[str, str], warmup_s: float
) -> None:
    assert levels(None, **flags)[0].warmup_s == pytest.approx(warmup_s)


def test_the_grace_is_the_timeout_unless_given() -> None:
    assert levels(None, timeout="7s")[0].grace_s == 7
    assert levels(None, timeout="7s", grace="1s")[0].grace_s == 1


def stages_file(folder: Path, text: str) -> str:
    path = folder / "s.yaml"
    path.write_text(text)
    return str(path)


def test_stages_are_one_level_as_long_as_they_are(tmp_path: Path) -> None:
    text = (
        "load: {stages: [{from: 0, to: 10, duration: 60s}, {rate: 50, duration: 40s}], arrival: gamma, burstiness: 0.5}"
    )
    (found,) = levels(stages_file(tmp_path, text))
    stages = (Stage(0.0, 10.0, 60.0), Stage(50.0, 50.0, 40.0))
    assert found.load == Load("stages", stages=stages, arrival="gamma", burstiness=0.5)
    assert (found.duration_s, found.requests, found.warmup_s, found.name) == (
        100,
        None,
        10,
        "continuous 16 stages 0→10→50/s gamma 0.5",
    )
    (bounded,) = levels(stages_file(tmp_path, text), requests="30")
    assert (bounded.duration_s, bounded.requests, bounded.warmup_s) == (100, 30, 0)


def test_each_level_has_the_duration_and_warm_up_of_its_own_load(tmp_path: Path) -> None:
    text = (
        "load: {duration: 20s, arrival: constant}\n"
        "levels: [{rate: 3}, {stages: [{rate: 1, duration: 5m}]}, {concurrency: 2}]"
    )
    found = levels(stages_file(tmp_path, text), bundled=False)
    assert [(level.name, level.duration_s, level.warmup_s) for level in found] == [
        ("3/s constant", 20, 2), ("stages 1/s constant", 300, 30), ("c=2", 20, 2),
    ]  # fmt: skip


def test_levels_that_read_alike_are_told_apart_by_number(tmp_path: Path) -> None:
    text = "levels: [{stages: [{rate: 1, duration: 5s}]}, {stages: [{rate: 1, duration: 9s}]}]"
    assert [level.name for level in levels(stages_file(tmp_path, text), bundled=False)] == [
        "stages 1/s",
        "stages 1/s #2",
    ]


def test_gamma_arrivals_carry_their_burstiness_and_others_none() -> None:
    (gamma,) = levels(None, rate="20", arrival="gamma", burstiness="0.5")
    assert gamma.load == Load("gamma", rate_per_s=20.0, burstiness=0.5)
    (poisson,) = levels(None, rate="20")
    assert poisson.load == Load("poisson", rate_per_s=20.0)


@given(st.integers(1, 8), st.integers(0, 2**31), st.sampled_from(["constant", "poisson", "gamma"]))
def test_the_due_times_of_stages_are_the_same_for_any_number_of_workers(workers: int, seed: int, arrival: Any) -> None:
    stages = (Stage(0.0, 40.0, 2.0), Stage(0.0, 0.0, 1.0), Stage(80.0, 80.0, 0.5))
    asked = level(load=Load("stages", stages=stages, arrival=arrival, burstiness=0.5), duration_s=3.5)
    alone = list(plan.due_times(asked, seed, 0, 1))
    assert sorted(at for worker in range(workers) for at in plan.due_times(asked, seed, worker, workers)) == alone
    if arrival == "constant":
        assert len(alone) == 80


@pytest.mark.parametrize(("name", "requests"), [("ramp", 10 + 585 + 240), ("spike", 60 + 100 + 60), ("soak", 3600)])
def test_a_preset_with_an_open_loop_sends_what_its_rates_add_up_to(name: str, requests: int) -> None:
    (asked,) = levels(name, arrival="constant")
    assert len(list(plan.due_times(asked, 1, 0, 1))) == requests


def test_a_warm_up_that_leaves_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match="warm"):
        levels(None, duration="2s", warmup="2s")


@given(st.integers(1, 8), st.integers(0, 2**31))
def test_the_requests_are_the_same_for_any_number_of_workers(workers: int, seed: int) -> None:
    asked = level(requests=40)
    alone = {r.id: (r.input_tokens, r.output_tokens, r.rng.random()) for r in plan.requests(asked, seed, 0, 1)}
    shared = {
        r.id: (r.input_tokens, r.output_tokens, r.rng.random())
        for worker in range(workers)
        for r in plan.requests(asked, seed, worker, workers)
    }
    assert alone == shared


@given(st.integers(1, 8), st.integers(0, 2**31))
def test_the_due_times_are_the_same_for_any_number_of_workers(workers: int, seed: int) -> None:
    alone = list(plan.due_times(level(), seed, 0, 1))
    assert sorted(at for worker in range(workers) for at in plan.due_times(level(), seed, worker, workers)) == alone


@given(st.integers(1, 9), st.integers(1, 5), st.integers(0, 60))
def test_each_slot_of_a_closed_loop_has_as_many_requests_whoever_plays_it(
    slots: int, workers: int, requests: int
) -> None:
    asked = level(load=Load("closed", concurrency=slots), requests=requests)
    for worker in range(workers):
        mine = plan.slots(asked, worker, workers)
        count = len(list(plan.requests(asked, 1, worker, workers)))
        assert mine * (requests // slots) <= count <= mine * -(-requests // slots)


@pytest.mark.parametrize("workers", [1, 2, 8])
@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_sched_gamma_mean_over_the_workers(burstiness: float, workers: int) -> None:
    rate, count = 200.0, 16_000
    asked = level(load=Load("gamma", rate_per_s=rate, burstiness=burstiness), duration_s=None, requests=count)
    slices = [list(plan.due_times(asked, 7, worker, workers)) for worker in range(workers)]
    assert [len(times) for times in slices] == [count // workers] * workers
    for times in ([at for slice_ in slices for at in slice_], *slices):
        each = workers if len(times) < count else 1  # so many gaps of the whole make one of these
        ascending = sorted(times)
        gaps = [after - before for before, after in itertools.pairwise(ascending)]
        mean = sum(gaps) / len(gaps)
        spread = math.sqrt(sum((gap - mean) ** 2 for gap in gaps) / (len(gaps) - 1)) / mean
        assert mean == pytest.approx(each / rate, rel=4 / math.sqrt(burstiness * each * len(gaps)))
        assert spread == pytest.approx(1 / math.sqrt(burstiness * each), rel=0.1)
        # Counted over stretches of time, they vary as much more than Poisson ones as their gaps do.
        width = 40 * each / rate
        counts = Counter(int(at / width) for at in ascending if at < int(ascending[-1] / width) * width)
        values = [counts[number] for number in range(int(ascending[-1] / width))]
        average = sum(values) / len(values)
        dispersion = sum((value - average) ** 2 for value in values) / (len(values) - 1) / average
        assert dispersion == pytest.approx(1 / (burstiness * each), rel=0.4)


def test_a_worker_without_a_slot_has_no_requests() -> None:
    asked = level(load=Load("closed", concurrency=1), requests=None, duration_s=10.0)
    assert list(plan.requests(asked, 1, 1, 2)) == []


def test_the_slots_of_a_closed_loop_are_shared_out_whole() -> None:
    asked = level(load=Load("closed", concurrency=7))
    assert [plan.slots(asked, worker, 3) for worker in range(3)] == [3, 2, 2]


def test_zip_takes_the_lists_side_by_side(tmp_path: Path) -> None:
    text = "load: {concurrency: [1, 2, 4], combine: zip}\nworkload: {input_tokens: [10, 20, 30], output_tokens: 5}"
    found = levels(stages_file(tmp_path, text), bundled=False)
    assert [level.name for level in found] == ["c=1 in=10", "c=2 in=20", "c=4 in=30"]


def test_models_are_an_axis_and_levels_are_named_by_them_where_they_differ() -> None:
    assert [(level.name, level.model) for level in levels(None, bundled=False, model="a,b")] == [
        ("c=1 model=a", "a"), ("c=1 model=b", "b"),
    ]  # fmt: skip
    assert [(level.name, level.model) for level in levels(None, bundled=False, model="a")] == [("c=1", "a")]


def test_repeats_play_the_same_levels_in_another_order_that_the_seed_decides() -> None:
    flags = {"concurrency": "1,2,3,4,5,6", "repeat": "3"}
    found = levels(None, bundled=False, seed="1", **flags)
    assert [level.index for level in found] == list(range(18))
    assert [level.name for level in found[:6]] == [f"c={slots} (1/3)" for slots in range(1, 7)]
    orders = [[level.load.concurrency for level in found if level.repeat == repeat] for repeat in (1, 2, 3)]
    assert [sorted(order, key=str) for order in orders] == [[1, 2, 3, 4, 5, 6]] * 3
    assert len({str(order) for order in orders}) == 3
    assert found == levels(None, bundled=False, seed="1", **flags)
    assert found != levels(None, bundled=False, seed="2", **flags)


TRACE_FILE = """\
levels:
  - {trace: {path: rows.jsonl, speed: 2}}
  - {trace: {path: rows.jsonl}}
  - {rate: 2, input_tokens: 7}
"""


def test_a_trace_is_a_level_as_long_as_it_was_with_rows_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").touch()
    asked = scenario.load(stages_file(tmp_path, TRACE_FILE), {}).scenario
    rows: dict[Data | Trace, Rows] = {
        Trace(str(tmp_path / "rows.jsonl"), speed=speed): Rows(f"prepared {speed}", "", 9, "", span_s=span_s)
        for speed, span_s in ((1.0, 40.0), (2.0, 20.0))
    }
    fast, whole, made = plan.levels(asked, bundled=False, rows=rows)
    assert (fast.load, fast.duration_s, fast.warmup_s) == (Load("trace", events=9, span_s=20.0), 20, 2)
    assert (whole.load.span_s, whole.duration_s) == (40, 40)
    assert [level.workloads[0].rows and level.workloads[0].rows.path for level in (fast, whole, made)] == [
        "prepared 2.0", "prepared 1.0", None,
    ]  # fmt: skip
    assert fast.workloads[0].input_tokens is None
    assert (made.workloads[0].input_tokens, made.duration_s) == (Length(7, 7), 30)


def test_a_warm_up_that_leaves_nothing_of_a_trace_is_refused(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").touch()
    asked = scenario.load(stages_file(tmp_path, "load: {trace: {path: rows.jsonl}, warmup: 10s}"), {}).scenario
    rows: dict[Data | Trace, Rows] = {Trace(str(tmp_path / "rows.jsonl")): Rows("", "", 1, "", span_s=5.0)}
    with pytest.raises(UsageError, match=r"load\.warmup: 10 s leave nothing to measure of a trace of 5 s"):
        plan.levels(asked, bundled=False, rows=rows)


def test_each_part_of_a_mix_plays_from_its_own_file(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").touch()
    text = "mix: [{name: made}, {name: read, data: {path: rows.jsonl}, output_tokens: 5}]\nload: {concurrency: [1, 2]}"
    asked = scenario.load(stages_file(tmp_path, text), {}).scenario
    rows = Rows("prepared", "", 9, "")
    found = plan.levels(asked, bundled=False, rows={Data(str(tmp_path / "rows.jsonl")): rows})
    assert [level.name for level in found] == ["c=1", "c=2"]
    for level in found:
        made, read = level.workloads
        assert (made.name, made.input_tokens, made.rows) == ("made", Length(128, 128), None)
        assert (read.input_tokens, read.output_tokens, read.rows) == (None, Length(5, 5), rows)


def test_levels_that_scaling_makes_alike_are_played_once() -> None:
    assert [level.name for level in levels(None, bundled=False, concurrency="1,4,16", scale="0.1")] == ["c=1", "c=2"]
