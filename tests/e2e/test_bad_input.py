"""What can be wrong gets one clear message, the right exit code, and never a traceback."""

import contextlib
import http.server
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from tests.conftest import Command

pytestmark = pytest.mark.e2e
SECRET = "sk-test-0123456789"


def only_message(text: str) -> str:
    """The error that a user reads: no traceback around it."""
    assert "Traceback" not in text
    lines = [line for line in text.splitlines() if line.startswith(("error: ", "Error: "))]
    assert len(lines) == 1, text
    return lines[0]


class Refusing(http.server.BaseHTTPRequestHandler):
    """Lists a model, and answers everything else with ``status`` and ``body``."""

    protocol_version = "HTTP/1.1"
    status: ClassVar[int] = 401
    body: ClassVar[bytes] = b'{"error": {"message": "Incorrect API key provided: sk-test-0123456789"}}'

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        self._answer(200, b'{"data": [{"id": "m"}]}')

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(self.status, self.body)

    def log_message(self, format: str, *args: object) -> None:
        del format, args


@pytest.fixture(scope="module")
def refusing() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def test_nobody_listens(loadtest: Command, tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    done = loadtest("run", f"http://127.0.0.1:{port}", "-n", "60", timeout=60)
    assert done.returncode == 1
    message = only_message(done.stderr)
    assert f"127.0.0.1:{port}" in message
    assert "refused" in message
    assert not (tmp_path / "results").exists() or not list((tmp_path / "results").iterdir())


def test_a_name_that_does_not_resolve(loadtest: Command) -> None:
    done = loadtest("run", "http://no-such-host.invalid:8000", timeout=60)
    assert done.returncode == 1
    assert "no-such-host.invalid" in only_message(done.stderr)


def test_a_server_that_takes_connections_and_says_nothing(loadtest: Command) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        done = loadtest("run", f"http://127.0.0.1:{silent.getsockname()[1]}", timeout=60)  # and not --timeout's 300 s
    assert done.returncode == 1
    assert "no whole answer within" in only_message(done.stderr)


def test_a_refusal_is_told_in_the_servers_own_words_and_ends_the_run_early(
    loadtest: Command, refusing: str, tmp_path: Path
) -> None:
    done = loadtest(
        "run", refusing, "-c", "4,8", "-d", "30s", "--api-key", SECRET, "-o", "out", "--no-rehearsal", timeout=50
    )
    assert done.returncode == 1
    assert "Incorrect API key provided" in only_message(done.stderr)
    result = json.loads((tmp_path / "out" / "result.json").read_text("utf-8"))
    assert result["exit_code"] == 1
    assert result["complete"] is False
    assert [level["status"] for level in result["levels"]] == ["aborted", "not_reached"]
    assert result["levels"][0]["errors"][0]["status"] == 401


def test_a_secret_is_in_no_file_and_no_output(loadtest: Command, refusing: str, tmp_path: Path) -> None:
    done = loadtest(
        "run", f"{refusing}/?key={SECRET}", "-n", "3", "-H", f"X-Token: {SECRET}", "--api-key", SECRET,
        "-vv", "-o", "out", "--no-rehearsal",
    )  # fmt: skip
    assert done.returncode == 1
    assert SECRET not in done.stdout + done.stderr
    files = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert {path.name for path in files} >= {"result.json", "records.jsonl", "scenario.resolved.yaml"}
    for path in files:
        assert SECRET not in path.read_text("utf-8"), path
    assert SECRET not in loadtest("report", "out").stdout


def test_an_unknown_model_and_a_wrong_path(loadtest: Command, tiny: str) -> None:
    done = loadtest("run", tiny, "--model", "gpt-nought", "-n", "3")
    assert done.returncode == 1
    assert "gpt-nought" in only_message(done.stderr)
    done = loadtest("run", f"{tiny}/wrong", "--model", "tiny", "-n", "3")
    assert done.returncode == 1
    assert "404" in only_message(done.stderr)


def test_a_prompt_over_the_context_is_told_in_the_servers_words(loadtest: Command, tiny: str) -> None:
    done = loadtest("run", tiny, "-n", "3", "--input-tokens", "90000")
    assert done.returncode == 1
    assert "context" in only_message(done.stderr)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "http://127.0.0.1:1", "-c", "four"], "--concurrency"),
        (["run", "http://127.0.0.1:1", "-c", "0"], "--concurrency"),
        (["run", "http://127.0.0.1:1", "-d", "30"], "30s"),
        (["run", "http://127.0.0.1:1", "-s", "quickstrat"], "quickstart"),
        (["run", "http://127.0.0.1:1", "-H", "no colon"], "-H"),
        (["run", "http://127.0.0.1:1", "--endpoint", "chatt"], "chat"),
        (["run", "ftp://127.0.0.1"], "http"),
        (["run", "--model", "x"], "--serve-model"),
        (["run", "--max-batch-size", "-1"], "--max-batch-size"),
        (["run", "--no-such-flag"], "--no-such-flag"),
        (["run", "--csv", "--parquet", "x.parquet"], "--csv has no value before --parquet"),
        (["run", "--compat", "vllm", "--live-json", "x"], "--compat has no value before --live-json"),
    ],
)
def test_a_bad_flag_is_named_and_exits_2(loadtest: Command, arguments: list[str], words: str, tmp_path: Path) -> None:
    done = loadtest(*arguments)
    assert done.returncode == 2, done.stderr
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "results").exists() or not list((tmp_path / "results").iterdir())


