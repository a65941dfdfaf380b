"""Every scenario of the library is played in the small, as a user would try it, or refused in one sentence."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from loadtest.scenario import load, presets
from tests.conftest import Command
from tests.e2e.test_run import the_result

pytestmark = pytest.mark.e2e
UNSPOKEN = {"embeddings": "embeddings", "classifier": "kserve"}  # by the bundled server: the preset, its endpoint
NAMES = [preset.name for preset in presets() if preset.name not in UNSPOKEN]


@pytest.fixture(scope="module")
def lenient(environment: dict[str, str]) -> Iterator[str]:
    """The URL of a tiny server that takes, and passes over, the tools of an agent."""
    command = [sys.executable, "-m", "servers", "--model", "tiny", "--port", "0", "--exit-on-stdin-close"]
    with subprocess.Popen(
        [*command, "--ignore-unsupported"], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        match = re.search(r"http://\S+", process.stdout.readline())
        assert match
        yield match[0]
        process.terminate()


def briefly(name: str) -> list[str]:
    """Flags that end each level after ten requests, an open loop's in a third of a second; stages end themselves."""
    block = load(name, {}).scenario.levels[0]
    return [] if block.stages else ["-n", "1000", *(["-r", "3000"] if block.rate_per_s else [])]


@pytest.mark.parametrize("name", NAMES)
def test_a_scenario_can_be_tried_in_the_small(loadtest: Command, lenient: str, tmp_path: Path, name: str) -> None:
    done = loadtest("run", lenient, "-s", name, "--scale", "0.01", *briefly(name), "--slo", "", "--seed", "1", "-q",
                    "-o", "out")  # fmt: skip
    assert done.returncode == 0, done.stderr
    result = the_result(tmp_path / "out")
    assert result["complete"] is True
    counts = [level["counts"] for level in result["levels"]]
    assert sum(each["scheduled"] for each in counts) > 0
    assert all(each["ok"] == each["scheduled"] for each in counts), result["levels"]


def test_an_agent_sends_its_history_along(loadtest: Command, lenient: str, tmp_path: Path) -> None:
    flags = ["--scale", "0.01", "-c", "100", "-n", "2000", "--seed", "1", "-o", "out"]
    done = loadtest("run", lenient, "-s", "agent", *flags)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in (tmp_path / "out" / "records.jsonl").read_text("utf-8").splitlines()]
    turns = {line["turn"]: line["input_tokens"] for line in lines if line["session"] == lines[0]["session"]}
    assert len(turns) > 2
    assert list(turns.values()) == sorted(turns.values()), "the history grows"


def test_the_bundled_server_passes_over_tools_and_says_so(loadtest: Command) -> None:
    flags = ["--serve-model", "tiny", "--scale", "0.01", "-n", "300", "--seed", "1", "-q", "--json", "-"]
    done = loadtest("run", "-s", "agent", *flags)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["levels"][0]["counts"]["http_error"] == 0
    assert any("leaves out the tools" in warning for warning in result["warnings"])


@pytest.mark.parametrize("name", UNSPOKEN)
def test_what_the_bundled_server_does_not_speak_is_planned_and_refused_by_run(loadtest: Command, name: str) -> None:
    refused = loadtest("run", "-s", name)
    assert refused.returncode == 2
    assert f"endpoint {UNSPOKEN[name]}: the bundled server speaks chat and completions" in refused.stderr
    assert refused.stderr.count("\n") == 1
    planned = loadtest("plan", "-s", name)
    assert planned.returncode == 0, planned.stderr
    assert "warning: run would refuse this: " in planned.stdout
