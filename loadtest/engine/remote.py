"""One worker of a cluster as it is reached from here: called through the scheduler, in the loop of dask's client.

A call that is not answered in time tells that the worker is lost.
"""

import asyncio
import concurrent.futures
import contextlib
import queue
import re
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic, perf_counter_ns
from typing import Any

import msgspec

from loadtest.engine import cluster_worker
from loadtest.engine.clocks import Offset, Trip, offset
from loadtest.engine.cluster_worker import Facts, Reply
from loadtest.engine.journal import Journal
from loadtest.engine.orders import Done, Failed, Prepare, Ready
from loadtest.errors import LoadtestError, ResultError, WorkerLost
from loadtest.workload.corpus import UNICODE
from loadtest.workload.model import Workload

BEGIN_S = 30.0  # in which a worker that has nothing else to do has begun a task
LEAVE_S = 2.0
_DOUBT_S = 1.0  # without an answer, until the scheduler is asked whether the worker is still there
_NOTICED_S = 0.25  # until dask's client knows that its scheduler has gone, which a call may have met before
TRIPS = 24  # round trips by which a clock is known: before each level, and the last ones of it
_NO_SCHEDULER = "did not answer any more: the scheduler has gone"
_PART = 4 << 20  # bytes of a journal or a file in one call
_NOISE = re.compile(
    r"^.*>: (?:\w+: )?|\[Errno \d+\] "
)  # of dask's errors: the connection, and the kind within the kind
# How a worker or the scheduler turns out to be gone; a call that dask itself gives up is cancelled.
GONE = (OSError, TimeoutError, asyncio.CancelledError, concurrent.futures.CancelledError)


class _Ended(OSError):
    """The worker, or its level, is known to be no more; the words say so of it."""


async def call(client: Any, address: str, timeout_s: float, function: Callable[..., Any], *arguments: Any) -> Any:
    """What a function of the worker's room returns on the worker at ``address``; what it raises there is raised here.

    Raises:
        TimeoutError: it did not answer.
        OSError: it cannot be reached.
    """
    return (await asyncio.wait_for(client.run(function, *arguments, workers=[address]), timeout_s))[address]


