"""What runs on a worker of a cluster: the player of a level as a task, and what the client calls meanwhile.

The calls run in the worker's own thread beside that of the task. ``attend`` is the only one during a level: it takes
orders and gives back what was said and recorded since, so that each call is also the sign that both sides are there.
"""

import asyncio
import contextlib
import functools
import hashlib
import platform
import shutil
import socket
import tempfile
import time
import zlib
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

import loadtest
from loadtest.engine.local import check_files
from loadtest.engine.orders import Failed, Prepare, Snapshot, Turn
from loadtest.engine.outbox import Outbox
from loadtest.engine.worker import Player, play_loop, ready_process
from loadtest.errors import UsageError

_WATCH_S = 0.25
_LEVEL = 1  # of zlib: the journal's digits pack to a third at 60 MB a second


class Facts(msgspec.Struct, frozen=True):
    """A worker: its host's name, what it runs (by name), and a folder of ours on its disk."""

    host: str
    runs: dict[str, str]
    folder: str


class Reply(msgspec.Struct, frozen=True):
    """What came of a call: the clock, what was said since the last, whole lines of the journal, packed, from the offset
    that was asked for to ``offset``, and whether there are ``more``.
    """

    stamp_ns: int
    said: list[Any]
    lines: bytes
    offset: int
    more: bool


class _Session:
    """A level on this worker, from the beginning of its task to the end."""

    def __init__(self, order: Prepare, patience_s: float) -> None:
        self._order = order
        self._patience_s = patience_s
        journal = Path(order.wiring.journal)
        self._folder = journal.parent
        self._folder.mkdir(0o700, exist_ok=True)  # a worker that was given up has removed it
        self._outbox = Outbox(journal, lambda: self._obey(Turn(0)))
        self._said: deque[object] = deque()
        self._called = time.monotonic()
        self._over = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._player: Player | None = None

    async def play(self) -> None:
        """Until the client says that it is over, or does not call any more: nobody's load is not to go on."""
        self._player = Player(self._said.append)
        self._loop = asyncio.get_running_loop()  # from here on it has begun
        try:
            check_files(self._order.level.load.concurrency or 0, self._order.workers)
            self._player.obey(self._order)
        except UsageError as error:
            self._said.append(Failed(type(error).__name__, str(error)))
        try:
            while not self._over.is_set() and not self._forgotten:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._over.wait(), _WATCH_S)
        finally:
            forgotten = not self._over.is_set()
            await self._player.close()
            self._outbox.remove()
            if forgotten:  # then nobody says farewell
                farewell(str(self._folder))

    def attend(self, orders: list[object], offset: int, most: int) -> Reply | None:
        if self._forgotten:  # this process was stopped, and who calls has given it up meanwhile
            return None
        self._called = time.monotonic()
        for order in orders:
            self._obey(order)
        said = [self._said.popleft() for _ in range(len(self._said))]
        snapshots = [message for message in said if isinstance(message, Snapshot)]
        # Only the newest is of interest.
        said = [message for message in said if not isinstance(message, Snapshot) or message is snapshots[-1]]
        lines, more = self._outbox.take(offset, most)
        return Reply(time.perf_counter_ns(), said, zlib.compress(lines, _LEVEL), offset + len(lines), more)

    def _obey(self, order: object) -> None:
        assert self._player is not None
        self._soon(self._player.obey, order)

    def _soon(self, what: Callable[..., None], *arguments: object) -> None:
        assert self._loop is not None
        with contextlib.suppress(RuntimeError):  # it has just been closed: the level is over
            self._loop.call_soon_threadsafe(what, *arguments)

    @property
    def _forgotten(self) -> bool:
        return time.monotonic() - self._called > self._patience_s

    @property
    def begun(self) -> bool:
        return self._loop is not None

    def leave(self) -> None:
        if self._loop is not None:
            self._soon(self._over.set)


_sessions: dict[str, _Session] = {}


def play(token: str, order: Prepare, patience_s: float) -> None:
    """The task: play a level as it is told by calls with that ``token``; without a call for so long, end it."""
    ready_process()
    session = _sessions[token] = _Session(order, patience_s)
    try:
        play_loop(session.play())
    finally:
        del _sessions[token]


def attend(token: str, orders: list[object], offset: int, most: int) -> Reply | None:
    """Give orders to the task of that ``token``, and take what it has said and recorded; None: it has not begun.

    Of the journal about ``most`` bytes from ``offset`` on are taken, to the end of a line; those before it are dropped.
    """
    session = _sessions.get(token)
    return session.attend(orders, offset, most) if session is not None and session.begun else None


def leave(token: str) -> None:
    """End the task of that ``token``: its level is over, and all of it has been collected."""
    if (session := _sessions.get(token)) is not None:
        session.leave()


def welcome(dask_worker: Any) -> Facts:
    """Who this worker is, and a folder for the run's files; dask clears it away with its own, if we do not."""
    return Facts(socket.gethostname(), runs(), tempfile.mkdtemp(prefix="loadtest-", dir=dask_worker.local_directory))


def store(path: str, offset: int, part: bytes) -> None:
    """Write a part of a file that the run needs here."""
    Path(path).parent.mkdir(0o700, exist_ok=True)
    with Path(path).open("r+b" if offset else "wb") as file:
        file.seek(offset)
        file.write(part)


def farewell(folder: str) -> None:
    """Remove the run's folder."""
    shutil.rmtree(folder, ignore_errors=True)


def runs() -> dict[str, str]:
    """What has to be the same on both sides for the requests to be, by name; ``code`` tells states of one version."""
    import numpy as np  # noqa: PLC0415  # slow to load

    return {
        "loadtest": loadtest.__version__,
        "the code of loadtest": _code(),
        "python": ".".join(platform.python_version_tuple()[:2]),
        "numpy": np.__version__,
        "msgspec": msgspec.__version__,
    }


@functools.cache
def _code() -> str:
    folder = Path(loadtest.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:12]
