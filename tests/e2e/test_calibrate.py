"""``loadtest calibrate`` as a user has it: real processes, the table, the file that later runs read."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import Command

pytestmark = pytest.mark.e2e


def test_a_quick_calibration_prints_what_is_carried_and_keeps_it(loadtest: Command, tmp_path: Path) -> None:
    done = loadtest("calibrate", "--quick", "--save", "--json", "figures.json", XDG_CACHE_HOME=str(tmp_path / "cache"))
    figures = json.loads((tmp_path / "figures.json").read_text("utf-8"))
    rows = figures["rows"]
    assert [(row["kind"], row["concurrency"]) for row in rows] == [
        ("streams", 1), ("streams", 64), ("streams", 256), ("streams", 1024), ("burst", 64), ("whole", 64),
    ]  # fmt: skip
    for row in rows:
        assert row["requests"] > 0
        assert row["requests_per_s"] > 0
        assert 0 < row["cpu_share"] <= 1.1
        assert not any("failed" in reason for reason in row["reasons"])
    assert all(row["events_per_s"] > 0 for row in rows[:5])
    assert all(row["added_itl_p99_ms"] is not None and row["added_ttft_p99_ms"] is not None for row in rows[:4])
    assert figures["finding"].startswith("One worker carries")
    for words in ("1,024 streams", "burst, 64 at once", "added TTFT", "One worker carries"):
        assert words in done.stdout
    kept = tmp_path / "cache" / "loadtest" / "calibration.json"
    if figures["carried_streams"] is None:  # on a machine so busy that nothing can be told, that is what is said
        assert done.returncode == 1
        assert "error: not saved: no load was carried" in done.stderr
        assert not kept.exists()
    else:
        assert done.returncode == 0, done.stderr
        assert str(kept) in done.stderr
        assert json.loads(kept.read_text("utf-8"))["rows"] == rows


def test_sigterm_ends_it_and_leaves_nothing_behind(environment: dict[str, str], tmp_path: Path) -> None:
    command = [sys.executable, "-m", "loadtest", "calibrate", "--quick"]
    with subprocess.Popen(command, env={**environment, "TMPDIR": str(tmp_path)}) as process:
        while process.poll() is None and not list(tmp_path.glob("loadtest-*/*.jsonl")):
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 130
    assert list(tmp_path.iterdir()) == []


def test_a_flag_that_there_is_not_exits_2(loadtest: Command) -> None:
    done = loadtest("calibrate", "--slow")
    assert done.returncode == 2
    assert "--slow" in done.stderr
