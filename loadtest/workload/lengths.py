"""How long prompts and answers are, in whole tokens: a fixed number or a distribution, written as text."""

import math
import random
from statistics import NormalDist

import msgspec

from loadtest.workload.distribution import Distribution

_NORMAL = NormalDist()
MOST = 10_000_000


class Length(msgspec.Struct, frozen=True):
    """A length in tokens within ``low..high``, both included: of ``shape``, rounded and clipped, or uniform."""

    low: int
    high: int
    shape: Distribution | None = None

    @classmethod
    def parse(cls, text: str | int) -> "Length":
        """Read ``128``, ``uniform(64, 192)`` (both ends included), or another distribution of ``distribution.FORMS``.

        Raises:
            ValueError: none of these, or a length below 1.
        """
        try:
            shape = Distribution.parse(str(text))
        except ValueError as error:
            raise ValueError(f"{text!r} is not a length: {error}") from None
        if shape.kind not in ("fixed", "uniform"):
            return cls(max(1, round(shape.low)), MOST if math.isinf(shape.high) else max(1, round(shape.high)), shape)
        if not shape.least is shape.most is None:
            raise ValueError(f"{text!r} is not a length: {shape.kind} takes no min= and max=")
        if shape.numbers[0] < 1 or any(number != int(number) for number in shape.numbers):
            raise ValueError(f"{text!r} is not a length: it takes whole numbers of tokens, 1 or more")
        return cls(int(shape.numbers[0]), int(shape.numbers[-1]))

    @property
    def mean(self) -> float:
        """Expected length in tokens."""
        return (self.low + self.high) / 2 if self.shape is None else max(1.0, self.shape.mean)

    def at(self, share: float) -> int:
        """The length below or at which ``share`` (0..1) of the lengths lie."""
        if self.shape is None:
            return min(self.low + int(share * (self.high - self.low + 1)), self.high)
        return min(max(round(self.shape.at(share)), self.low), self.high)

    def sample(self, rng: random.Random) -> int:
        """One length in tokens."""
        return self.low if self.low == self.high else self.at(rng.random())

    def __str__(self) -> str:
        if self.shape is not None:
            return str(self.shape)
        return str(self.low) if self.low == self.high else f"uniform({self.low}, {self.high})"


def pair(first: Length, second: Length, correlation: float, rng: random.Random) -> tuple[int, int]:
    """Two lengths whose normal scores have that correlation (-1..1); each alone is distributed as without it.

    Source: the Gaussian copula, Nelsen, "An Introduction to Copulas", 2006, section 2.3.
    """
    one, other = rng.gauss(), rng.gauss()
    both = correlation * one + math.sqrt(1 - correlation**2) * other
    return first.at(_NORMAL.cdf(one)), second.at(_NORMAL.cdf(both))
