import itertools
import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.schedule import Arrival, Load, Stage, arrivals, share, stream

GAMMA_CASE = Path(__file__).parent / "cases" / "recorded" / "sched-gamma-mean"
POISSON = Load("poisson", rate_per_s=200.0)
CONSTANT = Load("constant", rate_per_s=4.0)

RAMP = (Stage(0.0, 50.0, 60.0),)
SPIKE = (Stage(5.0, 5.0, 30.0), Stage(100.0, 100.0, 5.0), Stage(5.0, 5.0, 30.0))
STEPS = tuple(Stage(rate, rate, 20.0) for rate in (2.0, 4.0, 8.0))
SOAK = (Stage(0.0, 2.0, 60.0), Stage(2.0, 2.0, 3600.0))
ALL = (Stage(5.0, 5.0, 30.0), Stage(5.0, 50.0, 60.0), Stage(200.0, 200.0, 5.0))


def staged(stages: tuple[Stage, ...], arrival: Arrival = "constant", burstiness: float | None = None) -> Load:
    return Load("stages", stages=stages, arrival=arrival, burstiness=burstiness)


def due(load: Load, seed: int = 1) -> list[float]:
    """The due times of a load that ends by itself."""
    return list(arrivals(load, seed, 0, load.duration_s, None))


def between(times: list[float], low: float, high: float) -> int:
    return sum(low <= at < high for at in times)


def gaps_of(times: list[float]) -> list[float]:
    return [later - earlier for earlier, later in itertools.pairwise([0.0, *times])]


def distance_to_exponential(gaps: list[float], mean: float) -> float:
    """Kolmogorov–Smirnov: the largest distance between the two distribution functions."""
    n = len(gaps)
    fits = [1 - math.exp(-gap / mean) for gap in sorted(gaps)]
    return max(max(abs((i + 1) / n - fit), abs(i / n - fit)) for i, fit in enumerate(fits))


def test_constant_arrivals_stand_on_a_grid_that_starts_at_once() -> None:
    assert list(arrivals(CONSTANT, 1, 0, 1.0, None)) == [0.0, 0.25, 0.5, 0.75]


def test_poisson_gaps_are_exponential() -> None:
    times = list(arrivals(POISSON, 7, 0, None, 20_000))
    assert times[-1] / len(times) == pytest.approx(1 / 200, rel=0.03)
    assert distance_to_exponential(gaps_of(times), 1 / 200) < 1.63 / math.sqrt(len(times))  # at 1 %


def test_the_number_of_poisson_arrivals_varies_as_it_should() -> None:
    counts = [len(list(arrivals(POISSON, seed, 0, 1.0, None))) for seed in range(300)]
    mean = sum(counts) / len(counts)
    variance = sum((count - mean) ** 2 for count in counts) / (len(counts) - 1)
    assert mean == pytest.approx(200, abs=4)
    assert variance / mean == pytest.approx(1, abs=0.3)


def test_the_first_bound_that_is_met_ends_the_arrivals() -> None:
    assert len(list(arrivals(CONSTANT, 1, 0, 10.0, 3))) == 3
    assert len(list(arrivals(CONSTANT, 1, 0, 0.5, 100))) == 2


def test_same_seed_same_times_and_another_level_other_times() -> None:
    first = list(arrivals(POISSON, 1, 0, None, 50))
    assert first == list(arrivals(POISSON, 1, 0, None, 50))
    assert first != list(arrivals(POISSON, 1, 1, None, 50))
    assert first != list(arrivals(POISSON, 2, 0, None, 50))


def test_a_closed_loop_and_an_endless_loop_have_no_arrivals() -> None:
    with pytest.raises(ValueError, match="closed loop"):
        next(arrivals(Load("closed", concurrency=1), 1, 0, 1.0, None))
    with pytest.raises(ValueError, match="duration or a number"):
        next(arrivals(POISSON, 1, 0, None, None))


