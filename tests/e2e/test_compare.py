"""compare by the real command: folders that run made, named baselines, two targets played in turn."""

import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import msgspec
import pytest
from click.testing import CliRunner

from loadtest.cli import main
from tests.conftest import Command
from tests.e2e.test_interrupt import start, wait_for_records

pytestmark = pytest.mark.e2e
# The two are so far apart, and what is tolerated is so much, that no neighbour of this machine decides a test.
SHORT = ["--output-tokens", "2", "-c", "4", "--seed", "1"]
JUDGED = ["--metric", "p50(ttft)", "--tolerance", "60%"]


def serving(environment: dict[str, str], ttft_ms: int) -> Iterator[str]:
    command = [sys.executable, "-m", "servers.fake", "--port", "0", "--ttft-ms", str(ttft_ms), "--itl-ms", "1"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        match = re.search(r"http://[^\s(]+", process.stdout.readline())
        assert match
        yield match[0]
        process.terminate()


@pytest.fixture(scope="module")
def quick(environment: dict[str, str]) -> Iterator[str]:
    """The URL of a server that answers after 20 ms."""
    yield from serving(environment, 20)


@pytest.fixture(scope="module")
def slow(environment: dict[str, str]) -> Iterator[str]:
    """The URL of one that answers after 60 ms."""
    yield from serving(environment, 60)


def sound(folder: Path, *, valid: bool = True) -> None:
    """Make the client's figures sound, or not: a busy neighbour of this machine would have a say in it."""
    path = folder / "result.json"
    result = msgspec.json.decode(path.read_bytes())
    for level in result["levels"]:
        level["client"] |= {"valid": valid, "reasons": [] if valid else ["sent late"]}
    path.write_bytes(msgspec.json.encode(result))


@pytest.fixture(scope="module")
def made(environment: dict[str, str], quick: str, slow: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of runs: before and after are of the quick server, slow is of the other, c2 under another load."""
    folder = tmp_path_factory.mktemp("runs")
    for name, url, load in (("before", quick, "4"), ("after", quick, "4"), ("slow", slow, "4"), ("c2", quick, "2")):
        command = [sys.executable, "-m", "loadtest", "run", url, *SHORT, "-c", load, "-n", "120", "-o", name, "-q"]
        subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True)
        sound(folder / name)
    return folder


@pytest.fixture
def runs(made: Path, tmp_path: Path) -> None:
    """They lie where the command is called."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)


@pytest.mark.usefixtures("runs")
def test_each_answer_and_its_exit_code(loadtest: Command, tmp_path: Path) -> None:
    done = loadtest("compare", "before", "after", *JUDGED)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("No regression")
    done = loadtest(
        "compare", "before", "slow", *JUDGED, "--json", "found.json", "--markdown", "c.md", "--junit", "j.xml"
    )
    assert done.returncode == 99, done.stdout + done.stderr
    assert done.stdout.startswith("Regression: p50(ttft) +")
    found: dict[str, Any] = msgspec.json.decode((tmp_path / "found.json").read_bytes())
    assert (found["outcome"], found["exit_code"], found["unlike"]) == ("FAIL", 99, [])
    change = found["levels"][0]["changes"][0]
    assert change["metric"] == "p50(ttft)"
    assert 1.0 < change["change"] < 3.0
    assert (tmp_path / "c.md").read_text().startswith("### ❌ FAIL")
    suite = ElementTree.parse(tmp_path / "j.xml").getroot().find("testsuite")
    assert suite is not None
    assert (suite.get("tests"), suite.get("failures")) == ("1", "1")
    sound(tmp_path / "slow", valid=False)
    done = loadtest("compare", "before", "slow", *JUDGED)
    assert done.returncode == 97, done.stdout + done.stderr
    assert "sent late" in done.stdout
    (tmp_path / "before" / "records.jsonl").unlink()
    done = loadtest("compare", "before", "after", *JUDGED)
    assert done.returncode == 98, done.stdout + done.stderr
    assert "before has no records" in done.stdout
    done = loadtest("compare", "after", "c2")
    assert done.returncode == 2
    assert "load.concurrency of the scenario: 4 against 2" in done.stderr
    assert "levels that only the base has: c=4" in done.stderr
    done = loadtest("compare", "after", "c2", "--allow-unlike", *JUDGED)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "unlike: load.concurrency" in done.stdout


@pytest.mark.usefixtures("runs")
def test_a_run_that_was_interrupted_is_compared_and_never_a_pass(
    loadtest: Command, environment: dict[str, str], quick: str, tmp_path: Path
) -> None:
    with start(environment, tmp_path, quick, *SHORT, "-d", "60s", "--warmup", "0s", "-q") as process:
        wait_for_records(tmp_path, 120)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    sound(tmp_path / "out")
    done = loadtest("compare", "before", "out", *JUDGED, "--allow-unlike")
    assert done.returncode == 98, done.stdout + done.stderr
    assert "out: the run did not finish; what it had measured until then is compared" in done.stdout
    assert "p50(ttft)" in done.stdout


@pytest.mark.usefixtures("runs")
def test_named_baselines(loadtest: Command, tmp_path: Path) -> None:
    kept = ["--baseline-dir", "kept", "--save-baseline", "main"]
    done = loadtest("compare", "before", *kept)
    assert (done.returncode, done.stdout) == (0, "kept/main\n"), done.stderr
    worse = loadtest("compare", "main", "slow", *kept, *JUDGED)
    assert worse.returncode == 99, worse.stdout + worse.stderr
    assert "not kept as baseline main" in worse.stderr
    done = loadtest("compare", "main", "after", *kept, *JUDGED)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "kept as baseline: kept/main" in done.stderr
    kept_result = (tmp_path / "kept" / "main" / "1" / "result.json").read_bytes()
    assert kept_result == (tmp_path / "after" / "result.json").read_bytes()
    done = loadtest("compare", "mian", "after", "--baseline-dir", "kept")
    assert done.returncode == 2
    assert "no baseline mian in kept: it holds main" in done.stderr


def test_two_targets_are_played_in_turn(loadtest: Command, quick: str, slow: str, tmp_path: Path) -> None:
    done = loadtest(
        "compare", "--run", quick, slow, *SHORT, "-n", "60", "--rounds", "2", "-o", "out", *JUDGED, "-q"
    )  # fmt: skip
    assert done.returncode in (97, 99), done.stdout + done.stderr
    results = {
        path: msgspec.json.decode((tmp_path / "out" / path / "result.json").read_bytes())
        for path in ("base/1", "candidate/1", "candidate/2", "base/2")
    }
    started = [result["started_at"] for result in results.values()]
    assert started == sorted(started)  # AB BA
    assert [result["seed"] for result in results.values()] == [1, 1, 2, 2]
    assert [result["conditions"]["endpoint"]["url"] for result in results.values()] == [quick, slow, slow, quick]
    for path in results:
        sound(tmp_path / "out" / path)
    again = loadtest("compare", "out/base", "out/candidate", *JUDGED)
    assert again.returncode == 99
    assert again.stdout.splitlines()[2:4] == done.stdout.splitlines()[2:4]


def test_a_target_that_is_gone_ends_the_comparison(loadtest: Command, quick: str, tmp_path: Path) -> None:
    gone = "http://127.0.0.1:9"
    done = loadtest("compare", "--run", quick, gone, *SHORT, "-n", "20", "-o", "out", "-q", "--markdown", "c.md")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "127.0.0.1:9" in done.stderr
    assert "Traceback" not in done.stderr
    assert (tmp_path / "out" / "base" / "1" / "result.json").exists()
    assert "127.0.0.1" in (tmp_path / "c.md").read_text()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["a"], "name two sides"),
        (["a", "b", "c"], "name two sides"),
        (["a", "a", "vs", "b"], "the same run twice"),
        (["a", "b", "--tolerance", "5"], "--tolerance 5: expected a share"),
        (["a", "b", "--metric", "p99(tttf)"], "did you mean p99(ttft)?"),
        (["a", "b", "-c", "4"], "--concurrency is for --run"),
        (["a", "b", "-o", "out"], "--output is for --run"),
        (["a", "--save-baseline", "main"], "say where with --baseline-dir"),
        (["a", "--save-baseline", "../main", "--baseline-dir", "kept"], "give a plain name"),
        (["--run", "a", "b", "vs", "c"], "--run takes two URLs"),
    ],
)  # fmt: skip
def test_what_cannot_be_meant_is_told(
    arguments: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(main, ["compare", *arguments])
    assert done.exit_code == 2
    assert said in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_none_or_is_of_a_newer_version_is_told(loadtest: Command, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    done = loadtest("compare", "empty", "missing")
    assert (done.returncode, "empty holds no result" in done.stderr) == (1, True)
    (tmp_path / "newer").mkdir()
    (tmp_path / "newer" / "result.json").write_text('{"schema_version": 99}')
    done = loadtest("compare", "newer", "newer")
    assert done.returncode == 1
    assert "schema_version 99 and this loadtest reads up to 1" in done.stderr
