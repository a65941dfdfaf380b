"""HTTP framing under any cut of the bytes: the end is seen with the last byte, not before and not after."""

import asyncio
import gzip
import itertools
import re
import socket
import zlib
from collections.abc import Callable, Iterable

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from loadtest.endpoints.catalog import speak
from loadtest.endpoints.dialect import Settings
from loadtest.endpoints.reading import Reading
from loadtest.wire.exchange import Exchange
from loadtest.wire.fast import FastTransport, _Connection
from loadtest.wire.origin import Origin
from loadtest.wire.response import Response, ResponseError, http_parser

# Bodies made of what could be taken for framing.
NASTY = [
    b"\r\n", b"\n\n", b"0", b"0\r\n\r\n", b"\r\n0\r\n\r\n", b"a", b"data: ", b"\r\ntransfer-encoding: chunked\r\n\r\n",
    b"HTTP/1.1 200 OK\r\n\r\n", b"\r\n0\r\nx: y\r\n\r\n", b"\r", b"\xff\x00",
]  # fmt: skip
BODY = st.lists(st.sampled_from(NASTY), max_size=8).map(b"".join)
CUTS = st.lists(st.integers(0, 2**30), max_size=12)
HEADS = [b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nServer: x\r\n"]
TYPE = b"Content-Type: text/event-stream\r\n"


def chunked(body: bytes, sizes: list[int], extension: bytes, trailer: bytes) -> bytes:
    """A body in chunks of these sizes, in turn."""
    out, at, turn = b"", 0, 0
    while at < len(body):
        piece = body[at : at + sizes[turn % len(sizes)]]
        out += b"%x%b\r\n%b\r\n" % (len(piece), extension, piece)
        at, turn = at + len(piece), turn + 1
    return out + b"0" + extension + b"\r\n" + trailer + b"\r\n"


CHUNKED = st.builds(
    chunked, BODY, st.lists(st.integers(1, 40), min_size=1, max_size=4),
    st.sampled_from([b"", b";x=1", b';a="0";b', b"  "]),
    st.sampled_from([b"", b"x-trailer: 1\r\n", b"a: \r\nb: 0\r\n"]),
)  # fmt: skip


def pieces(data: bytes, cuts: Iterable[int]) -> list[bytes]:
    """The data cut at these places (modulo its length)."""
    at = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[start:stop] for start, stop in itertools.pairwise(at)]


class Pipe(asyncio.Transport):
    """A transport that writes nowhere."""

    def __init__(self) -> None:
        super().__init__()
        self.aborted = False

    def write(self, data: object) -> None:
        """Nowhere."""

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self.aborted

    def abort(self) -> None:
        self.aborted = True


class Line:
    """A connection of the fast transport whose bytes are put in by hand, carrying one exchange."""

    def __init__(self, on_part: Callable[[Exchange], None] = lambda _: None) -> None:
        self.pool = FastTransport(Origin("http", "127.0.0.1", 1, "", ""), "127.0.0.1", 1.0, None)
        ours, theirs = socket.socketpair()
        with theirs, ours:
            self.connection = _Connection(self.pool, ours)
            self.pipe = Pipe()
            self.connection.connection_made(self.pipe)
            self.pool.free[self.connection] = None
            self.ends = 0
            self.exchange = Exchange(b"x", 0, self._end, on_part)
            self.pool.send(self.exchange)

    def _end(self, _: Exchange) -> None:
        self.ends += 1

    def body(self) -> bytes:
        """The response's body as the decoder sees it."""
        return b"".join(piece for _, piece in Response().feed(self.exchange))


def plain(body: bytes) -> bytes:
    """What a chunked body says, by a parser that is given all of it."""
    got: list[bytes] = []

    class Sink:
        on_body = got.append

    http_parser(Sink()).feed_data(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + body)
    return b"".join(got)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(HEADS), st.sampled_from([b"", b"Content-Length: 3\r\n"]), CHUNKED, CUTS)
