"""One exchange, step by step: what is stamped, what is read, and what is said when it goes wrong."""

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from loadtest.endpoints.catalog import speak
from loadtest.endpoints.dialect import Settings
from loadtest.endpoints.reading import Reading
from loadtest.wire.origin import parse
from loadtest.wire.proxy import Proxy
from loadtest.wire.single import Limits, Single, Way, single
from loadtest.wire.tls import Tls
from tests.wire.conftest import REQUEST, WHOLE

LIMITS = Limits(5.0, 5.0, 5.0)
STREAM = (
    b'data: {"choices":[{"delta":{"content":"Hi"}}]}\n\n',
    b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n',
)


def heard(connection: socket.socket) -> bytes:
    """One request, head and body."""
    data = b""
    while b"\r\n\r\n" not in data:
        if not (piece := connection.recv(65536)):
            return data
        data += piece
    head, _, body = data.partition(b"\r\n\r\n")
    length = head.lower().partition(b"content-length:")[2].split(b"\r\n")[0]
    while len(body) < int(length or 0):
        body += connection.recv(65536)
    return head + b"\r\n\r\n" + body


@contextmanager
def serving(handle: Callable[[socket.socket], None], family: int = socket.AF_INET, at: str = "") -> Iterator[int]:
    """A server of one connection; what it raises fails the test."""
    faults: list[BaseException] = []
    with socket.socket(family) as listening:
        listening.bind(at or ("127.0.0.1", 0))
        listening.listen()
        listening.settimeout(5)

        def one() -> None:
            try:
                connection, _ = listening.accept()
                with connection:
                    connection.settimeout(5)
                    handle(connection)
            except BaseException as error:  # noqa: BLE001  # told to the test
                faults.append(error)

        thread = threading.Thread(target=one)
        thread.start()
        try:
            yield 0 if at else listening.getsockname()[1]
        finally:
            thread.join(6)
    assert not faults


def answering(reply: bytes, seen: list[bytes] | None = None) -> Callable[[socket.socket], None]:
    def handle(connection: socket.socket) -> None:
        asked = heard(connection)
        if seen is not None:
            seen.append(asked)
        connection.sendall(reply)

    return handle


def to(port: int, limits: Limits = LIMITS) -> Single:
    return single(Way(parse(f"http://127.0.0.1:{port}"), "127.0.0.1"), REQUEST, limits)


def test_every_step_has_its_stamp_in_order() -> None:
    with serving(answering(WHOLE)) as port:
        ended = single(Way(parse(f"http://127.0.0.1:{port}"), None), REQUEST, LIMITS)
    exchange = ended.exchange
    steps = [ended.began, ended.resolved, ended.connected, exchange.sent, ended.reads[0][0], exchange.done]
    assert steps == sorted(steps)
    assert ended.began > 0
    assert (ended.tunnelled, ended.secured, ended.tls) == (0, 0, None)
    assert (ended.sent, ended.received) == (REQUEST, WHOLE)
    assert exchange.complete
    assert exchange.failure is None


def test_a_stream_is_read_as_that_of_a_run_is() -> None:
    def handle(connection: socket.socket) -> None:
        heard(connection)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
        for piece in STREAM:
            connection.sendall(piece)

    with serving(handle) as port:
        ended = to(port)
    reading = Reading(speak(Settings("chat", "m")))
    reading.finish(ended.exchange)
    assert (reading.outcome, reading.answer.texts, reading.streamed) == ("ok", ["Hi"], True)
    assert ended.reads[0][0] <= reading.answer.stamps[0] <= ended.exchange.done
    assert b"".join(STREAM) in ended.received  # reading it takes nothing away


def test_it_goes_over_tls_and_says_which(certificate: tuple[Path, Path]) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)

    def handle(connection: socket.socket) -> None:
        with context.wrap_socket(connection, server_side=True) as secured:
            heard(secured)
            secured.sendall(WHOLE)

    with serving(handle) as port:
        way = Way(parse(f"https://127.0.0.1:{port}"), "127.0.0.1", Tls(ca=str(certificate[0])))
        ended = single(way, REQUEST, LIMITS)
    assert ended.exchange.failure is None
    assert ended.received == WHOLE
    assert (ended.tls or "").startswith("TLSv1.")
    assert ended.connected < ended.secured <= ended.exchange.sent


