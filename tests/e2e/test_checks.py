"""Checks and audits as a user meets them: the real command against servers that are fast and wrong, or not what they
seem."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from loadtest.workload.tokenizer import load, size
from tests.conftest import Command
from tests.workload.vocabularies import byte_level

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[2]
SHORT = ("-n", "12", "-c", "2", "-o", "out", "-q")
AUDIT = ("--endpoint", "chat", "--audit", "deterministic,cache", *SHORT)


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """The URL of a server of several manners."""
    command = [sys.executable, "-m", "tests.e2e.repeating"]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.terminate()


def result(folder: Path) -> Any:
    """The result of a run, which is as its schema has it."""
    found = json.loads((folder / "out" / "result.json").read_text("utf-8"))
    schema = json.loads((ROOT / "docs" / "result.schema.json").read_text("utf-8"))
    jsonschema.Draft202012Validator(schema).validate(found)
    return found


def audits(found: Any) -> dict[str, Any]:
    return {each["kind"]: each for each in found["audits"]}


def test_a_cache_that_nobody_declared_makes_the_run_invalid(loadtest: Command, server: str, tmp_path: Path) -> None:
    done = loadtest("run", f"{server}/cache", *AUDIT, "--slo", "error_rate < 50%", "--junit", "j.xml")
    assert done.returncode == 97, done.stdout + done.stderr
    found = result(tmp_path)
    assert found["verdict"]["outcome"] == "INVALID"
    told = audits(found)
    assert (told["deterministic"]["outcome"], told["cache"]["outcome"]) == ("PASS", "INVALID")
    assert told["cache"]["value"] > 0.1
    assert told["cache"]["n"] == 20
    assert "audit cache: INVALID, asked again at once, a request took" in done.stdout
    assert "declare it with audit.cache: declared" in " ".join(done.stdout.split())
    assert '<error type="INVALID"' in (tmp_path / "j.xml").read_text("utf-8")
    # In no level's figures, and no repeated prompts of it.
    (level,) = found["levels"]
    assert level["counts"]["scheduled"] == level["counts"]["ok"] == 12
    assert level["workload"]["repeated_prompts"] == 0
    journal = [json.loads(line) for line in (tmp_path / "out" / "records.jsonl").read_text("utf-8").splitlines()]
    assert [record["level"] for record in journal] == [0] * 12
    assert not any("text" in record for record in journal)
    pairs = [json.loads(line) for line in (tmp_path / "out" / "audit.jsonl").read_text("utf-8").splitlines()]
    assert len(pairs) == 40
    assert all(record["text"].startswith("The answer is ") for record in pairs)
    again = loadtest("report", "out", "--html", "page.html")
    assert "audit cache: INVALID" in again.stdout
    assert "audit cache: INVALID" in (tmp_path / "page.html").read_text("utf-8")


def test_a_cache_that_is_declared_is_measured(loadtest: Command, server: str, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("endpoint: chat\naudit: {cache: declared, deterministic: false}\nseed: 4\n")
    done = loadtest("run", f"{server}/cache", "-s", "mine.yaml", "--no-stream", *SHORT)
    assert done.returncode == 0, done.stdout + done.stderr
    (audit,) = result(tmp_path)["audits"]
    assert (audit["kind"], audit["outcome"]) == ("cache", "PASS")
    assert audit["value"] > 0.1
    assert "E2E" in audit["words"]


def test_a_server_without_a_cache_passes_and_that_is_no_answer_to_an_slo(
    loadtest: Command, server: str, tmp_path: Path
) -> None:
    done = loadtest("run", f"{server}/plain", *AUDIT, "--markdown", "m.md")
    assert done.returncode == 0, done.stdout + done.stderr
    found = result(tmp_path)
    assert {each["outcome"] for each in found["audits"]} == {"PASS"}
    assert found["verdict"]["outcome"] is None
    assert "**audit cache:** asked again at once" in (tmp_path / "m.md").read_text("utf-8")


def test_the_same_seed_is_another_audit(loadtest: Command, server: str, tmp_path: Path) -> None:
    prompts = []
    for folder in ("one", "two"):
        done = loadtest(
            "run", f"{server}/plain", "--endpoint", "chat", "--audit", "deterministic", "-n", "2", "-o", folder,
            "--seed", "7", "-q",
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        lines = (tmp_path / folder / "audit.jsonl").read_text("utf-8").splitlines()
        prompts.append({json.loads(line)["prompt_hash"] for line in lines})
    assert len(prompts[0]) == len(prompts[1]) == 20
    assert not prompts[0] & prompts[1]


def test_a_plan_says_what_an_audit_sends(loadtest: Command) -> None:
    done = loadtest("plan", "http://127.0.0.1:1", "--endpoint", "chat", "--audit", "cache", "-n", "5")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the audit sends 40 requests before the first level" in " ".join(done.stdout.split())


def test_texts_that_differ_fail_the_run(loadtest: Command, server: str, tmp_path: Path) -> None:
    done = loadtest("run", f"{server}/random", *AUDIT, "--slo", "error_rate < 50%")
    assert done.returncode in (97, 99), done.stdout + done.stderr  # 97: this machine was too busy for the level's SLO
    told = audits(result(tmp_path))["deterministic"]
    assert (told["outcome"], told["value"]) == ("FAIL", 1)
    assert "audit deterministic: FAIL, the same request brought another text in 20 of 20 pairs" in done.stdout


def test_a_search_for_capacity_is_audited_once(loadtest: Command, server: str, tmp_path: Path) -> None:
    done = loadtest(
        "capacity", f"{server}/random", "--endpoint", "chat", "--audit", "deterministic", "--slo", "p50(e2e) < 1s",
        "-d", "30s", "--budget", "1s", "-o", "out", "-q",
    )  # fmt: skip
    assert done.returncode == 99, done.stdout + done.stderr
    found = result(tmp_path)
    assert [each["outcome"] for each in found["audits"]] == ["FAIL"]
    assert found["levels"] == []
    assert any(reason.startswith("audit deterministic: ") for reason in found["verdict"]["reasons"])


def test_an_audit_of_the_bundled_server(loadtest: Command, tmp_path: Path) -> None:
    done = loadtest(
        "run", "--serve-model", "tiny", "-c", "1", "-n", "2", "--scheduler", "continuous", "--max-batch-size", "2",
        "--input-tokens", "16", "--output-tokens", "4", "--audit", "deterministic", "--slo", "", "-o", "out", "-q",
        "-d", "20s", "--warmup", "0s",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    (audit,) = result(tmp_path)["audits"]
    assert (audit["outcome"], audit["value"], audit["n"]) == ("PASS", 0, 20)


def test_a_target_that_refuses_everything_ends_the_run_in_its_audit(
    loadtest: Command, replayer: Any, tmp_path: Path
) -> None:
    url = f"{replayer()}/case/http-400-reason"
    done = loadtest("run", url, *AUDIT, "--model", "m", "--no-rehearsal")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "the target refused every request" in done.stderr
    assert result(tmp_path)["levels"][0]["status"] == "not_reached"


# Checks -------------------------------------------------------------------------------------------------------

JUDGE = """\
endpoint: http
request: {path: /judge, json: {text: "{{ prompt }}"}}
checks:
  - {status: 200}
  - {name: label, path: $.label, in: [good, bad]}
  - {path: "$.scores[*]"}
