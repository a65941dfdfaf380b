"""Two sides of runs: what is a regression, what is none, and what cannot be told."""

import math

import msgspec
import pytest

from loadtest.compare import compare
from loadtest.comparison import Change, Comparison, measure, share, sides
from loadtest.errors import UsageError
from loadtest.result import Counts
from tests.comparing import (
    CLOSED,
    OPEN,
    a_level,
    a_result,
    a_run,
    changed,
    level_changed,
    played,
    requests,
    several,
)

LARGE = a_level(requests=2000)


def by_name(found: Comparison) -> dict[str, Change]:
    (level,) = found.levels
    return {change.metric: change for change in level.changes}


def verdicts(found: Comparison) -> set[str | None]:
    return {change.verdict for level in found.levels for change in level.changes}


# Verdicts -----------------------------------------------------------------------------------------------------


def test_the_same_again_is_no_regression() -> None:
    found = compare([a_run("base", 1, LARGE)], [a_run("candidate", 2, LARGE)], 0.1)
    assert verdicts(found) == {"PASS"}
    assert (found.outcome, found.exit_code) == ("PASS", 0)
    change = by_name(found)["p50(ttft)"]
    assert change.ci95 is not None
    assert change.change is not None
    low, high = change.ci95
    assert low is not None
    assert high is not None
    assert -0.1 < low < change.change < high < 0.1
    assert change.by == "requests"
    assert change.detectable == pytest.approx(0.05, abs=0.05)


def test_a_slower_candidate_is_a_regression_whose_size_is_told() -> None:
    found = compare([a_run("base", 1, LARGE)], [a_run("candidate", 2, LARGE, slower=1.25)], 0.05)
    assert (found.outcome, found.exit_code) == ("FAIL", 99)
    changes = by_name(found)
    assert {name for name, change in changes.items() if change.verdict == "PASS"} == {"error_rate"}
    assert changes["p50(ttft)"].change == pytest.approx(0.25, abs=0.04)
    assert changes["requests_per_s"].change == pytest.approx(1 / 1.25 - 1, abs=0.03)
    assert changes["requests_per_s"].reason == "worse for certain, by more than tolerated"
    assert changes["requests_per_s"].detectable is not None
    assert -0.1 < changes["requests_per_s"].detectable < 0


def test_a_faster_candidate_is_better_and_none() -> None:
    found = compare([a_run("base", 1, LARGE)], [a_run("candidate", 2, LARGE, slower=0.8)], 0.05)
    assert found.outcome == "PASS"
    assert by_name(found)["p99(e2e)"].reason == "better for certain"


def test_what_is_tolerated_is_no_regression() -> None:
    sides = [a_run("base", 1, LARGE)], [a_run("candidate", 2, LARGE, slower=1.1)]
    assert compare(*sides, 0.05).outcome == "FAIL"
    tolerant = compare(*sides, 0.3)
    assert tolerant.outcome == "PASS"
    assert by_name(tolerant)["p50(ttft)"].reason == "not worse by more than tolerated, for certain"


def test_few_requests_decide_nothing_and_say_what_they_would_have_shown() -> None:
    few = a_level(requests=40)
    found = compare([a_run("base", 1, few)], [a_run("candidate", 2, few)], 0.02)
    assert (found.outcome, found.exit_code) == ("INCONCLUSIVE", 98)
    change = by_name(found)["p50(ttft)"]
    assert change.reason == "too little was measured to tell"
    assert change.detectable is not None
    assert change.detectable > 0.05
    assert by_name(found)["p99(ttft)"].ci95 == (None, None)
    assert by_name(found)["p99(ttft)"].detectable is None  # 40 requests have no interval of p99


def test_of_four_runs_a_side_the_interval_is_that_between_runs() -> None:
    """One side's runs that differ by a tenth among each other are no proof, however many requests each has."""
    base = [a_run(f"base/{number}", number, LARGE, slower=1 + number / 10) for number in range(4)]
    candidate = [a_run(f"candidate/{number}", 9 + number, LARGE, slower=1.1 + number / 10) for number in range(4)]
    found = compare(base, candidate, 0.02)
    changes = by_name(found)
    assert changes["p50(ttft)"].by == "runs"
    assert changes["error_rate"].by == "requests"
    assert changes["p50(ttft)"].verdict == "INCONCLUSIVE"
    assert found.levels[0].base_runs == 4
    # The same requests as one run each would be taken for certain.
    assert by_name(compare(base[:1], candidate[:1], 0.02))["p50(ttft)"].verdict == "FAIL"


