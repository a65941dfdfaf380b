"""The fast transport on real sockets: every end is told once, with a cause in words, and no connection lies."""

import asyncio
import os
import resource
import socket
import ssl
from pathlib import Path

import pytest

from loadtest.endpoints.catalog import speak
from loadtest.endpoints.dialect import Settings
from loadtest.endpoints.reading import Reading
from loadtest.errors import TargetError
from loadtest.wire.exchange import Failure
from loadtest.wire.fast import FastTransport
from loadtest.wire.origin import Origin
from tests.wire.conftest import REQUEST, WHOLE, Asked, Run, ask, request, to_port, wired


def read(asked: Asked) -> Reading:
    """The exchange as it is recorded."""
    reading = Reading(speak(Settings("chat", "m")))
    reading.finish(asked.exchange)
    if reading.error is not None:
        assert reading.error.message.strip()
    return reading


def kind(asked: Asked) -> str | None:
    """The kind of error it is recorded with."""
    error = read(asked).error
    return error.kind if error else None


# -- reuse of connections


def test_a_connection_is_used_again(run: Run) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await request(reader)
            writer.write(WHOLE)

    async def main() -> None:
        async with wired(serve) as transport:
            for _ in range(3):
                assert (await ask(transport)).bytes == WHOLE
            assert transport.opened == 1

    run(main())


