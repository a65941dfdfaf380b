"""Percentiles and the two distributions every latency is reported in. Pure; the lowest floor of the house."""

from collections.abc import Mapping
from fractions import Fraction
from types import MappingProxyType
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:  # numpy takes 50 ms to import, which the first request of a run would wait for
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

# Times are recorded to 0.0001 ms; more decimals than that are arithmetic, not measurement.
DECIMALS = 4
SIGNIFICANT = 7

# Fractions, because 0.99 * 100 is 99.00000000000001 on some roads to it and its ceiling would be 100.
PERCENTILES: Mapping[str, Fraction] = MappingProxyType(
    {
        "p50": Fraction(50, 100),
        "p90": Fraction(90, 100),
        "p95": Fraction(95, 100),
        "p99": Fraction(99, 100),
        "p999": Fraction(999, 1000),
    }
)


class Dist(msgspec.Struct, frozen=True, kw_only=True):
    """A distribution of good samples. Percentiles are nearest rank, so each is a sample; null when n is 0."""

    n: int
    min: float | None = None
    mean: float | None = None
    p50: float | None = None
    p90: float | None = None
    p95: float | None = None
    p99: float | None = None
    p999: float | None = None
    max: float | None = None


class Due(msgspec.Struct, frozen=True, kw_only=True):
    """A distribution over everything that was due, in which each of the ``failed`` samples is +infinity.

    A percentile that falls among the failures is null and named in ``unbounded``; one that is null and not
    named there was not measured (n is 0).
    """

    n: int
    failed: int
    p50: float | None = None
    p90: float | None = None
    p95: float | None = None
    p99: float | None = None
    p999: float | None = None
    unbounded: list[str] = []


def rank(p: Fraction, n: int) -> int:
    """Nearest rank ``ceil(p·n)`` of percentile ``p`` (0 < p ≤ 1) among ``n`` ≥ 1 samples: 1 to n, exactly.

    Raises:
        ValueError: ``p`` or ``n`` is out of range.
    """
    if not 0 < p <= 1 or n < 1:
        raise ValueError(f"no percentile {p} of {n} samples: it must be in (0, 1], of at least one sample")
    return -((-p.numerator * n) // p.denominator)


def significant(value: float) -> float:
    """``value`` to 7 significant digits: more than any rate or share is known to, without the noise of division."""
    return float(f"{value:.{SIGNIFICANT}g}")


def _ascending(samples: "Floats") -> "Floats":
    """In order; those that are so already, as of many samples in two distributions, are not sorted once more."""
    if (samples[1:] >= samples[:-1]).all():
        return samples
    ascending = samples.copy()
    ascending.sort()
    return ascending


def distribution(samples: "Floats") -> Dist:
    """The distribution of ``samples`` (shape (n,), finite, any order), in their unit; the mean to 4 decimals."""
    n = len(samples)
    if n == 0:
        return Dist(n=0)
    ascending = _ascending(samples)
    low, high = float(ascending[0]), float(ascending[-1])
    # Rounding can carry the mean of equal samples past the largest of them.
    mean = min(max(round(float(ascending.mean()), DECIMALS), low), high)
    at = {name: float(ascending[rank(p, n) - 1]) for name, p in PERCENTILES.items()}
    return Dist(n=n, min=low, mean=mean, max=high, **at)


def due_distribution(samples: "Floats", failed: int) -> Due:
    """The distribution of ``samples`` (shape (k,), finite, any order) together with ``failed`` at +infinity."""
    n = len(samples) + failed
    if n == 0:
        return Due(n=0, failed=0)
    ascending = _ascending(samples)
    at: dict[str, float] = {}
    unbounded: list[str] = []
    for name, p in PERCENTILES.items():
        position = rank(p, n) - 1
        if position < len(ascending):
            at[name] = float(ascending[position])
        else:
            unbounded.append(name)
    return Due(n=n, failed=failed, unbounded=unbounded, **at)
