"""A Dask cluster of real processes on this host, which a test may stop, kill and cut off by their ids."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any


class Cluster:
    """A scheduler, and workers that are started as they are needed."""

    def __init__(self, folder: Path, host: str = "127.0.0.1") -> None:
        self._folder = folder
        self._host = host
        self._running: list[subprocess.Popen[bytes]] = []
        self._file = folder / "scheduler.json"
        self.scheduler = self._started(
            "scheduler", "--port", "0", "--no-dashboard", "--host", host, "--scheduler-file", str(self._file)
        )
        self.address = str(self._until_written()["address"])
        self.workers: list[subprocess.Popen[bytes]] = []

    def add(self, count: int, before: Sequence[str] = (), host: str | None = None, **environment: str) -> None:
        """Start workers, each by a command that may stand behind another."""
        for _ in range(count):
            self.workers.append(
                self._started(
                    "worker",
                    self.address,
                    "--no-nanny",
                    "--nthreads",
                    "1",
                    "--no-dashboard",
                    "--host",
                    host or self._host,
                    "--local-directory",
                    str(self._folder),
                    before=before,
                    **environment,
                )
            )

    def by_address(self, address: str) -> int:
        """The id of the process that listens there."""
        port = int(address.rpartition(":")[2])
        return next(worker.pid for worker in self.workers if port in _ports(worker.pid))

    def close(self) -> None:
        for process in (*self.workers, self.scheduler):
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
        for process in self._running:
            process.wait()

    def _started(self, kind: str, *options: str, before: Sequence[str] = (), **environment: str) -> Any:
        command = [*before, sys.executable, "-m", "dask", kind, *options]
        with (self._folder / "dask.log").open("ab") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, **environment})
        self._running.append(process)
        return process

    def _until_written(self) -> Any:
        until = time.monotonic() + 30
        while time.monotonic() < until:
            with contextlib.suppress(FileNotFoundError, json.JSONDecodeError):
                return json.loads(self._file.read_text("utf-8"))
            time.sleep(0.05)
        raise AssertionError((self._folder / "dask.log").read_text("utf-8"))


@contextlib.contextmanager
def clustered(folder: Path, workers: int, host: str = "127.0.0.1") -> Iterator[Cluster]:
    """A cluster of so many workers, as long as it is needed."""
    cluster = Cluster(folder, host)
    try:
        cluster.add(workers)
        yield cluster
    finally:
        cluster.close()


@contextlib.contextmanager
def answering() -> Iterator[str]:
    """The URL of a server in a process of its own that answers each request within some 20 ms."""
    command = [sys.executable, "-m", "servers.fake", "--port", "0", "--ttft-ms", "5", "--itl-ms", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        found = re.search(r"http://\S+", process.stdout.readline())
        assert found
        yield found[0]
        process.terminate()


def _ports(pid: int) -> set[int]:
    """The TCP ports that a process listens on."""
    sockets = set()
    for name in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            sockets.add(os.readlink(name))
    found = set()
    for line in Path(f"/proc/{pid}/net/tcp").read_text("ascii").splitlines()[1:]:
        parts = line.split()
        if parts[3] == "0A" and f"socket:[{parts[9]}]" in sockets:
            found.add(int(parts[1].rpartition(":")[2], 16))
    return found
