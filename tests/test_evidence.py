import math

import numpy as np
import pytest
from numpy.typing import NDArray

from loadtest.evidence import (
    ALPHA,
    Evidence,
    design_effect,
    gate,
    intervals,
    mean_interval,
    sample_floor,
)

Floats = NDArray[np.float64]


def independent(n: int, seed: int = 1) -> Floats:
    return np.random.default_rng(seed).exponential(1.0, n)


def waits(n: int, load: float, seed: int = 1) -> Floats:
    """Time in an M/M/1 queue that starts empty, long before the first that is returned."""
    rng = np.random.default_rng(seed)
    service, gaps = rng.exponential(1.0, n + 2000), rng.exponential(1 / load, n + 2000)
    walk = np.concatenate([[0.0], np.cumsum(service[:-1] - gaps[1:])])
    return (walk - np.minimum.accumulate(walk) + service)[2000:]


def judged(samples: Floats, limit: float, p: float = 0.99) -> Evidence:
    return gate(samples > limit, samples, p)


# The floors that MLPerf's LoadGen publishes for its early stopping.
@pytest.mark.parametrize(
    ("p", "late", "expected"),
    [(0.99, 0, 459), (0.99, 1, 662), (0.99, 10, 2010), (0.95, 0, 90), (0.95, 1, 130), (0.9, 0, 44), (0.9, 1, 64)],
)
def test_the_sample_floor_is_that_of_early_stopping(p: float, late: int, expected: int) -> None:
    assert sample_floor(p, 0.01, late) == expected


def test_nine_samples_prove_nothing_of_a_p95() -> None:
    few = judged(np.ones(9), 10.0, 0.95)
    assert few.p_pass > ALPHA
    assert few.p_fail > ALPHA
    assert few.more_needed == sample_floor(0.95) - 9
    assert judged(np.ones(9 + few.more_needed), 10.0, 0.95).p_pass <= ALPHA


def test_no_data_proves_nothing_and_says_how_much_would() -> None:
    nothing = gate(np.zeros(0, np.bool_), np.zeros(0), 0.99)
    assert (nothing.p_pass, nothing.p_fail, nothing.more_needed) == (1.0, 1.0, sample_floor(0.99))
    assert math.isnan(nothing.share_late)
    assert intervals(np.zeros(0), [0.5]) == [(-math.inf, math.inf)]


def test_every_request_failed_is_a_failure_and_never_a_pass() -> None:
    failed = np.full(500, np.inf)
    found = judged(failed, 300.0)
    assert found.p_fail <= ALPHA
    assert found.p_pass == 1.0
    assert found.more_needed == 0
    assert intervals(failed, [0.99]) == [(math.inf, math.inf)]


def test_a_clear_case_is_decided_either_way() -> None:
    samples = independent(5000)
    p99 = math.log(100)
    good, bad = judged(samples, 1.5 * p99), judged(samples, 0.7 * p99)
    assert good.p_pass <= ALPHA < good.p_fail
    assert bad.p_fail <= ALPHA < bad.p_pass
    assert good.more_needed == bad.more_needed == 0


def drifting(n: int) -> Floats:
    """Never above 3, and slowly up and down, so that each sample says little that the one before it has not."""
    return 2 + np.sin(np.arange(n) / 300) + independent(n) / 1e6


def test_what_never_came_near_its_limit_passes_however_it_drifts() -> None:
    samples = drifting(1200)
    assert judged(samples, 3.5).p_pass > ALPHA, "so near, its drift makes it a few samples"
    far = gate(samples > 10, samples, 0.99, limit=10.0)
    assert far.far
    assert far.p_pass <= ALPHA
    assert far.more_needed == 0


def test_what_is_far_from_its_limit_says_how_few_more_would_do() -> None:
    samples = drifting(700)
    found = gate(samples > 10, samples, 0.99, limit=10.0)
    assert not found.far
    assert found.p_pass > ALPHA
    assert found.more_needed == 300


def test_one_that_came_near_is_enough_to_look_at_how_they_cluster() -> None:
    samples = drifting(1200)
    samples[600] = 5.0
    assert not gate(samples > 10, samples, 0.99, limit=10.0).far


def test_what_is_exactly_at_the_limit_says_that_no_number_would_decide_it() -> None:
    late = np.zeros(1000, np.bool_)
    late[::100] = True
    at = gate(late, None, 0.99)
    assert at.late == 10
    assert at.more_needed is None


def test_a_share_of_none_that_may_be_late_fails_by_one_and_is_never_proved() -> None:
    late = np.zeros(1000, np.bool_)
    assert gate(late, None, 1.0).p_pass == 1.0
    late[7] = True
    assert gate(late, None, 1.0).p_fail <= ALPHA
    with pytest.raises(ValueError, match="no number of requests"):
        sample_floor(1.0)


