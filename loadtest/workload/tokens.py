"""How text becomes tokens at the target, as far as that is known, and the measures that count by it."""

import abc
import bisect
import itertools
import re
from collections.abc import Sequence
from typing import ClassVar, Literal, Protocol

import msgspec

from loadtest.workload.tokenizer import count, file, frame, load, overhead

# What comes near to a token in most vocabularies: a word, up to three digits, or any other character.
_UNIT = re.compile(r"[A-Za-z]+|\d{1,3}|[^\sA-Za-z\d]")


class Fit(msgspec.Struct, frozen=True):
    """What an endpoint counted in texts out of ``corpus``: ``overhead + per_word·words``.

    ``error`` is how far ``per_word`` may be off, as a share of it, with 95 % confidence.
    A word is a run of letters, up to three digits, or any other character but space.
    """

    corpus: str | None
    overhead: float
    per_word: float
    error: float


class Tokens(msgspec.Struct, frozen=True):
    """How text becomes tokens at the target, as far as it is known.

    ``bytes``: one token for each byte of UTF-8, and ``overhead`` more that the server adds around one user message.
    ``tokenizer``: as the tokenizer.json at ``path`` says. The server puts ``before`` and ``after`` around the text of
    one user message and, if ``special``, what the tokenizer itself adds, which together are ``overhead`` tokens.
    ``words``: by ``fits``, one for each corpus; without one, a word is taken for a token. What the server counted is
    what is reported.

    ``how`` goes on from "prompts were sized": by what, and how exactly.
    """

    kind: Literal["bytes", "tokenizer", "words"]
    overhead: int = 0
    path: str | None = None
    before: str = ""
    after: str = ""
    special: bool = False
    fits: tuple[Fit, ...] = ()
    how: str = ""


class Measure(Protocol):
    """Counts texts. ``alone`` is a text by itself; else it is the one user message of a request.

    ``additive``: the counts of texts add up to that of their concatenation, where that is cut before spaces.
    ``exact``: what it counts are the target's tokens.
    """

    @property
    def additive(self) -> bool: ...
    @property
    def exact(self) -> bool: ...

    def goal(self, tokens: int, *, alone: bool) -> int:
        """What the counts of a text should come to, 1 or more, so that the target counts ``tokens``."""

    def counts(self, texts: Sequence[str], *, alone: bool) -> list[int]:
        """The size of each text, without what the server adds around it."""

    def marks(self, text: str, at: Sequence[int]) -> list[int]:
        """How much of the text lies before each of these ascending positions."""


class _Additive(abc.ABC):
    """Counts that add up."""

    additive: ClassVar[bool] = True

    def counts(self, texts: Sequence[str], *, alone: bool) -> list[int]:
        return [self._size(text) for text in texts]

    def marks(self, text: str, at: Sequence[int]) -> list[int]:
        pieces = itertools.pairwise((0, *at))
        return list(itertools.accumulate(self._size(text[start:end]) for start, end in pieces))

    @abc.abstractmethod
    def _size(self, text: str) -> int: ...


class _Bytes(_Additive):
    exact: ClassVar[bool] = True

    def __init__(self, overhead: int) -> None:
        self._overhead = overhead

    def goal(self, tokens: int, *, alone: bool) -> int:
        return max(1, tokens if alone else tokens - self._overhead)

    def _size(self, text: str) -> int:
        return len(text.encode())


class _Words(_Additive):
    exact: ClassVar[bool] = False

    def __init__(self, fit: Fit) -> None:
        self._fit = fit

    def goal(self, tokens: int, *, alone: bool) -> int:
        return max(1, round((tokens if alone else tokens - self._fit.overhead) / self._fit.per_word))

    def _size(self, text: str) -> int:
        return len(_UNIT.findall(text))


class _Tokenizer:
    additive: ClassVar[bool] = False
    exact: ClassVar[bool] = True

    def __init__(self, tokens: Tokens) -> None:
        assert tokens.path is not None
        self._tokens = tokens
        self._tokenizer = load(tokens.path)
        # What stands around a text as it is counted here; where that is not known, the overhead is the endpoint's word.
        self._around = tokens.overhead if tokens.before or tokens.after or tokens.special else 0

    def goal(self, tokens: int, *, alone: bool) -> int:
        return max(1, tokens if alone else tokens - self._tokens.overhead)

    def counts(self, texts: Sequence[str], *, alone: bool) -> list[int]:
        if alone:
            return count(self._tokenizer, texts, special=False)
        before, after, special = self._tokens.before, self._tokens.after, self._tokens.special
        whole = count(self._tokenizer, [f"{before}{text}{after}" for text in texts], special=special)
        return [size - self._around for size in whole]

    def marks(self, text: str, at: Sequence[int]) -> list[int]:
        starts = [start for start, _ in self._tokenizer.encode(text, add_special_tokens=False).offsets]
        return [bisect.bisect_left(starts, position) for position in at]


def measure(tokens: Tokens, corpus: str | None) -> Measure:
    """The measure for what is known of the target's tokens, in texts out of that corpus."""
    match tokens.kind:
        case "bytes":
            return _Bytes(tokens.overhead)
        case "tokenizer":
            return _Tokenizer(tokens)
        case "words":
            found = (fit for fit in tokens.fits if fit.corpus == corpus)
            return _Words(next(found, Fit(corpus, 0.0, 1.0, 0.0)))


def by_tokenizer(path: str, *, chat: bool) -> tuple[Tokens, bool]:
    """Tokens as a local tokenizer makes them, and whether what the server adds around a message is known.

    That is what the chat template beside the tokenizer says, or in a completion what the tokenizer adds by itself. A
    chat without a template that can be used has an ``overhead`` of 0 until somebody counts it.

    Raises:
        UsageError: there is no tokenizer, it cannot be read, or a package that reads it is not installed.
    """
    found = file(path)
    tokenizer = load(str(found))
    around = frame(found) if chat else ("", "")
    if around is None:
        return Tokens("tokenizer", 0, str(found)), False
    before, after = around
    added = overhead(tokenizer, before, after, special=not chat)
    return Tokens("tokenizer", added, str(found), before, after, not chat, how=f"by {found}, exactly"), True
