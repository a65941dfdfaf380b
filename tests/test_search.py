"""The search finds the load that a target can bear, from whatever state it is left in, and claims no more."""

import itertools
from collections.abc import Callable

import pytest

from loadtest.result import Searched, Trial
from loadtest.search import MOST_LEVELS, Next, Space, following, found

Oracle = Callable[[Next, int], Trial]


def space(start: float = 1.0, least: float = 1 / 16, most: float | None = None, *, whole: bool = False) -> Space:
    return Space(Searched(start=start, least=least, most=most, trials=3), whole)


def bears(truth: float, *, looks_tell: bool = True, beyond: float = 1.2) -> Oracle:
    """A target that keeps its SLOs up to ``truth``; without ``looks_tell`` a look is too short to prove it."""

    def play(asked: Next, number: int) -> Trial:
        kept = asked.load <= truth
        resolved = looks_tell or not asked.look
        outcome = "INCONCLUSIVE" if not resolved else "PASS" if kept else "FAIL"
        return Trial(
            load=asked.load,
            outcome=outcome,  # type: ignore[arg-type]
            resolved=resolved,
            nearness=0.5 if kept else beyond,
            levels=[number],
        )

    return play


def searched(oracle: Oracle, where: Space, trials: list[Trial] | None = None, seed: int = 1) -> list[Trial]:
    trials = [] if trials is None else [*trials]
    while (asked := following(trials, where, seed)) is not None:
        trials.append(oracle(asked, len(trials)))
        assert len(trials) <= MOST_LEVELS
    return trials


@pytest.mark.parametrize("looks_tell", [True, False])
@pytest.mark.parametrize("truth", [0.11, 0.98, 1.0, 3.7, 52.0, 800.0])
def test_the_bracket_holds_the_true_limit_and_is_one_step_wide(truth: float, looks_tell: bool) -> None:
    trials = searched(bears(truth, looks_tell=looks_tell), space())
    passed, beyond, _ = found(trials, space())
    assert passed is not None
    assert beyond is not None
    assert passed <= truth < beyond
    assert beyond / passed < 1.06
    assert len(trials) <= 26


@pytest.mark.parametrize("truth", [1, 2, 5, 16, 17, 100, 240])
def test_concurrency_is_searched_in_whole_numbers(truth: int) -> None:
    where = space(least=1, whole=True)
    trials = searched(bears(truth), where)
    assert all(trial.load == int(trial.load) for trial in trials)
    passed, beyond, _ = found(trials, where)
    assert passed is not None
    assert beyond is not None
    assert passed <= truth < beyond
    assert beyond - passed <= max(1, 0.06 * truth)


def test_one_lucky_trial_is_no_capacity() -> None:
    lucky = iter([True, False, False])

    def play(asked: Next, number: int) -> Trial:
        kept = asked.load <= 8 or (asked.load == 16 and next(lucky, False))
        return bears(asked.load if kept else 0.0)(asked, number)

    trials = searched(play, space())
    passed, beyond, _ = found(trials, space())
    assert passed == 8
    assert beyond is not None
    assert beyond < 9
    assert sum(trial.load == 8 for trial in trials) == 3


def test_a_load_counts_only_when_each_of_three_trials_passed() -> None:
    whole = searched(bears(20.0), space())
    for count in range(len(whole)):
        passed, _, _ = found(whole[:count], space())
        if passed is not None:
            own = [trial for trial in whole[:count] if trial.load == passed]
            assert len(own) >= 3
            assert all(trial.outcome == "PASS" for trial in own)


def test_a_start_that_is_too_high_is_left_downwards_to_the_least() -> None:
    trials = searched(bears(0.3), space(start=4.0, least=0.25))
    passed, beyond, _ = found(trials, space(start=4.0, least=0.25))
    assert passed is not None
    assert beyond is not None
    assert passed <= 0.3 < beyond


