"""How often the judgement is right: thousands of simulated levels whose truth is known, judged as a run is.

    python bench/verdicts.py [--quick] [--json FILE] [--seed N]

Nothing is played and nothing sleeps. Latencies are drawn from systems with a known distribution (waiting for one server
or for a batch, stalls, correlated and drifting ones) and judged. All rates are in percent of the levels judged. Rows:

- false PASS, false FAIL: of a system whose p99 is exactly the limit; each at most 5 %.
- power: PASS of a system whose limit is 30 % above its p99.
- coverage: 95 % intervals of p50, p90, p99 and the mean that hold the true one.
- overloaded: how often a busy target is called that, and how often one that is asked for a tenth more than it can do.
- false regression, found: of two sides that are alike, that any figure is called worse; that a change is found. A
  change of exactly what is tolerated is to be called no regression in at most 5 %.
- search: how often one for capacity ends above the true one; the median of what they found, of the true capacity; how
  many of them find a bracket within 40 levels of 5,000 requests.

``--quick`` (under 50 s) takes n = 2,000 and 20,000 and loads 0.5 and 0.7 of the gates, load 0.5 of coverage, half of
the comparisons, load 0.7 of the searches, and fewer levels for each row. Exit code 0 only if every row is ok. The same
seed gives the same rows; there is no allowance for noise, because nothing here is a speed.
"""

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from loadtest import search
from loadtest.capacity import CHANCE
from loadtest.evidence import ALPHA, Evidence, gate, intervals, mean_interval
from loadtest.result import Searched, Trial
from loadtest.shift import FEWEST_RUNS, Claim, decide, of_mean, of_quantile, of_ratio, of_runs
from loadtest.steady import drifting

Floats = NDArray[np.float64]
Generator = np.random.Generator
Draw = Callable[[Generator, int, int], Floats]  # (rng, levels, requests of each) -> their latencies, in order

P = 0.99
WRONG = 5.0  # % of levels
BETTER = 1.3  # the limit over the p99, where power is asked
QUANTILES = (0.5, 0.9, 0.99)
TOLERANCE = 0.05  # of comparisons


class Row(NamedTuple):
    """One claim: ``ours`` % of ``levels`` judged, ``goal`` % at ``most`` or at ``least``."""

    name: str
    ours: float
    goal: float
    bound: Literal["most", "least"]
    levels: int

    @property
    def ok(self) -> bool:
        return self.ours <= self.goal if self.bound == "most" else self.ours >= self.goal


# Systems ------------------------------------------------------------------------------------------------------


def one_server(rng: Generator, levels: int, n: int, load: float) -> Floats:
    """M/M/1 in its steady state, by Lindley's recursion; the time in it is exponential of mean 1 / (1 − load)."""
    return queue(rng, levels, n, load)[1]


def queue(rng: Generator, levels: int, n: int, load: float) -> tuple[Floats, Floats]:
    """Times of arrival and latencies of M/M/1; from a load of 1 on it begins empty."""
    service, gaps = rng.exponential(1.0, (levels, n)), rng.exponential(1 / load, (levels, n))
    waits = np.where(rng.random((levels, 1)) < load, rng.exponential(1 / max(1e-9, 1 - load), (levels, 1)), 0.0)
    walk = np.zeros((levels, n))
    np.cumsum(service[:, :-1] - gaps[:, 1:], axis=1, out=walk[:, 1:])
    latencies = np.maximum((waits if load < 1 else 0.0) + walk, walk - np.minimum.accumulate(walk, axis=1)) + service
    return np.cumsum(gaps, axis=1), latencies


def batches(rng: Generator, levels: int, n: int, load: float, largest: int = 8) -> Floats:
    """M/G/1 with batching: a batch takes all that wait, up to ``largest``; twice as long when full."""
    arrivals = np.cumsum(rng.exponential(1 / (load * largest), (levels, n + largest)), axis=1)
    latencies = np.empty_like(arrivals)
    every, window = np.arange(levels), np.arange(largest)
    first, free = np.zeros(levels, np.int64), np.zeros(levels)
    while (first < n).any():
        begin = np.minimum(first, n)
        ahead = arrivals[every[:, None], begin[:, None] + window]
        start = np.maximum(free, ahead[:, 0])
        inside = ahead <= start[:, None]
        size = inside.sum(axis=1)
        free = start + (0.5 + 0.5 * size / largest) * rng.gamma(4, 0.25, levels)
        level, place = np.nonzero(inside)
        latencies[level, begin[level] + place] = free[level] - ahead[level, place]
        first = np.where(first < n, first + size, first)
    return latencies[:, :n]


