"""The second transport: aiohttp's client, for what the fast one cannot do (proxies) and to check it by.

aiohttp connects, sends, and takes the framing off the response with a parser of its own. What it has read is framed
again for the one decoder of the generator, so that both transports end in the same words. A stamp is taken when aiohttp
hands the bytes over, one turn of the event loop after they left the socket; and there is no error bar, because aiohttp
keeps its sockets to itself.

aiohttp's pool cannot be told to open a new connection while it holds idle ones: a request that met a dead one is sent
again once the loop has had a turn to notice the others that died with it.
"""

import asyncio
import errno
import io
import socket
import ssl
from time import perf_counter_ns
from types import SimpleNamespace
from typing import TYPE_CHECKING, NamedTuple, NoReturn

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.http_exceptions import HttpProcessingError
from yarl import URL

from loadtest.errors import TargetError
from loadtest.wire.exchange import Exchange, Failure, cause_of
from loadtest.wire.origin import Origin, place
from loadtest.wire.proxy import Proxy
from loadtest.wire.ring import Ring
from loadtest.wire.tls import SHOW_OURS, tls_words

if TYPE_CHECKING:
    from aiohttp.client_proto import ResponseHandler
    from aiohttp.tracing import Trace

_PART_READS = 512  # a response longer than this is handed to the decoder in parts
_OPENING_AT_ONCE = 128
_FOREVER_S = 1e9  # an idle connection stays until the server closes it
_BUFFER_BYTES = 1 << 20
_LONGEST_LINE = 1 << 16
_LARGE_BODY = 1 << 20  # beyond it, aiohttp wants a file
_AUTOMATIC = ("Accept", "Accept-Encoding", "User-Agent", "Content-Type")


class _OneAddress(AbstractResolver):
    """Every name is at the one address that was found for the whole run."""

    def __init__(self, address: str) -> None:
        self._address = address

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """The address, whatever the name."""
        del family
        kind = socket.AF_INET6 if ":" in self._address else socket.AF_INET
        return [ResolveResult(hostname=host, host=self._address, port=port, family=kind, proto=0, flags=0)]

    async def close(self) -> None:
        """Nothing to close."""


class _Pool(aiohttp.BaseConnector):
    """Counts the connections that it opens, and trusts none on which the server spoke while nothing was asked."""

    opened = 0

    async def connect(
        self,
        req: aiohttp.ClientRequest,
        traces: "list[Trace]",
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109
    ) -> aiohttp.connector.Connection:
        while True:
            opened = self.opened
            connection = await super().connect(req, traces, timeout)
            # Else a stray response would be taken for the answer to the next request.
            if self.opened > opened or connection.protocol is None or not connection.protocol.should_close:
                return connection
            connection.close()

    async def _create_connection(
        self,
        req: aiohttp.ClientRequest,
        traces: "list[Trace]",
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109
    ) -> "ResponseHandler":
        protocol = await super()._create_connection(req, traces, timeout)
        self.opened += 1
        return protocol


class _TCP(_Pool, aiohttp.TCPConnector):
    pass


class _Unix(_Pool, aiohttp.UnixConnector):
    pass


class _Request(NamedTuple):
    """A request as aiohttp takes it."""

    method: str
    url: URL
    headers: list[tuple[str, str]]
    body: bytes


class _Flight:
    """What aiohttp's trace tells of one request under way."""

    __slots__ = ("exchange", "reused")

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange
        self.reused = False


class _Opened(Exception):
    """Leaves a request that has its connection: nothing is to be sent on it yet."""


