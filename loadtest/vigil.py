"""What is seen to while a level is played: it is shown, its journal kept, its figures saved, and stalls noticed."""

import contextlib
import ctypes
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from loadtest import abort
from loadtest.duration import duration_text, span
from loadtest.engine.orders import Snapshot, Turn
from loadtest.errors import LoadtestError
from loadtest.keeping import Keeper
from loadtest.progress import Progress
from loadtest.records import Record

CHECKPOINT_S = 60.0
_SHARE = 20  # writing down the figures so far takes at most one second in so many
_SILENT_S = 60.0
_JOIN_S = 0.1


class Checkpoints:
    """``figures`` of a level's requests so far, which ``keep`` writes down, time and again.

    Of a million requests they take seconds. So they are made in a thread: meanwhile the level is seen to as ever.
    """

    def __init__(self, figures: Callable[[Sequence[Record]], Any], keep: Callable[[Any], None]) -> None:
        self._figures = figures
        self._keep = keep
        self._next_s = time.monotonic() + CHECKPOINT_S
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None
        self._writing = threading.Lock()
        self._over = False

    def look(self, requests: Callable[[], Sequence[Record]]) -> None:
        """Begin to make the figures of ``requests``, which nobody else changes, if it is time.

        Raises:
            LoadtestError: those before could not be written down.
        """
        if self._error is not None:
            raise self._error
        if self._thread is None and time.monotonic() >= self._next_s and (found := requests()):
            self._thread = threading.Thread(target=self._make, args=[found], name="loadtest-figures", daemon=True)
            self._thread.start()

    def end(self, waits: Callable[[], bool]) -> None:
        """Write down no more. What is being made, which nobody needs now, is ended first as long as that ``waits``."""
        with self._writing:
            self._over = True
        while (thread := self._thread) is not None and waits():
            thread.join(_JOIN_S)

    def _make(self, requests: Sequence[Record]) -> None:
        began = time.monotonic()
        try:
            figures = self._figures(requests)
            with self._writing:
                if not self._over:
                    self._keep(figures)
        except Exception as error:  # noqa: BLE001  # ends the level from the thread that sees to it
            self._error = error
        _give_back()
        ended = time.monotonic()
        self._next_s = ended + max(CHECKPOINT_S, _SHARE * (ended - began))
        self._thread = None


def _give_back() -> None:
    """Give the system back what has been freed: else each minute's figures leave a process that is somewhat larger."""
    if sys.platform == "linux":
        with contextlib.suppress(AttributeError):  # of another C library than GNU's
            ctypes.CDLL(None).malloc_trim(0)


class Vigil:
    """Of one level. ``see`` is shown what the workers have counted, and ``news`` is what they are to be told.

    ``stall_s``: how long a target that owes answers may send nothing before that is remarked.
    """

    def __init__(
        self, keeper: Keeper, progress: Progress, abort_on: str | None, checkpoints: Checkpoints, *,
        stall_s: float,
    ) -> None:  # fmt: skip
        self.remarks: list[str] = []
        self.failure: LoadtestError | None = None
        """What kept the journal from being read or kept, or the figures from being written; it ends the level."""
        self._keeper = keeper
        self._progress = progress
        self._watch = abort.Watch(abort.parse(abort_on)) if abort_on else None
        self._checkpoints = checkpoints
        self._stall_s = max(stall_s, _SILENT_S)
        self._news: Turn | None = None
        self._silent = False

    def see(self, at_s: float, workers: Sequence[Snapshot]) -> str | None:
        """Take it in; the reason to end the level, if there is one."""
        self._progress.counts(workers)
        try:
            self._keep(workers)
        except LoadtestError as error:
            self.failure = error
            return str(error)
        ok, failed, in_flight = (sum(getattr(w, key) for w in workers) for key in ("ok", "failed", "in_flight"))
        silent_s = min((worker.silent_s for worker in workers if worker.in_flight), default=0.0)
        self._hear(at_s, silent_s, in_flight)
        return None if self._watch is None else self._watch.see(at_s, ok, failed, in_flight, silent_s)

    def _keep(self, workers: Sequence[Snapshot]) -> None:
        if self._keeper.look(min(worker.turned for worker in workers)):
            self._news = Turn(self._keeper.turned)
        self._checkpoints.look(self._keeper.so_far)

    def news(self) -> Turn | None:
        """What the workers are to be told, once."""
        told, self._news = self._news, None
        return told

    def _hear(self, at_s: float, silent_s: float, in_flight: int) -> None:
        """Remark, once each time, that the target has gone silent."""
        silent = silent_s >= self._stall_s
        if silent and not self._silent:
            rule = f"--abort-on 'silence > {duration_text(self._stall_s)}'"
            text = (
                f"the target went silent {span(at_s - silent_s)} after the level had begun: {in_flight:,} requests in "
                f"flight and no byte for {span(silent_s)}; {rule} would end the run"
            )
            self.remarks.append(text)
            self._progress.remark(text)
        self._silent = silent
