"""How far another process's clock is from ours, by round trips. Pure."""

from collections.abc import Collection
from typing import NamedTuple


class Trip(NamedTuple):
    """A question and its answer, in nanoseconds: asked and answered by our clock, stamped between by the other's."""

    asked: int
    stamp: int
    answered: int


class Offset(NamedTuple):
    """The other clock shows ours + ``ns``, which is right to ± ``error_ns``."""

    ns: int
    error_ns: int


def offset(trips: Collection[Trip]) -> Offset:
    """The offset that agrees with every trip, one at least.

    The stamp was taken between question and answer, so each trip says where the offset lies, and all of them together
    more narrowly than the shortest alone (Marzullo's intersection). Later it is off by what the clocks have drifted
    apart: quartzes differ by up to 100 µs in a second, and by a few where the system disciplines them.
    """
    low = max(trip.stamp - trip.answered for trip in trips)
    high = min(trip.stamp - trip.asked for trip in trips)
    if low > high:  # they did drift: the shortest trip knows best
        shortest = min(trips, key=lambda trip: trip.answered - trip.asked)
        low, high = shortest.stamp - shortest.answered, shortest.stamp - shortest.asked
    return Offset((low + high) // 2, (high - low + 1) // 2)
