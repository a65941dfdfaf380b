"""Levels on the workers of a Dask cluster: real processes, killed, stopped and cut off by their ids."""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from loadtest import keeping
from loadtest.engine import cluster_worker, remote
from loadtest.engine.cluster import ClusterEngine
from loadtest.engine.crew import Interrupts
from loadtest.engine.orders import Prepare, Renew, Start, Turn, Wiring
from loadtest.errors import ResultError, TargetError, UsageError, WorkerLost
from loadtest.keeping import Keeper
from loadtest.level import Level, LevelRun
from loadtest.records import JOURNAL, Mode, Record, read, records
from loadtest.schedule import Load
from loadtest.wire.tls import Tls
from loadtest.workload.distribution import Distribution
from loadtest.workload.lengths import Length
from loadtest.workload.model import Conversation, Data, Workload
from loadtest.workload.rows import prepare
from tests.engine import playing
from tests.engine.clustered import Cluster, answering, clustered
from tests.engine.playing import level, wiring

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(sys.platform != "linux", reason="signals, /proc and network namespaces"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # dask's, of sockets to workers that were killed
]
POISSON = Load("poisson", rate_per_s=40.0)
SILENT_S = 1.5
THINK = Distribution("exponential", (0.01,))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with clustered(tmp_path_factory.mktemp("cluster"), 3) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with answering() as url:
        yield url


def go(
    engine: ClusterEngine, asked: Level, told: Wiring, seen: Callable[..., str | None] = lambda *_: None
) -> LevelRun:
    return engine.play(asked, told, Interrupts(), seen)


def of(journal: Path) -> list[Record]:
    return sorted(read(journal)[0], key=lambda record: record.id)


def said(record: Record) -> tuple[object, ...]:
    """What the plan says of a request."""
    return record.id, record.prompt_hash, record.session, record.turn


def once(action: Callable[[], object]) -> Callable[..., str | None]:
    """What is shown to the user's eyes: the first time that requests have ended, something happens."""
    done: list[object] = []

    def see(_at_s: float, workers: Any) -> None:
        if not done and sum(each.ok for each in workers) > 20:
            done.append(action())

    return see


TALK = Workload(Length(20, 30), Length(2, 5), conversation=Conversation(Length(1, 3), THINK, history="canned"))
PLANS = [
    level(Load("poisson", rate_per_s=200.0), requests=120),
    level(Load("gamma", rate_per_s=100.0, burstiness=0.5), TALK, requests=60),
    level(Load("closed", concurrency=4), requests=40),
]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> list[list[Record]]:
    """What one process sends of each of these plans."""
    return [playing.play(each, tmp_path_factory.mktemp("alone")).load for each in PLANS]


@pytest.mark.parametrize("workers", [1, 3])
def test_all_workers_together_send_what_one_process_would_and_when(
    workers: int, cluster: Cluster, url: str, alone: list[list[Record]], tmp_path: Path
) -> None:
    with ClusterEngine(cluster.address, workers) as engine:
        for number, (each, expected) in enumerate(zip(PLANS, alone, strict=True)):
            journal = tmp_path / f"{number}.jsonl"
            went = go(engine, each, wiring(url, journal))
            assert went.end == "completed"
            assert [worker.worker for worker in went.workers] == [*range(workers)]
            assert went.scheduled == len(expected)
            assert [*map(said, of(journal))] == [*map(said, expected)]
            if number == 0:
                assert [r.intended_ms for r in of(journal)] == [r.intended_ms for r in expected]
            assert {record.worker for record in of(journal)} == {*range(workers)}
            # All clocks are this host's here, so what is found is the error of the estimate.
            for worker in went.workers:
                assert worker.clock_error_ms is not None
                assert abs(worker.clock_offset_ms or 0.0) <= worker.clock_error_ms
                assert worker.clock_drift_error_ms is not None
                assert abs(worker.clock_drift_ms or 0.0) <= worker.clock_drift_error_ms


