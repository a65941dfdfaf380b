"""Looks at something each second while a level is played, from a thread of its own.

The thread is in the process that waits for the workers, never in one of these: what it costs, and what a slow endpoint
takes, no request waits for. Stamps are ``perf_counter_ns``, as all readings are.
"""

import threading
from collections.abc import Callable, Mapping
from time import monotonic, perf_counter_ns, sleep

EVERY_S = 1.0
LOOK_S = 2.0
"""What a look may take."""
# Of a level of hours every second look is then forgotten, and the next ones are half as frequent.
_MOST = 7200

Seen = dict[str, Mapping[str, float]]
"""What a look found of each thing that there is to see, by its name."""


def remember(looks: list[tuple[int, Seen]], at_ns: int, seen: Seen) -> bool:
    """Add a look to those before; tells whether they became too many, and every second one was forgotten."""
    looks.append((at_ns, seen))
    if len(looks) <= _MOST:
        return False
    del looks[1:-1:2]
    return True


class Unseen(Exception):
    """A look found nothing; the message says why."""


class Watch:
    """Calls ``look`` from ``begin`` to ``end``, once at each of these and each second in between.

    ``keep`` is given each that found something, with its stamp.
    """

    def __init__(
        self, look: Callable[[], Seen], keep: Callable[[int, Seen], None], every_s: float = EVERY_S
    ) -> None:  # fmt: skip
        self._look = look
        self._keep = keep
        self._every_s = self._period_s = every_s
        self.looks: list[tuple[int, Seen]] = []
        self.missed = 0
        self.why: str | None = None
        self._first = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="loadtest-telemetry", daemon=True)

    def begin(self) -> None:
        """Take the first look, and go on looking."""
        self._thread.start()
        self._first.wait(2 * LOOK_S)

    def end(self) -> None:
        """Take the last look."""
        self._stop.set()
        self._thread.join(3 * LOOK_S)  # one that goes on, and the last one

    def again(self) -> None:
        """Take one more look, a while after the last."""
        if not self._thread.is_alive():
            sleep(self._every_s)
            self._once()

    def _run(self) -> None:
        due = monotonic()
        while True:
            self._once()
            self._first.set()
            due = max(due + self._period_s, monotonic())
            if self._stop.wait(due - monotonic()):
                if self.looks:  # one that never answered is not waited for once more
                    self._once()
                return

    def _once(self) -> None:
        asked = perf_counter_ns()
        try:
            seen = self._look()
        except Unseen as error:
            self.missed += 1
            self.why = self.why or str(error)
            return
        at = (asked + perf_counter_ns()) // 2  # what it says was so at some time in between
        self._keep(at, seen)
        if remember(self.looks, at, seen):
            self._period_s *= 2