def independent(rng: Generator, levels: int, n: int) -> Floats:
    """Exponential of mean 1."""
    return rng.exponential(1.0, (levels, n))


def correlated(rng: Generator, levels: int, n: int, phi: float) -> Floats:
    """Lognormal, AR(1) in the logarithm."""
    steps = rng.standard_normal((n, levels))
    steps[1:] *= math.sqrt(1 - phi * phi)
    for i in range(1, n):
        steps[i] += phi * steps[i - 1]
    return np.exp(steps).T.copy()


def stalls(rng: Generator, levels: int, n: int, length: float) -> Floats:
    """Bimodal: 1 in 100 requests falls into a stall, in which each takes 20 longer; one hits ``length`` at the mean."""
    chance = rng.random((n, levels))
    stalled = np.empty((n, levels), np.bool_)
    stalled[0] = chance[0] < 1 - P
    enter, leave = (1 - P) / P / length, 1 / length
    for i in range(1, n):
        stalled[i] = np.where(stalled[i - 1], chance[i] >= leave, chance[i] < enter)
    return rng.exponential(1.0, (levels, n)) + 20 * stalled.T


def drifts(rng: Generator, levels: int, n: int) -> Floats:
    """Exponential, and a third slower at the end than at the start."""
    return rng.exponential(1.0, (levels, n)) * np.linspace(0.85, 1.15, n)


def p99_of(load: float) -> float:
    """Of ``one_server``."""
    return -math.log(1 - P) / (1 - load)


# Judged -------------------------------------------------------------------------------------------------------


def share(found: list[bool]) -> float:
    """In percent."""
    return 100 * sum(found) / len(found)


def judged(latencies: Floats, limit: float) -> list[Evidence]:
    """Each level by the gate."""
    return [gate(level > limit, level, P, limit=limit) for level in latencies]


def errors(name: str, latencies: Floats, limit: float) -> Iterator[Row]:
    """The rates of both errors at a system that is exactly at its limit."""
    found = judged(latencies, limit)
    yield Row(f"false PASS, {name}", share([each.p_pass <= ALPHA for each in found]), WRONG, "most", len(found))
    yield Row(f"false FAIL, {name}", share([each.p_fail <= ALPHA for each in found]), WRONG, "most", len(found))


def gates(rng: Generator, quick: bool) -> Iterator[Row]:
    """Errors and power at one server, by load and number of requests."""
    sizes = {2_000: 200, 20_000: 250} if quick else {2_000: 2000, 5_000: 1000, 20_000: 1000, 80_000: 250}
    power = {(20_000, 0.5): 95.0, (20_000, 0.7): 60.0}
    for n, levels in sizes.items():
        for load in (0.5, 0.7) if quick else (0.3, 0.5, 0.7, 0.8, 0.9):
            latencies, limit = one_server(rng, levels, n, load), p99_of(load)
            where = f"M/M/1 at {load}, n {n:,}"
            yield from errors(where, latencies, limit)
            if goal := power.get((n, load)):
                found = judged(latencies, BETTER * limit)
                yield Row(f"power, {where}", share([each.p_pass <= ALPHA for each in found]), goal, "least", levels)


def others(rng: Generator, quick: bool) -> Iterator[Row]:
    """Errors at systems of other kinds. A limit that no formula gives is the p99 of all that was drawn."""
    systems: list[tuple[str, Draw, float | None]] = [
        ("independent", independent, -math.log(1 - P)),
        ("batches at 0.5", partial(batches, load=0.5), None),
        ("batches at 0.8", partial(batches, load=0.8), None),
        ("AR(1) of 0.9", partial(correlated, phi=0.9), math.exp(2.3263479)),
        ("AR(1) of 0.99", partial(correlated, phi=0.99), math.exp(2.3263479)),
        ("stalls of 5", partial(stalls, length=5), 15.0),
        ("drifting", drifts, None),
    ]
    n = 20_000
    for name, draw, limit in systems:
        latencies = draw(rng, 80 if quick else 400, n)
        yield from errors(f"{name}, n {n:,}", latencies, limit or float(np.quantile(latencies, P)))


