"""The text of prompts: exactly as long as asked, different in every request, the same for the same seed."""

import bisect
import functools
import math
import random
import re
import string
from collections.abc import Sequence

import msgspec

from loadtest.schedule import stream
from loadtest.workload.corpus import read
from loadtest.workload.tokens import Tokens, measure

# Where a text can be cut so that any tokenizer in use counts its two sides apart: before the space between two words,
# and between two characters of a script that has no spaces.
_CUT = re.compile(r"(?<=\w)(?= [^\W\d_])|(?<=[\u3040-\u30ff\u3400-\u9fff])(?=[\u3040-\u30ff\u3400-\u9fff])")
_WORD = re.compile(r"[A-Za-z]{2,}")
_COMMON = "the of and to in is that for it as was with be by on not he his but at are this have from or had an".split()
_PASSAGE = 256  # tokens taken in a row: long enough to read like text, short enough for many different ones
_PIECES = 6  # from one cut to the next, in each passage of a sample of the corpus
_SALT_BITS = 40
_FILLERS = 4096  # and so 12 bits a word of salt
_FEW = 16  # with fewer words than that, characters are tried
_TRIES = 16
_KEPT = 4096  # so many of the texts that requests share are kept, and the sizes of texts that prompts start with


class Wanted(msgspec.Struct, frozen=True):
    """One prompt: its input tokens as the server will count them, its random stream, and the text it begins with."""

    tokens: int
    rng: random.Random
    start: str = ""


class Prompts:
    """Writes prompts for what is known of the target's tokens, out of one corpus. ``seed`` is that of shared texts.

    A length that cannot be (fewer tokens than the server itself adds, or one that the tokenizer has no text for) gives
    a text that comes near, of at least one word.

    Raises:
        UsageError: the corpus cannot be used.
    """

    def __init__(self, tokens: Tokens, corpus: str | None, seed: int) -> None:
        self._measure = measure(tokens, corpus)
        self._stock = _stock(tokens, corpus)
        self._seed = seed
        self._salt = math.ceil(_SALT_BITS / math.log2(len(self._stock.fillers)))
        self.shared = functools.lru_cache(_KEPT)(self._shared)
        self._block = functools.lru_cache(_KEPT)(self._whole_block)
        self._start_size = functools.lru_cache(_KEPT)(self._counted)

    def prompt(self, tokens: int, rng: random.Random, start: str = "") -> str:
        """The user message of a request that holds so many tokens in all, what the server adds included.

        It begins with ``start``, which counts as well, and goes on with a salt, since servers cache how prompts begin:
        no two of them, of whatever level or run, have more than a word or two in common there.
        """
        if self._measure.additive:
            return self._draft(self._measure.goal(tokens, alone=False), rng, start)
        return self.prompts([Wanted(tokens, rng, start)])[0]

    def prompts(self, wanted: Sequence[Wanted]) -> list[str]:
        """Many at once: each is what ``prompt`` makes of it, and a tokenizer counts them on all its threads."""
        return self._made(wanted, alone=False)

    def text(self, tokens: int, rng: random.Random) -> str:
        """A text of so many tokens by itself: a later turn, or an answer in place of the model's own."""
        return self._made([Wanted(tokens, rng)], alone=True)[0]

    def blocks(self, ids: Sequence[int], size: int, tokens: int) -> str:
        """A prompt of so many tokens in all, made of shared blocks of ``size`` tokens each, of which the last is cut.

        The same id is the same text, in every request of runs with the same seed.
        """
        *whole, last = ids[: max(1, math.ceil(tokens / size))]
        start = "".join(self._block(block, size) for block in whole).lstrip(" ")
        return self.prompt(tokens, stream(self._seed, "block", last), start)

    def sample(self, places: int, shift: float) -> str:
        """Short passages out of so many places at equal distances over the corpus, all moved by ``shift`` (0..1)."""
        text, cuts = self._stock.text, self._stock.cuts
        # Counted in pieces and not in words, so that each piece, long or short, has the same chance.
        last = max(len(cuts) - 1 - _PIECES, 0)
        firsts = [int((place + shift) / places * last) for place in range(places)]
        passages = [text[cuts[first] : cuts[min(first + _PIECES, len(cuts) - 1)]] for first in firsts if cuts]
        return "".join(passages).strip() or self._stock.fillers[0].strip()

    def count(self, text: str) -> int | None:
        """The tokens of a text by itself; None where they can only be estimated."""
        return self._counted(text) if self._measure.exact else None

    def _shared(self, number: int, tokens: int) -> str:
        """Text ``number`` of the pool of texts of so many tokens each that prompts start with."""
        return self.text(tokens, stream(self._seed, "shared", number))

    def _whole_block(self, block: int, size: int) -> str:
        text = self.text(size, stream(self._seed, "block", block))
        return f" {text}" if self._stock.spaced else text

    def _counted(self, text: str) -> int:
        return self._measure.counts([text], alone=True)[0]

    def _made(self, wanted: Sequence[Wanted], *, alone: bool) -> list[str]:
        goals = [self._measure.goal(one.tokens, alone=alone) for one in wanted]
        texts = [self._draft(goal, one.rng, one.start) for goal, one in zip(goals, wanted, strict=True)]
        if self._measure.additive:
            return texts
        # What a draft's pieces add up to is nearly always right, but only the text as it is sent tells.
        pending = [*range(len(texts))]
        for _ in range(_TRIES):
            sizes = self._measure.counts([texts[index] for index in pending], alone=alone)
            short = {index: goals[index] - size for index, size in zip(pending, sizes, strict=True)}
            pending = [index for index in pending if short[index]]
            if not pending:
                break
            for index in pending:
                texts[index] = self._mended(texts[index], short[index], wanted[index])
        return texts

    def _draft(self, goal: int, rng: random.Random, start: str) -> str:
        stock, draw = self._stock, rng.random
        left = max(1, goal - self._start_size(start)) if start else goal
        # Drawn by hand, since this is done for every request: choices() and randrange() take twice as long.
        fillers, many = stock.fillers, len(stock.fillers)
        parts = [stock.openers[int(draw() * len(stock.openers))]]
        parts += [fillers[int(draw() * many)] for _ in range(min(self._salt, left) - 1)]
        left -= len(parts)
        cuts, marks = stock.cuts, stock.marks
        while left > 0 and len(marks) > 1:
            first = int(draw() * (len(marks) - 1))
            mark = marks[first]
            last = bisect.bisect_right(marks, mark + min(left, _PASSAGE), first) - 1
            if marks[last] == mark:
                break
            parts.append(stock.text[cuts[first] : cuts[last]])
            left -= marks[last] - mark
        parts += [fillers[int(draw() * many)] for _ in range(left)]
        text = "".join(parts)
        return start + text if start else text.lstrip(" ")

    def _mended(self, text: str, short: int, wanted: Wanted) -> str:
        """The text with so many tokens more, or without its last ones, but never without its first word."""
        if short > 0:
            return text + "".join(wanted.rng.choices(self._stock.fillers, k=short))
        least = len(wanted.start) + 1
        for _ in range(-short):
            at = text.rfind(" ", least) if self._stock.spaced else len(text) - 1
            if at < least:
                break
            text = text[:at]
        return text


