"""Whether and from when on a level was steady: the end of warm-up, and queues that grow. Pure."""

import math

import numpy as np
from numpy.typing import NDArray

_BATCH = 5
_STEPS = 20
# The least growth of a queue that is called one, as a share of what became due: a load of 1.03 times what is served.
_SHARE = 0.03
# Chosen by simulation (docs/methodology.md), in standard deviations of the steps and of a Poisson count.
_CHANCE_STEPS = 2.5
_CHANCE_COUNT = 2.0
_FASTER = 1.25
_LASTING = 0.25


def steady_from(series: NDArray[np.float64]) -> int | None:
    """How many samples at the start of ``series``, (n,) in order of time, belong to its warm-up.

    MSER-5: of means of five, the truncation that leaves the smallest standard error of the mean (White, Cobb and
    Spratt, A comparison of five steady-state truncation heuristics, 2000). None where it falls into the last half:
    the series never settled, or there are fewer than ten means.
    """
    means = series[: len(series) // _BATCH * _BATCH].reshape(-1, _BATCH).mean(axis=1)
    n = len(means)
    if n < 10:
        return None
    left = n - np.arange(n // 2 + 1)
    means = means - means.mean()  # or the squares of large values would drown their differences
    sums, squares = (np.cumsum(values[::-1])[::-1][: len(left)] for values in (means, means**2))
    errors = (squares - sums**2 / left) / left**2
    best = int(np.argmin(errors))
    return None if best == len(left) - 1 else best * _BATCH


def drifting(due: NDArray[np.float64], done: NDArray[np.float64], start: float, end: float) -> bool:
    """Whether requests that were due and not done piled up between ``start`` and ``end``: an open loop is overloaded.

    Their number grew by a share of what became due, and by more than its own ups and downs and those of a Poisson count
    explain: a queue that only fluctuates steps back as often as it steps forward. It did not stop growing at half time,
    as the number of answers under way does where each takes long. And it grew faster than what becomes due, for where
    the rate rises, so do the requests that are being answered.

    Args:
        due: when each became due, in any order; shape (n,).
        done: when each ended, NaN of those that never did, in any order; the same unit.
        start: of the window.
        end: of the window.
    """
    marks = np.linspace(start, end, _STEPS + 1)
    arrived, ended = (np.array([np.count_nonzero(at <= mark) for mark in marks]) for at in (due, done))
    waiting = arrived - ended
    growth, arrivals = int(waiting[-1] - waiting[0]), int(arrived[-1] - arrived[0])
    by_chance = max(
        _CHANCE_STEPS * float(np.std(np.diff(waiting))) * math.sqrt(_STEPS), _CHANCE_COUNT * math.sqrt(arrivals)
    )
    quarter = _STEPS // 4
    early, lately = int(arrived[quarter] - arrived[0]), int(arrived[-1] - arrived[-1 - quarter])
    faster = int(waiting[-1]) * early > _FASTER * int(waiting[quarter]) * lately
    lasting = int(waiting[-1] - waiting[_STEPS // 2]) > _LASTING * growth
    return faster and lasting and growth > max(_SHARE * arrivals, by_chance)
