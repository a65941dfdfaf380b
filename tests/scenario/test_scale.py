"""A scenario tried in the small keeps its shape, and still sends something."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadtest.errors import ScenarioError
from loadtest.scenario import Override, Resolved, load
from loadtest.schedule import Stage
from loadtest.workload.distribution import Distribution
from loadtest.workload.lengths import Length

FILE = """\
workload:
  input_tokens: ["uniform(100, 300)", 1000]
  output_tokens: "lognormal(500, 200, max=2000)"
  prefix: {share: 0.5, tokens: 1000, pool: 3}
  conversation: {turns: 4, think: "exponential(10s)", next_input: 50}
load: {concurrency: [1, 64], duration: 60s, warmup: 10s, cooldown: 5s, requests: 5000}
probe_stream: {rate: 1, input_tokens: 16, output_tokens: 1}
"""


def scaled(folder: Path, text: str, by: str, **flags: str) -> Resolved:
    path = folder / "s.yaml"
    path.write_text(text)
    overrides = {key: Override(value, f"--{key}") for key, value in {**flags, "scale": by}.items()}
    return load(str(path), overrides)


def test_everything_that_takes_time_or_work_is_smaller(tmp_path: Path) -> None:
    scenario = scaled(tmp_path, FILE, "0.1").scenario
    (block,), (workload,) = scenario.levels, scenario.workloads
    assert block.concurrency == [1, 6]
    assert block.input_tokens == [Length(10, 30), Length(100, 100)]
    assert block.output_tokens == [Length.parse("lognormal(50, 20, max=200)")]
    assert (scenario.duration_s, scenario.warmup_s, scenario.cooldown_s, scenario.requests) == (6, 1, 0.5, 500)
    assert workload.prefix is not None
    assert (workload.prefix.share, workload.prefix.tokens, workload.prefix.pool) == (0.5, 100, 3)
    assert workload.conversation is not None
    assert workload.conversation.turns == Length(4, 4)
    assert workload.conversation.think_s == Distribution("exponential", (1.0,))
    assert workload.conversation.next_input == Length(5, 5)
    assert scenario.timeout_s == 300


def test_nothing_shrinks_to_nothing(tmp_path: Path) -> None:
    scenario = scaled(tmp_path, FILE, "0.0001").scenario
    (block,) = scenario.levels
    assert block.concurrency == [1, 1]
    assert block.input_tokens == [Length(1, 1), Length(1, 1)]
    assert (scenario.duration_s, scenario.requests) == (0.5, 1)
    assert scenario.warmup_s == pytest.approx(0.001)
    assert scenario.probe is not None
    assert scenario.probe.rate_per_s == 1


def test_an_open_loop_still_sends_a_few_requests(tmp_path: Path) -> None:
    rates = scaled(tmp_path, "load: {rate: [0.01, 2, 1000], duration: 60s}", "0.1").scenario.levels[0].rate_per_s
    assert rates == [0.01, 0.833, 100], "five requests a minute, and no more digits in a name than it takes"
    stages = "load: {stages: [{from: 0, to: 10, duration: 10s}, {rate: 0, duration: 10s}]}"
    (block,) = scaled(tmp_path, stages, "0.1").scenario.levels
    assert block.stages == (Stage(0.0, 10.0, 1.0), Stage(0.0, 0.0, 1.0))
    bounded = scaled(tmp_path, "load: {rate: 10, requests: 1000}", "0.01").scenario
    assert (bounded.levels[0].rate_per_s, bounded.requests) == ([10], 10)


def test_a_trace_keeps_its_rate_and_lasts_a_part_of_its_time(tmp_path: Path) -> None:
    trace = scaled(tmp_path, "load: {trace: {path: s.yaml, speed: 2}}", "0.01").scenario.levels[0].trace
    assert trace is not None
    assert (trace.speed, trace.scale, trace.lengths) == (200, 0.01, 0.01)


@settings(max_examples=30, deadline=None)
@given(st.floats(1e-6, 1))
def test_a_scaled_scenario_is_one_again(tmp_path_factory: pytest.TempPathFactory, by: float) -> None:
    folder = tmp_path_factory.mktemp("scale")
    resolved = scaled(folder, FILE, repr(by))
    (folder / "again.yaml").write_text(resolved.text)
    again = load(str(folder / "again.yaml"), {})
    assert again.scenario.levels == resolved.scenario.levels
    assert again.sha256 == resolved.sha256


@pytest.mark.parametrize("by", ["0", "2", "x", "", "true", "-1", "nan"])
def test_another_factor_is_a_fault_of_the_flag(tmp_path: Path, by: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        scaled(tmp_path, FILE, by)
    assert str(caught.value) == f"--scale: expected more than 0 and at most 1, got {by!r}"


def test_a_result_in_the_small_is_not_comparable_and_says_why(tmp_path: Path) -> None:
    assert scaled(tmp_path, FILE, "0.1").not_comparable == ["played in the small (--scale 0.1)"]
    assert "# Scaled by --scale 0.1" in scaled(tmp_path, FILE, "0.1").text


LOCKED = "locked: true\nload: {rate: 2}\n"


def test_a_locked_scenario_that_was_changed_says_by_what(tmp_path: Path) -> None:
    path = tmp_path / "locked.yaml"
    path.write_text(LOCKED)
    assert load(str(path), {}).not_comparable == []
    overrides = {"rate": Override("3", "--rate"), "timeout": Override("9s", "LOADTEST_TIMEOUT")}
    assert load(str(path), overrides).not_comparable == [
        "the scenario is locked, and --rate changed it",
        "the scenario is locked, and LOADTEST_TIMEOUT changed it",
    ]


def test_what_a_locked_scenario_leaves_open_may_be_given(tmp_path: Path) -> None:
    path = tmp_path / "locked.yaml"
    path.write_text(LOCKED)
    given = {"seed": Override("3", "--seed"), "model": Override("m", "--model")}
    assert load(str(path), given).not_comparable == []
    path.write_text(LOCKED + "seed: 1\n")
    assert load(str(path), given).not_comparable == ["the scenario is locked, and --seed changed it"]
