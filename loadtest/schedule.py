"""When each request is due. Pure: the same seed gives the same instants, for any number of workers."""

import itertools
import math
import random
from collections.abc import Iterable, Iterator
from typing import Literal

import msgspec

Arrival = Literal["constant", "poisson", "gamma"]

_TURNS_SHOWN = 6


class Stage(msgspec.Struct, frozen=True):
    """A part of an open loop in which the rate goes in a straight line from one value to another; 0 is a pause."""

    from_per_s: float
    to_per_s: float
    duration_s: float

    def expected(self, until_s: float) -> float:
        """How many requests its first ``until_s`` seconds hold: the area under the rate. Outside the stage: none."""
        at = min(max(until_s, 0.0), self.duration_s)
        return at * (self.from_per_s + (self.to_per_s - self.from_per_s) * at / self.duration_s / 2)

    def when(self, expected: float) -> float:
        """The inverse of ``expected``: seconds into the stage at which so many requests have become due."""
        if expected <= 0:
            return 0.0
        slope = (self.to_per_s - self.from_per_s) / self.duration_s
        # The root of slope/2·t² + from·t = expected in the form that neither a slope of 0 nor a start at 0 upsets.
        rates = self.from_per_s + math.sqrt(max(0.0, self.from_per_s**2 + 2 * slope * expected))
        # A rate whose square is too small for a float is no rate.
        return min(2 * expected / rates, self.duration_s) if rates else self.duration_s


class Load(msgspec.Struct, frozen=True):
    """How requests arrive.

    ``closed``: ``concurrency`` slots, each sending its next request when its last one has ended.
    ``constant``, ``poisson``, ``gamma``: an open loop of ``rate_per_s`` requests a second, whatever the answers do.
    ``stages``: an open loop whose rate follows ``stages``, one after the other, with the gaps of ``arrival``.
    ``trace``: an open loop of ``events`` requests at times that were recorded, within ``span_s``.
    ``burstiness`` is the shape of gamma gaps: 1 is Poisson, below 1 is burstier; it never changes the rate.
    """

    kind: Literal["closed", "constant", "poisson", "gamma", "stages", "trace"]
    concurrency: int | None = None
    rate_per_s: float | None = None
    burstiness: float | None = None
    stages: tuple[Stage, ...] | None = None
    arrival: Arrival | None = None
    events: int | None = None
    span_s: float | None = None

    @property
    def process(self) -> Literal["closed", "constant", "poisson", "gamma", "trace"]:
        """What the gaps are like; ``closed`` where the answers make them."""
        return self.arrival or "poisson" if self.kind == "stages" else self.kind

    @property
    def duration_s(self) -> float | None:
        """How long the stages or the trace last; None for a load without an end of its own."""
        if self.stages is None:
            return self.span_s
        # Durations are exact to the microsecond; their sum should not show how floats add up.
        return round(math.fsum(stage.duration_s for stage in self.stages), 6)

    @property
    def peak_per_s(self) -> float | None:
        """The highest rate there will be, of a trace its mean; None for a closed loop."""
        if self.stages is None:
            return self.mean_rate_per_s()
        return max(max(stage.from_per_s, stage.to_per_s) for stage in self.stages)

    def mean_rate_per_s(self, start_s: float = 0.0, end_s: float = math.inf) -> float | None:
        """The rate asked for, on average between two times of the level; None for a closed loop.

        Of stages only the time that they last counts, and where that is none, there is no rate.
        """
        if self.kind == "trace":
            return self.events / self.span_s if self.events and self.span_s else None
        if self.stages is None or self.duration_s is None:
            return self.rate_per_s
        start_s, end_s = max(start_s, 0.0), min(end_s, self.duration_s)
        if end_s <= start_s:
            return None
        expected = began_s = 0.0
        for stage in self.stages:
            expected += stage.expected(end_s - began_s) - stage.expected(start_s - began_s)
            began_s += stage.duration_s
        return expected / (end_s - start_s)

    def __str__(self) -> str:
        if self.kind == "closed":
            return f"c={self.concurrency}"
        if self.kind == "trace":
            return f"trace of {self.events}"
        process = {"poisson": "", "gamma": f" gamma {self.burstiness or 1:g}"}.get(self.process, f" {self.process}")
        if self.stages is None:
            return f"{self.rate_per_s:g}/s{process}"
        rates = [f"{rate:g}" for stage in self.stages for rate in (stage.from_per_s, stage.to_per_s)]
        turns = [rate for rate, _ in itertools.groupby(rates)]
        if len(turns) > _TURNS_SHOWN:
            turns = [*turns[: _TURNS_SHOWN - 2], "…", turns[-1]]
        return f"stages {'→'.join(turns)}/s{process}"


