"""What the figures of a long level take: its requests are put into rows on disk, then summarised and judged.

    python bench/figures.py [--requests 1000000] [--quick] [--json FILE]

Answers of two tokens, so that many requests come together, at 1,000 a second; one of 500 fails. Figures and verdict are
made as a run makes them, in a process of their own, without SLOs and with three. Rows of each:

- bytes a request: the most memory that was resident meanwhile, less what was before, at most 120.
- seconds of a core for a million: told, not judged.

``--quick`` takes a fifth of the requests, and 40 bytes more each for what does not depend on their number. Exit code 0
only if every row is ok.
"""

import argparse
import json
import multiprocessing
import re
import sys
import tempfile
import time
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from loadtest.judgement import Played, judge
from loadtest.level import Level, LevelRun, WorkerHealth
from loadtest.records import Record, RequestError
from loadtest.rows import Rows
from loadtest.schedule import Load
from loadtest.slo import parse, tightest_ms
from loadtest.summary import summarise
from loadtest.workload.lengths import Length
from loadtest.workload.model import Workload

REQUESTS = 1_000_000
QUICK = 5
BYTES, FIXED = 120.0, 40.0
RATE_PER_S = 1000.0
SLOS = ("p99(ttft) < 300ms", "p99(itl) < 50ms", "error_rate < 1%")
BATCH = 2000


def main() -> int:
    """Print all rows; 0 if each is ok."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=REQUESTS)
    parser.add_argument("--quick", action="store_true", help="a fifth of the requests")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows to FILE")
    asked = parser.parse_args()
    requests = asked.requests // QUICK if asked.quick else asked.requests
    most = BYTES + FIXED if asked.quick else BYTES
    found: list[dict[str, Any]] = []
    for name, slos in (("without SLOs", ()), ("with three SLOs", SLOS)):
        with multiprocessing.get_context("spawn").Pool(1) as alone:
            seconds, held = alone.apply(measured, (requests, slos))
        for what, ours, goal in (
            ("bytes a request", held / requests, most),
            ("seconds of a core for a million", seconds / requests * 1e6, None),
        ):
            title = f"figures of {requests:,} requests {name}: {what}"
            ok = goal is None or ours <= goal
            said = "" if goal is None else f"at most {goal:>4g}  {'ok' if ok else 'MISSED'}"
            print(f"{title:80} {ours:>8.1f}  {said}", flush=True)
            found.append({"name": title, "ours": ours, "other": None, "ratio": None, "goal": goal, "ok": ok})
    if asked.json:
        asked.json.write_text(json.dumps({"rows": found}, indent=2) + "\n")
    return 0 if all(row["ok"] for row in found) else 1


def measured(requests: int, slos: tuple[str, ...]) -> tuple[float, int]:
    """The seconds of a core that the figures take, and the bytes of memory at their peak, less those before."""
    parsed = [parse(text) for text in slos]
    with tempfile.TemporaryDirectory() as folder:
        rows, level = Rows(Path(folder)), played(0)
        judged(level, [*answers(BATCH)], parsed)  # what is imported and made once is no memory of requests
        batch: list[Record] = []
        for record in answers(requests):
            batch.append(record)
            if len(batch) == BATCH:
                rows.append(batch)
                batch = []
        rows.append(batch)
        del batch
        Path("/proc/self/clear_refs").write_text("5")  # proc(5): the peak begins anew
        before, began = resident("VmRSS"), time.process_time()
        judged(played(requests), rows, parsed)
        seconds, most = time.process_time() - began, resident("VmHWM")
        rows.close()
    return seconds, most - before


def judged(level: Level, requests: Any, slos: list[Any]) -> None:
    """As ``loadtest.sitting`` does when the level is over."""
    over_ms = len(requests) / RATE_PER_S * 1000
    run = LevelRun(level.index, "completed", over_ms, over_ms + 500, [WorkerHealth(0, 0.1, 1.0, 2.0, 10, 1, 1)])
    figures = summarise(level, requests, run, (), tightest_ms(slos))
    assert figures.client.valid, figures.client.reasons
    judge([Played(level, figures, requests, run)], slos)


def played(requests: int) -> Level:
    """The level, as long as ``requests`` take."""
    return Level(
        index=0, name="long", load=Load("constant", rate_per_s=RATE_PER_S), batching=None,
        workloads=(Workload(Length(8, 8), Length(2, 2)),), duration_s=max(requests, BATCH) / RATE_PER_S, requests=None,
        warmup_s=0.5, grace_s=5.0,
    )  # fmt: skip


def answers(requests: int) -> Iterator[Record]:
    """The requests, in about the order in which they end."""
    rng = np.random.default_rng(1)
    for begin in range(0, requests, BATCH):
        n = min(BATCH, requests - begin)
        due = (begin + np.arange(n)) * 1000 / RATE_PER_S
        first = (due + 40 + rng.exponential(30, n)).round(4)
        last = (first + 5 + rng.exponential(5, n)).round(4)
        for place in np.argsort(last).tolist():
            number, bad = begin + place, (begin + place) % 500 == 499
            at, token, end = float(due[place]), float(first[place]), float(last[place])
            yield Record(
                id=number, level=0, worker=0, intended_ms=at, in_window=True, asked_input_tokens=8,
                asked_output_tokens=2, sent_ms=at + 0.1, first_byte_ms=token, first_token_ms=token,
                first_answer_ms=token, last_token_ms=end, done_ms=round(end + 0.1, 4), input_tokens=8, output_tokens=2,
                token_source="usage", events=2, itl_ms=array("f", [end - token]), bytes_in=900, prompt_hash=number,
                outcome="stream_error" if bad else "ok", finish_reason=None if bad else "stop",
                error=RequestError("sse_error", "overloaded", 200) if bad else None,
            )  # fmt: skip


def resident(name: str) -> int:
    """The bytes that the kernel tells of this process under ``name``."""
    match = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text("ascii"))
    assert match is not None, f"the kernel does not tell {name}"
    return int(match[1]) * 1024


if __name__ == "__main__":
    sys.exit(main())
