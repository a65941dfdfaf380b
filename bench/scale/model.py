"""What many workers cost, measured at a few, and what that makes of 10, 100 and 1,000.

    python bench/scale/model.py [--quick] [--json FILE]

``loadtest run --cluster`` plays 200 Poisson requests a second against bench/truthserver.c, on 1, 2, 4 and 8 workers of
a Dask cluster of this host (``--quick``: no 8, and shorter), each with a run before it that only loads what there is to
load; before that of one worker 10,000 requests are played as fast as they go, which show what a record costs. Where the
user may set real-time priorities, workers and server have one, which keeps other work of the machine out. Rows:

- arrivals, of each number of workers: Kolmogorov–Smirnov distance of the gaps at the server to the exponential
  distribution, against what one in a hundred true Poisson processes exceeds.
- skew: from the first worker's start to the last's, with the largest error of a clock's estimate.
- predicted: the scheduler's CPU time of the largest number of workers, from that of the others.

Workers of one host share its cores, so that they say what a worker costs the scheduler and the client, and nothing of
what many hosts carry. What is printed below the rows is the model, whose terms are in docs/scaling.md. Exit code 0 only
if every row is ok.
"""

import argparse
import contextlib
import itertools
import json
import math
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from loadtest.engine.cluster import CALLS_A_S, PERIOD_S
from loadtest.engine.remote import TRIPS

HERE = Path(__file__).parent
RATE_PER_S = 200.0
NOISE = 1.15
SKEW_GOAL_MS = 10.0
PREDICTED_GOAL = 1.5  # times too much or too little
MANY = 10_000  # requests that show what one costs the client
ASKED = (10, 100, 1000)


class Measured(NamedTuple):
    """A run. Times in seconds; ``calls`` are those to workers, as their number and period make them."""

    workers: int
    arrivals_s: list[float]
    skew_ms: float
    clock_error_ms: float
    before_s: float  # from the command to the level's start
    after_s: float  # from the level's end to that of the command
    requests: int
    others: list[tuple[int, float]]  # requests, and that time, of the runs before it
    scheduler_cpu_s: float
    calls: float


class Row(NamedTuple):
    name: str
    ours: float
    goal: float

    @property
    def ok(self) -> bool:
        return self.ours <= self.goal * NOISE


class Model(NamedTuple):
    """What follows from the runs: of the scheduler's CPU what a call takes, of the client what a worker does."""

    call_s: float
    command_s: float  # that has nothing to do with their number
    before_a_worker_s: float
    request_s: float

    def calls_a_s(self, workers: int) -> float:
        return workers / period_s(workers)

    def clocks_s(self, workers: int) -> float:
        """To know all clocks: the trips follow each other through one scheduler."""
        return workers * TRIPS * self.call_s

    def verdict_s(self, workers: int, requests: int) -> float:
        """From the command to its end, less the level."""
        begin = self.command_s + workers * self.before_a_worker_s + self.clocks_s(workers) + workers / CALLS_A_S
        return begin + requests * self.request_s


def period_s(workers: int) -> float:
    return max(PERIOD_S, workers / CALLS_A_S)


def distance(arrivals_s: Sequence[float]) -> float:
    """Of the gaps, to the exponential distribution."""
    gaps = sorted(later - earlier for earlier, later in itertools.pairwise(sorted(arrivals_s)))
    fits = [1 - math.exp(-gap * RATE_PER_S) for gap in gaps]
    return max(max(abs((i + 1) / len(fits) - fit), abs(i / len(fits) - fit)) for i, fit in enumerate(fits))


def cpu_s(pid: int) -> float:
    """Of a process so far."""
    parts = Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()
    return (int(parts[11]) + int(parts[12])) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def urgent() -> Iterator[None]:
    """What is started here comes before all other work, where that may be: a child inherits it."""
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    except PermissionError:
        yield
        return
    try:
        yield
    finally:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


@contextlib.contextmanager
def started(command: Sequence[str | Path], log: Path, *, first: bool = True) -> Iterator["subprocess.Popen[str]"]:
    with log.open("ab") as errors, urgent() if first else contextlib.nullcontext():
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
    with process:
        try:
            yield process
        finally:
            process.kill()


def measure(workers: int, seconds: float, folder: Path, url: str) -> Measured:
    """Play a run on a cluster of its own."""
    dask, log, file = [sys.executable, "-m", "dask"], folder / "dask.log", folder / f"scheduler-{workers}.json"
    own = ["--no-dashboard", "--host", "127.0.0.1"]
    scheduler_options = [*dask, "scheduler", "--port", "0", *own, "--scheduler-file", str(file)]
    with contextlib.ExitStack() as stack:
        scheduler = stack.enter_context(started(scheduler_options, log, first=False))
        while not file.exists() or not file.read_text("utf-8").endswith("}"):
            time.sleep(0.05)
        address = json.loads(file.read_text("utf-8"))["address"]
        for _ in range(workers):
            worker = [*dask, "worker", address, "--no-nanny", "--nthreads", "1", *own, "--local-directory", str(folder)]
            stack.enter_context(started(worker, log))
        out = folder / f"run-{workers}"
        command = [sys.executable, "-m", "loadtest", "run", url, "--cluster", address, "--workers", str(workers)]
        command += ["--warmup", "0s", "--seed", "1", "--endpoint", "chat", "--no-rehearsal", "--no-html", "-q"]
        rate = ["-r", f"{RATE_PER_S:g}"]
        # Workers that have just been started have everything still to load.
        before = [[*rate, "-n", "50"], *([["-c", "64", "-n", f"{MANY}"]] if workers == 1 else [])]
        others = []
        for number, load in enumerate(before):
            other = played([*command, *load, "-o", f"{out}-{number}"], Path(f"{out}-{number}"))
            others.append((other.requests, other.after_s))
        _get(f"{url}/reset")
        cpu = cpu_s(scheduler.pid)
        run = played([*command, *rate, "-d", f"{seconds:g}s", "-o", str(out)], out)
        cpu = cpu_s(scheduler.pid) - cpu
    return Measured(
        workers,
        [int(line) / 1e9 for line in _get(f"{url}/arrivals").split()],
        run.client["start_skew_ms"] or 0.0,
        max(worker["clock_error_ms"] for worker in run.client["cluster"]),
        run.before_s,
        run.after_s,
        run.requests,
        others,
        cpu,
        workers * (TRIPS + (run.level_s + 1.0) / period_s(workers)),
    )


