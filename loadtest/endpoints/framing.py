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
    """One event for whatever one read of the socket brought, up to its last whole character."""

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, piece: bytes) -> list[bytes]:
        """See ``Cutter``."""
        piece = self._rest + piece
        whole = len(piece) - _cut_off(piece)
        self._rest = piece[whole:]
        return [piece[:whole]] if whole else []

    def finish(self) -> list[bytes]:
        """See ``Cutter``."""
        last, self._rest = self._rest, b""
        return [last] if last else []


def _cut_off(piece: bytes) -> int:
    """How many bytes at the end are the beginning of a character in UTF-8 that goes on beyond them."""
    for back in range(1, min(3, len(piece)) + 1):
        byte = piece[-back]
        if byte >= 0xC0:  # a character begins here: of two, three or four bytes
            return back if back < (2 if byte < 0xE0 else 3 if byte < 0xF0 else 4) else 0
        if byte < 0x80:
            return 0
    return 0


def cutter(framing: Framing) -> Cutter:
    """A cutter of that framing."""
    match framing:
        case "sse":
            return EventStream()
        case "ndjson" | "lines":
            return Lines()
        case "chunks":
            return Chunks()
