"""One exchange on a connection of its own, every step of it stamped: for what is asked once, before or beside a run.

Blocking sockets: nothing else goes on meanwhile, and what is stamped is this one exchange and no event loop's turn.
"""

import contextlib
import socket
import ssl
import time
from collections.abc import Iterator
from time import perf_counter_ns
from typing import NamedTuple

import httptools

from loadtest.errors import TargetError
from loadtest.wire.exchange import Exchange, Failure, cause_of
from loadtest.wire.origin import Origin, parse, place, resolve
from loadtest.wire.proxy import Proxy
from loadtest.wire.response import MOST_BYTES, ResponseError, http_parser
from loadtest.wire.tls import Tls, tls_words

_READ_BYTES = 256 * 1024
_HEAD_BYTES = 64 * 1024  # of a proxy's answer to CONNECT


class Way(NamedTuple):
    """How to get to a target. ``address`` is the proxy's if there is one; of None it is looked up, and that stamped."""

    origin: Origin
    address: str | None
    tls: Tls = Tls()
    proxy: Proxy | None = None


class Limits(NamedTuple):
    """Seconds: for the whole exchange, for a connection, and between bytes."""

    total_s: float
    connect_s: float
    stall_s: float


class Single(NamedTuple):
    """An exchange that has ended. Stamps are ``perf_counter_ns``; 0 is a step that there was not.

    ``exchange`` has its readings as any transport leaves them, but ``reads`` stay here too: ``(stamp, bytes)``. With a
    proxy, ``resolved`` and ``connected`` are of the way to the proxy, and ``tunnelled`` is when it had reached the
    target; without TLS it reads the requests themselves, and nothing of the way beyond it can be seen.
    """

    exchange: Exchange
    sent: bytes
    reads: tuple[tuple[int, bytes], ...]
    began: int
    resolved: int
    connected: int
    tunnelled: int
    secured: int
    tls: str | None
    """Version and cipher, where there is TLS."""

    @property
    def received(self) -> bytes:
        """All bytes that came."""
        return b"".join(piece for _, piece in self.reads)

    @property
    def headers(self) -> dict[str, str]:
        """Those of the response by their names in small letters, the last of each; none where it has no whole head."""
        head, found, rest = self.received.partition(b"\r\n\r\n")
        while found and head.startswith((b"HTTP/1.1 1", b"HTTP/1.0 1")):  # an interim response comes before it
            head, found, rest = rest.partition(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")[1:] if found else []
        return {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}


class _Steps:
    def __init__(self) -> None:
        self.began = perf_counter_ns()
        self.resolved = self.connected = self.tunnelled = self.secured = 0
        self.tls: str | None = None


def single(way: Way, payload: bytes, limits: Limits) -> Single:
    """Send the bytes of one request and read its response to the end, whatever it is.

    What goes wrong stands in ``exchange.failure``, in the words of the transports.
    """
    steps = _Steps()
    exchange = Exchange(payload, steps.began, _nothing, _nothing)
    if way.proxy is not None and way.origin.scheme == "http":
        payload = _by_proxy(payload, way.origin, way.proxy)
    until = time.monotonic() + limits.total_s
    try:
        with contextlib.closing(_connected(way, limits, steps)) as connection:
            exchange.connected = perf_counter_ns()
            exchange.connect_ns = exchange.wait_ns = exchange.connected - steps.began
            with _told(exchange):
                connection.settimeout(min(limits.stall_s, limits.total_s))
                exchange.sent = perf_counter_ns()
                connection.sendall(payload)
                _receive(connection, exchange, until, limits)
    except Failure as failure:
        exchange.failure = failure
    exchange.done = perf_counter_ns()
    reads = tuple(zip(exchange.reads[::2], exchange.reads[1::2], strict=True))
    return Single(
        exchange,
        payload,
        reads,  # type: ignore[arg-type]  # they alternate stamps and bytes
        steps.began,
        steps.resolved,
        steps.connected,
        steps.tunnelled,
        steps.secured,
        steps.tls,
    )


def _nothing(_: Exchange) -> None:
    """An exchange that is waited for tells nobody."""


class _End:
    """Follows HTTP's framing to the end of the response."""

    def __init__(self) -> None:
        self.reached = False
        self._parser = http_parser(self)

    def feed(self, data: bytes) -> bool:
        """Tells whether there is nothing more to read: the end, or a fault that the reader of the answer names."""
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            return True
        return self.reached

    def on_message_begin(self) -> None:
        """httptools: after the end of ours it is one that nobody asked for."""
        if self.reached:
            raise ResponseError("bytes after the end of the response")

    def on_message_complete(self) -> None:
        """httptools: also called for each 1xx."""
        self.reached = self._parser.get_status_code() >= 200


def _receive(connection: socket.socket, exchange: Exchange, until: float, limits: Limits) -> None:
    end, size = _End(), 0
    while size < MOST_BYTES:
        left_s = until - time.monotonic()
        if left_s <= 0:
            raise Failure("timeout", f"no whole answer within {limits.total_s:g} s")
        connection.settimeout(min(limits.stall_s, left_s))
        try:
            data = connection.recv(_READ_BYTES)
        except TimeoutError:
            if left_s < limits.stall_s:
                raise Failure("timeout", f"no whole answer within {limits.total_s:g} s") from None
            raise
        exchange.last = now = perf_counter_ns()
        if not data:
            if not exchange.reads:
                raise Failure("disconnected", "the server closed the connection without a byte of reply")
            return
        size += len(data)
        exchange.reads += (now, data)
        if end.feed(data):
            exchange.complete = end.reached
            return
    raise Failure("not_a_stream", f"the answer goes on beyond {MOST_BYTES >> 20} MiB; it was not read further")


@contextlib.contextmanager
def _told(exchange: Exchange) -> Iterator[None]:
    """What breaks while request and response pass, in the transports' words."""
    try:
        yield
    except TimeoutError:
        words = "no byte of the answer" if not exchange.last else "no further byte of the answer"
        raise Failure("timeout", f"{words} within the limit between bytes (--stall-timeout)") from None
    except ssl.SSLError as error:
        raise Failure("tls", f"TLS failed: {tls_words(error)}") from None
    except OSError as error:
        raise Failure("reset", f"the connection was reset by the server ({error.strerror or error})") from None


def _connected(way: Way, limits: Limits, steps: _Steps) -> socket.socket:
    """A connection to the target, through the proxy and with TLS where these are."""
    origin, proxy = way.origin, way.proxy
    port = proxy.port if proxy else origin.port
    address = way.address
    if address is None:
        try:
            address = resolve(parse(proxy.url) if proxy else origin, limits.connect_s)
        except TargetError as error:
            raise Failure("connect", str(error)) from None
        steps.resolved = perf_counter_ns()
    where = f"the proxy {proxy.url} ({place(address, port)})" if proxy else place(address, port)
    with contextlib.ExitStack() as undone:
        try:
            if origin.socket is not None:
                made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                undone.callback(made.close)
                made.settimeout(limits.connect_s)
                made.connect(address)
            else:
                made = socket.create_connection((address, port), limits.connect_s)
                undone.callback(made.close)
                made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            steps.connected = perf_counter_ns()
            if origin.scheme == "https":
                if proxy is not None:
                    _tunnel(made, origin, proxy, where)
                    steps.tunnelled = perf_counter_ns()
                made = _secured(made, way, steps)
        except TimeoutError:
            raise Failure("timeout", f"no connection to {where} within {limits.connect_s:g} s") from None
        except ssl.SSLError as error:
            raise Failure("tls", f"TLS with {where} failed: {tls_words(error)}") from None
        except OSError as error:
            raise Failure("connect", f"connection to {where} failed: {cause_of(error)}") from None
        undone.pop_all()
    return made


def _secured(made: socket.socket, way: Way, steps: _Steps) -> ssl.SSLSocket:
    secured = way.tls.context().wrap_socket(made, server_hostname=way.origin.host)
    steps.secured = perf_counter_ns()
    cipher = secured.cipher()
    steps.tls = f"{secured.version()}{f', {cipher[0]}' if cipher else ''}"
    return secured


def _tunnel(connection: socket.socket, origin: Origin, proxy: Proxy, where: str) -> None:
    """Have the proxy connect to the target (RFC 9110, 9.3.6)."""
    target = f"{f'[{origin.host}]' if ':' in origin.host else origin.host}:{origin.port}"
    fields = "".join(f"{name}: {value}\r\n" for name, value in proxy.headers.items())
    connection.sendall(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n{fields}\r\n".encode("latin-1"))
    head = b""
    while b"\r\n\r\n" not in head and len(head) < _HEAD_BYTES:
        data = connection.recv(1)  # not a byte of what comes after it: that is TLS's
        if not data:
            raise Failure("connect", f"{where} closed the connection when asked for {target}")
        head += data
    status, _, reason = head.split(b"\r\n", 1)[0].decode("latin-1").partition(" ")[2].partition(" ")
    if not status.startswith("2"):
        raise Failure("connect", f"{where} refused to connect to {target}: {status} {reason}".rstrip())


def _by_proxy(payload: bytes, origin: Origin, proxy: Proxy) -> bytes:
    """The request as a proxy takes it: with the whole URL, and what the proxy is to be told (RFC 9112, 3.2.2)."""
    line, _, rest = payload.partition(b"\r\n")
    method, target, version = line.split(b" ")
    fields = "".join(f"{name}: {value}\r\n" for name, value in proxy.headers.items()).encode("latin-1")
    url = f"http://{origin.authority}".encode("latin-1")
    return b"%b %b%b %b\r\n%b%b" % (method, url, target, version, fields, rest)
