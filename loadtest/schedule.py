"""When each request is due. Pure: the same seed gives the same instants, for any number of workers."""

import random
from collections.abc import Iterator
from typing import Literal

import msgspec


class Load(msgspec.Struct, frozen=True):
    """How requests arrive.

    ``closed``: ``concurrency`` slots, each sending its next request when its last one has ended.
    ``constant``, ``poisson``: an open loop of ``rate_per_s`` requests a second, whatever the answers do.
    """

    kind: Literal["closed", "constant", "poisson"]
    concurrency: int | None = None
    rate_per_s: float | None = None

    def __str__(self) -> str:
        if self.kind == "closed":
            return f"c={self.concurrency}"
        return f"{self.rate_per_s:g}/s" + (" constant" if self.kind == "constant" else "")


def stream(seed: int, *purpose: object) -> random.Random:
    """An independent, reproducible stream of random numbers for one purpose within a run."""
    return random.Random("/".join(map(str, (seed, *purpose))))


def arrivals(load: Load, seed: int, level: int, duration_s: float | None, requests: int | None) -> Iterator[float]:
    """Due times of an open loop in seconds from the level's t0, ascending, ended by whichever bound comes first.

    Constant: ``i / rate``. Poisson: independent exponential gaps of mean ``1 / rate``, the first one included.

    Raises:
        ValueError: a closed loop, whose times depend on the answers, or an open loop with no bound.
    """
    rate = load.rate_per_s
    if load.kind == "closed" or rate is None:
        raise ValueError("a closed loop has no arrival times of its own")
    if duration_s is None and requests is None:
        raise ValueError("an open loop needs a duration or a number of requests")
    rng = stream(seed, "arrivals", level)
    at, count = 0.0, 0
    while requests is None or count < requests:
        at = count / rate if load.kind == "constant" else at + rng.expovariate(rate)
        if duration_s is not None and at >= duration_s:
            return
        yield at
        count += 1


def share(total: int, worker: int, workers: int) -> int:
    """How many of ``total`` indivisible things (slots, requests) fall to ``worker`` of ``workers``."""
    return total // workers + (worker < total % workers)
