"""The text of prompts: of the length asked, different in every request, the same for the same seed."""

import random
from typing import Protocol

import msgspec

# Common words: one token each in most vocabularies, so that words stand for tokens where there is no tokenizer.
_WORDS = (
    "the of and to in is that for it as was with be by on not he his but at are this have from or had an they which "
    "one you were all her she there would their we him been has when who will no more if out so up said what its "
    "about than into them can only other time new some could these two may first then do any like my now over such "
    "our man me even most made after also did many off before must well back through years much where your way down "
    "should because long each just state those people too how little good world make very year still see own work "
    "men day get here old between both life being under three never know same last another while us might great go "
    "come since against right came take used himself few house use place during high without again home around small "
    "however found part school thought went say once general upon every left war does got united number hand course "
    "water until always away public something fact less though far put head think set enough end took better"
).split()


class Tokens(msgspec.Struct, frozen=True):
    """How text becomes tokens at the target, as far as it is known.

    ``bytes``: one token for each byte of UTF-8, and ``overhead`` more that the server adds around one user message.
    ``words``: not known; one common word is taken for one token, and what the server counted is what is reported.
    """

    kind: str
    overhead: int = 0


class Writer(Protocol):
    """Writes prompts."""

    def __call__(self, tokens: int, rng: random.Random) -> str:
        """A prompt of so many tokens."""


def by_bytes(overhead: int) -> Writer:
    """Prompts of exactly the tokens asked under a byte-level tokenizer, but at least one character of their own."""

    def write(tokens: int, rng: random.Random) -> str:
        size = max(1, tokens - overhead)
        text = f"{rng.getrandbits(40):010x} {' '.join(rng.choices(_WORDS, k=size // 4))}"
        while len(text) < size:
            text += " " + rng.choice(_WORDS)
        return text[:size]

    return write


def by_words() -> Writer:
    """Prompts of about the tokens asked: one word a token, after a salt of about six."""

    def write(tokens: int, rng: random.Random) -> str:
        # The salt stands first, since servers cache the starts of prompts: no prompt may find another's there.
        salt = [f"{rng.getrandbits(40):010x}"] if tokens > 6 else []
        return " ".join(salt + rng.choices(_WORDS, k=max(1, tokens - 6 * len(salt))))

    return write


def writer(tokens: Tokens) -> Writer:
    """The writer for what is known of the target's tokens."""
    return by_bytes(tokens.overhead) if tokens.kind == "bytes" else by_words()
