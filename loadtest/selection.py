"""Exact percentiles of more samples than memory holds: they are counted, and only then looked up. Pure.

Bit patterns of floats that are not negative rise as their values do. So samples are counted by the upper half of their
bits, and those of the halves that percentiles fall into once more by the lower one: two passes, and some megabytes
whatever their number.
"""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from loadtest.stats import DECIMALS, PERCENTILES, Dist, rank

_HALF = 16
_LOWER = (1 << _HALF) - 1


class Selection:
    """The samples of all ``blocks``, finite and not negative. They are asked for once, and for each question again."""

    def __init__(self, blocks: Callable[[], Iterator[NDArray[np.float32]]]) -> None:
        self._blocks = blocks
        self._upper = np.zeros(1 << _HALF, dtype=np.int64)
        self.n, self.total, self.low, self.high = 0, 0.0, np.inf, 0.0
        for block in blocks():
            if len(block):
                self._upper += np.bincount(_bits(block) >> _HALF, minlength=len(self._upper))
                self.n, self.total = self.n + len(block), self.total + float(block.sum(dtype=np.float64))
                self.low, self.high = min(self.low, float(block.min())), max(self.high, float(block.max()))

    def at(self, ranks: Sequence[int]) -> list[float]:
        """The samples at ``ranks``, of which the lowest is 1."""
        upto = np.cumsum(self._upper)
        halves = [int(np.searchsorted(upto, place)) for place in ranks]
        lower = {half: np.zeros(1 << _HALF, dtype=np.int64) for half in halves}
        for block in self._blocks():
            bits = _bits(block)
            for half in lower:
                lower[half] += np.bincount(bits[bits >> _HALF == half] & _LOWER, minlength=1 << _HALF)
        found = []
        for half, place in zip(halves, ranks, strict=True):
            before = int(upto[half] - self._upper[half])
            rest = int(np.searchsorted(np.cumsum(lower[half]), place - before))
            found.append(float(np.array([half << _HALF | rest], dtype=np.uint32).view(np.float32)[0]))
        return found

    def distribution(self) -> Dist:
        """As ``stats.distribution`` has it."""
        if not self.n:
            return Dist(n=0)
        at = self.at([rank(p, self.n) for p in PERCENTILES.values()])
        mean = min(max(round(self.total / self.n, DECIMALS), self.low), self.high)
        return Dist(n=self.n, min=self.low, mean=mean, max=self.high, **dict(zip(PERCENTILES, at, strict=True)))


def _bits(block: NDArray[np.float32]) -> NDArray[np.int64]:
    return (np.ascontiguousarray(block) + np.float32(0.0)).view(np.uint32).astype(np.int64)  # + 0 turns −0 into 0
