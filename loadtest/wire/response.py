"""HTTP/1.1 taken off the bytes of an exchange, after the fact: httptools does the parsing."""

import zlib
from collections.abc import Iterator

import httptools

from loadtest.wire.exchange import Exchange

NO_STATUS = 0


class ResponseError(Exception):
    """The bytes are not an HTTP/1.1 response, or its coding is one we cannot undo."""


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
        self._parser = httptools.HttpResponseParser(self)

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
        coding = self.headers.get("content-encoding", "identity").strip().lower()
        if coding in ("gzip", "x-gzip", "deflate"):
            self._inflate = zlib.decompressobj(wbits=47)  # 32 + 15: gzip or zlib, whichever its header says
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
            try:
                self._parser.feed_data(reads[i + 1])
            except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
                cause = error.__context__ if isinstance(error.__context__, ResponseError) else None
                raise cause or ResponseError(f"not an HTTP/1.1 response ({error})") from None
            if not pieces:
                continue
            body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
            pieces.clear()
            if self._inflate is not None:
                try:
                    body = self._inflate.decompress(body)
                except zlib.error as error:
                    raise ResponseError(f"the compressed body is damaged ({error})") from None
            if body:
                yield reads[i], body  # type: ignore[misc]  # reads alternates stamps and bytes

    @property
    def close_delimited(self) -> bool:
        """The end of the connection is the end of the body."""
        return (
            "content-length" not in self.headers and "chunked" not in self.headers.get("transfer-encoding", "").lower()
        )
