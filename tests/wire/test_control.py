"""Small questions to a target: every way they can fail is one clear message."""

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from loadtest.errors import TargetError, UsageError
from loadtest.wire.control import Reply, ask
from loadtest.wire.origin import Origin


@contextmanager
def saying(reply: bytes | None) -> Iterator[Origin]:
    """A server that answers one connection so, or never."""

    def serve() -> None:
        connection, _ = listening.accept()
        with connection:
            connection.recv(65536)
            if reply is None:
                over.wait()
            else:
                connection.sendall(reply)

    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve)
        thread.start()
        yield Origin("http", "127.0.0.1", listening.getsockname()[1], "", "")
        over.set()
        thread.join()


def asked(origin: Origin, timeout_s: float = 5.0) -> Reply:
    """One question."""
    return ask(origin, "127.0.0.1", "GET", "/v1/models", timeout_s=timeout_s)


@pytest.mark.parametrize(
    ("body", "parsed"), [(b'{"a": 1}', {"a": 1}), (b"plain", None), (b"[" * 100_000, None), (b"\xff", None)]
)
def test_a_reply_is_text_and_json_if_it_is_json(body: bytes, parsed: object) -> None:
    with saying(b"HTTP/1.1 404 Not Found\r\nContent-Length: %d\r\n\r\n" % len(body) + body) as origin:
        reply = asked(origin)
    assert (reply.status, reply.json) == (404, parsed)
    assert reply.text == body.decode("utf-8", "replace")


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (b"\x15\x03\x01\x00\x02\x02\x46", "https://"),
        (b"\x00\x00\x12\x04\x00\x00\x00\x00\x00", "HTTP/2"),
        (b"SSH-2.0-OpenSSH\r\n", "SSH-2.0"),
        (b"", "closed connection"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{", "HTTP/1.1"),
        (None, "no answer within 0.1 s"),
    ],
)
def test_a_server_that_does_not_answer_http_is_told_apart(said: bytes | None, words: str) -> None:
    with saying(said) as origin, pytest.raises(TargetError) as failed:
        asked(origin, 0.1 if said is None else 5.0)
    assert words in str(failed.value)
    assert f"port {origin.port}" in str(failed.value)


def test_nobody_there_says_so() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with pytest.raises(TargetError, match="refused"):
        asked(Origin("http", "127.0.0.1", port, "", ""))


def test_a_certificate_that_is_not_trusted_is_named(certificate: tuple[Path, Path]) -> None:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(*certificate)

    def serve() -> None:
        connection, _ = listening.accept()
        with connection, pytest.raises(OSError), tls.wrap_socket(connection, server_side=True) as wrapped:
            wrapped.recv(1)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(TargetError, match="certificate"):
            asked(Origin("https", "127.0.0.1", listening.getsockname()[1], "", ""))
        thread.join()


@pytest.mark.parametrize("header", [("X-Price", "5 €"), ("X", "two\nlines")])
def test_a_header_that_http_cannot_carry_is_a_usage_error(header: tuple[str, str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        origin = Origin("http", "127.0.0.1", listening.getsockname()[1], "", "")
        with pytest.raises(UsageError, match="header"):
            ask(origin, "127.0.0.1", "GET", "/", timeout_s=5.0, headers=dict([header]))
