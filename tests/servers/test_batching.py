"""Who may start when: the four policies, without a clock or a model."""

import pytest

from servers.batching import SCHEDULERS, STATIC_PATIENCE_S, Admission, Batching


def test_continuous_fills_every_free_place_at_once() -> None:
    batching = Batching("continuous", 4)
    assert batching.admit(waiting=9, oldest_wait_s=0.0, running=0) == Admission(4)
    assert batching.admit(waiting=9, oldest_wait_s=0.0, running=3) == Admission(1)
    assert batching.admit(waiting=1, oldest_wait_s=0.0, running=2) == Admission(1)
    assert batching.admit(waiting=9, oldest_wait_s=9.0, running=4) == Admission(0)


def test_dynamic_starts_when_full_or_when_the_first_has_waited_the_window() -> None:
    batching = Batching("dynamic", 4, timeout_ms=50)
    assert batching.admit(waiting=4, oldest_wait_s=0.0, running=0) == Admission(4)
    assert batching.admit(waiting=7, oldest_wait_s=0.0, running=0) == Admission(4)
    assert batching.admit(waiting=2, oldest_wait_s=0.05, running=0) == Admission(2)
    early = batching.admit(waiting=2, oldest_wait_s=0.02, running=0)
    assert early.count == 0
    assert early.retry_after_s == pytest.approx(0.03)


@pytest.mark.parametrize("scheduler", ["dynamic", "static"])
def test_nobody_joins_a_closed_batch(scheduler: str) -> None:
    batching = Batching(scheduler, 4, timeout_ms=0)  # type: ignore[arg-type]
    assert batching.admit(waiting=9, oldest_wait_s=60.0, running=1) == Admission(0)


def test_static_waits_for_a_full_batch_but_not_for_ever() -> None:
    batching = Batching("static", 4, timeout_ms=50)
    assert batching.admit(waiting=4, oldest_wait_s=0.0, running=0) == Admission(4)
    early = batching.admit(waiting=3, oldest_wait_s=0.4, running=0)
    assert early.count == 0
    assert early.retry_after_s == pytest.approx(STATIC_PATIENCE_S - 0.4)
    assert batching.admit(waiting=3, oldest_wait_s=STATIC_PATIENCE_S, running=0) == Admission(3)


def test_a_longer_timeout_makes_static_more_patient() -> None:
    batching = Batching("static", 4, timeout_ms=3000)
    assert batching.admit(waiting=3, oldest_wait_s=2.0, running=0).count == 0
    assert batching.admit(waiting=3, oldest_wait_s=3.0, running=0).count == 3


def test_none_runs_one_at_a_time_whatever_the_size() -> None:
    batching = Batching("none", 16)
    assert batching.batch_size == 1
    assert batching.admit(waiting=5, oldest_wait_s=0.0, running=0) == Admission(1)
    assert batching.admit(waiting=5, oldest_wait_s=9.0, running=1) == Admission(0)


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_nothing_starts_when_nothing_waits(scheduler: str) -> None:
    assert Batching(scheduler, 4).admit(waiting=0, oldest_wait_s=0.0, running=0) == Admission(0)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("fifo", 4, 50), "continuous, dynamic, static, none"),
        (("continuous", 0, 50), "at least 1"),
        (("dynamic", 4, -1), "between 0 and 60000"),
        (("dynamic", 4, float("nan")), "between 0 and 60000"),
    ],
)
def test_impossible_settings_are_refused(arguments: tuple[str, int, float], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Batching(*arguments)  # type: ignore[arg-type]
