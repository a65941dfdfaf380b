"""Caps, ceilings and rules of the load, seen from outside."""

import http.server
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Command

pytestmark = pytest.mark.e2e


class Slow(http.server.BaseHTTPRequestHandler):
    """Answers after 200 ms, or with 503 where the path says so, and counts how many it holds at once."""

    protocol_version = "HTTP/1.1"
    lock = threading.Lock()
    held = peak = 0

    def do_GET(self) -> None:
        self._answer(200, b'{"data": [{"id": "m"}]}')

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        if self.path.startswith("/broken"):
            self._answer(503, b'{"error": {"message": "overloaded"}}')
            return
        with self.lock:
            type(self).held += 1
            type(self).peak = max(self.peak, self.held)
        time.sleep(0.2)
        with self.lock:
            type(self).held -= 1
        self._answer(200, b'{"choices": [{"message": {"content": "a"}, "finish_reason": "stop"}]}')

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        del format, args


@pytest.fixture
def slow() -> Iterator[str]:
    Slow.peak = 0
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Slow) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def the_level(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "out" / "result.json").read_text("utf-8"))["levels"][0]
    return found


def test_a_cap_queues_and_the_wait_is_in_the_latency(loadtest: Command, slow: str, tmp_path: Path) -> None:
    flags = ["-r", "50", "--arrival", "constant", "-n", "20", "--no-stream", "--max-in-flight", "4", "-o", "out"]
    done = loadtest("run", slow, *flags)
    assert done.returncode == 0, done.stderr
    level = the_level(tmp_path)
    assert Slow.peak <= 4
    assert level["counts"]["ok"] == 20
    assert level["latency"]["e2e_ms"]["ok"]["max"] > 500, "the last ones waited for four rounds before them"
    assert level["latency"]["service_e2e_ms"]["ok"]["p50"] < 400
    lag, own = (level["latency"][name]["ok"]["p50"] for name in ("lag_ms", "own_lag_ms"))
    assert own < lag / 4, "waiting behind the user's own cap is not the client's lateness"


def test_more_workers_than_slots_play_every_request_and_the_level_ends(
    loadtest: Command, slow: str, tmp_path: Path
) -> None:
    done = loadtest("run", slow, "-c", "1", "-n", "6", "--no-stream", "--workers", "3", "-o", "out")
    assert done.returncode == 0, done.stderr
    level = the_level(tmp_path)
    assert Slow.peak == 1
    assert level["counts"]["ok"] == level["counts"]["scheduled"] == 6
    assert level["client"]["workers"] == 1


def test_workers_with_unlike_shares_of_the_slots_end_together(loadtest: Command, slow: str, tmp_path: Path) -> None:
    done = loadtest("run", slow, "-c", "3", "-n", "12", "--no-stream", "--workers", "2", "-o", "out")
    assert done.returncode == 0, done.stderr
    played = [json.loads(line) for line in (tmp_path / "out" / "records.jsonl").read_text("utf-8").splitlines()]
    assert sorted(record["worker"] for record in played) == [0] * 8 + [1] * 4


def test_a_cap_holds_for_the_whole_run_also_with_more_workers(loadtest: Command, slow: str, tmp_path: Path) -> None:
    flags = ["-r", "50", "-n", "6", "--no-stream", "--max-in-flight", "1", "--workers", "3", "-o", "out"]
    done = loadtest("run", slow, *flags)
    assert done.returncode == 0, done.stderr
    assert Slow.peak == 1
    assert the_level(tmp_path)["counts"]["ok"] == 6


def test_a_cap_that_drops_counts_what_it_dropped_as_failed(loadtest: Command, slow: str, tmp_path: Path) -> None:
    flags = ["-r", "50", "--arrival", "constant", "-n", "20", "--no-stream", "--max-in-flight", "4:drop", "-o", "out"]
    done = loadtest("run", slow, *flags)
    assert done.returncode == 0, done.stderr
    level = the_level(tmp_path)
    assert level["counts"]["never_sent"] > 0
    assert level["counts"]["ok"] + level["counts"]["never_sent"] == level["counts"]["scheduled"] == 20
    assert {error["kind"] for error in level["errors"]} == {"dropped"}
    assert level["latency"]["e2e_ms"]["due"]["failed"] == level["counts"]["never_sent"]


def test_the_ceiling_is_of_the_whole_run(loadtest: Command, slow: str, tmp_path: Path) -> None:
    flags = ["-c", "16", "-n", "40", "--no-stream", "--max-rate", "20", "--workers", "2", "-o", "out"]
    done = loadtest("run", slow, *flags)
    assert done.returncode == 0, done.stderr
    sent = sorted(
        json.loads(line)["sent_ms"] for line in (tmp_path / "out" / "records.jsonl").read_text("utf-8").splitlines()
    )
    assert sent[-1] - sent[0] > 1700, "40 requests at 20 a second"


def test_abort_on_ends_the_run_with_exit_99_and_the_reason(loadtest: Command, slow: str, tmp_path: Path) -> None:
    began = time.monotonic()
    flags = [
        "-r",
        "20",
        "-d",
        "60s",
        "--warmup",
        "0s",
        "--no-stream",
        "--abort-on",
        "error_rate > 50% for 1s",
        "-o",
        "out",
    ]
    done = loadtest("run", f"{slow}/broken", "--model", "m", *flags)
    assert time.monotonic() - began < 20
    assert done.returncode == 99, done.stderr
    assert "error_rate" in done.stderr
    level = the_level(tmp_path)
    assert level["status"] == "aborted"
    assert level["counts"]["http_error"] > 5


def test_a_level_that_cannot_end_is_cut_off(loadtest: Command, slow: str, tmp_path: Path) -> None:
    flags = ["-c", "3", "-d", "500ms", "--warmup", "0s", "--grace", "50ms", "--no-stream", "-o", "out"]
    done = loadtest("run", slow, *flags)
    assert done.returncode == 0, done.stderr
    level = the_level(tmp_path)
    assert level["counts"]["cancelled"] > 0
    assert "cut off" in level["errors"][0]["example"]


def test_more_connections_than_this_host_has_ports_are_refused_before_the_start(loadtest: Command, slow: str) -> None:
    done = loadtest("run", slow, "-c", "70000", "-n", "70000")
    assert done.returncode == 2, done.stderr
    assert "--concurrency 70000" in done.stderr
