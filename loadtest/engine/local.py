"""Worker processes on this host: started once, given each level in turn, ended with the run."""

import contextlib
import math
import multiprocessing
import sys
from collections.abc import Collection, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from loadtest.engine import worker
from loadtest.engine.crew import Crew
from loadtest.engine.orders import Wiring
from loadtest.errors import UsageError
from loadtest.host import usable_cores
from loadtest.level import Level

_STREAMS_A_WORKER = 1000
_TOKENS_A_WORKER = 50_000  # a second, in an open loop; as many as a thousand streams of 20 ms a token
_FILES_APART = 64  # what a worker has open besides its connections


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
    check_files(most, workers)


def check_files(connections: int, workers: int) -> None:
    """See that a process of this host may open its part of so many connections.

    Raises:
        UsageError: it may not.
    """
    if sys.platform != "win32":
        import resource  # noqa: PLC0415  # not on Windows

        files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        if files != resource.RLIM_INFINITY and -(-connections // workers) + _FILES_APART > files:
            raise UsageError(
                f"--concurrency {connections} asks for more connections a worker than it may have open files "
                f"({files}); raise ulimit -Hn, or use more --workers"
            )


class LocalEngine(Crew):
    """Processes of this host."""

    def __init__(self, workers: int) -> None:
        self.size = workers
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

    def close(self) -> None:
        """End the processes."""
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join(2.0)
            if process.is_alive():
                process.kill()
                process.join()

    def see_reach(self, wiring: Wiring) -> None:
        """They have all that this host has."""

    def _say(self, number: int, order: object) -> None:
        with contextlib.suppress(OSError):  # one that is gone is heard to be
            self._pipes[number].send(order)

    def _hear(self, numbers: Collection[int], timeout_s: float) -> Iterator[tuple[int, object]]:
        by_pipe = {self._pipes[number]: number for number in numbers}
        for pipe in wait(list(by_pipe), timeout_s):
            assert isinstance(pipe, Connection)
            try:
                message = pipe.recv()
            except (EOFError, OSError):
                message = None
            yield by_pipe[pipe], message

    def _end(self, number: int) -> None:
        self._processes[number].kill()  # its pipe ends with it

    def _lost(self, numbers: Sequence[int]) -> str:
        return f"generator process {', '.join(map(str, numbers))} ended"
