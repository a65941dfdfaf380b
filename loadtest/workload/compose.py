"""A request of the plan made into what it asks: text and pictures of the lengths that were planned, or a row's own."""

import functools
import hashlib
import random
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from loadtest.workload.images import image
from loadtest.workload.model import BLOCK_TOKENS, Ask, Message, Prefix, Turn, Workload
from loadtest.workload.prompts import Prompts
from loadtest.workload.request import Request
from loadtest.workload.rows import Reader
from loadtest.workload.tokens import Tokens

_OUTPUT_TOKENS = 256  # the most of an answer whose length neither the scenario nor the data say
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

    A shared prefix opens the first message, so that the length of the whole is exact. Data keep their texts and what
    they have for the history; where they have no length of an answer, that of the recorded one is asked for. Each turn
    of a trace is a prompt of its whole length, which shares with others what the trace says that it shares.

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
        rng, later = request.rng, request.turn is not None and request.turn > 1
        start = "" if later or workload.prefix is None else _start(workload.prefix, prompts, rng)
        turn, body = _NO_TURN, workload.body
        if request.row is not None:
            turn, body = self._turn(request, workload.body)
        of_trace = turn.at_s is not None
        length = request.input_tokens if request.row is None else turn.input_tokens
        if turn.messages:
            first, *others = turn.messages
            messages = (Message(first.role, f"{start}\n\n{first.content}"), *others) if start else turn.messages
            length = None if later else self._counted(messages, prompts)
        elif turn.blocks and length is not None:
            messages = (Message("user", prompts.blocks(turn.blocks, BLOCK_TOKENS, length)),)
        elif later and not of_trace:
            messages, length = (Message("user", prompts.text(length or 1, rng)),), None
        else:
            length = length or 1
            if start and not of_trace and workload.prefix is not None:
                length += workload.prefix.tokens
            messages = (Message("user", prompts.prompt(length, rng, start)),)
        output = request.output_tokens or turn.output_tokens or _recorded(turn.answer, prompts) or _OUTPUT_TOKENS
        images: tuple[str, ...] = ()
        if (asked := workload.images) is not None:
            images = tuple(image(asked.width, asked.height, rng) for _ in range(asked.count))
        answer = None
        if request.session is not None and workload.conversation and workload.conversation.history == "canned":
            answer = prompts.text(output, rng) if turn.answer is None else turn.answer
        return Composed(Ask(messages, output, request.model, images, body), length, answer, turn.at_s)

    def close(self) -> None:
        """Close the data files."""
        for reader in self._readers:
            if reader is not None:
                reader.close()

    def _turn(self, request: Request, body: str | None) -> tuple[Turn, str | None]:
        """The turn of the data that a request plays, and the keys of its body: the row's, and above them the user's."""
        reader = self._readers[request.workload]
        assert reader is not None
        assert request.row is not None
        row = reader.row(request.row)
        if row.body and body:
            both = {**msgspec.json.decode(row.body), **msgspec.json.decode(body)}
            body = msgspec.json.encode(both).decode()
        return row.turns[(request.turn or 1) - 1], body or row.body

    def _counted(self, messages: Sequence[Message], prompts: Prompts) -> int | None:
        """The length of a prompt out of data, where what the server adds around it is known."""
        size = prompts.count(messages[0].content) if len(messages) == 1 else None
        return None if size is None else size + self._overhead


def _start(prefix: Prefix, prompts: Prompts, rng: random.Random) -> str:
    return prompts.shared(rng.randrange(prefix.pool), prefix.tokens) if rng.random() < prefix.share else ""


def _recorded(answer: str | None, prompts: Prompts) -> int | None:
    """The length of a recorded answer."""
    if answer is None:
        return None
    return max(1, prompts.count(answer) or len(answer) // _CHARACTERS)


def fingerprint(messages: Sequence[Message], images: Sequence[str] = ()) -> int:
    """48 bits that tell one input from another."""
    whole = "\0".join([*(message.content for message in messages), *images])
    return int.from_bytes(hashlib.blake2b(whole.encode(), digest_size=6).digest())
