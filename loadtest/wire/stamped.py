"""The error bar: how long bytes lay in the kernel before we read them, measured on a sample of connections.

A sampled connection is read through its plain socket with ``recvmsg``, which gives the kernel's own receive time beside
the bytes (Linux, SO_TIMESTAMPNS). The difference to our clock at the read is what every stamp of this loop is late by.
It tells how far latencies can be trusted; it replaces no stamp, because one read may hold several segments and the
kernel gives the time of the last one only.

Source: Documentation/networking/timestamping.rst of the Linux kernel.
"""

import asyncio
import socket
import struct
import sys
import time

from loadtest.wire.ring import Ring

AVAILABLE = sys.platform == "linux"
_SO_TIMESTAMPNS = 35  # asm-generic/socket.h; the socket module does not name it
_READ_BYTES = 256 * 1024
_ANCILLARY_BYTES = 64
_TIMESPEC = struct.Struct("qq")
_ABSURD_NS = 10_000_000_000  # the wall clock was stepped between the kernel's stamp and ours


class StampedTransport(asyncio.Transport):
    """Just enough of a transport for one connection of ours, over a connected non-blocking socket.

    ``waits`` takes, for each read, how long its bytes had waited, in nanoseconds.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, sock: socket.socket, protocol: asyncio.Protocol, waits: Ring
    ) -> None:
        super().__init__()
        self._loop = loop
        self._socket = sock
        self._protocol = protocol
        self._waits = waits
        self._unsent = b""
        self._closing = False
        sock.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        protocol.connection_made(self)
        loop.add_reader(sock.fileno(), self._readable)

    def is_closing(self) -> bool:
        """Whether it is closed or about to be."""
        return self._closing

    def get_write_buffer_size(self) -> int:
        """Bytes that the socket has not taken yet."""
        return len(self._unsent)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send when the socket takes it."""
        if self._closing:
            return
        if not self._unsent:
            self._loop.add_writer(self._socket.fileno(), self._writable)
        self._unsent += bytes(data)

    def abort(self) -> None:
        """Close at once."""
        self._close(None)

    def _readable(self) -> None:
        try:
            data, ancillary, _, _ = self._socket.recvmsg(_READ_BYTES, _ANCILLARY_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._close(error)
            return
        now = time.time_ns()  # the kernel stamps by the wall clock; only this difference is taken from it
        if not data:
            self._close(None)
            return
        self._protocol.data_received(data)
        for level, kind, stamp in ancillary:
            if level == socket.SOL_SOCKET and kind == _SO_TIMESTAMPNS and len(stamp) >= _TIMESPEC.size:
                seconds, nanoseconds = _TIMESPEC.unpack_from(stamp)
                waited = now - seconds * 1_000_000_000 - nanoseconds
                if 0 <= waited < _ABSURD_NS:
                    self._waits.append(waited)

    def _writable(self) -> None:
        try:
            count = self._socket.send(self._unsent)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._close(error)
            return
        self._unsent = self._unsent[count:]
        if not self._unsent:
            self._loop.remove_writer(self._socket.fileno())

    def _close(self, error: OSError | None) -> None:
        if self._closing:
            return
        self._closing = True
        self._loop.remove_reader(self._socket.fileno())
        if self._unsent:
            self._loop.remove_writer(self._socket.fileno())
        self._socket.close()
        self._loop.call_soon(self._protocol.connection_lost, error)