def test_of_two_runs_a_side_the_more_cautious_of_both_intervals_counts() -> None:
    apart = [a_run("base/1", 1, LARGE, slower=0.9), a_run("base/2", 2, LARGE, slower=1.1)]
    together = several("candidate", 2, 5, LARGE)
    assert by_name(compare(apart, together, 0.02))["p50(ttft)"].by == "runs"
    lucky = [a_run("candidate/1", 1, LARGE), a_run("candidate/2", 1, LARGE)]  # as if runs never differed
    change = by_name(compare(lucky, lucky, 0.02))["p50(ttft)"]
    assert change.by == "requests"
    assert change.ci95 is not None
    assert change.ci95[0] is not None
    assert change.ci95[0] < 0


def test_repeats_of_a_level_are_runs_too() -> None:
    repeated = [a_level(index=i, name=f"c=4 ({i + 1}/4)", repeat=i + 1) for i in range(4)]
    found = compare([a_run("base", 1, *repeated)], [a_run("candidate", 2, *repeated, slower=1.3)], 0.05)
    assert [level.name for level in found.levels] == ["c=4"]
    assert by_name(found)["p50(ttft)"].by == "runs"
    assert found.outcome == "FAIL"


def test_a_level_that_was_extended_is_one_level() -> None:
    level, more = a_level(), a_level(index=1, name="c=4 (extension)")
    base = a_run("base", 1, level, more)
    first, second = base.result.levels
    base = changed(base, levels=[first, msgspec.structs.replace(second, extends="c=4")])
    found = compare([base], [a_run("candidate", 2, level)], 0.2)
    assert [(level.name, level.base_runs, level.candidate_runs) for level in found.levels] == [("c=4", 2, 1)]


# Failures -----------------------------------------------------------------------------------------------------


def test_more_failures_are_a_regression_even_of_those_below_tolerance() -> None:
    found = compare([a_run("base", 1, LARGE)], [a_run("candidate", 2, LARGE, failing=0.008)], 0.05)
    change = by_name(found)["error_rate"]
    assert change.verdict == "FAIL"
    assert change.base == 0.0
    assert change.candidate == pytest.approx(0.008, abs=0.004)
    assert change.change == pytest.approx(0.008, abs=0.004)


def test_a_percentile_among_the_candidates_failures_is_a_regression() -> None:
    asked = [measure("p99(ttft)")]
    found = compare([a_run("base", 1, LARGE)], [a_run("candidate", 2, LARGE, failing=0.1)], 0.05, asked)
    change = by_name(found)["p99(ttft)"]
    assert (change.candidate, change.change, change.verdict) == (None, None, "FAIL")
    back = compare([a_run("base", 1, LARGE, failing=0.1)], [a_run("candidate", 2, LARGE)], 0.05, asked)
    assert by_name(back)["p99(ttft)"].verdict == "PASS"


def test_a_candidate_that_answered_nothing_is_a_regression() -> None:
    found = compare([a_run("base", 1)], [a_run("candidate", 2, failing=1.0)], 0.05)
    assert found.outcome == "FAIL"
    changes = by_name(found)
    assert changes["error_rate"].candidate == 1.0
    assert changes["p50(ttft)"].verdict in ("FAIL", "INCONCLUSIVE")


# Loads --------------------------------------------------------------------------------------------------------


def test_what_an_open_load_sets_is_told_and_not_judged() -> None:
    level = a_level(OPEN, requests=2000)
    found = compare([a_run("base", 1, level)], [a_run("candidate", 2, level)], 0.2)
    change = by_name(found)["requests_per_s"]
    assert (change.verdict, change.ci95) == (None, None)
    assert change.change is not None
    assert found.outcome == "PASS"


