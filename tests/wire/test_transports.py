"""What every transport owes the generator, on both: each exchange ends once, in the same words, whatever the way."""

import asyncio
import os
import socket
import ssl
import tempfile
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from loadtest.endpoints.catalog import speak
from loadtest.endpoints.dialect import Settings
from loadtest.endpoints.reading import Reading
from loadtest.errors import TargetError
from loadtest.wire.aiohttp_transport import AiohttpTransport
from loadtest.wire.exchange import Failure, Transport
from loadtest.wire.fast import FastTransport
from loadtest.wire.origin import Origin, parse
from loadtest.wire.proxy import Proxy
from loadtest.wire.tls import Tls
from tests.wire.conftest import WHOLE, Asked, Handler, Run, ask, request

Make = Callable[..., Transport]
CHUNKED = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.fixture(params=[FastTransport, AiohttpTransport], ids=["fast", "aiohttp"])
def make(request: pytest.FixtureRequest) -> Make:
    """The test once with each transport."""
    found: Make = request.param
    return found


@asynccontextmanager
async def serving(
    handler: Handler, tls: ssl.SSLContext | None = None, host: str = "127.0.0.1", path: str | None = None
) -> AsyncIterator[Origin]:
    """A server that handles each connection so; on a unix socket if it has a path."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await handler(reader, writer)
        except (OSError, asyncio.IncompleteReadError):
            pass  # the client went away: in these tests often the point
        finally:
            writer.close()

    if path is not None:
        server = await asyncio.start_unix_server(handle, path)
        origin = parse(f"unix:{path}")
    else:
        server = await asyncio.start_server(handle, host, 0, ssl=tls, limit=1 << 26, backlog=1024)
        origin = Origin("https" if tls else "http", host, server.sockets[0].getsockname()[1], "", "")
    try:
        yield origin
    finally:
        server.close()
        await asyncio.sleep(0.01)


@asynccontextmanager
async def wired(make: Make, handler: Handler) -> AsyncIterator[Transport]:
    """A transport to a server that handles each connection so."""
    async with serving(handler) as origin:
        transport = make(origin, "127.0.0.1", 5.0, None)
        try:
            yield transport
        finally:
            await transport.close()


def read(asked: Asked) -> Reading:
    """The exchange as it is recorded."""
    reading = Reading(speak(Settings("chat", "m")))
    reading.finish(asked.exchange)
    return reading


def kind(asked: Asked) -> str | None:
    """The kind of error it is recorded with; its words are never blank."""
    error = read(asked).error
    assert error is None or error.message.strip()
    return error.kind if error else None


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A server that answers whatever it is asked."""
    while True:
        await request(reader)
        writer.write(WHOLE)


def body(asked: Asked) -> bytes:
    """What stands after the head."""
    assert asked.exchange.failure is None, asked.exchange.failure
    return asked.bytes.partition(b"\r\n\r\n")[2]


def test_connections_are_opened_ahead_and_used_again(run: Run, make: Make) -> None:
    async def main() -> None:
        async with wired(make, answer) as transport:
            await transport.open(3)
            assert transport.opened == 3
            await transport.open(3)
            for _ in range(4):
                asked = await ask(transport)
                assert body(asked) == b"{}"
                assert asked.exchange.complete
                assert not asked.exchange.connect_ns
                assert 0 < asked.exchange.sent <= asked.exchange.last <= asked.exchange.done
            assert transport.opened == 3

    run(main())


def test_a_connection_that_had_to_be_opened_is_timed_and_not_the_generator_s_lateness(run: Run, make: Make) -> None:
    async def main() -> None:
        async with wired(make, answer) as transport:
            exchange = (await ask(transport)).exchange
            assert 0 < exchange.connect_ns <= exchange.wait_ns
            assert exchange.intended < exchange.connected <= exchange.sent

    run(main())


