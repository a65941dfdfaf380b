"""Small servers on real sockets, and the transport played against them on both event loops."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from time import perf_counter_ns
from typing import Any, Protocol, TypeVar

import pytest
import uvloop

from loadtest.wire.exchange import Exchange
from loadtest.wire.fast import FastTransport
from loadtest.wire.origin import Origin

T = TypeVar("T")
Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

REQUEST = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}"
WHOLE = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"


class Run(Protocol):
    """Runs a coroutine on a loop of its own."""

    def __call__(self, main: Coroutine[Any, Any, T]) -> T: ...


@pytest.fixture(params=[uvloop.new_event_loop, asyncio.SelectorEventLoop], ids=["uvloop", "asyncio"])
def run(request: pytest.FixtureRequest) -> Run:
    """The test once on each event loop."""

    def on_loop(main: Coroutine[Any, Any, T]) -> T:
        with asyncio.Runner(loop_factory=request.param) as runner:
            return runner.run(asyncio.wait_for(main, 20))

    return on_loop


@asynccontextmanager
async def wired(handler: Handler, connect_timeout_s: float = 5.0) -> AsyncIterator[FastTransport]:
    """A transport to a server that handles each connection so."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await handler(reader, writer)
        except (OSError, asyncio.IncompleteReadError):
            pass  # the client went away: in these tests often the point
        finally:
            writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0, limit=1 << 26, backlog=1024)
    transport = to_port(server.sockets[0].getsockname()[1], connect_timeout_s)
    try:
        yield transport
    finally:
        await transport.close()
        server.close()


def to_port(port: int, connect_timeout_s: float = 5.0) -> FastTransport:
    """A transport to a loopback port."""
    return FastTransport(Origin("http", "127.0.0.1", port, "", ""), "127.0.0.1", connect_timeout_s, None)


class Asked:
    """An exchange that counts its ends."""

    def __init__(self, payload: bytes = REQUEST) -> None:
        self.ends = 0
        self.ended = asyncio.Event()
        self.exchange = Exchange(payload, perf_counter_ns(), self._end, lambda _: None)

    def _end(self, _: Exchange) -> None:
        self.ends += 1
        self.ended.set()

    @property
    def bytes(self) -> bytes:
        """All that was read for it."""
        return b"".join(self.exchange.reads[1::2])  # type: ignore[arg-type]  # stamps and bytes alternate


async def ask(transport: FastTransport, payload: bytes = REQUEST) -> Asked:
    """Send one request and wait for its end."""
    asked = Asked(payload)
    transport.send(asked.exchange)
    await asked.ended.wait()
    assert asked.ends == 1
    return asked


async def request(reader: asyncio.StreamReader) -> bytes:
    """The server's side: one request's body."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
    return await reader.readexactly(length)
