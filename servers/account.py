"""What the server of known latencies really did, counted as it did it."""

import itertools
import math
import time
from collections import defaultdict
from fractions import Fraction
from time import perf_counter_ns
from typing import Any


class Tally:
    """How often a duration occurred, in whole µs: exact percentiles in bounded memory."""

    def __init__(self) -> None:
        self.counts: defaultdict[int, int] = defaultdict(int)

    def add(self, ns: int) -> None:
        """Count one duration."""
        self.counts[ns // 1000] += 1

    def figures_ms(self) -> dict[str, float | int | None]:
        """Count, nearest-rank p50 and p99, and the largest; null when there was none."""
        n = sum(self.counts.values())
        ordered = sorted(self.counts)
        below = list(itertools.accumulate(self.counts[value] for value in ordered))
        found: dict[str, float | int | None] = {"n": n}
        for name, p in (("p50", Fraction(1, 2)), ("p99", Fraction(99, 100)), ("max", Fraction(1))):
            rank = math.ceil(p * n)
            found[name] = (
                next(value / 1000 for value, so_far in zip(ordered, below, strict=True) if so_far >= rank)
                if n
                else None
            )
        return found


class Account:
    """What the server did since it began to count."""

    def __init__(self) -> None:
        self.requests = self.ok = self.injected_errors = self.refused = self.aborted = self.events = 0
        self.first_request_ns = 0
        self.ttft, self.itl, self.late, self.e2e, self.round = (Tally() for _ in range(5))
        self._began_ns = perf_counter_ns()
        self._cpu_s = time.process_time()

    def truth(self) -> dict[str, Any]:
        """The account as GET /truth gives it.

        ``ttft_ms``: first token written − request read (streams). ``itl_ms``: between tokens written. ``late_ms``: a
        token written − due, and a whole answer likewise. ``e2e_ms``: last byte written − request read. ``round_ms``:
        how long the server was busy before it looked at its sockets again, so at most how long a request lay unread.
        """
        now = perf_counter_ns()
        elapsed_s = (now - self._began_ns) / 1e9
        first = self.first_request_ns
        return {
            "requests": self.requests,
            "ok": self.ok,
            "injected_errors": self.injected_errors,
            "refused": self.refused,
            "aborted": self.aborted,
            "events": self.events,
            "counted_s": round(elapsed_s, 6),
            "since_first_request_s": round((now - first) / 1e9, 6) if first else None,
            "cpu_share": round((time.process_time() - self._cpu_s) / elapsed_s, 4),
            "ttft_ms": self.ttft.figures_ms(),
            "itl_ms": self.itl.figures_ms(),
            "late_ms": self.late.figures_ms(),
            "e2e_ms": self.e2e.figures_ms(),
            "round_ms": self.round.figures_ms(),
        }
