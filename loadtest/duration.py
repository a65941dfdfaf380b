"""Durations as people write them: a number with its unit."""

import re

from loadtest.workload.distribution import Distribution

UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
WEEK_S = 7 * 86_400.0
PATTERN = r"\s*([0-9]+(?:\.[0-9]+)?)\s*(ms|s|m|h)\s*"
_NUMBER = r"(?<![\w.])([0-9]+(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?)"
_TIME = re.compile(rf"{_NUMBER}(ms|s|m|h)(?!\w)", re.ASCII)
_BARE = re.compile(rf"{_NUMBER}(?![\w.])(?!\s*\*)", re.ASCII)  # not the weights of a mix, which are no times


def duration(value: object) -> float:
    """Seconds in a duration with its unit: ``500ms``, ``30s``, ``2m``, ``1h``; exact to the microsecond.

    Raises:
        ValueError: no unit, another form, or more than seven days.
    """
    match = re.fullmatch(PATTERN, str(value), re.ASCII)
    if match is None:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        mend = f"write {value}s (or ms, m, h)" if number else "write for example 30s, 500ms or 2m"
        raise ValueError(f"expected a duration with its unit: {mend}")
    seconds = round(float(match[1]) * UNITS_S[match[2]], 6)
    if seconds > WEEK_S:
        raise ValueError("expected at most 7 days (168h)")
    return seconds


def duration_text(seconds: float) -> str:
    """``30s``: what ``duration`` reads back as the same number."""
    return f"{seconds:.6f}".rstrip("0").rstrip(".") + "s"


def span(seconds: float) -> str:
    """``seconds`` as people say them: 350 ms, 3 s, 1 min 30 s, 2 h 5 min."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms" if seconds else "0 s"
    if seconds < 60:
        return f"{seconds:.1f}".removesuffix(".0") + " s"
    whole = round(seconds)
    parts = ((whole // 3600, "h"), (whole % 3600 // 60, "min"), (whole % 60 if whole < 3600 else 0, "s"))
    return " ".join(f"{number} {unit}" for number, unit in parts if number)


def durations(value: object) -> Distribution:
    """A distribution of seconds, its times with their units: ``5s``, ``exponential(5s)``, ``uniform(500ms, 2s)``.

    Raises:
        ValueError: a time without its unit, or no distribution.
    """
    text = str(value)
    if bare := _BARE.search(text):
        raise ValueError(f"expected times with their units: write {bare[0]}s (or ms, m, h)")
    # Seconds stay as they are to the last digit; 700 ms are not to show how floats multiply.
    seconds = _TIME.sub(lambda t: t[1] if t[2] == "s" else repr(round(float(t[1]) * UNITS_S[t[2]], 9)), text)
    if seconds == text:
        raise ValueError("expected a time or a distribution of times, such as 5s or exponential(5s)")
    found = Distribution.parse(seconds)
    if "zipf" in text:
        raise ValueError("zipf is a distribution of whole numbers, not of times: take another, such as exponential(5s)")
    return found


def durations_text(distribution: Distribution) -> str:
    """What ``durations`` reads back as an equal distribution."""
    return _BARE.sub(r"\g<0>s", str(distribution))