def test_a_certificate_that_nobody_trusts_is_named(certificate: tuple[Path, Path]) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)

    def handle(connection: socket.socket) -> None:
        with pytest.raises(ssl.SSLError):
            context.wrap_socket(connection, server_side=True)

    with serving(handle) as port:
        failure = single(Way(parse(f"https://127.0.0.1:{port}"), "127.0.0.1"), REQUEST, LIMITS).exchange.failure
    assert failure is not None
    assert failure.kind == "tls"
    assert "--insecure" in failure.message


def test_a_proxy_gets_the_whole_url_and_its_own_password() -> None:
    seen: list[bytes] = []
    with serving(answering(WHOLE, seen)) as port:
        proxy = Proxy("127.0.0.1", port, "Basic eDp5")
        ended = single(Way(parse("http://far.test:8000"), "127.0.0.1", proxy=proxy), REQUEST, LIMITS)
    head = seen[0].decode().split("\r\n")
    assert head[0] == "POST http://far.test:8000/v1/chat/completions HTTP/1.1"
    assert "Proxy-Authorization: Basic eDp5" in head
    assert ended.received == WHOLE


def test_a_proxy_that_refuses_a_tunnel_is_named() -> None:
    seen: list[bytes] = []
    with serving(answering(b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n", seen)) as port:
        way = Way(parse("https://far.test"), "127.0.0.1", proxy=Proxy("127.0.0.1", port))
        failure = single(way, REQUEST, LIMITS).exchange.failure
    assert seen[0].startswith(b"CONNECT far.test:443 HTTP/1.1\r\nHost: far.test:443\r\n")
    assert failure is not None
    assert f"the proxy http://127.0.0.1:{port}" in failure.message
    assert "407 Proxy Authentication Required" in failure.message


def test_it_goes_to_a_unix_socket(tmp_path: Path) -> None:
    at = str(tmp_path / "s")
    with serving(answering(WHOLE), socket.AF_UNIX, at):
        origin = parse(f"unix:{at}")
        assert single(Way(origin, at), REQUEST, LIMITS).received == WHOLE


@pytest.mark.parametrize(
    ("reply", "kind", "words"),
    [
        (b"", "disconnected", "without a byte of reply"),
        (WHOLE[:-1], None, ""),  # cut off: what reads it says so
    ],
)
def test_a_connection_that_ends_early(reply: bytes, kind: str | None, words: str) -> None:
    with serving(answering(reply)) as port:
        exchange = to(port).exchange
    assert not exchange.complete
    assert (exchange.failure and exchange.failure.kind) == kind
    assert words in (exchange.failure.message if exchange.failure else "")


def test_an_answer_without_an_end_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadtest.wire.single.MOST_BYTES", 1000)
    with serving(answering(b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 5000)) as port:
        failure = to(port).exchange.failure
    assert failure is not None
    assert (failure.kind, "goes on beyond" in failure.message) == ("not_a_stream", True)


@pytest.mark.parametrize("limits", [Limits(5.0, 5.0, 0.05), Limits(0.05, 5.0, 5.0)])
def test_silence_has_an_end(limits: Limits) -> None:
    over = threading.Event()

    def handle(connection: socket.socket) -> None:
        heard(connection)
        over.wait(5)

    with serving(handle) as port:
        failure = to(port, limits).exchange.failure
        over.set()
    assert failure is not None
    assert failure.kind == "timeout"


def test_a_port_where_nobody_listens_is_named() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    failure = to(port).exchange.failure
    assert failure is not None
    assert failure.kind == "connect"
    assert f"127.0.0.1 port {port}" in failure.message


def test_a_name_that_does_not_resolve_is_named() -> None:
    failure = single(Way(parse("http://no-such-host.invalid"), None), REQUEST, LIMITS).exchange.failure
    assert failure is not None
    assert "no-such-host.invalid" in failure.message
