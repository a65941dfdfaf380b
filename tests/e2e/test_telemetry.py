"""The server is watched while it is measured, from the same clock and at no request's cost; and a run says why."""

import json
import re
import threading
import time
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import msgspec
import pytest

from loadtest.progress import Progress
from loadtest.records import records
from loadtest.result import LevelResult, Result
from loadtest.run import run
from loadtest.scenario import Override
from loadtest.sitting import Options
from loadtest.telemetry.account import with_sight
from loadtest.telemetry.trail import FILE_NAME, read
from tests.conftest import Command
from tests.e2e.telling import Answer, Asked, models, telling
from tests.e2e.test_interrupt import start, wait_for_records
from tests.telemetry.expositions import DCGM

pytestmark = pytest.mark.e2e
TOKENS = 100
SENDS = ("--endpoint", "chat", "--no-stream", "-c", "1", "-n", "5", "--no-rehearsal", "-q", "--no-html")


def the_result(folder: Path) -> Any:
    return json.loads((folder / "result.json").read_text("utf-8"))


class Serving:
    """A server that says of each answer that it had 100 tokens, and counts ``times`` as many in its metrics."""

    def __init__(self, times: float = 1.0, metrics: Callable[[], Answer] | None = None) -> None:
        self._times = times
        self._metrics = metrics or self.counted
        self._answered = 0
        self._lock = threading.Lock()

    def __call__(self, asked: Asked) -> Answer:
        if asked.path == "/metrics":
            return self._metrics()
        if asked.method == "GET":
            return models()
        with self._lock:
            self._answered += 1
        choice = {"message": {"role": "assistant", "content": "word"}, "finish_reason": "stop"}
        usage = {"prompt_tokens": 7, "completion_tokens": TOKENS}
        return Answer(200, json.dumps({"choices": [choice], "usage": usage}).encode())

    def counted(self) -> Answer:
        count = self._answered * TOKENS * self._times
        lines = [
            "vllm:num_requests_running 1.0",
            "vllm:num_requests_waiting 0.0",
            f"vllm:generation_tokens_total {count}",
            f"vllm:prompt_tokens_total {7 * self._answered}",
        ]
        return Answer(200, "\n".join(lines).encode() + b"\n", (("Content-Type", "text/plain; version=0.0.4"),))


