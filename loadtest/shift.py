"""How far a figure has moved from one measurement to another, how sure that is, and whether it is a regression. Pure.

Ratios are compared by their logarithms, in which 5 ms of 100 and 50 of 1,000 are the same change. docs/methodology.md
has the formulae, their sources, and the error rates that bench/verdicts.py measured.
"""

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from loadtest.evidence import intervals, mean_interval
from loadtest.stats import rank
from loadtest.tails import incomplete_beta, student

Floats = NDArray[np.float64]
Decision = Literal["PASS", "FAIL", "INCONCLUSIVE"]

CONFIDENCE = 0.95
# The chance that any figure of a comparison is called a regression when nothing has changed.
ALPHA = 0.025
# How often a change of the size that is told as detectable would be found.
POWER = 0.8
# From so many playings a side on, how they differ among each other says how sure their mean is. Fewer may differ little
# by chance: then the requests within them are looked at too.
FEWEST_RUNS = 4
# Degrees of freedom as good as without end.
_MANY = 10_000.0


class Estimate(NamedTuple):
    """A figure with its confidence interval; an end that is unknown is infinite."""

    value: float
    low: float
    high: float


class Shift(NamedTuple):
    """By how much a figure, or its logarithm, moved, with the standard errors of the way down and of the way up."""

    by: float
    down: float
    up: float
    freedom: float = _MANY

    @property
    def flipped(self) -> "Shift":
        """The same in the other direction."""
        return Shift(-self.by, self.up, self.down, self.freedom)

    @property
    def width(self) -> float:
        """Of its interval."""
        low, high = self.ends()
        return high - low

    def ends(self) -> tuple[float, float]:
        """Between what the true one lies."""
        t = student(CONFIDENCE, self.freedom)
        return self.by - t * self.down, self.by + t * self.up

    def chance(self) -> float:
        """Of a shift so far up, were there none."""
        if not self.down:
            return 0.0 if self.by > 0 else 1.0
        t = self.by / self.down
        tail = incomplete_beta(self.freedom / 2, 0.5, self.freedom / (self.freedom + t * t)) / 2
        return tail if t > 0 else 1 - tail

    def detectable(self, alpha: float) -> float:
        """The least true shift up that would be found, with ``alpha``, as often as ``POWER`` says."""
        return (student(1 - 2 * alpha, self.freedom) + student(2 * POWER - 1, self.freedom)) * self.down


class Claim(NamedTuple):
    """A shift for the worse (up is worse) that is to be judged: how much of it is tolerated.

    ``forgiven`` is how much is, even if it is for certain that something got worse.
    """

    worse: Shift
    tolerated: float
    forgiven: float


def decide(claims: Sequence[Claim]) -> list[Decision]:
    """Each of ``claims``: PASS is at most tolerated, for certain; FAIL is worse for certain, and not a PASS.

    The more figures are looked at, the surer each has to be that it is worse: Holm, A simple sequentially rejective
    multiple test procedure, 1979. That all of them pass needs no such thing.
    """
    chances = [claim.worse.chance() for claim in claims]
    worse: set[int] = set()
    for left, index in zip(range(len(claims), 0, -1), np.argsort(chances, kind="stable").tolist(), strict=True):
        if chances[index] > ALPHA / left:
            break
        worse.add(index)
    found: list[Decision] = []
    for index, claim in enumerate(claims):
        most = claim.worse.ends()[1]
        if index in worse and most > claim.forgiven:
            found.append("FAIL")
        else:
            found.append("PASS" if most <= claim.tolerated else "INCONCLUSIVE")
    return found


def of_runs(base: Sequence[float] | Floats, candidate: Sequence[float] | Floats) -> Shift:
    """Of the logarithm, by how several playings differ: two or more a side, each figure above 0.

    Welch, The generalization of "Student's" problem when several different population variances are involved, 1947.
    """
    sides = [np.log(np.asarray(figures, dtype=np.float64)) for figures in (base, candidate)]
    parts = [float(side.var(ddof=1)) / len(side) for side in sides]
    error = math.sqrt(sum(parts))
    below = sum(part**2 / (len(side) - 1) for part, side in zip(parts, sides, strict=True))
    freedom = sum(parts) ** 2 / below if below else _MANY
    return Shift(float(sides[1].mean() - sides[0].mean()), error, error, min(freedom, _MANY))


def of_ratio(base: Estimate, candidate: Estimate) -> Shift:
    """Of the logarithm, by the intervals of both sides."""
    return of_difference(*(Estimate(*map(_log, each)) for each in (base, candidate)))


def of_difference(base: Estimate, candidate: Estimate) -> Shift:
    """By the intervals of both sides, which need not be symmetric: their errors are recovered from the ends.

    Zou and Donner, Construction of confidence limits about effect measures, Statistics in Medicine 27, 2008.
    """
    t = student(CONFIDENCE, _MANY)
    return Shift(
        candidate.value - base.value,
        math.hypot(candidate.value - candidate.low, base.high - base.value) / t,
        math.hypot(candidate.high - candidate.value, base.value - base.low) / t,
    )


def _log(value: float) -> float:
    return math.log(value) if value > 0 else -math.inf


def of_quantile(samples: Floats, p: Fraction) -> Estimate:
    """Quantile ``p`` of ``samples``, (n,) in the order in which they became due, failures +infinity."""
    value = float(np.sort(samples)[rank(p, len(samples)) - 1])
    return Estimate(value, *intervals(samples, [float(p)], CONFIDENCE)[0])


def of_mean(series: Floats, value: float) -> Estimate:
    """The mean of ``series``, (n,) in order of time, of which ``value`` is the exact one."""
    low, high = mean_interval(series, CONFIDENCE)
    return Estimate(value, low, high)