class Long:
    """A level whose journals, here and there, are as those of hours: their files are full within a second."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, mode: Mode = "all") -> None:
        monkeypatch.setattr(keeping, "PART_BYTES", 20_000)
        monkeypatch.setattr(keeping, "_LOOK_S", 0.1)
        monkeypatch.setattr(keeping, "_FIRST_S", 0.0)
        monkeypatch.setattr(remote, "_PART", 4_000)
        self.keeper = Keeper(folder, mode, 7)
        self.folder = folder
        self.fell = 0
        self._news: list[Turn] = []

    def play(self, engine: ClusterEngine, asked: Level, url: str, seen: Callable[..., str | None]) -> LevelRun:
        there = [Path(worker.facts.folder) for worker in engine._workers]
        self.keeper.begin()
        sizes: dict[Path, int] = {}

        def see(at_s: float, workers: Any) -> str | None:
            for folder in there:
                before, now = sizes.get(folder, 0), sum(map(_size, folder.glob("*.jsonl*")))
                sizes[folder] = now
                self.fell += now < before
            assert len({each.turned for each in workers}) == 1, "nobody waits for one that was lost"
            if self.keeper.look(min(each.turned for each in workers)):
                self._news.append(Turn(self.keeper.turned))
            return seen(at_s, workers)

        def news() -> Turn | None:
            return self._news.pop() if self._news else None

        went = engine.play(asked, wiring(url, self.folder / JOURNAL), Interrupts(), see, news)
        self.keeper.end()
        return went


def _size(path: Path) -> int:
    with contextlib.suppress(FileNotFoundError):  # just dropped
        return path.stat().st_size
    return 0


@pytest.mark.parametrize("mode", ["all", "sampled"])
def test_of_a_long_level_no_disk_holds_more_than_is_to_stay(
    cluster: Cluster, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: Mode
) -> None:
    long = Long(tmp_path, monkeypatch, mode)
    with ClusterEngine(cluster.address, 2) as engine:
        went = long.play(engine, level(Load("closed", concurrency=8), requests=1200), url, lambda *_: None)
    assert went.end == "completed"
    assert sorted(record.id for record in long.keeper.requests) == [*range(1200)], "each once"
    left = sorted(record.id for record in records(tmp_path))
    assert left == [*range(1200)] if mode == "all" else 100 < len(left) < 300
    assert long.keeper.turned > 5
    assert long.fell, "what has come here is dropped there"


def test_files_of_a_scenario_are_sent_to_the_workers_and_removed_from_them(
    cluster: Cluster, url: str, tmp_path: Path
) -> None:
    corpus, rows = tmp_path / "corpus.txt", tmp_path / "rows.txt"
    corpus.write_text("several words that stand in no other text, nor in this order. " * 50, "utf-8")
    rows.write_text("one\ntwo\nthree\n", "utf-8")
    data = Data(str(rows), "text", order="file")
    asked = level(
        Load("closed", concurrency=2),
        Workload(Length(20, 20), Length(2, 2), corpus=str(corpus)),
        Workload(None, Length(2, 2), data=data, rows=prepare(data, tmp_path, len, conversation=False)),
        requests=30,
    )
    (tmp_path / "alone").mkdir()
    alone = playing.play(asked, tmp_path / "alone")
    with ClusterEngine(cluster.address, 2) as engine:
        folders = [Path(worker.facts.folder) for worker in engine._workers]
        go(engine, asked, wiring(url, tmp_path / "all.jsonl"))
        for folder in folders:
            assert any(path.name.endswith("corpus.txt") for path in folder.iterdir())
        gone = Tls(ca=str(tmp_path / "gone.pem"))
        https = wiring(url.replace("http", "https"), tmp_path / "no.jsonl", tls=gone)
        with pytest.raises(ResultError, match=r"cannot read .*gone.pem, to send it to the workers: No such file"):
            go(engine, asked, https)
    assert [r.prompt_hash for r in of(tmp_path / "all.jsonl")] == [r.prompt_hash for r in alone.load]
    assert not any(folder.exists() for folder in folders)


def test_a_target_that_cannot_be_reached_is_told_as_by_one_host_and_the_cluster_goes_on(
    cluster: Cluster, url: str, tmp_path: Path
) -> None:
    with ClusterEngine(cluster.address, 2) as engine:
        with pytest.raises(TargetError, match=r"^worker \d on .*\): .*127\.0\.0\.1:9"):
            go(engine, level(POISSON, requests=5), wiring("http://127.0.0.1:9", tmp_path / "a.jsonl"))
        assert go(engine, level(POISSON, requests=5), wiring(url, tmp_path / "b.jsonl")).end == "completed"


def test_an_interruption_drains_all_workers(cluster: Cluster, url: str, tmp_path: Path) -> None:
    interrupts = Interrupts()
    journal = tmp_path / "all.jsonl"
    with ClusterEngine(cluster.address) as engine:
        went = engine.play(level(POISSON, duration_s=60.0), wiring(url, journal), interrupts, once(interrupts.ask))
    assert went.end == "interrupted"
    assert went.scheduled == len(of(journal)) > 20


def test_a_worker_that_hangs_is_lost_and_stops_by_itself(cluster: Cluster, url: str, tmp_path: Path) -> None:
    journal = tmp_path / "all.jsonl"
    with ClusterEngine(cluster.address, silent_s=SILENT_S) as engine:
        stopped = cluster.by_address(engine._workers[1].address)
        try:
            went = go(
                engine, level(POISSON, duration_s=3.0), wiring(url, journal),
                once(lambda: os.kill(stopped, signal.SIGSTOP)),
            )  # fmt: skip
        finally:
            os.kill(stopped, signal.SIGCONT)
        assert went.end == "worker_lost"
        assert went.reason == (
            f"worker 1 on {engine._workers[1].facts.host} ({engine._workers[1].address}) did not answer for "
            f"{SILENT_S:g} s during the level"
        )
        assert went.scheduled is None
        assert [worker.worker for worker in went.workers] == [0, 2]
    kept = of(journal)
    due = {record.id for record in playing_ids(level(POISSON, duration_s=3.0))}
    assert {r.id for r in kept if r.worker != 1} == {number for number in due if number % 3 != 1}, "complete"
    assert 0 < sum(r.worker == 1 for r in kept) < len(due) / 3, "as far as they came"
    # Nobody calls it any more: the task ends, and the worker can play again.
    with ClusterEngine(cluster.address, 3) as engine:
        assert go(engine, level(POISSON, requests=30), wiring(url, tmp_path / "again.jsonl")).end == "completed"


def playing_ids(asked: Level) -> list[Record]:
    """The ids of an open loop's requests, as records, by the plan alone."""
    from loadtest.plan import due_times

    return [
        Record(number, 0, 0, at * 1e3, "ok", True, None, None) for number, at in enumerate(due_times(asked, 7, 0, 1))
    ]


