import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadtest.tails import at_least, at_most, incomplete_beta, student


@settings(deadline=None)
@given(st.data(), st.integers(1, 200), st.floats(0.001, 0.999))
def test_tails_of_whole_numbers_are_the_sums_that_define_them(data: st.DataObject, n: int, share: float) -> None:
    k = data.draw(st.integers(0, n))
    terms = [math.comb(n, i) * share**i * (1 - share) ** (n - i) for i in range(n + 1)]
    assert at_most(k, n, share) == pytest.approx(math.fsum(terms[: k + 1]), abs=1e-10)
    assert at_least(k, n, share) == pytest.approx(math.fsum(terms[k:]), abs=1e-10)


def test_tails_of_large_counts_are_right_far_out() -> None:
    # P(Poisson(100) ≤ 60) and the same of the binomial are within a percent of each other at this n.
    poisson = math.fsum(math.exp(-100 + i * math.log(100) - math.lgamma(i + 1)) for i in range(61))
    assert at_most(60, 10**7, 1e-5) == pytest.approx(poisson, rel=0.01)
    assert at_least(0, 10, 0.5) == at_most(10, 10, 0.5) == 1.0


@settings(deadline=None)
@given(st.floats(0.1, 1e6), st.floats(0.1, 1e6), st.integers(0, 1024))
def test_incomplete_beta_is_a_share_and_has_its_mirror(a: float, b: float, part: int) -> None:
    x = part / 1024  # so that 1 − x is exact
    value = incomplete_beta(a, b, x)
    assert 0 <= value <= 1
    assert value + incomplete_beta(b, a, 1 - x) == pytest.approx(1, abs=1e-8)


@pytest.mark.parametrize(("a", "b", "x"), [(0, 1, 0.5), (1, -1, 0.5), (1, 1, 1.1), (1, 1, math.nan)])
def test_what_has_no_beta_is_refused(a: float, b: float, x: float) -> None:
    with pytest.raises(ValueError, match="incomplete beta"):
        incomplete_beta(a, b, x)


@pytest.mark.parametrize(
    ("freedom", "expected"), [(1, 12.7062), (2, 4.30265), (19, 2.093024), (1e7, 1.959964)]
)  # tables of Student's t, two-sided 95 %
def test_student_is_as_in_the_tables(freedom: float, expected: float) -> None:
    assert student(0.95, freedom) == pytest.approx(expected, rel=1e-5)
