import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.schedule import Load, arrivals, share, stream

POISSON = Load("poisson", rate_per_s=200.0)
CONSTANT = Load("constant", rate_per_s=4.0)


def test_constant_arrivals_stand_on_a_grid_that_starts_at_once() -> None:
    assert list(arrivals(CONSTANT, 1, 0, 1.0, None)) == [0.0, 0.25, 0.5, 0.75]


def test_poisson_gaps_are_exponential() -> None:
    times = list(arrivals(POISSON, 7, 0, None, 20_000))
    gaps = sorted(later - earlier for earlier, later in itertools.pairwise([0.0, *times]))
    mean = sum(gaps) / len(gaps)
    assert mean == pytest.approx(1 / 200, rel=0.03)
    steps = (abs((i + 1) / len(gaps) - (1 - math.exp(-gap * 200))) for i, gap in enumerate(gaps))
    assert max(steps) < 1.63 / math.sqrt(len(gaps))  # Kolmogorov–Smirnov at 1 %


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


@given(st.integers(0, 10_000), st.integers(1, 64))
def test_shares_add_up_and_differ_by_one_at_most(total: int, workers: int) -> None:
    shares = [share(total, worker, workers) for worker in range(workers)]
    assert sum(shares) == total
    assert max(shares) - min(shares) <= 1


def test_streams_of_different_purpose_are_independent() -> None:
    assert stream(1, "a", 2).random() != stream(1, "a", 3).random()
    assert stream(1, "a", 2).random() == stream(1, "a", 2).random()
