"""Workers of a Dask cluster: the same orders and the same player as on this host, called through the scheduler.

A level is one task on each worker, pinned to it and never tried again. All that passes between the task and here goes
by calls to the worker, a few a second: orders there; counts, records and the worker's clock back. A worker that does
not answer is lost, and one that is not called ends its level, so that neither a cut network nor a client that was
killed leaves load behind.
"""

import asyncio
import concurrent.futures
import contextlib
import itertools
import logging
import queue
import re
import secrets
import signal
import socket
from collections import defaultdict
from collections.abc import Collection, Coroutine, Iterable, Iterator, Sequence
from time import monotonic
from typing import Any, TypeVar

import msgspec

from loadtest.endpoints.pattern import Upload
from loadtest.engine import cluster_worker
from loadtest.engine.crew import Begun, Crew, Interrupts, Renewed, Seen
from loadtest.engine.journal import Journal
from loadtest.engine.orders import Prepare, Snapshot, Turn, Wiring
from loadtest.engine.remote import GONE, LEAVE_S, Remote, Roll, call, short
from loadtest.errors import UsageError, WorkerLost
from loadtest.level import Level, LevelRun, WorkerHealth
from loadtest.wire.origin import is_loopback

T = TypeVar("T")

CALLS_A_S = 400.0  # of all workers together: what leaves a scheduler most of its core (docs/scaling.md)
PERIOD_S = 0.25  # between two calls to a worker, as far as there are not too many of them
_LOOK_S = 0.1
_SILENT_S = 10.0
_WAIT_S = 30.0
_LEASE_S = 10  # for which the workers are still a run's that was killed
_AT_A_TIME = 8  # workers whose clocks are looked at
_NAMED = 3  # of the workers that were lost in one way
_CERTIFICATES = "tls:// takes certificates from Dask's configuration (DASK_DISTRIBUTED__COMM__TLS__CA_FILE and others)"
_ADDRESS = re.compile(r"local:[1-9]\d{0,2}|(?:tcp|tls)://\S+:\d+")


