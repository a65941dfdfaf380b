"""A token that is renewed while a level is played stands in what is sent from then on, whenever that was made."""

import asyncio
import re
from pathlib import Path
from time import perf_counter_ns

import pytest

from loadtest.engine.orders import Prepare
from loadtest.engine.play import Play
from loadtest.records import read
from loadtest.schedule import Load
from loadtest.wire.exchange import Exchange, Failure
from loadtest.wire.ring import Ring
from loadtest.workload.lengths import Length
from loadtest.workload.model import Probe
from tests.engine.playing import level, wiring

OLD, NEW = "token-of-before", "token-of-now"


class Refusing:
    """A transport that keeps what it is given, and answers with what came as the token."""

    def __init__(self) -> None:
        self.opened = self.no_free_port = self.last_read = 0
        self.waits = Ring(0)
        self.sent: list[bytes] = []
        self.play: Play | None = None

    async def open(self, count: int) -> None:
        """Nothing to open."""

    def send(self, exchange: Exchange) -> None:
        """The third one is sent just before the token is renewed."""
        self.sent.append(exchange.payload)
        if len(self.sent) == 3:
            assert self.play is not None
            self.play.renew(NEW)
        body = b'{"error": {"message": "what is ' + exchange.payload.split(b"Bearer ")[1].split(b"\r\n")[0] + b'?"}}'
        exchange.sent = perf_counter_ns()
        head = b"HTTP/1.1 503 Busy\r\nContent-Length: %d\r\n\r\n" % len(body)
        exchange.reads += [exchange.sent, head + body]
        exchange.done = exchange.last = exchange.sent
        exchange.complete = True
        asyncio.get_running_loop().call_soon(exchange.on_end, exchange)

    def cancel(self, exchange: Exchange, failure: Failure) -> None:
        """Nothing runs that long."""

    async def close(self) -> None:
        """Nothing to close."""


@pytest.mark.parametrize("load", [Load("closed", concurrency=2), Load("constant", rate_per_s=200.0)])
async def test_requests_made_before_go_out_with_the_newest_token(load: Load, tmp_path: Path) -> None:
    transport, journal = Refusing(), tmp_path / "records.jsonl"
    given = {"headers": (("Authorization", f"Bearer {OLD}"),), "bearer": OLD, "secrets": (OLD,)}
    probe = Probe(100.0, Length(4, 4), Length(4, 4))
    order = Prepare(wiring("http://127.0.0.1:1", journal, **given), level(load, requests=9, probe=probe), 0, 1)
    transport.play = play = Play(order, transport, lambda _: None)
    await play.prepare()
    async with asyncio.timeout(20):
        await play.run(perf_counter_ns())
    tokens = [re.findall(rb"(?m)^Authorization: Bearer (.*)\r$", sent) for sent in transport.sent]
    assert tokens[:3] == [[OLD.encode()]] * 3
    assert tokens[3:] == [[NEW.encode()]] * (len(tokens) - 3)
    assert len(tokens) >= 9
    assert len({sent.partition(b"\r\n\r\n")[2] for sent in transport.sent}) == len(tokens)
    records, _ = read(journal)
    assert {record.error.message for record in records if record.error} == {"503 Busy: what is [redacted]?"}


async def test_nothing_is_renewed_where_the_token_is_none_of_ours(tmp_path: Path) -> None:
    transport, journal = Refusing(), tmp_path / "records.jsonl"
    own = wiring("http://127.0.0.1:1", journal, headers=(("Authorization", f"Bearer {OLD}"),))
    transport.play = play = Play(
        Prepare(own, level(Load("closed", concurrency=1), requests=6), 0, 1), transport, lambda _: None
    )
    await play.prepare()
    async with asyncio.timeout(20):
        await play.run(perf_counter_ns())
    assert all(f"Bearer {OLD}\r\n".encode() in sent for sent in transport.sent)
