"""Small questions to a target: every way they can fail is one clear message."""

import select
import socket
import ssl
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from loadtest.errors import TargetError, UsageError
from loadtest.wire.control import Reply, ask
from loadtest.wire.origin import Origin, parse
from loadtest.wire.proxy import Proxy
from loadtest.wire.tls import Tls


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
        (None, "no whole answer within 0.1 s"),
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


# -- ways there


def tunnelling(listening: socket.socket, heads: list[bytes], far: tuple[str, int]) -> None:
    """A proxy for one connection: notes the head, and carries bytes both ways."""
    near, _ = listening.accept()
    with near, socket.create_connection(far) as there:
        heads.append(near.recv(65536))
        near.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
        ends = {near: there, there: near}
        while ends:
            for end in select.select(list(ends), [], [])[0]:
                if data := end.recv(65536):
                    ends[end].sendall(data)
                else:
                    return


def test_http_asks_the_proxy_for_the_whole_url() -> None:
    heads: list[bytes] = []

    def serve() -> None:
        connection, _ = listening.accept()
        with connection:
            heads.append(connection.recv(65536))
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve)
        thread.start()
        proxy = Proxy("proxy.invalid", listening.getsockname()[1], "Basic dTpw")
        origin = parse("http://far.invalid:8000/api")
        assert ask(origin, "127.0.0.1", "GET", origin.path("/v1/models"), timeout_s=5.0, proxy=proxy).json == {}
        thread.join()
    assert heads[0].startswith(b"GET http://far.invalid:8000/api/v1/models HTTP/1.1\r\nHost: far.invalid:8000\r\n")
    assert b"Proxy-Authorization: Basic dTpw\r\n" in heads[0]


def test_https_asks_through_a_tunnel(certificate: tuple[Path, Path]) -> None:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(*certificate)
    heads: list[bytes] = []

    def serve() -> None:
        connection, _ = far.accept()
        with tls.wrap_socket(connection, server_side=True) as wrapped:
            heads.append(wrapped.recv(65536))
            wrapped.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")

    with socket.create_server(("127.0.0.1", 0)) as far, socket.create_server(("127.0.0.1", 0)) as near:
        threads = [
            threading.Thread(target=serve),
            threading.Thread(target=tunnelling, args=[near, heads, far.getsockname()]),
        ]
        for thread in threads:
            thread.start()
        proxy = Proxy("proxy.invalid", near.getsockname()[1], "Basic dTpw")
        origin = parse("https://localhost:8443")
        ours = Tls(ca=str(certificate[0]))
        assert ask(origin, "127.0.0.1", "GET", "/v1/models", timeout_s=5.0, tls=ours, proxy=proxy).json == {}
        for thread in threads:
            thread.join()
    assert heads[0].startswith(b"CONNECT localhost:8443 HTTP/1.")
    assert b"Proxy-Authorization: Basic dTpw\r\n" in heads[0]
    assert heads[1].startswith(b"GET /v1/models HTTP/1.1\r\nHost: localhost:8443\r\n")
    assert b"Proxy-" not in heads[1]


@pytest.mark.parametrize("url", ["http://far.invalid", "https://far.invalid"])
def test_a_dead_proxy_is_named_as_the_proxy(url: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with pytest.raises(TargetError, match=rf"through the proxy http://127\.0\.0\.1:{port} .*refused"):
        ask(parse(url), "127.0.0.1", "GET", "/", timeout_s=5.0, proxy=Proxy("127.0.0.1", port))


def test_a_unix_socket_is_asked_and_one_that_is_not_there_is_named() -> None:
    def serve() -> None:
        connection, _ = listening.accept()
        with connection:
            heads.append(connection.recv(65536))
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")

    heads: list[bytes] = []
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as listening:
        listening.bind(f"{folder}/s")
        listening.listen()
        thread = threading.Thread(target=serve)
        thread.start()
        origin = parse(f"unix:{folder}/s")
        assert ask(origin, f"{folder}/s", "GET", "/v1/models", timeout_s=5.0).json == {}
        thread.join()
        gone = parse(f"unix:{folder}/gone")
        with pytest.raises(TargetError, match=r"the socket .*/gone\): No such file"):
            ask(gone, f"{folder}/gone", "GET", "/", timeout_s=5.0)
    assert b"\r\nHost: localhost\r\n" in heads[0]


@pytest.mark.parametrize("name", ["Host", "host"])
def test_a_host_header_of_the_user_s_stands_alone(name: str) -> None:
    heads: list[bytes] = []

    def serve() -> None:
        connection, _ = listening.accept()
        with connection:
            heads.append(connection.recv(65536))
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve)
        thread.start()
        origin = Origin("http", "127.0.0.1", listening.getsockname()[1], "", "")
        ask(origin, "127.0.0.1", "GET", "/", timeout_s=5.0, headers={name: "other.example"})
        thread.join()
    assert heads[0].lower().count(b"\r\nhost:") == 1
    assert b": other.example\r\n" in heads[0]
