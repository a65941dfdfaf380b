"""How accurate and how cheap the client is, measured against a server whose timings are known exactly.

    python bench/client.py [--quick] [--json FILE] [--peer NAME='COMMAND']…

The real command, ``loadtest run URL …``, plays each case from one core against bench/truthserver.c on another. An error
is what loadtest reports less what the server's own account says. Beside it stands bench/truthclient.c in the same
run: a C client that does next to nothing, the limit of that core. docs/accuracy.md says what the rows mean.

``--quick`` (under 50 s) has, from one repetition: accuracy at 64 and 256 streams, CPU at 256, the time to the first
request, burst, and constant arrivals. The whole table is of medians of 3, and takes about five minutes.

``--peer`` adds the CPU per chunk of another load generator at 256 streams. In its command {url}, {concurrency},
{requests} and {tokens} are filled in; it needs nothing else, since the server keeps the account.

Exit code 0 only if every row reaches its goal less 15 %, the noise of a shared machine.
"""

import argparse
import contextlib
import dataclasses
import itertools
import json
import math
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

HERE = Path(__file__).parent
NOISE = 0.15
REPETITIONS = 3
PEER_GOAL = 0.9
COMMAND_LIMIT_S = 120.0
SAMPLE_S = 0.1

Goal = Literal["at most", "at least", "ratio at most", "ratio at least"]


@dataclasses.dataclass(frozen=True)
class Case:
    """One load on one setting of the server. ``load`` is a concurrency, or an arrival kind at ``RATE_PER_S``."""

    name: str
    ttft_ms: float
    itl_ms: float
    tokens: int
    load: int | Literal["constant", "poisson"]
    requests: int
    stream: bool = True


RATE_PER_S = 200


@dataclasses.dataclass(frozen=True)
class Run:
    """One client's run of one case. ``reported`` has the client's own ms by name, such as ``ttft_p50``."""

    truth: dict[str, Any]  # the server's account
    arrivals_s: list[float]  # at the server, from the first
    reported: dict[str, float]
    due_span_s: float  # of the schedule, first to last
    cpu_s: float  # of the whole command
    worker_cpu_s: float  # of the process that sends
    memory_mb: float  # most of the whole command at once, shared pages counted once
    read_s: float  # from the first arrival until the last answer had been read and recorded


@dataclasses.dataclass(frozen=True)
class Row:
    """One line of the table: what is measured in a run, and what it should reach."""

    name: str
    measure: Callable[[Run], float]
    kind: Goal
    goal: float


# ---- what is measured


def error(figure: str) -> Callable[[Run], float]:
    """How far a reported figure is from the truth, in ms; ``figure`` such as ``ttft_p50``."""
    name, quantile = figure.split("_")
    return lambda run: abs(run.reported[figure] - float(run.truth[f"{name}_ms"][quantile]))


def cpu_us(run: Run) -> float:
    """CPU µs per chunk of the whole command: interpreter, imports and report included."""
    return run.cpu_s * 1e6 / float(run.truth["chunks"])


def worker_cpu_us(run: Run) -> float:
    """CPU µs per chunk of the process that sends and receives."""
    return run.worker_cpu_s * 1e6 / float(run.truth["chunks"])


def absorbed_per_s(run: Run) -> float:
    """Chunks/s from the first arrival until the server had written the last."""
    return float(run.truth["chunks"]) / float(run.truth["span_s"])


def parsed_per_s(run: Run) -> float:
    """Chunks/s from the first arrival until the last was decoded and recorded."""
    return float(run.truth["chunks"]) / run.read_s


def requests_per_s(run: Run) -> float:
    """Answers/s as the server counted them."""
    return float(run.truth["done"]) / float(run.truth["span_s"])


def rate_error(run: Run) -> float:
    """How far the rate of arrivals is from that of the schedule, in %."""
    return 100 * abs(run.due_span_s / run.arrivals_s[-1] - 1)


def distance_to_exponential(run: Run) -> float:
    """Kolmogorov–Smirnov distance of the gaps between arrivals to the exponential distribution asked for."""
    arrivals = run.arrivals_s
    gaps = sorted(later - earlier for earlier, later in itertools.pairwise(arrivals))
    expected = [-math.expm1(-gap * RATE_PER_S) for gap in gaps]
    n = len(gaps)
    return max(max((i + 1) / n - value, value - i / n) for i, value in enumerate(expected))


def behind_grid_ms(run: Run) -> float:
    """p99 of how late an arrival is on the constant grid that fits the earliest of them, in ms."""
    behind = [at - i / RATE_PER_S for i, at in enumerate(run.arrivals_s)]
    best = min(behind)
    return 1e3 * sorted(value - best for value in behind)[math.ceil(0.99 * len(behind)) - 1]


