"""A reply read in pieces, as the network may cut it."""

import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from loadtest.endpoints.dialect import Dialect
from loadtest.endpoints.reading import Reading
from loadtest.wire.exchange import Exchange

RECORDED = Path(__file__).parents[1] / "cases" / "recorded"


def read(dialect: Dialect, reply: bytes, cuts: Iterable[int] = ()) -> Reading:
    """A whole reply, head and body, that came in pieces; the stamp of a piece is its number, from 1."""
    exchange = Exchange(b"", 0, lambda _: None, lambda _: None)
    reading = Reading(dialect)
    for stamp, (start, stop) in enumerate(itertools.pairwise(sorted({0, len(reply), *cuts})), 1):
        exchange.reads += [stamp, reply[start:stop]]
        reading.part(exchange)
    reading.finish(exchange)
    return reading


def counted(body: bytes, kind: str = "application/json") -> bytes:
    """A reply of 200 with a counted body."""
    return b"HTTP/1.1 200 OK\r\nContent-Type: %b\r\nContent-Length: %d\r\n\r\n%b" % (kind.encode(), len(body), body)


def told(reading: Reading) -> Any:
    """All that a reading says, stamps apart."""
    answer = reading.answer
    return (
        reading.outcome, reading.error, reading.streamed, answer.texts, answer.thoughts, len(answer.stamps),
        answer.usage, answer.finish_reason, answer.ended, answer.samples, answer.bad_events,
    )  # fmt: skip


def differing(dialect: Dialect, reply: bytes) -> list[int]:
    """The places where a cut changes what the reply says; none, if the dialect reads it right."""
    whole = told(read(dialect, reply))
    places = [place for place in range(1, len(reply)) if told(read(dialect, reply, [place])) != whole]
    return places if told(read(dialect, reply, range(len(reply)))) == whole else [0, *places]
