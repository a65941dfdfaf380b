"""Ctrl-C, kill and loss: nothing that was measured is lost, and the result says what happened."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Command

pytestmark = [pytest.mark.e2e, pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")]


def start(environment: dict[str, str], folder: Path, *arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "loadtest", "run", *arguments, "-o", "out"],
        cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip


def wait_for_records(folder: Path, count: int) -> None:
    until = time.monotonic() + 60
    while time.monotonic() < until:
        journal = folder / "out" / "records.jsonl"
        if journal.exists() and journal.read_bytes().count(b"\n") >= count:
            return
        time.sleep(0.05)
    raise AssertionError("no records in time")


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text("ascii").split()]


def result(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "out" / "result.json").read_text("utf-8"))
    return found


def conserved(level: dict[str, Any]) -> bool:
    counts = level["counts"]
    kinds = ("ok", "http_error", "stream_error", "transport_error", "timed_out", "cancelled", "never_sent")
    return bool(counts["scheduled"] == sum(counts[kind] for kind in kinds))


def test_ctrl_c_stops_sending_drains_and_reports(environment: dict[str, str], tmp_path: Path, tiny: str) -> None:
    with start(
        environment, tmp_path, tiny, "-c", "2,4", "-d", "60s", "--warmup", "0s", "--output-tokens", "8"
    ) as process:
        wait_for_records(tmp_path, 20)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does it: to the whole group
        out, err = process.communicate(timeout=20)
    assert process.returncode == 130, err
    assert "interrupted" in out
    assert "Traceback" not in err
    found = result(tmp_path)
    assert found["complete"] is False
    assert found["exit_code"] == 130
    first, second = found["levels"]
    assert first["status"] == "aborted"
    assert first["counts"]["ok"] >= 20
    assert first["counts"]["cancelled"] == 0, "what was in flight had time to finish"
    assert conserved(first)
    assert second["status"] == "not_reached"


def test_a_second_ctrl_c_stops_at_once(environment: dict[str, str], tmp_path: Path, tiny: str) -> None:
    # Answers of 200 tokens to 64 clients take longer than the grace of the first Ctrl-C leaves the second.
    with start(
        environment, tmp_path, tiny, "-c", "64", "-d", "60s", "--input-tokens", "32", "--output-tokens", "400"
    ) as process:
        wait_for_records(tmp_path, 1)
        os.killpg(process.pid, signal.SIGINT)
        time.sleep(0.3)
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=20)
    assert process.returncode == 130, err
    level = result(tmp_path)["levels"][0]
    assert level["counts"]["cancelled"] > 0
    assert conserved(level)
    assert "cut off" in out
    assert not (tmp_path / "out" / "report.html").exists(), "nobody waits for it"


@pytest.mark.parametrize("whole_group", [False, True], ids=["run alone", "whole group, as a supervisor does"])
def test_sigterm_is_an_interruption_too(
    environment: dict[str, str], tmp_path: Path, tiny: str, whole_group: bool
) -> None:
    with start(
        environment, tmp_path, tiny, "-c", "2", "-d", "60s", "--warmup", "0s", "--output-tokens", "8"
    ) as process:
        wait_for_records(tmp_path, 5)
        (os.killpg if whole_group else os.kill)(process.pid, signal.SIGTERM)
        process.communicate(timeout=20)
    assert process.returncode == 130
    level = result(tmp_path)["levels"][0]
    assert level["counts"]["ok"] >= 5
    assert level["status"] == "aborted", "no generator process was lost"
    assert conserved(level)


def test_after_kill_9_the_report_is_made_from_the_journal(
    environment: dict[str, str], tmp_path: Path, tiny: str, loadtest: Command
) -> None:
    with start(
        environment, tmp_path, tiny, "-c", "2", "-d", "60s", "--warmup", "0s", "--output-tokens", "8"
    ) as process:
        wait_for_records(tmp_path, 30)
        workers = children(process.pid)
        process.kill()
        process.communicate(timeout=20)
    assert result(tmp_path)["levels"][0]["status"] == "not_reached"
    again = loadtest("report", "out", "--json", "-")
    assert again.returncode == 0, again.stderr
    level = json.loads(again.stdout)["levels"][0]
    assert level["status"] == "aborted"
    assert level["counts"]["ok"] >= 30
    assert level["latency"]["ttft_ms"]["ok"]["n"] > 0
    assert "did not finish" in loadtest("report", "out").stdout
    until = time.monotonic() + 5
    while time.monotonic() < until and any(Path(f"/proc/{pid}").exists() for pid in workers):
        time.sleep(0.05)
    assert not [pid for pid in workers if Path(f"/proc/{pid}").exists()], "workers outlive their parent"


def test_a_worker_killed_mid_level_ends_the_run_as_unsound(
    environment: dict[str, str], tmp_path: Path, tiny: str
) -> None:
    with start(environment, tmp_path, tiny, "-c", "4", "-d", "4s", "--output-tokens", "8", "--workers", "2") as process:
        wait_for_records(tmp_path, 20)
        os.kill(children(process.pid)[0], signal.SIGKILL)
        out, err = process.communicate(timeout=30)
    assert process.returncode == 97, err
    assert "generator process" in err
    level = result(tmp_path)["levels"][0]
    assert level["status"] == "degraded"
    assert level["client"]["valid"] is False
    assert level["counts"]["ok"] >= 20
    assert conserved(level)
    assert out


def test_what_was_measured_before_the_prompts_process_died_is_counted(
    environment: dict[str, str], tmp_path: Path, tiny: str
) -> None:
    (tmp_path / "p.txt").write_text("hello there\nwho is it\n", "utf-8")
    flags = ["--data", "p.txt", "-r", "5", "-d", "60s", "--warmup", "0s", "--output-tokens", "2", "--workers", "2"]
    with start(environment, tmp_path, tiny, *flags) as process:
        wait_for_records(tmp_path, 3)
        (maker,) = children(children(process.pid)[0])
        os.kill(maker, signal.SIGKILL)
        _, err = process.communicate(timeout=15)  # long before its last prompts would have been sent
    assert process.returncode == 1
    assert "the process that makes the prompts ended by itself (exit code -9)" in err
    level = result(tmp_path)["levels"][0]
    assert level["status"] == "aborted"
    assert level["counts"]["scheduled"] == len((tmp_path / "out" / "records.jsonl").read_text("utf-8").splitlines())
    assert conserved(level)


def test_a_generator_process_that_hangs_cannot_hold_up_a_user_who_wants_to_stop(
    environment: dict[str, str], tmp_path: Path, tiny: str
) -> None:
    with start(
        environment, tmp_path, tiny, "-c", "4", "-d", "60s", "--warmup", "0s", "--output-tokens", "8", "--workers", "2"
    ) as process:
        wait_for_records(tmp_path, 20)
        os.kill(children(process.pid)[0], signal.SIGSTOP)
        for _ in range(2):
            process.send_signal(signal.SIGINT)
            time.sleep(0.3)
        _, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    level = result(tmp_path)["levels"][0]
    assert level["status"] == "degraded"
    assert level["counts"]["ok"] >= 20
    assert conserved(level)


def test_the_bundled_server_does_not_outlive_a_killed_run(environment: dict[str, str], tmp_path: Path) -> None:
    flags = ["--serve-model", "tiny", "-c", "1", "-d", "60s", "--max-batch-size", "2", "--scheduler", "continuous"]
    with start(environment, tmp_path, *flags) as process:
        wait_for_records(tmp_path, 1)
        every = children(process.pid)
        process.kill()
        process.communicate(timeout=20)
    until = time.monotonic() + 15
    while time.monotonic() < until and any(Path(f"/proc/{pid}").exists() for pid in every):
        time.sleep(0.1)
    assert not [pid for pid in every if Path(f"/proc/{pid}").exists()]


def test_a_bundled_server_that_dies_is_exit_3_and_the_figures_so_far_are_kept(
    environment: dict[str, str], tmp_path: Path
) -> None:
    flags = ["--serve-model", "tiny", "-c", "1,2", "-d", "2s", "--max-batch-size", "2", "--scheduler", "continuous"]
    with start(environment, tmp_path, *flags) as process:
        wait_for_records(tmp_path, 5)
        server = next(pid for pid in children(process.pid) if b"servers" in Path(f"/proc/{pid}/cmdline").read_bytes())
        os.kill(server, signal.SIGKILL)
        _, err = process.communicate(timeout=30)
    assert process.returncode == 3, err
    assert "bundled server" in err
    assert "Traceback" not in err
    assert result(tmp_path)["levels"][0]["counts"]["ok"] >= 5


def test_ctrl_c_before_the_first_request_ends_at_once_and_leaves_nothing(
    environment: dict[str, str], tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with start(environment, tmp_path, url, "-n", "1") as process, silent.accept()[0]:  # asks for our models, waits
            os.killpg(process.pid, signal.SIGINT)
            _, err = process.communicate(timeout=20)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert not (tmp_path / "out").exists()
