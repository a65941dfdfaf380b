"""What the page of a very large run takes: a journal of a million requests is made, and its page is built from it.

    python bench/report.py [--quick] [--json FILE]

The real command, `loadtest report DIR --html`, in a process of its own whose peak of memory the kernel keeps. Rows,
each at most its goal: seconds, MB of memory, MB of the page. ``--quick`` (under 50 s) takes a fifth of the requests and
the same share of the time. Exit code 0 only if every row is ok; 15 % of the time are allowed for the machine's noise.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np

from loadtest.level import Level, LevelRun
from loadtest.records import JOURNAL, Record, RequestError
from loadtest.result import Conditions, Endpoint, Hardware, LevelResult, Result, ScenarioRef, Tool, write
from loadtest.schedule import Load
from loadtest.summary import summarise
from loadtest.workload.lengths import Length
from loadtest.workload.model import Workload

REQUESTS = 1_000_000
LEVELS = 10
QUICK = 5
# Within which a page of REQUESTS has to be there, and in what; so much of a page are its scripts.
SECONDS, MEGABYTES, PAGE_MEGABYTES = 60.0, 1500.0, 3.0
NOISE = 1.15
GAPS = 16


def main() -> int:
    """Print all rows; 0 if each is ok."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="under 50 s")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows to FILE")
    options = parser.parse_args()
    share = QUICK if options.quick else 1
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make(folder, REQUESTS // share)
        seconds, megabytes = build(folder)
        page = (folder / "report.html").stat().st_size / 1e6
    rows = []
    for what, ours, goal, allowed in (
        ("seconds", seconds, SECONDS / share, NOISE),
        ("MB of memory", megabytes, MEGABYTES, 1.0),
        ("MB of the page", page, PAGE_MEGABYTES, 1.0),
    ):
        title = f"page of {REQUESTS // share:,} requests: {what}"
        ok = ours <= goal * allowed
        print(f"{title:52} {ours:>8.1f}  at most {goal:>6g}  {'ok' if ok else 'MISSED'}", flush=True)
        rows.append({"name": title, "ours": ours, "other": None, "ratio": None, "goal": goal, "ok": ok})
    if options.json:
        options.json.write_text(json.dumps({"rows": rows}, indent=2) + "\n")
    return 0 if all(row["ok"] for row in rows) else 1


def build(folder: Path) -> tuple[float, float]:
    """The seconds that the page of ``folder`` takes, and the MB of memory at their peak."""
    command = [sys.executable, "-m", "loadtest", "report", str(folder), "--html"]
    begun = time.perf_counter()
    environment = {**os.environ, "XDG_CACHE_HOME": str(folder)}
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment) as process:
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(process.returncode)
    return time.perf_counter() - begun, used.ru_maxrss / 1000


def make(folder: Path, requests: int) -> None:
    """A result of LEVELS levels and its journal, of so many requests in all."""
    levels = []
    with (folder / JOURNAL).open("wb") as file:
        for index in range(LEVELS):
            load = Load("poisson", rate_per_s=100.0 * (index + 1))
            level = Level(
                index=index, name=str(load), load=load, batching=None,
                workloads=(Workload(Length(32, 2047), Length(GAPS + 1, GAPS + 1)),),
                duration_s=None, requests=requests // LEVELS, warmup_s=0.0, grace_s=5.0,
            )  # fmt: skip
            levels.append(play(level, file.write))
    told = Conditions(
        endpoint=Endpoint(kind="chat", url="http://127.0.0.1:8000", model="none"),
        hardware=Hardware(),
        scenario=ScenarioRef(name="large", sha256="0" * 64),
    )
    result = Result(
        tool=Tool(name="loadtest", version="0"), command="bench/report.py", started_at="2025-01-01T00:00:00Z", seed=1,
        complete=True, exit_code=0, conditions=told, levels=levels,
    )  # fmt: skip
    write(result, folder)


def play(level: Level, keep: Callable[[bytes], object]) -> LevelResult:
    """The level against a target that waits in a queue now and then; each record goes to ``keep``."""
    rng = np.random.default_rng(level.index)
    n = level.requests or 0
    due = np.cumsum(rng.exponential(1000 / (level.load.rate_per_s or 1.0), n))
    prompts = rng.integers(32, 2048, n)
    ttft = rng.lognormal(3.0, 0.4, n) + prompts / 20 + 80 * np.maximum(np.sin(due / 20_000), 0)
    gaps = rng.gamma(9.0, 1.0, (n, GAPS)).round(3)
    failed = rng.random(n) < 0.002
    records = []
    for number, (at, tokens, wait, own, bad) in enumerate(
        zip(
            due.round(4).tolist(), prompts.tolist(), ttft.round(4).tolist(), gaps.tolist(), failed.tolist(), strict=True
        )
    ):
        first, done = at + 0.1 + wait, at + 0.2 + wait + sum(own)
        record = Record(
            id=number, level=level.index, worker=0, intended_ms=at, in_window=True, sent_ms=at + 0.1, done_ms=done,
            outcome="http_error" if bad else "ok", asked_input_tokens=tokens, asked_output_tokens=GAPS + 1,
            error=RequestError("http_status", "busy", 503) if bad else None,
        )  # fmt: skip
        if not bad:
            record = msgspec.structs.replace(
                record, first_byte_ms=first, first_token_ms=first, first_answer_ms=first, last_token_ms=done,
                input_tokens=tokens, output_tokens=GAPS + 1, token_source="usage", events=GAPS + 1, itl_ms=own,
            )  # fmt: skip
        keep(msgspec.json.encode(record) + b"\n")
        records.append(record)
    ended = max(record.done_ms or 0.0 for record in records)
    return summarise(level, records, LevelRun(level.index, "completed", float(due[-1]), ended, []))


if __name__ == "__main__":
    sys.exit(main())
