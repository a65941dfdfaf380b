import pytest

from loadtest.engine import local
from loadtest.engine.local import check_budget, workers_for
from loadtest.errors import UsageError
from loadtest.level import Level
from loadtest.schedule import Load
from loadtest.workload.lengths import Length
from loadtest.workload.model import Workload


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
