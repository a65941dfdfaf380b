"""A case played through a transport, read as the generator reads it, and held against its right answer."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from time import perf_counter_ns
from typing import Any, NamedTuple

import uvloop

from loadtest.endpoints.answer import Answer
from loadtest.endpoints.catalog import speak
from loadtest.endpoints.dialect import Settings
from loadtest.endpoints.reading import Reading
from loadtest.wire.aiohttp_transport import AiohttpTransport
from loadtest.wire.exchange import Exchange, Failure, Transport
from loadtest.wire.fast import FastTransport
from loadtest.wire.origin import Origin, parse
from loadtest.workload import model

RECORDED = Path(__file__).parent / "recorded"
SECRET = "sk-test-0123456789"
_STALL_S = 8.0  # where a case sets no limit between bytes of its own: longer than any waits


class Wire(NamedTuple):
    """A transport on an event loop. A further transport is one more line in WIRES."""

    name: str
    loop: Callable[[], asyncio.AbstractEventLoop]
    open: Callable[[Origin], Awaitable["Opened"]]


class Opened(NamedTuple):
    """A transport that is ready, and how to close it."""

    transport: Transport
    close: Callable[[], Awaitable[None]]


async def _fast(origin: Origin) -> Opened:
    transport = FastTransport(origin, origin.host, 5.0, None)
    await transport.open(1)
    return Opened(transport, transport.close)


async def _aiohttp(origin: Origin) -> Opened:
    transport = AiohttpTransport(origin, origin.host, 5.0, None)
    await transport.open(1)
    return Opened(transport, transport.close)


WIRES = [
    Wire("fast-uvloop", uvloop.new_event_loop, _fast),
    Wire("fast-asyncio", asyncio.SelectorEventLoop, _fast),
    Wire("aiohttp-uvloop", uvloop.new_event_loop, _aiohttp),
    Wire("aiohttp-asyncio", asyncio.SelectorEventLoop, _aiohttp),
]


class Ask(NamedTuple):
    """Requests to one case, one after another. ``expected`` says for each which part of expect.json is its answer."""

    name: str
    case: str
    expected: tuple[str, ...] = ("",)
    headers: str = f"Authorization: Bearer {SECRET}\r\nAccept-Encoding: identity\r\n"
    prompts: tuple[str, ...] = ("hi",)


class Played(NamedTuple):
    """One request as it was read; ``stamps`` in ms from its first byte sent."""

    reading: Reading
    stamps: list[float]
    resent: bool

    @property
    def answer(self) -> Answer:
        """What the response said."""
        return self.reading.answer


def expectation(case: str) -> dict[str, Any]:
    """The right answer of a case."""
    found: dict[str, Any] = json.loads((RECORDED / case / "expect.json").read_text("utf-8"))
    return found


def asks() -> list[Ask]:
    """Every case that replays a server, by name; those with a second face twice."""
    special = {
        "http-503-warming": Ask("", "", ("first_two", "first_two", "")),
        "conn-closed-on-reuse": Ask("", "", ("", "", "", "")),
        "req-stream-options-400": Ask("", "", ("rejected",)),
        "req-max-completion-tokens": Ask("", "", ("rejected",)),
        "work-unicode-prompts": Ask("", "", ("",) * 4, prompts=_unicode_prompts()),
    }
    found = [Ask("req-authorization without a key", "req-authorization", ("rejected",), "")]
    found.append(
        Ask("req-accept-encoding offering gzip", "req-accept-encoding", ("gzip",), "Accept-Encoding: gzip\r\n")
    )
    for folder in sorted(path.parent for path in RECORDED.glob("*/response.bin")):
        found.append(special.get(folder.name, Ask("", ""))._replace(name=folder.name, case=folder.name))
    return found


def _unicode_prompts() -> tuple[str, ...]:
    lines = (RECORDED / "work-unicode-prompts" / "prompts.jsonl").read_text("utf-8").splitlines()
    return tuple(json.loads(line)["prompt"] for line in lines)


async def play(wire: Wire, url: str, ask: Ask) -> list[Played]:
    """Play an ask on a transport of its own."""
    about = json.loads((RECORDED / ask.case / "case.json").read_text("utf-8"))
    dialect = speak(Settings(about["api"], "m"))
    origin = parse(f"{url}/case/{ask.case}")
    stall_s = expectation(ask.case).get("client_timeout_ms", _STALL_S * 1000) / 1000
    opened = await wire.open(origin)
    found = []
    for number, _ in enumerate(ask.expected):
        prompt = model.Message("user", ask.prompts[number % len(ask.prompts)])
        body = dialect.body(model.Ask((prompt,), 64))
        head = (
            f"POST {origin.path(dialect.path)} HTTP/1.1\r\nHost: {origin.authority}\r\n{ask.headers}"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        exchange = await exchanged(opened.transport, head.encode() + body, stall_s, Reading(dialect))
        reading = exchange.decoder
        assert isinstance(reading, Reading)
        reading.finish(exchange)
        stamps = [(stamp - exchange.sent) / 1e6 for stamp in reading.answer.stamps]
        found.append(Played(reading, stamps, exchange.resent))
    await opened.close()
    return found


async def exchanged(transport: Transport, payload: bytes, stall_s: float, reading: Reading) -> Exchange:
    """One exchange to its end, cut off when no byte came for so long; ``reading`` is its decoder."""
    ended = asyncio.Event()
    exchange = Exchange(payload, perf_counter_ns(), lambda _: ended.set(), reading.part)
    exchange.decoder = reading
    transport.send(exchange)
    while not ended.is_set():
        quiet_s = (perf_counter_ns() - max(exchange.last, exchange.sent, exchange.intended)) / 1e9
        if quiet_s >= stall_s:
            transport.cancel(exchange, Failure("timeout", f"no byte for {stall_s:g} s"))
        else:
            try:
                await asyncio.wait_for(ended.wait(), stall_s - quiet_s)
            except TimeoutError:
                continue  # bytes may have come meanwhile
    return exchange


def faults(played: Played, case: str, part: str) -> list[str]:
    """Where a request's reading differs from the right answer, times apart."""
    whole = expectation(case)
    expected = {**whole, **whole[part]} if part in whole else whole
    if part in ("rejected", "first_two"):  # the reply is an error of which no more is said
        expected = {**dict.fromkeys(whole), "content_events": 0, **whole[part]}
    answer, reading, error = played.answer, played.reading, played.reading.error
    text = "".join((expected.get("reasoning_text") or "", expected.get("text") or ""))
    usage = answer.usage
    pairs = {
        "outcome": ("ok" if reading.outcome == "ok" else "error", expected["outcome"]),
        "error kind": (error and error.kind, expected["error_kind"]),
        "status": (error and error.status, expected.get("status", error and error.status)),
        "retry after": (error and error.retry_after_s, expected.get("retry_after_s")),
        "finish reason": (answer.finish_reason, expected["finish_reason"]),
        "events": (len(answer.stamps), expected["content_events"]),
        "output tokens": (usage and usage.output_tokens, expected["completion_tokens"]),
        "input tokens": (usage and usage.input_tokens, expected["prompt_tokens"]),
        "cached tokens": (usage and usage.cached_input_tokens, expected.get("cached_prompt_tokens")),
        "bad events": (answer.bad_events, expected.get("bad_events") or 0),
    }
    found = [f"{name}: {got!r}, not {right!r}" for name, (got, right) in pairs.items() if got != right]
    said = "".join(answer.texts)
    if expected.get("tool_arguments"):
        if not said.endswith(expected["tool_arguments"]):
            found.append(f"tool arguments: {said!r}")
    elif said != text:
        found.append(f"text: {said[:80]!r}, not {text[:80]!r}")
    if error is not None and (not error.message or expected.get("error_has", "") not in error.message):
        found.append(f"message: {error.message!r} has no {expected.get('error_has')!r}")
    return found


def late(played: Played, case: str, written_ms: list[float]) -> list[str]:
    """Token events whose stamp is not that of the step which the server wrote them in."""
    expected = expectation(case)
    room_ms = expected["tolerance_ms"]
    steps = [written_ms[step] for step in expected["token_event_steps"]]
    return [
        f"event {number}: read at {got:.1f} ms, written at {written:.1f} ms"
        for number, (got, written) in enumerate(zip(played.stamps, steps, strict=True))
        if not written - 2 <= got <= written + room_ms
    ]