def coverage(rng: Generator, quick: bool) -> Iterator[Row]:
    """How often intervals hold the truth."""
    n, levels = 20_000, 250 if quick else 1000
    for load, goal in ((0.5, 93.0), (0.8, 90.0))[: 1 if quick else 2]:
        truths = {f"p{100 * p:.0f}": -math.log(1 - p) / (1 - load) for p in QUANTILES} | {"the mean": 1 / (1 - load)}
        found = [[*intervals(level, QUANTILES), mean_interval(level)] for level in one_server(rng, levels, n, load)]
        for (name, truth), ends in zip(truths.items(), zip(*found, strict=True), strict=True):
            held = share([low <= truth <= high for low, high in ends])
            yield Row(f"coverage of {name}, M/M/1 at {load}, n {n:,}", held, goal, "least", levels)


def overload(rng: Generator, quick: bool) -> Iterator[Row]:
    """How often a queue is said to grow that does not, and that does."""
    levels = 100 if quick else 1000
    for n, load, goal, bound in ((2_000, 0.9, 1.0, "most"), (20_000, 0.9, 1.0, "most"), (10_000, 1.1, 95.0, "least")):
        arrivals, latencies = queue(rng, levels, n, load)
        called = share(
            [drifting(due, due + level, due[0], due[-1]) for due, level in zip(arrivals, latencies, strict=True)]
        )
        yield Row(f"called overloaded, M/M/1 at {load}, n {n:,}", called, goal, bound, levels)  # type: ignore[arg-type]


# Compared -----------------------------------------------------------------------------------------------------


def times(base: Floats, candidate: Floats) -> list[Claim]:
    """What is claimed of p50 and of p99, by the latencies of the runs of two sides."""
    found = []
    for p in (Fraction(1, 2), Fraction(99, 100)):
        each = [np.quantile(side, float(p), axis=1, method="inverted_cdf") for side in (base, candidate)]
        if len(base) >= FEWEST_RUNS:
            shift = of_runs(*each)
        else:
            shift = of_ratio(*(of_quantile(side.ravel(), p) for side in (base, candidate)))
            shift = max(shift, of_runs(*each), key=lambda by: by.width) if len(base) > 1 else shift
        found.append(Claim(shift, math.log1p(TOLERANCE), math.log1p(TOLERANCE)))
    return found


def throughput(base: Floats, candidate: Floats) -> list[Claim]:
    """What is claimed of requests per second, by the times of service of the runs of two servers that are never idle.

    The window of a run is cut where its last request was done, into 200 parts.
    """
    sides = [[np.histogram(done, 200, (0.0, done[-1]))[0] * 200 / done[-1] for done in np.cumsum(side, axis=1)]
             for side in (base, candidate)]  # fmt: skip
    if len(base) >= FEWEST_RUNS:
        shift = of_runs(*([float(run.mean()) for run in side] for side in sides))
    else:
        shift = of_ratio(*(of_mean(series := np.concatenate(side), float(series.mean())) for side in sides))
    limit = -math.log1p(-TOLERANCE)
    return [Claim(shift.flipped, limit, limit)]


def comparisons(rng: Generator, quick: bool) -> Iterator[Row]:
    """How often sides that are alike are called a regression, and sides that are not are found out."""
    pairs = 100 if quick else 1000

    def latencies(runs: int, n: int, load: float, slower: float = 1.0, vary: float = 0.0) -> list[list[Claim]]:
        def side() -> Floats:
            return one_server(rng, runs, n, load) * np.exp(vary * rng.standard_normal((runs, 1)))

        return [times(side(), side() * slower) for _ in range(pairs)]

    def speeds(runs: int, n: int, phi: float, slower: float = 1.0) -> list[list[Claim]]:
        sides = correlated(rng, 2 * pairs * runs, n, phi).reshape(pairs, 2, runs, n)
        return [throughput(base, candidate * slower) for base, candidate in sides]

    def alike(what: str, claims: list[list[Claim]]) -> Row:
        wrong = share([any(verdict == "FAIL" for verdict in decide(of)) for of in claims])
        return Row(f"false regression, {what}", wrong, WRONG, "most", pairs)

    def slower(what: str, claims: list[list[Claim]]) -> Row:
        return Row(f"found, {what}", share([decide(of)[-1] == "FAIL" for of in claims]), 80.0, "least", pairs)

    less = 1 / (1 - TOLERANCE)
    yield alike("1 run of 5,000 a side at 0.5", latencies(1, 5_000, 0.5))
    yield alike("5 runs of 5,000 at 0.5", latencies(5, 5_000, 0.5))
    yield alike("throughput, 5 runs of 5,000", speeds(5, 5_000, 0.0))
    yield slower("p99 25 % up, 5 runs of 5,000 at 0.5", latencies(5, 5_000, 0.5, slower=1.25))
    yield slower("throughput 5 % down, 5 runs of 5,000", down := speeds(5, 5_000, 0.0, less))
    passed = share([decide(of)[-1] == "PASS" for of in down])
    yield Row("called no regression, the same 5 % down", passed, WRONG, "most", pairs)
    if quick:
        return
    yield alike("3 runs of 5,000 at 0.5", latencies(3, 5_000, 0.5))
    yield alike("5 runs of 5,000 at 0.5, each ± 10 %", latencies(5, 5_000, 0.5, vary=0.1))
    yield alike("1 run of 20,000 at 0.8", latencies(1, 20_000, 0.8))
    yield alike("5 runs of 5,000 at 0.8", latencies(5, 5_000, 0.8))
    yield alike("throughput, 1 run of 20,000", speeds(1, 20_000, 0.0))
    yield alike("throughput of AR(1) of 0.9, 1 run of 20,000", speeds(1, 20_000, 0.9))
    yield slower("throughput 5 % down, 1 run of 20,000", speeds(1, 20_000, 0.0, less))


