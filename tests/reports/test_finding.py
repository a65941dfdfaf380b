import re
from collections.abc import Callable

import msgspec
import pytest

from loadtest.level import Level
from loadtest.reports.finding import finding
from loadtest.result import LevelResult, Metric, Result, not_reached
from loadtest.schedule import Load
from loadtest.stats import Dist
from loadtest.workload.lengths import Length
from loadtest.workload.model import Workload

Play = Callable[..., LevelResult]
Make = Callable[..., Level]
Whole = Callable[..., Result]


def closed(concurrency: int) -> Load:
    return Load("closed", concurrency=concurrency)


def test_batching_matrix_names_the_best_its_factor_its_cost_and_the_policies(matrix: Result) -> None:
    said = finding(matrix)
    assert said.startswith("continuous 16 at c=16 gave the most: ")
    assert "× that of continuous 1 under the same load; TTFT p99 fell from" in said
    policies = said[said.index("Policies at c=16") :]
    order = [policies.index(name) for name in ("continuous 16", "dynamic 16", "static 16", "none")]
    assert order == sorted(order)


def test_policy_without_a_measured_tail_is_left_out(matrix: Result) -> None:
    static = matrix.levels[10]
    latency = msgspec.structs.replace(static.latency, ttft_ms=Metric(ok=Dist(n=0)))
    levels = [*matrix.levels[:10], msgspec.structs.replace(static, latency=latency), matrix.levels[11]]
    assert "static" not in finding(msgspec.structs.replace(matrix, levels=levels))


def test_batching_that_bought_nothing_is_not_praised(matrix: Result) -> None:
    best, larger = matrix.levels[4], matrix.levels[7]  # continuous 4 and 16 at c=4
    levels = [best, msgspec.structs.replace(larger, throughput=matrix.levels[0].throughput)]
    said = finding(msgspec.structs.replace(matrix, levels=levels))
    assert said.startswith("continuous 4 at c=4 gave the most")
    assert "Larger batches bought nothing." in said


def test_concurrency_sweep_names_the_knee_and_what_lies_beyond(sweep: Callable[..., Result]) -> None:
    said = finding(sweep())
    assert said.startswith("Throughput stopped growing at c=64: ")
    assert "at c=256; TTFT p99 rose from" in said


def test_sweep_that_still_grows_does_not_claim_a_limit(play: Play, level: Make, result: Whole) -> None:
    said = finding(result([play(level(load=closed(c)), 50, 5) for c in (1, 2, 4)]))
    assert re.match(r"Throughput was still growing at c=4: \S+ output tok/s, up from \S+ at c=1[.;]", said), said
    assert "The limit is not in sight" in said


def test_sweep_at_several_lengths_says_of_which_it_speaks(play: Play, level: Make, result: Whole) -> None:
    levels = [
        play(level(load=closed(c), workloads=(Workload(Length(n, n), Length(32, 32)),), name=f"c={c} in={n}"), 50, 5)
        for n in (64, 128)
        for c in (1, 4)
    ]
    assert re.match(
        r"With (64|128) input and \S+ output tokens, throughput was still growing at c=4", finding(result(levels))
    )


def test_order_of_the_levels_does_not_change_the_finding(sweep: Callable[..., Result]) -> None:
    result = sweep()
    assert finding(msgspec.structs.replace(result, levels=result.levels[::-1])) == finding(result)


def test_rate_sweep_names_the_rate_that_was_kept_up(play: Play, level: Make, result: Whole) -> None:
    def at(rate: float, ttft_ms: float) -> LevelResult:
        load = Load("poisson", rate_per_s=rate)
        return play(level(load=load, duration_s=20.0, warmup_s=2.0), ttft_ms, 5)

    said = finding(result([at(2, 50), at(10, 60), at(40, 12_000)]))
    assert said.startswith("The target kept up to 10/s: ")
    assert "at 40/s it fell behind, TTFT p99" in said
    assert finding(result([at(2, 50), at(10, 60)])).startswith("The target kept up with every rate, up to 10/s")
    # Long answers that end outside the window are not a target that falls behind.
    assert finding(result([at(2, 4000), at(10, 4000)])).startswith("The target kept up with every rate")


def test_longer_prompts_say_what_they_cost(play: Play, level: Make, result: Whole) -> None:
    levels = [
        play(level(workloads=(Workload(Length(n, n), Length(32, 32)),), name=f"in={n}"), n / 4, 5) for n in (64, 2048)
    ]
    said = finding(result(levels))
    assert said.startswith("From 64 to 2,048 input tokens at c=4, throughput went from")
    assert "TTFT p99 rose from" in said


