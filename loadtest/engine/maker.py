"""Requests of the plan made into the bytes to send."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec

from loadtest import __version__, plan
from loadtest.endpoints.catalog import speak
from loadtest.endpoints.dialect import Dialect, Head
from loadtest.engine.orders import Prepare, Wiring
from loadtest.trace import HEADER, traceparent
from loadtest.wire.origin import Origin, parse
from loadtest.workload.compose import Composer
from loadtest.workload.model import Ask, Message
from loadtest.workload.request import Request


class Made(msgspec.Struct, frozen=True, gc=False):
    """One request made: the bytes to send, and what its record says of it.

    Of a conversation's turn there is ``ask`` in place of the payload: that is written once the history is known, in
    which ``answer`` takes the place of the model's own; None is the model's own. ``at_s`` is a trace's time for it.
    ``samples`` of None: it asks for text.
    """

    id: int
    input_tokens: int | None
    output_tokens: int
    payload: bytes
    prompt_hash: int | None = None
    workload: int = 0
    session: int | None = None
    turn: int | None = None
    model: str | None = None
    ends: Literal["completed", "abandoned"] | None = None
    think_s: float = 0.0
    at_s: float | None = None
    ask: Ask | None = None
    answer: str | None = None
    probe: bool = False
    samples: int | None = None

    @property
    def size(self) -> int:
        """About how many bytes it holds."""
        if self.ask is None:
            return len(self.payload)
        texts = (*(message.content for message in self.ask.messages), *self.ask.images, self.answer or "")
        return sum(map(len, texts))


# An arrival: one request, or the turns of a session in order.
Unit = tuple[Made, ...]


class Maker:
    """Makes the arrivals of one worker's slice, in order.

    Raises:
        UsageError: a corpus cannot be used.
    """

    def __init__(self, order: Prepare) -> None:
        wiring, level = order.wiring, order.level
        self._letters = Letters(wiring, level.model, level.index)
        self._composer = Composer(level.workloads, wiring.tokens, wiring.seed)
        self._requests = plan.requests(level, wiring.seed, order.worker, order.workers)

    def __iter__(self) -> Iterator[Unit]:
        turns: list[Made] = []
        with contextlib.closing(self._composer):
            for request in self._requests:
                made = self._made(request)
                if made.session is None:
                    yield (made,)
                    continue
                turns.append(made)
                if made.ends:
                    yield tuple(turns)
                    turns = []
            if turns:  # the level's number of requests cut it short
                yield tuple(turns)

    def _made(self, request: Request) -> Made:
        composed = self._composer.compose(request)
        ask = composed.ask
        waits = request.session is not None and composed.at_s is None
        return Made(
            request.id,
            composed.input_tokens,
            ask.max_tokens,
            b"" if waits else self._letters.write(ask, request.id),
            None if waits else self._letters.dialect.fingerprint(ask),
            request.workload,
            request.session,
            request.turn,
            request.model,
            request.ends,
            request.think_s,
            composed.at_s,
            ask if waits else None,
            composed.answer,
            samples=self._letters.dialect.samples(ask),
        )


class Letters:
    """Writes what is asked of the ``level`` at that place as HTTP requests. ``model`` of None is the run's own."""

    def __init__(self, wiring: Wiring, model: str | None, level: int) -> None:
        speech = wiring.speech if model is None else msgspec.structs.replace(wiring.speech, model=model)
        self.dialect = speak(speech)
        self._wiring = wiring
        self._level = level
        self._origin = parse(wiring.url, None if self.dialect.exact_url else ())
        self._head = self._headed(Head(self.dialect.path))

    def write(self, ask: Ask, request: int) -> bytes:
        """The bytes of the request of that id."""
        body, own = self.dialect.body(ask), self.dialect.head(ask)
        head = self._head if own is None else self._headed(own)
        if (run := self._wiring.trace) is not None:
            head += f"{HEADER}: {traceparent(run, self._level, request)}\r\n".encode("ascii")
        if not body and self.dialect.method == "GET":
            return head + b"\r\n"  # nobody expects one there: RFC 9110, 8.6
        return b"%bContent-Length: %d\r\n\r\n%b" % (head, len(body), body)

    def turn(self, made: Made, history: Sequence[Message]) -> Made:
        """A turn of a conversation with what was said before it."""
        assert made.ask is not None
        ask = msgspec.structs.replace(made.ask, messages=(*history, *made.ask.messages))
        return msgspec.structs.replace(
            made, payload=self.write(ask, made.id), prompt_hash=self.dialect.fingerprint(ask)
        )

    def _headed(self, own: Head) -> bytes:
        return _head(self._wiring, self._origin, self.dialect, own)


def _head(wiring: Wiring, origin: Origin, dialect: Dialect, own: Head) -> bytes:
    """A request's head up to Content-Length."""
    lines = [
        f"{dialect.method} {origin.path(own.path)} HTTP/1.1",
        f"Host: {origin.authority}",
        f"User-Agent: loadtest/{__version__}",
        f"Accept: {dialect.accept}",
        "Accept-Encoding: identity",
    ]
    if dialect.content_type is not None:
        lines.append(f"Content-Type: {dialect.content_type}")
    lines += [f"{name}: {value}" for name, value in (*dialect.headers, *own.headers)]
    ours = {line.split(":", 1)[0].lower(): index for index, line in enumerate(lines) if index}
    for name, value in wiring.headers:  # the user's word stands above ours
        if (index := ours.get(name.lower())) is not None:
            lines[index] = f"{name}: {value}"
        else:
            lines.append(f"{name}: {value}")
    return "".join(f"{line}\r\n" for line in lines).encode("latin-1")
