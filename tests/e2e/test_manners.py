"""A run says who it is, keeps to its ceilings, and asks before it sends much to somebody else's machine."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from loadtest import __version__
from loadtest.cli import main
from tests.conftest import Command
from tests.e2e.telling import Answer, Asked, Telling, telling, usual

pytestmark = pytest.mark.e2e


@pytest.fixture
def elsewhere() -> Iterator[Telling]:
    """A proxy to which every host is itself: what stands for another machine."""
    with telling() as server:
        yield server


def through(server: Telling, *flags: str) -> list[str]:
    """A run of more than needs no word, to a machine elsewhere."""
    return [
        "run", "http://far.invalid:80", "--proxy", server.url, "--endpoint", "chat", "-r", "60", "-n", "6",
        "--warmup", "0s", "--output-tokens", "3", "-o", "out", *flags,
    ]  # fmt: skip


def test_each_request_names_the_tool_and_the_run(loadtest: Command, tmp_path: Path) -> None:
    with telling() as server:
        done = loadtest("run", server.url, "--endpoint", "chat", "-c", "2", "-n", "6", "-o", "out")
        assert done.returncode == 0, done.stderr
    run_id = json.loads((tmp_path / "out" / "result.json").read_text("utf-8"))["run_id"]
    assert re.fullmatch("[0-9a-f]{32}", run_id)
    assert {asked.headers["x-loadtest-run"] for asked in server.asked} == {run_id}
    assert {asked.headers["user-agent"] for asked in server.asked} == {f"loadtest/{__version__}"}


def test_the_runs_header_can_be_left_out_or_given(loadtest: Command) -> None:
    with telling() as server:
        loadtest("run", server.url, "--endpoint", "chat", "-c", "1", "-n", "1", "--no-run-header")
        assert not any("x-loadtest-run" in asked.headers for asked in server.asked)
        assert server.posts
        server.asked.clear()
        loadtest("run", server.url, "--endpoint", "chat", "-c", "1", "-n", "1", "-H", "X-Loadtest-Run: mine")
        assert {asked.headers["x-loadtest-run"] for asked in server.posts} == {"mine"}


def test_without_a_terminal_much_is_sent_elsewhere_only_when_that_is_said(
    loadtest: Command, elsewhere: Telling, tmp_path: Path
) -> None:
    done = loadtest(*through(elsewhere))
    assert done.returncode == 2
    assert re.search(
        r"far\.invalid is not this machine.*up to 60 requests a second, about 6 requests in all.*--yes", done.stderr
    )
    assert not elsewhere.asked
    assert not (tmp_path / "out").exists()
    done = loadtest(*through(elsewhere), LOADTEST_YES="1")
    assert done.returncode == 0, done.stderr
    assert len(elsewhere.posts) >= 6


@pytest.mark.parametrize(("typed", "code"), [(b"y\n", 0), (b"\n", 2), (b"\x04", 2), (b"", 130)])
@pytest.mark.skipif(sys.platform == "win32", reason="no terminals of this kind")
def test_at_a_terminal_it_is_asked(
    environment: dict[str, str], elsewhere: Telling, tmp_path: Path, typed: bytes, code: int
) -> None:
    ours, theirs = os.openpty()
    command = [sys.executable, "-P", "-m", "loadtest", *through(elsewhere), "-q"]
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdin=theirs, stderr=theirs, stdout=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:  # fmt: skip
        os.close(theirs)
        seen = b""
        while b"[y/N]" not in seen:
            seen += os.read(ours, 4096)
        assert not elsewhere.asked
        if typed:
            os.write(ours, typed)
        else:
            process.send_signal(signal.SIGINT)
        with contextlib.suppress(OSError):  # that is how the end of a terminal's other side is told
            while more := os.read(ours, 4096):
                seen += more
        assert process.wait(60) == code, seen
    os.close(ours)
    assert b"up to 60 requests a second" in seen
    assert bool(elsewhere.posts) == (code == 0)


def test_a_plan_says_that_it_would_be_asked() -> None:
    much = ["-c", "65", "-n", "70", "--endpoint", "chat"]
    done = CliRunner().invoke(main, ["plan", "http://staging:8000", *much])
    assert done.exit_code == 0
    assert "run would ask" in " ".join(done.stdout.split())
    assert "run would ask" not in CliRunner().invoke(main, ["plan", "http://127.0.0.1:8000", *much]).stdout


@pytest.mark.parametrize("workers", ["1", "3"])
def test_the_ceilings_are_the_whole_runs_whatever_the_workers(loadtest: Command, tmp_path: Path, workers: str) -> None:
    """7.5 a second of three workers: none of them has a whole share of it."""
    with telling() as server:
        done = loadtest(
            "run", server.url, "--endpoint", "chat", "-r", "200", "-n", "18", "--warmup", "0s", "--max-rate", "7.5",
            "--workers", workers, "-o", "out",
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
    lines = (tmp_path / "out" / "records.jsonl").read_text("utf-8").splitlines()
    sent = sorted(json.loads(line)["sent_ms"] for line in lines)
    assert len(sent) == 18
    for start in sent:
        assert sum(start <= at < start + 990 for at in sent) <= 8


@pytest.mark.parametrize("workers", ["1", "3"])
def test_never_more_are_in_flight_than_was_allowed(loadtest: Command, workers: str) -> None:
    now = peak = 0
    lock, hold = threading.Lock(), threading.Event()

    def slow(asked: Asked) -> Answer:
        nonlocal now, peak
        if asked.method == "GET":
            return usual(asked)
        with lock:
            now += 1
            peak = max(peak, now)
        hold.wait(0.1)
        with lock:
            now -= 1
        return usual(asked)

    with telling(slow) as server:
        done = loadtest(
            "run", server.url, "--endpoint", "chat", "-r", "200", "-n", "40", "--warmup", "0s", "--max-in-flight", "4",
            "--workers", workers,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
    assert peak == 4
