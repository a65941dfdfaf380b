"""What an endpoint speaks: a request's body out, a response's events in. Each dialect is a small class of this form."""

import abc
from collections.abc import Callable
from typing import ClassVar, Literal

import msgspec

from loadtest.endpoints.answer import Answer
from loadtest.endpoints.lenient import error_text, words
from loadtest.endpoints.pattern import Pattern
from loadtest.errors import TargetError, UsageError
from loadtest.target import Known, model_cards
from loadtest.wire.control import Reply
from loadtest.workload.compose import fingerprint
from loadtest.workload.model import Ask, Tensors

Framing = Literal["sse", "ndjson", "lines", "chunks"]
Get = Callable[[str], Reply]
ONE_A_REQUEST = "is asked for one thing a request, and the server makes the batches: raise concurrency"


class Settings(msgspec.Struct, frozen=True):
    """What a dialect has to know of a run. All of it travels to the generator's processes.

    ``owner`` is who the server says owns the model, ``told`` a JSON object for the dialect's own use, both from
    ``Dialect.discover``. ``path`` takes the place of the dialect's own. ``left_out`` are names of adaptations, as
    ``Dialect.adaptation`` gave them. ``pattern`` is what a scenario says of an API itself, and ``variables`` are those
    of the environment that it names, with their values. ``seed`` is the run's. ``counting``: these requests are none of
    the measurement, and only to tell how many tokens a prompt has.
    """

    kind: str
    model: str
    stream: bool = True
    owner: str | None = None
    told: str = "{}"
    path: str | None = None
    left_out: tuple[str, ...] = ()
    pattern: Pattern = Pattern()
    variables: tuple[tuple[str, str], ...] = ()
    seed: int = 0
    counting: bool = False


class Head(msgspec.Struct, frozen=True):
    """Of one request alone: its path below the base URL, and headers in front of the run's own."""

    path: str
    headers: tuple[tuple[str, str], ...] = ()


class Dialect(abc.ABC):
    """Bodies out, events in, for one model. ``body`` and ``event`` are all that a dialect must have.

    ``streams``: whether the answer is asked for in pieces; ``framing`` is how such a body is cut into events.
    ``limits``: whether requests say how long an answer may be.
    ``ends_cleanly``: nothing but the end of the body says that the answer is whole. ``sign`` is what a stream ends with
    where nothing else will do; of "" a finish reason does as well. ``generates``: it makes text, token
    by token; without, an answer has no TTFT, no output length is asked for, and what counts are samples.
    ``converses``: it takes messages with roles, and pictures in them; without, it takes plain text.
    ``batches``: a request may ask for several samples.
    ``reads``: what it takes is text; without, no length of it is asked for unless the user does, and nothing counted.
    ``key_header`` takes the API key as it is; of None it is sent as a bearer token.
    ``counts``: a few small requests may be sent to see how many tokens it makes of them, each for an answer of
    ``fewest`` tokens, as some take no limit below. ``exact_url``: the URL of a
    run is that of its requests, and no base that paths of an API come behind. ``bodiless``: an answer may be empty.
    ``greedy`` is a JSON object of the body's keys that ask for the likeliest token each time; None: it is the default,
    or no key asks for it.
    """

    path: str
    method = "POST"
    content_type: str | None = "application/json"
    framing: Framing = "sse"
    ends_cleanly: bool = False
    sign: str = ""
    bodiless: bool = False
    generates: ClassVar[bool] = True
    converses: ClassVar[bool] = False
    batches: ClassVar[bool] = False
    reads: ClassVar[bool] = True
    key_header: ClassVar[str | None] = None
    counts: ClassVar[bool] = True
    fewest: ClassVar[int] = 1
    exact_url: ClassVar[bool] = False
    greedy: ClassVar[str | None] = None
    headers: tuple[tuple[str, str], ...] = ()
    endings: ClassVar[tuple[str, ...]] = ()
    """Paths of the API that a URL may end in and that are no part of its base; one that it has is its ``path``."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.streams = settings.stream and self.generates
        self.limits = self.generates
        if settings.path is not None:
            self.path = settings.path

    @classmethod
    def of(cls, pattern: Pattern) -> "type[Dialect]":
        """The dialect of an API that a scenario says this of; most know theirs and need no word of it."""
        return cls

    @property
    def accept(self) -> str:
        """The value of the Accept header."""
        return "text/event-stream" if self.streams and self.framing == "sse" else "application/json"

    @abc.abstractmethod
    def body(self, ask: Ask) -> bytes:
        """One request's body."""

    @abc.abstractmethod
    def event(self, answer: Answer, data: bytes, stamp: int) -> None:
        """Take in the data of one event of a stream. ``stamp`` is the instant of its read, in nanoseconds."""

    def whole(self, answer: Answer, body: bytes) -> None:
        """Take in an answer that came in one piece: it has no token events, and is its own end.

        Raises:
            ValueError: it is none; the message says what it is.
        """
        self.event(answer, body, 0)
        answer.stamps.clear()
        answer.first_answer = 0
        if answer.bad_events or not body.strip():
            raise ValueError(f"the body is no answer of the endpoint {self.settings.kind}: {words(body)}")
        answer.ended = answer.error is None

    def head(self, ask: Ask) -> Head | None:
        """Path and headers of this request, where they are not those of all."""
        return None

    def check(self, tensors: Tensors, samples: int, *, texts: bool) -> None:
        """See before the clock that requests of so many samples can be made; ``texts``: a length of text is asked for.

        Raises:
            UsageError: the model takes something else.
        """
        if samples > 1 and not self.batches:
            raise UsageError(f"batch_size: {self.settings.kind} {ONE_A_REQUEST}")
        if tensors != Tensors():
            raise UsageError(f"workload.inputs: {self.settings.kind} takes text; tensors are for kserve")

    def samples(self, ask: Ask) -> int | None:
        """How many items a request asks for; None of text."""
        return None if self.generates else ask.samples

    def fingerprint(self, ask: Ask) -> int | None:
        """48 bits that tell one request's input from another's; None where nothing is known of it."""
        return fingerprint(ask.messages, ask.images)

    def good(self, status: int) -> bool:
        """Whether a response with that status is an answer."""
        return 200 <= status < 300

    def found_nothing(self, answer: Answer) -> str | None:
        """What was looked for in answers and has been in none so far, and what came instead; None: nothing is amiss.

        Asked of each answer that is good otherwise, until one has shown that the dialect fits.
        """
        return None

    def error_text(self, body: bytes) -> str | None:
        """The server's own words in the body of an error, or None."""
        return error_text(body)

    def adaptation(self, words: str) -> str | None:
        """A name for what may be asked otherwise after a 400 with these words, or None. See docs/metrics.md."""
        return None

    @classmethod
    def discover(cls, get: Get, model: str | None) -> Known:
        """What the target says of itself before the run; ``model`` is the one asked for, if one is.

        Raises:
            TargetError: it cannot be reached, or names no model and none was given.
        """
        reply = get("/v1/models")
        cards = model_cards(reply)
        if model is None and not cards:
            said = words(reply.text.encode())
            raise TargetError(
                f"/v1/models names no model: {reply.status} {said}; name one with --model"
                if reply.status not in (401, 403)
                else f"/v1/models refuses us: {reply.status} {said}; give a key with --api-key"
            )
        named = cards if model is None else [card for card in cards if card["id"] == model]
        card = named[0] if named else {}
        return Known(model or str(card["id"]), card.get("owned_by"), card)
