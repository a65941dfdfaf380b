"""What samples prove that depend on each other: gates, sample floors, confidence intervals. Pure.

Slow requests come in clusters, so n of them say less than n throws of a coin. How much less is the design effect; n
and counts divided by it go into the exact binomial tail. docs/methodology.md has the formulae, their sources, and the
error rates that bench/verdicts.py measured.
"""

import math
import statistics
from collections.abc import Callable, Iterable
from fractions import Fraction

import msgspec
import numpy as np
from numpy.typing import NDArray

from loadtest.stats import rank
from loadtest.tails import at_least, at_most, student

# The chance of each error that a gate may make, PASS of a system at its limit and FAIL of it, were the design effect
# known. It is estimated: with this the errors found by simulation stay under 5 %.
ALPHA = 0.02
# Where the tail is too thin to show how its samples cluster, the body of the distribution does: above these quantiles.
THRESHOLDS = (0.5, 0.8, 0.9, 0.95, 0.98)
# So far below the limit that how the samples cluster no longer matters: at least so many requests, of which so many
# would be late at the limit, and the slowest took no more than the limit divided by the last.
_FAR = ((1000, 10, 3.0), (5000, 50, 2.0))
# Longer series are summed in blocks: the design effect is that of the long run, and its cost that of short ones.
_BLOCKS = 8192
# A search for more samples ends here: nobody will wait for so many.
_MOST = 10**9


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """What ``n`` requests say about the share that is late, of which 1 − p are allowed.

    ``p_pass`` and ``p_fail`` are the chances of so few and of so many late ones at a system exactly at its limit: the
    level passes where the first is at most alpha and fails where the second is. ``more_needed``: how many further
    requests would decide it, if they are as these; 0 when it is decided, None when no reasonable number would. ``far``:
    all were so far below the limit that they prove as much as independent ones.
    """

    n: int
    late: int
    design_effect: float
    effective_n: float
    p_pass: float
    p_fail: float
    more_needed: int | None
    far: bool = False

    @property
    def share_late(self) -> float:
        """Of the requests; NaN of none."""
        return self.late / self.n if self.n else math.nan


