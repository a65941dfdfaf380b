"""One generator process: an event loop that plays its slice of each level on real sockets.

Nothing is shared with other workers. The level's requests and due times are computed here from the seed; the
records go into the journal from here; only counts and commands cross to the parent.
"""

import asyncio
import contextlib
import gc
import os
import select
import signal
import sys
from collections.abc import Callable, Coroutine
from multiprocessing.connection import Connection

from loadtest.engine.orders import Failed, Prepare, Ready, Renew, Snapshot, Start, Stop, Turn, Wiring
from loadtest.engine.play import Play
from loadtest.errors import LoadtestError
from loadtest.wire.exchange import Transport
from loadtest.wire.fast import FastTransport
from loadtest.wire.origin import parse


def main(pipe: Connection, inherited: list[Connection]) -> None:
    """Run a worker until the parent closes the pipe. ``inherited`` are the parent's ends of pipes, closed here."""
    for end in inherited:
        end.close()  # held open here, they would keep the other workers from seeing the parent go
    for number in (signal.SIGINT, signal.SIGTERM):  # often sent to the whole group; the parent says what to do
        signal.signal(number, signal.SIG_IGN)
    ready_process()
    play_loop(_serve(pipe))
    # Without the interpreter's own farewell: exit handlers inherited by the fork belong to the parent.
    os._exit(0)


class Player:
    """Obeys what it is told: prepare a level, play it, stop. One level at a time, in the loop that runs."""

    def __init__(self, tell: Callable[[object], None]) -> None:
        self._tell = tell
        self._loop = asyncio.get_running_loop()
        self._transport: Transport | None = None
        self._play: Play | None = None
        self._task: asyncio.Task[None] | None = None

    def obey(self, order: object) -> None:
        """Do it, or begin to; what comes of it is told."""
        match order:
            case Prepare():
                self._task = self._loop.create_task(self._prepare(order))
                self._task.add_done_callback(self._report)
            case Start(t0_ns) if self._play is not None:
                self._task = self._loop.create_task(self._play.run(t0_ns))
                self._task.add_done_callback(self._report)
            case Stop(grace_s) if self._play is not None:
                self._play.stop(grace_s)
            case Renew(bearer) if self._play is not None:
                self._play.renew(bearer)
            case Turn(count) if self._play is not None:
                self._play.turn(count)

    async def close(self) -> None:
        """Drop what goes on, and the connections."""
        if self._task is not None:
            self._task.cancel()
        if self._transport is not None:
            await self._transport.close()

    async def _prepare(self, order: Prepare) -> None:
        wiring = order.wiring
        if self._transport is None:
            self._transport = _transport(wiring)
        self._play = Play(order, self._transport, self._tell)
        await self._play.prepare()
        self._tell(Ready())

    def _report(self, task: "asyncio.Task[None]") -> None:
        if task.cancelled() or (error := task.exception()) is None:
            return
        if isinstance(error, LoadtestError):
            self._tell(Failed(type(error).__name__, str(error)))
        else:
            self._tell(Failed("LoadtestError", f"the generator failed, which is a bug in loadtest: {error!r}"))


class _Worker:
    """A player at the end of a pipe."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._player = Player(self._tell)
        self._gone = asyncio.Event()

    async def serve(self) -> None:
        """Until the parent has gone."""
        loop = asyncio.get_running_loop()
        loop.add_reader(self._pipe.fileno(), self._readable)
        await self._gone.wait()
        loop.remove_reader(self._pipe.fileno())
        await self._player.close()

    def _readable(self) -> None:
        try:
            while self._pipe.poll():
                self._player.obey(self._pipe.recv())
        except (EOFError, OSError):
            self._gone.set()

    def _tell(self, message: object) -> None:
        # A parent that does not listen just now is no reason to stand still: the next snapshot says all of it.
        if isinstance(message, Snapshot) and sys.platform != "win32" and not select.select([], [self._pipe], [], 0)[1]:
            return
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the parent has gone: _readable ends us
            self._pipe.send(message)


def _transport(wiring: Wiring) -> Transport:
    origin = parse(wiring.url)
    tls = wiring.tls.context() if origin.scheme == "https" else None
    if wiring.transport == "aiohttp":
        from loadtest.wire.aiohttp_transport import AiohttpTransport  # noqa: PLC0415  # slow to load, seldom needed

        return AiohttpTransport(origin, wiring.address, wiring.connect_timeout_s, tls, wiring.proxy)
    return FastTransport(origin, wiring.address, wiring.connect_timeout_s, tls)


async def _serve(pipe: Connection) -> None:
    await _Worker(pipe).serve()


def play_loop(what: Coroutine[None, None, None]) -> None:
    """Run it in the loop that levels are played in."""
    if sys.platform == "win32":
        asyncio.run(what)
    else:
        import uvloop  # noqa: PLC0415  # not on Windows

        uvloop.run(what)


def ready_process() -> None:
    """Make a process fit to play in: as many sockets as the system allows, and seldom a full collection of garbage."""
    gc.set_threshold(50_000, 20, 100)
    if sys.platform == "win32":
        return
    import resource  # noqa: PLC0415  # not on Windows

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):  # macOS refuses "unlimited"; the soft limit then stands
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
