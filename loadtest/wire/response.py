"""HTTP/1.1 taken off the bytes of an exchange, after the fact: httptools does the parsing."""

import zlib
from collections.abc import Iterator
from typing import Any

import httptools

from loadtest.wire.exchange import Exchange

NO_STATUS = 0
MOST_BYTES = 256 << 20  # of an answer that is kept until it has ended: one without an end is none
_GZIP_OR_ZLIB = 32 + 15  # whichever its header says


class ResponseError(Exception):
    """The bytes are not an HTTP/1.1 response, or its coding is one we cannot undo."""


def foreign(first: bytes) -> str:
    """What the first bytes of something that is not an HTTP/1.1 response seem to be, in words for a person."""
    if first[:2] in (b"\x15\x03", b"\x16\x03"):  # a TLS record: alert or handshake, version 3.x
        return "the server speaks TLS here; write the URL with https://"
    if first[3:4] in (b"\x04", b"\x07") and first[5:9] == b"\0\0\0\0":  # a frame of stream 0: SETTINGS or GOAWAY
        return "the server speaks only HTTP/2; loadtest needs HTTP/1.1"
    return f"it begins with {first[:40]!r}"


def http_parser(callbacks: object) -> httptools.HttpResponseParser:
    """A parser as lenient as real servers need: padded chunk sizes, and a length beside chunks (RFC 9112, 6.3)."""
    parser = httptools.HttpResponseParser(callbacks)
    parser.set_dangerous_leniencies(lenient_chunked_length=True, lenient_spaces_after_chunk_size=True)
    return parser


class Response:
    """Reads one response incrementally: status, headers, and body pieces with the stamp of their read."""

    def __init__(self) -> None:
        self.status = NO_STATUS
        self.reason = ""
        self.headers: dict[str, str] = {}
        self.whole = False  # the body's end was seen
        self.head_seen = False
        self._pieces: list[bytes] = []
        self._inflate: zlib._Decompress | None = None
        self.on_body = self._pieces.append  # httptools calls the list itself: no Python frame per chunk
        self._parser: Any = http_parser(self)

    def on_message_begin(self) -> None:
        if self.whole:  # a second response in the read that ended ours: stop, it is not ours
            raise ResponseError("bytes after the end of the response")

    def on_status(self, reason: bytes) -> None:
        self.reason += reason.decode("latin-1")

    def on_header(self, name: bytes, value: bytes) -> None:
        key = name.decode("latin-1").lower()
        text = value.decode("latin-1")
        self.headers[key] = f"{self.headers[key]}, {text}" if key in self.headers else text

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()
        if self.status < 200:
            return
        self.head_seen = True
        coding = self.headers.get("content-encoding", "").strip().lower() or "identity"
        if coding in ("gzip", "x-gzip", "deflate"):
            self._inflate = zlib.decompressobj(wbits=_GZIP_OR_ZLIB)
        elif coding != "identity":
            raise ResponseError(f"the body is coded as {coding!r}, which was not offered")

    def on_message_complete(self) -> None:
        if self.status < 200:  # 100 Continue and its kin: the response proper follows
            self.headers.clear()
            self.reason = ""
            self.status = NO_STATUS
        else:
            self.whole = True

    def feed(self, exchange: Exchange) -> Iterator[tuple[int, bytes]]:
        """Work off what was read so far; yields ``(stamp, body bytes)``.

        Raises:
            ResponseError: see the class.
        """
        reads, pieces = exchange.reads, self._pieces
        exchange.reads = []
        for i in range(0, len(reads), 2):
            if self.whole:
                return  # bytes after the end are no part of the response
            fault: ResponseError | None = None
            try:
                self._parser.feed_data(reads[i + 1])
            except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
                if not self.whole:
                    fault = self._fault(error, b"".join(reads[1 : i + 2 : 2]))  # type: ignore[arg-type]
            if pieces:
                body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
                pieces.clear()
                if self._inflate is not None:
                    body = self._inflated(body)
                if body:
                    yield reads[i], body  # type: ignore[misc]  # reads alternates stamps and bytes
            if fault is not None:
                raise fault
        if self.whole:
            self._parser = None  # parser and response hold each other: without this, only a pause of the GC frees them

    def _fault(self, error: Exception, read: bytes) -> ResponseError:
        if isinstance(error.__context__, ResponseError):
            return error.__context__
        if self.head_seen:
            return ResponseError(f"the framing of the body is damaged ({error})")
        if isinstance(error, httptools.HttpParserUpgrade):
            return ResponseError("the server switched to another protocol (101), which nobody asked for")
        if read.startswith(b"HTTP/1."):
            return ResponseError(f"not an HTTP/1.1 response ({error})")
        return ResponseError(f"not an HTTP/1.1 response: {foreign(read)}")

    def _inflated(self, body: bytes) -> bytes:
        """Undo the compression, as far as the bytes go; each flush of the server may be a gzip member of its own."""
        out = b""
        try:
            while body:
                assert self._inflate is not None
                out += self._inflate.decompress(body)
                if body := self._inflate.unused_data:
                    self._inflate = zlib.decompressobj(wbits=_GZIP_OR_ZLIB)
        except zlib.error as error:
            raise ResponseError(f"the compressed body is damaged ({error})") from None
        return out

    @property
    def close_delimited(self) -> bool:
        """The end of the connection is the end of the body."""
        return (
            "content-length" not in self.headers and "chunked" not in self.headers.get("transfer-encoding", "").lower()
        )
