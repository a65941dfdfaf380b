"""Looking each second: in a thread of its own, at both ends, and never longer than a run can bear."""

import threading
import time
from collections.abc import Callable

import pytest

from loadtest.telemetry import watch
from loadtest.telemetry.watch import Seen, Unseen, Watch


def kept(at_ns: int, seen: Seen) -> None:
    """Where nobody asks."""


def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.001)


def test_it_looks_at_the_beginning_in_between_and_at_the_end() -> None:
    count = 0

    def look() -> Seen:
        nonlocal count
        count += 1
        return {"x": {"n": float(count)}}

    before = time.perf_counter_ns()
    one = Watch(look, kept, every_s=0.01)
    one.begin()
    assert one.looks, "the first look is that of the beginning"
    until(lambda: count > 3)
    one.end()
    assert [seen["x"]["n"] for _, seen in one.looks] == [float(n) for n in range(1, count + 1)]
    stamps = [at for at, _ in one.looks]
    assert before < stamps[0]
    assert stamps == sorted(stamps)
    assert stamps[-1] < time.perf_counter_ns()
    assert one.missed == 0


def test_it_looks_from_a_thread_of_its_own() -> None:
    threads: list[int] = []

    def look() -> Seen:
        threads.append(threading.get_ident())
        return {}

    one = Watch(look, kept)
    one.begin()
    one.end()
    assert threading.get_ident() not in threads
    assert len(threads) == 2


def test_why_nothing_was_seen_is_told_once() -> None:
    def look() -> Seen:
        raise Unseen(f"gone {time.monotonic()}")

    one = Watch(look, kept, every_s=0.001)
    one.begin()
    until(lambda: one.missed > 3)
    one.end()
    assert one.looks == []
    assert one.why is not None
    assert one.why.count("gone") == 1


def test_what_never_answered_is_not_asked_once_more_at_the_end() -> None:
    asked = 0

    def look() -> Seen:
        nonlocal asked
        asked += 1
        raise Unseen("dead")

    one = Watch(look, kept)
    one.begin()
    one.end()
    assert asked == 1


def test_once_more_after_the_end_is_one_look_more() -> None:
    one = Watch(lambda: {"x": {"n": 1.0}}, kept, every_s=0.001)
    one.begin()
    one.end()
    count = len(one.looks)
    one.again()
    assert len(one.looks) == count + 1


def test_hours_of_looks_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "_MOST", 8)
    count = 0

    def look() -> Seen:
        nonlocal count
        count += 1
        return {"x": {"n": float(count)}}

    one = Watch(look, kept, every_s=0.0005)
    one.begin()
    until(lambda: count > 30)
    one.end()
    assert len(one.looks) <= 9
    numbers = [seen["x"]["n"] for _, seen in one.looks]
    assert (numbers[0], numbers[-1]) == (1, count), "a counter's growth is that of the whole level all the same"
