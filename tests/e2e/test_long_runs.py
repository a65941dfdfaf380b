"""Long runs: what they leave, what is known while they go on, and how one that ended early is gone on with."""

import contextlib
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from loadtest import keeping, vigil
from loadtest.engine.orders import Snapshot
from loadtest.errors import ResultError
from loadtest.glance import Glance
from loadtest.keeping import Keeper
from loadtest.options import Options
from loadtest.progress import Progress
from loadtest.records import files, records
from loadtest.recovery import recovered
from loadtest.result import load, write
from loadtest.run import run
from loadtest.scenario import Override
from loadtest.sitting import Sitting
from tests.conftest import Command
from tests.e2e.telling import Answer, Asked, telling, usual
from tests.e2e.test_interrupt import children, conserved, result, start, wait_for_records

pytestmark = [pytest.mark.e2e, pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")]


@pytest.fixture(scope="module")
def fast() -> Iterator[str]:
    """The URL of a server that answers in a millisecond."""
    command = [
        sys.executable, "-m", "servers.fake", "--port", "0", "--ttft-ms", "1", "--itl-ms", "1", "--exit-on-stdin-close",
    ]  # fmt: skip
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        match = re.search(r"http://\S+", process.stdout.readline())
        assert match
        yield match[0]
        process.terminate()


# A run that is gone on with ------------------------------------------------------------------------------------


def of_levels(folder: Path) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for record in records(folder):
        found.setdefault(record.level, []).append(record.id)
    return {level: sorted(own) for level, own in found.items()}


@pytest.mark.parametrize("how", ["Ctrl-C", "kill -9 of all"])
def test_a_matrix_that_was_ended_goes_on_with_the_levels_that_are_missing(
    environment: dict[str, str], tmp_path: Path, tiny: str, loadtest: Command, how: str
) -> None:
    arguments = (tiny, "-c", "1,2,4", "-n", "150", "--output-tokens", "8", "--seed", "3", "--label", "site=here")
    with start({**environment, "LOADTEST_API_KEY": "sk-very-secret"}, tmp_path, *arguments) as process:
        wait_for_records(tmp_path, 160)
        if how == "Ctrl-C":
            os.killpg(process.pid, signal.SIGINT)
        else:
            workers = children(process.pid)
            process.kill()
            for worker in workers:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(worker, signal.SIGKILL)
        process.communicate(timeout=30)
    before = result(tmp_path)
    assert before["complete"] is False
    assert before["levels"][0]["status"] == "ok"
    assert "sk-very-secret" not in (tmp_path / "out" / "result.json").read_text("utf-8")
    if how == "Ctrl-C":
        before["warnings"].append(f"level {before['levels'][1]['name']}: worker 2 was lost; its figures are unsound")
        (tmp_path / "out" / "result.json").write_text(json.dumps(before), "utf-8")
    done = loadtest("resume", "out", LOADTEST_API_KEY="sk-very-secret")
    assert done.returncode == 0, done.stderr
    said = "going on after 1 level: what had begun is played again from its start, without the requests it had"
    assert said in done.stderr
    after = result(tmp_path)
    assert not [text for text in after["warnings"] if "unsound" in text], "of a level that was played again"
    assert after["complete"] is True
    assert after["levels"][0] == before["levels"][0], "what was complete is as it was"
    assert [level["counts"]["ok"] for level in after["levels"]] == [150, 150, 150]
    assert [level["name"] for level in after["levels"]] == [level["name"] for level in before["levels"]]
    assert len(after["resumed"]) == 1
    for key in ("seed", "run_id", "started_at", "command", "labels"):
        assert after[key] == before[key], key
    assert after["conditions"]["scenario"] == before["conditions"]["scenario"]
    assert of_levels(tmp_path / "out") == {level: [*range(150)] for level in range(3)}, "each request once"
    again = loadtest("resume", "out")
    assert again.returncode == 1
    assert "is complete: there is nothing to go on with" in again.stderr


def test_what_cannot_be_gone_on_with_is_refused_in_one_line(loadtest: Command, tmp_path: Path, fast: str) -> None:
    assert "not a result folder" in loadtest("resume", ".").stderr
    loadtest("run", fast, "-c", "1", "-n", "3", "-o", "out", "-q")
    whole = result(tmp_path)
    (tmp_path / "out" / "result.json").write_text(json.dumps({**whole, "complete": False}), "utf-8")
    other = loadtest("resume", "out", "http://127.0.0.1:9")
    assert (other.returncode, other.stdout) == (2, "")
    assert f"http://127.0.0.1:9 is not the target of the run, {fast}" in other.stderr
    budget = loadtest("resume", "out", "--budget", "1m")
    assert budget.returncode == 2
    assert "is of a search for capacity" in budget.stderr
    secret = {**whole["manner"], "url": "http://[redacted]@127.0.0.1:9"}
    (tmp_path / "out" / "result.json").write_text(json.dumps({**whole, "complete": False, "manner": secret}), "utf-8")
    unnamed = loadtest("resume", "out")
    assert unnamed.returncode == 2
    assert "give it again, after the folder" in unnamed.stderr
    old = {key: value for key, value in whole.items() if key != "manner"}
    (tmp_path / "out" / "result.json").write_text(json.dumps({**old, "complete": False}), "utf-8")
    assert "could not be resumed; begin it anew" in loadtest("resume", "out").stderr


def test_what_is_no_longer_as_it_was_is_named(loadtest: Command, tmp_path: Path, fast: str) -> None:
    loadtest("run", fast, "-c", "1,2", "-n", "3", "-o", "out", "-q")
    found = result(tmp_path)
    found["complete"] = False
    found["tool"]["version"] = "0.0.1"
    found["conditions"]["endpoint"]["model"] = "another"
    found["levels"][1]["status"] = "aborted"
    (tmp_path / "out" / "result.json").write_text(json.dumps(found), "utf-8")
    done = loadtest("resume", "out", "-q")
    assert done.returncode == 0, done.stderr
    said = "\n".join(result(tmp_path)["warnings"])
    assert "resumed under other conditions: loadtest was 0.0.1 and is" in said
    assert "resumed under other conditions: model was another and is" in said


# What is left of the requests ----------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["sampled", "none"])
def test_figures_are_of_all_requests_whatever_is_left_of_them(
    loadtest: Command, tmp_path: Path, fast: str, mode: str
) -> None:
    done = loadtest("run", fast, "-c", "8", "-n", "1500", "--output-tokens", "2", "--records", mode, "-o", "out")
    assert done.returncode == 0, done.stderr
    level = result(tmp_path)["levels"][0]
    assert result(tmp_path)["records"] == mode
    assert level["counts"]["ok"] == level["latency"]["ttft_ms"]["ok"]["n"] == 1500
    left = [*records(tmp_path / "out")]
    assert keeping.SLOWEST < len(left) < 300 if mode == "sampled" else not left
    assert not (tmp_path / "out" / "records.jsonl").exists()
    shown = loadtest("report", "out", "--json", "-", "--html")
    assert shown.returncode == 0, shown.stderr
    assert json.loads(shown.stdout)["levels"][0]["counts"]["ok"] == 1500
    compared = loadtest("compare", "out", "out")
    assert compared.returncode == 1
    assert f"has not all its requests (--records {mode}), and compare goes by these" in compared.stderr
    exported = loadtest("report", "out", "--parquet", "out.parquet")
    assert exported.returncode == 2
    assert f"--parquet takes every request, and --records {mode} leaves not all of them" in exported.stderr
    refused = loadtest("run", fast, "-n", "1", "--records", mode, "--compat", "vllm", "x.json")
    assert refused.returncode == 2
    assert "--compat vllm takes every request" in refused.stderr


# While a level goes on -----------------------------------------------------------------------------------------


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes with hours comes within seconds."""
    monkeypatch.setattr(keeping, "PART_BYTES", 100_000)
    monkeypatch.setattr(keeping, "LARGE", 1000)
    monkeypatch.setattr(keeping, "_LOOK_S", 0.2)
    monkeypatch.setattr(keeping, "_FIRST_S", 0.0)
    monkeypatch.setattr(vigil, "CHECKPOINT_S", 0.5)
    monkeypatch.setattr(vigil, "_SHARE", 1)


def asked(folder: Path, url: str, concurrency: str, duration: str, **more: Any) -> Options:
    """A run of short answers into ``folder/out``."""
    flags = {
        "concurrency": concurrency, "duration": duration, "warmup": "0s", "output_tokens": "2", "endpoint": "chat",
    }  # fmt: skip
    overrides = {name: Override(value, "-") for name, value in flags.items()}
    return Options(url=url, source=None, overrides=overrides, output=folder / "out", **more)


def before_figures_so_far(monkeypatch: pytest.MonkeyPatch, do: Callable[[], None]) -> None:
    """Have it done in their thread, each time they are about to be made."""
    made = Sitting._figures

    def figures(self: Sitting, level: Any, found: Any, went: Any, *, judged: bool = True) -> Any:
        if judged:
            do()
        return made(self, level, found, went, judged=judged)

    monkeypatch.setattr(Sitting, "_figures", figures)


class Spy:
    """A feed that looks into the folder once a second."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.levels: list[int] = []
        self.so_far: list[dict[str, Any]] = []

    def begin(self) -> None:
        pass

    def take(self, seen: Glance) -> None:
        self.levels.append(seen.level)
        found = json.loads((self._folder / "result.json").read_text("utf-8"))
        self.so_far += [level for level in found["levels"] if level["goes_on"]]

    def close(self) -> None:
        pass


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("mode", ["all", "none"])
def test_a_long_level_turns_its_journal_and_tells_its_figures_so_far(tmp_path: Path, fast: str, mode: Any) -> None:
    spy = Spy(tmp_path / "out")
    options = asked(tmp_path, fast, "8,4", "3s", workers=2, records=mode)
    outcome = run(options, Progress(StringIO(), quiet=True, feeds=[spy]))
    assert outcome.error is None
    levels = outcome.result.levels
    assert not [text for level in levels for text in level.client.reasons if "contradicts" in text]
    assert all(level.counts.ok == level.counts.scheduled > 1000 for level in levels)
    assert not any(level.goes_on for level in load(tmp_path / "out").levels)
    assert set(spy.levels) == {1, 2}, "the feed goes on across levels"
    assert spy.so_far
    assert all(0 < level["counts"]["ok"] <= levels[0].counts.ok for level in spy.so_far if level["name"] == "c=8")
    assert all(conserved(level) for level in spy.so_far)
    if mode == "none":
        assert files(tmp_path / "out") == []
        return
    parts = files(tmp_path / "out")
    assert len(parts) > 4
    assert all(path.name.endswith(".gz") for path in parts[:-1])
    for number, ids in of_levels(tmp_path / "out").items():
        assert len({*ids}) == len(ids) == levels[number].counts.scheduled, "each request once"


@pytest.mark.usefixtures("soon")
def test_a_full_disk_ends_a_long_level_with_what_was_measured(
    tmp_path: Path, fast: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = Keeper._settle

    def full(self: Keeper) -> None:
        monkeypatch.setattr("gzip.open", refuse)
        packed(self)

    def refuse(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Keeper, "_settle", full)
    options = asked(tmp_path, fast, "8", "30s")
    outcome = run(options, Progress(StringIO(), quiet=True))
    monkeypatch.undo()
    assert outcome.result.exit_code == 1
    assert "No space left on device; make room there" in outcome.result.warnings[-1]
    (level,) = outcome.result.levels
    assert level.status == "aborted"
    assert level.counts.scheduled == len([*records(tmp_path / "out")]), "all that was measured can be loaded"


@pytest.mark.usefixtures("soon")
def test_who_asks_to_stop_does_not_wait_for_the_figures_so_far(
    tmp_path: Path, fast: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    making, over = threading.Event(), threading.Event()

    def stop() -> None:
        if not making.is_set():
            making.set()
            os.kill(os.getpid(), signal.SIGINT)
            assert over.wait(60), "the run waited for the figures so far"

    before_figures_so_far(monkeypatch, stop)
    options = asked(tmp_path, fast, "8", "30s")
    outcome = run(options, Progress(StringIO(), quiet=True))
    assert making.is_set()
    assert outcome.result.exit_code == 130
    assert not outcome.at_once
    over.set()
    for thread in threading.enumerate():
        if thread.name == "loadtest-figures":
            thread.join()
    assert load(tmp_path / "out").exit_code == 130, "nothing is written over the result"
    (level,) = outcome.result.levels
    assert level.counts.ok == level.counts.scheduled == len([*records(tmp_path / "out")]), "drained, as by any Ctrl-C"


@pytest.mark.usefixtures("soon")
def test_a_level_is_seen_to_while_its_figures_so_far_are_made(
    tmp_path: Path, fast: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, seen = threading.Event(), threading.Event()

    def hold() -> None:
        begun.set()
        assert seen.wait(60), "nothing was shown while they were made"

    before_figures_so_far(monkeypatch, hold)

    class Look(Spy):
        def take(self, seen_now: Glance) -> None:
            super().take(seen_now)
            if begun.is_set():
                seen.set()

    options = asked(tmp_path, fast, "8", "4s")
    assert run(options, Progress(StringIO(), quiet=True, feeds=[Look(tmp_path / "out")])).error is None


@pytest.mark.usefixtures("soon")
def test_figures_so_far_that_cannot_be_written_end_the_level(
    tmp_path: Path, fast: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(now: Any, folder: Path) -> Path:
        if any(level.goes_on for level in now.levels):
            raise ResultError(f"cannot write {folder}/result.json: No space left on device; make room there")
        return write(now, folder)

    monkeypatch.setattr("loadtest.run.write", full)
    options = asked(tmp_path, fast, "8", "30s")
    outcome = run(options, Progress(StringIO(), quiet=True))
    assert outcome.result.exit_code == 1
    assert "No space left on device; make room there" in outcome.result.warnings[-1]
    assert outcome.result.levels[0].status == "aborted"


@pytest.mark.usefixtures("soon")
def test_of_a_run_that_is_gone_the_figures_so_far_are_those_of_all_its_requests(tmp_path: Path, fast: str) -> None:
    options = asked(tmp_path, fast, "8", "2s")
    spy = Spy(tmp_path / "out")
    run(options, Progress(StringIO(), quiet=True, feeds=[spy]))
    whole = load(tmp_path / "out")
    left = json.loads((tmp_path / "out" / "result.json").read_text("utf-8"))
    left |= {"complete": False, "levels": spy.so_far[-1:]}
    (tmp_path / "out" / "result.json").write_text(json.dumps(left), "utf-8")
    (level,) = recovered(tmp_path / "out").levels
    assert level.status == "aborted"
    assert level.counts.ok == whole.levels[0].counts.ok > spy.so_far[-1]["counts"]["ok"]
    assert not level.goes_on


# A target that goes silent -------------------------------------------------------------------------------------


def silence(silent_s: float, in_flight: int = 3) -> Snapshot:
    return Snapshot(True, in_flight, 5, 0, 10, {}, {}, {}, {}, silent_s=silent_s)


def test_a_target_that_goes_silent_is_told_of_once_each_time(tmp_path: Path) -> None:
    watch = vigil.Vigil(
        Keeper(tmp_path, "all", 1),
        Progress(StringIO(), quiet=True),
        None,
        vigil.Checkpoints(lambda _: None, lambda _: None),
        stall_s=60.0,
    )
    for at_s, silent_s in ((100.0, 50.0), (120.0, 70.0), (130.0, 80.0), (140.0, 0.0), (300.0, 61.0)):
        assert watch.see(at_s, [silence(silent_s), silence(0.0, in_flight=0)]) is None
    assert watch.see(310.0, [silence(65.0), silence(1.0)]) is None, "another worker hears something"
    assert [text.partition(":")[0] for text in watch.remarks] == [
        "the target went silent 50 s after the level had begun", "the target went silent 3 min 59 s after the level had"
        " begun",
    ]  # fmt: skip
    assert "--abort-on 'silence > 60s' would end the run" in watch.remarks[0]


def test_a_silence_ends_the_run_where_that_was_asked_for(loadtest: Command, tmp_path: Path) -> None:
    over = threading.Event()
    posts = itertools.count()

    def answer(asked: Asked) -> Answer:
        if asked.method == "POST" and next(posts) > 40:  # beyond those before the clock
            over.wait(60)
        return usual(asked)

    with telling(answer) as server:
        done = loadtest(
            "run", server.url, "-c", "2", "-d", "60s", "--endpoint", "chat", "--no-rehearsal", "--input-tokens", "4",
            "--metrics", "off", "--abort-on", "silence > 1s", "-o", "out",
        )  # fmt: skip
        over.set()
    assert done.returncode == 99, done.stderr
    assert "silence > 1s: 2 requests are in flight, and no byte has come for" in done.stderr
