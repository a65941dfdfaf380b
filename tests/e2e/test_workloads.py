"""Workloads as users have them, through the command and against the bundled server."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Command

pytestmark = pytest.mark.e2e

CONVERSATION = """
workload: {input_tokens: 24, output_tokens: 6, conversation: {turns: 3, think: 30ms}}
load: {rate: 8, duration: 2s, warmup: 0s}
probe_stream: {rate: 5, input_tokens: 16, output_tokens: 1}
"""
MIX = """
mix:
  - name: chat
    weight: 0.6
    input_tokens: 30
    output_tokens: 5
    conversation: {turns: "uniform(1, 3)", think: 5ms, history: canned, abandon: 0.2}
  - {name: rag, weight: 0.4, input_tokens: 90, output_tokens: 3, prefix: {share: 1.0, tokens: 40, pool: 2}}
load: {concurrency: 4, requests: 60}
seed: 5
"""
TRACE = "load: {trace: {path: ./trace.jsonl}, warmup: 0s}\n"
ARRIVALS = [
    {"timestamp": 0.0, "input_tokens": 30, "output_tokens": 4},
    {"timestamp": 0.25, "input_tokens": 40, "output_tokens": 3, "session": "a"},
    {"timestamp": 0.4, "input_tokens": 35, "output_tokens": 4},
    {"timestamp": 0.7, "input_tokens": 60, "output_tokens": 5, "session": "a"},
    {"timestamp": 1.0, "input_tokens": 30, "output_tokens": 4},
]


def run(loadtest: Command, folder: Path, url: str, scenario: str, *flags: str) -> tuple[dict[str, Any], list[Any]]:
    (folder / "s.yaml").write_text(scenario)
    done = loadtest("run", url, "-s", "s.yaml", "-o", "out", *flags)
    assert done.returncode == 0, done.stdout + done.stderr
    (level,) = json.loads((folder / "out" / "result.json").read_text("utf-8"))["levels"]
    lines = (folder / "out" / "records.jsonl").read_text("utf-8").splitlines()
    records = sorted(map(json.loads, lines), key=lambda record: record["id"])
    assert {record["outcome"] for record in records} == {"ok"}
    return level, records


def test_a_conversation_with_probes_beside_it(loadtest: Command, tiny: str, tmp_path: Path) -> None:
    level, records = run(loadtest, tmp_path, tiny, CONVERSATION, "--workers", "2")
    load = [record for record in records if not record.get("probe")]
    probes = [record for record in records if record.get("probe")]
    assert level["counts"]["scheduled"] == level["counts"]["ok"] == len(load)
    assert probes
    assert {record["asked_input_tokens"] for record in probes} == {record["input_tokens"] for record in probes} == {16}
    sessions: dict[int, list[Any]] = {}
    for record in load:
        sessions.setdefault(record["session"], []).append(record)
    for turns in sessions.values():
        for before, after in pairwise(turns):
            assert after["turn"] == before["turn"] + 1
            assert after["intended_ms"] == pytest.approx(before["done_ms"] + 30, abs=0.01)
            assert after["input_tokens"] > before["input_tokens"] + before["output_tokens"]


@pytest.mark.parametrize("workers", ["1", "3"])
def test_a_mix_of_conversations_and_single_requests(loadtest: Command, tiny: str, tmp_path: Path, workers: str) -> None:
    level, records = run(loadtest, tmp_path, tiny, MIX, "--workers", workers)
    assert [record["id"] for record in records] == [*range(60)]
    assert level["counts"]["ok"] == 60
    rag = [record for record in records if record.get("workload") == 1]
    assert rag
    assert {(r["asked_input_tokens"], r["input_tokens"], r["output_tokens"]) for r in rag} == {(130, 130, 3)}
    assert all("session" in record for record in records if record.get("workload", 0) == 0)


def test_what_lies_in_the_users_folder_is_not_taken_for_a_module(loadtest: Command, tmp_path: Path) -> None:
    for name in ("random.py", "loadtest.py", "servers.py"):
        (tmp_path / name).write_text("raise SystemExit('not ours')\n", "utf-8")
    (tmp_path / "p.txt").write_text("hello there\n", "utf-8")
    flags = ["--serve-model", "tiny", "--data", "p.txt", "-c", "1", "-n", "2", "--output-tokens", "2"]
    done = loadtest("run", *flags, "--max-batch-size", "1", "--scheduler", "continuous", "-o", "out")
    assert done.returncode == 0, done.stderr


def test_a_trace_is_replayed_at_its_times_within_the_lag_that_is_reported(
    loadtest: Command, tiny: str, tmp_path: Path
) -> None:
    (tmp_path / "trace.jsonl").write_text("".join(json.dumps(line) + "\n" for line in ARRIVALS))
    level, records = run(loadtest, tmp_path, tiny, TRACE)
    played = sorted(records, key=lambda record: record["intended_ms"])
    assert [record["intended_ms"] for record in played] == pytest.approx([a["timestamp"] * 1000 for a in ARRIVALS])
    assert [(r["input_tokens"], r["output_tokens"]) for r in played] == [
        (arrival["input_tokens"], arrival["output_tokens"]) for arrival in ARRIVALS
    ]
    span_s = ARRIVALS[-1]["timestamp"] * len(ARRIVALS) / (len(ARRIVALS) - 1)
    assert level["window"]["measured_s"] == pytest.approx(span_s, abs=0.03), "a mean gap is left after the last arrival"
    longest_ms = level["latency"]["lag_ms"]["ok"]["max"]
    assert all(0 <= r["sent_ms"] - r["intended_ms"] <= longest_ms + 0.001 for r in played)
