"""How long prompts and answers are, in tokens: a fixed number or a distribution, written as text.

``128`` is fixed; ``uniform(64, 192)`` is every whole number from 64 to 192, both included.
"""

import random
import re

import msgspec


class Length(msgspec.Struct, frozen=True):
    """A length in tokens, uniform over ``low..high`` (both included); fixed when they are equal."""

    low: int
    high: int

    @classmethod
    def parse(cls, text: str | int) -> "Length":
        """Read ``128`` or ``uniform(64, 192)``.

        Raises:
            ValueError: neither form, or a length below 1, or an empty range.
        """
        match = re.fullmatch(r"\s*uniform\s*\(\s*(\d+)\s*,\s*(\d+)\s*\)\s*", str(text))
        if match:
            low, high = int(match[1]), int(match[2])
        elif re.fullmatch(r"\s*\d+\s*", str(text)):
            low = high = int(text)
        else:
            raise ValueError(f"{text!r} is not a length: write a number of tokens (128) or uniform(64, 192)")
        if low < 1 or high < low:
            raise ValueError(f"{text!r} is not a length: it must be at least 1, and its range not empty")
        return cls(low, high)

    @property
    def mean(self) -> float:
        """Expected length in tokens."""
        return (self.low + self.high) / 2

    def sample(self, rng: random.Random) -> int:
        """One length in tokens."""
        return self.low if self.low == self.high else rng.randint(self.low, self.high)

    def __str__(self) -> str:
        return str(self.low) if self.low == self.high else f"uniform({self.low}, {self.high})"