class AiohttpTransport:
    """See ``Transport``. Made inside the one event loop that uses it. With a proxy, ``address`` is the proxy's."""

    def __init__(
        self, origin: Origin, address: str, connect_timeout_s: float, tls: ssl.SSLContext | None,
        proxy: Proxy | None = None,
    ) -> None:  # fmt: skip
        self.no_free_port = 0
        self.last_read = 0
        self.waits = Ring(0)
        self._origin = origin
        self._proxy = proxy
        self._proxy_headers = proxy.headers if proxy else {}
        self._where = place(address, proxy.port if proxy else origin.port)
        self._timeout = aiohttp.ClientTimeout(total=None, connect=connect_timeout_s)
        self._flights: set[asyncio.Task[None]] = set()
        self._connector: _Pool
        if origin.socket is not None:
            self._connector = _Unix(origin.socket, limit=0, keepalive_timeout=_FOREVER_S)
        else:
            self._connector = _TCP(
                limit=0, keepalive_timeout=_FOREVER_S, ssl=tls or True, resolver=_OneAddress(address),
                use_dns_cache=False, happy_eyeballs_delay=None,
            )  # fmt: skip
        trace = aiohttp.TraceConfig()
        trace.on_connection_reuseconn.append(_reused)
        trace.on_connection_create_start.append(_connecting)
        trace.on_connection_create_end.append(_connected)
        trace.on_request_headers_sent.append(_sent)
        self._session = aiohttp.ClientSession(
            connector=self._connector,
            timeout=self._timeout,
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            trust_env=False,  # which proxy it is was decided once, for the whole run
            skip_auto_headers=_AUTOMATIC,
            trace_configs=[trace],
            read_bufsize=_BUFFER_BYTES,
            max_line_size=_LONGEST_LINE,
            max_field_size=_LONGEST_LINE,
        )

    @property
    def opened(self) -> int:
        """See ``Transport``."""
        return self._connector.opened

    async def open(self, count: int) -> None:
        """See ``Transport``."""
        gate = asyncio.Semaphore(_OPENING_AT_ONCE)
        held: list[aiohttp.connector.Connection] = []  # until there are enough: a free one would be taken again

        async def take(request: aiohttp.ClientRequest, _: aiohttp.ClientHandlerType) -> NoReturn:
            held.append(await self._connector.connect(request, [], self._timeout))
            raise _Opened

        async def one() -> None:
            async with gate:
                try:
                    await self._session.get(
                        f"{self._origin.scheme}://{self._origin.authority}/", middlewares=(take,),
                        proxy=self._proxy.url if self._proxy else None, proxy_headers=self._proxy_headers,
                        trace_request_ctx=None,
                    )  # fmt: skip
                except _Opened:
                    pass
                except (aiohttp.ClientError, OSError) as error:
                    raise self._failure(error) from None

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(count):
                    group.create_task(one())
        except* Failure as failures:
            raise TargetError(f"cannot reach {self._origin.url}: {failures.exceptions[0]}") from None
        finally:
            for connection in held:
                connection.release()

    def send(self, exchange: Exchange) -> None:
        """See ``Transport``."""
        task = asyncio.get_running_loop().create_task(self._fly(exchange))
        exchange.carrier = task
        self._flights.add(task)
        task.add_done_callback(self._landed)

    def cancel(self, exchange: Exchange, failure: Failure) -> None:
        """See ``Transport``."""
        if exchange.done:
            return
        task = exchange.carrier
        assert isinstance(task, asyncio.Task)
        task.cancel()
        exchange.failure = failure
        self._end(exchange)

    async def close(self) -> None:
        """See ``Transport``."""
        for task in self._flights:
            task.cancel()
        await asyncio.gather(*self._flights, return_exceptions=True)
        await self._session.close()
        await asyncio.sleep(0)  # let the loop run the closing callbacks

    def _landed(self, task: "asyncio.Task[None]") -> None:
        self._flights.discard(task)
        if not task.cancelled():
            task.result()  # a fault that this file should not have had goes to the loop's exception handler

    def _end(self, exchange: Exchange) -> None:
        exchange.done = perf_counter_ns()
        exchange.carrier = None
        exchange.on_end(exchange)

    async def _fly(self, exchange: Exchange) -> None:
        """One exchange to its end."""
        request = self._request(exchange.payload)
        flight = _Flight(exchange)
        try:
            await self._try(request, flight)
        except (aiohttp.ClientError, OSError) as error:
            if flight.reused and not exchange.last and _hung_up(error):
                # Closed while idle, seen only now (the keep-alive race): sent again, once.
                exchange.resent = True
                await asyncio.sleep(0)
                if exchange.sent:
                    exchange.wait_ns += perf_counter_ns() - exchange.sent  # the server's time, and no lateness of ours
                try:
                    await self._try(request, flight)
                except (aiohttp.ClientError, OSError) as again:
                    exchange.failure = self._failure(again)
            else:
                exchange.failure = self._failure(error)
        self._end(exchange)

    async def _try(self, request: _Request, flight: _Flight) -> None:
        body = request.body
        async with self._session.request(
            request.method, request.url, headers=request.headers, allow_redirects=False,
            data=io.BytesIO(body) if len(body) > _LARGE_BODY else body or None,
            proxy=self._proxy.url if self._proxy else None, proxy_headers=self._proxy_headers,
            trace_request_ctx=flight,
        ) as response:  # fmt: skip
            await self._receive(response, flight.exchange)

    def _request(self, payload: bytes) -> _Request:
        head, _, body = payload.partition(b"\r\n\r\n")
        line, *fields = head.decode("latin-1").split("\r\n")
        method, target, _version = line.split(" ")
        headers = [(name, value.strip()) for name, _, value in (field.partition(":") for field in fields)]
        if self._origin.scheme == "http":  # no tunnel: the proxy reads the request's own head
            headers += self._proxy_headers.items()
        url = URL(f"{self._origin.scheme}://{self._origin.authority}{target}", encoded=True)
        return _Request(method, url, headers, body)

    async def _receive(self, response: aiohttp.ClientResponse, exchange: Exchange) -> None:
        content = response.content
        protocol = response.connection.protocol if response.connection else None  # None: whole already
        coding = response.headers.get("Transfer-Encoding", "").lower()
        chunked = coding.rpartition(",")[2].strip() == "chunked"

        def framed(piece: bytes) -> bytes:
            if not chunked:
                return piece
            chunk = b"%x\r\n%b\r\n" % (len(piece), piece) if piece else b""
            return chunk + (b"0\r\n\r\n" if content.at_eof() else b"")

        # What came with the head stands in the same read as the head.
        came_along = b"" if content.exception() else content.read_nowait()
        self._take(exchange, _head(response) + framed(came_along))
        try:
            while not content.at_eof():
                self._take(exchange, framed(await content.readany()))
        except aiohttp.ClientPayloadError:
            ended = False
        else:
            ended = True
        exchange.complete = ended and (chunked or "Content-Length" in response.headers)
        if exchange.complete or protocol is None:
            return
        fault = protocol.exception()
        if isinstance(fault, HttpProcessingError):
            exchange.failure = Failure("not_a_stream", f"the framing of the body is damaged ({_line(fault.message)})")
        elif isinstance(fault, OSError):
            words = str(fault) or type(fault).__name__
            exchange.failure = Failure("reset", f"the connection was reset by the server ({words})")

    def _take(self, exchange: Exchange, data: bytes) -> None:
        if data:
            exchange.last = self.last_read = now = perf_counter_ns()
            exchange.reads += (now, data)
            if len(exchange.reads) > _PART_READS:
                exchange.on_part(exchange)

    def _failure(self, error: aiohttp.ClientError | OSError) -> Failure:
        """Why there was no response, in the words of the fast transport."""
        where = f"the proxy {self._proxy.url} ({self._where})" if self._proxy else self._where
        match error:
            case TimeoutError():
                return Failure("timeout", f"no connection to {where} within {self._timeout.connect:g} s")
            case aiohttp.ClientHttpProxyError():
                return Failure(
                    "connect", f"{where} refused to connect to {self._origin.authority}: {error.status} {error.message}"
                )
            case aiohttp.ClientResponseError():
                return Failure("not_a_stream", f"not an HTTP/1.1 response: {_line(error.message)}")
            case aiohttp.ClientConnectorCertificateError():
                return self._tls_failure(error.certificate_error)
            case aiohttp.ClientConnectorError():
                cause = error.os_error
                if isinstance(cause, ssl.SSLError):
                    return self._tls_failure(cause)
                self.no_free_port += cause.errno == errno.EADDRNOTAVAIL
                return Failure("connect", f"connection to {where} failed: {cause_of(cause)}")
            case aiohttp.ServerDisconnectedError() if not isinstance(error.message, str):
                return Failure("truncated", "the connection closed inside the head of the response")
            case aiohttp.ServerDisconnectedError():
                return Failure("disconnected", "the server closed the connection without a byte of reply")
            case OSError() if isinstance(error.__cause__, ssl.SSLError):
                return self._tls_failure(error.__cause__)
            case OSError() if isinstance(error.__cause__, aiohttp.ClientConnectionResetError):
                # aiohttp wrote to a connection that it was closing already, and keeps the reason to itself.
                hint = f"; {SHOW_OURS}" if self._origin.scheme == "https" else ""
                return Failure("disconnected", f"the server closed the connection before the request was sent{hint}")
            case OSError():
                words = str(error) or type(error).__name__
                return Failure("reset", f"the connection was reset by the server ({words})")
        return Failure("disconnected", f"the exchange failed: {_line(str(error)) or type(error).__name__}")

    def _tls_failure(self, error: Exception) -> Failure:
        words = tls_words(error) if isinstance(error, ssl.SSLError) else str(error)
        return Failure("tls", f"TLS with {self._origin.authority} failed: {words}")