def first_request_s(run: Run) -> float:
    """From the start of the command to its first request at the server."""
    return float(run.truth["first_arrival_s"])


def memory_mb(run: Run) -> float:
    """See ``Run``."""
    return run.memory_mb


def plan(quick: bool) -> list[tuple[Case, list[Row]]]:
    """The cases and their rows."""
    # streams: goals of TTFT p50, TTFT p99, ITL p99, TPOT p50 in ms
    goals = {64: (1.0, 2.0, 1.0, 0.05), 256: (0.5, 5.0, 1.0, 0.05), 1024: (1.0, 10.0, 2.0, 0.05)}
    found: list[tuple[Case, list[Row]]] = []
    for streams, (ttft_p50, ttft_p99, itl_p99, tpot_p50) in goals.items():
        if quick and streams > 256:
            continue
        rows = [
            Row(f"{figure[:4].upper().strip('_')} {figure[-3:]} error, ms", error(figure), "at most", goal)
            for figure, goal in (
                ("ttft_p50", ttft_p50), ("ttft_p99", ttft_p99), ("itl_p99", itl_p99), ("tpot_p50", tpot_p50)
            )
        ]  # fmt: skip
        if streams > 64:
            rows.append(Row("CPU µs/chunk, worker", worker_cpu_us, "ratio at most", 3.0))
            if not quick:  # in a short run it would be a measure of the imports
                rows.append(Row("CPU µs/chunk, whole command", cpu_us, "ratio at most", 3.0))
        else:
            rows.append(Row("first request after the command, s", first_request_s, "at most", 0.4))
        if streams > 256:
            rows.append(Row("memory, MB", memory_mb, "at most", 120.0))
        rounds = 4 if quick else 10 if streams == 256 else 5
        found.append((Case(f"{streams} streams", 50, 20, 64, streams, streams * rounds), rows))
    if not quick:
        rows = [
            Row("ITL p99 error, ms", error("itl_p99"), "at most", 5.0),
            Row("chunks/s", absorbed_per_s, "ratio at least", 0.95),
        ]
        found.append((Case("1024 streams, ITL 10 ms", 50, 10, 128, 1024, 4096), rows))
    rows = [
        Row("chunks/s, absorbed", absorbed_per_s, "at least", 1.5e6),
        Row("chunks/s, all parsed", parsed_per_s, "at least", 450e3),
    ]
    found.append((Case("burst", 0, 0, 128, 64, 1500), rows))
    if not quick:
        rows = [Row("requests/s", requests_per_s, "at least", 50e3)]
        found.append((Case("not streamed", 0, 0, 1, 64, 40_000, stream=False), rows))
    rows = [Row("p99 behind the grid, ms", behind_grid_ms, "at most", 1.0)]
    found.append((Case(f"constant {RATE_PER_S}/s", 50, 20, 16, "constant", 600 if quick else 2000), rows))
    if not quick:
        rows = [
            Row("rate error, %", rate_error, "at most", 0.1),
            Row("distance of gaps to exponential", distance_to_exponential, "at most", 0.04),
        ]
        found.append((Case(f"Poisson {RATE_PER_S}/s", 50, 20, 16, "poisson", 2001), rows))
    return found


# ---- running it