def test_the_bundled_servers_queue_is_seen_and_explained_level_by_level(loadtest: Command, tmp_path: Path) -> None:
    done = loadtest(
        "run", "--serve-model", "tiny", "-c", "16", "--scheduler", "continuous", "--max-batch-size", "1,16", "-d", "4s",
        "--input-tokens", "16", "--output-tokens", "96", "-o", "out", "--no-html",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "waiting · " in done.stdout.replace("\u00a0", " ")
    result = the_result(tmp_path / "out")
    assert result["conditions"]["telemetry"][0].startswith("server: loadtest, http://127.0.0.1:")
    for level, running in zip(result["levels"], (1, 16), strict=True):
        server = level["server"]
        assert level["counts"]["ok"] == level["counts"]["sent"], level["errors"]
        assert server["kind"] == "loadtest"
        assert server["looks"] >= 5, "before, each second and after"
        assert server["running"]["max"] == running
        assert server["generation_tokens"]["server"] == server["generation_tokens"]["client"] > 0
        assert server["prompt_tokens"]["server"] == server["prompt_tokens"]["client"] > 0
        times = [at for at, _ in server["running"]["series"]]
        assert times == sorted(times)
        assert times[0] < 100, "the first look is before the first request, or as it is sent"
        assert level["host"] is None or 0 < level["host"]["cpu_share"]["mean"] <= 1
    queued, batched = (level["server"]["waiting"]["mean"] for level in result["levels"])
    assert queued > 10 > batched

    explained = json.loads(loadtest("explain", "out", "--json", "-").stdout)
    # A host that is busy with other things may be a limit too, and is none of the server's.
    first = {
        one["level"]: next(found for found in one["findings"] if found["limit"] != "client")
        for one in explained["levels"]
    }
    assert first["continuous 1 c=16"]["limit"] == "server_queue"
    assert first["continuous 1 c=16"]["weight"] > 0.8
    assert first["continuous 1 c=16"]["evidence"]["batch_size"] == pytest.approx(1, abs=0.1)
    assert first["continuous 16 c=16"]["limit"] == "decode"
    said = loadtest("explain", "out").stdout
    assert re.search(r"% the server's queue: 1[3-5]\.\d requests waited while [01]\.\d ran", said)
    assert "% decode: " in said


def test_counts_that_contradict_the_answers_make_the_verdict_invalid(loadtest: Command, tmp_path: Path) -> None:
    with telling(Serving(times=0.5)) as server:
        done = loadtest("run", server.url, *SENDS, "--slo", "p50(e2e) < 10s", "-o", "out")
    assert done.returncode == 97, done.stdout + done.stderr
    result = the_result(tmp_path / "out")
    assert result["levels"][0]["server"]["generation_tokens"] == {"server": 250, "client": 500}
    assert result["verdict"]["outcome"] == "INVALID"
    assert "the server's counts disagree" in result["verdict"]["reasons"][0]
    assert "the server's counts disagree" in done.stdout


def test_what_others_used_is_a_warning(loadtest: Command, tmp_path: Path) -> None:
    with telling(Serving(times=3.0)) as server:
        done = loadtest("run", server.url, *SENDS, "-o", "out")
    assert done.returncode == 0, done.stderr
    result = the_result(tmp_path / "out")
    assert not any("disagree" in reason for reason in result["levels"][0]["client"]["reasons"])
    assert any("200.0% more output tokens" in warning for warning in result["warnings"])


def test_metrics_are_not_looked_for_when_they_are_off(loadtest: Command, tmp_path: Path) -> None:
    with telling(Serving()) as server:
        done = loadtest("run", server.url, *SENDS, "-o", "out", "--metrics", "off")
        assert not [asked for asked in server.asked if asked.path == "/metrics"]
    assert done.returncode == 0, done.stderr
    result = the_result(tmp_path / "out")
    assert result["levels"][0]["server"] is None
    assert result["conditions"]["telemetry"] == ["server: not asked (--metrics off)"]


def slow() -> Answer:
    time.sleep(3)
    return Answer(200, b"vllm:num_requests_running 1\n")


@pytest.mark.parametrize(
    ("metrics", "why"),
    [
        (lambda: Answer(404, b"no"), "answered 404"),
        (lambda: Answer(200, b"<html>sign in</html>"), "no metrics of a server that is known here"),
        (lambda: Answer(200, b"go_goroutines 7\n"), "no metrics of a server that is known here"),
        (lambda: Answer(200, b'vllm:num_requests_running{a="b" 7\n'), "damaged metrics"),
        (lambda: Answer(200, b"x" * (17 << 20)), "more than 16 MiB"),
        (slow, "no whole answer within 2 s"),
    ],
    ids=["none", "a page", "others", "damaged", "huge", "slow"],
)
def test_metrics_that_cannot_be_read_are_a_note_and_no_harm(
    loadtest: Command, tmp_path: Path, metrics: Callable[[], Answer], why: str
) -> None:
    with telling(Serving(metrics=metrics)) as server:
        done = loadtest("run", server.url, *SENDS, "-o", "out")
        assert sum(asked.path == "/metrics" for asked in server.asked) == 1, "not asked again and again"
    assert done.returncode == 0, done.stderr
    result = the_result(tmp_path / "out")
    assert result["levels"][0]["server"] is None
    assert result["levels"][0]["counts"]["ok"] == 5
    (note,) = [note for note in result["conditions"]["telemetry"] if note.startswith("server: ")]
    assert why in note
    assert not any("metrics" in warning for warning in result["warnings"]), "nobody asked for them"
    assert "cannot tell: because the server's metrics were not seen" in loadtest("explain", "out").stdout


def test_metrics_that_were_asked_for_and_are_not_there_are_a_warning(loadtest: Command, tmp_path: Path) -> None:
    with telling(Serving(metrics=lambda: Answer(503, b"later"))) as server:
        done = loadtest("run", server.url, *SENDS, "-o", "out", "--metrics", f"{server.url}/metrics")
    assert done.returncode == 0, done.stderr
    assert "answered 503" in done.stdout
    result = the_result(tmp_path / "out")
    assert sum("answered 503" in warning for warning in result["warnings"]) == 2
    assert "the server's metrics were not seen" in done.stdout.replace("\n  ", " ")
    assert any("server: not seen" in note for note in result["conditions"]["telemetry"])


def test_a_look_that_is_missing_at_the_end_is_no_count_that_contradicts(loadtest: Command, tmp_path: Path) -> None:
    serving, looks = Serving(), iter(range(2))  # when they are looked for, and before the first request

    def metrics() -> Answer:
        return Answer(503, b"later") if next(looks, None) is None else serving.counted()

    with telling(lambda asked: metrics() if asked.path == "/metrics" else serving(asked)) as server:
        done = loadtest("run", server.url, *SENDS, "-o", "out")
    result = the_result(tmp_path / "out")
    assert result["levels"][0]["server"]["looks"] == 1
    assert result["levels"][0]["server"]["generation_tokens"] is None
    assert not [reason for reason in result["levels"][0]["client"]["reasons"] if "disagree" in reason]
    assert "the server's metrics were missing at times" in done.stdout.replace("\n  ", " ")


def test_a_key_is_told_to_the_targets_host_alone(loadtest: Command, tmp_path: Path) -> None:
    with telling(Serving()) as server, telling(Serving()) as other:
        elsewhere = other.url.replace("127.0.0.1", "localhost")
        flags = ("--api-key", "sk-of-mine", "--metrics", f"{elsewhere.replace('://', '://me:hidden-word@')}/metrics")
        done = loadtest("run", server.url, *SENDS, "-o", "out", *flags)
        assert done.returncode == 0, done.stderr
        seen = [asked for asked in other.asked if asked.path == "/metrics"]
        assert len(seen) >= 3
        assert all(asked.headers["authorization"].startswith("Basic ") for asked in seen)
        loadtest("run", server.url, *SENDS, "-o", "own", "--api-key", "sk-of-mine")
        own = [asked for asked in server.asked if asked.path == "/metrics"]
        assert {asked.headers["authorization"] for asked in own} == {"Bearer sk-of-mine"}
    kept = b"".join(path.read_bytes() for path in (tmp_path / "out").iterdir())
    assert b"hidden-word" not in kept + done.stdout.encode() + done.stderr.encode()
    assert b"sk-of-mine" not in kept


def test_gpus_of_an_exporter_are_in_the_result_with_the_energy_of_a_token(loadtest: Command, tmp_path: Path) -> None:
    looks = 0

    def exporter(asked: Asked) -> Answer:
        nonlocal looks
        looks += 1
        return Answer(200, DCGM.replace("} 8000000", f"}} {8_000_000 + 50_000 * looks}").encode())

    with telling(Serving()) as server, telling(exporter) as gpus:
        done = loadtest("run", server.url, *SENDS, "-o", "out", "--dcgm", gpus.url)
    assert done.returncode == 0, done.stderr
    level = the_result(tmp_path / "out")["levels"][0]
    first, second = level["gpus"]
    assert (first["id"], first["name"], first["throttled"]) == ("node/0", "NVIDIA H100", {"power_cap": 1.0})
    assert first["power_w"]["mean"] == 695.5
    assert first["energy_j"] == pytest.approx(50 * (looks - 2)), "of the level, without the look before it"
    assert second["power_w"] is None
    assert level["energy_per_output_token_j"] is None, "of one of them it is not known"
    assert "696 W" in done.stdout.replace("\u00a0", " ")
    assert "the GPU's power or heat: the clock of GPU node/0 was held down" in loadtest("explain", "out").stdout


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--metrics", "ftp://x"), "--metrics: URL"),
        (("--dcgm", ""), "--dcgm: URL"),
        (("--gpu", "--dcgm", "http://x"), "give one of them"),
    ],
)
def test_what_cannot_be_meant_is_refused_in_one_line(loadtest: Command, flags: tuple[str, ...], words: str) -> None:
    with telling(Serving()) as server:
        done = loadtest("run", server.url, *SENDS, *flags)
        assert not server.posts
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_gpus_that_are_not_there_are_refused_before_anything_is_sent(loadtest: Command, tmp_path: Path) -> None:
    driverless = "class NVMLError(Exception): pass\ndef nvmlInit(): raise NVMLError('Driver Not Loaded')\n"
    (tmp_path / "pynvml.py").write_text(driverless, "utf-8")
    with telling(Serving()) as server:
        done = loadtest("run", server.url, *SENDS, "--gpu", PYTHONPATH=str(tmp_path))
        assert not server.posts
    assert done.returncode == 2
    assert "no NVIDIA driver answers on this host (Driver Not Loaded); leave it out" in done.stderr


