"""The gaps between tokens of a level's window, in order, where memory does not hold all of them. Pure."""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from loadtest.columns import Floats
from loadtest.records import Record
from loadtest.rows import blocks, floats, gap_counts, gaps, only
from loadtest.stats import DECIMALS
from loadtest.window import Window

# About so many gaps are put in order together.
_MOST = 1 << 19

_Keyed = Callable[[Sequence[Record]], tuple[Floats, Floats]]


class Gaps:
    """Those of the good requests of all ``windows``, one window after the other, in ms."""

    def __init__(self, windows: Sequence[Window]) -> None:
        self._blocks = [[*blocks(_measured(window))] for window in windows]

    def unordered(self) -> Iterator[NDArray[np.float32]]:
        """All of them."""
        return (gaps(block).astype(np.float32) for own in self._blocks for block in own)

    def by_request(self) -> Iterator[Floats]:
        """All of them, rounded, by the order in which the requests became due."""
        return (some for own in self._blocks for some in _in_order(own, _due))

    def by_time(self) -> Iterator[Floats]:
        """All of them, rounded, by the order in which they ended."""
        return (some for own in self._blocks for some in _in_order(own, _ended))


def _measured(window: Window) -> Sequence[Record]:
    records, columns = window.requests
    return only(records, window.inside & columns.ok & ~columns.in_one_burst)


def _due(block: Sequence[Record]) -> tuple[Floats, Floats]:
    return np.repeat(floats(block, "intended_ms"), gap_counts(block)), gaps(block).round(DECIMALS)


def _ended(block: Sequence[Record]) -> tuple[Floats, Floats]:
    own, sizes = gaps(block).round(DECIMALS), gap_counts(block)
    since = np.append(0.0, np.cumsum(own))
    before = since[np.cumsum(sizes) - sizes]
    ended = np.repeat(floats(block, "first_token_ms") - before, sizes) + since[1:]
    return ended.round(DECIMALS), own  # or noise would put in order what ended at once


def _in_order(parts: Sequence[Sequence[Record]], keyed: _Keyed) -> Iterator[Floats]:
    """The gaps of all ``parts`` by their keys, those between two keys at a time.

    Requests are kept about as they ended, so that few parts have some between the same two keys.
    """
    spans, some = [], []
    for part in parts:
        keys, _ = keyed(part)
        if len(keys):
            some.append(part)
            spans.append((keys.min(), keys.max(), len(keys)))
    lows, highs, sizes = np.array(spans, dtype=np.float64).reshape(-1, 3).T
    full = np.flatnonzero(np.diff(np.cumsum(sizes) // _MOST, prepend=0))
    edges = [-np.inf, *np.unique(np.maximum.accumulate(highs)[full]), np.inf]
    for after, upto in pairwise(edges):
        found = [(np.empty(0), np.empty(0))]
        for place in np.flatnonzero((lows <= upto) & (highs > after)).tolist():
            keys, own = keyed(some[place])
            inside = (keys > after) & (keys <= upto)
            found.append((keys[inside], own[inside]))
        keys, own = (np.concatenate(each) for each in zip(*found, strict=True))
        yield own[np.argsort(keys, kind="stable")]
