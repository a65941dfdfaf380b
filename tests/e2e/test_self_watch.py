"""The client proves that it was not the bottleneck, or says that it was."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Command
from tests.e2e.test_interrupt import children, result, start, wait_for_records

pytestmark = [pytest.mark.e2e, pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")]
LOAD = ["-r", "50", "--warmup", "0s", "--output-tokens", "2", "--strict"]


def the_level(folder: Path) -> dict[str, Any]:
    level: dict[str, Any] = result(folder)["levels"][0]
    return level


def test_a_starved_client_is_called_invalid_and_exits_97(
    environment: dict[str, str], tmp_path: Path, tiny: str
) -> None:
    with start(environment, tmp_path, tiny, *LOAD, "-d", "4s") as process:
        wait_for_records(tmp_path, 20)
        worker = children(process.pid)[0]
        for _ in range(3):  # its loop stands still, as it would on a host with too much to do
            os.kill(worker, signal.SIGSTOP)
            time.sleep(0.4)
            os.kill(worker, signal.SIGCONT)
            time.sleep(0.1)
        out, err = process.communicate(timeout=30)
    assert process.returncode == 97, err
    level = the_level(tmp_path)
    assert level["client"]["valid"] is False
    assert any("the generator sent late" in reason for reason in level["client"]["reasons"])
    assert "the generator sent late" in out
    assert level["counts"]["scheduled"] == level["counts"]["ok"], "it was late, and sent everything all the same"


def test_a_client_that_stands_still_to_the_end_owns_up_to_what_it_did_not_send(
    environment: dict[str, str], tmp_path: Path, tiny: str
) -> None:
    with start(environment, tmp_path, tiny, *LOAD, "-d", "2s") as process:
        wait_for_records(tmp_path, 20)
        worker = children(process.pid)[0]
        os.kill(worker, signal.SIGSTOP)
        time.sleep(2.5)
        os.kill(worker, signal.SIGCONT)
        _, err = process.communicate(timeout=30)
    assert process.returncode == 97, err
    level = the_level(tmp_path)
    kinds = {error["kind"] for error in level["errors"]}
    assert level["counts"]["never_sent"] == 0 or kinds == {"late"}
    assert level["client"]["valid"] is False
    assert level["counts"]["scheduled"] == pytest.approx(100, abs=40), "what came due while it stood still is counted"


def test_a_healthy_client_is_not_called_invalid(loadtest: Command, tiny: str, tmp_path: Path) -> None:
    # A neighbour may starve this machine for a moment, and then it is right to say so: one quiet run of five is enough.
    for attempt in range(5):
        # One connection, which is then a sampled one: the error bar needs a hundred of its reads.
        flags = ["-c", "1", "--warmup", "0s", "--output-tokens", "16", "--strict", "-d", "3s", "-o", f"out{attempt}"]
        done = loadtest("run", tiny, *flags)
        if done.returncode == 0:
            break
    assert done.returncode == 0, done.stdout + done.stderr
    client = json.loads((tmp_path / f"out{attempt}" / "result.json").read_text("utf-8"))["levels"][0]["client"]
    assert client["valid"] is True
    assert client["reasons"] == []
    assert client["workers"] == 1
    assert client["send_lag_ms"]["p99"] < 10
    if sys.platform == "linux":
        assert 0 < client["error_bar_p50_ms"] <= client["error_bar_ms"] < 5
        assert "±" in done.stdout


def test_a_full_disk_is_one_clear_error_and_what_was_written_can_be_loaded(
    environment: dict[str, str], tmp_path: Path, tiny: str, loadtest: Command
) -> None:
    command = (
        f"ulimit -f 64; exec {sys.executable} -m loadtest run {tiny} -c 4 -d 60s --warmup 0s --output-tokens 8 -o out"
    )
    done = subprocess.run(
        ["bash", "-c", command], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    assert "cannot write" in done.stderr
    assert "records.jsonl" in done.stderr
    again = loadtest("report", "out", "--json", "-")
    assert again.returncode == 0, again.stderr
    level = json.loads(again.stdout)["levels"][0]
    assert level["counts"]["ok"] > 20
    assert level["status"] == "aborted"