def test_single_level_says_what_it_gave(play: Play, level: Make, result: Whole) -> None:
    assert finding(result([play(level(), 50, 5)])).startswith("At c=4: ")


def test_failures_come_first_and_nothing_is_praised_over_them(sweep: Callable[..., Result]) -> None:
    said = finding(sweep(failing=0.05))
    assert "requests failed" in said
    assert "mostly http_status 503), in c=256" in said
    assert "Throughput" not in said


def test_matrix_with_a_failing_cell_still_teaches_after_saying_so(matrix: Result, play: Play, level: Make) -> None:
    ninth = matrix.levels[8]  # continuous 16 at c=16, the best
    failing = play(level(load=ninth.load, batching=ninth.batching, name=ninth.name), 50, 5, failing=0.1)
    levels = [*matrix.levels[:8], failing, *matrix.levels[9:]]
    said = finding(msgspec.structs.replace(matrix, levels=levels))
    assert re.match(r"\d+ of \d+ requests failed", said)
    assert "Among the levels without failures: continuous 4 at c=16 gave the most" in said


def test_failures_of_the_only_level_are_not_said_to_be_everywhere(play: Play, level: Make, result: Whole) -> None:
    said = finding(result([play(level(), 50, 5, failing=0.1)]))
    assert "mostly http_status 503). Mend that first" in said


def test_failures_of_a_whole_run(play: Play, level: Make, result: Whole) -> None:
    said = finding(result([play(level(), 50, 5, failing=1.0)]))
    assert said == "Every request failed, all with http_status 503: there are no figures to read."


def test_invalid_and_partial_levels_carry_no_conclusion(play: Play, level: Make, result: Whole) -> None:
    late = play(level(), 50, 5, late_ms=100.0)
    assert not late.client.valid
    nothing = "Nothing can be concluded: no level was complete and valid, with a request in its window."
    assert finding(result([late])) == nothing
    assert finding(result([not_reached(level())])) == "Nothing was measured: no level was reached."


@pytest.mark.parametrize("keep", [slice(0, 1), slice(0, 0)])
def test_interrupted_run_speaks_of_complete_levels_only(interrupted: Result, keep: slice) -> None:
    levels = [*interrupted.levels[keep], *interrupted.levels[1:]]
    said = finding(msgspec.structs.replace(interrupted, levels=levels))
    assert "5/s" not in said
    assert said.startswith(("At 2/s", "Nothing can be concluded"))


def test_tokens_of_the_warm_up_alone_are_no_finding(play: Play, level: Make, result: Whole) -> None:
    whole = play(level(), 50, 5)
    before = msgspec.structs.replace(whole, counts=msgspec.structs.replace(whole.counts, in_window=0))
    assert finding(result([before])).startswith("Nothing can be concluded")


def test_a_level_in_which_nothing_became_due_was_reached_all_the_same(level: Make, result: Whole) -> None:
    empty = msgspec.structs.replace(not_reached(level()), status="ok")
    assert finding(result([empty])) == "Nothing was measured: no request became due."


def test_repeats_are_judged_by_the_middle_one_and_not_by_the_luckiest(mix: Result) -> None:
    said = finding(mix)
    middle = sorted(mix.levels, key=lambda one: one.throughput.output_tokens_per_s or 0.0)[1]
    assert said.startswith(f"At 4/s constant of sessions: {middle.throughput.output_tokens_per_s:.0f} output tok/s, ")


def test_lengths_that_differ_by_chance_are_no_finding(play: Play, level: Make, result: Whole) -> None:
    workloads = (Workload(Length.parse("uniform(16, 64)"), Length(32, 32)),)
    one, other = (play(level(name=name, workloads=workloads), 50, 5) for name in ("a", "b"))
    means = msgspec.structs.replace(one.workload.input_tokens.observed, mean=41.0)
    longer = msgspec.structs.replace(one.workload.input_tokens, observed=means)
    one = msgspec.structs.replace(one, workload=msgspec.structs.replace(one.workload, input_tokens=longer))
    assert finding(result([one, other])).startswith("At c=4: ")


def test_a_trace_is_what_was_played_and_no_rate(play: Play, level: Make, result: Whole) -> None:
    played = play(level(load=closed(4)), 50, 5)
    traced = msgspec.structs.replace(played, load=Load("trace", events=900, span_s=60.0))
    assert finding(result([traced])).startswith("Under the trace of 900: ")


def test_models_are_not_taken_for_loads(play: Play, level: Make, result: Whole) -> None:
    levels = [play(level(load=closed(c), name=f"{model} c={c}", model=model), 50, 5) for model in "ab" for c in (1, 4)]
    assert re.match(r"With model [ab], 64 input and 32 output tokens, throughput was", finding(result(levels)))
