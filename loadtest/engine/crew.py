"""The workers of a run, wherever they are: they prepare each level, begin it together, and are heard to its end."""

import abc
import contextlib
import signal
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Self, TypeVar

import msgspec

import loadtest.errors
from loadtest.engine.orders import Done, Failed, Prepare, Ready, Renew, Snapshot, Start, Stop, Turn, Wiring
from loadtest.errors import LoadtestError, WorkerLost
from loadtest.level import Level, LevelEnd, LevelRun, WorkerHealth

_LISTEN_S = 0.1
_INTERRUPT_GRACE_S = 3.0
# A worker that plays says something four times a second. One that has been silent for so long hangs, and is ended and
# counted as lost, so that it cannot hold up the run; sooner once the user has asked twice to stop.
_SILENT_S = 30.0
_SILENT_WHEN_STOPPED_S = 5.0
# Of a worker that is gone, or has played all: it writes to no file of the journal, and nothing is owed to it.
_OVER = {"in_flight": 0, "turned": sys.maxsize}

T = TypeVar("T")
# Shown what the workers have counted, by the second of the level; a reason it returns ends the level.
Seen = Callable[[float, Sequence[Snapshot]], str | None]
# What the workers are to be told besides, as far as they have not been: a new token, a new file of the journal.
Renewed = Callable[[], str | Turn | None]
# Told the common t0 (perf_counter_ns), as soon as the workers are.
Begun = Callable[[int], None]


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


