"""Every way to a target, with the real command: TLS, proxies, unix sockets, IPv6; and two transports that agree."""

import contextlib
import http.client
import http.server
import json
import re
import socket
import socketserver
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from click.testing import CliRunner

from loadtest.cli import main
from tests.conftest import Command

pytestmark = pytest.mark.e2e
TRANSPORTS = ["fast", "aiohttp"]
CASE = "/case/count-one-token"
PLAY = ("-c", "2", "-n", "4", "--output-tokens", "5", "-o", "out")
PASSWORD = "pa55word"


def result(folder: Path) -> dict[str, Any]:
    """What the run wrote."""
    found: dict[str, Any] = json.loads((folder / "out" / "result.json").read_text("utf-8"))
    return found


def played(done: "subprocess.CompletedProcess[str]", folder: Path) -> dict[str, Any]:
    """The endpoint, as the result has it, of a run that went well."""
    assert done.returncode == 0, done.stderr
    found = result(folder)
    assert found["levels"][0]["counts"]["ok"] == 4
    endpoint: dict[str, Any] = found["conditions"]["endpoint"]
    return endpoint


@pytest.fixture(scope="module")
def plain(replayer: Callable[..., str]) -> str:
    """A replay server."""
    return replayer()


@pytest.fixture(scope="module")
def tls(replayer: Callable[..., str], certificate: tuple[Path, Path]) -> str:
    """A replay server with a certificate of its own making."""
    return replayer("--tls-cert", str(certificate[0]), "--tls-key", str(certificate[1]))


class Proxying(http.server.BaseHTTPRequestHandler):
    """An HTTP proxy to which every host is this one; notes what it is asked."""

    protocol_version = "HTTP/1.1"
    seen: ClassVar[list[tuple[str, str, dict[str, str]]]] = []

    def _forward(self) -> None:
        self.seen.append((self.command, self.path, {name.lower(): value for name, value in self.headers.items()}))
        found = re.fullmatch(r"http://[^/:]+:(\d+)(/.*)", self.path)
        assert found
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        there = http.client.HTTPConnection("127.0.0.1", int(found[1]))
        there.request(self.command, found[2], body or None, {"Content-Type": "application/json"})
        reply = there.getresponse()
        data = reply.read()
        there.close()
        self.send_response(reply.status)
        self.send_header("Content-Type", reply.headers["Content-Type"])
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self) -> None:
        self._forward()

    def do_POST(self) -> None:
        self._forward()

    def do_CONNECT(self) -> None:
        self.seen.append((self.command, self.path, {}))
        with socket.create_connection(("127.0.0.1", int(self.path.rpartition(":")[2]))) as there:
            self.send_response(200)
            self.end_headers()
            relay(self.connection, there)
        self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:
        del format, args


def relay(near: socket.socket, far: socket.socket) -> None:
    """Carry bytes both ways until one end closes."""

    def carry(source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    back = threading.Thread(target=carry, args=(far, near))
    back.start()
    carry(near, far)
    back.join()


@pytest.fixture
def proxy() -> Iterator[str]:
    """A proxy's URL."""
    Proxying.seen.clear()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Proxying) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@pytest.fixture
def unix(plain: str) -> Iterator[str]:
    """The replay server on a unix socket: the socket's path."""

    class Relaying(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with socket.create_connection(("127.0.0.1", int(plain.rpartition(":")[2]))) as there:
                relay(self.request, there)

    class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
        daemon_threads = True

    with tempfile.TemporaryDirectory() as folder, Server(f"{folder}/s", Relaying) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"{folder}/s"
        server.shutdown()


# -- TLS


def test_conn_self_signed_fails_at_once_and_names_the_certificate_and_the_flags(loadtest: Command, tls: str) -> None:
    began = time.monotonic()
    done = loadtest("run", tls + CASE, *PLAY)
    assert time.monotonic() - began < 20  # of itself it would wait for minutes
    assert done.returncode == 1
    for word in ("certificate", "self-signed", "--cacert", "--insecure"):
        assert word in done.stderr


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("leave", ["--cacert", "--insecure"])
def test_conn_self_signed_with_leave_is_measured(
    loadtest: Command, tls: str, certificate: tuple[Path, Path], transport: str, leave: str, tmp_path: Path
) -> None:
    flags = [leave, str(certificate[0])] if leave == "--cacert" else [leave]
    endpoint = played(loadtest("run", tls + CASE, *PLAY, *flags, "--transport", transport), tmp_path)
    assert (endpoint["transport"], endpoint["url"]) == (transport, tls + CASE)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--cacert", "nowhere.pem"], "--cacert nowhere.pem"),
        (["--cert", "nowhere.pem"], "--cert nowhere.pem"),
        (["--key", "nowhere.pem"], "--key nowhere.pem"),
    ],
)
def test_a_bad_tls_file_is_named_and_exits_2(flags: list[str], words: str) -> None:
    done = CliRunner().invoke(main, ["run", "https://127.0.0.1:1", *PLAY, *flags])
    assert done.exit_code == 2
    assert words in done.stderr
    assert done.stderr.count("\n") == 1


