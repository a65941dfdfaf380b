"""How long prompts and answers are, in whole tokens: a fixed number or a distribution, written as text."""

import functools
import itertools
import math
import random
from collections.abc import Sequence
from statistics import NormalDist

import msgspec

from loadtest.workload.distribution import Distribution

_NORMAL = NormalDist()
MOST = 10_000_000
_MEAN_POINTS = 4096
_DISTINCT = 200  # values of a list that are kept one by one
_PERCENTS = (*(half / 2 for half in range(200)), 99.6, 99.7, 99.8, 99.9, 99.95, 99.98, 99.99, 99.999, 100.0)


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

    @classmethod
    def of_values(cls, values: Sequence[float], weights: Sequence[float] | None = None) -> "Length":
        """The lengths of a list, each as often as it stands there or as its weight says.

        Up to 200 different values are kept exactly; of more than that those at every half per cent and, since the
        longest weigh most, at a tenth of that and less at the end, with straight lines from one to the next.

        Raises:
            ValueError: there is none, one is below 1 or no finite number, or a weight is not above 0.
        """
        found: dict[int, float] = {}
        for value, weight in zip(values, weights or itertools.repeat(1.0, len(values)), strict=True):
            if not 1 <= value <= MOST:
                raise ValueError(f"{value:g} is not a length in tokens, which is a number of 1 to {MOST}")
            if not 0 < weight < math.inf:
                raise ValueError(f"{weight:g} is not a weight, which is a number above 0")
            found[round(value)] = found.get(round(value), 0.0) + weight
        if not found:
            raise ValueError("there are no lengths")
        ordered = sorted(found)
        if len(ordered) == 1:
            return cls(ordered[0], ordered[0])
        fixed = tuple(Distribution("fixed", (float(value),)) for value in ordered)
        shape = Distribution("mix", tuple(found[value] for value in ordered), fixed)
        if len(ordered) > _DISTINCT:
            shape = Distribution("quantiles", tuple(n for at in _PERCENTS for n in (at, shape.at(at / 100))))
        return cls(ordered[0], ordered[-1], shape)

    @property
    def mean(self) -> float:
        """Expected length in tokens, as rounded and clipped: by the quantiles at 4,096 points where it has a shape."""
        return (self.low + self.high) / 2 if self.shape is None else _mean(self)

    def at(self, share: float) -> int:
        """The length below or at which ``share`` (0..1) of the lengths lie."""
        if self.shape is None:
            return min(self.low + int(share * (self.high - self.low + 1)), self.high)
        return min(max(round(self.shape.at(share)), self.low), self.high)

    def sample(self, rng: random.Random) -> int:
        """One length in tokens."""
        return self.low if self.low == self.high else self.at(rng.random())

    def scaled(self, factor: float) -> "Length":
        """``factor`` times as long, and a token or more."""
        if self.shape is not None:
            return Length.parse(str(self.shape.scaled(factor)))
        return Length(max(1, round(self.low * factor)), max(1, round(self.high * factor)))

    def __str__(self) -> str:
        if self.shape is not None:
            return str(self.shape)
        return str(self.low) if self.low == self.high else f"uniform({self.low}, {self.high})"


@functools.lru_cache(64)
def _mean(length: Length) -> float:
    return math.fsum(length.at((point + 0.5) / _MEAN_POINTS) for point in range(_MEAN_POINTS)) / _MEAN_POINTS


def pair(first: Length, second: Length, correlation: float, rng: random.Random) -> tuple[int, int]:
    """Two lengths whose normal scores have that correlation (-1..1); each alone is distributed as without it.

    Source: the Gaussian copula, Nelsen, "An Introduction to Copulas", 2006, section 2.3.
    """
    one, other = rng.gauss(), rng.gauss()
    both = correlation * one + math.sqrt(1 - correlation**2) * other
    return first.at(_NORMAL.cdf(one)), second.at(_NORMAL.cdf(both))
