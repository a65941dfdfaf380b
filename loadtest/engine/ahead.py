"""A process beside a worker that makes its requests, where making one takes longer than a send may be late.

It starts before the clock and ends with the level. What it has made comes through a pipe, which holds it up while the
worker has enough. ``python -m loadtest.engine.ahead`` is that process: a pickled work order in, frames out.
"""

import asyncio
import os
import pickle
import struct
import sys
from collections import deque
from typing import BinaryIO

import msgspec

import loadtest.errors
from loadtest.engine.maker import Maker, Unit
from loadtest.engine.orders import Failed, Prepare
from loadtest.engine.supply import Deliver, Supply
from loadtest.errors import LoadtestError
from loadtest.level import Level
from loadtest.workload.tokens import Tokens

_LENGTH = struct.Struct("<I")
_LONG_TOKENS = 8000  # writing so long a prompt takes some 100 µs, without any tokenizer


class _Frame(msgspec.Struct, frozen=True):
    """One arrival, or with none the end, and why if it is not the plan's."""

    unit: Unit | None = None
    failed: Failed | None = None


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Frame).decode


def pays(level: Level, tokens: Tokens) -> bool:
    """Whether making a request of the level may take too long for the loop that sends it."""
    return tokens.kind == "tokenizer" or any(
        workload.rows is not None
        or workload.images is not None
        or (workload.input_tokens is not None and workload.input_tokens.mean * level.batch_size > _LONG_TOKENS)
        or (workload.prefix is not None and workload.prefix.tokens > _LONG_TOKENS)
        for workload in level.workloads
    )


class Ahead(Supply):
    """The arrivals of one worker's slice in order, made by a process of its own."""

    def __init__(self, order: Prepare, slots: int, deliver: Deliver) -> None:
        super().__init__((), slots, deliver)
        self._order = order
        self._due: deque[int] = deque()
        self._process: asyncio.subprocess.Process | None = None
        self._keeping_up: asyncio.Task[None] | None = None
        self._taken = asyncio.Event()

    @property
    def waiting(self) -> int:
        return len(self._due)

    @property
    def task(self) -> "asyncio.Task[None] | None":
        return self._keeping_up

    @property
    def wants(self) -> bool:
        return False

    @property
    def low(self) -> bool:
        return False

    async def prepare(self) -> None:
        """Start the process, and have the first ones ready.

        Raises:
            LoadtestError: it failed.
        """
        # In a session of its own, so that Ctrl-C does not reach it: it ends when it is told, or its pipe is gone.
        # -P: a random.py in the user's folder is none of ours.
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-P", "-m", "loadtest.engine.ahead",
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        assert self._process.stdin is not None
        self._process.stdin.write(pickle.dumps(self._order))
        self._process.stdin.close()
        try:
            while self._room:
                await self._receive()
        except BaseException:
            await self.close()
            raise
        self._keeping_up = asyncio.ensure_future(self._keep_up())

    def next(self, due: int) -> None:
        """Deliver the next one, which is due, as soon as it is made; then its sender is late by that."""
        self._due.append(due)
        self._serve()

    async def close(self) -> None:
        """End the process."""
        if self._keeping_up is not None:
            self._keeping_up.cancel()
            await asyncio.wait([self._keeping_up])
        if self._process is not None:
            if self._process.returncode is None:
                self._process.kill()
            await self._process.communicate()  # to the end of its pipe, whose transport stays open before

    def _serve(self) -> None:
        while self._due and self._ready:
            self._deliver(self._take(), self._due.popleft())
        if self.over:
            self._due.clear()  # a level can have more arrivals than sessions to begin
        elif len(self._ready) < self._most // 2:
            self._taken.set()

    async def _keep_up(self) -> None:
        assert self._process is not None
        ended = asyncio.ensure_future(self._process.wait())
        ended.add_done_callback(lambda _: self._taken.set())
        try:
            while not self.over:
                # Of one that has ended all is read at once: a death is not to be found out when the last is needed.
                if not self._room and not ended.done():
                    self._taken.clear()
                    await self._taken.wait()
                else:
                    await self._receive()
                    self._serve()
        finally:
            ended.cancel()

    async def _receive(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        try:
            (size,) = _LENGTH.unpack(await self._process.stdout.readexactly(_LENGTH.size))
            frame = _decode(await self._process.stdout.readexactly(size))
        except asyncio.IncompleteReadError:
            code = await self._process.wait()
            raise LoadtestError(
                f"the process that makes the prompts ended by itself (exit code {code}); -9 is often a lack of memory"
            ) from None
        if frame.failed is not None:
            raise getattr(loadtest.errors, frame.failed.kind, LoadtestError)(frame.failed.message)
        if frame.unit is None:
            self.over = True
        else:
            self._put(frame.unit, size)


def main(orders: BinaryIO, out: BinaryIO) -> None:
    """Make all arrivals of a work order, as fast as they are taken."""

    def tell(frame: _Frame) -> None:
        coded = _encode(frame)
        out.write(_LENGTH.pack(len(coded)) + coded)
        out.flush()

    try:
        order = pickle.load(orders)  # noqa: S301  # our own worker's
        for unit in Maker(order):
            tell(_Frame(unit))
        tell(_Frame())
    except BrokenPipeError:
        return  # the worker has gone
    except LoadtestError as error:
        tell(_Frame(failed=Failed(type(error).__name__, str(error))))
    except Exception as error:  # noqa: BLE001  # told to the worker, which ends the level with it
        tell(_Frame(failed=Failed("LoadtestError", f"making prompts failed, which is a bug in loadtest: {error!r}")))


if __name__ == "__main__":
    main(sys.stdin.buffer, sys.stdout.buffer)
    os._exit(0)  # without a last try at a pipe that may be gone
