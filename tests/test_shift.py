"""How sure a change is: by intervals, by runs, and how many figures are looked at."""

import math
from fractions import Fraction

import numpy as np
import pytest

from loadtest.shift import (
    ALPHA,
    Claim,
    Estimate,
    Shift,
    decide,
    of_difference,
    of_mean,
    of_quantile,
    of_ratio,
    of_runs,
)

LIMIT = math.log(1.05)


def claim(by: float, error: float) -> Claim:
    return Claim(Shift(by, error, error), LIMIT, LIMIT)


def test_a_shift_has_the_interval_and_the_chance_of_the_normal_distribution() -> None:
    low, high = Shift(0.1, 0.02, 0.05).ends()
    assert (low, high) == pytest.approx((0.1 - 1.96 * 0.02, 0.1 + 1.96 * 0.05), abs=1e-4)
    assert Shift(1.96, 1.0, 1.0).chance() == pytest.approx(0.025, abs=1e-4)
    assert Shift(-1.96, 1.0, 1.0).chance() == pytest.approx(0.975, abs=1e-4)
    assert Shift(0.0, math.inf, math.inf).chance() == 0.5
    assert Shift(0.0, 0.0, 0.0).chance() == 1.0
    assert Shift(0.1, 0.0, 0.0).chance() == 0.0


def test_few_runs_are_less_sure_than_many() -> None:
    """Student's: 5 % of t with 8 degrees of freedom lies beyond 2.306 each way."""
    assert Shift(2.306, 1.0, 1.0, 8.0).chance() == pytest.approx(0.025, abs=1e-4)
    assert Shift(0.0, 1.0, 1.0, 8.0).ends()[1] == pytest.approx(2.306, abs=1e-3)


def test_what_is_detectable_is_found_four_times_in_five() -> None:
    error = 0.03
    true = Shift(0.0, error, error).detectable(ALPHA)
    found = np.random.default_rng(1).normal(true, error, 4000)
    assert np.mean([Shift(by, error, error).chance() <= ALPHA for by in found]) == pytest.approx(0.8, abs=0.02)


def test_a_regression_is_worse_for_certain_and_not_for_certain_within_what_is_tolerated() -> None:
    assert decide([claim(0.10, 0.01)]) == ["FAIL"]
    assert decide([claim(0.04, 0.01)]) == ["FAIL"]  # worse for certain, perhaps by more than 5 %
    assert decide([claim(0.03, 0.005)]) == ["PASS"]  # worse for certain, by less
    assert decide([claim(0.0, 0.01)]) == ["PASS"]
    assert decide([claim(-0.5, 0.01)]) == ["PASS"]
    assert decide([claim(0.0, 0.1)]) == ["INCONCLUSIVE"]
    assert decide([claim(0.1, math.inf)]) == ["INCONCLUSIVE"]


def test_that_failures_grew_is_never_forgiven() -> None:
    assert decide([Claim(Shift(0.002, 0.0005, 0.0005), 0.01, 0.0)]) == ["FAIL"]
    assert decide([Claim(Shift(0.0, 0.0, 0.0005), 0.01, 0.0)]) == ["PASS"]
    assert decide([Claim(Shift(0.0, 0.0, 0.02), 0.01, 0.0)]) == ["INCONCLUSIVE"]


def test_the_more_figures_the_surer_each_has_to_be() -> None:
    doubtful = claim(0.05, 0.0225)  # 1.3 % by chance
    assert decide([doubtful]) == ["FAIL"]
    assert decide([doubtful, *[claim(0.0, 0.1)] * 3]) == ["INCONCLUSIVE"] * 4
    # What is certain by itself does not count against the others.
    assert decide([doubtful, claim(1.0, 0.01)]) == ["FAIL", "FAIL"]


def test_of_runs_is_welchs() -> None:
    base, candidate = [100.0, 104.0, 98.0, 102.0], [110.0, 118.0, 112.0, 125.0, 108.0]
    shift = of_runs(base, candidate)
    logs = [np.log(base), np.log(candidate)]
    assert shift.by == pytest.approx(logs[1].mean() - logs[0].mean())
    assert shift.down == shift.up == pytest.approx(math.sqrt(logs[0].var(ddof=1) / 4 + logs[1].var(ddof=1) / 5))
    assert 3 < shift.freedom < 7
    assert of_runs([5.0] * 4, [5.0] * 4).ends() == (0.0, 0.0)


def test_of_ratio_is_as_unsure_as_both_sides_together() -> None:
    shift = of_ratio(Estimate(100.0, 80.0, 110.0), Estimate(120.0, 100.0, 180.0))
    low, high = shift.ends()
    assert shift.by == pytest.approx(math.log(1.2))
    assert low == pytest.approx(math.log(1.2) - math.hypot(math.log(1.2), math.log(1.1)), rel=1e-3)
    assert high == pytest.approx(math.log(1.2) + math.hypot(math.log(1.5), math.log(1.25)), rel=1e-3)


def test_an_unknown_end_leaves_that_way_open() -> None:
    low, high = of_ratio(Estimate(100.0, 90.0, 110.0), Estimate(120.0, 100.0, math.inf)).ends()
    assert math.isfinite(low)
    assert high == math.inf
    assert of_ratio(Estimate(100.0, -math.inf, 110.0), Estimate(120.0, 100.0, 130.0)).ends()[1] == math.inf


def test_a_difference_of_shares_begins_at_none() -> None:
    shift = of_difference(Estimate(0.0, 0.0, 0.001), Estimate(0.01, 0.007, 0.014))
    assert shift.by == pytest.approx(0.01)
    assert decide([Claim(shift, 0.01, 0.0)]) == ["FAIL"]


def test_estimates_hold_what_they_are_of() -> None:
    rng = np.random.default_rng(2)
    samples = rng.exponential(1.0, 5000)
    p99 = of_quantile(samples, Fraction(99, 100))
    assert p99.low < p99.value < p99.high
    assert p99.value in samples
    failing = np.where(rng.random(5000) < 0.02, np.inf, samples)
    assert of_quantile(failing, Fraction(99, 100)).value == math.inf
    series = rng.normal(50.0, 5.0, 200)
    mean = of_mean(series, 50.0)
    assert mean.low < 50.0 < mean.high
