"""Exports of a run by the real command, and the traces that both sides share."""

import csv
import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from loadtest.trace import traceparent
from tests.conftest import Command
from tests.e2e.test_run import the_result

pytestmark = pytest.mark.e2e
ANSWER = b'{"choices": [{"message": {"content": "hi"}}], "usage": {"prompt_tokens": 8, "completion_tokens": 1}}'


class Traced(http.server.BaseHTTPRequestHandler):
    """Keeps the trace that each request says it is of."""

    protocol_version = "HTTP/1.1"
    seen: ClassVar[list[str | None]] = []

    def do_GET(self) -> None:
        self._answer(b'{"data": [{"id": "m"}]}')

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.seen.append(self.headers["traceparent"])
        self._answer(ANSWER)

    def _answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None: ...


@pytest.fixture
def traced() -> Iterator[str]:
    Traced.seen.clear()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Traced) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("transport", ["fast", "aiohttp"])
def test_the_server_is_told_the_trace_that_the_exported_span_will_have(
    loadtest: Command, tmp_path: Path, traced: str, transport: str
) -> None:
    asked = ("-c", "2", "-n", "6", "--no-stream", "--warmup", "0s", "--transport", transport)
    done = loadtest("run", traced, *asked, "--traceparent", "-o", "out", "--csv", "levels.csv")
    assert done.returncode == 0, done.stdout + done.stderr
    run = the_result(tmp_path / "out")["run_id"]
    assert {traceparent(run, 0, request) for request in range(6)} <= set(Traced.seen)
    (row,) = csv.DictReader((tmp_path / "levels.csv").read_text("utf-8").splitlines())
    assert (row["run_id"], row["ok"]) == (run, "6")
    done = loadtest("run", traced, *asked, "--traceparent", "-H", "traceparent: mine")
    assert done.returncode == 2
    assert "both say it" in done.stderr


def test_a_collector_out_of_reach_costs_nothing_of_the_result(loadtest: Command, tmp_path: Path, traced: str) -> None:
    done = loadtest(
        "run", traced, "-c", "2", "-n", "6", "--no-stream", "-o", "out", "--otlp", "http://127.0.0.1:9", "--json", "-"
    )
    assert done.returncode == 1
    assert json.loads(done.stdout)["levels"][0]["counts"]["ok"] == 6
    assert the_result(tmp_path / "out")["exit_code"] == 0
    assert "error: cannot send to the collector at http://127.0.0.1:9: Connection refused; see" in done.stderr
    assert "loadtest report out takes the flag too" in done.stderr
    assert "Traceback" not in done.stderr