def test_a_candidate_that_does_not_keep_up_is_a_regression_and_its_times_say_nothing() -> None:
    level = a_level(OPEN, requests=2000)
    base, candidate = a_run("base", 1, level), a_run("candidate", 2, level)
    found = compare([base], [level_changed(candidate, status="overloaded")], 0.2)
    changes = by_name(found)
    assert (changes["overloaded"].verdict, changes["p99(ttft)"].verdict) == ("FAIL", None)
    assert changes["requests_per_s"].verdict == "PASS"  # of a target that cannot keep up it is its own
    back = by_name(compare([level_changed(base, status="overloaded")], [candidate], 0.2))
    assert back["overloaded"].verdict == "PASS"
    some = [candidate, level_changed(candidate, status="overloaded"), candidate]
    assert by_name(compare([base], some, 0.2))["overloaded"].verdict == "INCONCLUSIVE"


# What can still be said ---------------------------------------------------------------------------------------


def test_the_client_being_the_limit_makes_it_invalid() -> None:
    base, candidate = a_run("base", 1), a_run("candidate", 2)
    client = msgspec.structs.replace(candidate.result.levels[0].client, valid=False, reasons=["sent late"])
    found = compare([base], [level_changed(candidate, client=client)], 0.05)
    assert (found.outcome, found.exit_code) == ("INVALID", 97)
    assert verdicts(found) == {"INVALID"}
    assert by_name(found)["p50(ttft)"].reason == "candidate: sent late"


def test_a_run_that_did_not_finish_is_never_a_pass() -> None:
    base, candidate = a_run("base", 1, LARGE), changed(a_run("candidate", 2, LARGE), complete=False)
    found = compare([base], [candidate], 0.2)
    assert verdicts(found) == {"PASS"}
    assert found.outcome == "INCONCLUSIVE"
    assert any("candidate: the run did not finish" in note for note in found.notes)
    cut = compare([base], [level_changed(candidate, status="aborted")], 0.2)
    assert (
        by_name(cut)["p50(ttft)"].reason
        == "a playing ended early; until then not worse by more than tolerated, for certain"
    )


def test_a_level_that_one_side_did_not_reach_is_named() -> None:
    first, second = a_level(), a_level(CLOSED, index=1, name="c=8")
    base, candidate = a_run("base", 1, first, second), a_run("candidate", 2, first, second)
    reached, missed = candidate.result.levels
    missed = msgspec.structs.replace(missed, status="not_reached", counts=Counts())
    found = compare([base], [changed(candidate, levels=[reached, missed], complete=False)], 0.5)
    assert [level.name for level in found.levels] == ["c=4"]
    assert "c=8: not compared, because one side has no request in its window" in found.notes
    assert found.outcome == "INCONCLUSIVE"
    assert "without c=8" in " ".join(found.notes)


def test_without_records_few_runs_tell_no_interval_and_four_a_side_do() -> None:
    base = [run._replace(records={}) for run in several("base", 4, 10, LARGE)]
    candidate = [run._replace(records={}) for run in several("candidate", 4, 20, LARGE, slower=1.3)]
    one = compare(base[:1], candidate[:1], 0.05)
    assert one.outcome == "INCONCLUSIVE"
    change = by_name(one)["p50(ttft)"]
    assert change.change == pytest.approx(0.3, abs=0.05)
    assert "4 runs a side" in change.reason
    assert any("has no records" in note for note in one.notes)
    assert by_name(compare(base, candidate, 0.05))["p50(ttft)"].verdict == "FAIL"


def test_records_that_are_not_those_of_the_figures_are_not_used() -> None:
    base, candidate = a_run("base", 1), a_run("candidate", 2)
    broken = candidate._replace(records={0: candidate.records[0][:-1]})
    found = compare([base], [broken], 0.05)
    assert found.outcome == "INCONCLUSIVE"
    assert any("its records are not those of its figures" in note for note in found.notes)


def test_figures_are_of_the_window_and_without_the_probe() -> None:
    level = a_level(requests=400, duration_s=6.0, warmup_s=2.0)
    run = a_run("base", 1, level)
    slow = [
        msgspec.structs.replace(record, first_token_ms=(record.first_token_ms or 0) + 5000, last_token_ms=None)
        if record.intended_ms < 2000
        else record
        for record in run.records[0]
    ]
    assert run.result.levels[0].counts.in_window < 400
    found = compare([run], [run._replace(records={0: slow})], 0.3, [measure("p50(ttft)")])
    change = by_name(found)["p50(ttft)"]
    assert change.base == change.candidate == run.result.levels[0].latency.ttft_ms.ok.p50


