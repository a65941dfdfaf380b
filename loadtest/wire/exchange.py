"""One request on the wire and everything read for it, and what a transport must do with it."""

import errno
import os
from collections.abc import Callable
from typing import Literal, Protocol

from loadtest.wire.ring import Ring

FailureKind = Literal[
    "connect", "tls", "reset", "disconnected", "truncated", "not_a_stream", "timeout", "cancelled", "dropped",
    "never_sent", "late",
]  # fmt: skip

TransportName = Literal["fast", "aiohttp"]


class Failure(Exception):
    """Why an exchange ended without a whole response. ``kind`` as in docs/metrics.md; never without words."""

    def __init__(self, kind: FailureKind, message: str) -> None:
        super().__init__(message)
        self.kind: FailureKind = kind
        self.message = message


class Exchange:
    """The raw readings of one request. All instants are ``time.perf_counter_ns``; 0 is "not yet".

    ``reads`` is flat, ``[stamp, bytes, stamp, bytes, …]``: what the socket gave, stamped as it left it. Nothing in
    it has been decoded; a decoder works it off later, in parts if it grows long. ``last`` is the newest stamp.
    ``wait_ns`` is time spent not sending for a reason that is not the generator's lateness: opening a connection
    (``connect_ns``, also part of it), standing behind a cap (since ``held_since``), or a first try on a kept-alive
    connection that the server closed. ``complete`` tells that the
    transport saw the response end by HTTP's own framing; without it and without a ``failure``, the peer closed the
    connection after ``reads``.
    """

    __slots__ = (
        "carrier", "complete", "connect_ns", "connected", "decoder", "done", "failure", "held_since", "intended",
        "last", "on_end", "on_part", "payload", "queued", "reads", "resent", "sent", "tag", "wait_ns",
    )  # fmt: skip

    def __init__(
        self, payload: bytes, intended: int, on_end: "Callable[[Exchange], None]",
        on_part: "Callable[[Exchange], None]", tag: object = None,
    ) -> None:  # fmt: skip
        self.payload = payload
        self.intended = intended
        self.on_end = on_end
        self.on_part = on_part
        self.tag = tag
        self.sent = 0
        self.connected = 0
        self.connect_ns = 0
        self.wait_ns = 0
        self.held_since = 0
        self.done = 0
        self.last = 0
        self.carrier: object = None  # the transport's own: what carries this exchange just now
        self.reads: list[int | bytes] = []
        self.complete = False
        self.resent = False
        self.failure: Failure | None = None
        self.decoder: object = None
        self.queued = False


class Transport(Protocol):
    """Carries exchanges. ``on_end`` of each is called exactly once, from the event loop, whatever happens."""

    @property
    def opened(self) -> int:
        """Connections opened so far."""

    @property
    def no_free_port(self) -> int:
        """Connections that failed because this host had no port left."""

    @property
    def last_read(self) -> int:
        """The newest stamp of all connections."""

    @property
    def waits(self) -> Ring:
        """Nanoseconds that bytes lay in the kernel, each read of a sample; empty where that is not known."""

    async def open(self, count: int) -> None:
        """Have at least ``count`` free connections before the clock starts.

        Raises:
            TargetError: one could not be opened.
        """

    def send(self, exchange: Exchange) -> None:
        """Send now, on a free connection or a new one."""

    def cancel(self, exchange: Exchange, failure: Failure) -> None:
        """End an exchange that is still running, for the reason given; does nothing to one that has ended."""

    async def close(self) -> None:
        """Close every connection; exchanges still running are not told."""


def cause_of(error: OSError) -> str:
    """Why a connection could not be opened, in the system's words (asyncio puts others in their place) and the mend."""
    words = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error) or type(error).__name__
    if error.errno == errno.EADDRNOTAVAIL:
        return f"{words}; no free local port is left"
    return f"{words}; raise ulimit -n" if error.errno in (errno.EMFILE, errno.ENFILE) else words
