"""What is asked before a load goes to a machine that is not this one: many of them are shared, or bill what they do."""

import math
from collections.abc import Sequence

from loadtest.duration import span
from loadtest.level import Level
from loadtest.statement import Axis
from loadtest.wire.origin import Origin

# So much needs no word: what a few people at their keyboards send, too.
RATE_PER_S = 50.0
IN_FLIGHT = 64


def question(
    origin: Origin, levels: Sequence[Level], max_rate_per_s: float | None, max_in_flight: int | None,
    search: tuple[Axis, float | None] | None = None,
) -> str | None:  # fmt: skip
    """What would be sent to whom, if that should be asked; None where it goes to this machine, or is little.

    ``search``: what a search raises, and how far at most; None is without end.
    """
    if origin.loopback:
        return None
    rate, slots = _peaks(levels, search)
    rate = min(rate, max_rate_per_s or math.inf)
    open_loop = any(level.load.kind != "closed" for level in levels) or (search is not None and search[0] == "rate")
    if rate <= RATE_PER_S and slots <= IN_FLIGHT:
        return None
    peaks = [f"up to {rate:,.4g} requests a second"] * (0 < rate < math.inf)
    peaks += [f"up to {slots:,.0f} at once"] * (0 < slots < math.inf)
    if math.inf in (rate, slots):
        peaks.append(f"whatever {'rate' if rate == math.inf else 'concurrency'} it bears (--max bounds that)")
    if open_loop and max_in_flight is not None:
        peaks.append(f"never more than {max_in_flight:,} at once")
    return f"{origin.authority} is not this machine, and is to be sent {', '.join(peaks)}, {_total(levels, search)}"


def _peaks(levels: Sequence[Level], search: tuple[Axis, float | None] | None) -> tuple[float, float]:
    """The highest rate and the most slots of all levels; 0 where none has any."""
    if search is not None:
        axis, most = search
        highest = math.inf if most is None else most
        return (highest, 0.0) if axis == "rate" else (0.0, highest)
    probes = max((level.probe.rate_per_s for level in levels if level.probe), default=0.0)
    rate = max(((level.load.peak_per_s or 0.0) for level in levels), default=0.0)
    return rate + probes, float(max((level.load.concurrency or 0 for level in levels), default=0))


def _total(levels: Sequence[Level], search: tuple[Axis, float | None] | None) -> str:
    if search is not None:
        return "as often as the search needs"
    requests, open_s = 0.0, 0.0
    for level in levels:
        by_rate = (level.load.mean_rate_per_s() or math.inf) * (level.duration_s or math.inf)
        least = min(level.requests or math.inf, level.load.events or math.inf, by_rate)
        if least < math.inf:
            requests += least
        else:
            open_s += level.duration_s or 0.0
    counted = f"about {requests:,.0f} requests in all" if requests else ""
    open_ended = f"as many as it answers in {span(open_s)}" if open_s else ""
    return " and ".join(part for part in (counted, open_ended) if part) or "without end"
