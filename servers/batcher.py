"""Batching for models without a cache: each request is one run, and those that wait together run together.

The policies are those of generation (``servers.batching``) where nothing joins a run that has begun: ``continuous``
takes whoever waits as soon as the run before has ended, ``dynamic`` and ``static`` wait for company.
"""

import time
from collections import deque
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Protocol

from numpy.typing import NDArray

from servers.batching import Batching
from servers.worker import Worker

Tensors = dict[str, NDArray[Any]]


class Runner(Protocol):
    """What the batcher needs of a model (``servers.plain.TensorModel``)."""

    def key(self, feeds: Tensors) -> Hashable:
        """Feeds with the same key can run together; None: only alone."""

    def run(self, feeds: list[Tensors]) -> list[Tensors]:
        """One run; the results in the same order."""


class Aborted(Exception):
    """The server ended before this job ran."""


@dataclass(eq=False, slots=True)
class Job:
    """One row to be run; ``done`` gets its result. Cancelling ``done`` takes it out of the queue."""

    feeds: Tensors
    submitted_s: float = 0.0
    done: "Future[Tensors]" = field(default_factory=Future)


class Batcher(Worker[Job]):
    """Runs jobs on a model in a thread of its own. ``ran`` is told of each run: its phase, rows and seconds."""

    def __init__(
        self,
        model: Runner,
        batching: Batching,
        ran: Callable[[Any, int, float], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__("batcher", batching, clock)
        self._model = model
        self._ran = ran
        self._running = 0

    @property
    def running(self) -> int:
        return self._running

    def submit(self, feeds: Tensors) -> Job:
        """Queue a job."""
        job = Job(feeds, self._clock())
        with self._changed:
            self._waiting.append(job)
            self._changed.notify()
        return job

    def abort(self) -> None:
        """Give up every job that has not started; its ``done`` raises ``Aborted``."""
        with self._changed:
            jobs, self._waiting = self._waiting, deque()
        for job in jobs:
            if job.done.set_running_or_notify_cancel():
                job.done.set_exception(Aborted())

    def _work(self) -> None:
        while jobs := self._take():
            # Stable, so that those who came first run first within a batch of several kinds.
            keyed = [(self._model.key(job.feeds), job) for job in jobs]
            kinds = list(dict.fromkeys(key for key, _ in keyed))
            for kind in kinds:
                alike = [job for key, job in keyed if key == kind]
                for group in [[job] for job in alike] if kind is None else [alike]:
                    self._run_together(group)
            self._running = 0

    def _take(self) -> list[Job]:
        """The jobs of the next run; none when the batcher shall stop."""
        with self._changed:
            while not self._stopping:
                self._switch_if_asked()
                self._waiting = deque(job for job in self._waiting if not job.done.cancelled())
                oldest_s = self._clock() - self._waiting[0].submitted_s if self._waiting else 0.0
                admission = self._batching.admit(len(self._waiting), oldest_s, 0)
                taken = [self._waiting.popleft() for _ in range(admission.count)]
                if jobs := [job for job in taken if job.done.set_running_or_notify_cancel()]:
                    self._running = len(jobs)
                    return jobs
                if not taken:
                    self._changed.wait(admission.retry_after_s)
            return []

    def _run_together(self, jobs: list[Job]) -> None:
        begun = self._clock()
        try:
            results = self._model.run([job.feeds for job in jobs])
        except Exception as error:  # noqa: BLE001  (whatever the runtime raises, no client may be left waiting)
            if len(jobs) == 1:
                jobs[0].done.set_exception(error)
                return
            for job in jobs:  # one bad row must not spoil the others
                self._run_together([job])
            return
        self._ran("infer", len(jobs), self._clock() - begun)
        for job, result in zip(jobs, results, strict=True):
            job.done.set_result(result)
