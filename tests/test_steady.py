import numpy as np
import pytest

from loadtest.steady import drifting, steady_from


def test_a_warm_up_is_found_where_it_ends() -> None:
    found = []
    for seed in range(50):
        series = np.random.default_rng(seed).exponential(1.0, 2000)
        series[:300] += 10 * np.exp(-np.arange(300) / 60)
        found.append(steady_from(series))
    assert all(each is not None and each <= 500 for each in found)
    assert 120 <= sorted(each or 0 for each in found)[25] <= 320


def test_what_was_steady_from_the_start_loses_little() -> None:
    found = [steady_from(np.random.default_rng(seed).exponential(1.0, 2000)) for seed in range(50)]
    assert sorted(each or 0 for each in found)[25] <= 100


def test_large_values_do_not_drown_their_differences() -> None:
    series = np.random.default_rng(1).exponential(1.0, 1000)
    series[:100] += 5
    assert steady_from(series + 1e9) == steady_from(series)


def test_what_never_settles_or_is_too_short_has_no_start() -> None:
    assert steady_from(np.arange(1000.0)) is None
    assert steady_from(np.ones(49)) is None


def served(load: float, n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """When requests became due and were done at one server under Poisson arrivals."""
    rng = np.random.default_rng(seed)
    due, service = np.cumsum(rng.exponential(1 / load, n)), rng.exponential(1.0, n)
    work = np.cumsum(service)
    return due, work + np.maximum.accumulate(due - work + service)


@pytest.mark.parametrize("load", [0.5, 0.9])
def test_a_queue_that_only_fluctuates_does_not_drift(load: float) -> None:
    assert sum(drifting(*served(load, 2000, seed), 0.0, 2000 / load) for seed in range(200)) <= 2


def test_a_tenth_more_than_it_can_do_is_seen_and_order_does_not_matter() -> None:
    for seed in range(20):
        due, done = served(1.1, 8000, seed)
        shuffled = np.random.default_rng(seed).permutation(8000)
        assert drifting(due, done, float(due[0]), float(due[-1]))
        assert drifting(due[shuffled], done[shuffled], float(due[0]), float(due[-1]))


def test_requests_that_never_ended_are_waiting() -> None:
    due = np.arange(1000.0)
    done = due + 1
    assert not drifting(due, done, 0.0, 1000.0)
    done[::4] = np.nan
    assert drifting(due, done, 0.0, 1000.0)


def test_answers_that_take_long_are_not_a_queue() -> None:
    for seed in range(50):
        rng = np.random.default_rng(seed)
        due = np.sort(rng.uniform(0, 30, 600))
        assert not drifting(due, due + 10 * np.exp(0.2 * rng.standard_normal(600)), 3.0, 30.0)


def test_a_rising_rate_is_not_a_queue() -> None:
    due = 1000 * np.sqrt(np.linspace(0, 1, 20_000))  # the rate rises from nothing
    assert not drifting(due, due + 50, 100.0, 1000.0)