def stream(seed: int, *purpose: object) -> random.Random:
    """An independent, reproducible stream of random numbers for one purpose within a run."""
    return random.Random("/".join(map(str, (seed, *purpose))))


def arrivals(load: Load, seed: int, level: int, duration_s: float | None, requests: int | None) -> Iterator[float]:
    """Due times of an open loop in seconds from the level's t0, ascending, ended by whichever bound comes first.

    One way for all of them: gaps of mean 1 add up to S_0 ≤ S_1 ≤ …, and request i is due when S_i requests are
    expected, which at a constant rate is ``S_i / rate``. Constant arrivals have S_i = i; Poisson ones exponential
    gaps and gamma ones gaps of shape ``burstiness``, the first gap included. So the gaps alone are random: the
    number of requests up to an instant is on average the area under the rate until then, in ramps and steps as well
    (exactly for Poisson; within ``1 / burstiness`` requests for gamma, which begins with a gap).

    Source: the inversion method for nonstationary renewal processes, Gerhardt and Nelson, "Transforming Renewal
    Processes for Simulation of Nonstationary Arrival Processes", INFORMS Journal on Computing 21(4), 2009.
    ``burstiness`` is vLLM's: a coefficient of variation of the gaps of ``1 / sqrt(burstiness)``.

    Raises:
        ValueError: a closed loop or a trace, whose times are not made here, or an open loop with no bound.
    """
    if load.process in ("closed", "trace"):
        raise ValueError("the times of a closed loop come from the answers, and those of a trace from its file")
    marks = _marks(load, stream(seed, "arrivals", level))
    if load.stages is not None:
        times = _through(load.stages, marks)
    elif load.rate_per_s is None or (duration_s is None and requests is None):
        raise ValueError("an open loop needs a rate, and a duration or a number of requests")
    else:
        rate = load.rate_per_s
        times = (mark / rate for mark in marks)
    for at in itertools.islice(times, requests):
        if duration_s is not None and at >= duration_s:
            return
        yield at


def share(total: int, worker: int, workers: int) -> int:
    """How many of ``total`` indivisible things (slots, requests) fall to ``worker`` of ``workers``."""
    return total // workers + (worker < total % workers)


def _marks(load: Load, rng: random.Random) -> Iterator[float]:
    """S_0, S_1, …: sums of gaps of mean 1."""
    if load.process == "constant":
        return map(float, itertools.count())
    # Poisson arrivals are the gamma ones of shape 1, drawn alike: the same seed gives the same instants.
    shape = (load.burstiness or 1.0) if load.process == "gamma" else 1.0
    return itertools.accumulate(rng.gammavariate(shape, 1 / shape) for _ in itertools.count())


def _through(stages: Iterable[Stage], marks: Iterator[float]) -> Iterator[float]:
    """When each mark falls due on the way through ``stages``; ends with the last of them."""
    began_s = before = 0.0
    mark = next(marks)
    for stage in stages:
        expected = stage.expected(stage.duration_s)
        # A mark on the border falls to the next stage: nothing is due within a pause, but right after it.
        while mark - before < expected:
            yield began_s + stage.when(mark - before)
            mark = next(marks)
        before += expected
        began_s += stage.duration_s
