"""Server-sent events by the WHATWG grammar, with the leniences that real servers need.

Source: https://html.spec.whatwg.org/multipage/server-sent-events.html (parsing an event stream). Lines end in LF,
CRLF or CR and in nothing else: U+2028 and its kin are text.
"""

_BOM = b"\xef\xbb\xbf"


class ErrorEvent(bytes):
    """The data of an event that the server named ``error``."""

    __slots__ = ()


class EventStream:
    """Cuts a byte stream into the data of its events, however the bytes are cut into pieces."""

    __slots__ = ("_rest", "_skip_lf", "_started")

    def __init__(self) -> None:
        self._rest: list[bytes] = []  # the event that is not whole yet, in pieces: joining each time would be quadratic
        self._skip_lf = False
        self._started = False

    def feed(self, piece: bytes) -> list[bytes]:
        """The data of each event that this piece completes, in order; events without data are left out."""
        if self._skip_lf and piece:  # the last piece ended in CR; an LF now belongs to it
            self._skip_lf = False
            if piece[0] == 0x0A:
                piece = piece[1:]
        if b"\r" in piece:
            self._skip_lf = piece[-1] == 0x0D
            piece = piece.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        if rest := self._rest:
            if b"\n\n" not in piece and not (piece.startswith(b"\n") and rest[-1].endswith(b"\n")):
                if piece:
                    rest.append(piece)
                return []
            rest.append(piece)
            piece = b"".join(rest)
        whole, end, last = piece.rpartition(b"\n\n")
        self._rest = [last] if last else []
        if not end:
            return []
        if whole.startswith(b"data: "):
            events = whole[6:].split(b"\n\ndata: ")
            if whole.count(b"\n") == 2 * (len(events) - 1):  # all of them have one line of data, and nothing else
                self._started = True
                return events
        events = []
        for block in whole.split(b"\n\n"):
            if block.startswith(b"data: ") and b"\n" not in block:
                self._started = True
                events.append(block[6:])
            elif (data := self._block(block)) is not None:
                events.append(data)
        return events

    def finish(self) -> list[bytes]:
        """The data of a last event that no blank line closed, if it has any."""
        data = self._block(b"".join(self._rest))
        self._rest = []
        return [] if data is None else [data]

    def _block(self, block: bytes) -> bytes | None:
        if not self._started and block:
            self._started = True
            block = block.removeprefix(_BOM)
        data: list[bytes] = []
        name = b""
        for line in block.split(b"\n"):
            field, _, value = line.partition(b":")
            if field == b"data":
                data.append(value.removeprefix(b" "))
            elif field == b"event":
                name = value.removeprefix(b" ")
        if not data:
            return None
        joined = b"\n".join(data)
        return ErrorEvent(joined) if name == b"error" else joined