def test_that_nothing_passes_is_tried_at_the_least_load_as_often_as_a_pass_would_be() -> None:
    where = space(start=1.0, least=1.0)
    trials = searched(bears(0.5), where)
    assert [trial.load for trial in trials] == [1.0] * 3
    assert found(trials, where) == (None, 1.0, False)


def test_nothing_above_the_most_is_tried_and_nothing_is_said_of_it() -> None:
    where = space(most=10.0)
    trials = searched(bears(1e9), where)
    assert max(trial.load for trial in trials) == 10.0
    assert found(trials, where) == (10.0, None, False)


def test_a_look_at_the_most_load_that_proves_nothing_is_followed_by_trials_that_do() -> None:
    trials = searched(bears(1000.0, looks_tell=False), space(most=64))
    assert found(trials, space(most=64)) == (64, None, False)
    assert [trial.resolved for trial in trials if trial.load == 64] == [False, True, True, True]


def test_what_the_client_could_not_play_is_no_bound_and_ends_the_way_up() -> None:
    def play(asked: Next, number: int) -> Trial:
        if asked.load <= 20:
            return bears(1e9)(asked, number)
        return Trial(load=asked.load, outcome="INVALID", resolved=False, nearness=None, levels=[number])

    trials = searched(play, space())
    passed, beyond, _ = found(trials, space())
    assert passed is not None
    assert 19 < passed <= 20
    assert beyond is None


def test_one_invalid_trial_is_played_again() -> None:
    bad = iter([True])

    def play(asked: Next, number: int) -> Trial:
        if asked.load == 4 and next(bad, False):
            return Trial(load=4, outcome="INVALID", resolved=False, nearness=None, levels=[number])
        return bears(30.0)(asked, number)

    passed, _, _ = found(searched(play, space()), space())
    assert passed is not None
    assert passed > 28


def test_it_goes_on_from_any_point_as_if_it_had_not_been_interrupted() -> None:
    oracle = bears(37.0, looks_tell=False)
    whole = searched(oracle, space())
    for count in range(len(whole) + 1):
        assert searched(oracle, space(), whole[:count]) == whole


def test_both_ends_are_confirmed_in_an_order_drawn_by_the_seed() -> None:
    orders = {
        tuple(trial.load for trial in searched(bears(37.0), space(), seed=seed)[-6:]) for seed in range(8)
    }  # fmt: skip
    assert len(orders) > 1


def test_a_cliff_is_noticed_and_looked_at_closer() -> None:
    trials = searched(bears(20.0, beyond=9.0), space())
    passed, beyond, cliff = found(trials, space())
    assert cliff
    assert passed is not None
    assert beyond is not None
    assert passed <= 20 < beyond
    assert beyond / passed < 1.02


def test_a_search_that_gets_nowhere_ends() -> None:
    coin = itertools.cycle([True, False, True, True, False])

    def play(asked: Next, number: int) -> Trial:
        return bears(1e9 if next(coin) else 0.0)(asked, number)

    assert len(searched(play, space())) <= MOST_LEVELS


def test_the_end_of_an_extended_trial_is_counted_as_the_level_that_it_is() -> None:
    trials = [
        Trial(load=1.0 + i / 100, outcome="PASS", resolved=True, nearness=0.5, levels=[2 * i, 2 * i + 1])
        for i in range(MOST_LEVELS // 2)
    ]
    assert following(trials, space(), 1) is None
    assert following(trials[:-1], space(), 1) is not None


@pytest.mark.parametrize(("least", "most"), [(1234.5, 9876.5), (0.0123456, 0.0987654)])
def test_the_bounds_are_tried_as_they_were_given_and_nothing_beyond_them(least: float, most: float) -> None:
    where = space(start=least, least=least, most=most)
    loads = [trial.load for trial in searched(bears(1e9), where)]
    assert loads[0] == least
    assert max(loads) == most
    assert [trial.load for trial in searched(bears(0.0), where)] == [least] * 3
