"""A light stream of small requests beside the load, to see what they suffer under it."""

import asyncio
from collections.abc import Callable, Iterator
from time import perf_counter_ns

import msgspec

from loadtest import plan
from loadtest.engine.maker import Made, Maker, Unit
from loadtest.engine.orders import Prepare
from loadtest.engine.supply import Supply
from loadtest.engine.timer import DeadlineTimer
from loadtest.trace import of_probes


class Bystander:
    """Plays the probes of a level: an open loop of its own, with requests of its own, until it is told to stop."""

    def __init__(self, order: Prepare, send: Callable[[Made, int], None]) -> None:
        level, seed = plan.probe(order.level, order.wiring.seed)
        trace = order.wiring.trace
        wiring = msgspec.structs.replace(order.wiring, seed=seed, trace=None if trace is None else of_probes(trace))
        self._supply = Supply(Maker(Prepare(wiring, level, 0, 1)), 0, self._deliver)
        self._send = send
        self._times: Iterator[float] = plan.due_times(level, seed, 0, 1)
        self._t0 = self._due = 0
        self._timer: DeadlineTimer | None = None

    async def prepare(self) -> None:
        """Make the first requests."""
        await self._supply.prepare()

    def start(self, t0_ns: int) -> None:
        """The level begins."""
        self._t0 = t0_ns
        self._timer = DeadlineTimer(asyncio.get_running_loop(), self._send_due)
        self._next()
        self._send_due()

    def stop(self) -> None:
        """Send no more."""
        if self._timer is not None:
            self._timer.close()
            self._timer = None

    def _next(self) -> None:
        self._due = self._t0 + round(next(self._times) * 1e9)

    def _send_due(self) -> None:
        while self._due <= perf_counter_ns():
            self._supply.next(self._due)
            self._next()
        if self._timer is not None:
            self._timer.arm(self._due)

    def _deliver(self, unit: Unit, due: int) -> None:
        (made,) = unit
        self._send(msgspec.structs.replace(made, probe=True), due)
