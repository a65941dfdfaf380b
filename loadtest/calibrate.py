"""Calibrating: the known-latency server is played as in any run, and its own account taken off what was seen."""

import contextlib
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import msgspec

from loadtest import calibration, host
from loadtest.calibration import Calibration, Row
from loadtest.endpoints.dialect import Settings
from loadtest.engine.crew import Interrupts
from loadtest.engine.local import LocalEngine
from loadtest.engine.orders import Snapshot, Wiring
from loadtest.errors import LoadtestError, ResultError, ServerError, WorkerLost
from loadtest.level import Level
from loadtest.progress import Progress
from loadtest.records import read
from loadtest.result import LevelResult
from loadtest.schedule import Load
from loadtest.summary import summarise
from loadtest.target import ServerProcess
from loadtest.wire.control import ask
from loadtest.wire.origin import Origin, parse
from loadtest.workload.lengths import Length
from loadtest.workload.model import Workload
from loadtest.workload.tokens import Tokens

TTFT_MS = 50.0
ITL_MS = 20.0

_ASK_S = 10.0
_GRACE_S = 20.0
_BURST_CONCURRENCY = 64
_INPUT_TOKENS = Length(64, 64)
_BURST_TOKENS = Length(64, 64)
_WHOLE_TOKENS = Length(16, 16)
_FILES_BESIDE = 64  # descriptors that a process has open beside its streams


class _Size(msgspec.Struct, frozen=True):
    """How much is played: the streams of each row, with answers of various lengths so that they fall out of step."""

    streams: tuple[int, ...]
    output_tokens: Length
    duration_s: float
    warmup_s: float
    burst_requests: int
    whole_requests: int
    retries: int


_FULL = _Size((1, 16, 64, 256, 512, 1024), Length(40, 64), 4.0, 1.3, 6_000, 20_000, 2)
_QUICK = _Size((1, 64, 256, 1024), Length(20, 32), 1.5, 0.6, 2_000, 6_000, 1)


class _Dist(msgspec.Struct, frozen=True):
    n: int
    p50: float | None
    p99: float | None
    max: float | None


class _Truth(msgspec.Struct, frozen=True):
    """The server's account of what it did (GET /truth), as far as it is of interest here."""

    ok: int
    events: int
    since_first_request_s: float | None
    cpu_share: float
    ttft_ms: _Dist
    itl_ms: _Dist
    late_ms: _Dist


class _Played(NamedTuple):
    level: Level
    seen: LevelResult
    truth: _Truth
    others_cpu_share: float | None


def calibrate(progress: Progress, *, quick: bool = False) -> Calibration:
    """Measure what one worker carries on this machine: under a minute, ``quick`` under 15 s.

    Raises:
        ServerError: the known-latency server did not start, or died.
        LoadtestError: the generator failed, or a process was lost.
        ResultError: there is no room for the journals.
    """
    size = _QUICK if quick else _FULL
    possible, notes = _possible(size.streams)
    size = msgspec.structs.replace(size, streams=possible)
    count = len(size.streams) + 2
    with contextlib.closing(progress), _ended_by_sigterm(), _scratch() as folder:
        with _stage(folder, progress, count, TTFT_MS, ITL_MS) as stage:
            rows = _streams(stage, size)
        with _stage(folder, progress, count, 0.0, 0.0) as stage:
            rows.append(stage.flat_out(count - 2, "burst", _BURST_TOKENS, size.burst_requests))
            rows.append(stage.flat_out(count - 1, "whole", _WHOLE_TOKENS, size.whole_requests))
    others = max(row.others_cpu_share or 0.0 for row in rows)
    if any(row.disturbed for row in rows):
        notes.append(f"other work took up to {others:.0%} of this machine's cores: it may carry more when it is quiet")
    return Calibration(
        measured_at=datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        machine=calibration.this_machine(),
        software=calibration.this_software(),
        quick=quick,
        ttft_ms=TTFT_MS,
        itl_ms=ITL_MS,
        rows=rows,
        notes=notes,
    )