class Played(NamedTuple):
    """A command that has ended: its level, and what came before and after it."""

    client: dict[str, Any]
    requests: int
    before_s: float
    level_s: float
    after_s: float


def played(command: Sequence[str], out: Path) -> Played:
    began = time.time()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    ended = time.time()
    (level,) = json.loads((out / "result.json").read_text("utf-8"))["levels"]
    at = datetime.fromisoformat(level["began_at"]).timestamp()
    with (out / "records.jsonl").open("rb") as records:
        last = max(json.loads(line).get("done_ms") or 0.0 for line in records) / 1e3
    return Played(level["client"], level["counts"]["scheduled"], at - began, last, ended - at - last)


def fitted(runs: Sequence[Measured]) -> Model:
    """The model of some runs."""
    _, call_s = line([(run.calls, run.scheduler_cpu_s) for run in runs])
    before_s, each = line([(run.workers, run.before_s - run.workers * TRIPS * call_s) for run in runs])
    after_s, request_s = line([point for run in runs for point in (*run.others, (run.requests, run.after_s))])
    return Model(call_s, before_s + after_s, max(0.0, each), max(0.0, request_s))


def line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Where the straight line through them begins, and its slope, by least squares; through one it begins at 0."""
    if len(points) == 1:
        return 0.0, points[0][1] / points[0][0]
    x, y = (sum(values) / len(points) for values in zip(*points, strict=True))
    slope = sum((at - x) * (value - y) for at, value in points) / sum((at - x) ** 2 for at, _ in points)
    return y - slope * x, slope


def rows(runs: Sequence[Measured]) -> list[Row]:
    found = []
    for run in runs:
        critical = 1.63 / math.sqrt(len(run.arrivals_s) - 1)
        found.append(Row(f"{run.workers} workers: arrivals' distance to Poisson", distance(run.arrivals_s), critical))
        found.append(Row(f"{run.workers} workers: skew ± clocks, ms", run.skew_ms + run.clock_error_ms, SKEW_GOAL_MS))
    largest = runs[-1]
    if len(runs) > 1:
        base_s, call_s = line([(run.calls, run.scheduler_cpu_s) for run in runs[:-1]])
        ratio = (base_s + call_s * largest.calls) / largest.scheduler_cpu_s
        found.append(Row("predicted: scheduler CPU, times off", max(ratio, 1 / ratio), PREDICTED_GOAL))
    return found


def _get(url: str) -> bytes:
    with urllib.request.urlopen(url) as answer:
        return bytes(answer.read())


def main() -> int:
    """Print the rows and the model; 0 if each row is ok."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="1, 2 and 4 workers for 5 s")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows to FILE")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        server = folder / "truthserver"
        subprocess.run(["cc", "-O2", "-o", server, HERE.parent / "truthserver.c", "-lm"], check=True)
        with started([server, "0", "5", "2", "4"], folder / "server.log") as process:
            assert process.stdout is not None
            url = f"http://127.0.0.1:{process.stdout.readline().strip()}"
            counts, seconds = ((1, 2, 4), 5.0) if options.quick else ((1, 2, 4, 8), 15.0)
            runs = [measure(count, seconds, folder, url) for count in counts]
    found = rows(runs)
    for row in found:
        print(f"{row.name:45} {row.ours:8.4f}  at most {row.goal:8.4f}  {'ok' if row.ok else 'MISSED'}")
    print("\nworkers  to the start s  after the level s  scheduler CPU s  a call ms")
    for run in runs:
        print(
            f"{run.workers:7}  {run.before_s:14.2f}  {run.after_s:17.2f}  {run.scheduler_cpu_s:15.2f}  "
            f"{1e3 * run.scheduler_cpu_s / run.calls:9.2f}"
        )
    model = fitted(runs)
    print("\nworkers  calls/s  scheduler's core  snapshots every s  clocks s  beside a level of 1M requests s")
    for count in ASKED:
        print(
            f"{count:7}  {model.calls_a_s(count):7.0f}  {100 * model.calls_a_s(count) * model.call_s:14.0f} %  "
            f"{period_s(count):17.2f}  {model.clocks_s(count):8.1f}  {model.verdict_s(count, 1_000_000):31.0f}"
        )
    if options.json:
        written = [
            {"name": r.name, "ours": r.ours, "other": None, "ratio": None, "goal": r.goal, "ok": r.ok} for r in found
        ]
        options.json.write_text(json.dumps({"rows": written}, indent=2) + "\n", "utf-8")
    return 0 if all(row.ok for row in found) else 1


if __name__ == "__main__":
    sys.exit(main())
