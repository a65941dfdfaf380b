"""A search by the real command against a server whose true limit is known: its claims, its exit codes, its folder."""

import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Command
from tests.e2e.test_run import the_result

pytestmark = pytest.mark.e2e
LIMIT = 200.0  # requests a second of the fake's one queue
QUICK = ("-d", "600ms", "--input-tokens", "16", "--output-tokens", "2", "--seed", "3", "-q")


@pytest.fixture(scope="module")
def limited() -> Iterator[str]:
    """The URL of a server that answers within 5 ms up to LIMIT requests a second, and falls behind beyond it."""
    command = [
        sys.executable, "-m", "servers.fake", "--port", "0", "--ttft-ms", "5", "--itl-ms", "1", "--capacity",
        str(LIMIT), "--exit-on-stdin-close",
    ]  # fmt: skip
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        match = re.search(r"http://\S+", process.stdout.readline())
        assert match
        yield match[0]
        process.terminate()


def trials(result: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = result["capacity"]["trials"]
    return found


def test_the_limit_of_a_server_is_found_and_all_that_it_holds_for_is_said(
    loadtest: Command, limited: str, tmp_path: Path
) -> None:
    done = loadtest(
        "capacity", limited, "--slo", "p90(ttft) < 150ms", "--min", "100", "--max", "400", "--reserve", "20%",
        "--replicas", "4", "--lost", "1", "--label", "precision=fp8", *QUICK, "-o", "out",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    result = the_result(tmp_path / "out")
    found = result["capacity"]
    passed, beyond = found["bracket"]
    # A level of half a second bears more than the limit, until its queue is as long as 150 ms.
    assert 100 <= passed <= LIMIT * 1.4
    assert passed < beyond <= 400
    assert found["usable"]["value"] == pytest.approx(passed * 0.8 * 3, rel=1e-3)
    own = [trial for trial in trials(result) if trial["load"] == passed and trial["resolved"]]
    assert len(own) >= 3
    assert {trial["outcome"] for trial in own} == {"PASS"}
    for trial in trials(result):
        for place in trial["levels"]:
            assert result["levels"][place]["load"]["rate_per_s"] == trial["load"]
    assert (result["verdict"]["outcome"], result["exit_code"], result["complete"]) == ("PASS", 0, True)
    statement = found["statement"]
    assert statement in re.sub(r"\s+", " ", done.stdout)
    for condition in (
        f"{passed:g} requests/s passed", "p90(ttft) < 150ms", "reserve of 20 %", "on 3 of 4 replicas, 1 lost",
        "raw peak", "model fake", "precision fp8", "python", "server hardware not told", "chat endpoint",
        "input 16 tokens", "output 2 tokens", "poisson arrivals", "concurrency", "the server's own batching",
        "windows of", "n = ", "seed 3",
    ):  # fmt: skip
        assert condition in statement, condition
    again = loadtest("report", "out")
    assert again.stdout == done.stdout


def test_a_limit_that_no_load_keeps_is_a_fail(loadtest: Command, limited: str, tmp_path: Path) -> None:
    done = loadtest("capacity", limited, "--slo", "p90(ttft) < 2ms", "--min", "150", *QUICK, "-o", "out")
    assert done.returncode == 99, done.stderr
    result = the_result(tmp_path / "out")
    assert result["capacity"]["bracket"] == [None, 150.0]
    assert result["capacity"]["usable"]["value"] is None
    assert sum(trial["resolved"] for trial in trials(result)) == 3
    assert "not shown" in done.stdout


def test_a_window_without_an_arrival_decides_nothing(loadtest: Command, limited: str, tmp_path: Path) -> None:
    done = loadtest(
        "capacity", limited, "--slo", "p90(ttft) < 150ms", "--min", "0.01", "--max", "0.02", "--budget", "1s", *QUICK,
        "-o", "out",
    )  # fmt: skip
    assert sum(level["counts"]["scheduled"] for level in the_result(tmp_path / "out")["levels"]) == 0
    assert done.returncode in (97, 98), done.stderr


def test_a_search_ends_with_its_time_and_goes_on_from_its_folder(
    loadtest: Command, limited: str, tmp_path: Path
) -> None:
    asked = ("--tier", "loose: p50(ttft) < 1s; error_rate < 20%", "--tier", "tight: p50(ttft) < 3ms")
    done = loadtest("capacity", limited, *asked, "--min", "50", "--max", "100", "--budget", "4s", *QUICK, "-o", "out")
    assert done.returncode == 98, done.stderr
    before = the_result(tmp_path / "out")
    assert [one["tier"] for one in before["capacities"]] == ["loose", "tight"]
    assert "ended with its time (--budget)" in done.stdout
    with (tmp_path / "out" / "records.jsonl").open("a", encoding="utf-8") as journal:
        journal.write(f'{{"id":1,"level":{len(before["levels"])},"cut')  # as a kill in the next trial would leave it
    again = loadtest("resume", "out", "-q")
    result = the_result(tmp_path / "out")
    loose, tight = result["capacities"]
    for one, then in zip(result["capacities"], before["capacities"], strict=True):
        assert one["trials"][: len(then["trials"])] == then["trials"]
        assert one["slo"] == then["slo"]
    assert again.returncode == 99, again.stderr
    assert result["capacity"] == loose
    assert loose["bracket"] == [100.0, None]
    assert tight["bracket"] == [None, 50.0]
    # One search answered both: no trial is of one tier only.
    assert [trial["levels"] for trial in loose["trials"]] == [trial["levels"] for trial in tight["trials"]]


def test_an_interrupted_search_leaves_what_it_had_and_is_never_a_pass(
    environment: dict[str, str], limited: str, tmp_path: Path
) -> None:
    command = [
        sys.executable, "-m", "loadtest", "capacity", limited, "--slo", "p90(ttft) < 1s", "--min", "20", "--max", "40",
        "-d", "3s", "--output-tokens", "2", "-o", "out", "-q",
    ]  # fmt: skip
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True) as process:
        journal = tmp_path / "out" / "records.jsonl"
        until = time.monotonic() + 60
        while time.monotonic() < until and not (journal.exists() and journal.stat().st_size):
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    result = the_result(tmp_path / "out")
    assert result["complete"] is False
    assert result["verdict"]["outcome"] == "INCONCLUSIVE"
    assert trials(result) == []
    assert "loadtest resume out" in said


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("http://127.0.0.1:9",), "give --slo"),
        (("http://127.0.0.1:9", "--slo", "p99(ttft) < 1s", "--reserve", "120%"), "--reserve 120%"),
        (("http://127.0.0.1:9", "--slo", "p99(ttft) < 1s", "--replicas", "2", "--lost", "2"), "leaves nothing"),
        (("http://127.0.0.1:9", "--slo", "p99(ttft) < 1s", "--min", "9", "--max", "3"), "above --max 3"),
        (("http://127.0.0.1:9", "--slo", "p99(ttft) < 1s", "--budget", "30"), "--budget 30"),
        (("http://127.0.0.1:9", "--tier", "p99(ttft) < 1s"), "expected NAME: SLO"),
        (("http://127.0.0.1:9", "--tier", "a: p99(tfft) < 1s"), "did you mean ttft"),
        (("http://127.0.0.1:9", "--slo", "p99(ttft, level='c=1') < 1s"), "leave level= out"),
        (("http://127.0.0.1:9", "--slo", "requests_per_s > 5"), "limits none"),
        (("http://127.0.0.1:9", "--tier", "a: goodput >= 99%; p99(ttft) < 1s"), "its own limits"),
        (("http://127.0.0.1:9", "--slo", "p99(ttft) < 1s", "--no-stream"), "stream"),
        (("http://127.0.0.1:9", "--slo", "p99(e2e) < 1s", "--axis", "concurrency", "--max", "2.5"), "a whole number"),
    ],
)
def test_what_cannot_be_meant_is_refused_in_one_line(
    loadtest: Command, arguments: tuple[str, ...], words: str, tmp_path: Path
) -> None:
    done = loadtest("capacity", *arguments)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.glob("results/*"))


def test_each_batching_setting_of_the_bundled_server_has_its_own_frontier(loadtest: Command, tmp_path: Path) -> None:
    (tmp_path / "two.yaml").write_text(
        "workload: {input_tokens: 16, output_tokens: 4}\n"
        "load: {concurrency: 1, duration: 500ms, grace: 10s}\n"
        "server: {model: tiny}\n"
        "levels: [{scheduler: continuous, max_batch_size: [1, 4]}]\n"
        "slo: [p50(e2e) < 20s]\n",
        "utf-8",
    )
    done = loadtest("capacity", "-s", "two.yaml", "--max", "2", "-o", "out", "-q")
    result = the_result(tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert [one["setting"] for one in result["capacities"]] == ["continuous 1", "continuous 4"]
    assert {one["axis"] for one in result["capacities"]} == {"concurrency"}
    assert [one["bracket"] for one in result["capacities"]] == [[2.0, None]] * 2
    assert "3/3 |" in done.stdout