@pytest.mark.parametrize("index", range(3))
def test_burstiness_changes_the_spread_of_the_gaps_and_not_their_mean(index: int) -> None:
    asked = json.loads((GAMMA_CASE / "scenario.json").read_text())
    right = json.loads((GAMMA_CASE / "expect.json").read_text())
    burstiness = asked["burstiness"][index]
    load = Load("gamma", rate_per_s=asked["rate"], burstiness=burstiness)
    gaps = gaps_of(list(arrivals(load, asked["seed"], 0, None, asked["gaps"])))
    mean = sum(gaps) / len(gaps)
    assert mean == pytest.approx(right["mean_gap_s"], rel=0.06 if burstiness < 1 else 0.05)
    spread = math.sqrt(sum((gap - mean) ** 2 for gap in gaps) / (len(gaps) - 1))
    assert spread / mean == pytest.approx(right["coefficient_of_variation"][index], rel=0.06)
    if burstiness == 1:
        assert distance_to_exponential(gaps, right["mean_gap_s"]) < 1.63 / math.sqrt(len(gaps))


def test_a_burstiness_of_one_is_poisson_to_the_instant() -> None:
    gamma = Load("gamma", rate_per_s=200.0, burstiness=1.0)
    assert list(arrivals(gamma, 7, 0, None, 500)) == list(arrivals(POISSON, 7, 0, None, 500))


@pytest.mark.parametrize(
    ("stages", "parts"),
    [
        (RAMP, [(0, 30, 375), (30, 60, 1125)]),
        (SPIKE, [(0, 30, 150), (30, 35, 500), (35, 65, 150)]),
        (STEPS, [(0, 20, 40), (20, 40, 80), (40, 60, 160)]),
        (SOAK, [(0, 60, 60), (60, 3660, 7200)]),
        (ALL, [(0, 30, 150), (30, 60, 487.5), (60, 90, 1162.5), (90, 95, 1000)]),
    ],
    ids=["ramp", "spike", "steps", "soak", "all"],
)
def test_stages_hold_as_many_requests_as_the_area_under_their_rate(
    stages: tuple[Stage, ...], parts: list[tuple[float, float, float]]
) -> None:
    exact, poisson = due(staged(stages)), due(staged(stages, "poisson"), seed=5)
    assert exact == sorted(exact)
    assert poisson == sorted(poisson)
    for low, high, expected in parts:
        assert between(exact, low, high) == math.ceil(expected) or between(exact, low, high) == math.floor(expected)
        assert between(poisson, low, high) == pytest.approx(expected, abs=4 * math.sqrt(expected))
        assert staged(stages).mean_rate_per_s(low, high) == pytest.approx(expected / (high - low))
    assert len(exact) == math.ceil(sum(expected for _, _, expected in parts))


def test_the_counts_of_a_random_ramp_vary_as_the_process_says_and_are_right_on_average() -> None:
    for arrival, burstiness, index in (("poisson", None, 1.0), ("gamma", 0.25, 4.0), ("gamma", 4.0, 0.25)):
        load = staged((Stage(0.0, 40.0, 10.0),), arrival, burstiness)  # type: ignore[arg-type]
        counts = [len(due(load, seed)) for seed in range(300)]
        mean = sum(counts) / len(counts)
        assert mean == pytest.approx(200, abs=4 * math.sqrt(200 * index / 300) + 2)
        variance = sum((count - mean) ** 2 for count in counts) / (len(counts) - 1)
        assert variance / mean == pytest.approx(index, rel=0.35)


def test_a_poisson_ramp_is_a_poisson_process_in_the_time_of_its_own_rate() -> None:
    (ramp,) = RAMP
    times = [at for seed in range(10) for at in due(staged(RAMP, "poisson"), seed)]
    assert max(times) < ramp.duration_s
    marks = [
        mark for seed in range(10) for mark in gaps_of([ramp.expected(at) for at in due(staged(RAMP, "poisson"), seed)])
    ]
    assert distance_to_exponential(marks, 1.0) < 1.63 / math.sqrt(len(marks))