class Roll:
    """Who is in the cluster: asked of its scheduler once in a while, however many want to know."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._called = 0.0
        self._answer: asyncio.Future[dict[str, int]] | None = None

    async def has(self, address: str) -> bool:
        """Whether a worker is there, by what the scheduler said lately.

        Raises:
            OSError: the scheduler cannot be reached.
        """
        if self._answer is None or (self._answer.done() and monotonic() - self._called > _DOUBT_S):
            self._called = monotonic()
            self._answer = asyncio.ensure_future(self._client.scheduler.ncores())
        return address in await asyncio.shield(self._answer)


class Remote:
    """A worker, and what is known of it. ``why`` says what became of one that is lost."""

    def __init__(self, client: Any, roll: Roll, number: int, address: str, facts: Facts, silent_s: float) -> None:
        self.number = number
        self.address = address
        self.facts = facts
        self.clock = self.clock_after = Offset(0, 0)
        self.why = ""
        self._client = client
        self._roll = roll
        self._silent_s = silent_s
        self._trips: deque[Trip] = deque(maxlen=TRIPS)
        self._files: dict[str, str] = {}  # there, by their paths here
        self._orders: list[object] = []
        self._wake = asyncio.Event()
        self._said: deque[object] = deque()
        self._journal_at = 0
        self._leaving: asyncio.Future[None] | None = None

    def __str__(self) -> str:
        return f"worker {self.number} on {self.facts.host} ({self.address})"

    @property
    def slowest_s(self) -> float:
        """The longest round trip lately."""
        return max((trip.answered - trip.asked for trip in tuple(self._trips)), default=0) / 1e9

    def order(self, order: object) -> None:
        """Say it with the next call, which is made at once. Only in the client's loop."""
        self._orders.append(order)
        self._wake.set()

    async def attend(
        self, order: Prepare, token: str, journal: Journal, heard: "queue.SimpleQueue[tuple[int, object]]",
        period_s: float, measuring: asyncio.Semaphore,
    ) -> None:  # fmt: skip
        """Have it play a level, and pass on what it says, with its records, until that was all or it is lost.

        None is the last that is heard of it. Its clock is known when it says that it is ready, and again, by the last
        calls, when it is done.
        """
        self._orders, self.why, self._journal_at = [], "", 0
        self._trips.clear()
        self._said.clear()
        task = None
        try:
            order = await self._placed(order, token)
            # Pinned, and never tried again: what was sent once is not to be sent twice.
            task = self._client.submit(
                cluster_worker.play, token, order, self._silent_s + period_s, key=f"loadtest-{token}",
                workers=[self.address], allow_other_workers=False, pure=False, retries=0,
            )  # fmt: skip
            await self._begun(task, token, journal)
            await self._followed(token, journal, heard, period_s, measuring)
        except LoadtestError as error:
            heard.put((self.number, Failed(type(error).__name__, str(error))))
        except GONE as error:
            ours = asyncio.current_task()
            assert ours is not None
            if not ours.cancelling():  # that is the level given up, and no loss
                self.why = await self._lost(error)
                self._files.clear()  # a worker that nobody calls removes them
        except Exception as error:  # noqa: BLE001  # whatever it raised over there
            words = f"{self} failed, which is a bug in loadtest: {error!r}"
            heard.put((self.number, Failed("LoadtestError", words)))
        finally:
            if task is not None and not self.why:
                self._leaving = asyncio.ensure_future(self._leave(token))
                await asyncio.shield(self._leaving)  # also of a level that is given up meanwhile
            heard.put((self.number, None))

    async def _leave(self, token: str) -> None:
        with contextlib.suppress(*GONE):  # then it sees by itself that nobody calls
            await call(self._client, self.address, LEAVE_S, cluster_worker.leave, token)

    async def _begun(self, task: Any, token: str, journal: Journal) -> None:
        """Until the task is there.

        Raises:
            WorkerLost: it does not come.
            LoadtestError: it came, and ended with an error.
        """
        until = monotonic() + BEGIN_S
        while await self._asked(token, journal) is None:
            if task.status == "error":
                raise LoadtestError(f"{self} cannot play: {await task.exception()!r}")
            if monotonic() > until:
                raise WorkerLost(
                    f"{self} did not begin within {BEGIN_S:g} s: it is busy with another task; give loadtest workers "
                    "of its own"
                )
            await asyncio.sleep(0.02)

    async def _followed(
        self, token: str, journal: Journal, heard: "queue.SimpleQueue[tuple[int, object]]", period_s: float,
        measuring: asyncio.Semaphore,
    ) -> None:  # fmt: skip
        last: object = None
        while True:
            more = await self._told(token, journal)
            while self._said:
                message = self._said.popleft()
                if isinstance(message, Ready):
                    while measuring.locked():  # called all the same, lest it takes us for gone
                        await self._told(token, journal)
                        await asyncio.sleep(period_s)
                    async with measuring:
                        self._trips.clear()
                        while len(self._trips) < TRIPS:
                            await self._told(token, journal)
                    self.clock = offset(self._trips)
                if isinstance(message, Failed):
                    disk = " (that is its --local-directory)" if message.kind == ResultError.__name__ else ""
                    last = Failed(message.kind, f"{self}: {message.message}{disk}")
                elif isinstance(message, Done):
                    last = message
                else:
                    heard.put((self.number, message))
            if last is not None and not more:
                self.clock_after = offset(self._trips)
                heard.put((self.number, last))  # after its last record
                return
            if not more:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._wake.wait(), period_s)

    async def _told(self, token: str, journal: Journal) -> bool:
        """One call to a level that has begun; whether there is more to fetch.

        Raises:
            ResultError: the records cannot be written here.
            OSError: the level is no more.
        """
        if (more := await self._asked(token, journal)) is None:
            raise _Ended("did not play any more (not called for too long, or started anew)")
        return more

    async def _asked(self, token: str, journal: Journal) -> bool | None:
        """One call: orders there, news back. Whether there is more to fetch; None: it has not begun, or is no more.

        Raises:
            ResultError: the records cannot be written here.
        """
        self._wake.clear()
        orders, self._orders = self._orders, []
        asked = perf_counter_ns()
        reply = await self._answered(token, orders)
        if reply is None:
            self._orders = [*orders, *self._orders]
            return None
        self._trips.append(Trip(asked, reply.stamp_ns, perf_counter_ns()))
        if lines := zlib.decompress(reply.lines):
            journal.append(lines)
        self._journal_at = reply.offset
        self._said.extend(reply.said)
        return reply.more

    async def _answered(self, token: str, orders: list[object]) -> Reply | None:
        """A call's answer, as long as the worker is there: dask tries for long to reach one that was killed."""
        asked = cluster_worker.attend, token, orders, self._journal_at, _PART
        answer: asyncio.Future[Reply | None] = asyncio.ensure_future(
            call(self._client, self.address, self._silent_s, *asked)
        )
        try:
            while not (await asyncio.wait([answer], timeout=_DOUBT_S))[0]:
                if self._client.status != "running":  # dask would look for it for as long as it may
                    raise _Ended(_NO_SCHEDULER)
                if not await asyncio.wait_for(self._roll.has(self.address), self._silent_s):
                    raise _Ended("left the cluster (killed, or ended)")
            return answer.result()
        finally:
            answer.cancel()
            await asyncio.gather(answer, return_exceptions=True)  # how it fails now is of no interest

    async def _lost(self, error: BaseException) -> str:
        await asyncio.sleep(_NOTICED_S)
        if self._client.status != "running" or isinstance(error, asyncio.CancelledError):  # dask cancels its own calls
            return _NO_SCHEDULER
        if isinstance(error, _Ended):
            return str(error)
        if isinstance(error, TimeoutError):
            return f"did not answer for {self._silent_s:g} s"
        return f"did not answer any more ({short(error)})"

    # -- what a level needs there

    async def _placed(self, order: Prepare, token: str) -> Prepare:
        """The order as it is carried out there: with the files that it names, and a journal, in the worker's folder."""
        for path in _files(order):
            if path not in self._files:
                self._files[path] = await self._sent(path)
        there = self._files
        replace = msgspec.structs.replace
        wiring, tokens, tls = order.wiring, order.wiring.tokens, order.wiring.tls
        tokens = replace(
            tokens,
            path=tokens.path and there[tokens.path],
            fits=tuple(replace(fit, corpus=there.get(fit.corpus or "", fit.corpus)) for fit in tokens.fits),
        )
        tls = replace(tls, ca=there.get(tls.ca or ""), cert=there.get(tls.cert or ""), key=there.get(tls.key or ""))
        return replace(
            order,
            level=replace(order.level, workloads=tuple(_moved(each, there) for each in order.level.workloads)),
            wiring=replace(wiring, journal=f"{self.facts.folder}/{token}.jsonl", tokens=tokens, tls=tls),
        )

    async def _sent(self, path: str) -> str:
        """Where a file of ours lies on the worker: sent there in parts."""
        theirs = f"{self.facts.folder}/{len(self._files)}-{Path(path).name}"
        try:
            for at, part in _parts(path):
                await call(self._client, self.address, self._silent_s, cluster_worker.store, theirs, at, part)
        except OSError as error:
            if error.filename == path:
                raise ResultError(f"cannot read {path}, to send it to the workers: {error.strerror}") from None
            if error.filename == theirs:
                raise ResultError(f"{self} cannot write {theirs}: {error.strerror}; make room there") from None
            raise
        return theirs


