"""Each verdict and each exit code, of the real command against a server whose latencies are known."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Command
from tests.e2e.test_interrupt import children, start, wait_for_records
from tests.e2e.test_run import the_result

pytestmark = pytest.mark.e2e
# A TTFT of 20 ms is far from all limits here, so that no neighbour of this machine decides a test.
IN_TIME, TOO_LATE = "p90(ttft) < 10s", "p90(ttft) < 15ms"
SHORT = ["--output-tokens", "2", "-c", "4", "--seed", "1"]


@pytest.fixture(scope="module")
def known(environment: dict[str, str]) -> Iterator[str]:
    """The URL of a server that answers after 20 ms."""
    command = [sys.executable, "-m", "servers.fake", "--port", "0", "--ttft-ms", "20", "--itl-ms", "1"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        match = re.search(r"http://[^\s(]+", process.stdout.readline())
        assert match
        yield match[0]
        process.terminate()


@pytest.fixture
def play(loadtest: Command, tmp_path: Path) -> Command:
    """``loadtest run`` into the folder out, again where a neighbour starved this machine, as it then rightly says."""

    def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
        for _ in range(4):
            shutil.rmtree(tmp_path / "out", ignore_errors=True)
            done = loadtest("run", *arguments, "-o", "out")
            if done.returncode != 97:
                break
        return done

    return run


def verdicts(result: dict[str, Any]) -> list[str]:
    return [slo["verdict"] for level in result["levels"] for slo in level["slo"]]


def test_slos_that_are_kept_exit_0(play: Command, loadtest: Command, known: str, tmp_path: Path) -> None:
    slos = ["--slo", IN_TIME, "--slo", "error_rate < 20%", "--slo", "goodput(ttft < 10s, e2e < 20s) >= 80%"]
    done = play(known, *SHORT, "-n", "400", *slos, "--slo", "output_tokens_per_s > 1")
    assert done.returncode == 0, done.stdout + done.stderr
    result = the_result(tmp_path / "out")
    assert verdicts(result) == ["PASS"] * 4
    assert result["verdict"] == {"outcome": "PASS", "reasons": []}
    assert result["levels"][0]["goodput"]["good"] == 400
    assert done.stdout.index("PASS · of 4 judged: 4 PASS") < done.stdout.index("req/s")
    assert loadtest("report", "out").stdout == done.stdout


def test_an_slo_that_is_missed_exits_99_and_the_worst_level_counts(play: Command, known: str, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(f"slo: ['{IN_TIME}', 'p90(ttft, level=c=2) < 15ms']\n")
    done = play(known, "-s", "mine.yaml", *SHORT, "-c", "1,2", "-n", "200")
    assert done.returncode == 99, done.stdout + done.stderr
    result = the_result(tmp_path / "out")
    assert [len(level["slo"]) for level in result["levels"]] == [1, 2]
    assert result["levels"][1]["slo"][1]["verdict"] == "FAIL"
    assert result["levels"][1]["slo"][1]["value"] >= 20
    assert result["verdict"]["outcome"] == "FAIL"
    assert "more than chance explains" in done.stdout
    assert play(known, "-s", "mine.yaml", *SHORT, "-n", "20", "--slo", "").returncode == 0


def test_too_few_requests_exit_98_and_say_how_many_more_or_99_if_one_says_so(
    play: Command, known: str, tmp_path: Path
) -> None:
    asked = [known, *SHORT, "-n", "8", "--slo", IN_TIME]
    done = play(*asked)
    assert done.returncode == 98, done.stdout + done.stderr
    assert re.search(r"about [\d,]+ more requests \(.+ at this rate\) would decide", " ".join(done.stdout.split()))
    assert the_result(tmp_path / "out")["verdict"]["outcome"] == "INCONCLUSIVE"
    failed = play(*asked, "--on-inconclusive", "fail")
    assert failed.returncode == 99
    assert the_result(tmp_path / "out")["verdict"]["outcome"] == "FAIL"


def test_an_undecided_level_is_extended_once_and_judged_by_all_its_requests(
    play: Command, loadtest: Command, known: str, tmp_path: Path
) -> None:
    asked = [known, *SHORT, "-c", "1,2", "-n", "30", "--slo", "error_rate < 10%"]
    done = play(*asked, "--on-inconclusive", "extend")
    assert done.returncode == 0, done.stdout + done.stderr
    result = the_result(tmp_path / "out")
    assert [(level["name"], level["extends"]) for level in result["levels"]] == [
        ("c=1", None), ("c=2", None), ("c=1 (more)", "c=1"), ("c=2 (more)", "c=2"),
    ]  # fmt: skip
    assert [slo["n"] for level in result["levels"] for slo in level["slo"]] == [60, 60]
    assert verdicts(result) == ["PASS", "PASS"]
    assert result["complete"] is True
    assert loadtest("report", "out").stdout == done.stdout


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
def test_a_client_that_was_the_limit_makes_it_invalid_without_being_strict(
    environment: dict[str, str], tmp_path: Path, tiny: str
) -> None:
    load = ["-r", "50", "--warmup", "0s", "-d", "4s", "--output-tokens", "2", "--slo", IN_TIME]
    with start(environment, tmp_path, tiny, *load) as process:
        wait_for_records(tmp_path, 20)
        worker = children(process.pid)[0]
        for _ in range(3):
            os.kill(worker, signal.SIGSTOP)
            time.sleep(0.4)
            os.kill(worker, signal.SIGCONT)
            time.sleep(0.1)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 97, out + err
    result = the_result(tmp_path / "out")
    assert verdicts(result) == ["INVALID"]
    assert result["verdict"]["outcome"] == "INVALID"
    assert "INVALID, the generator sent late" in out


def test_every_request_failed_is_1_whatever_the_slo_says(loadtest: Command, environment: dict[str, str]) -> None:
    command = [sys.executable, "-m", "servers.fake", "--port", "0", "--ttft-ms", "1", "--error-every", "1"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        match = re.search(r"http://[^\s(]+", process.stdout.readline())
        assert match
        done = loadtest("run", match[0], *SHORT, "-n", "60", "--slo", "error_rate < 1%", "--json", "-")
        process.terminate()
    assert done.returncode == 1, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--slo", IN_TIME, "--no-stream"], "answers that are not streamed have none"),
        (["--slo", "p99(tfft) < 1s"], "did you mean ttft?"),
        (["--slo", "p99(ttft, level=c=9) < 1s"], "no level has that name; they are c=4"),
        (["--slo", "goodput >= 99%"], "goodput needs limits"),
    ],
)
def test_an_slo_that_cannot_be_judged_is_exit_2_before_the_run(
    loadtest: Command, known: str, tmp_path: Path, flags: list[str], says: str
) -> None:
    done = loadtest("run", known, *SHORT, "-n", "8", *flags)
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "results").exists() or not list((tmp_path / "results").iterdir())
    planned = loadtest("plan", known, *SHORT, "-n", "8", *flags)
    assert says in planned.stdout + planned.stderr


def test_a_plan_says_how_many_requests_an_slo_takes(loadtest: Command, known: str) -> None:
    done = loadtest("plan", known, "-r", "2,50", "-d", "20s", "--slo", "p99(ttft) < 1s", "--seed", "1")
    assert done.returncode == 0, done.stderr
    said = " ".join(done.stdout.split())
    assert re.search(
        r"p99\(ttft\) < 1s: takes at least \d+ requests, .*planned are about \d+ \(2/s\): too few to pass", said
    )


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
def test_an_interrupted_run_is_130_and_no_pass(environment: dict[str, str], tmp_path: Path, known: str) -> None:
    load = ["-c", "4", "--warmup", "0s", "-d", "60s", "--output-tokens", "2", "--slo", "error_rate < 20%"]
    with start(environment, tmp_path, known, *load) as process:
        wait_for_records(tmp_path, 200)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130, out + err
    result = the_result(tmp_path / "out")
    assert result["verdict"]["outcome"] == "INCONCLUSIVE"
    assert "the level ended early" in out


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
def test_a_killed_run_is_judged_from_its_journal_and_no_pass(
    environment: dict[str, str], tmp_path: Path, known: str, loadtest: Command
) -> None:
    load = ["-c", "4", "--warmup", "0s", "-d", "60s", "--output-tokens", "2", "--slo", TOO_LATE, "--slo", IN_TIME]
    with start(environment, tmp_path, known, *load) as process:
        wait_for_records(tmp_path, 200)
        process.kill()
        process.communicate(timeout=60)
    done = loadtest("report", "out")
    assert done.returncode == 0, done.stderr
    assert "FAIL · of 2 judged: 1 FAIL, 1 INCONCLUSIVE" in done.stdout


def test_a_warning_of_the_users_is_shown_and_fails_nothing(play: Command, known: str, tmp_path: Path) -> None:
    done = play(known, *SHORT, "-n", "40", "--warn", "p50(ttft) > 1ms", "--warn", "p50(ttft) > 100 * p50(e2e)")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "warning: c=4: warn p50(ttft) > 1ms: p50(ttft) is " in done.stdout
    (said,) = [text for text in the_result(tmp_path / "out")["warnings"] if "warn" in text]
    assert said.startswith("c=4: warn p50(ttft) > 1ms: ")
    done = play(known, *SHORT, "-n", "40", "--warn", "p50(ttft, level='c=5') > 1ms")
    assert done.returncode == 2
    assert "no level has that name; they are c=4" in done.stderr
