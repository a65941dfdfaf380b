"""Batching policies: which waiting requests may start now. Pure; the clock is the caller's.

``continuous``  a request joins the running batch as soon as a place is free.
``dynamic``     a batch starts when it is full or its first request has waited ``timeout_ms``; nobody joins it later.
``static``      a batch starts when it is full; nobody joins it later. So that a load with fewer clients than places
                cannot wait for ever, it starts incomplete after ``STATIC_PATIENCE_S`` (or ``timeout_ms`` if longer).
``none``        one request at a time.
"""

from dataclasses import dataclass
from typing import Literal, get_args

Scheduler = Literal["continuous", "dynamic", "static", "none"]
SCHEDULERS: tuple[Scheduler, ...] = get_args(Scheduler)
STATIC_PATIENCE_S = 1.0


@dataclass(frozen=True)
class Admission:
    """How many waiting requests start now; and if none does, after how many seconds to ask again (None: only when
    something has changed)."""

    count: int
    retry_after_s: float | None = None


@dataclass(frozen=True)
class Batching:
    """One batching setting.

    Raises:
        ValueError: a size below 1, or a negative or unbounded wait.
    """

    scheduler: Scheduler = "continuous"
    max_batch_size: int = 16
    timeout_ms: float = 50.0

    def __post_init__(self) -> None:
        if self.scheduler not in SCHEDULERS:
            raise ValueError(f"scheduler must be one of {', '.join(SCHEDULERS)}, not {self.scheduler!r}")
        if self.max_batch_size < 1:
            raise ValueError(f"max_batch_size must be at least 1, not {self.max_batch_size}")
        if not 0 <= self.timeout_ms <= 60_000:
            raise ValueError(f"timeout_ms must be between 0 and 60000, not {self.timeout_ms:g}")

    @property
    def batch_size(self) -> int:
        """The most requests that run at once: ``max_batch_size``, or 1 without batching."""
        return 1 if self.scheduler == "none" else self.max_batch_size

    def admit(self, waiting: int, oldest_wait_s: float, running: int) -> Admission:
        """How many of ``waiting`` requests may start beside the ``running`` ones.

        ``oldest_wait_s`` is how long the first of them has waited; it is not read when there is none.
        """
        if not waiting:
            return Admission(0)
        if self.scheduler in ("continuous", "none"):
            return Admission(max(0, min(waiting, self.batch_size - running)))
        if running:
            return Admission(0)
        window_s = self.timeout_ms / 1e3
        if self.scheduler == "static":
            window_s = max(window_s, STATIC_PATIENCE_S)
        if waiting >= self.batch_size or oldest_wait_s >= window_s:
            return Admission(min(waiting, self.batch_size))
        return Admission(0, window_s - oldest_wait_s)