@pytest.mark.parametrize(("idle", "requests"), [(100, 100), (20, 1)])
def test_connections_that_died_idle_are_each_replaced_once(run: Run, make: Make, idle: int, requests: int) -> None:
    writers: list[asyncio.StreamWriter] = []
    all_open = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        if len(writers) == idle:
            all_open.set()
        await request(reader)
        writer.write(WHOLE)

    async def main() -> None:
        async with wired(make, serve) as transport:
            await transport.open(idle)
            await all_open.wait()
            for writer in writers:  # without a turn of the loop, in which the client could notice
                with socket.socket(fileno=os.dup(writer.get_extra_info("socket").fileno())) as twin:
                    twin.shutdown(socket.SHUT_RDWR)
            asked = [Asked() for _ in range(requests)]
            for one in asked:
                transport.send(one.exchange)
            for one in asked:
                await one.ended.wait()
            assert {one.ends for one in asked} == {1}
            for one in asked:
                assert body(one) == b"{}"
                assert one.exchange.connect_ns
                if make is FastTransport:  # the other has a turn of the loop in which it may notice by itself
                    assert one.exchange.resent

    run(main())


@pytest.mark.parametrize("extra", [b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nwhat", b"junk"])
def test_bytes_nobody_asked_for_never_answer_the_next_request(run: Run, make: Make, extra: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request(reader)
        writer.write(WHOLE)
        await asyncio.sleep(0.01)
        writer.write(extra)
        await reader.read()

    async def main() -> None:
        async with wired(make, serve) as transport:
            for _ in range(3):
                assert body(await ask(transport)) == b"{}"
                await asyncio.sleep(0.03)
            assert transport.opened == 3

    run(main())


@pytest.mark.parametrize("ahead", [0, 1])
def test_a_server_that_never_answers_is_asked_once_and_on_an_idle_connection_twice(
    run: Run, make: Make, ahead: int
) -> None:
    asked_for = 0

    async def serve(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        nonlocal asked_for
        await request(reader)
        asked_for += 1

    async def main() -> None:
        async with wired(make, serve) as transport:
            await transport.open(ahead)
            asked = await ask(transport)
            assert kind(asked) == "disconnected"
            assert asked.exchange.resent == bool(ahead)

    run(main())
    assert asked_for == 1 + ahead


def test_the_time_of_a_try_that_the_server_closed_is_not_the_lateness_of_the_client(run: Run, make: Make) -> None:
    tries = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal tries
        await request(reader)
        tries += 1
        if tries == 1:
            await asyncio.sleep(0.1)
        else:
            writer.write(WHOLE)

    async def main() -> None:
        async with wired(make, serve) as transport:
            await transport.open(1)
            exchange = (await ask(transport)).exchange
            assert exchange.resent
            assert exchange.wait_ns - exchange.connect_ns > 0.09e9

    run(main())


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (WHOLE[:20], "truncated"),
        (WHOLE[:-1], "truncated"),
        (CHUNKED + b"8\r\ndata: {", "truncated"),
        (CHUNKED + b"4\r\nwhat\r\n", "truncated"),
        (CHUNKED + b"zz\r\n", "not_a_stream"),
        (CHUNKED + b"4\r\nwhatzz\r\n", "not_a_stream"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "not_a_stream"),
        (b"\x00\x00\x12\x04\x00\x00\x00\x00\x00\x00\x03\x00\x00\x00\x64\x00\x04\x00\x00\xff\xff", "not_a_stream"),
        (b"HTTP/1.1 abc\r\n\r\n", "not_a_stream"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", "empty_body"),
        (b"HTTP/1.0 503 Busy\r\n\r\nwait", "http_status"),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 418 I'm a teapot\r\nContent-Length: 0\r\n\r\n", "http_status"),
    ],
)
def test_a_response_that_is_not_whole_or_none_is_named(run: Run, make: Make, said: bytes, expected: str) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request(reader)
        writer.write(said)

    async def main() -> None:
        async with wired(make, serve) as transport:
            assert kind(await ask(transport)) == expected

    run(main())


@pytest.mark.parametrize("head", [CHUNKED, b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"], ids=["chunked", "closed"])
def test_a_reset_in_the_body_is_no_end(run: Run, make: Make, head: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request(reader)
        writer.write(head + (b"8\r\ndata: 1\n\r\n" if head is CHUNKED else b"data: 1\n"))
        await asyncio.sleep(0.03)
        here = writer.get_extra_info("socket")
        here.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        writer.transport.abort()

    async def main() -> None:
        async with wired(make, serve) as transport:
            assert kind(await ask(transport)) == "reset"

    run(main())


@pytest.mark.parametrize("turns", range(6))
def test_cancelling_at_any_turn_of_the_loop_ends_once_and_closes_the_connection(
    run: Run, make: Make, turns: int
) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request(reader)
        writer.write(CHUNKED + b"8\r\ndata: 1\n\r\n")
        assert not await reader.read()

    async def main() -> None:
        async with wired(make, serve) as transport:
            asked = Asked()
            transport.send(asked.exchange)
            for _ in range(turns):
                await asyncio.sleep(0)
            if turns == 5:
                while not asked.exchange.last:  # noqa: ASYNC110  # a read is told to nobody
                    await asyncio.sleep(0.001)
            transport.cancel(asked.exchange, Failure("cancelled", "cut off"))
            transport.cancel(asked.exchange, Failure("cancelled", "twice"))
            await asyncio.sleep(0.01)
            assert asked.ends == 1
            reading = read(asked)
            assert (reading.outcome, reading.error and reading.error.message) == ("cancelled", "cut off")

    run(main())


def test_a_refused_connection_names_address_and_cause(run: Run, make: Make) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]

    async def main() -> None:
        transport = make(Origin("http", "127.0.0.1", port, "", ""), "127.0.0.1", 5.0, None)
        error = read(await ask(transport)).error
        assert error is not None
        assert error.kind == "connect"
        assert f"127.0.0.1 port {port}" in error.message
        assert "refused" in error.message
        with pytest.raises(TargetError, match="refused"):
            await transport.open(3)
        await transport.close()

    run(main())


def test_connecting_has_a_time_limit(run: Run, make: Make) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        waiting = [socket.socket() for _ in range(4)]
        for one in waiting:
            one.setblocking(False)
            one.connect_ex(full.getsockname())

        async def main() -> None:
            origin = Origin("http", "127.0.0.1", full.getsockname()[1], "", "")
            transport = make(origin, "127.0.0.1", 0.05, None)
            asked = await ask(transport)
            assert read(asked).outcome == "timed_out"
            assert not asked.exchange.sent
            with pytest.raises(TargetError, match=r"within 0\.05 s"):
                await transport.open(1)
            await transport.close()

        run(main())
        for one in waiting:
            one.close()


def test_a_long_request_arrives_whole(run: Run, make: Make) -> None:
    got: list[int] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            got.append(len(await request(reader)))
            writer.write(WHOLE)

    async def main() -> None:
        async with wired(make, serve) as transport:
            for size in (1_000_000, 5_000_000, 2):
                head = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % size
                assert body(await ask(transport, head + b"x" * size)) == b"{}"
            assert transport.opened == 1

    run(main())
    assert got == [1_000_000, 5_000_000, 2]


@pytest.mark.parametrize(
    "payload",
    [
        b"POST /a%20b/v1?key=1%202&x=/y?z HTTP/1.1\r\nHost: other.example:81\r\nX-Two: 1\r\nX-Two: 2\r\n"
        b"Authorization: Basic dTpw\r\nContent-Length: 2\r\n\r\n{}",
        b"GET /search?q=a HTTP/1.1\r\nHost: other.example\r\n\r\n",
        b"POST /go HTTP/1.1\r\nHost: other.example\r\nContent-Length: 0\r\n\r\n",
    ],
    ids=["body", "get", "empty"],
)
def test_the_request_is_sent_as_it_was_written(run: Run, make: Make, payload: bytes) -> None:
    """No header of the transport's own, and none of the generator's changed."""
    heads: list[bytes] = []
    head, _, sent = payload.partition(b"\r\n\r\n")

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        await reader.readexactly(len(sent))
        writer.write(WHOLE)

    async def main() -> None:
        async with wired(make, serve) as transport:
            await ask(transport, payload)

    run(main())
    assert sorted(heads[0].rstrip().split(b"\r\n")) == sorted(head.split(b"\r\n"))


# -- ways there


def test_an_address_of_ip_version_6(run: Run, make: Make) -> None:
    async def main() -> None:
        async with serving(answer, host="::1") as origin:
            transport = make(origin, "::1", 5.0, None)
            await transport.open(1)
            assert body(await ask(transport)) == b"{}"
            await transport.close()

    run(main())


def test_a_name_goes_to_the_one_address_that_was_found_for_it(run: Run, make: Make) -> None:
    async def main() -> None:
        async with serving(answer) as origin:
            named = Origin("http", "no-such-host.invalid", origin.port, "", "")
            transport = make(named, "127.0.0.1", 5.0, None)
            assert body(await ask(transport)) == b"{}"
            await transport.close()

    run(main())


def test_a_unix_socket(run: Run, make: Make) -> None:
    async def main(path: str) -> None:
        async with serving(answer, path=path) as origin:
            transport = make(origin, path, 5.0, None)
            await transport.open(1)
            for _ in range(2):
                assert body(await ask(transport)) == b"{}"
            assert transport.opened == 1
            await transport.close()

    with tempfile.TemporaryDirectory() as folder:  # pytest's own is too deep for a socket's path
        run(main(f"{folder}/s"))


def test_a_unix_socket_that_is_not_there_is_named(run: Run, make: Make) -> None:
    async def main() -> None:
        transport = make(parse("unix:/nowhere/s"), "/nowhere/s", 5.0, None)
        error = read(await ask(transport)).error
        assert error is not None
        assert "/nowhere/s" in error.message
        assert "No such file" in error.message
        await transport.close()

    run(main())


@pytest.mark.parametrize("trusted", ["ca", "insecure", "none"])
def test_a_certificate_is_trusted_if_it_is_ours_or_none_need_be(
    run: Run, make: Make, certificate: tuple[Path, Path], trusted: str
) -> None:
    here = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    here.load_cert_chain(*certificate)
    ours = {"ca": Tls(ca=str(certificate[0])), "insecure": Tls(insecure=True), "none": Tls()}[trusted]

    async def main() -> None:
        async with serving(answer, here) as origin:
            transport = make(origin, "127.0.0.1", 5.0, ours.context())
            for _ in range(2):
                asked = await ask(transport)
                if trusted != "none":
                    assert body(asked) == b"{}"
                    continue
                error = read(asked).error
                assert error is not None
                assert error.kind == "tls"
                for word in ("certificate", "self-signed", "--cacert", "--insecure"):
                    assert word in error.message
            await transport.close()

    run(main())


@pytest.mark.parametrize("shown", [True, False])
def test_a_server_that_asks_for_our_certificate_gets_it_or_is_named(
    run: Run, make: Make, certificate: tuple[Path, Path], shown: bool
) -> None:
    """With TLS 1.3 it says so only after we have sent: the alert is read in the place of the answer."""
    cert, key = map(str, certificate)
    here = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    here.load_cert_chain(cert, key)
    here.load_verify_locations(cert)
    here.verify_mode = ssl.CERT_REQUIRED
    ours = Tls(ca=cert, cert=cert, key=key) if shown else Tls(ca=cert)

    def serve(listening: socket.socket) -> None:  # asyncio's own server forgets to send its alert
        connection, _ = listening.accept()
        with here.wrap_socket(connection, server_side=True, do_handshake_on_connect=False) as wrapped:
            try:
                wrapped.do_handshake()
            except ssl.SSLError:
                os.read(wrapped.fileno(), 65536)  # what is left unread would turn the alert into a reset
                return
            wrapped.recv(65536)
            wrapped.sendall(WHOLE)
            wrapped.recv(1)

    async def main(port: int) -> None:
        transport = make(Origin("https", "127.0.0.1", port, "", ""), "127.0.0.1", 5.0, ours.context())
        asked = await ask(transport)
        if shown:
            assert body(asked) == b"{}"
        else:
            error = read(asked).error
            assert error is not None
            assert error.kind == "tls" or (make is AiohttpTransport and error.kind == "disconnected")
            assert "--cert" in error.message
        await transport.close()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve, args=[listening])
        thread.start()
        run(main(listening.getsockname()[1]))
        thread.join()


def test_tls_to_a_plain_port_is_a_tls_error(run: Run, make: Make) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(WHOLE)

    async def main() -> None:
        async with serving(serve) as plain:
            origin = Origin("https", "127.0.0.1", plain.port, "", "")
            transport = make(origin, "127.0.0.1", 5.0, ssl.create_default_context())
            assert kind(await ask(transport)) == "tls"
            await transport.close()

    run(main())


# -- through a proxy: aiohttp's part


async def tunnel(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, to: int) -> None:
    """What a proxy does after CONNECT: carries bytes both ways."""
    writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
    far_reader, far_writer = await asyncio.open_connection("127.0.0.1", to)

    async def carry(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while data := await source.read(65536):
            sink.write(data)
        sink.close()

    await asyncio.gather(carry(reader, far_writer), carry(far_reader, writer))


def test_http_goes_to_the_proxy_with_the_whole_url_and_the_proxy_s_key(run: Run) -> None:
    heads: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        await reader.readexactly(2)
        writer.write(WHOLE)

    async def main() -> None:
        async with serving(serve) as near:
            proxy = Proxy("proxy.invalid", near.port, "Basic dTpw")
            transport = AiohttpTransport(parse("http://far.invalid:8000"), "127.0.0.1", 5.0, None, proxy)
            await transport.open(1)
            assert body(await ask(transport)) == b"{}"
            assert transport.opened == 1
            await transport.close()

    run(main())
    assert heads[0].startswith(b"POST http://far.invalid:8000/v1/chat/completions HTTP/1.1\r\n")
    assert b"\r\nProxy-Authorization: Basic dTpw\r\n" in heads[0]


def test_https_goes_through_a_tunnel_and_the_proxy_s_key_stays_outside(
    run: Run, certificate: tuple[Path, Path]
) -> None:
    here = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    here.load_cert_chain(*certificate)
    near_heads: list[bytes] = []
    far_heads: list[bytes] = []

    async def far_end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            far_heads.append(await reader.readuntil(b"\r\n\r\n"))
            await reader.readexactly(2)
            writer.write(WHOLE)

    async def main() -> None:
        async with serving(far_end, here) as far:

            async def near_end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                near_heads.append(await reader.readuntil(b"\r\n\r\n"))
                await tunnel(reader, writer, far.port)

            async with serving(near_end) as near:
                proxy = Proxy("127.0.0.1", near.port, "Basic dTpw")
                tls = Tls(ca=str(certificate[0])).context()
                transport = AiohttpTransport(parse("https://localhost:8443"), "127.0.0.1", 5.0, tls, proxy)
                await transport.open(1)
                for _ in range(2):
                    assert body(await ask(transport)) == b"{}"
                await transport.close()

    run(main())
    assert len(near_heads) == 1
    assert near_heads[0].startswith(b"CONNECT localhost:8443 HTTP/1.1\r\n")
    assert b"Proxy-Authorization: Basic dTpw" in near_heads[0]
    assert len(far_heads) == 2
    assert not any(b"Proxy-" in head for head in far_heads)


@pytest.mark.parametrize("url", ["http://far.invalid", "https://far.invalid"])
def test_a_dead_proxy_is_named_as_the_proxy(run: Run, url: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]

    async def main() -> None:
        tls = ssl.create_default_context() if url.startswith("https") else None
        transport = AiohttpTransport(parse(url), "127.0.0.1", 5.0, tls, Proxy("127.0.0.1", port))
        error = read(await ask(transport)).error
        assert error is not None
        assert error.kind == "connect"
        assert f"the proxy http://127.0.0.1:{port}" in error.message
        assert "refused" in error.message
        await transport.close()

    run(main())


def test_a_proxy_that_refuses_the_tunnel_says_so_itself(run: Run) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 407 Who are you\r\nContent-Length: 0\r\n\r\n")

    async def main() -> None:
        async with serving(serve) as near:
            proxy = Proxy("127.0.0.1", near.port)
            tls = ssl.create_default_context()
            transport = AiohttpTransport(parse("https://far.invalid"), "127.0.0.1", 5.0, tls, proxy)
            error = read(await ask(transport)).error
            assert error is not None
            assert error.kind == "connect"
            for word in ("proxy", "far.invalid", "407", "Who are you"):
                assert word in error.message
            await transport.close()

    run(main())
