"""Text to ids and back: what the server needs of any model's tokenizer, and the bundled models' own.

The bundled models have one token a UTF-8 byte, and five special tokens. A byte-level vocabulary needs no file, maps
any text to ids and back without loss, and makes the length of a prompt known in advance: ``len(text.encode()) +
overhead``. What the models may generate is narrower (``GENERATED``): one printable ASCII character a token, so that
every token is one visible piece of text and always valid UTF-8.
"""

import codecs
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

BOS, EOS, SYSTEM, USER, ASSISTANT = range(256, 261)
SIZE = 261
ROLES = {"system": SYSTEM, "developer": SYSTEM, "user": USER, "assistant": ASSISTANT}

# Ids a bundled model may produce; everything else is masked inside its graph.
GENERATED: tuple[int, ...] = (ord("\n"), *range(0x20, 0x7F), EOS)

# Prompt tokens beyond the UTF-8 bytes of the user's text: BOS; for chat also the user's marker, its end, and the
# marker that opens the answer.
OVERHEAD = {"chat": 4, "completions": 1}


class Unencodable(ValueError):
    """A text or a conversation that this tokenizer cannot turn into a prompt. ``str(error)`` says why."""


class Decoder(Protocol):
    """Text out of ids, as they come."""

    def push(self, token: int) -> str:
        """The text that ``token`` makes certain; empty while a character is incomplete."""

    def finish(self) -> str:
        """What is still incomplete, once it is known that no further token follows."""


class Tokenizer(ABC):
    """One model's tokenizer. ``size``: prompt ids are below it. ``eos``: ids that end an answer."""

    def __init__(self, size: int, generated: Iterable[int], eos: Iterable[int]) -> None:
        self.size = size
        self.eos = frozenset(eos)
        self._ids = np.array([*generated], np.int64)
        self._ids_without_eos = self._ids[~np.isin(self._ids, [*self.eos])]

    def ids(self, *, eos: bool) -> NDArray[np.int64]:
        """The ids that may be generated, with or without those that end an answer."""
        return self._ids if eos else self._ids_without_eos

    @property
    def facts(self) -> dict[str, Any] | None:
        """What a client can compute prompt lengths from, for /v1/models; None where it cannot."""
        return None

    @abstractmethod
    def encode(self, text: str) -> list[int]:
        """A completion prompt.

        Raises:
            Unencodable: ``text`` holds a lone surrogate, which no UTF-8 text can.
        """

    @abstractmethod
    def encode_chat(self, messages: Iterable[tuple[str, str]]) -> list[int]:
        """A chat prompt from (role, text) pairs, up to where the answer begins; roles are those of ``ROLES``.

        Raises:
            Unencodable: the model has no chat template, its template refuses the conversation, or a lone surrogate.
        """

    @abstractmethod
    def decoder(self) -> Decoder:
        """A decoder for one answer."""


class ByteTokenizer(Tokenizer):
    """Of the bundled models: completion prompts are ``BOS bytes``, chats ``BOS (role bytes EOS)* ASSISTANT``."""

    def __init__(self) -> None:
        super().__init__(SIZE, GENERATED, {EOS})

    @property
    def facts(self) -> dict[str, Any]:
        return {"kind": "bytes", "overhead": OVERHEAD}

    def encode(self, text: str) -> list[int]:
        return [BOS, *_utf8(text)]

    def encode_chat(self, messages: Iterable[tuple[str, str]]) -> list[int]:
        ids = [BOS]
        for role, text in messages:
            ids += [ROLES[role], *_utf8(text), EOS]
        ids.append(ASSISTANT)
        return ids

    def decoder(self) -> Decoder:
        return _ByteDecoder()


class _ByteDecoder:
    __slots__ = ("_decoder",)

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        return self._decoder.decode(bytes((token,)))

    def finish(self) -> str:
        return self._decoder.decode(b"", True)


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise Unencodable("the text holds a lone surrogate, which is no character") from error


BYTES = ByteTokenizer()


class TextStream:
    """Text out of the tokens of one answer, as they come, ended by a stop string if one appears.

    What may yet turn out to be the beginning of a stop string is held back, because a stop string is not part of
    the answer. ``stopped`` says that one appeared.
    """

    __slots__ = ("_decoder", "_held", "stopped", "stops")

    def __init__(self, stops: Sequence[str] = (), tokenizer: Tokenizer = BYTES) -> None:
        self._decoder = tokenizer.decoder()
        self.stops = stops
        self._held = ""
        self.stopped = False

    def push(self, token: int) -> str:
        """The text that ``token`` makes certain: often one piece, none while it is held back."""
        return self._settle(self._decoder.push(token))

    def finish(self) -> str:
        """What is still held back or half-decoded, once it is known that no further token follows."""
        if self.stopped:
            return ""
        text = self._settle(self._decoder.finish()) + self._held
        self._held = ""
        return text

    def _settle(self, piece: str) -> str:
        if not self.stops:
            return piece
        text = self._held + piece
        found = [at for stop in self.stops if (at := text.find(stop)) >= 0]
        if found:
            self.stopped, self._held = True, ""
            return text[: min(found)]
        keep = max(_overlap(text, stop) for stop in self.stops)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of ``text`` that is a beginning of ``stop``, and not the whole of it."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
