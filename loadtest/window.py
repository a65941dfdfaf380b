"""The requests of a level's window: their times in the order in which they became due, and what arrived in it. Pure."""

from dataclasses import dataclass
from functools import cached_property, partial
from operator import eq
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from loadtest import measures
from loadtest.columns import Bounds, Columns, Floats, Mask, Requests, low
from loadtest.level import Level
from loadtest.result import LevelResult
from loadtest.rows import that
from loadtest.slo import Scope
from loadtest.stats import DECIMALS

T = TypeVar("T", bound=np.generic)

# A rate's interval is that of the means of so many equal parts of the window; of long ones, of whole seconds.
_FEWEST_PARTS, _MOST_PARTS = 20, 200
# The ends of windows are told to a tenth of a microsecond.
_NEAR_MS = 0.001


@dataclass(frozen=True)
class Window:
    """The requests of one playing, with the stretch that is judged and which of them belong to it."""

    requests: Requests
    inside: Mask
    bounds: Bounds

    def only(self, scope: Scope, level: Level) -> "Window":
        """Those of a scope."""
        if not scope.of_some:
            return self
        places = {place for place, workload in enumerate(level.workloads) if workload.name == scope.workload}
        chosen = np.ones(len(self.inside), dtype=np.bool_)
        if scope.turn is not None:
            chosen &= that(self.requests.records, "turn", partial(eq, scope.turn))
        if scope.workload is not None:
            chosen &= that(self.requests.records, "workload", places.__contains__)
        if scope.model is not None:
            chosen &= that(self.requests.records, "model", lambda model: (model or level.model) == scope.model)
        return Window(self.requests.only(chosen), self.inside[chosen], self.bounds)

    @property
    def due(self) -> int:
        """How many belong to it."""
        return int(np.count_nonzero(self.inside))

    def in_order(self, values: NDArray[T], chosen: Mask) -> NDArray[T]:
        """The ``values`` of the ``chosen`` ones, all of which belong to it, in the order in which they became due."""
        return values[self._order[chosen[self._order]]]

    @cached_property
    def _order(self) -> NDArray[np.uint32]:
        """The places of those that belong to it, in that order."""
        places = np.flatnonzero(self.inside).astype(np.uint32)
        due = self.requests.columns.intended[self.inside]
        return places[np.argsort(due, kind="stable")]


def window_of_figures(level: LevelResult, columns: Columns) -> Bounds | None:
    """The stretch that the figures of ``level`` are of, as they tell it; None where it is empty."""
    if level.window.measured_s is None:
        return None
    start = max(level.window.warmup_s * 1000, low(columns.intended)) - _NEAR_MS
    end = start + level.window.measured_s * 1000 + 2 * _NEAR_MS
    return Bounds(start, end, end)


def due_times(window: Window, metric: str) -> tuple[Floats, Floats]:
    """The times of the window's requests in order, failures without end; and the same with those not measured so, too.

    A good answer without a TPOT had no two tokens to take time between, and is in neither.
    """
    columns = window.requests.columns
    values = measures.time_of(columns, metric)
    missing = np.isnan(np.round(values, DECIMALS, out=values))
    failed = measures.failed_of(columns, metric)
    values[failed | missing] = np.inf
    known = window.inside & (failed | (columns.ok & ~missing))
    whole = known if metric == "tpot" else known | (window.inside & columns.ok)
    return window.in_order(values, known), window.in_order(values, whole)


def arrived(window: Window, metric: str) -> tuple[float, Floats] | None:
    """What arrived per second: exactly over the window, and in equal parts of it, tokens spread over their answer."""
    stretch, columns = window.bounds, window.requests.columns
    if stretch.length_s is None:
        return None
    parts = min(max(round(stretch.length_s), _FEWEST_PARTS), _MOST_PARTS)
    edges = np.linspace(stretch.start, stretch.end, parts + 1)
    if metric == "requests_per_s":
        ended = columns.intended[columns.ok & window.inside]
        return len(ended) / stretch.length_s, np.histogram(ended, edges)[0] * parts / stretch.length_s
    whole = getattr(measures.throughput(window.requests, stretch), metric)
    if whole is None:
        return None
    first, last = measures.arrival(columns)
    output = columns.samples if metric == "samples_per_s" else columns.output_tokens
    if metric == "events_per_s":
        output = np.where(columns.streamed, columns.events, 0.0)
    amounts = [_spread(np.nan_to_num(output), first, last, columns.ok, edges)]
    if metric == "total_tokens_per_s":
        amounts.append(_spread(np.nan_to_num(columns.input_tokens), first, first, columns.ok, edges))
    return whole, np.sum(amounts, axis=0) * parts / stretch.length_s


def _spread(amounts: Floats, first: Floats, last: Floats, ok: Mask, edges: Floats) -> Floats:
    """How much of ``amounts`` arrived between two edges each, if they came evenly from ``first`` to ``last``."""
    amounts, first, last = amounts[ok], first[ok], last[ok]
    long = last > first
    speed = amounts[long] / (last - first)[long]
    arrived = _line(first[long], speed, edges) - _line(last[long], speed, edges)
    found: Floats = np.diff(arrived) + np.histogram(first[~long], edges, weights=amounts[~long])[0]
    return found


def _line(begins: Floats, speed: Floats, edges: Floats) -> Floats:
    """The sum, at each of ``edges``, of lines that rise with ``speed`` from where each ``begins``."""
    order = np.argsort(begins)
    at = np.searchsorted(begins[order], edges, side="right")
    speeds = np.concatenate([[0.0], np.cumsum(speed[order])])
    offsets = np.concatenate([[0.0], np.cumsum((speed * begins)[order])])
    found: Floats = speeds[at] * edges - offsets[at]
    return found
