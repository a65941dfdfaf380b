"""A level: one load × one workload × one batching setting; and what the generator saw of itself playing it."""

from collections.abc import Iterable
from typing import Literal

import msgspec

from loadtest.schedule import Load
from loadtest.workload.lengths import Length
from loadtest.workload.model import Probe, Workload

Scheduler = Literal["continuous", "dynamic", "static", "none"]
NONE = "none"
"""The words for a length that nothing has."""
SCHEDULERS: tuple[Scheduler, ...] = ("continuous", "dynamic", "static", "none")


class Batching(msgspec.Struct, frozen=True):
    """How the bundled server groups requests. ``timeout_ms`` is the wait window of dynamic and static."""

    scheduler: Scheduler
    max_batch_size: int
    timeout_ms: float

    def __str__(self) -> str:
        return f"{self.scheduler} {self.max_batch_size}" if self.scheduler != "none" else "none"


class Level(msgspec.Struct, frozen=True):
    """One level of a run, complete: with the run's seed it determines every request and its due time.

    ``workloads`` are one or more, mixed by weight. ``probe`` plays beside them. ``model`` of None is the run's own.
    ``repeat`` counts from 1: the same level played again in another order, with requests of its own. ``batch_size`` is
    how many samples each request asks for at once, of an endpoint that makes no text. ``paired``: each request is sent
    twice in a row, and what was answered is kept.

    Either ``duration_s`` or ``requests`` bounds the sending, or both (whichever ends first). ``warmup_s`` is the
    part at the start that is played but not measured. ``grace_s`` is how long unfinished requests may take after
    the sending has ended, before they are cut off.
    """

    index: int
    name: str
    load: Load
    batching: Batching | None
    workloads: tuple[Workload, ...]
    duration_s: float | None
    requests: int | None
    warmup_s: float
    grace_s: float
    model: str | None = None
    probe: Probe | None = None
    repeat: int = 1
    batch_size: int = 1
    paired: bool = False

    @property
    def input_tokens(self) -> str:
        """The prompt lengths asked for, in words."""
        return input_words(self.workloads, self.batch_size)

    @property
    def output_tokens(self) -> str:
        """The answer lengths asked for, in words."""
        return output_words(self.workloads)

    @property
    def of_sessions(self) -> bool:
        """Whether arrivals and slots are of sessions, and the requests their turns."""
        return any(workload.conversation for workload in self.workloads)

    @property
    def mean_output_tokens(self) -> float:
        """Expected length of an answer, as far as it is known before; of data that say nothing, 1."""
        weights = sum(workload.weight for workload in self.workloads)
        return sum(w.weight * (w.output_tokens.mean if w.output_tokens else 1) for w in self.workloads) / weights


def input_words(workloads: Iterable[Workload], batch_size: int) -> str:
    """The prompt lengths asked for, in words."""
    each = _in_words((workload, workload.input_tokens) for workload in workloads)
    return each if batch_size == 1 or each == NONE else f"{batch_size} × {each}"


def output_words(workloads: Iterable[Workload]) -> str:
    """The answer lengths asked for, in words."""
    return _in_words((workload, workload.output_tokens) for workload in workloads)


def _in_words(asked: Iterable[tuple[Workload, Length | None]]) -> str:
    """Lengths asked for; where there is none it is the data's, or it has none."""
    return " | ".join(
        dict.fromkeys(
            str(length) if length is not None else "data" if workload.rows or workload.data else NONE
            for workload, length in asked
        )
    )


class WorkerHealth(msgspec.Struct, frozen=True):
    """What one generator process measured of itself during one level."""

    worker: int
    cpu_share: float  # of one core, 0..1, from the first send to the end
    loop_lag_p99_ms: float | None  # how late the event loop ran a timer that was due; None: the level was too short
    loop_lag_max_ms: float | None
    reads: int  # reads from the sockets
    coalesced_reads: int  # of these, reads that completed more than one stream event
    connections_opened: int
    error_bar_p50_ms: float | None = None  # how long bytes lay in the kernel before we read them; None: not sampled
    error_bar_p99_ms: float | None = None
    no_free_port: int = 0  # connections that failed because this host had no port left
    start_late_ms: float = 0.0  # heard of the common start so long after it
    # Of a worker of a cluster: where it ran, and its clock less that of the run: before the level, and how much more
    # that was at its end.
    host: str | None = None
    clock_offset_ms: float | None = None
    clock_error_ms: float | None = None  # ±
    clock_drift_ms: float | None = None
    clock_drift_error_ms: float | None = None  # ±


LevelEnd = Literal["completed", "interrupted", "aborted", "unusable", "worker_lost"]


class LevelRun(msgspec.Struct, frozen=True):
    """How a level went as the generator saw it; the requests themselves are in the journal.

    ``sending_ended_ms`` and ``ended_ms`` count from the level's t0, which by the clock on the wall was
    ``began_at`` (RFC 3339, UTC). ``scheduled`` is the number of requests that became due, by the workers' own count;
    None when a worker was lost with its count.
    """

    level: int
    end: LevelEnd
    sending_ended_ms: float
    ended_ms: float
    workers: list[WorkerHealth]
    scheduled: int | None = None
    reason: str | None = None
    began_at: str | None = None
