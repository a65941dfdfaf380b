import multiprocessing
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from loadtest.engine import local
from loadtest.engine.crew import Interrupts
from loadtest.engine.local import LocalEngine, check_budget, workers_for
from loadtest.engine.orders import Snapshot
from loadtest.engine.worker import _Worker
from loadtest.errors import UsageError
from loadtest.level import Level
from loadtest.schedule import Load
from loadtest.workload.lengths import Length
from loadtest.workload.model import Workload
from tests.engine import playing
from tests.engine.clustered import answering


def level(load: Load) -> Level:
    return Level(0, "", load, None, (Workload(Length(128, 128), Length(100, 100)),), 10.0, None, 0.0, 10.0)


@pytest.mark.parametrize(
    ("load", "workers"),
    [
        (Load("closed", concurrency=1), 1),
        (Load("closed", concurrency=1000), 1),
        (Load("closed", concurrency=1001), 2),
        (Load("closed", concurrency=100_000), 7),
        (Load("poisson", rate_per_s=500.0), 1),
        (Load("poisson", rate_per_s=1001.0), 3),
        (Load("constant", rate_per_s=0.1), 1),
    ],
    ids=str,
)
def test_a_run_takes_the_workers_that_its_heaviest_level_needs_and_leaves_a_core(
    load: Load, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "usable_cores", lambda: 8)
    assert workers_for([level(Load("closed", concurrency=1)), level(load)]) == workers
    monkeypatch.setattr(local, "usable_cores", lambda: 1)
    assert workers_for([level(load)]) == 1


def test_more_connections_than_the_machine_has_are_refused_before_anything_is_sent() -> None:
    check_budget([level(Load("closed", concurrency=1))], 1)
    with pytest.raises(UsageError, match=r"--concurrency 1000000 asks for more connections .*; "):
        check_budget([level(Load("closed", concurrency=1_000_000))], 1)


@pytest.mark.skipif(sys.platform == "win32", reason="its pipes cannot be asked whether they have room")
async def test_a_parent_that_does_not_listen_does_not_hold_up_the_worker() -> None:
    ours, theirs = multiprocessing.get_context().Pipe()
    worker = _Worker(theirs)
    said = Snapshot(True, 1, 2, 3, 4, {n: n for n in range(1000)}, {}, {}, {})
    for _ in range(1000):  # many times what a pipe holds
        worker._tell(said)
    heard = 0
    while ours.poll():
        assert ours.recv() == said
        heard += 1
    assert 0 < heard < 1000, "whole ones, and the rest left out"
    worker._tell(said)
    assert ours.recv() == said
    ours.close()
    theirs.close()


@pytest.mark.e2e
@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
def test_nothing_is_waited_for_of_a_worker_that_is_gone(tmp_path: Path) -> None:
    after: list[Sequence[Snapshot]] = []
    with answering() as url, LocalEngine(2) as engine:

        def see(_at_s: float, workers: Sequence[Snapshot]) -> None:
            if len(workers) < 2:
                return
            if not after:
                os.kill(engine._processes[1].pid or 0, signal.SIGKILL)
            after.append(workers)

        asked = playing.level(Load("closed", concurrency=4), duration_s=1.5)
        went = engine.play(asked, playing.wiring(url, tmp_path / "a.jsonl"), Interrupts(), see)
    assert went.end == "worker_lost"
    waited_for = [(alive.turned, gone.turned > 10**6, gone.in_flight) for alive, gone in after]
    assert (0, True, 0) in waited_for, "while the other one plays, no file of the journal waits for it"
