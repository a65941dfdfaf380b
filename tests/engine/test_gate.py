import asyncio
from collections.abc import Callable
from time import perf_counter_ns

import pytest

from loadtest.engine.gate import Gate
from loadtest.wire.exchange import Exchange


def exchange() -> Exchange:
    return Exchange(b"", perf_counter_ns(), lambda _: None, lambda _: None)


class Door:
    """A gate with what it let through and what it refused."""

    def __init__(self, cap: int | None, rate: float | None, *, drop: bool = False) -> None:
        self.sent: list[Exchange] = []
        self.times: list[float] = []
        self.refused: list[Exchange] = []
        self.gate = Gate(cap, rate, drop=drop, send=self._sent, refuse=self.refused.append)

    def _sent(self, exchange: Exchange) -> None:
        self.sent.append(exchange)
        self.times.append(asyncio.get_running_loop().time())


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not true():  # noqa: ASYNC110  # what is waited for is no event of ours
            await asyncio.sleep(0.002)


async def test_without_a_cap_and_a_ceiling_all_pass_at_once() -> None:
    door = Door(None, None)
    for _ in range(100):
        door.gate.admit(exchange())
    assert len(door.sent) == 100
    assert not len(door.gate)
    assert all(not sent.wait_ns for sent in door.sent)


async def test_a_cap_holds_back_and_releases_in_order_and_the_wait_is_kept() -> None:
    door = Door(2, None)
    asked = [exchange() for _ in range(4)]
    for one in asked:
        door.gate.admit(one)
    assert door.sent == asked[:2]
    assert len(door.gate) == 2
    await asyncio.sleep(0.01)
    door.gate.ended()
    assert door.sent == asked[:3]
    assert asked[2].wait_ns > 5_000_000
    door.gate.ended()
    door.gate.ended()
    assert door.sent == asked


async def test_a_cap_that_drops_refuses_what_finds_it_full() -> None:
    door = Door(1, None, drop=True)
    first, second, third = exchange(), exchange(), exchange()
    door.gate.admit(first)
    door.gate.admit(second)
    door.gate.ended()
    door.gate.admit(third)
    assert door.sent == [first, third]
    assert door.refused == [second]


async def test_the_ceiling_spreads_what_comes_at_once() -> None:
    door = Door(None, 100.0)
    for _ in range(41):
        door.gate.admit(exchange())
    await until(lambda: len(door.sent) == 41)
    door.gate.close()
    span = door.times[-1] - door.times[0]
    assert span > 0.3, "41 at 100 a second, in windows of five"
    # Never a second's worth at once: no window of 45 ms lets more through than two windows' worth.
    for start in door.times:
        assert sum(start <= at < start + 0.045 for at in door.times) <= 10


async def test_the_ceiling_and_the_cap_hold_together() -> None:
    door = Door(1, 1000.0)
    for _ in range(3):
        door.gate.admit(exchange())
    await until(lambda: len(door.sent) == 1)
    await asyncio.sleep(0.03)
    assert len(door.sent) == 1
    door.gate.ended()
    await until(lambda: len(door.sent) == 2)
    door.gate.close()


@pytest.mark.parametrize("rate", [None, 5.0])
async def test_what_is_held_can_be_given_up(rate: float | None) -> None:
    door = Door(1, rate)
    asked = [exchange() for _ in range(3)]
    for one in asked:
        door.gate.admit(one)
    await until(lambda: len(door.sent) == 1)
    assert door.gate.abandon() == asked[1:]
    door.gate.ended()
    await asyncio.sleep(0.02)
    assert len(door.sent) == 1
    door.gate.close()
