"""One line on stderr while a run goes on: rewritten in place at a terminal, a line every ten seconds elsewhere."""

import shutil
import time
from collections.abc import Sequence
from typing import Protocol, TextIO

from loadtest.level import Level

_AT_TERMINAL_S = 0.5
_ELSEWHERE_S = 10.0


class Counted(Protocol):
    """What a worker has counted so far in a level."""

    @property
    def in_flight(self) -> int: ...
    @property
    def ok(self) -> int: ...
    @property
    def failed(self) -> int: ...
    @property
    def output_tokens(self) -> int: ...


class Progress:
    """Shows how a run goes. ``quiet`` shows nothing."""

    def __init__(self, out: TextIO, *, quiet: bool) -> None:
        self._out = out
        self._quiet = quiet
        self._terminal = out.isatty()
        self._period_s = _AT_TERMINAL_S if self._terminal else _ELSEWHERE_S
        self._what = ""
        self._duration_s: float | None = None
        self._requests: int | None = None
        self._began = self._shown = self._last_line = time.monotonic()

    def note(self, text: str) -> None:
        """Say something that is no level: what is being waited for."""
        if self._terminal:
            self._show(text)

    def level(self, level: Level, count: int) -> None:
        """A level begins."""
        self._what = f"level {level.index + 1}/{count} {level.name}"
        self._duration_s, self._requests = level.duration_s, level.requests
        self._began = self._shown = time.monotonic()

    def counts(self, workers: Sequence[Counted]) -> None:
        """What the workers have counted; shown when it is time."""
        now = time.monotonic()
        if now - (self._shown if self._terminal else self._last_line) < self._period_s or self._quiet:
            return
        self._shown = self._last_line = now
        elapsed = now - self._began
        ok = sum(worker.ok for worker in workers)
        failed = sum(worker.failed for worker in workers)
        tokens = sum(worker.output_tokens for worker in workers)
        if self._duration_s is not None:
            clock = f"{min(elapsed, self._duration_s):.0f}/{self._duration_s:g} s"
            if elapsed > self._duration_s:
                clock += " draining"
        else:
            clock = f"{elapsed:.0f} s, {ok + failed}/{self._requests}"
        parts = [
            self._what,
            clock,
            f"{sum(worker.in_flight for worker in workers)} in flight",
            f"{ok} ok",
            *([f"{failed} failed"] if failed else []),
            f"{ok / elapsed:.1f} req/s",
            *([f"{tokens / elapsed:.0f} tok/s"] if tokens else []),
        ]
        self._show(" · ".join(parts))

    def close(self) -> None:
        """Leave a clean line for what comes next."""
        if self._terminal and not self._quiet:
            self._out.write("\r\x1b[K")
            self._out.flush()

    def _show(self, text: str) -> None:
        if self._quiet:
            return
        if self._terminal:
            self._out.write(f"\r\x1b[K{text[: shutil.get_terminal_size().columns - 1]}")
        else:
            self._out.write(text + "\n")
        self._out.flush()