def searches(rng: Generator, quick: bool) -> Iterator[Row]:
    """What searches for the capacity of one server find, a limit on p99 being kept exactly at each of these loads."""
    count = 25 if quick else 300
    for load in (0.7,) if quick else (0.5, 0.7, 0.85):
        limit = p99_of(load)
        ended = [searched(rng, limit, true := 10 * 2 ** rng.random(), true / load) for _ in range(count)]
        where = f"M/M/1 at {load}"
        above = share([each is not None and each > 1 for each in ended])
        yield Row(f"search above capacity, {where}", above, 10.0, "most", count)
        median = 100 * float(np.median([each or 0.0 for each in ended]))
        yield Row(f"search, median of capacity, {where}", median, 90.0, "least", count)
        yield Row(f"search found a bracket, {where}", share([each is not None for each in ended]), 95.0, "least", count)


def searched(rng: Generator, limit: float, true: float, served: float, n: int = 5_000) -> float | None:
    """What one search found, of the ``true`` capacity of a server that can do ``served`` requests per unit of time."""
    space = search.Space(Searched(start=1.0, least=1 / 16, most=None, trials=3), whole=False)
    trials: list[Trial] = []
    while (asked := search.following(trials, space, seed=1)) is not None:
        latencies, outcome, drifted = np.empty(0), "INCONCLUSIVE", False
        playings = 0
        while outcome == "INCONCLUSIVE" and playings < 2:  # one that is not decided is extended, once
            due, taken = (drawn[0] for drawn in queue(rng, 1, n, asked.load / served))
            drifted |= drifting(due, due + taken, due[0], due[-1])
            latencies = np.concatenate([latencies, taken])
            found_late = gate(latencies > limit, latencies, P, CHANCE)
            if drifted or found_late.p_fail <= CHANCE:
                outcome = "FAIL"
            elif found_late.p_pass <= CHANCE:
                outcome = "PASS"
            playings += 1
        places = [sum(len(trial.levels) for trial in trials) + place for place in range(playings)]
        near = float(np.quantile(latencies, P)) / limit
        trials.append(Trial(load=asked.load, outcome=outcome, resolved=True, nearness=near, levels=places))  # type: ignore[arg-type]
    passed = search.found(trials, space).passed
    return None if passed is None else passed / true


# Each takes a generator of its own and whether to be quick, and yields its rows as they are known.
PARTS: tuple[Callable[[Generator, bool], Iterator[Row]], ...] = (
    gates,
    others,
    coverage,
    overload,
    comparisons,
    searches,
)


def main() -> int:
    """Print all rows; 0 if each is ok."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="under 50 s")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows to FILE")
    parser.add_argument("--seed", type=int, default=1, help="of the simulation (default 1)")
    options = parser.parse_args()
    rows = []
    for number, part in enumerate(PARTS):
        for row in part(np.random.default_rng([options.seed, number]), options.quick):
            goal = f"at {row.bound} {row.goal:g}"
            verdict = "ok" if row.ok else "MISSED"
            print(f"{row.name:52} {row.ours:>6.1f} %  of {row.levels:>5}  {goal:>12} %  {verdict}", flush=True)
            rows.append(
                {"name": row.name, "ours": row.ours, "other": None, "ratio": None, "goal": row.goal, "ok": row.ok}
            )
    if options.json:
        options.json.write_text(json.dumps({"rows": rows}, indent=2) + "\n")
    return 0 if all(row["ok"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
