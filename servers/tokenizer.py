"""The bundled models' tokenizer: one token a UTF-8 byte, and five special tokens.

A byte-level vocabulary needs no file, maps any text to ids and back without loss, and makes the length of a prompt
known in advance: ``len(text.encode()) + overhead``. What the models may generate is narrower (``GENERATED``): one
printable ASCII character a token, so that every token is one visible piece of text and always valid UTF-8.
"""

import codecs
from collections.abc import Iterable, Sequence

BOS, EOS, SYSTEM, USER, ASSISTANT = range(256, 261)
SIZE = 261
ROLES = {"system": SYSTEM, "developer": SYSTEM, "user": USER, "assistant": ASSISTANT}

# Ids a bundled model may produce; everything else is masked inside its graph.
GENERATED: tuple[int, ...] = (ord("\n"), *range(0x20, 0x7F), EOS)

# Prompt tokens beyond the UTF-8 bytes of the user's text: BOS; for chat also the user's marker, its end, and the
# marker that opens the answer.
OVERHEAD = {"chat": 4, "completions": 1}


def encode(text: str) -> list[int]:
    """A completion prompt: BOS and the bytes of ``text``.

    Raises:
        UnicodeEncodeError: ``text`` holds a lone surrogate, which no UTF-8 text can.
    """
    return [BOS, *text.encode()]


def encode_chat(messages: Iterable[tuple[str, str]]) -> list[int]:
    """A chat prompt from (role, text) pairs: ``BOS (role text EOS)* assistant``.

    Raises:
        KeyError: a role outside ``ROLES``.
        UnicodeEncodeError: a text holds a lone surrogate.
    """
    ids = [BOS]
    for role, text in messages:
        ids += [ROLES[role], *text.encode(), EOS]
    ids.append(ASSISTANT)
    return ids


class TextStream:
    """Text out of the tokens of one answer, as they come, ended by a stop string if one appears.

    What may yet turn out to be the beginning of a stop string is held back, because a stop string is not part of
    the answer. ``stopped`` says that one appeared.
    """

    __slots__ = ("_decoder", "_held", "_stops", "stopped")

    def __init__(self, stops: Sequence[str] = ()) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._stops = stops
        self._held = ""
        self.stopped = False

    def push(self, token: int) -> str:
        """The text that ``token`` (a byte) makes certain: often one character, none while it is held back."""
        piece = self._decoder.decode(bytes((token,)))
        if not self._stops:
            return piece
        text = self._held + piece
        found = [at for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            self.stopped, self._held = True, ""
            return text[: min(found)]
        keep = max(_overlap(text, stop) for stop in self._stops)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def finish(self) -> str:
        """What is still held back or half-decoded, once it is known that no further token follows."""
        text, self._held = self._held + self._decoder.decode(b"", True), ""
        return "" if self.stopped else text


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of ``text`` that is a beginning of ``stop``, and not the whole of it."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
