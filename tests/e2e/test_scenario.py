"""What a scenario asks beyond one load and one length, played by the real command."""

import json
import os
import signal
import tempfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from loadtest.cli import main
from tests.conftest import Command
from tests.e2e.test_interrupt import start, wait_for_records
from tests.e2e.test_run import the_result

pytestmark = pytest.mark.e2e
ROWS = '{"prompt": "one two three"}\n{"prompt": ""}\n{"prompt": "four five six", "output_tokens": 3}\n'
TRACE = "".join(f'{{"timestamp": {at}, "input_tokens": 30, "output_tokens": 3}}\n' for at in (0, 0.2, 0.3, 0.8, 1.0))
SCENARIO = """\
workload:
  data: {path: rows/rows.jsonl, order: file}
  output_tokens: 4
  body: {temperature: 0.5}
load: {concurrency: [1, 2], requests: 6, repeat: 2, cooldown: 100ms}
probe_stream: {rate: 20, input_tokens: 8, output_tokens: 1}
locked: true
"""


def written(folder: Path) -> None:
    (folder / "rows").mkdir()
    (folder / "rows" / "rows.jsonl").write_text(ROWS)
    (folder / "trace.jsonl").write_text(TRACE)
    (folder / "s.yaml").write_text(SCENARIO)
    (folder / "temporary").mkdir()


def test_rows_of_a_file_are_played_in_repeats_and_nothing_is_left_behind(
    loadtest: Command, tiny: str, tmp_path: Path
) -> None:
    written(tmp_path)
    done = loadtest("run", tiny, "-s", "s.yaml", "--seed", "1", "-o", "out", TMPDIR=str(tmp_path / "temporary"))
    assert done.returncode == 0, done.stderr
    result = the_result(tmp_path / "out")
    names = [level["name"] for level in result["levels"]]
    assert names[:2] == ["c=1 (1/2)", "c=2 (1/2)"]
    assert sorted(names[2:]) == ["c=1 (2/2)", "c=2 (2/2)"]
    assert [level["counts"]["ok"] for level in result["levels"]] == [6] * 4
    assert any("rows.jsonl: 1 row left out" in warning for warning in result["warnings"])
    assert result["conditions"]["not_comparable"] == []
    assert any(level["probe"]["counts"]["ok"] for level in result["levels"])
    assert list((tmp_path / "temporary").iterdir()) == []
    kept = loadtest("plan", tiny, "-s", "out/scenario.resolved.yaml", "--json", "-")
    assert json.loads(kept.stdout)["scenario"]["sha256"] == result["conditions"]["scenario"]["sha256"]


def test_a_trace_and_a_file_can_be_flags_and_win_over_the_variables_of_other_loads(
    loadtest: Command, tiny: str, tmp_path: Path
) -> None:
    written(tmp_path)
    done = loadtest("run", tiny, "--trace", "trace.jsonl", "--speed", "2x", "-o", "out", LOADTEST_RATE="5")
    assert done.returncode == 0, done.stderr
    (level,) = the_result(tmp_path / "out")["levels"]
    assert (level["load"]["kind"], level["counts"]["ok"]) == ("trace", 5)
    done = loadtest("run", tiny, "--data", "rows/rows.jsonl", "-n", "4", "-o", "again")
    assert done.returncode == 0, done.stderr
    (level,) = the_result(tmp_path / "again")["levels"]
    assert level["counts"]["ok"] == 4


def test_a_result_in_the_small_or_of_a_changed_locked_scenario_says_so(
    loadtest: Command, tiny: str, tmp_path: Path
) -> None:
    written(tmp_path)
    done = loadtest("run", tiny, "-s", "s.yaml", "--scale", "0.2", "-c", "1", "-o", "out")
    assert done.returncode == 0, done.stderr
    reasons = the_result(tmp_path / "out")["conditions"]["not_comparable"]
    assert reasons == ["played in the small (--scale 0.2)", "the scenario is locked, and --concurrency changed it"]
    assert "not comparable" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--data", "gone.jsonl"), "--data: no such file: "),
        (("--speed", "2"), "--speed: applies to a trace only: give one with --trace"),
        (("--data", "rows/rows.jsonl", "--input-tokens", "5"), "--input-tokens: excludes data (--data)"),
        (("--trace", "rows/rows.jsonl"), "rows.jsonl"),
        (("--scale", "3"), "--scale: expected more than 0 and at most 1, got '3'"),
        (("--repeat", "0"), "--repeat: expected at least 1, got 0"),
    ],
)
def test_bad_input_is_one_message_and_exit_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], message: str
) -> None:
    written(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    done = CliRunner().invoke(main, ["run", "http://127.0.0.1:1", *arguments, "-o", "out"])
    assert (done.exit_code, done.stdout) == (2, "")
    assert message in done.stderr
    assert isinstance(done.exception, SystemExit)
    assert not (tmp_path / "out").exists()
    assert list((tmp_path / "temporary").iterdir()) == []


def test_ctrl_c_takes_the_prepared_rows_away_and_ends_a_pause(
    environment: dict[str, str], tmp_path: Path, tiny: str
) -> None:
    written(tmp_path)
    (tmp_path / "s.yaml").write_text(SCENARIO.replace("100ms", "60s"))
    there = {**environment, "TMPDIR": str(tmp_path / "temporary")}
    with start(there, tmp_path, tiny, "-s", "s.yaml") as process:
        wait_for_records(tmp_path, 6)
        assert list((tmp_path / "temporary").iterdir())
        os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    result = the_result(tmp_path / "out")
    assert result["complete"] is False
    assert result["levels"][0]["counts"]["ok"] >= 6
    assert list((tmp_path / "temporary").iterdir()) == []
