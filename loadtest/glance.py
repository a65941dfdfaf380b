"""How a level goes at this moment: what the workers have counted, as one value. Pure.

It is for the eyes alone. The figures of a run come from its journal, and leave the warm-up out.
"""

from collections.abc import Mapping, Sequence
from typing import Literal, Protocol

import msgspec

from loadtest.histogram import merged, quantile
from loadtest.level import Level

State = Literal["sending", "draining", "ended"]


class Counted(Protocol):
    """What a worker has counted so far in a level; the times are counts of the buckets of ``histogram``."""

    @property
    def sending(self) -> bool: ...
    @property
    def in_flight(self) -> int: ...
    @property
    def ok(self) -> int: ...
    @property
    def failed(self) -> int: ...
    @property
    def output_tokens(self) -> int: ...
    @property
    def ttft(self) -> Mapping[int, int]: ...
    @property
    def e2e(self) -> Mapping[int, int]: ...
    @property
    def send_lag(self) -> Mapping[int, int]: ...
    @property
    def loop_lag(self) -> Mapping[int, int]: ...


class Glance(msgspec.Struct, frozen=True, kw_only=True):
    """Counts and times since the level began, warm-up included. A time that nothing has had yet is None.

    Times are of the requests that ended ok: of a level under strain they are those of the lucky ones.
    """

    level: int  # from 1
    levels: int | None  # None: a search finds out
    name: str
    state: State
    elapsed_s: float
    duration_s: float | None  # of the sending; None: it is bounded by requests alone
    requests: int | None  # asked for; None: it is bounded by time alone
    in_flight: int
    ok: int
    failed: int
    output_tokens: int
    requests_per_s: float
    output_tokens_per_s: float
    ttft_p50_ms: float | None
    ttft_p99_ms: float | None
    e2e_p50_ms: float | None
    e2e_p99_ms: float | None
    send_lag_p99_ms: float | None
    loop_lag_p99_ms: float | None


def glance(level: Level, levels: int | None, elapsed_s: float, workers: Sequence[Counted]) -> Glance:
    """What ``workers`` have counted ``elapsed_s`` after the level began, of ``levels`` in all if known."""
    ok = sum(worker.ok for worker in workers)
    tokens = sum(worker.output_tokens for worker in workers)
    past_s = max(elapsed_s, 1e-3)
    ttft = merged(worker.ttft for worker in workers)
    e2e = merged(worker.e2e for worker in workers)
    return Glance(
        level=level.index + 1,
        levels=levels,
        name=level.name,
        state="sending" if any(worker.sending for worker in workers) else "draining",
        elapsed_s=round(elapsed_s, 3),
        duration_s=level.duration_s,
        requests=level.requests,
        in_flight=sum(worker.in_flight for worker in workers),
        ok=ok,
        failed=sum(worker.failed for worker in workers),
        output_tokens=tokens,
        requests_per_s=round(ok / past_s, 4),
        output_tokens_per_s=round(tokens / past_s, 4),
        ttft_p50_ms=_ms(ttft, 0.5),
        ttft_p99_ms=_ms(ttft, 0.99),
        e2e_p50_ms=_ms(e2e, 0.5),
        e2e_p99_ms=_ms(e2e, 0.99),
        send_lag_p99_ms=_ms(merged(worker.send_lag for worker in workers), 0.99),
        loop_lag_p99_ms=_ms(merged(worker.loop_lag for worker in workers), 0.99),
    )


def _ms(counts: Mapping[int, int], share: float) -> float | None:
    found = quantile(counts, share)
    return None if found is None else round(found, 4)