@pytest.mark.parametrize("extra", [b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nwhat", b"junk", b"\0"])
@pytest.mark.parametrize("together", [True, False], ids=["in the same read", "while idle"])
def test_bytes_nobody_asked_for_never_answer_the_next_request(run: Run, extra: bytes, together: bool) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request(reader)
        writer.write(WHOLE + (extra if together else b""))
        await asyncio.sleep(0.01)
        writer.write(extra)
        await reader.read()

    async def main() -> None:
        async with wired(serve) as transport:
            first = await ask(transport)
            while transport.free:  # noqa: ASYNC110  # until the stray bytes have come
                await asyncio.sleep(0.001)
            second = await ask(transport)
            for asked in (first, second):
                reading = read(asked)
                assert (reading.error and reading.error.message) == "the body is not a completion: {}"
            assert transport.opened == 2

    run(main())


def test_an_answer_to_half_a_request_ends_its_connection(run: Run) -> None:
    """What is left of the first request must not stand at the head of the second."""
    refusal = b"HTTP/1.1 413 Content Too Large\r\nContent-Length: 0\r\n\r\n"

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"POST ")
        writer.write(refusal)
        await asyncio.sleep(0.1)

    async def main() -> None:
        async with wired(serve) as transport:
            for _ in range(2):
                asked = await ask(transport, long_request(20_000_000))
                error = read(asked).error
                assert error is not None
                assert (error.kind, error.status) == ("http_status", 413)
                assert not asked.exchange.resent
            assert transport.opened == 2

    run(main())


def test_a_refusal_is_read_though_the_request_could_not_be_sent_whole(run: Run) -> None:
    """The server answers and hangs up in the middle of a long prompt: its answer counts, not the broken pipe."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Content Too Large\r\nContent-Length: 0\r\n\r\n")

    async def main() -> None:
        async with wired(serve) as transport:
            assert kind(await ask(transport, long_request(20_000_000))) == "http_status"

    run(main())


def long_request(size: int) -> bytes:
    """A request with a body of so many bytes."""
    return b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % size + b"x" * size


def test_a_prompt_of_20_mb_arrives_whole(run: Run) -> None:
    got: list[int] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(2):
            got.append(len(await request(reader)))
            writer.write(WHOLE)

    async def main() -> None:
        async with wired(serve) as transport:
            await ask(transport, long_request(20_000_000))
            await ask(transport)
            assert transport.opened == 1

    run(main())
    assert got == [20_000_000, 2]


# -- the keep-alive race


@pytest.mark.parametrize(("idle", "requests"), [(300, 300), (20, 1)])
def test_connections_that_died_idle_are_each_replaced_once(run: Run, idle: int, requests: int) -> None:
    """Also a single request is not tried on one dead connection after the other."""
    writers: list[asyncio.StreamWriter] = []
    all_open = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        if len(writers) == idle:
            all_open.set()
        await request(reader)
        writer.write(WHOLE)

    async def main() -> None:
        async with wired(serve) as transport:
            await transport.open(idle)
            await all_open.wait()
            for writer in reversed(writers):  # without a turn of the loop, in which the client could notice
                with socket.socket(fileno=os.dup(writer.get_extra_info("socket").fileno())) as twin:
                    twin.shutdown(socket.SHUT_RDWR)
            asked = [Asked() for _ in range(requests)]
            for one in asked:
                transport.send(one.exchange)
            for one in asked:
                await one.ended.wait()
            assert {one.ends for one in asked} == {1}
            assert all(one.bytes == WHOLE and one.exchange.resent for one in asked)
            assert transport.opened == idle + requests

    run(main())


def test_a_request_is_sent_again_only_once(run: Run) -> None:
    requests = 0

    async def serve(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        nonlocal requests
        await request(reader)
        requests += 1

    async def main() -> None:
        async with wired(serve) as transport:
            await transport.open(1)
            asked = await ask(transport)
            assert asked.exchange.resent
            assert kind(asked) == "disconnected"

    run(main())
    assert requests == 2


def test_a_new_connection_that_is_closed_is_a_failure_at_once(run: Run) -> None:
    async def serve(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await request(reader)

    async def main() -> None:
        async with wired(serve) as transport:
            asked = await ask(transport)
            assert not asked.exchange.resent
            assert kind(asked) == "disconnected"

    run(main())


def test_a_server_that_hangs_up_at_once_is_named(run: Run) -> None:
    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.abort()

    async def main() -> None:
        async with wired(serve) as transport:
            assert kind(await ask(transport)) in ("disconnected", "reset")

    run(main())


# -- ends in the middle


@pytest.mark.parametrize("part", [b"HT", WHOLE[:20], WHOLE[:-1]])
def test_a_connection_closed_inside_the_response_truncates_it(run: Run, part: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request(reader)
        writer.write(part)

    async def main() -> None:
        async with wired(serve) as transport:
            assert kind(await ask(transport)) == "truncated"

    run(main())


def test_cancelling_a_stream_ends_it_once_and_closes_the_connection(run: Run) -> None:
    gone = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n8\r\ndata: 1\n\r\n")
        await reader.read()
        gone.set()

    async def main() -> None:
        async with wired(serve) as transport:
            asked = Asked()
            transport.send(asked.exchange)
            while not asked.exchange.last:  # noqa: ASYNC110  # a read is told to nobody
                await asyncio.sleep(0.001)
            transport.cancel(asked.exchange, Failure("cancelled", "cut off"))
            transport.cancel(asked.exchange, Failure("cancelled", "twice"))
            await gone.wait()
            assert asked.ends == 1
            reading = read(asked)
            assert (reading.outcome, reading.error and reading.error.message) == ("cancelled", "cut off")

    run(main())


# -- connecting


@pytest.fixture
def full() -> "socket.socket":  # type: ignore[misc]  # a generator
    """A listening socket whose queue is full: connecting to it hangs."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listening:
        waiting = []
        for _ in range(4):
            one = socket.socket()
            one.setblocking(False)
            one.connect_ex(listening.getsockname())
            waiting.append(one)
        yield listening
        for one in waiting:
            one.close()


def test_connecting_has_a_time_limit(run: Run, full: socket.socket) -> None:
    async def main() -> None:
        asked = await ask(to_port(full.getsockname()[1], 0.05))
        assert read(asked).outcome == "timed_out"
        assert not asked.exchange.sent

    run(main())


@pytest.mark.parametrize("turns", [0, 1, 3])
def test_cancelling_while_connecting_ends_once_and_leaves_no_socket(run: Run, full: socket.socket, turns: int) -> None:
    async def main() -> None:
        transport = to_port(full.getsockname()[1])
        open_before = len(os.listdir("/proc/self/fd"))
        asked = Asked()
        transport.send(asked.exchange)
        for _ in range(turns):
            await asyncio.sleep(0)
        transport.cancel(asked.exchange, Failure("cancelled", "cut off"))
        await asyncio.sleep(0.01)
        assert asked.ends == 1
        assert kind(asked) == "cancelled"
        assert len(os.listdir("/proc/self/fd")) == open_before

    run(main())


@pytest.mark.parametrize("turns", range(8))
def test_cancelling_at_any_turn_of_the_loop_ends_once(run: Run, turns: int) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await request(reader)
            writer.write(WHOLE)

    async def main() -> None:
        async with wired(serve) as transport:
            asked = Asked()
            transport.send(asked.exchange)
            for _ in range(turns):
                await asyncio.sleep(0)
            transport.cancel(asked.exchange, Failure("cancelled", "cut off"))
            await asyncio.sleep(0.01)
            assert asked.ends == 1, "told not once"
            assert (await ask(transport)).bytes == WHOLE

    run(main())


def test_a_refused_connection_names_address_and_cause(run: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]

    async def main() -> None:
        asked = await ask(to_port(port))
        error = read(asked).error
        assert error is not None
        assert error.kind == "connect"
        assert f"127.0.0.1 port {port}" in error.message
        assert "refused" in error.message
        with pytest.raises(TargetError, match="refused"):
            await to_port(port).open(3)

    run(main())


def test_no_file_descriptor_left_says_so_and_the_mend(run: Run) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request(reader)
        writer.write(WHOLE)

    async def main() -> None:
        async with wired(serve) as transport:
            soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            with socket.socket() as next_free:
                lowest = next_free.fileno()
            resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
            try:
                asked = await ask(transport)
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            error = read(asked).error
            assert error is not None
            assert error.kind == "connect"
            assert "ulimit -n" in error.message
            assert (await ask(transport)).bytes == WHOLE

    run(main())


# -- what is not HTTP/1.1


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (b"\x15\x03\x01\x00\x02\x02\x46", "https://"),
        (b"\x00\x00\x12\x04\x00\x00\x00\x00\x00\x00\x03\x00\x00\x00\x64\x00\x04\x00\x00\xff\xff", "HTTP/2"),
        (b"\x00\x00\x08\x07\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01", "HTTP/2"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "SSH-2.0"),
        (b"-ERR unknown command 'POST'\r\n", "unknown command"),
        (b"HTTP/2 200 OK\r\n\r\n", "HTTP/2 200"),
        (b"HTTP/1.1 abc\r\n\r\n", "status"),
        (b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n", "another protocol"),
    ],
)
@pytest.mark.parametrize("first", [True, False], ids=["unasked", "asked"])
def test_a_server_that_speaks_something_else_is_told_apart(run: Run, said: bytes, words: str, first: bool) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not first:
            await request(reader)
        writer.write(said)
        await reader.read()

    async def main() -> None:
        async with wired(serve) as transport:
            error = read(await ask(transport)).error
            assert error is not None
            assert words.lower() in error.message.lower() or (first and "spoke before it was asked" in error.message)

    run(main())