def short(error: BaseException) -> str:
    """What went wrong, in one line. What dask cannot read it wraps in a bare exception."""
    words = str(error) if type(error) is Exception else f"{type(error).__name__}: {error}"
    return _NOISE.sub("", words.splitlines()[0]).removesuffix(": ")


def _parts(path: str) -> Iterator[tuple[int, bytes]]:
    """A file in parts, each with where it begins; of an empty one, one part."""
    with Path(path).open("rb") as file:
        yield 0, file.read(_PART)
        while part := file.read(_PART):
            yield file.tell() - len(part), part


def _files(order: Prepare) -> list[str]:
    """The paths of the files here that a worker opens."""
    tls = order.wiring.tls
    found: list[str | None] = [order.wiring.tokens.path]
    found += [tls.ca, tls.cert, tls.key] if order.wiring.url.startswith("https") else []
    for workload in order.level.workloads:
        found.append(None if workload.corpus == UNICODE else workload.corpus)
        found.append(None if workload.rows is None else workload.rows.path)
        found += [each.values if isinstance(each.values, str) else None for each in workload.tensors.inputs]
    return [path for path in dict.fromkeys(found) if path is not None]


def _moved(workload: Workload, there: dict[str, str]) -> Workload:
    """A workload whose files lie elsewhere."""
    replace, rows, tensors = msgspec.structs.replace, workload.rows, workload.tensors
    inputs = tuple(
        replace(each, values=there[each.values]) if isinstance(each.values, str) else each for each in tensors.inputs
    )
    return replace(
        workload,
        corpus=there.get(workload.corpus or "", workload.corpus),
        rows=rows and replace(rows, path=there[rows.path]),
        tensors=replace(tensors, inputs=inputs),
    )
