"""A level played in this process, against a server in the same loop that keeps what it was asked."""

import asyncio
import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import uvloop

from loadtest.endpoints.dialect import Settings
from loadtest.engine.orders import Done, Prepare, Wiring
from loadtest.engine.play import Play
from loadtest.level import Level
from loadtest.records import Record, read
from loadtest.schedule import Load
from loadtest.wire.fast import FastTransport
from loadtest.wire.origin import parse
from loadtest.workload.lengths import Length
from loadtest.workload.model import Workload
from loadtest.workload.tokens import Tokens

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: %d\r\n\r\n"
REFUSED = b'HTTP/1.1 503 Service Unavailable\r\nContent-Length: 20\r\n\r\n{"error": "refused"}'

# What the server is to do with a body: the answer, or None to refuse, and how many seconds it takes.
Manner = Callable[[dict[str, Any]], tuple[str | None, float]]


class Asked(NamedTuple):
    """What the server was asked, and when."""

    at_ns: int
    body: dict[str, Any]


class Played(NamedTuple):
    """A level that has been played."""

    records: list[Record]
    done: list[Done]
    asked: list[Asked]

    @property
    def load(self) -> list[Record]:
        """The records of the load, in the order of their ids."""
        return sorted((r for r in self.records if not r.probe), key=lambda record: record.id)


def at_once(body: dict[str, Any]) -> tuple[str | None, float]:
    """The answer names how many messages it is an answer to."""
    return f"answer to {len(body['messages'])}", 0.0


def level(load: Load, *workloads: Workload, **given: Any) -> Level:
    """A level that ends by its number of requests, or with ``duration_s``."""
    values: dict[str, Any] = {"duration_s": None, "requests": None, "warmup_s": 0.0, "grace_s": 5.0, **given}
    plain = Workload(Length(20, 20), Length(8, 8))
    return Level(0, "", load, None, workloads or (plain,), **values)


def wiring(url: str, journal: Path, **given: Any) -> Wiring:
    """The wiring of a run against a server on loopback."""
    values: dict[str, Any] = {
        "url": url, "address": "127.0.0.1", "speech": Settings("chat", "m"),
        "tokens": Tokens("bytes"), "headers": (), "secrets": (), "timeout_s": 20.0, "connect_timeout_s": 5.0,
        "stall_timeout_s": 20.0, "journal": str(journal), "seed": 7,
    }  # fmt: skip
    return Wiring(**{**values, **given})


def play(asked: Level, folder: Path, manner: Manner = at_once, *, workers: int = 1, **given: Any) -> Played:
    """Play a level on so many slices, all in one loop."""
    played: Played = uvloop.run(_play(asked, folder, manner, workers, given))
    return played


async def _play(asked: Level, folder: Path, manner: Manner, workers: int, given: dict[str, Any]) -> Played:
    seen: list[Asked] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                size = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
                body = json.loads(await reader.readexactly(size))
                seen.append(Asked(time.perf_counter_ns(), body))
                answer, seconds = manner(body)
                await asyncio.sleep(seconds)
                writer.write(REFUSED if answer is None else _streamed(answer))
        except (asyncio.IncompleteReadError, ConnectionResetError):
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=1 << 26)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    told: list[object] = []
    journal = folder / "records.jsonl"
    transports, plays = [], []
    for worker in range(workers):
        transport = FastTransport(parse(url), "127.0.0.1", 5.0, None)
        played = Play(Prepare(wiring(url, journal, **given), asked, worker, workers), transport, told.append)
        transports.append(transport)
        plays.append(played)
        await played.prepare()
    t0 = time.perf_counter_ns() + 10_000_000
    try:
        async with asyncio.timeout(30):
            await asyncio.gather(*(played.run(t0) for played in plays))
    finally:
        for transport in transports:
            await transport.close()
        server.close()
    records, _ = read(journal)
    return Played(records, [message for message in told if isinstance(message, Done)], seen)


def _streamed(answer: str) -> bytes:
    events: list[dict[str, Any]] = [
        {"choices": [{"delta": {"content": text}}]} for text in re.findall(r" ?\S+", answer)
    ]
    events.append({"choices": [{"delta": {}, "finish_reason": "stop"}]})
    body = b"".join(b"data: %b\n\n" % msgspec.json.encode(event) for event in events) + b"data: [DONE]\n\n"
    return HEAD % len(body) + body
