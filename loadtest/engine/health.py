"""What a worker measures of itself while it plays a level."""

import asyncio
import math
import time
from collections import Counter
from time import perf_counter_ns

from loadtest.engine.recorder import Recorder
from loadtest.histogram import bucket
from loadtest.level import WorkerHealth
from loadtest.wire.exchange import Transport
from loadtest.wire.ring import Ring

_LAG_PERIOD_S = 0.01
_LAGS_KEPT = 20_000  # the newest, some three minutes: a long level is not to fill the memory with them
_WAITS_LEAST = 100  # with fewer sampled reads the error bar's p99 would be the slowest of them


class SelfWatch:
    """Watches the loop, the processor time and the connections of one worker, from its start on."""

    def __init__(self, worker: int, transport: Transport) -> None:
        self._worker = worker
        self._transport = transport
        self._lags = Ring(_LAGS_KEPT)
        self._longest_lag = 0.0
        self.loop_lags: Counter[int] = Counter()  # of all of them, by buckets, for the snapshots
        # Since before the level's connections are opened.
        self._opened_before = transport.opened
        self._ports_before = transport.no_free_port
        self._cpu = self._began = 0.0
        self._late_ns = 0

    def start(self, t0_ns: int) -> None:
        """The level begins, at that instant or later."""
        self._late_ns = max(0, perf_counter_ns() - t0_ns)
        self._transport.waits.clear()
        self._cpu, self._began = time.process_time(), time.perf_counter()

    async def lag(self, t0_ns: int) -> None:
        """Watch how late the loop runs what is due: the time that a read, too, may have waited."""
        await asyncio.sleep(max(0.0, (t0_ns - perf_counter_ns()) / 1e9))
        while True:
            due = perf_counter_ns() + _LAG_PERIOD_S * 1e9
            await asyncio.sleep(_LAG_PERIOD_S)
            lag = max(0.0, (perf_counter_ns() - due) / 1e6)
            self._lags.append(lag)
            self.loop_lags[bucket(lag)] += 1
            self._longest_lag = max(self._longest_lag, lag)

    def end(self, recorder: Recorder) -> WorkerHealth:
        """What was seen until now, with what the recorder has counted."""
        passed_s = max(1e-9, time.perf_counter() - self._began)
        lags = sorted(self._lags)
        waits = [wait / 1e6 for wait in sorted(self._transport.waits)]
        if len(waits) < _WAITS_LEAST:
            waits = []
        return WorkerHealth(
            worker=self._worker,
            cpu_share=round((time.process_time() - self._cpu) / passed_s, 4),
            loop_lag_p99_ms=_quantile(lags, 0.99),
            loop_lag_max_ms=round(self._longest_lag, 4) if lags else None,
            reads=recorder.reads,
            coalesced_reads=recorder.coalesced_reads,
            connections_opened=self._transport.opened - self._opened_before,
            error_bar_p50_ms=_quantile(waits, 0.5),
            error_bar_p99_ms=_quantile(waits, 0.99),
            no_free_port=self._transport.no_free_port - self._ports_before,
            start_late_ms=round(self._late_ns / 1e6, 4),
        )


def _quantile(ascending: list[float], share: float) -> float | None:
    return round(ascending[math.ceil(share * len(ascending)) - 1], 4) if ascending else None
