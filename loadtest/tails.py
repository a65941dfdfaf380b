"""Tails of the binomial and of Student's distribution, by the incomplete beta function. Pure; exact to 1e-10.

Sources: the continued fraction and the identities are DLMF 8.17.22, 8.17.4 and 8.17.5; Student's is 26.5.27 of
Abramowitz and Stegun; the continued fraction is evaluated as Lentz does (1976).
"""

import math

_TINY = 1e-300
_EXACT = 1e-14
_MOST_TERMS = 100_000


def incomplete_beta(a: float, b: float, x: float) -> float:
    """The regularised incomplete beta function I_x(a, b), for a, b > 0 and 0 ≤ x ≤ 1.

    Raises:
        ValueError: an argument is out of range.
    """
    if not (a > 0 and b > 0 and 0 <= x <= 1):
        raise ValueError(f"no incomplete beta function of a = {a}, b = {b}, x = {x}")
    if x in (0, 1):
        return float(x)
    # The fraction converges fast on this side of the mean alone.
    if x > (a + 1) / (a + b + 2):
        return 1 - incomplete_beta(b, a, 1 - x)
    front = a * math.log(x) + b * math.log1p(-x) + math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    return math.exp(front) / a * _fraction(a, b, x)


def _fraction(a: float, b: float, x: float) -> float:
    c, d = 1.0, 1 / _safe(1 - (a + b) * x / (a + 1))
    value = d
    for m in range(1, _MOST_TERMS):
        for term in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 / _safe(1 + term * d)
            c = _safe(1 + term / c)
            value *= c * d
        if abs(c * d - 1) < _EXACT:
            break
    return value


def _safe(value: float) -> float:
    return value if abs(value) > _TINY else _TINY


def at_most(k: float, n: float, share: float) -> float:
    """The chance of at most ``k`` of ``n`` when each comes with probability ``share``, 0 < share < 1.

    Between whole numbers, which effective counts are, it is what the beta function makes of them.
    """
    return 1.0 if k >= n else incomplete_beta(n - k, k + 1, 1 - share)


def at_least(k: float, n: float, share: float) -> float:
    """The chance of at least ``k`` of ``n``, as ``at_most``."""
    if k <= 0:
        return 1.0
    return incomplete_beta(k, n - k + 1, share) if k < n + 1 else 0.0


def student(confidence: float, freedom: float) -> float:
    """How many standard errors each way hold ``confidence`` (0 to 1) of Student's t with ``freedom`` > 0 degrees."""
    low, high = 0.0, 1.0
    while _outside(high, freedom) > 1 - confidence:
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        if _outside(middle, freedom) > 1 - confidence:
            low = middle
        else:
            high = middle
    return high


def _outside(t: float, freedom: float) -> float:
    return incomplete_beta(freedom / 2, 0.5, freedom / (freedom + t * t))
