"""Whether and from when on a level was steady: the end of warm-up, and queues that grow. Pure."""

import math

import numpy as np
from numpy.typing import NDArray

_BATCH = 5


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
    """Whether requests that were due and not done piled up between ``start`` and ``end``.

    Args:
        due: when each became due, in any order; shape (n,).
        done: when each ended, NaN of those that never did, in any order; the same unit.
        start: of the window.
        end: of the window.
    """
    marks = np.linspace(start, end, 21)
    arrived = np.searchsorted(np.sort(due), marks, side="right")
    waiting = arrived - np.searchsorted(np.sort(done[~np.isnan(done)]), marks, side="right")
    steps = np.diff(waiting)
    growth = int(waiting[-1] - waiting[0])
    by_chance = 3 * float(np.std(steps)) * math.sqrt(len(steps))
    return growth > max(0.03 * int(arrived[-1] - arrived[0]), by_chance)