def test_as_many_more_as_it_says_decide_it() -> None:
    late = np.zeros(400, np.bool_)
    late[200:202] = True  # 0.5 %, of 1 % allowed
    few = gate(late, None, 0.99)
    assert few.more_needed
    assert few.p_pass > ALPHA
    times = -(-(few.n + few.more_needed) // few.n)
    more = gate(np.tile(late, times), None, 0.99)
    assert more.p_pass <= ALPHA


def test_independent_samples_have_no_design_effect_to_speak_of() -> None:
    assert max(design_effect(independent(20_000, seed)) for seed in range(20)) < 1.2


@pytest.mark.parametrize("n", [3000, 20_000])  # below and above the number of blocks
def test_the_design_effect_of_a_known_process_is_found(n: int) -> None:
    found = []
    for seed in range(30):
        steps = np.random.default_rng(seed).standard_normal(n)
        series = np.empty(n)
        series[0] = steps[0]
        for i in range(1, n):
            series[i] = 0.8 * series[i - 1] + 0.6 * steps[i]
        found.append(design_effect(series))
    assert float(np.mean(found)) == pytest.approx((1 + 0.8) / (1 - 0.8), rel=0.1)


@pytest.mark.parametrize("series", [[], [1.0], [1.0, 2.0, 1.0], [0.1] * 50])
def test_a_series_too_short_or_too_flat_has_none(series: list[float]) -> None:
    assert design_effect(np.array(series)) == 1.0


def test_failures_in_one_burst_are_one_event_and_not_many() -> None:
    spread, burst = np.zeros(5000, np.bool_), np.zeros(5000, np.bool_)
    spread[::250] = True
    burst[1000:1020] = True
    assert gate(spread, None, 0.99).p_pass <= ALPHA < gate(burst, None, 0.99).p_pass


def test_clusters_are_seen_in_the_body_before_the_tail_shows_any() -> None:
    samples = waits(3000, 0.8)
    limit = 10 * float(samples.max())
    assert judged(samples, limit).design_effect > 10
    assert judged(samples, limit).p_pass > ALPHA > judged(independent(3000), limit).p_pass


def test_a_busy_system_at_its_limit_seldom_passes_and_seldom_fails() -> None:
    limit = math.log(100) / (1 - 0.5)
    found = [judged(waits(2000, 0.5, seed), limit) for seed in range(300)]
    assert sum(each.p_pass <= ALPHA for each in found) <= 15
    assert sum(each.p_fail <= ALPHA for each in found) <= 15
    # The bare comparison, which this is there to replace, passes half of them.
    assert sum(each.share_late <= 0.01 for each in found) > 120


def test_intervals_hold_the_truth_as_often_as_they_say() -> None:
    truth = {p: -math.log(1 - p) / (1 - 0.5) for p in (0.5, 0.9, 0.99)}
    held = dict.fromkeys(truth, 0)
    for seed in range(200):
        found = intervals(waits(5000, 0.5, seed), truth)
        for p, (low, high) in zip(truth, found, strict=True):
            held[p] += low <= truth[p] <= high
    assert min(held.values()) >= 182


def test_an_interval_of_independent_samples_is_that_of_the_order_statistics() -> None:
    samples = np.random.default_rng(3).permutation(100).astype(np.float64)
    # By the binomial of 100 and 1/2, places 40 and 61 hold the median with 96 %.
    assert intervals(samples, [0.5]) == [(39.0, 60.0)]


def test_ends_among_failures_or_beyond_the_samples_are_infinite() -> None:
    samples = np.concatenate([independent(95), np.full(5, np.inf)])
    ((low, high),) = intervals(np.random.default_rng(1).permutation(samples), [0.95])
    assert math.isfinite(low)
    assert high == math.inf
    # Of two samples both lie below the p99 in 98 % of cases, and the median between them in half.
    assert intervals(np.array([1.0, 2.0]), [0.5, 0.99]) == [(-math.inf, math.inf), (2.0, math.inf)]


def test_the_mean_of_independent_samples_has_students_interval() -> None:
    series = np.array([1.0, -1.0] * 5)
    low, high = mean_interval(series)
    assert high == -low == pytest.approx(2.262157 / 3)  # t of 9 degrees of freedom; standard error 1/3
    assert mean_interval(np.ones(1)) == (-math.inf, math.inf)


def test_the_mean_of_a_correlated_series_is_known_less_well() -> None:
    series = waits(5000, 0.8)
    low, high = mean_interval(series)
    shuffled = mean_interval(np.random.default_rng(1).permutation(series))
    assert high - low > 4 * (shuffled[1] - shuffled[0])
