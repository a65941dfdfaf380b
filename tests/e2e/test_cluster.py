"""The command on a Dask cluster: its schedule at the server, the loss of a worker, and Ctrl-C."""

import itertools
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Command
from tests.engine.clustered import Cluster, clustered

pytestmark = [pytest.mark.e2e, pytest.mark.skipif(sys.platform != "linux", reason="signals and /proc")]
TRUTH = Path(__file__).parent.parent.parent / "bench" / "truthserver.c"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with clustered(tmp_path_factory.mktemp("cluster"), 4) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def truth(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of the server that keeps the arrival of each request: 5 ms to the first of 4 tokens, 2 ms apart."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    program = tmp_path_factory.mktemp("truth") / "truthserver"
    subprocess.run(["cc", "-O2", "-o", program, TRUTH, "-lm"], check=True)
    with subprocess.Popen([program, "0", "5", "2", "4"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
        process.kill()


def level(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "out" / "result.json").read_text("utf-8"))
    return found


def test_four_workers_hold_a_poisson_schedule_at_the_server(
    loadtest: Command, cluster: Cluster, truth: str, tmp_path: Path
) -> None:
    """As the schedule itself is tested, at 1 %: the gaps are exponential; or, on a busy host, it says so."""
    urllib.request.urlopen(f"{truth}/reset").read()
    done = loadtest(
        "run", truth, "--cluster", cluster.address, "-r", "80", "-n", "200", "--seed", "7", "--no-rehearsal", "-o",
        "out", "--endpoint", "chat",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    arrivals = [int(line) / 1e9 for line in urllib.request.urlopen(f"{truth}/arrivals").read().split()]
    assert len(arrivals) == 200
    gaps = sorted(later - earlier for earlier, later in itertools.pairwise(sorted(arrivals)))
    fits = [1 - math.exp(-gap * 80) for gap in gaps]
    distance = max(max(abs((i + 1) / len(fits) - fit), abs(i / len(fits) - fit)) for i, fit in enumerate(fits))
    (one,) = level(tmp_path)["levels"]
    assert distance < 1.63 / math.sqrt(len(fits)) or not one["client"]["valid"]
    assert sum(gaps) / len(gaps) == pytest.approx(1 / 80, rel=0.15)
    assert one["counts"]["ok"] == one["counts"]["scheduled"] == 200
    assert [worker["worker"] for worker in one["client"]["cluster"]] == [0, 1, 2, 3]
    assert all(abs(w["clock_offset_ms"]) <= w["clock_error_ms"] for w in one["client"]["cluster"]), (
        "one host, one clock"
    )
    records = map(json.loads, (tmp_path / "out" / "records.jsonl").read_text("utf-8").splitlines())
    assert sorted(record["id"] for record in records) == [*range(200)]


def test_a_killed_worker_ends_the_run_with_what_the_others_have_and_it_can_be_resumed(
    environment: dict[str, str], loadtest: Command, cluster: Cluster, truth: str, tmp_path: Path
) -> None:
    command = [
        sys.executable, "-m", "loadtest", "run", truth, "--cluster", cluster.address, "-r", "40", "-d", "3s",
        "--warmup", "0s", "--slo", "p50(ttft) < 10s", "--no-rehearsal", "-o", "out", "--endpoint", "chat",
    ]  # fmt: skip
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True) as process:
        journal = tmp_path / "out" / "records.jsonl"
        while process.poll() is None and not (journal.exists() and journal.read_bytes().count(b"\n") > 40):
            time.sleep(0.05)
        victim = sorted(cluster.workers, key=lambda each: each.pid)[0]
        victim.kill()
        _, err = process.communicate(timeout=60)
    cluster.workers.remove(victim)
    result = level(tmp_path)
    assert process.returncode == result["exit_code"] == 97
    assert result["verdict"]["outcome"] == "INVALID"
    assert "during the level; its figures are unsound" in err
    (one,) = result["levels"]
    counts = one["counts"]
    kinds = ("ok", "http_error", "stream_error", "transport_error", "timed_out", "cancelled", "never_sent")
    assert counts["scheduled"] == sum(counts[kind] for kind in kinds)
    assert not one["client"]["valid"]
    records = [json.loads(line) for line in journal.read_text("utf-8").splitlines()]
    lost = {0, 1, 2, 3} - {worker["worker"] for worker in one["client"]["cluster"]}
    assert len(lost) == 1
    last = max(record["id"] for record in records)
    others = {record["id"] for record in records if record["worker"] not in lost}
    assert others == {number for number in range(last + 1) if number % 4 not in lost}, "complete"
    # On those that are left.
    done = loadtest("resume", "out", "-q")
    assert done.returncode == 0, done.stderr
    (one,) = level(tmp_path)["levels"]
    due = one["counts"]["scheduled"]
    assert one["counts"]["ok"] == due > last
    assert [worker["worker"] for worker in one["client"]["cluster"]] == [0, 1, 2]
    records = [json.loads(line) for line in journal.read_text("utf-8").splitlines()]
    assert sorted(record["id"] for record in records) == [*range(due)], "each once"


def test_a_cluster_started_here_is_drained_by_ctrl_c_and_ended(
    environment: dict[str, str], truth: str, tmp_path: Path
) -> None:
    command = [
        sys.executable, "-m", "loadtest", "run", truth, "--cluster", "local:2", "-c", "4", "-d", "60s", "-o", "out",
        "--no-rehearsal", "--endpoint", "chat",
    ]  # fmt: skip
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        journal = tmp_path / "out" / "records.jsonl"
        while process.poll() is None and not (journal.exists() and journal.read_bytes().count(b"\n") > 20):
            time.sleep(0.05)
        assert process.poll() is None, process.communicate()
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does it: to the whole group
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    (one,) = level(tmp_path)["levels"]
    assert one["counts"]["ok"] == one["counts"]["scheduled"] > 20
    for _ in range(100):
        try:
            os.killpg(process.pid, 0)
        except ProcessLookupError:  # the last to go sees that the others have gone
            break
        time.sleep(0.1)
    else:
        pytest.fail("some of its processes are left")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("http://127.0.0.1:9", "--cluster", "10.0.0.1"), "neither tcp://HOST:PORT, nor tls://HOST:PORT, nor local:N"),
        (("http://127.0.0.1:9", "--cluster", "local:2", "--workers", "3"), "leave out --workers"),
    ],
)
def test_what_cannot_be_meant_is_one_line(loadtest: Command, arguments: tuple[str, ...], said: str) -> None:
    done = loadtest("run", *arguments, "--endpoint", "chat")
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr
