"""A request of the plan made into what it asks: text and pictures of the lengths that were planned, or a row's own."""

import functools
import hashlib
import random
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from loadtest.workload.images import image
from loadtest.workload.model import BLOCK_TOKENS, OUTPUT_TOKENS, Ask, Message, Prefix, Row, Turn, Workload
from loadtest.workload.prompts import Prompts
from loadtest.workload.request import Request
from loadtest.workload.rows import Reader
from loadtest.workload.tokens import Tokens

_CHARACTERS = 4  # a token, where a recorded answer can only be estimated

_NO_TURN = Turn()


class Composed(NamedTuple):
    """What a request asks, and what else its session has to know.

    Of a turn of a conversation, ``ask`` is its own part: what was said before it comes in front once it has been said.
    ``input_tokens`` is what is asked in all, None where that is not known beforehand. ``answer`` takes the place of the
    model's own in the history; None is the model's own. ``at_s`` is the time that a trace has for the request.
    """

    ask: Ask
    input_tokens: int | None
    answer: str | None = None
    at_s: float | None = None


class Composer:
    """Composes the requests of a level.

    A shared prefix opens the first message, so that the length of the whole is exact. Data keep their texts; where they
    have no length of an answer, that of the recorded one is asked for. Each request of a trace is a prompt of the whole
    length, with no history before it: it shares with others what the trace says that it shares, or else the prefix.

    Raises:
        UsageError: a corpus cannot be used.
    """

    def __init__(self, workloads: Sequence[Workload], tokens: Tokens, seed: int) -> None:
        self._workloads = workloads
        self._overhead = tokens.overhead
        prompts = functools.cache(lambda corpus: Prompts(tokens, corpus, seed))
        self._prompts: list[Prompts] = [prompts(workload.corpus) for workload in workloads]
        self._readers = [None if workload.rows is None else Reader(workload.rows) for workload in workloads]

    def compose(self, request: Request) -> Composed:
        """What a request asks.

        Raises:
            ResultError: the prepared data cannot be read.
        """
        workload, prompts = self._workloads[request.workload], self._prompts[request.workload]
        rng, turn, body, cells = request.rng, _NO_TURN, workload.body, None
        if request.row is not None:
            turn, body, cells = self._turn(request, body)
        if turn.at_s is not None:
            messages, length = _replayed(turn, workload.prefix, prompts, rng)
        elif request.turn is not None and request.turn > 1:
            own = turn.messages or (Message("user", prompts.text(request.input_tokens or 1, rng)),)
            messages, length = own, None  # the history is not known yet
        else:
            messages, length = self._opening(request, turn, workload, prompts)
            if request.samples > 1:
                messages, length = self._batch(request, workload, prompts, messages, length)
        output = request.output_tokens or turn.output_tokens or _recorded(turn.answer, prompts) or OUTPUT_TOKENS
        images: tuple[str, ...] = ()
        if (asked := workload.images) is not None:
            images = tuple(image(asked.width, asked.height, rng) for _ in range(asked.count))
        if images or (body is not None and '"tools"' in body):
            length = None  # what these come to is the server's to say
        answer = None
        if request.session is not None and workload.conversation and workload.conversation.history == "canned":
            answer = prompts.text(output, rng) if turn.answer is None else turn.answer
        ask = Ask(
            messages, output, request.model, images, body, length, rng.getrandbits(64), request.samples, request.id,
            workload.tensors, cells,
        )  # fmt: skip
        return Composed(ask, length, answer, turn.at_s)

    def close(self) -> None:
        """Close the data files."""
        for reader in self._readers:
            if reader is not None:
                reader.close()

    def _batch(
        self, request: Request, workload: Workload, prompts: Prompts, first: tuple[Message, ...], length: int | None
    ) -> tuple[tuple[Message, ...], int | None]:
        """One message for each sample of a request, and the length of them all."""
        samples, known = [first], length
        for place in range(request.samples - 1):
            turn = self._row(request.workload, request.others[place]).turns[0] if request.others else _NO_TURN
            messages, one = self._opening(request, turn, workload, prompts)
            samples.append(messages)
            known = None if known is None or one is None else known + one
        return tuple(Message("user", "\n\n".join(part.content for part in each)) for each in samples), known

    def _row(self, workload: int, number: int) -> Row:
        reader = self._readers[workload]
        assert reader is not None
        return reader.row(number)

    def _turn(self, request: Request, body: str | None) -> tuple[Turn, str | None, str | None]:
        """The turn of the data that a request plays, and the keys of its body: the row's, and above them the user's.

        The third is the row's columns that are kept.
        """
        assert request.row is not None
        row = self._row(request.workload, request.row)
        if row.body and body:
            both = {**msgspec.json.decode(row.body), **msgspec.json.decode(body)}
            body = msgspec.json.encode(both).decode()
        return row.turns[(request.turn or 1) - 1], body or row.body, row.cells

    def _opening(
        self, request: Request, turn: Turn, workload: Workload, prompts: Prompts
    ) -> tuple[tuple[Message, ...], int | None]:
        """The messages that nothing came before, and their length where what the server adds around them is known."""
        start, length = "", request.input_tokens or 1
        if workload.prefix is not None and (start := _start(workload.prefix, prompts, request.rng)):
            length += workload.prefix.tokens
        if not turn.messages:
            asked = length if request.input_tokens is not None else None
            return (Message("user", prompts.prompt(length, request.rng, start)),), asked
        first, *others = turn.messages
        messages = (Message(first.role, f"{start}\n\n{first.content}"), *others) if start else turn.messages
        size = None if others else prompts.count(messages[0].content)
        return messages, None if size is None else size + self._overhead


def _start(prefix: Prefix, prompts: Prompts, rng: random.Random) -> str:
    """The shared text that a request begins with, or none."""
    return prompts.shared(rng.randrange(prefix.pool), prefix.tokens) if rng.random() < prefix.share else ""


def _replayed(
    turn: Turn, prefix: Prefix | None, prompts: Prompts, rng: random.Random
) -> tuple[tuple[Message, ...], int]:
    """The prompt of a trace's request, and its length; a prefix is a part of it, if it is longer than that."""
    length = turn.input_tokens or 1
    if turn.blocks:
        text = prompts.blocks(turn.blocks, BLOCK_TOKENS, length)
    else:
        start = _start(prefix, prompts, rng) if prefix is not None and prefix.tokens < length else ""
        text = prompts.prompt(length, rng, start)
    return (Message("user", text),), length


def _recorded(answer: str | None, prompts: Prompts) -> int | None:
    """The length of a recorded answer."""
    if answer is None:
        return None
    return max(1, prompts.count(answer) or len(answer) // _CHARACTERS)


def fingerprint(messages: Sequence[Message], images: Sequence[str] = ()) -> int:
    """48 bits that tell one input from another."""
    whole = "\0".join([*(message.content for message in messages), *images])
    return int.from_bytes(hashlib.blake2b(whole.encode(), digest_size=6).digest())