@contextlib.contextmanager
def _scratch() -> Iterator[Path]:
    """A folder for the journals, which nobody needs afterwards."""
    try:
        folder = tempfile.TemporaryDirectory(prefix="loadtest-")
    except OSError as error:
        raise ResultError(f"cannot make a temporary folder: {error.strerror}; name another place with TMPDIR") from None
    with folder as name:
        yield Path(name)


@contextlib.contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """SIGTERM ends it like Ctrl-C, so that no process and no folder is left behind."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _streams(stage: "_Stage", size: _Size) -> list[Row]:
    """A row for each number of streams.

    One that adds too much is played once more and the better of the two counts: what other work on the machine
    disturbed comes and goes, while a limit stays.
    """
    rows = []
    retries = size.retries
    for index, streams in enumerate(size.streams):
        row = stage.streams(index, streams, size)
        if row.excess > 1 and retries:
            retries -= 1
            row = min(row, stage.streams(index, streams, size), key=lambda tried: tried.excess)
        rows.append(row)
    return rows


class _Stage:
    """One worker and one known-latency server, for rows of its settings."""

    def __init__(
        self, engine: LocalEngine, server: ServerProcess, url: str, folder: Path, progress: Progress, count: int
    ) -> None:
        self._engine = engine
        self._server = server
        self._origin: Origin = parse(url)
        self._folder = folder
        self._progress = progress
        self._count = count
        self._played = 0

    def streams(self, index: int, streams: int, size: _Size) -> Row:
        """A closed loop of ``streams`` for as long as ``size`` says."""
        level = Level(
            index=index,
            name=f"{streams} streams",
            load=Load("closed", concurrency=streams),
            batching=None,
            workloads=(Workload(_INPUT_TOKENS, size.output_tokens),),
            duration_s=size.duration_s,
            requests=None,
            warmup_s=size.warmup_s,
            grace_s=_GRACE_S,
        )
        played = self._play(level, stream=True)
        seen, truth = played.seen, played.truth
        latency = seen.latency
        return msgspec.structs.replace(
            _row("streams", played),
            events_per_s=seen.throughput.events_per_s,
            requests_per_s=seen.rates.completed_per_s,
            added_ttft_p50_ms=_less(latency.ttft_ms.ok.p50, truth.ttft_ms.p50),
            added_ttft_p99_ms=_less(latency.ttft_ms.ok.p99, truth.ttft_ms.p99),
            added_itl_p99_ms=_less(latency.itl_ms.ok.p99, truth.itl_ms.p99),
        )

    def flat_out(self, index: int, kind: calibration.Kind, tokens: Length, requests: int) -> Row:
        """So many requests as fast as they can be answered, until the last has been read and recorded."""
        level = Level(
            index=index,
            name="burst" if kind == "burst" else "not streamed",
            load=Load("closed", concurrency=_BURST_CONCURRENCY),
            batching=None,
            workloads=(Workload(_INPUT_TOKENS, tokens),),
            duration_s=None,
            requests=requests,
            warmup_s=0.0,
            grace_s=_GRACE_S,
        )
        played = self._play(level, stream=kind == "burst")
        truth = played.truth
        # The account was asked for when the worker had written its last record.
        span_s = truth.since_first_request_s
        return msgspec.structs.replace(
            _row(kind, played),
            events_per_s=truth.events / span_s if span_s and truth.events else None,
            requests_per_s=truth.ok / span_s if span_s else None,
        )

    def _play(self, level: Level, *, stream: bool) -> _Played:
        """Play a level; its figures, the server's account of the same time, and what else went on."""
        self._ask("POST", f"/reset?after_ms={level.warmup_s * 1e3:g}")
        self._progress.level(level, self._count)
        self._played += 1
        wiring = self._wiring(self._folder / f"{self._played}.jsonl", stream=stream)
        began, busy = time.monotonic(), host.busy_s()
        went = self._engine.play(level, wiring, Interrupts(), self._seen)
        truth = msgspec.convert(self._ask("GET", "/truth"), _Truth)
        elapsed_s, others = time.monotonic() - began, None
        if busy is not None and (busy_now := host.busy_s()) is not None:
            ours_s = (truth.cpu_share + sum(worker.cpu_share for worker in went.workers)) * elapsed_s
            others = max(0.0, busy_now - busy - ours_s) / elapsed_s / (os.cpu_count() or 1)
        self._server.check()
        if went.end == "worker_lost":
            raise WorkerLost(f"{level.name}: {went.reason}")
        if went.end != "completed":
            raise LoadtestError(f"{level.name}: the calibration could not be played: {went.reason}")
        journal = Path(wiring.journal)
        records, _ = read(journal)
        journal.unlink()
        return _Played(level, summarise(level, records, went), truth, others)

    def _seen(self, _at_s: float, workers: Sequence[Snapshot]) -> None:
        self._progress.counts(workers)

    def _wiring(self, journal: Path, *, stream: bool) -> Wiring:
        return Wiring(
            url=self._origin.url,
            address=self._origin.host,
            speech=Settings("chat", "fake", stream),
            tokens=Tokens("words"),
            headers=(),
            secrets=(),
            timeout_s=60.0,
            connect_timeout_s=10.0,
            stall_timeout_s=30.0,
            journal=str(journal),
            seed=1,
        )

    def _ask(self, method: str, path: str) -> object:
        reply = ask(self._origin, self._origin.host, method, path, timeout_s=_ASK_S)
        if reply.status != 200:
            raise ServerError(f"the known-latency server answered {path} with {reply.status} {reply.text.strip()}")
        return reply.json


