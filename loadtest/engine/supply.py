"""Arrivals made ahead of need, so that sending one costs no more than sending it."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable

from loadtest.engine.maker import Unit

_LEAST = 256  # so many are ready, or two for each slot
_MOST_BYTES = 64 << 20

# Takes an arrival and when it was due.
Deliver = Callable[[Unit, int], None]


class Supply:
    """The arrivals of one worker's slice in order, made in the idle moments of the loop that sends them."""

    def __init__(self, units: Iterable[Unit], slots: int, deliver: Deliver) -> None:
        self.over = False  # the last one has been made
        self._making = iter(units)
        self._deliver = deliver
        self._ready: deque[tuple[Unit, int]] = deque()
        self._ready_bytes = 0
        self._most = max(_LEAST, 2 * slots)

    def __len__(self) -> int:
        """How many are ready."""
        return len(self._ready)

    @property
    def spent(self) -> bool:
        """Whether there is no next one, nor will be."""
        return self.over and not self._ready

    @property
    def waiting(self) -> int:
        """How many were due and are not made yet."""
        return 0

    @property
    def task(self) -> "asyncio.Task[None] | None":
        """What makes them by itself, to be watched for faults."""
        return None

    @property
    def wants(self) -> bool:
        """Whether the loop should make a next one now."""
        return self._room

    @property
    def low(self) -> bool:
        """Whether it is time for that."""
        return len(self._ready) < self._most // 2 and not self.over

    async def prepare(self) -> None:
        """Have the first ones ready."""
        while self._room:
            self.make()

    def make(self) -> None:
        """Make the next one, if there is one."""
        unit = next(self._making, None)
        if unit is None:
            self.over = True
        else:
            self._put(unit, sum(made.size for made in unit))

    def next(self, due: int) -> None:
        """Deliver the next one, which is due; made on the spot if need be, and then its sender is late by that."""
        if not self._ready and not self.over:
            self.make()
        if self._ready:
            self._deliver(self._take(), due)

    async def close(self) -> None:
        """Make no more."""

    @property
    def _room(self) -> bool:
        return len(self._ready) < self._most and self._ready_bytes < _MOST_BYTES and not self.over

    def _put(self, unit: Unit, size: int) -> None:
        self._ready.append((unit, size))
        self._ready_bytes += size

    def _take(self) -> Unit:
        unit, size = self._ready.popleft()
        self._ready_bytes -= size
        return unit