def _hung_up(error: Exception) -> bool:
    """Whether the server closed the connection before a byte of the reply."""
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return isinstance(error.message, str)  # else it is the head that was cut off
    return isinstance(error, OSError) and not isinstance(error, (aiohttp.ClientConnectorError, TimeoutError))


def _head(response: aiohttp.ClientResponse) -> bytes:
    version = response.version or aiohttp.HttpVersion11
    line = f"HTTP/{version.major}.{version.minor} {response.status} {response.reason or ''}\r\n"
    return line.encode("latin-1", "replace") + b"".join(b"%b: %b\r\n" % pair for pair in response.raw_headers) + b"\r\n"


def _line(text: str) -> str:
    return " ".join(text.split())


async def _reused(_: aiohttp.ClientSession, context: SimpleNamespace, _parameters: object) -> None:
    context.trace_request_ctx.reused = True


async def _connecting(_: aiohttp.ClientSession, context: SimpleNamespace, _parameters: object) -> None:
    context.trace_request_ctx.reused = False
    context.began = perf_counter_ns()


async def _connected(_: aiohttp.ClientSession, context: SimpleNamespace, _parameters: object) -> None:
    exchange = context.trace_request_ctx.exchange
    exchange.connected = perf_counter_ns()
    exchange.connect_ns = exchange.connected - context.began
    exchange.wait_ns += exchange.connect_ns


async def _sent(_: aiohttp.ClientSession, context: SimpleNamespace, _parameters: object) -> None:
    context.trace_request_ctx.exchange.sent = perf_counter_ns()