def test_this_hosts_gpus_are_not_those_of_another(loadtest: Command) -> None:
    done = loadtest("run", "http://far.invalid:80", *SENDS, "--gpu")
    assert done.returncode == 2
    assert "give --dcgm URL" in done.stderr


def test_one_servers_metrics_are_not_those_of_two(loadtest: Command) -> None:
    done = loadtest("compare", "--run", "http://127.0.0.1:9", "http://127.0.0.1:8", "--metrics", "http://127.0.0.1:7")
    assert done.returncode == 2
    assert "plays two" in done.stderr


def watched(url: str, folder: Path, **flags: str) -> Options:
    flags = {"concurrency": "2", "duration": "4s", "warmup": "1s", "output_tokens": "8", **flags}
    return Options(
        url=url, source=None, overrides={name: Override(value, "-") for name, value in flags.items()}, output=folder,
    )  # fmt: skip


def test_what_is_kept_of_the_looks_makes_the_figures_of_the_run(
    tmp_path: Path, tiny: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loadtest.telemetry.trail.forget", lambda _: None)
    of_the_run = run(watched(tiny, tmp_path / "out", concurrency="1,2"), Progress(StringIO(), quiet=True)).result
    sighted = read(tmp_path / "out")
    assert sighted is not None
    assert sighted.setting.level == 1, "of the level before all is in the result"
    level = of_the_run.levels[1]
    assert level.server is not None
    assert level.server.generation_tokens is not None
    bare = msgspec.structs.replace(level, server=None, host=None)
    own = [record for record in records(tmp_path / "out") if record.level == 1]
    assert with_sight(bare, own, sighted) == level


def test_the_figures_so_far_have_what_was_seen_so_far(
    tmp_path: Path, tiny: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loadtest.vigil.CHECKPOINT_S", 0.3)
    monkeypatch.setattr("loadtest.keeping._FIRST_S", 0.0)
    written: list[LevelResult] = []

    def write(result: Result, _: Path) -> None:
        written.extend(level for level in result.levels if level.goes_on)

    monkeypatch.setattr("loadtest.run.write", write)
    run(watched(tiny, tmp_path / "out", warmup="0s"), Progress(StringIO(), quiet=True))
    assert written
    server = written[-1].server
    assert server is not None
    assert server.running is not None
    assert server.generation_tokens is not None
    assert server.generation_tokens.client is None, "some of them are of answers that have not ended"
    assert not any("disagree" in reason for reason in written[-1].client.reasons)


def test_a_run_that_was_killed_has_what_was_seen_until_then(
    environment: dict[str, str], tmp_path: Path, tiny: str, loadtest: Command
) -> None:
    flags = ("-c", "8", "-d", "4s", "--warmup", "0s", "--output-tokens", "64", "--no-html")
    with start({**environment, "LOADTEST_API_KEY": "sk-of-mine"}, tmp_path, tiny, *flags) as process:
        wait_for_records(tmp_path, 1)
        kept = tmp_path / "out" / FILE_NAME
        until = time.monotonic() + 20
        while kept.read_bytes().count(b'"eye":"server"') < 3 and time.monotonic() < until:
            time.sleep(0.05)
        process.kill()
        process.communicate(timeout=20)
    assert b"sk-of-mine" not in kept.read_bytes()
    again = loadtest("report", "out", "--json", "-")
    assert again.returncode == 0, again.stderr
    level = json.loads(again.stdout)["levels"][0]
    assert level["status"] == "aborted"
    assert level["server"]["kind"] == "loadtest"
    assert level["server"]["url"] == f"{tiny}/metrics"
    assert level["server"]["looks"] >= 3
    assert level["server"]["running"]["max"] >= 1
    said = "what was in flight was counted by the server alone"
    assert not any("disagree" in reason for reason in level["client"]["reasons"]), said
    assert level["host"] is None or level["host"]["cpu_share"] is not None
    assert "the server's metrics were not seen" not in loadtest("explain", "out").stdout
    done = loadtest("resume", "out", "-q", LOADTEST_API_KEY="sk-of-mine")
    assert done.returncode == 0, done.stderr
    server = the_result(tmp_path / "out")["levels"][0]["server"]
    assert server["generation_tokens"]["server"] == server["generation_tokens"]["client"] > 0
    assert not kept.exists(), "all of it is in the result"


def test_what_is_no_result_cannot_be_explained(loadtest: Command, tmp_path: Path) -> None:
    done = loadtest("explain", str(tmp_path))
    assert done.returncode == 1
    assert "not a result folder" in done.stderr