@example(HEADS[0], b"", b"5\r\n0\r\n\r\n\r\n0\r\n\r\n", [48 + 8])  # a read ends in the text of a last chunk
def test_the_end_of_a_chunked_body_is_seen_with_its_last_byte(
    head: bytes, length: bytes, body: bytes, cuts: list[int]
) -> None:
    line = Line()
    data = head + TYPE + length + b"Transfer-Encoding: chunked\r\n\r\n" + body
    *before, last = pieces(data, cuts)
    for piece in before:
        line.connection.data_received(piece)
    assert line.ends == 0
    line.connection.data_received(last)
    assert line.ends == 1
    assert line.exchange.complete
    assert line.connection in line.pool.free
    assert line.body() == plain(body)


@pytest.mark.parametrize("trailer", [b"", b"x-trailer: 1\r\n"])
def test_the_terminator_may_be_split_anywhere(trailer: bytes) -> None:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    tail = b"4\r\na\r\n\r\r\n0\r\n" + trailer + b"\r\n"
    for first in range(len(tail) + 1):
        for second in range(first, len(tail) + 1):
            line = Line()
            parts = [part for part in (tail[:first], tail[first:second], tail[second:]) if part]
            line.connection.data_received(head)
            for part in parts[:-1]:
                line.connection.data_received(part)
            assert line.ends == 0
            line.connection.data_received(parts[-1])
            assert line.ends == 1


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(HEADS), BODY, CUTS)
@example(HEADS[0], b"\r\ntransfer-encoding: chunked\r\n\r\nx" * 2, [72, 107])  # a body that names the other framing
def test_the_end_of_a_counted_body_is_seen_with_its_last_byte(head: bytes, body: bytes, cuts: list[int]) -> None:
    line = Line()
    *before, last = pieces(head + TYPE + b"Content-Length: %d\r\n\r\n" % len(body) + body, cuts)
    for piece in before:
        line.connection.data_received(piece)
    assert line.ends == 0
    line.connection.data_received(last)
    assert line.ends == 1
    assert line.body() == body


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(HEADS), BODY, CUTS)
def test_a_body_without_length_ends_with_its_connection(head: bytes, body: bytes, cuts: list[int]) -> None:
    line = Line()
    for piece in pieces(head + TYPE + b"\r\n" + body, cuts):
        line.connection.data_received(piece)
    assert line.ends == 0
    line.connection.connection_lost(None)
    assert line.ends == 1
    assert line.exchange.failure is None
    assert line.body() == body


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(BODY, min_size=1, max_size=4), CUTS, st.sampled_from(["flushes", "members", "zlib"]))
def test_a_compressed_body_is_undone_under_any_cut(events: list[bytes], cuts: list[int], how: str) -> None:
    if how == "members":
        packed = b"".join(map(gzip.compress, events))
    else:
        packer = zlib.compressobj(wbits=31 if how == "flushes" else 15)
        packed = b"".join(packer.compress(event) + packer.flush(zlib.Z_SYNC_FLUSH) for event in events) + packer.flush()
    name = b"deflate" if how == "zlib" else b"gzip"
    head = b"HTTP/1.1 200 OK\r\nContent-Encoding: %b\r\nContent-Length: %d\r\n\r\n" % (name, len(packed))
    line = Line()
    for piece in pieces(head + packed, cuts):
        line.connection.data_received(piece)
    assert line.body() == b"".join(events)