def test_every_fault_of_a_scenario_is_told_at_once_with_its_place(loadtest: Command, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(
        "question: Why?\nworkload: {input_tokens: -5}\nload:\n  concurency: 4\n  duration: 30\n", "utf-8"
    )
    done = loadtest("run", "http://127.0.0.1:1", "-s", "mine.yaml")
    assert done.returncode == 2
    for words in ("mine.yaml:2:", "mine.yaml:4:", "did you mean", "concurrency", "mine.yaml:5:"):
        assert words in done.stderr


def test_a_folder_with_something_in_it_is_not_written_over(loadtest: Command, tiny: str, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "precious").write_text("x", "utf-8")
    done = loadtest("run", tiny, "-n", "1", "-o", "mine")
    assert done.returncode == 2
    assert "not empty" in only_message(done.stderr)
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["precious"]


def test_a_report_of_no_result_says_so(loadtest: Command, tmp_path: Path) -> None:
    done = loadtest("report", "nowhere")
    assert done.returncode == 1
    assert "nowhere is not a result folder" in only_message(done.stderr)
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "result.json").write_text("{", "utf-8")
    assert "damaged" in only_message(loadtest("report", "bad").stderr)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--provider", "cuda"], "cuda"),
        (["--serve-model", "no-such-folder"], "no-such-folder"),
    ],
)
def test_a_bundled_server_that_cannot_start_exits_3_with_the_mend(
    loadtest: Command, tmp_path: Path, flags: list[str], words: str
) -> None:
    done = loadtest("run", *flags, "-d", "1s")
    assert done.returncode == 3, done.stderr
    assert words in only_message(done.stderr).lower()
    assert not list((tmp_path / "results").iterdir())


def test_a_cache_folder_that_cannot_be_written_exits_3(loadtest: Command, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way", "utf-8")
    done = loadtest("run", "-d", "1s", XDG_CACHE_HOME=str(tmp_path / "file"))
    assert done.returncode == 3, done.stderr
    assert "cache" in only_message(done.stderr).lower() or "file" in only_message(done.stderr)


def test_a_port_that_is_taken_exits_3(loadtest: Command) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = loadtest("serve", "--model", "tiny", "--port", str(taken.getsockname()[1]))
    assert done.returncode == 3
    assert str(taken) not in done.stderr
    assert "in use" in only_message(done.stderr).lower()


def test_a_server_that_drips_is_not_waited_for_for_ever(loadtest: Command) -> None:
    def drip(server: socket.socket) -> None:
        connection, _ = server.accept()
        with connection, contextlib.suppress(OSError):  # the client has hung up: that is the test
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 10000\r\n\r\n")
            for _ in range(300):
                connection.sendall(b"x")
                time.sleep(0.1)

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=drip, args=(server,), daemon=True).start()
        done = loadtest("run", f"http://127.0.0.1:{server.getsockname()[1]}", timeout=20)
    assert done.returncode == 1
    assert "no whole answer within" in only_message(done.stderr)


def test_a_json_file_that_cannot_be_written_is_found_before_the_run(loadtest: Command, tiny: str) -> None:
    done = loadtest("run", tiny, "-n", "1", "--json", "no-such-folder/result.json")
    assert done.returncode == 2
    assert "no-such-folder/result.json" in done.stderr
    assert "Traceback" not in done.stderr


def test_flags_of_the_bundled_server_are_not_silently_left_out(loadtest: Command, tiny: str) -> None:
    done = loadtest("run", tiny, "-n", "1", "-q", "--serve-model", "demo", "--threads", "2", "--output-tokens", "2")
    assert done.returncode == 0, done.stderr
    assert "set for the bundled server, and so not used here: --serve-model, --threads" in done.stdout


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_full_disk_under_stdout_is_one_message(environment: dict[str, str], refusing: str, tmp_path: Path) -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "loadtest", "run", refusing, "-n", "3", "-q", "--no-rehearsal"],
            cwd=tmp_path, env=environment, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False,
        )  # fmt: skip
    assert done.returncode == 1
    assert "cannot write to stdout" in only_message(done.stderr)


def test_a_reader_that_leaves_early_does_not_hide_the_exit_code(
    environment: dict[str, str], refusing: str, tmp_path: Path
) -> None:
    run = f"{sys.executable} -m loadtest run {refusing} -n 3 -q --no-rehearsal --json -"
    command = f"{run} | head -c 10; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", command], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