class Bench:
    """The two C programs, compiled into a folder that goes with it, and where everything runs."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        cores = sorted(os.sched_getaffinity(0))
        if len(cores) < 2:
            raise SystemExit("error: this needs two cores, one for the client and one for the server")
        self._server_core, self._client_core = cores[:2]
        self.real_time = _may_have_real_time()
        # Python's files are compiled once, as pip does for an installed package, also where they are read from a clone.
        cache = {"PYTHONPYCACHEPREFIX": str(folder / "pycache"), "PYTHONDONTWRITEBYTECODE": ""}
        self._environment = {**os.environ, **cache}
        for name in ("truthserver", "truthclient"):
            command = ["cc", "-O2", "-o", str(folder / name), str(HERE / f"{name}.c"), "-lm"]
            try:
                subprocess.run(command, check=True)
            except (OSError, subprocess.CalledProcessError) as fault:
                raise SystemExit(f"error: cannot compile {name}.c: {fault}; a C compiler named cc is needed") from None

    def ours(self, case: Case, seed: int) -> Run:
        """Run loadtest on a case."""
        with tempfile.TemporaryDirectory(dir=self._folder) as name:
            folder = Path(name) / "run"
            load = ["-c", case.load] if isinstance(case.load, int) else ["-r", RATE_PER_S, "--arrival", case.load]
            command = [
                Path(sys.executable).with_name("loadtest"), "run", "{url}", *load, "-n", case.requests, "-q",
                "--input-tokens", 20, "--output-tokens", case.tokens, "--seed", seed, "-o", folder,
                *([] if case.stream else ["--no-stream"]),
            ]  # fmt: skip
            run = self._run(case, [str(part) for part in command], folder / "records.jsonl")
            level = json.loads((folder / "result.json").read_text())["levels"][0]
            if level["counts"]["ok"] != case.requests:
                raise SystemExit(f"error: {case.name}: of {case.requests} requests {level['counts']['ok']} were good")
            intended = [json.loads(line)["intended_ms"] for line in (folder / "records.jsonl").open()]
        reported = {
            f"{name}_{quantile}": level["latency"][f"{name}_ms"]["ok"][quantile]
            for name in ("ttft", "itl", "tpot")
            for quantile in ("p50", "p99")
        }
        return dataclasses.replace(run, reported=reported, due_span_s=(max(intended) - min(intended)) / 1e3)

    def limit(self, case: Case) -> Run:
        """Run the C client on a case; it knows no Poisson arrivals."""
        load = str(case.load) if isinstance(case.load, int) else f"{RATE_PER_S}/s"
        kind = "stream" if case.stream else "whole"
        command = [str(self._folder / "truthclient"), "{port}", kind, str(case.requests), str(case.tokens), load]
        output = self._folder / "truthclient.json"
        with output.open("w") as file:
            run = self._run(case, command, output, file)
        report = json.loads(output.read_text())
        reported = {
            f"{name}_{quantile}": report[f"{name}_ms"][quantile]
            for name in ("ttft", "itl", "tpot")
            for quantile in ("p50", "p99")
        }
        # One process from start to end, and every chunk parsed as it came.
        return dataclasses.replace(
            run, reported=reported, worker_cpu_s=run.cpu_s, due_span_s=(case.requests - 1) / RATE_PER_S
        )

    def peer(self, case: Case, command: str) -> Run | None:
        """Run any other load generator on a case; None if there is no such program."""
        parts = [
            part.format(url="{url}", concurrency=case.load, requests=case.requests, tokens=case.tokens)
            for part in shlex.split(command)
        ]
        try:
            run = self._run(case, parts, HERE)
        except FileNotFoundError:
            return None
        return run if run.truth["chunks"] else None

    def _run(self, case: Case, command: list[str], written: Path, stdout: Any = subprocess.DEVNULL) -> Run:
        with self._server(case) as port:
            url = f"http://127.0.0.1:{port}"
            parts = [part.replace("{url}", url).replace("{port}", str(port)) for part in command]
            _get(url, "/reset")
            reset_at = time.time()
            with self._placed(self._client_core):
                process = subprocess.Popen(parts, stdout=stdout, env=self._environment)
            watch = _Watch(process.pid)
            killer = threading.Timer(COMMAND_LIMIT_S, process.kill)
            killer.start()
            try:
                _, status, usage = os.wait4(process.pid, 0)
            finally:
                killer.cancel()
                watch.stop()
            process.returncode = os.waitstatus_to_exitcode(status)
            truth = json.loads(_get(url, "/truth"))
            arrivals = [int(line) / 1e9 for line in _get(url, "/arrivals").split()]
        if process.returncode:
            raise SystemExit(f"error: {shlex.join(parts)} ended with exit code {process.returncode}")
        return Run(
            truth=truth,
            arrivals_s=arrivals,
            reported={},
            due_span_s=0.0,
            cpu_s=usage.ru_utime + usage.ru_stime,
            worker_cpu_s=watch.worker_cpu_s,
            memory_mb=watch.memory_mb,
            read_s=written.stat().st_mtime - reset_at - truth["first_arrival_s"],
        )

    @contextlib.contextmanager
    def _server(self, case: Case) -> Iterator[int]:
        settings = [str(value) for value in (0, case.ttft_ms, case.itl_ms, case.tokens)]
        with self._placed(self._server_core):
            process = subprocess.Popen([self._folder / "truthserver", *settings], stdout=subprocess.PIPE)
        assert process.stdout is not None
        with process:
            try:
                yield int(process.stdout.readline())
            finally:
                process.kill()

    @contextlib.contextmanager
    def _placed(self, core: int) -> Iterator[None]:
        """What is started here runs on this core alone, as if nothing else did: a child inherits both."""
        cores = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {core})
        if self.real_time:
            os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
        try:
            yield
        finally:
            if self.real_time:
                os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
            os.sched_setaffinity(0, cores)


class _Watch:
    """Samples a command and its children: memory of all at once, CPU time of the busiest child."""

    def __init__(self, pid: int) -> None:
        self.memory_mb = self.worker_cpu_s = 0.0
        self._pid = pid
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._over.wait(SAMPLE_S):
            memory_mb = 0.0
            with contextlib.suppress(OSError, ValueError, IndexError):  # it ends while we look
                children = Path(f"/proc/{self._pid}/task/{self._pid}/children").read_text().split()
                for child in children:
                    on_cpu_ns = int(Path(f"/proc/{child}/schedstat").read_text().split()[0])
                    self.worker_cpu_s = max(self.worker_cpu_s, on_cpu_ns / 1e9)
                for pid in (self._pid, *children):
                    shares = Path(f"/proc/{pid}/smaps_rollup").read_text().split("\nPss:")[1]
                    memory_mb += int(shares.split()[0]) * 1024 / 1e6
                self.memory_mb = max(self.memory_mb, memory_mb)


def _may_have_real_time() -> bool:
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    except PermissionError:
        return False
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    return True


def _get(url: str, path: str) -> str:
    with urllib.request.urlopen(url + path, timeout=10) as reply:
        return str(reply.read().decode())


# ---- the table


def judge(row: Row, case: Case, ours: Sequence[Run], others: Sequence[Run]) -> dict[str, Any]:
    """A row of medians, as it goes into the JSON file."""
    own = statistics.median(map(row.measure, ours))
    other = statistics.median(map(row.measure, others)) if others else None
    ratio = own / other if other else None
    value = own if row.kind in ("at most", "at least") else ratio
    if value is None:
        ok = False
    elif row.kind.endswith("at most"):
        ok = value <= row.goal * (1 + NOISE)
    else:
        ok = value >= row.goal * (1 - NOISE)
    return {
        "name": f"{case.name}: {row.name}", "ours": own, "other": other, "ratio": ratio, "goal": row.goal, "ok": ok
    }  # fmt: skip


def show(result: dict[str, Any], kind: Goal) -> None:
    """Print a row."""

    def number(value: float | None) -> str:
        return "absent" if value is None else f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3f}"

    sign = "≤" if kind.endswith("at most") else "≥"
    goal = f"{sign} {result['goal']:,g}" + (" ×" if kind.startswith("ratio") else "")
    ratio = "—" if result["ratio"] is None else f"{result['ratio']:.2f}"
    figures = f"{number(result['ours']):>10} {number(result['other']):>10} {ratio:>7} {goal:>12}"
    print(f"{result['name']:54} {figures}  {'ok' if result['ok'] else 'MISSED'}", flush=True)


def measure(bench: Bench, case: Case, rows: list[Row], repetitions: int) -> tuple[list[Run], list[dict[str, Any]]]:
    """Run a case on both clients in turns, print its rows and return them."""
    ours, limits = [], []
    for seed in range(repetitions):
        ours.append(bench.ours(case, seed))
        if case.load != "poisson":
            limits.append(bench.limit(case))
    results = []
    for row in rows:
        # The C client is one process of two megabytes that reports nothing: no figure to hold ours against.
        results.append(judge(row, case, ours, [] if row.measure is memory_mb else limits))
        show(results[-1], row.kind)
    return ours, results


def peers(bench: Bench, given: Sequence[str], case: Case, ours: Sequence[Run]) -> list[dict[str, Any]]:
    """The rows of other load generators."""
    results = []
    for peer in given:
        name, _, command = peer.partition("=")
        row = Row(f"CPU µs/chunk, whole command, against {name}", cpu_us, "ratio at most", PEER_GOAL)
        runs = [bench.peer(case, command) for _ in ours]
        results.append(judge(row, case, ours, [run for run in runs if run is not None]))
        show(results[-1], row.kind)
    return results


def main() -> int:
    """Run all rows; 0 if each is ok."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer cases, one repetition, under 50 s")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows to FILE")
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=COMMAND", help="another load generator")
    options = parser.parse_args()
    if any("=" not in peer for peer in options.peer):
        parser.error("--peer: not of the form NAME=COMMAND")
    results = []
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder))
        bench.ours(Case("a first run, which compiles Python's files", 0, 0, 1, 1, 1), 0)
        print("client and server on a core each, " + ("real-time" if bench.real_time else "ordinary") + " priority")
        print(f"{'':54} {'ours':>10} {'C client':>10} {'ratio':>7} {'goal':>12}")
        for case, rows in plan(options.quick):
            runs, found = measure(bench, case, rows, 1 if options.quick else REPETITIONS)
            results += found
            if case.load == 256:
                results += peers(bench, options.peer, case, runs)
    if options.json:
        options.json.write_text(json.dumps({"rows": results}, indent=2) + "\n")
    return 0 if all(result["ok"] for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
