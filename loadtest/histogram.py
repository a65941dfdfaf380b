"""Counts of times in log-linear buckets, so that millions of them cross a process in a few bytes. Pure.

Each power of two is cut into 128 buckets of the same width: a value read back is at most 0.4 % off. Merged by adding.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping

_PARTS = 128  # of a power of two
_LEAST_MS = 0.001


def bucket(ms: float) -> int:
    """The number of the bucket that a time falls into; what is below a microsecond counts as one."""
    mantissa, exponent = math.frexp(max(ms, _LEAST_MS))  # ms = mantissa · 2^exponent, and mantissa in [0.5, 1)
    return exponent * _PARTS + int(mantissa * 2 * _PARTS)


def merged(counts: Iterable[Mapping[int, int]]) -> Counter[int]:
    """All of them as one: how many times each bucket was met."""
    total: Counter[int] = Counter()
    for each in counts:
        total.update(each)
    return total


def quantile(counts: Mapping[int, int], share: float) -> float | None:
    """The nearest-rank percentile in ms, to the middle of its bucket; None of no times."""
    left = math.ceil(share * sum(counts.values()))
    for number in sorted(counts):
        left -= counts[number]
        if left <= 0:
            exponent, part = divmod(number - _PARTS, _PARTS)
            return math.ldexp((part + _PARTS + 0.5) / (2 * _PARTS), exponent)
    return None