def test_unlike_sides_are_refused_with_what_is_unlike_unless_they_are_allowed() -> None:
    base, candidate = a_run("base", 1), a_run("candidate", 2, a_level(name="c=8"))
    with pytest.raises(UsageError, match=r"(?s)not comparable.*only the base has: c=4.*--allow-unlike") as refused:
        compare([base], [candidate], 0.05)
    assert refused.value.exit_code == 2
    found = compare([base], [candidate], 0.5, allow_unlike=True)
    assert found.unlike
    assert [level.name for level in found.levels] == ["c=4 → c=8"]  # each side has but one


def test_nothing_in_common_is_refused() -> None:
    base = a_run("base", 1, a_level(), a_level(index=1, name="c=8"))
    with pytest.raises(UsageError, match="nothing to compare"):
        compare([base], [a_run("candidate", 2, a_level(name="c=2"))], 0.05, allow_unlike=True)


def test_a_figure_asked_for_by_name_is_never_left_out_silently() -> None:
    level = a_level()
    silent = [msgspec.structs.replace(record, output_tokens=None) for record in requests(level, 1)]
    run = a_run("base", 1, level)
    without = run._replace(result=a_result([played(level, silent)]), records={0: silent})
    asked = [measure("output_tokens_per_s")]
    both = by_name(compare([without], [without], 0.05, asked))["output_tokens_per_s"]
    assert (both.verdict, both.reason) == ("INCONCLUSIVE", "not measured in every run of the base and the candidate")
    assert "output_tokens_per_s" not in by_name(compare([without], [without], 0.05))
    lost = by_name(compare([run], [without], 0.05, allow_unlike=True))["output_tokens_per_s"]
    assert lost.reason == "not measured in every run of the candidate"


def test_what_is_written_has_no_number_that_json_lacks() -> None:
    found = compare([a_run("base", 1)], [a_run("candidate", 2, failing=0.1)], 0.05)

    def numbers(value: object) -> list[float]:
        if isinstance(value, dict):
            return [number for inner in value.values() for number in numbers(inner)]
        if isinstance(value, list | tuple):
            return [number for inner in value for number in numbers(inner)]
        return [value] if isinstance(value, float) else []

    assert all(map(math.isfinite, numbers(msgspec.to_builtins(found))))
    assert msgspec.json.decode(msgspec.json.encode(found), type=Comparison) == found


# Words on the command line ------------------------------------------------------------------------------------


def test_figures_by_name() -> None:
    assert measure(" p99.9( ttft )")[1:] == ("ttft", "p999")
    assert [measure(name).unit for name in ("p50(e2e)", "requests_per_s", "error_rate")] == ["ms", "per_s", "share"]
    with pytest.raises(UsageError, match=r"did you mean p99\(ttft\)\?"):
        measure("p99(tttf)")
    with pytest.raises(UsageError, match="There are requests_per_s"):
        measure("p98(ttft)")


@pytest.mark.parametrize(
    ("text", "value"), [("5%", 0.05), ("0.05", 0.05), ("0", 0.0), (" .5 % ", 0.005), ("12.5%", 0.125)]
)
def test_shares(text: str, value: float) -> None:
    assert share(text) == pytest.approx(value)


@pytest.mark.parametrize("text", ["", "5", "100%", "-5%", "5 ms", "1", "nan", "٥%"])
def test_shares_that_are_none(text: str) -> None:
    with pytest.raises(UsageError, match="expected a share"):
        share(text)


def test_sides() -> None:
    assert sides(["a", "b"]) == (["a"], ["b"])
    assert sides(["a", "b", "vs", "c"]) == (["a", "b"], ["c"])
    for wrong in ([], ["a"], ["a", "b", "c"], ["a", "vs"], ["vs", "a"], ["a", "vs", "b", "vs", "c"]):
        with pytest.raises(UsageError, match="name two sides"):
            sides(wrong)
    with pytest.raises(UsageError, match="the same run twice"):
        sides(["a", "a", "vs", "b"])