class ClusterEngine(Crew):
    """Workers of the cluster at ``where``: ``tcp://HOST:PORT`` of its scheduler, or ``local:N`` to start one here.

    ``workers`` of None are all that there are. So many are waited for, ``wait_s`` long, and so long for their first
    answer; later, one that does not answer for ``silent_s`` is lost.

    Raises:
        UsageError: there is no such cluster, it has not so many workers, or they run something else than this command.
        WorkerLost: a worker does not answer.
    """

    def __init__(
        self, where: str, workers: int | None = None, *, silent_s: float = _SILENT_S, wait_s: float = _WAIT_S
    ) -> None:  # fmt: skip
        scheme, _, count = where.partition(":")
        if not _ADDRESS.fullmatch(where):
            raise UsageError(f"--cluster {where}: neither tcp://HOST:PORT, nor tls://HOST:PORT, nor local:N")
        if scheme == "local" and workers not in (None, int(count)):
            raise UsageError(f"--cluster {where} and --workers {workers} both say how many; leave out --workers")
        self._where = where
        self._silent_s = silent_s
        self._wait_s = wait_s
        self._cluster: Any = None
        self._client: Any = None
        self._claimed: Any = None
        self._workers: list[Remote] = []
        self._attended: list[concurrent.futures.Future[None]] = []
        self._heard: queue.SimpleQueue[tuple[int, object]] = queue.SimpleQueue()
        self._tokens = map("-".join, zip(itertools.repeat(secrets.token_hex(8)), map(str, itertools.count())))
        self._measuring = asyncio.Semaphore(_AT_A_TIME)
        try:
            self._connect(int(count) if scheme == "local" else None)
            if scheme != "local":
                self._claim()
            self._meet(self._chosen(workers))
        except BaseException:
            self.close()
            raise
        self.size = len(self._workers)
        self._period_s = max(PERIOD_S, self.size / CALLS_A_S)

    # -- the cluster

    def _connect(self, local: int | None) -> None:
        try:
            import distributed  # noqa: PLC0415  # of an extra, and slow to load
        except ImportError:
            raise UsageError("--cluster needs the package distributed: pip install 'loadtest[cluster]'") from None
        for name in [*logging.root.manager.loggerDict]:  # each has a level of its own
            if name.startswith("distributed"):
                logging.getLogger(name).setLevel(logging.CRITICAL)  # what it would say, we do
        try:
            if local is None:
                asyncio.run(_reach(self._where, self._silent_s))
            else:
                self._cluster = _started(local)
            self._client = distributed.Client(
                self._cluster or self._where, set_as_default=False, timeout=self._silent_s, name="loadtest"
            )
        except TypeError:
            raise UsageError(f"--cluster {self._where}: {_CERTIFICATES}") from None
        except (*GONE, ValueError) as error:
            raise UsageError(
                f"--cluster {self._where}: no scheduler of Dask answers there ({short(error)}); start one with dask "
                f"scheduler, or correct the address (tcp:// or tls://)"
            ) from None
        self._loop: asyncio.AbstractEventLoop = self._client.loop.asyncio_loop

    def _claim(self) -> None:
        """Have the workers as long as the run lasts: two runs would take them from each other, level by level."""
        import dask  # noqa: PLC0415  # of an extra
        from distributed import Lock  # noqa: PLC0415

        async def claimed() -> bool:
            with dask.config.set({"distributed.scheduler.locks.lease-timeout": f"{_LEASE_S} s"}):
                lock = Lock("loadtest", scheduler_rpc=self._client.scheduler, loop=self._client.loop)
                if had := await asyncio.wait_for(lock.acquire(timeout=self._wait_s), self._wait_s + self._silent_s):
                    self._claimed = lock
                return bool(had)

        try:
            if not self._wait_for(claimed()):
                raise UsageError(
                    f"--cluster {self._where}: another run has its workers; play when that has ended, or on another "
                    "cluster"
                )
        except GONE as error:
            raise WorkerLost(f"--cluster {self._where}: its scheduler does not answer ({short(error)})") from None

    def _chosen(self, workers: int | None) -> list[str]:
        """The addresses of the workers to play on, spread over the hosts."""

        async def there() -> list[str]:
            until = monotonic() + self._wait_s
            while True:
                found = await asyncio.wait_for(self._client.scheduler.ncores(), self._silent_s)
                if len(found) >= (workers or 1) or monotonic() > until:
                    return sorted(found)
                await asyncio.sleep(_LOOK_S)

        try:
            found = self._wait_for(there())
        except GONE as error:
            raise WorkerLost(f"--cluster {self._where}: its scheduler does not answer ({short(error)})") from None
        if len(found) < (workers or 1):
            raise UsageError(
                f"--cluster {self._where}: {len(found) or 'no'} worker{'s' * (len(found) != 1)} there after "
                f"{self._wait_s:g} s{f', and --workers asks for {workers}' if workers else ''}; start more with dask "
                f"worker {self._where}"
            )
        by_host: dict[str, list[str]] = defaultdict(list)
        for address in found:
            by_host[address.rpartition(":")[0]].append(address)
        spread = itertools.chain.from_iterable(itertools.zip_longest(*by_host.values()))
        return [address for address in spread if address is not None][:workers]

    def _meet(self, addresses: Sequence[str]) -> None:
        """Learn who the workers are, and see that they play what this command would."""

        async def all_facts() -> list[Any]:
            # The first call has a worker load all that a level needs.
            calls = (call(self._client, address, self._wait_s, cluster_worker.welcome) for address in addresses)
            return await asyncio.gather(*calls, return_exceptions=True)

        ours, faults, silent, roll = cluster_worker.runs(), [], [], Roll(self._client)
        for address, facts in zip(addresses, self._wait_for(all_facts()), strict=True):
            if isinstance(facts, GONE):
                silent.append(f"worker {address} does not answer ({short(facts)}); end it")
                continue
            if isinstance(facts, BaseException):
                faults.append(f"worker {address} cannot run loadtest ({short(facts)})")
                continue
            self._workers.append(Remote(self._client, roll, len(self._workers), address, facts, self._silent_s))
            unlike = [name for name, own in ours.items() if facts.runs.get(name) != own]
            if unlike:
                words = ", ".join(f"{name} {facts.runs.get(name)}, not {ours[name]}" for name in unlike)
                faults.append(f"worker {address} on {facts.host} runs {words}")
        if silent:
            raise WorkerLost("--cluster: " + "\n  ".join(silent))
        if faults:
            raise UsageError(
                "--cluster: " + "\n  ".join(faults) + "\n  install on the workers what runs here: "
                f"loadtest[cluster]=={ours['loadtest']}, and the same Python, numpy and msgspec"
            )

    def close(self) -> None:
        """Leave the workers as they were, and end a cluster that was started here."""
        with contextlib.suppress(*GONE):  # of what is gone there is no leave to take
            if self._client is not None:
                self._wait_for(self._farewell(), LEAVE_S)
        with contextlib.suppress(*GONE):
            if self._client is not None:
                self._client.close(timeout=LEAVE_S)
        if self._cluster is not None:
            self._cluster.close()

    async def _farewell(self) -> None:
        there = [worker for worker in self._workers if not worker.why]
        calls = (
            call(self._client, worker.address, LEAVE_S, cluster_worker.farewell, worker.facts.folder)
            for worker in there
        )
        await asyncio.gather(*calls, return_exceptions=True)
        if self._claimed is not None:
            await self._claimed.release()

    def _wait_for(self, what: Coroutine[None, None, T], timeout_s: float | None = None) -> T:
        return asyncio.run_coroutine_threadsafe(what, self._loop).result(timeout_s)

    # -- a level

    @property
    def start_ahead_s(self) -> float:  # type: ignore[override]
        """Several times what an order takes to get to all."""
        return PERIOD_S + 4 * max(worker.slowest_s for worker in self._workers) + self.size / CALLS_A_S

    def play(
        self, level: Level, wiring: Wiring, interrupts: Interrupts, seen: Seen, renewed: Renewed | None = None,
        begun: Begun | None = None,
    ) -> LevelRun:  # fmt: skip
        """As of every crew; the workers' records come into the journal here.

        Raises:
            LoadtestError: as there.
        """
        self._heard, self._attended, self._turned = queue.SimpleQueue(), [], 0

        def see(at_s: float, workers: Sequence[Snapshot]) -> str | None:
            # The journal here is this side's: one that a worker was lost with would never have gone on.
            return seen(at_s, [msgspec.structs.replace(each, turned=self._turned) for each in workers])

        with contextlib.closing(Journal(wiring.journal)) as self._journal:
            try:
                return super().play(level, wiring, interrupts, see, renewed, begun)
            except BaseException:
                for each in self._attended:
                    each.cancel()
                raise
            finally:
                concurrent.futures.wait(self._attended, LEAVE_S)  # those that are done are taking their leave

    def see_reach(self, wiring: Wiring) -> None:
        """As of every crew: of workers on other hosts the target or a file may be out of reach."""
        far = next((worker for worker in self._workers if worker.facts.host != socket.gethostname()), None)
        if far is None:
            return
        if is_loopback(wiring.address):
            raise UsageError(
                f"--cluster: {wiring.url} is this host alone, and {far} is on another; name the target by an address "
                "that the workers reach"
            )
        form = wiring.speech.pattern.request
        for each in (form.file, *(part for _, part in form.multipart or ())):
            if isinstance(each, Upload):
                raise UsageError(
                    f"--cluster: the requests send files out of {each.path}, which is not on {far}; play them with "
                    "--workers on this host"
                )

    def _say(self, number: int, order: object) -> None:
        worker = self._workers[number]
        if isinstance(order, Prepare):
            attend = worker.attend(
                order, next(self._tokens), self._journal, self._heard, self._period_s, self._measuring
            )
            self._attended.append(asyncio.run_coroutine_threadsafe(attend, self._loop))
        else:
            self._loop.call_soon_threadsafe(worker.order, order)

    def _tell(self, numbers: Iterable[int], order: object) -> None:
        if isinstance(order, Turn):  # of the journal here; a worker's own goes on when it is full
            self._wait_for(self._turn())
            self._turned = order.count
        else:
            super()._tell(numbers, order)

    async def _turn(self) -> None:
        self._journal.turn()  # in the loop in which it is appended to

    def _hear(self, numbers: Collection[int], timeout_s: float) -> Iterator[tuple[int, object]]:
        del numbers  # all speak into one ear
        with contextlib.suppress(queue.Empty):
            yield self._heard.get(timeout=timeout_s)
            while True:
                yield self._heard.get_nowait()

    def _end(self, number: int) -> None:
        self._workers[number].why = "answered, and did not play any more"
        self._attended[number].cancel()

    def _lost(self, numbers: Sequence[int]) -> str:
        by_reason: dict[str, list[str]] = defaultdict(list)
        for number in numbers:
            by_reason[self._workers[number].why].append(str(self._workers[number]))
        return " and ".join(f"{_named(workers)} {why}" for why, workers in by_reason.items())

    def _t0(self, number: int, t0_ns: int) -> int:
        return t0_ns + self._workers[number].clock.ns

    def _seen_from_here(self, number: int, health: WorkerHealth) -> WorkerHealth:
        worker = self._workers[number]
        before, after = worker.clock, worker.clock_after
        return msgspec.structs.replace(
            health,
            host=worker.facts.host,
            clock_offset_ms=_ms(before.ns),
            clock_error_ms=_ms(before.error_ns),
            clock_drift_ms=_ms(after.ns - before.ns),
            clock_drift_error_ms=_ms(before.error_ns + after.error_ns),
        )


