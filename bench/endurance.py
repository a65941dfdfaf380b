"""Whether a long run of the client takes no more memory and disk the longer it lasts.

    python bench/endurance.py [--minutes 30] [--quick] [--records all|sampled|none] [--rate 2000] [--json FILE]

One run of one level against the fake server: answers of two tokens, at a rate that leaves the client idle most of the
time, so that many requests come together. A client that cannot keep up holds what waits for it, which says nothing of
hours. The resident memory of the parent and of its worker is read each second. Rows:

- memory of the parent, and of the worker: the median of the last fifth ÷ that of the middle one, at most 1.05. The
  first two fifths warm up: the journal is read from the 30th second on, figures so far are made from the 60th. While
  these are made the parent takes more, for seconds; ``bench/figures.py`` says how much.
- disk: what the folder takes in the end ÷ the journal if it were never packed, at most 0.5 (sampled: 0.1, none: 0.01).
- conservation: requests that have an outcome are as many as were due.

Memory is measured while the level is played. Afterwards the figures are made of all requests: the last line says what
that takes. ``--quick`` lasts three minutes, of which two figures so far are a large part: it allows the memory 15 %
more. Exit code 0 only if every row is ok, and the run ended in order.
"""

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

MEMORY_GOAL = 1.05
NOISE = 1.15  # of --quick
DISK_GOALS = {"all": 0.5, "sampled": 0.1, "none": 0.01}


def memory_kib(pid: int) -> int:
    """What a process holds resident; 0 where it is gone."""
    try:
        match = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text("ascii"))
    except OSError:
        return 0
    return int(match[1]) if match else 0


def children(pid: int) -> list[int]:
    """Processes of a process."""
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text("ascii").split()]
    except OSError:
        return []


def played(url: str, seconds: float, records: str, rate: float, folder: Path) -> tuple[list[list[int]], int, float]:
    """Play the run: of each second of the level the memory of parent and worker, the most at its end, its time.

    Raises:
        SystemExit: it did not end in order.
    """
    command = [
        sys.executable, "-m", "loadtest", "run", url, "-r", f"{rate:g}", "-d", f"{seconds:g}s", "--warmup", "1s",
        "--input-tokens", "8", "--output-tokens", "2", "--workers", "1", "--records", records, "--seed", "1",
        "--metrics", "off", "--endpoint", "chat", "--no-html", "-q", "-o", str(folder),
    ]  # fmt: skip
    seen: list[list[int]] = []
    most = 0
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        while process.poll() is None and not (folder / "records.jsonl").exists():
            time.sleep(0.05)
        began = time.monotonic()
        while process.poll() is None:
            past_s, parent = time.monotonic() - began, memory_kib(process.pid)
            if past_s < seconds - 1:
                if (own := children(process.pid)) and parent:
                    seen.append([parent, memory_kib(own[0])])
                time.sleep(1.0)
            else:
                most = max(most, parent)
                time.sleep(0.05)
    after_s = time.monotonic() - began - seconds
    if process.returncode:
        sys.exit(f"the run ended with exit code {process.returncode} {after_s:.0f} s after its time")
    return seen, most, after_s


def rows(seen: list[list[int]], folder: Path, records: str, allowed: float) -> list[dict[str, Any]]:
    """What came of it, in the form of all benches."""
    found = []
    fifth = len(seen) // 5
    for place, name in enumerate(("memory of the parent, last fifth ÷ middle one", "memory of the worker, the same")):
        middle = statistics.median(each[place] for each in seen[2 * fifth : 3 * fifth])
        last = statistics.median(each[place] for each in seen[-fifth:])
        found.append(_row(f"{name} (KiB)", last, middle, MEMORY_GOAL, allowed))
    result = json.loads((folder / "result.json").read_text("utf-8"))
    counts = result["levels"][0]["counts"]
    disk = sum(path.stat().st_size for path in folder.iterdir())
    line = 460  # bytes of a record of these requests
    found.append(_row(f"disk ÷ journal, --records {records}", disk, line * counts["scheduled"], DISK_GOALS[records]))
    ended = sum(counts[name] for name in ("ok", "http_error", "stream_error", "transport_error", "timed_out"))
    ended += counts["cancelled"] + counts["never_sent"]
    found.append(
        {**_row("requests with an outcome ÷ due", ended, counts["scheduled"], 1.0), "ok": ended == counts["scheduled"]}
    )
    return found


def _row(name: str, ours: float, other: float, goal: float, allowed: float = 1.0) -> dict[str, Any]:
    ratio = round(ours / other, 4) if other else None
    return {
        "name": name,
        "ours": ours,
        "other": other,
        "ratio": ratio,
        "goal": goal,
        "ok": ratio is not None and ratio <= goal * allowed,
    }


def main() -> int:
    """Play, print, judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--quick", action="store_true", help="three minutes")
    parser.add_argument("--records", choices=[*DISK_GOALS], default="all")
    parser.add_argument("--rate", type=float, default=2000.0, help="requests per second")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    seconds = 180.0 if asked.quick else asked.minutes * 60
    server = [sys.executable, "-m", "servers.fake", "--port", "0", "--ttft-ms", "1", "--itl-ms", "1"]
    with (
        tempfile.TemporaryDirectory() as made,
        subprocess.Popen(
            [*server, "--exit-on-stdin-close"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as fake,
    ):
        assert fake.stdout is not None
        match = re.search(r"http://\S+", fake.stdout.readline())
        assert match is not None, "the fake server did not start"
        folder = Path(made) / "out"
        seen, most, after_s = played(match[0], seconds, asked.records, asked.rate, folder)
        found = rows(seen, folder, asked.records, NOISE if asked.quick else 1.0)
        requests = found[-1]["other"]
        fake.terminate()
    for row in found:
        print(f"{row['name']:<50} {row['ours']:>14,.0f} {row['other']:>14,.0f} {row['ratio']} (goal {row['goal']}) "
              f"{'ok' if row['ok'] else 'NOT OK'}")  # fmt: skip
    during = statistics.median(each[0] for each in seen[-len(seen) // 5 :])
    print(
        f"{requests:,} requests in {seconds:g} s; then figures: {after_s:.1f} s, and at most {most / 1024:,.0f} MiB, "
        f"{(most - during) * 1024 / requests:,.0f} bytes a request more than before"
    )
    if asked.json is not None:
        asked.json.write_text(json.dumps({"rows": found}, indent=2), "utf-8")
    return 0 if all(row["ok"] for row in found) else 1


if __name__ == "__main__":
    sys.exit(main())
