"""Between being due and being sent: the cap on requests in flight and the ceiling on their rate.

Neither is the clock of the load: a request is due when the schedule says so, and what it waits here is in its latency
(and in ``wait_ms``, since it is not the generator's lateness). The ceiling is asyncio-throttle: it polls, which would
not do as an arrival clock, and does as the promise that a shared endpoint never sees more than so many a second.
"""

import asyncio
import math
from collections import deque
from collections.abc import Callable
from time import perf_counter_ns

from asyncio_throttle import Throttler

from loadtest.wire.exchange import Exchange

_WINDOW_S = 0.05  # the ceiling holds over windows this short, so that it does not release a second's worth at once
_POLL_S = 0.001


class Gate:
    """Lets exchanges through to ``send`` while the cap and the ceiling (both None: at once) allow it.

    ``cap``: most exchanges in flight. One that finds it reached is held, or with ``drop`` given to ``refuse``.
    ``rate_per_s``: most exchanges let through in a second.
    """

    def __init__(
        self, cap: int | None, rate_per_s: float | None, *, drop: bool,
        send: Callable[[Exchange], None], refuse: Callable[[Exchange], None],
    ) -> None:  # fmt: skip
        self._cap = math.inf if cap is None else cap
        self._drop = drop
        self._send = send
        self._refuse = refuse
        self._in_flight = 0
        self._held: deque[Exchange] = deque()
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._throttle: Throttler | None = None
        if rate_per_s is not None:
            count = max(1, math.floor(rate_per_s * _WINDOW_S))
            self._throttle = Throttler(count, count / rate_per_s, _POLL_S)
            self._task = asyncio.get_running_loop().create_task(self._let_through())

    def __len__(self) -> int:
        """How many are held."""
        return len(self._held)

    @property
    def task(self) -> "asyncio.Task[None] | None":
        """What works the ceiling, to be watched for faults; None without one."""
        return self._task

    def admit(self, exchange: Exchange) -> None:
        """An exchange is due."""
        full = self._in_flight >= self._cap
        if full and self._drop:
            self._refuse(exchange)
        elif full or self._held or self._throttle is not None:
            exchange.held_since = perf_counter_ns()
            self._held.append(exchange)
            self._wake.set()
        else:
            self._pass(exchange)

    def ended(self) -> None:
        """One that was let through has ended."""
        self._in_flight -= 1
        if self._throttle is not None:
            self._wake.set()
        elif self._held and self._in_flight < self._cap:
            self._release()

    def abandon(self) -> list[Exchange]:
        """Give up the exchanges that are held; they were never sent."""
        held = list(self._held)
        self._held.clear()
        return held

    def close(self) -> None:
        """Let nothing more through."""
        if self._task is not None:
            self._task.cancel()

    def _pass(self, exchange: Exchange) -> None:
        self._in_flight += 1
        self._send(exchange)

    def _release(self) -> None:
        exchange = self._held.popleft()
        exchange.wait_ns += perf_counter_ns() - exchange.held_since
        self._pass(exchange)

    async def _let_through(self) -> None:
        assert self._throttle is not None
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._held and self._in_flight < self._cap:
                async with self._throttle:
                    if self._held:  # unless abandoned meanwhile
                        self._release()
