"""Worker processes on this host: started once, given each level in turn, ended with the run."""

import contextlib
import math
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Self, TypeVar

import loadtest.errors
from loadtest.engine import worker
from loadtest.engine.orders import Done, Failed, Prepare, Ready, Renew, Snapshot, Start, Stop, Wiring
from loadtest.errors import LoadtestError, UsageError
from loadtest.host import usable_cores
from loadtest.level import Level, LevelEnd, LevelRun

_STREAMS_A_WORKER = 1000
_TOKENS_A_WORKER = 50_000  # a second, in an open loop; as many as a thousand streams of 20 ms a token
_START_AHEAD_S = 0.02  # the common t0 lies this far ahead, so that every worker has heard of it
_LISTEN_S = 0.1
_FILES_APART = 64  # what a worker has open besides its connections
_INTERRUPT_GRACE_S = 3.0
# A worker that plays says something four times a second. One that has been silent for so long hangs, and is ended and
# counted as lost, so that it cannot hold up the run; sooner once the user has asked twice to stop.
_SILENT_S = 30.0
_SILENT_WHEN_STOPPED_S = 5.0

T = TypeVar("T")
# Shown what the workers have counted, by the second of the level; a reason it returns ends the level.
Seen = Callable[[float, Sequence[Snapshot]], str | None]
# The token to send from now on, as far as the workers do not have it yet.
Renewed = Callable[[], str | None]


class Interrupts:
    """How often the user has asked to stop: once is "send no more", twice is "now"."""

    def __init__(self) -> None:
        self.count = 0
        self._at_once = False

    def ask(self) -> None:
        """The user asks once more."""
        self.count += 1
        if self._at_once:
            raise KeyboardInterrupt

    @contextlib.contextmanager
    def at_once(self) -> Iterator[None]:
        """While nothing is measured that could be lost, the first one ends what goes on."""
        self._at_once = True
        try:
            yield
        finally:
            self._at_once = False


def workers_for(levels: Sequence[Level]) -> int:
    """How many workers a run takes by default: what its heaviest level needs, and cores − 1 at most.

    One is enough up to about a thousand streams, or in an open loop as many tokens a second as these would bring.
    """
    needed = max(map(_needed, levels), default=1)
    return max(1, min(usable_cores() - 1, needed))


def _needed(level: Level) -> int:
    streams = (level.load.concurrency or 0) / _STREAMS_A_WORKER
    tokens = (level.load.peak_per_s or 0) * level.mean_output_tokens / _TOKENS_A_WORKER
    return math.ceil(max(streams, tokens))


