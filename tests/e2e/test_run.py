"""The main job as a user has it: the real command, the real server, the files it leaves."""

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.conftest import Command

pytestmark = pytest.mark.e2e
OUTCOMES = ("ok", "http_error", "stream_error", "transport_error", "timed_out", "cancelled", "never_sent")
SCHEMA = json.loads((Path(__file__).parents[2] / "docs" / "result.schema.json").read_text("utf-8"))


def the_result(folder: Path) -> dict[str, Any]:
    """result.json as strict JSON, checked against the published schema, with conservation holding in every level."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    result: dict[str, Any] = json.loads((folder / "result.json").read_text("utf-8"), parse_constant=refuse)
    jsonschema.Draft202012Validator(SCHEMA).validate(result)
    lines = [json.loads(line) for line in (folder / "records.jsonl").read_text("utf-8").splitlines()]
    for index, level in enumerate(result["levels"]):
        counts = level["counts"]
        assert counts["scheduled"] == sum(counts[outcome] for outcome in OUTCOMES)
        assert counts["scheduled"] == sum(line["level"] == index and not line.get("probe") for line in lines)
    return result


def test_the_quickstart_needs_nothing_and_shows_its_levels(loadtest: Command, tmp_path: Path) -> None:
    done = loadtest("run", "-o", "out", "-d", "1500ms", timeout=180)
    assert done.returncode == 0, done.stderr
    result = the_result(tmp_path / "out")
    assert len(result["levels"]) == 12
    assert result["complete"] is True
    for level in result["levels"]:
        assert level["counts"]["ok"] > 0
        # On a busy machine the slowest policy may have finished nothing of what was due in so short a window.
        if level["workload"]["input_tokens"]["observed"]["n"]:
            assert level["workload"]["input_tokens"]["observed"]["p50"] == 64
            assert 8 <= level["workload"]["output_tokens"]["observed"]["mean"] <= 56
        assert level["name"] in done.stdout or level["batching"]["scheduler"] in done.stdout
    conditions = result["conditions"]
    assert conditions["precision"] == "fp32"
    assert "onnxruntime" in conditions["software"]
    assert "CPUExecutionProvider" in conditions["hardware"]["server"]
    for word in ("req/s", "tok/s", "TTFT", "TPOT", "E2E", "p99", "requests:", "result: out"):
        assert word in done.stdout


def test_a_url_is_played_and_the_table_can_be_printed_again(loadtest: Command, tiny: str, tmp_path: Path) -> None:
    done = loadtest(
        "run", tiny, "-c", "1,4", "-n", "12", "--input-tokens", "uniform(20,40)", "--output-tokens", "8", "-o", "out"
    )
    assert done.returncode == 0, done.stderr
    result = the_result(tmp_path / "out")
    assert [level["counts"]["ok"] for level in result["levels"]] == [12, 12]
    lengths = result["levels"][0]["workload"]["input_tokens"]["observed"]
    assert 20 <= lengths["mean"] <= 40
    again = loadtest("report", "out")
    assert again.returncode == 0
    assert again.stdout == done.stdout
    assert json.loads(loadtest("report", "out", "--json", "-").stdout) == result


def test_an_open_loop_keeps_its_rate_whatever_the_answers_do(loadtest: Command, tiny: str, tmp_path: Path) -> None:
    done = loadtest("run", tiny, "-r", "40", "-d", "3s", "--warmup", "500ms", "--output-tokens", "4", "-o", "out")
    assert done.returncode == 0, done.stderr
    level = the_result(tmp_path / "out")["levels"][0]
    assert (level["load"]["kind"], level["load"]["rate_per_s"]) == ("poisson", 40.0)
    assert level["counts"]["ok"] == pytest.approx(120, abs=45)
    constant = loadtest("run", tiny, "-r", "40", "--arrival", "constant", "-n", "60", "--output-tokens", "4", "-o", "c")
    assert constant.returncode == 0, constant.stderr
    lines = [json.loads(line) for line in (tmp_path / "c" / "records.jsonl").read_text("utf-8").splitlines()]
    assert sorted(line["intended_ms"] for line in lines) == pytest.approx([25.0 * number for number in range(60)])


def test_any_number_of_workers_plays_the_same_requests(loadtest: Command, tiny: str, tmp_path: Path) -> None:
    asked = [
        "-r",
        "50",
        "-n",
        "40",
        "--seed",
        "7",
        "--input-tokens",
        "uniform(20,60)",
        "--output-tokens",
        "uniform(1,5)",
    ]
    seen = []
    for workers in ("1", "3"):
        folder = f"w{workers}"
        done = loadtest("run", tiny, *asked, "--workers", workers, "-o", folder)
        assert done.returncode == 0, done.stderr
        assert the_result(tmp_path / folder)["levels"][0]["client"]["workers"] == int(workers)
        lines = [json.loads(line) for line in (tmp_path / folder / "records.jsonl").read_text("utf-8").splitlines()]
        keys = ("id", "intended_ms", "asked_input_tokens", "asked_output_tokens", "input_tokens", "output_tokens")
        seen.append(sorted(tuple(line[key] for key in keys) for line in lines))
    assert seen[0] == seen[1]


def test_whole_answers_have_a_latency_but_no_time_to_first_token(loadtest: Command, tiny: str, tmp_path: Path) -> None:
    done = loadtest(
        "run", tiny, "--no-stream", "--endpoint", "completions", "-n", "5", "--output-tokens", "6", "-o", "out"
    )
    assert done.returncode == 0, done.stderr
    level = the_result(tmp_path / "out")["levels"][0]
    assert level["latency"]["e2e_ms"]["ok"]["n"] == 5
    assert level["latency"]["ttft_ms"]["ok"]["n"] == 0
    assert level["latency"]["ttft_ms"]["excluded"] == 5
    assert level["workload"]["output_tokens"]["observed"]["mean"] == 6


def test_what_is_true_of_a_flag_is_true_of_its_variable(loadtest: Command, tiny: str, tmp_path: Path) -> None:
    done = loadtest("run", tiny, "-n", "3", "--output-tokens", "2", "-o", "out", LOADTEST_NO_STREAM="true")
    assert done.returncode == 0, done.stderr
    assert the_result(tmp_path / "out")["levels"][0]["latency"]["ttft_ms"]["ok"]["n"] == 0


def test_json_goes_alone_to_stdout_and_the_environment_counts_less_than_a_flag(loadtest: Command, tiny: str) -> None:
    done = loadtest(
        "run", tiny, "--json", "-", "-n", "4", "--output-tokens", "2", "-q", LOADTEST_REQUESTS="9",
        LOADTEST_CONCURRENCY="2", LOADTEST_RATE="5", LOADTEST_SEED="42",
    )  # fmt: skip
    assert done.returncode == 2, "concurrency and rate at once"
    done = loadtest(
        "run", tiny, "--json", "-", "-n", "4", "--output-tokens", "2", LOADTEST_REQUESTS="9", LOADTEST_CONCURRENCY="2",
        LOADTEST_SEED="42",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["seed"] == 42
    assert result["levels"][0]["counts"]["ok"] == 4
    assert result["levels"][0]["load"]["concurrency"] == 2


def test_a_run_elsewhere_than_a_terminal_prints_no_escape_code(loadtest: Command, tiny: str) -> None:
    done = loadtest("run", tiny, "-n", "4", "--output-tokens", "2")
    assert "\x1b" not in done.stdout + done.stderr
    assert "\r" not in done.stdout + done.stderr
    folder = re.search(r"result: (results/flags-\d{8}T\d{6}Z)", done.stdout)
    assert folder, done.stdout
