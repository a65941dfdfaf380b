"""What a user, or a program, sees of a run while it goes on: at a terminal, in a pipe, by JSON and by Prometheus."""

import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Command

pytestmark = [pytest.mark.e2e, pytest.mark.skipif(sys.platform == "win32", reason="pseudo-terminals")]

SHORT = ("-c", "2", "--output-tokens", "8", "--warmup", "0s")


class Seen:
    """A run at a pseudo-terminal, its own foreground job there."""

    def __init__(self, environment: dict[str, str], folder: Path, *arguments: str) -> None:
        import pty
        import termios

        self._ours, theirs = pty.openpty()
        self._settings: Callable[[], list[Any]] = lambda: termios.tcgetattr(theirs)
        self.before = self._settings()
        self.text = ""
        program = (
            "import fcntl, os, sys, termios\n"
            "fcntl.ioctl(0, termios.TIOCSCTTY, 0)\n"
            "os.execv(sys.executable, [sys.executable, '-m', 'loadtest', *sys.argv[1:]])"
        )
        self.process = subprocess.Popen(
            [sys.executable, "-c", program, "run", *arguments, "-o", "out"], cwd=folder,
            env={**environment, "TERM": "xterm", "LANG": "C.UTF-8"}, stdin=theirs, stdout=theirs, stderr=theirs,
            start_new_session=True,
        )  # fmt: skip

    def until(self, pattern: str, within_s: float = 60.0) -> None:
        """Read what is shown until ``pattern`` is in it."""
        end = time.monotonic() + within_s
        while not re.search(pattern, self.text):
            assert time.monotonic() < end, self.text
            if select.select([self._ours], [], [], 0.1)[0]:
                self.text += os.read(self._ours, 65536).decode("utf-8", "replace")

    def type(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    def settings(self) -> list[Any]:
        return self._settings()

    def end(self) -> int:
        """Read to its end; the exit code."""
        while self.process.poll() is None:
            if select.select([self._ours], [], [], 0.1)[0]:
                self.text += os.read(self._ours, 65536).decode("utf-8", "replace")
        return self.process.returncode


@pytest.fixture
def at_terminal(environment: dict[str, str], tmp_path: Path) -> Iterator[Callable[..., Seen]]:
    running: list[Seen] = []

    def start(*arguments: str) -> Seen:
        running.append(Seen(environment, tmp_path, *arguments))
        return running[-1]

    yield start
    for seen in running:
        if seen.process.poll() is None:
            os.killpg(seen.process.pid, signal.SIGKILL)
        seen.process.wait()


def test_at_a_terminal_q_drains_and_the_terminal_is_as_it_was(
    at_terminal: Callable[..., Seen], tmp_path: Path, tiny: str
) -> None:
    seen = at_terminal(tiny, *SHORT, "-d", "60s")
    seen.until(r"level 1/1 .*q: drain and report")
    seen.until(r"TTFT p50 .*client lag p99 sends .*, loop .* ms")
    assert seen.settings() != seen.before, "keys are taken without Enter"
    seen.type("q")
    assert seen.end() == 130
    assert seen.settings() == seen.before
    result = json.loads((tmp_path / "out" / "result.json").read_text("utf-8"))
    assert result["levels"][0]["counts"]["ok"] > 0
    assert result["levels"][0]["counts"]["cancelled"] == 0
    assert "Traceback" not in seen.text


def test_a_second_ctrl_c_leaves_the_terminal_as_it_was(at_terminal: Callable[..., Seen], tiny: str) -> None:
    seen = at_terminal(tiny, *SHORT, "-d", "60s")
    seen.until("TTFT p50")
    seen.type("\x03")
    seen.type("\x03")
    assert seen.end() == 130
    assert seen.settings() == seen.before


def test_stdout_of_a_run_at_a_terminal_ends_with_the_table_alone(at_terminal: Callable[..., Seen], tiny: str) -> None:
    seen = at_terminal(tiny, *SHORT, "-n", "40")
    assert seen.end() == 0
    assert "level 1/1" not in seen.text.rpartition("\x1b[J")[2]
    assert "result: out" in seen.text


def test_live_json_on_stdout_takes_the_place_of_the_table(loadtest: Command, tiny: str) -> None:
    done = loadtest("run", tiny, *SHORT, "-d", "2500ms", "--live-json", "-")
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert {line["state"] for line in lines[:-1]} == {"sending"}
    assert lines[-1]["state"] == "ended"
    assert lines[-1]["in_flight"] == 0
    assert lines[0]["ok"] < lines[-1]["ok"]
    assert lines[-1]["ttft_p50_ms"] > 0
    assert "\x1b" not in done.stderr


def test_the_last_line_of_a_level_has_all_its_requests(loadtest: Command, tmp_path: Path, tiny: str) -> None:
    done = loadtest("run", tiny, *SHORT, "-n", "30", "--live-json", "live.ndjson", "--json", "-")
    last = json.loads((tmp_path / "live.ndjson").read_text("utf-8").splitlines()[-1])
    counts = json.loads(done.stdout)["levels"][0]["counts"]
    assert (last["ok"], last["failed"]) == (counts["ok"], 0) == (30, 0)


def test_a_run_is_scraped_by_prometheus_while_it_goes_on(
    environment: dict[str, str], tmp_path: Path, tiny: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with subprocess.Popen(
        [sys.executable, "-m", "loadtest", "run", tiny, *SHORT, "-d", "60s", "--prometheus", f":{port}"],
        cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        until, found = time.monotonic() + 60, ""
        while not re.search(r'loadtest_requests_total\{outcome="ok"\} [1-9]', found):
            assert time.monotonic() < until, found
            time.sleep(0.1)
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as reply:
                    found = reply.read().decode()
            except ConnectionError:
                continue
            except urllib.error.URLError:
                continue
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    assert "Traceback" not in err


def test_counters_for_prometheus_go_on_across_levels(environment: dict[str, str], tmp_path: Path, tiny: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    flags = (*SHORT, "-c", "1,2", "-d", "2500ms", "--prometheus", f":{port}", "-o", "out", "--no-html", "-q")
    scraped: list[tuple[str, float, float]] = []
    with subprocess.Popen(
        [sys.executable, "-m", "loadtest", "run", tiny, *flags],
        cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        while process.poll() is None:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as reply:
                    found = reply.read().decode()
            except OSError:
                continue
            numbers = (r'^loadtest_requests_total\{outcome="ok"\} (\S+)', r"^loadtest_output_tokens_total (\S+)")
            ok, tokens = (float(match[1]) if (match := re.search(text, found, re.M)) else 0.0 for text in numbers)
            level = re.search(r'loadtest_level_info\{level="(\d)"', found)
            scraped.append((level[1] if level else "", ok, tokens))
            time.sleep(0.05)
        _, err = process.communicate()
    assert process.returncode == 0, err
    for counter in zip(*(each[1:] for each in scraped), strict=True):
        assert list(counter) == sorted(counter), "it never goes back"
    assert {"1", "2"} <= {level for level, _, _ in scraped}
    first, second = json.loads((tmp_path / "out" / "result.json").read_text("utf-8"))["levels"]
    assert max(ok for level, ok, _ in scraped if level == "1") <= first["counts"]["ok"]
    begun = [ok for level, ok, _ in scraped if level == "2"]
    assert first["counts"]["ok"] <= begun[0] <= begun[-1] <= first["counts"]["ok"] + second["counts"]["ok"]


def test_what_cannot_be_served_or_said_is_refused_before_the_run(loadtest: Command, tiny: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = loadtest("run", tiny, "--prometheus", f":{taken.getsockname()[1]}")
    assert done.returncode == 2
    assert "Address already in use" in done.stderr
    done = loadtest("run", tiny, "--live-json", "-", "--json", "-")
    assert done.returncode == 2
    assert "both take stdout" in done.stderr
    done = loadtest("compare", "a", "b", "--live-json", "x")
    assert done.returncode == 2
    assert "--live-json is for --run" in done.stderr
