"""The search for the highest load that keeps the SLOs: from the trials so far to the next one, or to a bracket. Pure.

Up by doublings from the start until a trial does not pass, then by halves of what is between on a grid of sixteen loads
a doubling. A load counts as passed when each of its trials passed and they are enough; one that did not pass is enough
for the other end. Whatever state it was left in, the trials alone say how it goes on.
"""

import math
import random
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from loadtest.result import Searched, Trial

# Loads of the grid between one and twice as much: 4.4 % apart; where there is a cliff so many times finer.
A_DOUBLING = 16
FINER = 4
# Levels that a search may play.
MOST_LEVELS = 40
# Trials at a load of which nothing came, as the client was the limit, before it is left alone.
GIVEN_UP = 2
# A cliff: the passed load is so far from the limit, and the next one so far beyond.
CALM, BROKEN = 0.7, 1.5


class Space(NamedTuple):
    """Where to search, and how many trials have to pass at a load. ``whole``: loads are whole numbers."""

    searched: Searched
    whole: bool

    def load(self, step: int, finer: int = 1) -> float:
        """The load so many steps of the grid from the start."""
        start, least, most = self.searched.start, self.searched.least, self.searched.most
        found = start * 2 ** (step / A_DOUBLING / finer)
        found = float(round(found)) if self.whole else float(f"{found:.3g}")
        return max(min(found, math.inf if most is None else most), least)

    def between(self, low: float, high: float, finer: int = 1) -> list[float]:
        """The loads of the grid inside, in order."""
        size = A_DOUBLING * finer
        first, last = (round(math.log2(end / self.searched.start) * size) for end in (low, high))
        return sorted({load for step in range(first, last + 1) if low < (load := self.load(step, finer)) < high})


class Next(NamedTuple):
    """The trial to play; a ``look`` may be too short to prove anything, as it only shows where to search."""

    load: float
    look: bool


class Found(NamedTuple):
    """What the trials say so far; ``passed`` of None: no load has passed, ``not_passed``: none has been seen not to."""

    passed: float | None
    not_passed: float | None
    cliff: bool


class _Tried:
    """The trials by load."""

    def __init__(self, trials: Iterable[Trial]) -> None:
        self.at: dict[float, list[Trial]] = {}
        self.unresolved: dict[float, list[Trial]] = {}
        for trial in trials:
            (self.at if trial.resolved else self.unresolved).setdefault(trial.load, []).append(trial)
        self.high = min((load for load in self.at if not self._passing(load)), default=None)
        self.low = max((load for load in self.at if self._passing(load) and _below(load, self.high)), default=None)

    def _passing(self, load: float) -> bool:
        return all(trial.outcome == "PASS" for trial in self.at[load])

    def passes(self, load: float) -> int:
        """How many trials passed at a load, if each did."""
        return len(self.at[load]) if self._passing(load) else 0

    def top(self) -> float | None:
        """The lowest load that is not to be passed, as far as anything is known of it."""
        lost = [load for load, trials in self.unresolved.items() if _lost(trials) and load not in self.at]
        beyond = [load for load, trials in self.unresolved.items() if _beyond(trials) and load not in self.at]
        ends = [load for load in (*lost, *beyond) if self.low is None or load > self.low]
        return min([*ends, *([self.high] if self.high is not None else [])], default=None)

    def base(self, top: float | None) -> float | None:
        """The highest load below ``top`` that has passed, or seemed to."""
        hints = [load for load, trials in self.unresolved.items() if any(map(_within, trials)) and load not in self.at]
        known = [*hints, *([self.low] if self.low is not None else [])]
        return max((load for load in known if _below(load, top)), default=None)

    def cliff(self) -> bool:
        """Whether the load next to one far below the limits is far beyond them."""
        if self.low is None or self.high is None:
            return False
        calm = all(trial.nearness is not None and trial.nearness <= CALM for trial in self.at[self.low])
        return calm and all(trial.nearness is None or trial.nearness >= BROKEN for trial in self.at[self.high])


def _below(load: float, high: float | None) -> bool:
    """Whether ``load`` is, if there is anything it could be below of."""
    return high is None or load < high


def _lost(trials: Sequence[Trial]) -> bool:
    return sum(trial.nearness is None for trial in trials) >= GIVEN_UP


def _within(trial: Trial) -> bool:
    return trial.nearness is not None and trial.nearness <= 1


def _beyond(trials: Sequence[Trial]) -> bool:
    return any(trial.nearness is not None and trial.nearness > 1 for trial in trials)


def following(trials: Sequence[Trial], space: Space, seed: int) -> Next | None:
    """The trial to play after ``trials``; None when the bracket is found, or cannot be made narrower."""
    if sum(len(trial.levels) for trial in trials) >= MOST_LEVELS:
        return None
    tried = _Tried(trials)
    top = tried.top()
    base = tried.base(top)
    if top is None:
        up = space.searched.start if base is None else space.load(_step(base, space) + A_DOUBLING)
        if base is None or up > base:
            return Next(up, look=True)
    elif base is None:
        down = space.load(_step(top, space) - A_DOUBLING)
        if down < top:
            return Next(down, look=True)
        # The least load there is: that it does not pass has to be as sure as that another does.
        enough = len(tried.at.get(top, ())) >= space.searched.trials
        return None if enough or _gone(tried, top) else Next(top, look=False)
    elif inside := space.between(base, top) or (space.between(base, top, FINER) if tried.cliff() else []):
        return Next(inside[len(inside) // 2], look=False)
    if base is not None and base != tried.low:  # it only seemed to pass
        return Next(base, look=False)
    return _confirming(tried, top, space, random.Random(f"{seed} {len(trials)}"))


def _gone(tried: _Tried, load: float) -> bool:
    return _lost(tried.unresolved.get(load, []))


def _step(load: float, space: Space) -> int:
    return round(math.log2(load / space.searched.start) * A_DOUBLING)


def _confirming(tried: _Tried, top: float | None, space: Space, rng: random.Random) -> Next | None:
    """The next trial at the two ends, in an order drawn at random, so that a target that drifts favours neither."""
    low = tried.low
    assert low is not None
    wanted = [low] * max(0, space.searched.trials - tried.passes(low))
    if top is not None and not _gone(tried, top):
        wanted += [top] * max(0, space.searched.trials - len(tried.at.get(top, ())))
    return Next(rng.choice(wanted), look=False) if wanted and not _gone(tried, low) else None


def found(trials: Sequence[Trial], space: Space) -> Found:
    """The bracket that ``trials`` prove, however far they have come."""
    tried = _Tried(trials)
    enough = [load for load in tried.at if tried.passes(load) >= space.searched.trials and _below(load, tried.high)]
    return Found(max(enough, default=None), tried.high, tried.cliff())