@contextlib.contextmanager
def _stage(folder: Path, progress: Progress, count: int, ttft_ms: float, itl_ms: float) -> Iterator[_Stage]:
    arguments = ["--ttft-ms", f"{ttft_ms:g}", "--itl-ms", f"{itl_ms:g}"]
    server = ServerProcess("the known-latency server", "servers.fake", arguments, folder / "server.log")
    # The worker first: forked later, it would hold the server's stdin open.
    with LocalEngine(1) as engine, contextlib.closing(server):
        progress.note("starting the known-latency server")
        yield _Stage(engine, server, server.open(), folder, progress, count)


def _row(kind: calibration.Kind, played: _Played) -> Row:
    """What is the same in every row."""
    seen, truth = played.seen, played.truth
    failed = [f"{seen.counts.failed:,} requests failed: {seen.errors[0].example}"] if seen.errors else []
    lag = seen.client.loop_lag_ms
    return Row(
        kind=kind,
        concurrency=played.level.load.concurrency or 0,
        requests=seen.counts.in_window,
        events_per_s=None,
        requests_per_s=None,
        own_lag_p99_ms=seen.latency.own_lag_ms.ok.p99,
        loop_lag_p99_ms=lag.p99 if lag else None,
        cpu_share=seen.client.cpu_share,
        server_late_p99_ms=truth.late_ms.p99,
        server_cpu_share=truth.cpu_share,
        others_cpu_share=played.others_cpu_share,
        reasons=[*failed, *seen.client.reasons],
    )


def _less(seen: float | None, true: float | None) -> float | None:
    return None if seen is None or true is None else round(seen - true, 4)


def _possible(streams: Sequence[int]) -> tuple[tuple[int, ...], list[str]]:
    """The rows for which a process may open enough connections, and what to say of the others."""
    if sys.platform == "win32":
        return tuple(streams), []
    import resource  # noqa: PLC0415  # not on Windows

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY:
        return tuple(streams), []
    kept = tuple(number for number in streams if number <= hard - _FILES_BESIDE)
    if len(kept) == len(streams):
        return kept, []
    return kept, [f"more streams were not tried: a process may open only {hard:,} files here (ulimit -Hn)"]
