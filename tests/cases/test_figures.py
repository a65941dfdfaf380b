"""The recorded inputs whose right answer is a figure: by name, from records to report."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from loadtest.caveats import caveats
from loadtest.level import Level, LevelRun, WorkerHealth
from loadtest.records import Record, RequestError
from loadtest.reports.console import table
from loadtest.result import Conditions, Endpoint, Hardware, LevelResult, Result, ScenarioRef, Tool, write
from loadtest.schedule import Load
from loadtest.summary import summarise
from loadtest.workload.lengths import Length
from loadtest.workload.model import Workload

RECORDED = Path(__file__).parent / "recorded"
Case = Callable[[str], tuple[LevelResult, dict[str, Any]]]


def record(line: dict[str, Any]) -> Record:
    """A request as the case has it, in seconds; one without a first token had no token event."""

    def ms(name: str) -> float | None:
        value = line[name]
        return None if value is None else value * 1000

    ok, first, tokens = line["status"] == "ok", ms("first_token_s"), line["completion_tokens"]
    gaps = max(0, (tokens or 0) - 1)
    last = None if first is None else ms("last_token_s")
    return Record(
        id=line["id"],
        level=0,
        worker=0,
        intended_ms=line["scheduled_s"] * 1000,
        outcome="ok" if ok else "transport_error",
        in_window=True,
        asked_input_tokens=line["prompt_tokens"],
        asked_output_tokens=tokens or 10,
        sent_ms=ms("start_s"),
        first_token_ms=first,
        first_answer_ms=first,
        last_token_ms=last,
        done_ms=ms("end_s"),
        error=None if ok else RequestError(line.get("error_kind", "connect"), "connection refused"),
        input_tokens=line["prompt_tokens"],
        output_tokens=tokens,
        token_source="usage",
        events=tokens if first is not None else 0,
        itl_ms=[(last - first) / gaps] * gaps if first is not None and last is not None and gaps else None,
    )


@pytest.fixture
def case() -> Case:
    """The figures of a case, as a level of all its requests, and what is expected of them."""

    def play(name: str) -> tuple[LevelResult, dict[str, Any]]:
        lines = (RECORDED / name / "records.jsonl").read_text("utf-8").splitlines()
        records = [record(json.loads(line)) for line in lines]
        level = Level(
            index=0, name=name, load=Load("constant", rate_per_s=2.0), batching=None,
            workloads=(Workload(Length(10, 10), Length(1, 64)),),
            duration_s=None, requests=len(records), warmup_s=0.0, grace_s=5.0,
        )  # fmt: skip
        health = WorkerHealth(
            worker=0, cpu_share=0.1, loop_lag_p99_ms=0.1, loop_lag_max_ms=0.2, reads=100, coalesced_reads=0,
            connections_opened=10,
        )  # fmt: skip
        sent = max(r.sent_ms or 0.0 for r in records)
        ended = max(r.done_ms or 0.0 for r in records)
        went = LevelRun(0, "completed", sent, ended, [health], scheduled=len(records))
        expected: dict[str, Any] = json.loads((RECORDED / name / "expect.json").read_text("utf-8"))
        figures = summarise(level, records, went)
        assert figures.client.valid, figures.client.reasons
        return figures, expected

    return play


def report(figures: LevelResult) -> Result:
    return Result(
        tool=Tool(name="loadtest", version="0"),
        command="loadtest run",
        started_at="2025-01-31T12:00:00Z",
        seed=1,
        complete=True,
        exit_code=0,
        conditions=Conditions(
            endpoint=Endpoint(kind="chat", url="http://127.0.0.1:8000"),
            hardware=Hardware(),
            scenario=ScenarioRef(name="case", sha256="0" * 64),
        ),
        warnings=caveats(figures),
        levels=[figures],
    )


def seconds(value_ms: float | None) -> float | None:
    return None if value_ms is None else value_ms / 1000


def test_fig_p99_of_three(case: Case) -> None:
    figures, expected = case("fig-p99-of-three")
    latency, right = figures.latency.e2e_ms.ok, expected["latency_s"]
    assert latency.n == right["n"]
    assert seconds(latency.p50) == right["p50"]
    assert seconds(latency.p99) == right["p99_nearest_rank"]
    assert seconds(latency.max) == right["max"]
    text = table(report(figures), 140, color=False)
    assert "~300" in text
    assert "~ p99 of fewer than 100 requests (see ok) is simply the slowest of them." in text


def test_fig_window_tail(case: Case) -> None:
    figures, expected = case("fig-window-tail")
    right = expected["whole_window"]
    assert figures.window.measured_s == right["to_s"] - right["from_s"]
    assert figures.rates.completed_per_s == pytest.approx(right["requests_per_s"], rel=1e-6)
    assert figures.throughput.output_tokens_per_s == pytest.approx(right["output_tokens_per_s"], rel=1e-6)
    assert figures.concurrency.mean == pytest.approx(expected["mean_in_flight"], rel=1e-6)


def test_fig_ttft_not_measured(case: Case) -> None:
    figures, expected = case("fig-ttft-not-measured")
    ttft, right = figures.latency.ttft_ms, expected["ttft_s"]
    assert {name: seconds(getattr(ttft.ok, name)) for name in ("min", "max", "p50")} == {
        name: right[name] for name in ("min", "max", "p50")
    }
    assert (ttft.ok.n, ttft.excluded) == (right["n"], 3)
    tpot = figures.latency.tpot_ms.ok
    assert tpot.n == expected["tpot_s"]["n"]
    assert [seconds(tpot.min), seconds(tpot.max)] == expected["tpot_s"]["values"]
    assert "TTFT not measured: 3" in table(report(figures), 80, color=False)


def test_fig_failures_not_throughput(case: Case) -> None:
    figures, expected = case("fig-failures-not-throughput")
    assert (figures.counts.ok, figures.counts.failed) == (expected["ok"], expected["failed"])
    assert figures.window.measured_s == expected["window_s"]
    assert figures.rates.completed_per_s == pytest.approx(expected["requests_per_s"], rel=1e-6)
    assert figures.throughput.output_tokens_per_s == pytest.approx(expected["output_tokens_per_s"], rel=1e-6)
    latency = figures.latency.e2e_ms
    assert {name: seconds(getattr(latency.ok, name)) for name in ("mean", "min", "max")} == expected["latency_s"]
    assert latency.due is not None
    assert latency.due.failed / latency.due.n == expected["failure_share"]


def test_fig_json_finite(case: Case, tmp_path: Path) -> None:
    figures, _ = case("fig-json-finite")
    text = write(report(figures), tmp_path).read_text("utf-8")
    (level,) = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} in result.json"))["levels"]
    assert level["counts"]["ok"] == 0
    for name in ("ttft_ms", "tpot_ms", "e2e_ms"):
        for percentiles in (level["latency"][name]["ok"], level["latency"][name]["due"]):
            assert percentiles["p50"] is percentiles["p90"] is percentiles["p99"] is None


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("name", "asked", "says"),
    [
        ("count-cached-prompt", 5, "warm prefix cache: 96 input tokens (96%) came from the server's cache"),
        ("count-shorter-than-asked", 64, "answers were shorter than asked: 5.0 tokens on average instead of 64.0"),
        ("first-all-at-end", 5, "single-burst: 1 of 1 answers arrived all at once"),
    ],
)
def test_what_a_case_flags_is_pointed_out_by_the_run(
    name: str,
    asked: int,
    says: str,
    replayer: Callable[[], str],
    loadtest: Callable[..., "subprocess.CompletedProcess[str]"],
    tmp_path: Path,
) -> None:
    url = f"{replayer()}/case/{name}"
    ran = loadtest("run", url, "-c", "1", "-n", "1", "--output-tokens", str(asked), "-o", str(tmp_path / "out"))
    assert ran.returncode == 0, ran.stderr
    assert says in " ".join(ran.stdout.split())
