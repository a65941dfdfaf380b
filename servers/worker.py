"""A thread that runs a model for those who wait, batched by a policy that can be exchanged."""

import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

from servers.batching import Batching

Item = TypeVar("Item")


class Worker(ABC, Generic[Item]):
    """A queue and the thread that works it off. Its methods may be called from any thread."""

    def __init__(self, name: str, batching: Batching, clock: Callable[[], float]) -> None:
        self._batching = batching
        self._clock = clock
        self._changed = threading.Condition()
        # Shared between the threads, under the condition's lock.
        self._waiting: deque[Item] = deque()
        self._switches: deque[tuple[Batching, Future[Batching]]] = deque()
        self._stopping = False
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)

    @property
    def batching(self) -> Batching:
        """The setting in force."""
        return self._batching

    @property
    @abstractmethod
    def running(self) -> int:
        """How many have started and not finished."""

    @property
    def waiting(self) -> int:
        """How many have not started."""
        return len(self._waiting)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread after the run in progress."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        self._thread.join()

    @abstractmethod
    def abort(self) -> None:
        """Give up all that can still be given up, and tell those who wait for it."""

    def switch(self, batching: Batching) -> "Future[Batching]":
        """Exchange the policy once nothing runs; what arrives meanwhile waits. The future tells when it is done."""
        done: Future[Batching] = Future()
        with self._changed:
            self._switches.append((batching, done))
            self._changed.notify()
        return done

    @abstractmethod
    def _work(self) -> None:
        """What the thread does, until it shall stop."""

    def _switch_if_asked(self) -> None:
        """To be called while nothing runs, under the condition's lock."""
        while self._switches:
            self._batching, done = self._switches.popleft()
            # False if the one who asked has gone; the setting is changed all the same.
            if done.set_running_or_notify_cancel():
                done.set_result(self._batching)