class Series:
    """A series of ``n`` samples, which come in order and some at a time; what is kept of them are sums."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.mean = self._squares = 0.0
        self._taken, self._low, self._high = 0, math.inf, -math.inf
        self._size = -(-n // _BLOCKS) or 1
        self._sums = np.zeros(-(-n // self._size))

    def add(self, samples: NDArray[np.float64] | NDArray[np.bool_]) -> None:
        """Take in those that come next."""
        more, taken = len(samples), self._taken
        if not more:
            return
        begins = np.arange(-(taken % self._size), more, self._size).clip(0)
        place = taken // self._size
        self._sums[place : place + len(begins)] += np.add.reduceat(samples, begins, dtype=np.float64)
        off, self._taken = float(samples.mean()) - self.mean, taken + more
        # Chan, Golub and LeVeque, Algorithms for computing the sample variance, The American Statistician 37, 1983.
        self.mean += off * more / self._taken
        self._squares += float(samples.var()) * more + off**2 * taken * more / self._taken
        self._low, self._high = min(self._low, float(samples.min())), max(self._high, float(samples.max()))

    @property
    def variance(self) -> float:
        """That of the samples."""
        return self._squares / self.n

    @property
    def design_effect(self) -> float:
        """By what factor the variance of their mean is that of independent samples.

        At least 1. The autocorrelations are summed up to where their pairs are no longer positive, and made decreasing:
        Geyer's initial monotone sequence (Practical Markov Chain Monte Carlo, Statistical Science 7, 1992).
        """
        if self.n < 4 or self._low == self._high:
            return 1.0
        blocks = self._sums[: self.n // self._size]
        n, centred = len(blocks), blocks - blocks.mean()
        spectrum = np.fft.rfft(centred, _fast(n + n // 2))
        autocovariance = np.fft.irfft(spectrum * spectrum.conj())[: n // 2] / n
        pairs = autocovariance[: len(autocovariance) // 2 * 2].reshape(-1, 2).sum(axis=1)
        ends = np.flatnonzero(pairs <= 0)
        kept = np.minimum.accumulate(pairs[: max(1, ends[0]) if len(ends) else None])
        return max(1.0, (2 * float(kept.sum()) - float(autocovariance[0])) / (self._size * self.variance))

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """A confidence interval of the mean.

        Student's, with as many degrees of freedom as there are independent samples; infinite where that is not two.
        """
        effective = self.n / self.design_effect
        if effective < 2:
            return -math.inf, math.inf
        error = math.sqrt(self.variance / (effective - 1)) * student(level, effective - 1)
        return self.mean - error, self.mean + error


def series(samples: NDArray[np.float64] | NDArray[np.bool_]) -> Series:
    """The series of ``samples``, (n,) in order."""
    found = Series(len(samples))
    found.add(samples)
    return found


def design_effect(samples: NDArray[np.float64] | NDArray[np.bool_]) -> float:
    """The design effect of ``samples``, (n,) in order."""
    return series(samples).design_effect


def _fast(least: int) -> int:
    """A length from ``least`` on that transforms fast and is even: a power of two or three quarters of one."""
    power = 1 << (least - 1).bit_length()
    return power * 3 // 4 if power >= 8 and power * 3 // 4 >= least else power


def gate(
    late: NDArray[np.bool_], samples: NDArray[np.float64] | None, p: float, alpha: float = ALPHA,
    limit: float | None = None,
) -> Evidence:  # fmt: skip
    """Whether the share of ``late`` requests is proved to be at most, or above, 1 − ``p``, with 0 < p < 1.

    Args:
        late: of each request, in the order in which they were due; shape (n,).
        samples: what made them late, in the same order, +infinity for those that failed; without it only the late ones
            show how they cluster, as of failures.
        p: 0.99 for p99 and for a share of at most 1 %.
        alpha: the chance of each error, to be divided among the looks that are taken at the same data.
        limit: above which a sample is late, where that is what makes it late.
    """
    n, count = len(late), int(np.count_nonzero(late))
    if not n:
        floor = sample_floor(p, alpha)
        return Evidence(n=0, late=0, design_effect=1.0, effective_n=0.0, p_pass=1.0, p_fail=1.0, more_needed=floor)
    # From so many requests on, if ever, as it is.
    far_from = math.inf
    if samples is not None and limit is not None:
        far_from = _far_from(float(samples.max()), limit, p)
    if n >= far_from:
        effect = 1.0
    else:
        effect = max(design_effect(late), 1.0 if samples is None else _body(samples, np.sort(samples)))
    return weighed(count, n, effect, p, alpha, far_from)


def weighed(late: int, n: int, effect: float, p: float, alpha: float = ALPHA, far_from: float = math.inf) -> Evidence:
    """What it proves that ``late`` of ``n`` samples of this design effect are; from ``far_from`` on they are far."""
    p_pass, p_fail = _tails(late, n, effect, p)
    more = _more_needed(late, n, effect, p, alpha)
    if n < far_from < math.inf and (more is None or far_from - n < more):
        more = int(far_from) - n
    return Evidence(
        n=n,
        late=late,
        design_effect=effect,
        effective_n=n / effect,
        p_pass=p_pass,
        p_fail=p_fail,
        more_needed=more,
        far=n >= far_from,
    )


def _far_from(slowest: float, limit: float, p: float) -> float:
    """How many requests of which the slowest took so long need no look at how they cluster; infinite: never."""
    found = [max(least, late / (1 - p)) for least, late, times in _FAR if slowest * times <= limit and p < 1]
    return math.ceil(min(found)) if found else math.inf


def _body(samples: NDArray[np.float64], ascending: NDArray[np.float64]) -> float:
    """The design effect that the body of the distribution shows: at its thresholds, the one in the middle."""
    return statistics.median(_above(samples, ascending, p) for p in THRESHOLDS)


def _above(samples: NDArray[np.float64], ascending: NDArray[np.float64], p: float) -> float:
    """The design effect of what is above quantile ``p``."""
    return design_effect(samples > ascending[rank(Fraction(str(p)), len(samples)) - 1])


def _tails(late: float, n: float, effect: float, p: float) -> tuple[float, float]:
    return at_most(late / effect, n / effect, 1 - p), at_least(late / effect, n / effect, 1 - p)


def _more_needed(late: int, n: int, effect: float, p: float, alpha: float) -> int | None:
    share = late / n

    def decided(total: int) -> bool:
        return min(_tails(share * total, total, effect, p)) <= alpha

    return None if (total := _first(decided, n)) is None else total - n


def sample_floor(p: float, alpha: float = ALPHA, late: int = 0) -> int:
    """The fewest requests, independent ones, of which ``late`` late ones still prove a share of at most 1 − ``p``.

    The early-stopping rule of MLPerf's LoadGen: the least n with I_p(n − late, late + 1) ≤ alpha.

    Raises:
        ValueError: no number does, as of a ``p`` of 1.
    """
    found = _first(lambda n: at_most(late, n, 1 - p) <= alpha, late + 1)
    if found is None:
        raise ValueError(f"no number of requests proves a share of {1 - p}")
    return found


def intervals(samples: NDArray[np.float64], ps: Iterable[float], level: float = 0.95) -> list[tuple[float, float]]:
    """A confidence interval of each of the quantiles ``ps`` of ``samples``, (n,) in the order in which they were due.

    Both ends are samples (order statistics), or −infinity and +infinity where there are too few of them to tell. An end
    among failures, which are +infinity, is so too.
    """
    ascending = np.sort(samples)
    n = len(samples)
    if not n:
        return [(-math.inf, math.inf) for _ in ps]
    body = _body(samples, ascending)
    places = [ends(n, p, max(body, _above(samples, ascending, p)), level) for p in ps]
    return [
        (float(ascending[low - 1]) if low else -math.inf, float(ascending[high - 1]) if high <= n else math.inf)
        for low, high in places
    ]


def ends(n: int, p: float, effect: float, level: float = 0.95) -> tuple[int, int]:
    """The ranks, from 1 on, of the samples between which quantile ``p`` of ``n`` is; 0 and n + 1 are none."""
    outside = (1 - level) / 2
    # The places of the samples that are beyond the quantile by no more than the chance ``outside``.
    above = _first(lambda place: at_least(place / effect, n / effect, p) <= outside, 1, n) or n + 1
    below = (_first(lambda place: at_most((place - 1) / effect, n / effect, p) > outside, 1, n) or n + 1) - 1
    return below, above


def mean_interval(samples: NDArray[np.float64], level: float = 0.95) -> tuple[float, float]:
    """A confidence interval of the mean of ``samples``, (n,) in order of time, as of the tokens of each second."""
    return series(samples).interval(level)


def _first(holds: Callable[[int], bool], least: int, most: int = _MOST) -> int | None:
    """The first whole number from ``least`` to ``most`` for which ``holds``, which holds for all beyond it; or None."""
    if holds(least):
        return least
    low, high = least, min(2 * least, most)
    while not holds(high):
        if high == most:
            return None
        low, high = high, min(2 * high, most)
    while high - low > 1:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle
    return high