def test_compressed_events_come_out_as_they_come_in() -> None:
    """Incrementally: an event is not held back until the next one completes a block."""
    packer = zlib.compressobj(wbits=31)
    events = [packer.compress(b"data: %d\n\n" % n) + packer.flush(zlib.Z_SYNC_FLUSH) for n in range(3)]
    exchange = Exchange(b"", 0, lambda _: None, lambda _: None)
    response = Response()
    exchange.reads = [1, b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n"]
    for stamp, event in enumerate(events, 2):
        exchange.reads += [stamp, event]
    assert list(response.feed(exchange)) == [(n + 2, b"data: %d\n\n" % n) for n in range(3)]


@pytest.mark.parametrize(
    ("response", "words"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Encoding: br\r\nContent-Length: 1\r\n\r\nx", "'br'"),
        (b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 4\r\n\r\nplai", "compressed body is damaged"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "framing of the body is damaged"),
        (b"HTTP/1.1 200 OK\r\nbad header\r\n\r\n", "not an HTTP/1.1 response"),
    ],
)
def test_a_damaged_response_is_named(response: bytes, words: str) -> None:
    line = Line()
    line.connection.data_received(response)
    assert line.ends == 1
    with pytest.raises(ResponseError, match=re.escape(words)):
        line.body()


def test_what_came_before_the_damage_is_kept() -> None:
    exchange = Exchange(b"", 0, lambda _: None, lambda _: None)
    exchange.reads = [7, b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\nzz\r\n"]
    body = Response().feed(exchange)
    assert next(body) == (7, b"abc")
    with pytest.raises(ResponseError):
        next(body)


@pytest.mark.parametrize("extra", [b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nwhat", b"junk\r\n\r\n", b"\r\n"])
@pytest.mark.parametrize("close", [b"", b"Connection: close\r\n"])
def test_bytes_after_the_end_are_no_part_of_the_response(extra: bytes, close: bytes) -> None:
    line = Line()
    line.connection.data_received(b"HTTP/1.1 200 OK\r\n" + close + b"Content-Length: 2\r\n\r\nab" + extra)
    assert line.ends == 1
    assert line.pipe.aborted == (extra != b"\r\n" or bool(close))
    assert line.body() == b"ab"


@pytest.mark.parametrize("then", ["another read", "the connection closes"])
def test_an_end_hidden_by_bytes_after_it_comes_to_light(then: str) -> None:
    """The one case that the look at the last four bytes cannot see at once; the response is whole all the same."""
    line = Line()
    line.connection.data_received(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    line.connection.data_received(b"2\r\nab\r\n0\r\n\r\nHTTP/1.1 200 OK\r\n")
    if then == "another read":
        line.connection.data_received(b"Content-Length: 0\r\n\r\n")
    else:
        line.connection.connection_lost(None)
    assert line.ends == 1
    assert line.connection not in line.pool.free
    response = Response()
    assert [piece for _, piece in response.feed(line.exchange)] == [b"ab"]
    assert response.whole


@pytest.mark.parametrize("framing", ["chunked", "chunked, CRLF events", "closed"])
def test_a_long_stream_is_decoded_in_parts(framing: str) -> None:
    """Ten thousand events: what is kept undecoded stays bounded."""
    dialect = speak(Settings("chat", "m"))
    reading = Reading(dialect)
    most = 0

    def part(exchange: Exchange) -> None:
        nonlocal most
        most = max(most, len(exchange.reads))
        reading.part(exchange)

    line = Line(part)
    feed = line.connection.data_received
    end = b"\r\n\r\n" if framing == "chunked, CRLF events" else b"\n\n"
    event = b'data: {"choices":[{"delta":{"content":"x"}}]}' + end
    coding = b"" if framing == "closed" else b"Transfer-Encoding: chunked\r\n"
    feed(b"HTTP/1.1 200 OK\r\n" + TYPE + coding + b"\r\n")
    for _ in range(10_000):
        feed(event if framing == "closed" else b"%x\r\n%b\r\n" % (len(event), event))
        assert len(line.exchange.reads) <= 2048
    done = b"data: [DONE]" + end
    if framing == "closed":
        feed(done)
        line.connection.connection_lost(None)
    else:
        feed(b"%x\r\n%b\r\n0\r\n\r\n" % (len(done), done))
    reading.finish(line.exchange)
    assert line.ends == 1
    assert (reading.outcome, len(reading.answer.stamps)) == ("ok", 10_000)
    assert most
