"""Exact percentiles of more samples than memory holds: they are counted, and only then looked up. Pure.

Bit patterns of floats that are not negative rise as their values do. So samples are counted by the upper half of their
bits, and those of the halves that percentiles fall into once more by the lower one: two passes, and some megabytes
whatever their number.
"""

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from loadtest.stats import DECIMALS, PERCENTILES, Dist, rank

_HALF = 16
Blocks = Callable[[], Iterator[NDArray[np.float32]]]


def distribution(blocks: Blocks) -> Dist:
    """The distribution of all samples of ``blocks``, finite, not negative and asked for twice, as ``stats`` has it."""
    upper, n, total, low, high = np.zeros(1 << _HALF, dtype=np.int64), 0, 0.0, np.inf, 0.0
    for block in blocks():
        if len(block):
            upper += np.bincount(_bits(block) >> _HALF, minlength=len(upper))
            n, total = n + len(block), total + float(block.sum(dtype=np.float64))
            low, high = min(low, float(block.min())), max(high, float(block.max()))
    if not n:
        return Dist(n=0)
    ranks = {name: rank(p, n) for name, p in PERCENTILES.items()}
    upto = np.cumsum(upper)
    halves = {name: int(np.searchsorted(upto, place)) for name, place in ranks.items()}
    lower = {half: np.zeros(1 << _HALF, dtype=np.int64) for half in halves.values()}
    for block in blocks():
        bits = _bits(block)
        for half in lower:
            lower[half] += np.bincount(bits[bits >> _HALF == half] & ((1 << _HALF) - 1), minlength=1 << _HALF)
    at = {}
    for name, half in halves.items():
        before = int(upto[half] - upper[half])
        rest = int(np.searchsorted(np.cumsum(lower[half]), ranks[name] - before))
        at[name] = float(np.array([half << _HALF | rest], dtype=np.uint32).view(np.float32)[0])
    return Dist(n=n, min=low, mean=min(max(round(total / n, DECIMALS), low), high), max=high, **at)


def _bits(block: NDArray[np.float32]) -> NDArray[np.int64]:
    return (np.ascontiguousarray(block) + np.float32(0.0)).view(np.uint32).astype(np.int64)  # + 0 turns −0 into 0