# -- TLS


async def over_tls(certificate: tuple[Path, Path], trusted: bool, size: int) -> list[Asked]:
    """Two exchanges over TLS, the first with a request of ``size`` bytes."""
    here = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    here.load_cert_chain(*certificate)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                await request(reader)
                writer.write(WHOLE)
        except (asyncio.IncompleteReadError, OSError):
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=here, limit=1 << 26)
    tls = ssl.create_default_context(cafile=certificate[0] if trusted else None)
    port = server.sockets[0].getsockname()[1]
    transport = FastTransport(Origin("https", "127.0.0.1", port, "", ""), "127.0.0.1", 5.0, tls)
    found = [await ask(transport, long_request(size)), await ask(transport)]
    await transport.close()
    server.close()
    await asyncio.sleep(0.01)
    return found


def test_tls_with_a_known_certificate(run: Run, certificate: tuple[Path, Path]) -> None:
    for asked in run(over_tls(certificate, trusted=True, size=3_000_000)):
        assert asked.bytes == WHOLE


def test_a_certificate_that_is_not_trusted_is_named(run: Run, certificate: tuple[Path, Path]) -> None:
    for asked in run(over_tls(certificate, trusted=False, size=2)):
        error = read(asked).error
        assert error is not None
        assert error.kind == "tls"
        assert "certificate" in error.message


def test_tls_to_a_plain_port_is_a_tls_error(run: Run) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(WHOLE)

    async def main() -> None:
        async with wired(serve) as plain:
            port = plain._origin.port
            tls = ssl.create_default_context()
            transport = FastTransport(Origin("https", "127.0.0.1", port, "", ""), "127.0.0.1", 5.0, tls)
            assert kind(await ask(transport, REQUEST)) == "tls"

    run(main())
