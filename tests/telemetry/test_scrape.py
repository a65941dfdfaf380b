"""A metrics endpoint may be slow, dead, huge or something else: a run learns why there is nothing, and goes on."""

import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from loadtest.errors import UsageError
from loadtest.telemetry import scrape
from loadtest.telemetry.scrape import beside, given
from loadtest.telemetry.watch import Unseen
from loadtest.wire.origin import parse
from loadtest.wire.tls import Tls

KEY = (("Authorization", "Bearer secret"), ("X-Loadtest-Run", "1"))
CERTIFICATE = Tls(ca="ca.pem", cert="mine.pem", key="mine.key", password="word")


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.server.asked.append((self.path, dict(self.headers)))  # type: ignore[attr-defined]
        if self.path == "/silent":
            self.server.released.wait(30)  # type: ignore[attr-defined]
            return
        body = {"/metrics": b"up 1\n", "/huge": b"x" * (3 << 20)}.get(self.path.partition("?")[0], b"no such page")
        self.send_response(200 if body != b"no such page" else 404)
        if self.path == "/huge":  # without a length, as most that are made on the way
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self.wfile.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body))
        else:
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...

    def handle(self) -> None:
        try:
            super().handle()
        except ConnectionError:  # who asked has had enough
            self.close_connection = True


@pytest.fixture
def server() -> Iterator[ThreadingHTTPServer]:
    made = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made.asked, made.released = [], threading.Event()  # type: ignore[attr-defined]
    thread = threading.Thread(target=made.serve_forever, args=(0.01,))
    thread.start()
    yield made
    made.released.set()  # type: ignore[attr-defined]
    made.shutdown()
    made.server_close()
    thread.join()


def url(server: ThreadingHTTPServer, path: str = "") -> str:
    return f"http://127.0.0.1:{server.server_port}{path}"


def place(server: ThreadingHTTPServer, path: str) -> scrape.Place:
    return given("--metrics", url(server, path), parse(url(server)), (), Tls(), "")


def test_metrics_are_below_the_base_url_of_the_target(server: ThreadingHTTPServer) -> None:
    found = beside(parse(url(server, "/v1")), KEY, Tls(), None)
    assert scrape.text(found) == "up 1\n"
    assert found.url == url(server, "/metrics")
    ((path, headers),) = server.asked  # type: ignore[attr-defined]
    assert path == "/metrics"
    assert headers["Authorization"] == "Bearer secret"


def test_a_renewed_token_takes_the_place_of_the_old_one(server: ThreadingHTTPServer) -> None:
    scrape.text(beside(parse(url(server)), KEY, Tls(), None), ("Authorization", "Bearer newer"))
    assert server.asked[0][1]["Authorization"] == "Bearer newer"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("path", "words"),
    [("/nowhere", "answered 404"), ("/huge", "more than 1 MiB"), ("/silent", "no whole answer within 0.2 s")],
)
def test_what_cannot_be_read_is_told_in_words(
    server: ThreadingHTTPServer, path: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scrape, "LOOK_S", 0.2 if path == "/silent" else 5.0)
    monkeypatch.setattr(scrape, "MOST_BYTES", 1 << 20)
    with pytest.raises(Unseen, match=words):
        scrape.text(place(server, path))


def test_nobody_there_is_told_in_words() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        where = f"http://127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(Unseen, match="refused"):
            scrape.text(given("--metrics", where, parse(where), (), Tls(), ""))


@pytest.mark.parametrize(
    ("target", "metrics", "told"),
    [
        ("http://gpu1:8000", "http://gpu1:8002/metrics", True),
        ("https://gpu1:8000", "https://gpu1:9000", True),
        ("https://gpu1:8000", "http://gpu1:8002", False),
        ("http://gpu1:8000", "http://prometheus:9090/metrics", False),
        ("http://gpu1:8000", "http://gpu1.evil.example:8002", False),
    ],
)
def test_who_we_are_is_told_to_the_targets_host_alone(target: str, metrics: str, told: bool) -> None:
    found = given("--metrics", metrics, parse(target), KEY, CERTIFICATE, "")
    assert found.own is told
    assert found.headers == (KEY if told else ())
    assert found.tls == (CERTIFICATE if told else Tls(ca="ca.pem"))


def test_a_user_in_the_url_is_for_that_url_and_not_shown() -> None:
    found = given("--metrics", "http://me:word@far:9090/x?token=abc", parse("http://gpu1"), KEY, Tls(), "")
    assert dict(found.headers)["Authorization"].startswith("Basic ")
    assert found.url == "http://far:9090/x"
    assert found.origin.path(found.path) == "/x?token=abc"


def test_a_url_without_a_path_is_that_of_its_metrics() -> None:
    assert given("--dcgm", "far:9400", parse("http://gpu1"), (), Tls(), "").url == "http://far:9400/metrics"


def test_what_is_no_url_is_refused_by_the_flags_name() -> None:
    with pytest.raises(UsageError, match="--metrics: URL"):
        given("--metrics", "ftp://x", parse("http://gpu1"), (), Tls(), "")