class _Stock(msgspec.Struct, frozen=True):
    """What prompts are put together from: the corpus ``text``, where it can be cut, and the size of it up to there.

    ``fillers`` are pieces of size 1 wherever they are added, and ``openers`` those that are it at the very start too,
    without their space, if they are ``spaced``.
    """

    text: str
    cuts: list[int]
    marks: list[int]
    fillers: list[str]
    openers: list[str]
    spaced: bool


@functools.lru_cache(8)
def _stock(tokens: Tokens, corpus: str | None) -> _Stock:
    ruler = measure(tokens, corpus)
    text = read(corpus)
    cuts = [found.start() for found in _CUT.finditer(text)]

    def fitting(pieces: Sequence[str], around: str) -> list[str]:
        """Those that can be told to be of size 1 between two others."""
        bare, *sizes = ruler.counts([around * 2, *(f"{around}{piece}{around}" for piece in pieces)], alone=True)
        return [piece for piece, size in zip(pieces, sizes, strict=True) if size == bare + 1]

    words = [f" {word}" for word in dict.fromkeys([*_WORD.findall(text), *_COMMON])][:_FILLERS]
    fillers, spaced = fitting(words, " the"), True
    if len(fillers) < _FEW:
        characters = fitting([*string.ascii_lowercase, *string.digits], "a")
        fillers, spaced = (characters, False) if len(characters) > len(fillers) else (fillers, True)
    if len(fillers) < 2:  # nothing adds up under this tokenizer; what is counted in the end decides all the same
        fillers, spaced = words, True
    bare = [piece.strip() for piece in fillers]
    both = zip(fillers, ruler.counts(bare, alone=False), ruler.counts(bare, alone=True), strict=True)
    openers = [piece for piece, framed, alone in both if framed == alone == 1]
    return _Stock(text, cuts, ruler.marks(text, cuts), fillers, openers or fillers, spaced)