def test_a_worker_that_hears_late_of_the_start_says_how_late(cluster: Cluster, url: str, tmp_path: Path) -> None:
    with ClusterEngine(cluster.address, 2) as engine:
        late = cluster.by_address(engine._workers[1].address)
        say = engine._say

        def say_late(number: int, order: object) -> None:
            if isinstance(order, Start) and number == 1:
                os.kill(late, signal.SIGSTOP)
                threading.Timer(1.5, lambda: os.kill(late, signal.SIGCONT)).start()
            say(number, order)

        engine._say = say_late  # type: ignore[method-assign]
        went = go(engine, level(POISSON, requests=60), wiring(url, tmp_path / "all.jsonl"))
    assert went.end == "completed"
    assert went.workers[1].start_late_ms > 500 > went.workers[0].start_late_ms
    assert len(of(tmp_path / "all.jsonl")) == 60


def test_a_killed_worker_and_then_the_scheduler(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with clustered(tmp_path, 3) as own, ClusterEngine(own.address, 3) as engine:
        killed = own.by_address(engine._workers[2].address)
        (tmp_path / "long").mkdir()
        long = Long(tmp_path / "long", monkeypatch)
        went = long.play(
            engine, level(POISSON, duration_s=2.0), url, once(lambda: os.kill(killed, signal.SIGKILL))
        )  # fmt: skip
        assert went.end == "worker_lost"
        assert went.reason == f"{engine._workers[2]} left the cluster (killed, or ended) during the level"
        kept = [*records(long.folder)]
        due = playing_ids(level(POISSON, duration_s=2.0))
        assert {r.id for r in kept if r.worker < 2} == {r.id for r in due if r.id % 3 < 2}
        assert any(r.worker == 2 for r in kept)
        with pytest.raises(WorkerLost, match=r"worker 2 on .* before the level began, and nothing of it was sent"):
            go(engine, level(POISSON, requests=30), wiring(url, tmp_path / "b.jsonl"))
        assert not of(tmp_path / "b.jsonl")
        engine.size = 2
        went = go(engine, level(POISSON, duration_s=30.0), wiring(url, tmp_path / "c.jsonl"), once(own.scheduler.kill))
        assert went.end == "worker_lost"
        first, second = engine._workers[:2]
        assert went.reason == f"{first}, {second} did not answer any more: the scheduler has gone during the level"
        assert len(of(tmp_path / "c.jsonl")) >= 20
        began = time.monotonic()
    assert time.monotonic() - began < 15, "leaving does not wait for what is gone"


def test_what_does_not_fit_is_refused_before_anything_is_sent(cluster: Cluster, tmp_path: Path) -> None:
    for wrong in ("10.0.0.1", "http://10.0.0.1:80", "local:0", "local:", "tcp://10.0.0.1"):
        with pytest.raises(UsageError, match=r"neither tcp://HOST:PORT, nor tls://HOST:PORT, nor local:N"):
            ClusterEngine(wrong)
    with pytest.raises(UsageError, match="both say how many; leave out --workers"):
        ClusterEngine("local:2", 3)
    with pytest.raises(UsageError, match=r"no scheduler of Dask answers there .*start one with dask scheduler"):
        ClusterEngine("tcp://127.0.0.1:9", silent_s=0.5)
    with (
        socket.create_server(("127.0.0.1", 0)) as mute,
        pytest.raises(UsageError, match=r"no scheduler of Dask answers"),
    ):
        ClusterEngine(f"tcp://127.0.0.1:{mute.getsockname()[1]}", silent_s=0.5)
    with pytest.raises(UsageError, match=r"tls://.*: tls:// takes certificates from Dask's configuration"):
        ClusterEngine(cluster.address.replace("tcp", "tls"), silent_s=0.5)
    with pytest.raises(UsageError, match=r"3 workers there after 0.2 s, and --workers asks for 7; start more"):
        ClusterEngine(cluster.address, 7, wait_s=0.2)
    hung = cluster.workers[0].pid
    os.kill(hung, signal.SIGSTOP)
    try:
        with pytest.raises(WorkerLost, match=r"worker tcp://.* does not answer \(TimeoutError\); end it"):
            ClusterEngine(cluster.address, wait_s=0.5)
    finally:
        os.kill(hung, signal.SIGCONT)


def test_workers_that_run_something_else_are_named_with_all_that_differs(tmp_path: Path) -> None:
    old, none = tmp_path / "old", tmp_path / "none"
    for folder, code in (
        (old, "import loadtest, numpy\nloadtest.__version__ = numpy.__version__ = '0.0.1'\n"),
        (none, "import sys\nsys.modules['loadtest'] = None\n"),
    ):
        folder.mkdir()
        (folder / "sitecustomize.py").write_text(code, "utf-8")
    with clustered(tmp_path, 0) as own:
        own.add(1, PYTHONPATH=f"{old}{os.pathsep}{Path.cwd()}")
        own.add(1, PYTHONPATH=str(none))
        with pytest.raises(UsageError) as refused:
            ClusterEngine(own.address, 2)
    text = str(refused.value)
    assert "loadtest 0.0.1, not " in text
    assert "numpy 0.0.1, not " in text
    assert "cannot run loadtest (ModuleNotFoundError" in text
    assert "install on the workers what runs here: loadtest[cluster]==" in text


def test_a_target_or_files_on_this_host_alone_are_refused_to_workers_of_another(
    cluster: Cluster, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ClusterEngine(cluster.address, 1) as engine:
        monkeypatch.setattr("socket.gethostname", lambda: "elsewhere")
        with pytest.raises(UsageError, match=r"is this host alone, and worker 0 on .* is on another"):
            engine.see_reach(wiring(url, tmp_path / "a.jsonl"))


def test_a_cluster_is_one_runs_until_that_has_ended(cluster: Cluster) -> None:
    with ClusterEngine(cluster.address, 1), pytest.raises(UsageError, match=r"another run has its workers; play when"):
        ClusterEngine(cluster.address, 1, wait_s=0.3)
    ClusterEngine(cluster.address, 1, wait_s=0.3).close()


def test_a_worker_that_is_busy_with_other_work_is_no_hang(
    cluster: Cluster, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loadtest.engine.remote.BEGIN_S", 0.5)
    with ClusterEngine(cluster.address, 1) as engine:
        busy = engine._client.submit(time.sleep, 2, workers=[engine._workers[0].address], pure=False)
        with pytest.raises(WorkerLost, match=r"did not begin within 0.5 s: it is busy with another task"):
            go(engine, level(POISSON, requests=1), wiring(url, tmp_path / "a.jsonl"))
        busy.cancel()


def test_what_dask_logs_of_an_order_holds_no_key(url: str, tmp_path: Path) -> None:
    told = wiring(url, tmp_path / "a.jsonl", headers=(("x-key", "s3cret"),), secrets=("s3cret",), bearer="s3cret")
    assert "s3cret" not in repr([Prepare(told, level(POISSON, requests=1), 0, 1), Renew("s3cret")])


def test_a_level_that_nobody_calls_for_ends(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when the client was killed, or this process stopped until it was given up: no load is to be nobody's."""
    monkeypatch.setattr(cluster_worker, "_WATCH_S", 1.0)
    order = Prepare(
        wiring(url, tmp_path / "own" / "a.jsonl"), level(Load("closed", concurrency=2), duration_s=60.0), 0, 1
    )
    task = threading.Thread(target=cluster_worker.play, args=("t", order, 0.5))
    task.start()
    while cluster_worker.attend("t", [], 0, 1) is None:
        time.sleep(0.01)
    cluster_worker.attend("t", [Start(time.perf_counter_ns())], 0, 1)
    time.sleep(0.55)
    assert cluster_worker.attend("t", [], 0, 1) is None, "a call that comes too late is nobody's any more"
    task.join(10)
    assert not task.is_alive()
    assert not (tmp_path / "own").exists()
    assert cluster_worker.attend("t", [], 0, 1) is None


@pytest.fixture
def namespace() -> Iterator[tuple[str, str, str]]:
    """A network namespace with its own name and address, and the address of this side."""
    name, here, there = f"lt{os.getpid()}", "10.213.7.1", "10.213.7.2"
    inside = f"ip netns exec {name} ip"
    commands = [
        f"ip netns add {name}", f"ip link add {name}a type veth peer name {name}b netns {name}",
        f"ip addr add {here}/30 dev {name}a", f"ip link set {name}a up", f"{inside} addr add {there}/30 dev {name}b",
        f"{inside} link set {name}b up", f"{inside} link set lo up",
    ]  # fmt: skip
    if os.geteuid() or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and iproute2")
    try:
        for command in commands:
            made = subprocess.run(command.split(), capture_output=True, text=True, check=False)
            if made.returncode:
                pytest.skip(f"this platform makes no network namespaces: {made.stderr}")
        yield name, here, there
    finally:
        subprocess.run(["ip", "link", "del", f"{name}a"], capture_output=True, check=False)
        subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def test_of_a_cut_network_each_side_makes_an_end(namespace: tuple[str, str, str], url: str, tmp_path: Path) -> None:
    name, here, there = namespace
    within = ["ip", "netns", "exec", name]
    port = url.rpartition(":")[2].strip("/")
    journal = tmp_path / "all.jsonl"

    def served() -> int:
        script = "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1]).read().decode())"
        told = subprocess.run([*within, sys.executable, "-c", script, f"{url}/truth"], capture_output=True, check=True)
        return int(json.loads(told.stdout)["requests"])

    server = [*within, sys.executable, "-m", "servers.fake", "--port", port, "--ttft-ms", "5", "--itl-ms", "1"]
    with (
        subprocess.Popen(server, stdout=subprocess.PIPE) as twin,  # each worker's loopback has one
        clustered(tmp_path, 1, here) as own,
    ):
        try:
            assert twin.stdout is not None
            assert twin.stdout.readline()
            own.add(1, within, there)
            with ClusterEngine(own.address, 2, silent_s=SILENT_S) as engine:
                cut = next(each for each in engine._workers if there in each.address)
                went = go(
                    engine, level(POISSON, duration_s=3.0), wiring(url, journal),
                    once(lambda: subprocess.run(["ip", "link", "set", f"{name}a", "down"], check=True)),
                )  # fmt: skip
            assert went.end == "worker_lost"
            assert f"({cut.address}) did not answer for {SILENT_S:g} s" in (went.reason or "")
            assert [worker.worker for worker in went.workers] == [1 - cut.number]
            came = served()
            time.sleep(0.5)
            assert served() == came > 0, "behind the cut the load has ended, too"
        finally:
            twin.terminate()
    due = playing_ids(level(POISSON, duration_s=3.0))
    assert {r.id for r in of(journal) if r.worker != cut.number} == {r.id for r in due if r.id % 2 != cut.number}
