"""The fast transport: one ``asyncio.Protocol`` a connection, stamps at the read, nothing decoded on the way.

While bytes may be waiting, all that is done for a read is: take the stamp, keep the bytes, and let httptools follow the
framing, with no callback but for the head and the end. Following it at each read costs 0.2 µs while the bytes are in
the processor's cache; caught up on at the end it would cost as much as a hundred such reads, just when a thousand
streams may end at once.
"""

import asyncio
import errno
import socket
import ssl
from time import perf_counter_ns

import httptools

from loadtest.errors import TargetError
from loadtest.wire import stamped
from loadtest.wire.exchange import Exchange, Failure, cause_of
from loadtest.wire.origin import Origin, place
from loadtest.wire.response import ResponseError, foreign, http_parser
from loadtest.wire.ring import Ring
from loadtest.wire.tls import tls_words

_PART_READS = 512  # a response longer than this is handed to the decoder in parts
_OPENING_AT_ONCE = 128
_WAITS_KEPT = 20_000
_STAMPED_EVERY = 50  # one connection of so many, the first among them, measures how long bytes wait for us


class _Connection(asyncio.Protocol):
    """One connection, carrying at most one exchange at a time."""

    __slots__ = (
        "_ended", "_follow", "_framing", "_keep", "exchange", "lost", "pool", "socket", "transport", "unasked",
        "waited",
    )  # fmt: skip

    def __init__(self, pool: "FastTransport", sock: socket.socket) -> None:
        self.pool = pool
        self.socket: socket.socket | None = sock
        self.transport: asyncio.Transport | None = None
        self.exchange: Exchange | None = None
        self.waited = False  # has stood idle in the pool, where the server may have closed it unseen
        self.lost = False
        self.unasked = b""  # what the server said while nothing was asked
        self._framing = http_parser(self)
        self._follow = self._framing.feed_data
        self._ended = self._keep = False

    # -- asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        now = perf_counter_ns()
        exchange = self.exchange
        if exchange is None:
            self.unasked = data
            self.close()  # bytes nobody asked for: the connection cannot be trusted with the next request
            return
        exchange.last = self.pool.last_read = now
        reads = exchange.reads
        reads.append(now)
        reads.append(data)
        try:
            self._follow(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            if not self._ended:
                self.exchange = None  # the decoder meets the same fault and names it
                self.close()
                self.pool.end(exchange, now)
                return
            self._keep = False  # the response is whole; what follows it is not ours to judge
        if self._ended:
            self._end(exchange, now)
        elif len(reads) > _PART_READS:
            exchange.on_part(exchange)

    def connection_lost(self, exc: Exception | None) -> None:
        now = perf_counter_ns()
        self.lost = True
        self.pool.forget(self)
        exchange, self.exchange = self.exchange, None
        if exchange is None:
            return
        if not exchange.last and self.waited:
            # Closed while idle, seen only now (the keep-alive race). Sent again on a new connection: others that stand
            # idle were probably closed at the same time. And only once, for a new one has never waited.
            exchange.resent = True
            exchange.wait_ns += now - exchange.sent  # the first try's time is the server's, and no lateness of ours
            self.pool.send_on_new(exchange)
            return
        if not exchange.last:
            exchange.failure = Failure("disconnected", "the server closed the connection without a byte of reply")
        if isinstance(exc, ssl.SSLError):  # such as the server's word that it wants a certificate of ours
            exchange.failure = Failure("tls", f"TLS failed: {tls_words(exc)}")
        elif exc is not None:
            words = str(exc) or type(exc).__name__
            exchange.failure = Failure("reset", f"the connection was reset by the server ({words})")
        self.pool.end(exchange, now)

    # -- the response's end

    def _end(self, exchange: Exchange, now: int) -> None:
        """The response is whole."""
        assert self.transport is not None
        self.exchange = None
        # A server may answer before it has read the whole request: the rest of it would run into the next one.
        if self._keep and not self.transport.get_write_buffer_size():
            self.waited = True
            self.pool.free[self] = None
        else:
            self.close()
        exchange.complete = True
        self.pool.end(exchange, now)

    def on_message_begin(self) -> None:
        """httptools: a head begins; after the end of ours, in the same read, it is one that nobody asked for."""
        if self._ended:
            raise ResponseError("bytes after the end of the response")

    def on_message_complete(self) -> None:
        """httptools: the body is whole (also called for each 1xx)."""
        if self._framing.get_status_code() >= 200:
            self._ended = True
            self._keep = self._framing.should_keep_alive()

    # -- the pool's side

    def start(self, exchange: Exchange) -> None:
        """Send an exchange's request and receive its response."""
        self.exchange = exchange
        exchange.carrier = self
        self._ended = False
        exchange.sent = perf_counter_ns()
        assert self.transport is not None
        if self.socket is None:
            self.transport.write(exchange.payload)
            return
        # Straight to the socket: the loop would queue the bytes until this turn's other work is done.
        try:
            count = self.socket.send(exchange.payload)
        except BlockingIOError:
            count = 0
        except OSError as error:
            self.close()
            self.connection_lost(error)
            return
        if count < len(exchange.payload):
            self.transport.write(exchange.payload[count:])

    def close(self) -> None:
        """Close the connection; an exchange it carries is not told."""
        self.pool.forget(self)
        if self.transport is not None:
            self.transport.abort()


class FastTransport:
    """A pool of connections to one address. Not for use from more than one event loop."""

    def __init__(self, origin: Origin, address: str, connect_timeout_s: float, tls: ssl.SSLContext | None) -> None:
        self.free: dict[_Connection, None] = {}  # newest last, and used first
        self.opened = 0
        self.no_free_port = 0
        self._begun = 0
        # nanoseconds that bytes lay in the kernel, each of the newest reads of the sampled connections
        self.waits = Ring(_WAITS_KEPT)
        self.last_read = 0  # the newest stamp of all connections
        self._origin = origin
        self._address = address
        self._family = _family(origin, address)
        self._connect_timeout_s = connect_timeout_s
        self._tls = tls
        self._all: set[_Connection] = set()
        self._opening: set[asyncio.Task[None]] = set()

    async def open(self, count: int) -> None:
        """Have at least ``count`` free connections before the clock starts.

        Raises:
            TargetError: one could not be opened.
        """
        gate = asyncio.Semaphore(_OPENING_AT_ONCE)

        async def one() -> None:
            async with gate:
                connection = await self._connect()
                connection.waited = True
                self.free[connection] = None

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(count - len(self.free)):
                    group.create_task(one())
        except* Failure as failures:
            raise TargetError(f"cannot reach {self._origin.url}: {failures.exceptions[0]}") from None
        # The newest free one is used first: where few are in use, the sampled ones should be among them.
        for connection in [c for c in self.free if isinstance(c.transport, stamped.StampedTransport)]:
            del self.free[connection]
            self.free[connection] = None

    def send(self, exchange: Exchange) -> None:
        """See ``Transport``."""
        if self.free:
            self.free.popitem()[0].start(exchange)
        else:
            self.send_on_new(exchange)

    def send_on_new(self, exchange: Exchange) -> None:
        """Send on a connection opened for it."""
        task = asyncio.get_running_loop().create_task(self._open_for(exchange))
        exchange.carrier = task
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    def cancel(self, exchange: Exchange, failure: Failure) -> None:
        """See ``Transport``."""
        if exchange.done:
            return
        carrier = exchange.carrier
        if isinstance(carrier, _Connection):
            carrier.exchange = None
            carrier.close()
        elif isinstance(carrier, asyncio.Task):
            carrier.cancel()
        exchange.failure = failure
        self.end(exchange, perf_counter_ns())

    def end(self, exchange: Exchange, now: int) -> None:
        """Tell an exchange that it has ended."""
        exchange.done = now
        exchange.carrier = None
        exchange.on_end(exchange)

    def forget(self, connection: _Connection) -> None:
        """Drop a connection that is closed or closing."""
        self.free.pop(connection, None)
        self._all.discard(connection)

    async def close(self) -> None:
        """Close every connection; exchanges still running are not told."""
        for task in list(self._opening):
            task.cancel()
        for connection in list(self._all):
            connection.exchange = None
            connection.close()
        await asyncio.sleep(0)  # let the loop run the closing callbacks

    async def _open_for(self, exchange: Exchange) -> None:
        began = perf_counter_ns()
        try:
            connection = await self._connect()
        except Failure as failure:
            exchange.failure = failure
            self.end(exchange, perf_counter_ns())
            return
        exchange.connected = perf_counter_ns()
        exchange.connect_ns = exchange.connected - began
        exchange.wait_ns += exchange.connect_ns
        connection.start(exchange)

    async def _connect(self) -> _Connection:
        loop = asyncio.get_running_loop()
        number, self._begun = self._begun, self._begun + 1
        where = place(self._address, self._origin.port)
        unix = self._origin.socket is not None
        try:
            sock = socket.socket(self._family, socket.SOCK_STREAM)
        except OSError as error:
            raise Failure("connect", f"no socket for {where}: {cause_of(error)}") from None
        try:
            sock.setblocking(False)
            if not unix:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            async with asyncio.timeout(self._connect_timeout_s):
                await loop.sock_connect(sock, self._address if unix else (self._address, self._origin.port))
                connection = _Connection(self, sock)
                if unix:
                    await loop.create_unix_connection(lambda: connection, sock=sock)
                elif number % _STAMPED_EVERY == 0 and stamped.AVAILABLE and self._tls is None:
                    stamped.StampedTransport(loop, sock, connection, self.waits)
                else:
                    await loop.create_connection(
                        lambda: connection, sock=sock, ssl=self._tls,
                        server_hostname=self._origin.host if self._tls else None,
                    )  # fmt: skip
        except TimeoutError:
            sock.close()
            raise Failure("timeout", f"no connection to {where} within {self._connect_timeout_s:g} s") from None
        except ssl.SSLError as error:
            sock.close()
            raise Failure("tls", f"TLS with {where} failed: {tls_words(error)}") from None
        except OSError as error:
            sock.close()
            self.no_free_port += error.errno == errno.EADDRNOTAVAIL
            raise Failure("connect", f"connection to {where} failed: {cause_of(error)}") from None
        except asyncio.CancelledError:
            sock.close()
            raise
        assert connection.transport is not None
        if connection.unasked:
            raise Failure("connect", f"{where} spoke before it was asked: {foreign(connection.unasked)}")
        if connection.lost or connection.transport.is_closing():
            raise Failure("disconnected", f"{where} took the connection and closed it at once")
        if self._tls is not None:
            connection.socket = None  # the bytes must go through TLS
        self.opened += 1
        self._all.add(connection)
        return connection


def _family(origin: Origin, address: str) -> int:
    if origin.socket is not None:
        return socket.AF_UNIX
    return socket.AF_INET6 if ":" in address else socket.AF_INET
