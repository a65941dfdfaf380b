"""A worker of a cluster as it is reached from here, with hours between its calls."""

import asyncio
import queue
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from loadtest.engine import cluster_worker, remote
from loadtest.engine.cluster_worker import Facts, Reply
from loadtest.engine.journal import Journal
from loadtest.engine.orders import Done, Prepare, Ready
from loadtest.engine.remote import TRIPS, Remote, Roll
from loadtest.level import WorkerHealth
from loadtest.schedule import Load
from tests.engine.playing import level, wiring

HOUR_NS = 3_600_000_000_000
TRIP_NS = 2_000_000
AHEAD_NS = 5_000_000_000
DONE = Done(WorkerHealth(0, 0.1, None, None, 0, 0, 0), 0, 0.0, 0.0, None)


class Far:
    """Dask's client, and behind it a worker whose clock is 5 s ahead and 50 µs a second too fast; its level is an hour.

    A call takes 2 ms, of which the way there is a fourth.
    """

    status = "running"

    def __init__(self) -> None:
        self.now_ns = 7 * HOUR_NS
        self._calls = 0

    def clock(self) -> int:
        return self.now_ns

    def submit(self, *_: Any, **__: Any) -> None:
        """The task has begun at once."""

    async def run(self, function: Callable[..., Any], *_: Any, workers: list[str]) -> dict[str, Any]:
        if function is cluster_worker.leave:
            return {workers[0]: None}
        self.now_ns += TRIP_NS // 4
        stamp = AHEAD_NS + self.now_ns + self.now_ns // 20_000
        self.now_ns += TRIP_NS - TRIP_NS // 4
        self._calls += 1
        said: list[object] = [Ready()] if self._calls == 1 else []
        if self._calls == TRIPS + 5:
            self.now_ns += HOUR_NS
        if self._calls == 3 * TRIPS:
            said = [DONE]
        return {workers[0]: Reply(stamp, said, zlib.compress(b""), 0, False)}


async def test_a_clock_is_known_before_a_level_of_an_hour_and_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    far = Far()
    monkeypatch.setattr(remote, "perf_counter_ns", far.clock)
    worker = Remote(far, Roll(far), 0, "tcp://far:1", Facts("far", {}, str(tmp_path)), 5.0)
    journal = Journal(str(tmp_path / "all.jsonl"))
    heard: queue.SimpleQueue[tuple[int, object]] = queue.SimpleQueue()
    order = Prepare(wiring("http://far:1", tmp_path / "all.jsonl"), level(Load("closed", concurrency=1)), 0, 1)
    before_ns = AHEAD_NS + 7 * HOUR_NS // 20_000
    await worker.attend(order, "token", journal, heard, 0.0, asyncio.Semaphore(1))
    journal.close()
    assert [heard.get_nowait() for _ in range(3)] == [(0, Ready()), (0, DONE), (0, None)]
    assert abs(worker.clock.ns - before_ns) <= worker.clock.error_ns + 10_000 < TRIP_NS
    assert abs(worker.clock_after.ns - before_ns - 180_000_000) <= worker.clock_after.error_ns + 10_000 < TRIP_NS