def test_nothing_is_due_in_a_pause_and_the_schedule_goes_on_after_it() -> None:
    paused = (Stage(5.0, 5.0, 2.0), Stage(0.0, 0.0, 10.0), Stage(5.0, 0.0, 2.0), Stage(0.0, 0.0, 1.0))
    times = due(staged(paused))
    assert times[:10] == pytest.approx([i / 5 for i in range(10)])
    assert times[10] == 12.0
    assert len(times) == 15
    assert max(times) < 14
    assert staged(paused).duration_s == 15
    assert due(staged((Stage(0.0, 0.0, 5.0), *RAMP)))[0] == 5.0
    assert due(staged((Stage(0.0, 0.0, 5.0),))) == []


def test_one_stage_without_a_slope_is_the_rate_itself() -> None:
    for arrival in ("constant", "poisson"):
        flat = Load(arrival, rate_per_s=200.0)  # type: ignore[arg-type]
        stage = staged((Stage(200.0, 200.0, 5.0),), arrival)  # type: ignore[arg-type]
        assert due(stage) == pytest.approx(list(arrivals(flat, 1, 0, 5.0, None)))


def test_a_number_of_requests_ends_stages_early() -> None:
    assert len(list(arrivals(staged(ALL), 1, 0, 95.0, 7))) == 7


RATES = st.floats(0, 1e4) | st.just(0.0)
STAGES = st.builds(Stage, RATES, RATES, st.floats(1e-3, 1e5))


@given(STAGES, st.floats(0, 1))
def test_when_is_the_inverse_of_expected(stage: Stage, part: float) -> None:
    asked = part * stage.expected(stage.duration_s)
    at = stage.when(asked)
    assert 0 <= at <= stage.duration_s
    assert stage.expected(at) == pytest.approx(asked, rel=1e-6, abs=1e-6)


@given(st.lists(STAGES.filter(lambda stage: stage.expected(stage.duration_s) < 500), min_size=1, max_size=4))
def test_any_stages_give_ascending_times_within_them(stages: list[Stage]) -> None:
    load = staged(tuple(stages))
    times = due(load)
    assert times == sorted(times)
    assert all(0 <= at < (load.duration_s or 0) for at in times)
    assert len(times) == pytest.approx(sum(stage.expected(stage.duration_s) for stage in stages), abs=1.001)


def test_the_rate_asked_for_between_two_times() -> None:
    assert POISSON.mean_rate_per_s(3, 9) == 200
    assert Load("closed", concurrency=4).mean_rate_per_s() is None
    assert staged(ALL).mean_rate_per_s() == pytest.approx((150 + 1650 + 1000) / 95)
    assert staged(ALL).mean_rate_per_s(90, 300) == pytest.approx(200)
    assert staged(ALL).mean_rate_per_s(95, 300) is None
    assert staged(ALL).peak_per_s == 200
    assert CONSTANT.peak_per_s == 4


@pytest.mark.parametrize(
    ("load", "text"),
    [
        (Load("closed", concurrency=4), "c=4"),
        (Load("poisson", rate_per_s=20.0), "20/s"),
        (Load("constant", rate_per_s=2.5), "2.5/s constant"),
        (Load("gamma", rate_per_s=20.0, burstiness=0.5), "20/s gamma 0.5"),
        (staged(ALL, "poisson"), "stages 5→50→200/s"),
        (staged(SPIKE), "stages 5→100→5/s constant"),
        (staged(RAMP, "gamma", 0.5), "stages 0→50/s gamma 0.5"),
        (staged(tuple(Stage(r, r, 1.0) for r in range(1, 10)), "poisson"), "stages 1→2→3→4→…→9/s"),
    ],
)
def test_a_load_is_short_in_a_table(load: Load, text: str) -> None:
    assert str(load) == text


@given(st.integers(0, 10_000), st.integers(1, 64))
def test_shares_add_up_and_differ_by_one_at_most(total: int, workers: int) -> None:
    shares = [share(total, worker, workers) for worker in range(workers)]
    assert sum(shares) == total
    assert max(shares) - min(shares) <= 1


def test_streams_of_different_purpose_are_independent() -> None:
    assert stream(1, "a", 2).random() != stream(1, "a", 3).random()
    assert stream(1, "a", 2).random() == stream(1, "a", 2).random()