def test_tls_flags_for_a_plain_url_are_said_to_do_nothing(loadtest: Command, plain: str, tmp_path: Path) -> None:
    played(loadtest("run", plain + CASE, *PLAY, "--insecure"), tmp_path)
    assert any("were not used" in warning for warning in result(tmp_path)["warnings"])


# -- addresses


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_an_ipv6_literal(loadtest: Command, replayer: Callable[..., str], transport: str, tmp_path: Path) -> None:
    url = replayer("--host", "::1")
    endpoint = played(loadtest("run", url + CASE, *PLAY, "--transport", transport), tmp_path)
    assert (endpoint["address"], endpoint["url"]) == ("::1", url + CASE)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_unix_socket(loadtest: Command, unix: str, transport: str, tmp_path: Path) -> None:
    endpoint = played(loadtest("run", f"unix:{unix}:{CASE}/v1", *PLAY, "--transport", transport), tmp_path)
    assert (endpoint["address"], endpoint["url"]) == (unix, f"unix:{unix}:{CASE}")


def test_a_unix_socket_that_is_not_there_is_named(loadtest: Command) -> None:
    done = loadtest("run", "unix:/nowhere/s", *PLAY)
    assert done.returncode == 1
    assert "the socket /nowhere/s" in done.stderr


# -- proxies


def test_a_proxy_of_the_environment_carries_everything_and_is_recorded(
    loadtest: Command, plain: str, proxy: str, tmp_path: Path
) -> None:
    """The target's name is the proxy's to resolve; ours could not."""
    url = f"http://far.invalid:{plain.rpartition(':')[2]}{CASE}"
    through = proxy.replace("//", f"//me:{PASSWORD}@")
    done = loadtest("run", url, *PLAY, HTTP_PROXY=through, http_proxy=through, NO_PROXY="", no_proxy="")
    endpoint = played(done, tmp_path)
    assert (endpoint["proxy"], endpoint["transport"], endpoint["url"]) == (proxy, "aiohttp", url)
    assert any(f"the proxy {proxy}" in warning for warning in result(tmp_path)["warnings"])
    methods = [method for method, _, _ in Proxying.seen]
    assert methods[:2] == ["GET"] * 2  # of what kind it is, and its model
    assert methods.count("POST") == 6  # rehearsal, sizing, run
    for _, asked, headers in Proxying.seen:
        assert asked.startswith(url)
        assert headers["proxy-authorization"].startswith("Basic ")
        assert headers["host"] == url.split("/")[2]
    for path in (tmp_path / "out").iterdir():
        assert PASSWORD not in path.read_text("utf-8")
        assert Proxying.seen[0][2]["proxy-authorization"].split()[1] not in path.read_text("utf-8")


def test_https_goes_through_the_proxy_in_a_tunnel(
    loadtest: Command, tls: str, proxy: str, certificate: tuple[Path, Path], tmp_path: Path
) -> None:
    """And a proxy that is named is meant, also for loopback."""
    done = loadtest("run", tls + CASE, *PLAY, "--proxy", proxy, "--cacert", str(certificate[0]))
    assert played(done, tmp_path)["proxy"] == proxy
    assert {method for method, _, _ in Proxying.seen} == {"CONNECT"}
    assert len(Proxying.seen) >= 6  # four questions before, and one connection for each of two slots


