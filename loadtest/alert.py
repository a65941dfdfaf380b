"""Warnings as people set them, read into what they mean. Pure.

p99(ttft) > 3 * p50(ttft)       two figures of a level, each perhaps times a number
error_rate > 0.5%               or a figure and a limit, as in an SLO
p99(itl, level='c=16') > 80ms   of one level only

The names, and what they are measured in, are those of ``slo``. A warning is a remark: it decides nothing.
"""

import re
from typing import cast

import msgspec

from loadtest.slo import Measure, Op, Scope, measure, quantity

# The percentiles that a result holds.
PERCENTILES = {0.5: "p50", 0.9: "p90", 0.95: "p95", 0.99: "p99", 0.999: "p999"}
_EXAMPLES = "such as p99(ttft) > 3 * p50(ttft) or error_rate > 0.5%"
_FIGURE = (
    r"(?:(?P<{0}_factor>[0-9]+(?:\.[0-9]+)?)\s*[*×]\s*)?(?P<{0}_name>[A-Za-z][\w.]*)"
    r"\s*(?:\((?P<{0}_inside>(?:[^()'\"]|'[^']*'|\"[^\"]*\")*)\))?"
)
_FORM = re.compile(
    rf"\s*{_FIGURE.format('left')}\s*(?P<op>[<>]=?)\s*(?:{_FIGURE.format('right')}|(?P<value>[0-9][^<>()=*]*))\s*"
)


class Figure(msgspec.Struct, frozen=True):
    """A measure of a level times a number."""

    measure: Measure
    factor: float = 1.0

    def __str__(self) -> str:
        return self.measure.text if self.factor == 1 else f"{self.factor:g} * {self.measure.text}"


class Alert(msgspec.Struct, frozen=True):
    """What is to be said of a level where ``left op right`` holds. A right side that is a number is in left's unit."""

    text: str
    left: Figure
    op: Op
    right: Figure | float

    def is_of(self, level: str) -> bool:
        """Whether it speaks of the level of this name."""
        return all(side.measure.scope.is_of(level) for side in (self.left, self.right) if isinstance(side, Figure))


def parse(text: str) -> Alert:
    """Read one: FIGURE OP FIGURE, or FIGURE OP LIMIT, a FIGURE being as in an SLO and perhaps ``3 *`` before it.

    Raises:
        ValueError: another form, an unknown metric, sides of different units, or what the result does not hold.
    """
    match = _FORM.fullmatch(text)
    if match is None:
        raise ValueError(f"expected FIGURE OP FIGURE, {_EXAMPLES}")
    left, op = _figure(match, "left"), cast(Op, match["op"])
    if (value := match["value"]) is not None:
        limit = value.strip()
        return Alert(f"{left} {op} {limit}", left, op, quantity(left.measure.metric, limit))
    right = _figure(match, "right")
    if left.measure.unit != right.measure.unit:
        units = {"ms": "a time", "share": "a share", "per_s": "something per second"}
        raise ValueError(
            f"{left.measure.metric} is {units[left.measure.unit]} and {right.measure.metric} is "
            f"{units[right.measure.unit]}: they cannot be compared"
        )
    return Alert(f"{left} {op} {right}", left, op, right)


def _figure(match: re.Match[str], side: str) -> Figure:
    found = measure(match[f"{side}_name"], match[f"{side}_inside"] or "")
    if found.scope != Scope(level=found.scope.level):
        raise ValueError(f"{found.text}: a warning is about whole levels: of the scopes it takes level= alone")
    if found.limits:
        raise ValueError(f"{found.text}: the goodput of a warning is that of the SLOs: write goodput")
    if found.quantile is not None and found.quantile not in PERCENTILES:
        raise ValueError(f"{found.text}: the percentiles of a warning are p50, p90, p95, p99 and p99.9")
    return Figure(found, float(match[f"{side}_factor"] or 1))
