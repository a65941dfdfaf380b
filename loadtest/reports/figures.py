"""How figures are put into words, alike in every report for people."""

import math
import re
from fractions import Fraction

from loadtest.repeats import setting
from loadtest.result import LevelResult, Metric
from loadtest.stats import PERCENTILES

NOT_MEASURED = "–"
UNBOUNDED = "∞"
FEW = "~"
# The end of a name that other levels have as well, as plans number them.
AGAIN = re.compile(r" #[0-9]+(?=$| \()")


def figure(value: float | None) -> str:
    """``value`` to three significant digits, thousands apart: 0.123, 12.3, 1,230."""
    if value is None:
        return NOT_MEASURED
    rounded = float(f"{value:.3g}")
    decimals = max(0, 2 - math.floor(math.log10(abs(rounded)))) if rounded else 0
    return f"{rounded:,.{decimals}f}"


def tokens(value: float | None) -> str:
    """A mean number of tokens: whole where it is whole."""
    return f"{value:,.0f}" if value is not None and value.is_integer() else figure(value)


def percentile_value(metric: Metric, name: str) -> float | None:
    """A percentile in ms of what a user met: failures inside where there is such a distribution.

    It is infinite when it falls among the failures, and None when nothing was measured.
    """
    if metric.due and name in metric.due.unbounded:
        return math.inf
    value: float | None = getattr(metric.met, name)
    return value


def rests_on_few(metric: Metric, name: str) -> bool:
    """Whether the percentile is nothing but the largest sample, as p99 of fewer than 100 is."""
    return on_few(metric.due.n if metric.due else metric.ok.n, PERCENTILES[name])


def on_few(n: int, quantile: Fraction) -> bool:
    """Whether so many samples have but one at the quantile or beyond it."""
    return 0 < n * (1 - quantile) < 1


def percentile(metric: Metric, name: str) -> str:
    """The percentile as a report shows it: ``∞`` among the failures, ``~`` before one that rests on few samples."""
    value = percentile_value(metric, name)
    if value is None:
        return NOT_MEASURED
    if math.isinf(value):
        return UNBOUNDED
    return (FEW if rests_on_few(metric, name) else "") + figure(value)


def ok(e2e: Metric) -> int:
    """Requests of the window that ended ok: what the figures of their row rest on. ``e2e`` is defined for each."""
    return e2e.ok.n + e2e.excluded


def failed(e2e: Metric) -> int:
    """Requests due in the window that did not."""
    return e2e.due.failed if e2e.due else 0


def load(level: LevelResult) -> str:
    """The load, and which of several playings of it this is."""
    again = AGAIN.search(level.name)
    of_several = f"{again[0] if again else ''}{level.name.removeprefix(setting(level))}"
    return f"{level.load}{of_several}{' (more)' if level.extends else ''}"


def failure(kind: str, status: int | None = None) -> str:
    """How requests failed, in a report's words."""
    name = "cut off" if kind == "cancelled" else kind
    return name if status is None else f"{name} {status}"


def plain(text: str) -> str:
    """``text`` on one line, without control characters and commands: it may be a server's, and go to a terminal.

    A runner of GitHub's takes what begins a line with ``::name`` for a command, and ``##[name`` anywhere in it.
    """
    line = " ".join("".join(sign if sign.isprintable() else " " for sign in text).split())
    return re.sub(r"(?<!\S):(?=:[a-zA-Z])", ": ", line).replace("##[", "## [")
