import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadtest.stats import PERCENTILES, Due, distribution, due_distribution, rank

finite = st.floats(min_value=-1e9, max_value=1e9)


@pytest.mark.parametrize(
    ("name", "n", "expected"),
    [
        ("p99", 100, 99),  # the float ceil(0.99 * 100) is a trap on some roads
        ("p99", 101, 100),
        ("p99", 99, 99),
        ("p90", 10, 9),
        ("p95", 20, 19),
        ("p50", 1, 1),
        ("p50", 2, 1),
        ("p50", 3, 2),
        ("p999", 1000, 999),
        ("p999", 999, 999),
        ("p999", 1_000_000, 999_000),
    ],
)
def test_rank_is_exact(name: str, n: int, expected: int) -> None:
    assert rank(PERCENTILES[name], n) == expected


@settings(deadline=None)
@given(st.fractions(min_value=Fraction(1, 1000), max_value=1), st.integers(1, 10**9))
def test_rank_is_the_smallest_that_covers_p(p: Fraction, n: int) -> None:
    k = rank(p, n)
    assert 1 <= k <= n
    assert k >= p * n > k - 1


@pytest.mark.parametrize(("p", "n"), [(Fraction(0), 5), (Fraction(3, 2), 5), (Fraction(1, 2), 0)])
def test_rank_of_nothing_is_refused(p: Fraction, n: int) -> None:
    with pytest.raises(ValueError, match="no percentile"):
        rank(p, n)


@settings(deadline=None)
@given(st.lists(finite, min_size=1))
def test_percentiles_are_samples_in_order_and_never_above_the_largest(values: list[float]) -> None:
    dist = distribution(np.array(values))
    at = [dist.min, dist.p50, dist.p90, dist.p95, dist.p99, dist.p999, dist.max]
    assert at == sorted(at)  # type: ignore[type-var]
    assert all(value in values for value in at)
    assert dist.min <= dist.mean <= dist.max  # type: ignore[operator]
    assert dist.n == len(values)


def test_mean_of_equal_samples_is_not_past_them() -> None:
    assert distribution(np.array([0.1] * 3)).mean == 0.1


def test_nothing_measured_is_null_and_not_zero() -> None:
    nothing = distribution(np.array([]))
    assert nothing.n == 0
    assert nothing.mean is nothing.p50 is nothing.max is None
    assert due_distribution(np.array([]), 0) == Due(n=0, failed=0)


def test_failures_sit_in_the_tail() -> None:
    due = due_distribution(np.arange(1.0, 99.0), failed=2)  # 98 measured, 2 failed
    assert (due.n, due.failed) == (100, 2)
    assert (due.p50, due.p90, due.p95) == (50.0, 90.0, 95.0)
    assert due.p99 is None
    assert due.p999 is None
    assert due.unbounded == ["p99", "p999"]


def test_one_failure_in_a_hundred_leaves_p99_finite() -> None:
    due = due_distribution(np.arange(1.0, 100.0), failed=1)
    assert due.p99 == 99.0
    assert due.unbounded == ["p999"]


def test_when_all_failed_nothing_is_bounded() -> None:
    assert due_distribution(np.array([]), 3).unbounded == list(PERCENTILES)


@settings(deadline=None)
@given(st.lists(finite), st.integers(0, 50))
def test_due_is_the_distribution_with_infinities_in_it(values: list[float], failed: int) -> None:
    due = due_distribution(np.array(values), failed)
    everything = sorted(values) + [math.inf] * failed
    for name, p in PERCENTILES.items():
        expected = everything[rank(p, len(everything)) - 1] if everything else None
        assert getattr(due, name) == (None if expected == math.inf else expected)
        assert (name in due.unbounded) == (expected == math.inf)