@contextlib.contextmanager
def asked_to_stop() -> Iterator[Interrupts]:
    """Ctrl-C and SIGTERM ask what goes on to stop, once to drain, twice at once; restored afterwards."""
    interrupts = Interrupts()

    def ask(_signal: int, _frame: object) -> None:
        interrupts.ask()

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield interrupts
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Crew(abc.ABC):
    """``size`` workers, numbered from 0. A context manager: leaving it ends them."""

    size: int
    # The common t0 lies so far ahead that every worker has heard of it by then.
    start_ahead_s = 0.02

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @abc.abstractmethod
    def close(self) -> None:
        """End the workers."""

    @abc.abstractmethod
    def see_reach(self, wiring: Wiring) -> None:
        """See, before anything is sent, that the workers have what a run needs.

        Raises:
            UsageError: they have not.
        """

    @abc.abstractmethod
    def _say(self, number: int, order: object) -> None:
        """Give an order. To a worker that is gone it is no error: that is heard."""

    @abc.abstractmethod
    def _hear(self, numbers: Collection[int], timeout_s: float) -> Iterable[tuple[int, object]]:
        """What was said in the meantime, with who said it; None is said of a worker that is gone."""

    @abc.abstractmethod
    def _end(self, number: int) -> None:
        """End a worker that hangs: it is heard to be gone."""

    @abc.abstractmethod
    def _lost(self, numbers: Sequence[int]) -> str:
        """A sentence on workers that are gone: which, and why if that is known."""

    def _t0(self, number: int, t0_ns: int) -> int:
        """An instant of this process's ``perf_counter_ns`` by that of a worker."""
        del number
        return t0_ns

    def _seen_from_here(self, number: int, health: WorkerHealth) -> WorkerHealth:
        """A worker's own readings, with what only this side knows."""
        del number
        return health

    def play(
        self, level: Level, wiring: Wiring, interrupts: Interrupts, seen: Seen, renewed: Renewed | None = None,
        begun: Begun | None = None,
    ) -> LevelRun:  # fmt: skip
        """Play one level on all workers, from a common instant to the last record.

        Raises:
            LoadtestError: a worker could not go on (the target was out of reach, the journal not writable), or was lost
                before the level began. The others have ended the level as well: nothing is written to the journal any
                more.
        """
        # Fewer slots (or a lower cap, or ceiling) than workers cannot be shared among all of them: the others sit the
        # level out. Given a share of the requests and none of the slots, one would never end.
        rate = self.size if wiring.max_rate_per_s is None else max(1, int(wiring.max_rate_per_s))
        count = min(self.size, level.load.concurrency or self.size, wiring.max_in_flight or self.size, rate)
        heard: list[list[object]] = [[] for _ in range(count)]
        for number in range(count):
            self._say(number, Prepare(wiring, level, number, count))
        self._listen(heard, lambda said: _last(said, Ready) is not None, interrupts)
        if missing := [number for number, said in enumerate(heard) if _last(said, Ready) is None]:
            raise WorkerLost(f"{self._lost(missing)} before the level began, and nothing of it was sent")
        t0 = time.perf_counter_ns() + round(self.start_ahead_s * 1e9)
        began = datetime.now(UTC) + timedelta(seconds=self.start_ahead_s)
        for number in range(count):
            self._say(number, Start(self._t0(number, t0)))
        if begun is not None:
            begun(t0)
        aborted = self._listen(
            heard, lambda said: _last(said, Done) is not None, interrupts, seen, renewed, playing=True
        )

        done = {number: message for number, said in enumerate(heard) if (message := _last(said, Done)) is not None}
        unusable = next((message.unusable for message in done.values() if message.unusable), None)
        end: LevelEnd = "completed"
        reason = None
        if len(done) < count:
            lost = [number for number in range(count) if number not in done]
            end, reason = "worker_lost", f"{self._lost(lost)} during the level"
        elif interrupts.count:
            end = "interrupted"
        elif aborted is not None:
            end, reason = "aborted", aborted
        elif unusable is not None:
            end, reason = "unusable", unusable
        return LevelRun(
            level=level.index,
            end=end,
            sending_ended_ms=max((message.sending_ended_ms for message in done.values()), default=0.0),
            ended_ms=max((message.ended_ms for message in done.values()), default=0.0),
            workers=[self._seen_from_here(number, message.health) for number, message in done.items()],
            scheduled=sum(message.scheduled for message in done.values()) if len(done) == count else None,
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
        there = set(range(len(heard)))
        last_heard = dict.fromkeys(there, 0.0)
        turn = began
        listened_s = 0.0  # leaves out the time that this process was itself stopped (Ctrl-Z), and its workers with it
        while waiting := [number for number in there if not enough(heard[number])]:
            for number, message in self._hear(waiting, _LISTEN_S):
                if message is None:
                    there.discard(number)
                    continue
                last_heard[number] = listened_s
                if isinstance(message, Failed):
                    failure = getattr(loadtest.errors, message.kind, LoadtestError)(message.message)
                    if not playing:
                        raise failure
                    there.discard(number)
                    self._tell(there, Stop(0.0))
                    continue
                said = heard[number]
                if said and isinstance(message, Snapshot) and isinstance(said[-1], Snapshot):
                    said.pop()  # only the newest is of interest
                said.append(message)
            counted = [
                snapshot if number in there and not enough(said) else msgspec.structs.replace(snapshot, **_OVER)
                for number, said in enumerate(heard)
                if (snapshot := _last(said, Snapshot)) is not None
            ]
            if seen is not None and counted and aborted is None:
                aborted = seen(time.monotonic() - began, counted)
                if aborted:
                    self._tell(there, Stop(0.0))
            if renewed is not None and (news := renewed()) is not None:
                self._tell(there, Renew(news) if isinstance(news, str) else news)
            if playing and interrupts.count > obeyed:
                obeyed = interrupts.count
                self._tell(there, Stop(_INTERRUPT_GRACE_S if obeyed == 1 else 0.0))
            elif interrupts.count and not playing:
                raise KeyboardInterrupt
            last_turn, turn = turn, time.monotonic()
            listened_s += min(turn - last_turn, 1.0)
            longest_s = _SILENT_S if obeyed < 2 else _SILENT_WHEN_STOPPED_S
            for number in there if playing else ():
                if listened_s - last_heard[number] > longest_s and not enough(heard[number]):
                    self._end(number)
        if failure is not None:
            raise failure
        return aborted

    def _tell(self, numbers: Iterable[int], order: object) -> None:
        for number in numbers:
            self._say(number, order)


def _last(said: list[object], kind: type[T]) -> T | None:
    return next((message for message in reversed(said) if isinstance(message, kind)), None)