def _named(workers: Sequence[str]) -> str:
    more = len(workers) - _NAMED
    return ", ".join(workers[:_NAMED]) + (f" and {more} more" if more > 0 else "")


def _ms(ns: int) -> float:
    return round(ns / 1e6, 4)


async def _reach(where: str, timeout_s: float) -> None:
    """See that a scheduler is there: dask's client would wait without end for what answers, and is none."""
    from distributed import Security  # noqa: PLC0415  # of an extra
    from distributed.comm import connect  # noqa: PLC0415

    options = Security().get_connection_args("client")
    comm = await asyncio.wait_for(connect(where, timeout=timeout_s, **options), timeout_s)
    comm.abort()


def _started(workers: int) -> Any:
    """A cluster on this host. Its processes do not hear Ctrl-C, which is sent to all: the run says what to do."""
    import dask  # noqa: PLC0415  # of an extra
    from distributed import LocalCluster  # noqa: PLC0415

    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # is inherited
    try:
        with dask.config.set(
            {"distributed.scheduler.allowed-failures": 0, "distributed.worker.profile.enabled": False}
        ):
            return LocalCluster(
                n_workers=workers,
                threads_per_worker=1,
                processes=True,
                dashboard_address="127.0.0.1:0",
                silence_logs=50,
            )
    finally:
        signal.signal(signal.SIGINT, before)
