"""Durations as people write them: a number with its unit."""

import re

UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
WEEK_S = 7 * 86_400.0
PATTERN = r"\s*([0-9]+(?:\.[0-9]+)?)\s*(ms|s|m|h)\s*"


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
