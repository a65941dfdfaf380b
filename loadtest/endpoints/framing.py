"""A body cut into the data of its events as it comes, whatever the pieces are."""

from typing import Protocol

from loadtest.endpoints.dialect import Framing
from loadtest.wire.sse import EventStream


class Cutter(Protocol):
    """Cuts a byte stream into events."""

    def feed(self, piece: bytes) -> list[bytes]:
        """The data of each event that this piece completes, in order."""

    def finish(self) -> list[bytes]:
        """The data of a last event that nothing closed, if there is one."""


class Lines:
    """One event a line, ending in LF or CRLF; empty lines are none."""

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest: list[bytes] = []

    def feed(self, piece: bytes) -> list[bytes]:
        """See ``Cutter``."""
        whole, end, last = piece.rpartition(b"\n")
        if end:
            whole, self._rest = b"".join([*self._rest, whole]), []
        if last:
            self._rest.append(last)
        return [line for each in whole.split(b"\n") if (line := each.removesuffix(b"\r"))] if end else []

    def finish(self) -> list[bytes]:
        """See ``Cutter``."""
        last, self._rest = b"".join(self._rest).removesuffix(b"\r"), []
        return [last] if last else []


class Chunks:
    """One event for whatever one read of the socket brought."""

    __slots__ = ()

    def feed(self, piece: bytes) -> list[bytes]:
        """See ``Cutter``."""
        return [piece] if piece else []

    def finish(self) -> list[bytes]:
        """See ``Cutter``."""
        return []


def cutter(framing: Framing) -> Cutter:
    """A cutter of that framing."""
    match framing:
        case "sse":
            return EventStream()
        case "ndjson" | "lines":
            return Lines()
        case "chunks":
            return Chunks()