slo: [error_rate < 1%]
"""


def test_a_wrong_answer_is_a_failure_and_the_slo_counts_it(loadtest: Command, server: str, tmp_path: Path) -> None:
    (tmp_path / "judge.yaml").write_text(JUDGE)
    done = loadtest("run", server, "-s", "judge.yaml", "-n", "300", "-c", "2", "-o", "out", "-q")
    assert done.returncode == 99, done.stdout + done.stderr
    (level,) = result(tmp_path)["levels"]
    assert (level["counts"]["ok"], level["counts"]["stream_error"]) == (200, 100)
    (error,) = level["errors"]
    assert (error["kind"], error["count"]) == ("check_failed", 100)
    assert error["example"] == """label: expected $.label "good" or "bad", found 'who knows'"""
    assert "100 × check_failed, such as: label: expected" in done.stdout
    assert level["latency"]["e2e_ms"]["ok"]["n"] == 200


def test_the_text_of_a_stream_is_checked(loadtest: Command, server: str, tmp_path: Path) -> None:
    checks = "checks: [{matches: '^The answer is'}, {lacks: sorry}, {finish_reason: stop}, {not_html: true}]\n"
    (tmp_path / "mine.yaml").write_text(f"endpoint: chat\n{checks}")
    done = loadtest("run", f"{server}/plain", "-s", "mine.yaml", *SHORT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert result(tmp_path)["levels"][0]["counts"]["ok"] == 12


def test_a_count_that_nobody_knows_is_no_pass(loadtest: Command, server: str, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("endpoint: chat\nchecks: [{output_tokens: [1, null]}]\n")
    done = loadtest("run", f"{server}/plain", "-s", "mine.yaml", *SHORT)
    assert done.returncode == 1, done.stdout + done.stderr
    (error,) = result(tmp_path)["levels"][0]["errors"]
    assert error["example"] == "check 1: expected at least 1 output tokens, found a count that is not known"


def test_a_tokenizer_counts_what_the_server_does_not(loadtest: Command, server: str, tmp_path: Path) -> None:
    byte_level().save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "mine.yaml").write_text("endpoint: chat\nchecks: [{output_tokens: [5, 20]}]\n")
    done = loadtest("run", f"{server}/plain", "-s", "mine.yaml", "--tokenizer", str(tmp_path), *SHORT)
    assert done.returncode == 0, done.stdout + done.stderr
    (level,) = result(tmp_path)["levels"]
    workload = level["workload"]
    assert workload["source"] == "tokenizer"
    assert workload["input_tokens"]["observed"]["mean"] == 128
    least = size(load(str(tmp_path / "tokenizer.json")), "The answer is ")
    assert workload["output_tokens"]["observed"]["mean"] > least
    assert level["throughput"]["total_tokens_per_s"] > level["throughput"]["output_tokens_per_s"] > 0