def check_budget(levels: Sequence[Level], workers: int) -> None:
    """See that this host can hold the connections that closed loops ask for, before anything is sent.

    Raises:
        UsageError: it has not the ports to one address, or a worker not the file descriptors.
    """
    most = max((level.load.concurrency or 0 for level in levels), default=0)
    with contextlib.suppress(OSError):  # only Linux has the file; elsewhere a lack of ports shows during the level
        low, high = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text("ascii").split())
        if most > high - low + 1:
            raise UsageError(
                f"--concurrency {most} asks for more connections to one address than this host has ports "
                f"({high - low + 1}); lower it, or widen net.ipv4.ip_local_port_range"
            )
    if sys.platform != "win32":
        import resource  # noqa: PLC0415  # not on Windows

        files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        if files != resource.RLIM_INFINITY and -(-most // workers) + _FILES_APART > files:
            raise UsageError(
                f"--concurrency {most} asks for more connections a worker than it may have open files ({files}); "
                "raise ulimit -Hn, or use more --workers"
            )


class LocalEngine:
    """The workers of a run. A context manager: leaving it ends them."""

    def __init__(self, workers: int) -> None:
        # Forked before any thread or event loop exists here: the modules are loaded already, so it costs nothing.
        context: Any = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
        self._pipes: list[Connection] = []
        self._processes: list[BaseProcess] = []
        for number in range(workers):
            ours, theirs = context.Pipe()
            inherited = [*self._pipes, ours] if sys.platform == "linux" else []
            process = context.Process(
                target=worker.main, args=(theirs, inherited), name=f"loadtest-worker-{number}", daemon=True
            )  # fmt: skip
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join(2.0)
            if process.is_alive():
                process.kill()
                process.join()

    def play(
        self, level: Level, wiring: Wiring, interrupts: Interrupts, seen: Seen, renewed: Renewed | None = None
    ) -> LevelRun:
        """Play one level on all workers, from a common instant to the last record.

        Raises:
            LoadtestError: a worker could not go on (the target was out of reach, the journal not writable). The others
                have ended the level as well: nothing is written to the journal any more.
        """
        # Fewer slots (or a lower cap, or ceiling) than workers cannot be shared among all of them: the others sit the
        # level out. Given a share of the requests and none of the slots, one would never end.
        every = len(self._pipes)
        rate = every if wiring.max_rate_per_s is None else max(1, int(wiring.max_rate_per_s))
        count = min(every, level.load.concurrency or every, wiring.max_in_flight or every, rate)
        heard: list[list[object]] = [[] for _ in range(count)]
        for number in range(count):
            self._say(number, Prepare(wiring, level, number, count))
        self._listen(heard, lambda said: _last(said, Ready) is not None, interrupts)
        t0 = time.perf_counter_ns() + round(_START_AHEAD_S * 1e9)
        began = datetime.now(UTC) + timedelta(seconds=_START_AHEAD_S)
        for number in range(count):
            self._say(number, Start(t0))
        aborted = self._listen(
            heard, lambda said: _last(said, Done) is not None, interrupts, seen, renewed, playing=True
        )

        done = [message for said in heard if (message := _last(said, Done)) is not None]
        unusable = next((message.unusable for message in done if message.unusable), None)
        end: LevelEnd = "completed"
        reason = None
        if len(done) < count:
            lost = [number for number, said in enumerate(heard) if _last(said, Done) is None]
            end, reason = "worker_lost", f"generator process {', '.join(map(str, lost))} ended during the level"
        elif interrupts.count:
            end = "interrupted"
        elif aborted is not None:
            end, reason = "aborted", aborted
        elif unusable is not None:
            end, reason = "unusable", unusable
        return LevelRun(
            level=level.index,
            end=end,
            sending_ended_ms=max((message.sending_ended_ms for message in done), default=0.0),
            ended_ms=max((message.ended_ms for message in done), default=0.0),
            workers=[message.health for message in done],
            scheduled=sum(message.scheduled for message in done) if len(done) == count else None,
            reason=reason,
            began_at=began.isoformat(timespec="microseconds").replace("+00:00", "Z"),
        )

    def _listen(
        self, heard: list[list[object]], enough: Callable[[list[object]], bool], interrupts: Interrupts,
        seen: Seen | None = None, renewed: Renewed | None = None, *, playing: bool = False,
    ) -> str | None:  # fmt: skip
        """Take in what the workers say until each has said enough or is gone; the reason if it was aborted.

        Raises:
            LoadtestError: one of them failed, and while ``playing`` the others have stopped as well.
        """
        obeyed = 0
        failure: LoadtestError | None = None
        aborted = None
        began = time.monotonic()
        open_pipes = {pipe: number for number, pipe in enumerate(self._pipes[: len(heard)])}
        last_heard = dict.fromkeys(open_pipes, 0.0)
        turn = began
        listened_s = 0.0  # leaves out the time that this process was itself stopped (Ctrl-Z), and its workers with it
        while waiting := [pipe for pipe, number in open_pipes.items() if not enough(heard[number])]:
            for pipe in wait(waiting, _LISTEN_S):
                assert isinstance(pipe, Connection)
                try:
                    message = pipe.recv()
                except (EOFError, OSError):
                    del open_pipes[pipe]
                    continue
                last_heard[pipe] = listened_s
                if isinstance(message, Failed):
                    failure = getattr(loadtest.errors, message.kind, LoadtestError)(message.message)
                    if not playing:
                        raise failure
                    del open_pipes[pipe]
                    for number in open_pipes.values():
                        self._say(number, Stop(0.0))
                    continue
                said = heard[open_pipes[pipe]]
                if said and isinstance(message, Snapshot) and isinstance(said[-1], Snapshot):
                    said.pop()  # only the newest is of interest
                said.append(message)
            counted = [snapshot for said in heard if (snapshot := _last(said, Snapshot)) is not None]
            if seen is not None and counted and aborted is None:
                aborted = seen(time.monotonic() - began, counted)
                for number in open_pipes.values() if aborted else ():
                    self._say(number, Stop(0.0))
            if renewed is not None and (bearer := renewed()) is not None:
                for number in open_pipes.values():
                    self._say(number, Renew(bearer))
            if playing and interrupts.count > obeyed:
                obeyed = interrupts.count
                for number in open_pipes.values():
                    self._say(number, Stop(_INTERRUPT_GRACE_S if obeyed == 1 else 0.0))
            elif interrupts.count and not playing:
                raise KeyboardInterrupt
            last_turn, turn = turn, time.monotonic()
            listened_s += min(turn - last_turn, 1.0)
            longest_s = _SILENT_S if obeyed < 2 else _SILENT_WHEN_STOPPED_S
            for pipe, number in open_pipes.items() if playing else ():
                if listened_s - last_heard[pipe] > longest_s and not enough(heard[number]):
                    self._processes[number].kill()  # its pipe ends with it
        if failure is not None:
            raise failure
        return aborted

    def _say(self, number: int, order: object) -> None:
        with contextlib.suppress(OSError):  # a worker that is gone: _listen sees that it says nothing
            self._pipes[number].send(order)


def _last(said: list[object], kind: type[T]) -> T | None:
    return next((message for message in reversed(said) if isinstance(message, kind)), None)