def test_a_dead_proxy_is_named_as_the_proxy(loadtest: Command) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        dead = f"http://127.0.0.1:{closed.getsockname()[1]}"
    done = loadtest("run", "https://far.invalid", *PLAY, "--proxy", dead)
    assert done.returncode == 1
    assert f"the proxy {dead}" in done.stderr
    assert "refused" in done.stderr


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--proxy", "http://127.0.0.1:9", "--transport", "fast"], "--transport fast"),
        (["--proxy", "socks5://127.0.0.1:9"], "SOCKS"),
        (["--transport", "quic"], "--transport"),
        (["-H", "Content-Length: 3"], "-H Content-Length"),
        (["-H", "transfer-encoding: chunked"], "-H transfer-encoding"),
    ],
)
def test_what_cannot_be_meant_exits_2(flags: list[str], words: str) -> None:
    done = CliRunner().invoke(main, ["run", "http://127.0.0.1:1", *PLAY, *flags])
    assert done.exit_code == 2
    assert words in done.stderr


# -- who we are


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_user_in_the_url_is_who_we_are_and_a_host_may_be_another(
    loadtest: Command, transport: str, tmp_path: Path
) -> None:
    heads: list[dict[str, str]] = []

    class Noting(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", "0")))
            heads.append({name.lower(): value for name, value in self.headers.items()})
            body = b'{"data": [{"id": "m"}], "error": {"message": "no"}}'
            self.send_response(200 if self.command == "GET" else 403)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self) -> None:
            self.do_GET()

        def log_message(self, format: str, *args: object) -> None:
            del format, args

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Noting) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        where = f"127.0.0.1:{server.server_address[1]}"
        done = loadtest(
            "run", f"http://me:{PASSWORD}@{where}", *PLAY, "-H", "host: other.example", "--transport", transport, "-vv",
            "--no-rehearsal",
        )  # fmt: skip
        server.shutdown()
    assert done.returncode == 1
    assert len(heads) >= 6
    for head in heads:
        assert head["authorization"] == "Basic bWU6cGE1NXdvcmQ="
        assert head["host"] == "other.example"
    said = [done.stdout, done.stderr, *(path.read_text("utf-8") for path in (tmp_path / "out").iterdir())]
    assert not any(secret in text for text in said for secret in (PASSWORD, "bWU6cGE1NXdvcmQ="))
    assert result(tmp_path)["conditions"]["endpoint"]["url"] == f"http://{where}"


def test_two_ways_to_say_who_we_are_are_one_too_many() -> None:
    done = CliRunner().invoke(main, ["run", f"http://me:{PASSWORD}@127.0.0.1:1", *PLAY, "--api-key", "k"])
    assert done.exit_code == 2
    assert "--api-key" in done.stderr
    assert PASSWORD not in done.stderr


# -- agreement


def test_the_transports_agree_on_counts_and_on_times_within_their_error_bars(
    loadtest: Command, environment: dict[str, str], tmp_path: Path
) -> None:
    """Each may be off by what its bytes waited for it: in the kernel as the one measured it, or in its loop."""
    found = {}
    command = [sys.executable, "-m", "servers.fake", "--port", "0", "--exit-on-stdin-close", "--ttft-ms", "40"]
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        ready = re.search(r"http://\S+", server.stdout.readline())
        assert ready
        for transport in TRANSPORTS:
            flags = ("-c", "4", "-n", "48", "--output-tokens", "10", "--seed", "1", "--transport", transport)
            done = loadtest("run", ready[0], *flags, "-o", transport)
            assert done.returncode == 0, done.stderr
            found[transport] = json.loads((tmp_path / transport / "result.json").read_text("utf-8"))["levels"][0]
        server.terminate()
    fast, other = found["fast"], found["aiohttp"]
    assert fast["counts"] == other["counts"]
    assert fast["counts"]["ok"] == 48
    for key in ("finish_reasons", "tokens_per_event", "bad_events", "errors"):
        assert fast[key] == other[key]
    for direction in ("input_tokens", "output_tokens"):
        assert fast["workload"][direction] == other["workload"][direction]
    bars = fast["client"]["error_bar_ms"] + sum(level["client"]["loop_lag_ms"]["p99"] for level in found.values())
    for figure in ("service_ttft_ms", "itl_ms", "tpot_ms", "service_e2e_ms"):
        one, two = (level["latency"][figure]["ok"] for level in found.values())
        assert one["n"] == two["n"]
        assert abs(one["p50"] - two["p50"]) <= bars + 1, figure
    assert other["client"]["error_bar_ms"] is None, "what is not measured is not said"
