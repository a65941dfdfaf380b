import json
import os
import socket
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from loadtest.errors import UsageError
from loadtest.feeds import Exposition, JsonLines
from loadtest.glance import Glance

SEEN = Glance(
    level=1, levels=2, name='c=4 "a"', state="sending", elapsed_s=10.0, duration_s=30.0, requests=None, in_flight=4,
    ok=40, failed=2, output_tokens=800, requests_per_s=4.0, output_tokens_per_s=80.0, ttft_p50_ms=100.0,
    ttft_p99_ms=250.0, e2e_p50_ms=None, e2e_p99_ms=None, send_lag_p99_ms=0.1, loop_lag_p99_ms=0.2,
)  # fmt: skip


@pytest.fixture
def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        number: int = server.getsockname()[1]
    return number


@pytest.fixture
def exposition(port: int) -> Iterator[Exposition]:
    served = Exposition(f":{port}")
    yield served
    served.close()
    served._server.server_close()


def scrape(port: int) -> dict[str, float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as reply:
        lines = reply.read().decode().splitlines()
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if line[0] != "#")}


def refuse(text: str) -> None:
    raise AssertionError(text)


def test_each_glance_is_a_line_of_json_with_units_in_its_keys(tmp_path: Path) -> None:
    path = tmp_path / "live.ndjson"
    feed = JsonLines(str(path), refuse)
    feed.take(SEEN)
    feed.take(msgspec.structs.replace(SEEN, state="ended"))
    first, second = map(json.loads, path.read_text("utf-8").splitlines())
    assert first.pop("at").endswith("Z")
    assert first == msgspec.to_builtins(SEEN)
    assert second["state"] == "ended"


def test_a_file_that_cannot_be_written_is_refused_before_the_run(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"--live-json .*: No such file or directory; name a file"):
        JsonLines(str(tmp_path / "none" / "live.ndjson"), refuse)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="named pipes")
def test_a_reader_that_does_not_read_or_leaves_does_not_hold_up_the_run(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    told: list[str] = []
    feed = JsonLines(str(path), told.append)
    for _ in range(1000):  # more than the pipe holds
        feed.take(SEEN)
    whole = os.read(reader, 10**6).splitlines()
    assert 10 < len(whole) < 1000
    assert all(json.loads(line)["level"] == 1 for line in whole), "left out, and not cut"
    os.close(reader)
    feed.take(SEEN)
    feed.take(SEEN)
    assert told == [f"warning: --live-json {path}: Broken pipe; no more is written there"]


def test_prometheus_scrapes_what_is_seen(exposition: Exposition, port: int) -> None:
    exposition.begin()
    exposition.take(SEEN)
    found = scrape(port)
    assert found['loadtest_requests_total{outcome="ok"}'] == 40
    assert found['loadtest_requests_total{outcome="failed"}'] == 2
    assert found["loadtest_output_tokens_total"] == 800
    assert found["loadtest_in_flight"] == 4
    assert found['loadtest_ttft_seconds{quantile="0.99"}'] == 0.25
    assert found['loadtest_send_lag_seconds{quantile="0.99"}'] == 0.0001
    assert found['loadtest_level_info{level="1",levels="2",name="c=4 \\"a\\""}'] == 1
    assert not any("e2e" in name for name in found), "not measured is not 0"
    exposition.take(msgspec.structs.replace(SEEN, levels=None))
    assert scrape(port)['loadtest_level_info{level="1",levels="",name="c=4 \\"a\\""}'] == 1, "of a search"


def test_counters_go_on_from_level_to_level_and_from_run_to_run(exposition: Exposition, port: int) -> None:
    exposition.begin()
    exposition.take(SEEN)
    exposition.close()
    exposition.begin()
    assert scrape(port)['loadtest_requests_total{outcome="ok"}'] == 40
    exposition.take(SEEN)
    assert scrape(port)['loadtest_requests_total{outcome="ok"}'] == 80


@pytest.mark.parametrize("address", ["", "nine", ":0", ":70000", "a:b:1", "http://127.0.0.1:9464"])
def test_an_address_of_another_form_is_refused(address: str) -> None:
    with pytest.raises(UsageError, match=r"expected \[HOST\]:PORT"):
        Exposition(address)


def test_a_port_in_use_is_refused(port: int) -> None:
    with (
        socket.create_server(("127.0.0.1", port)),
        pytest.raises(UsageError, match=rf"cannot listen on 127.0.0.1 port {port} \(Address already in use\); name"),
    ):
        Exposition(f":{port}")
