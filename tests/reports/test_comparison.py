"""A comparison as a person, a reviewer and a pipeline read it."""

from pathlib import Path

import msgspec
import pytest

from loadtest.compare import compare
from loadtest.comparison import Change, Compared, Comparison
from loadtest.reports.comparison import answer, cases, markdown, moved, reasons, sides, table
from tests.comparing import CLOSED, a_level, a_run, changed, conditions, several

GOLDEN = Path(__file__).parent / "golden"
LEVELS = (a_level(requests=1000), a_level(CLOSED, requests=1000, index=1, name="c=16"))


def worse() -> Comparison:
    candidate = conditions(
        a_run("results/after", 2, *LEVELS, slower=1.06, failing=0.004),
        software={"loadtest": "0.1.0", "server": "2.0"},
    )
    return compare([a_run("results/before", 1, *LEVELS)], [candidate], 0.05)


def alike() -> Comparison:
    return compare(several("results/before", 4, 1, LEVELS[0]), several("results/after", 4, 9, LEVELS[0]), 0.1)


def few() -> Comparison:
    level = a_level(requests=40)
    return compare([a_run("before", 1, level)], [changed(a_run("after", 2, level), complete=False)], 0.05)


@pytest.mark.parametrize("width", [140, 80])
@pytest.mark.parametrize("of", [worse, alike, few])
def test_comparison_looks_as_agreed(of: "type", width: int) -> None:
    text = table(of(), width, color=False)
    path = GOLDEN / f"compared-{of.__name__}-{width}.txt"
    assert text == path.read_text("utf-8"), f"look at it, and if it is right write it to {path}"
    assert all(len(line) <= width for line in text.splitlines())


def test_a_terminal_has_colour_and_a_pipe_has_none() -> None:
    assert "\x1b[1;31m" in table(worse(), 80, color=True)
    assert "\x1b" not in table(worse(), 80, color=False)


def test_the_answer_stands_first_and_names_the_worst() -> None:
    assert table(worse(), 200, color=False).startswith("Regression: c=4 p99(ttft) +")
    assert answer(worse()).endswith(" more.")
    assert answer(alike()) == "No regression: no figure got worse by more than 10 %, for certain."
    assert answer(few()).startswith("Inconclusive: ")


def change(**of: object) -> Change:
    values: dict[str, object] = {"metric": "p99(ttft)", "unit": "ms", "base": 100.0, "candidate": 120.0, "change": 0.2}
    return Change(**{**values, **of})  # type: ignore[arg-type]


def comparison(*changes: Change, **of: object) -> Comparison:
    values: dict[str, object] = {
        "base": ["a"], "candidate": ["b"], "tolerance": 0.05, "unlike": [], "notes": [], "outcome": "FAIL",
        "exit_code": 99, "levels": [Compared(name="c=4", base_runs=1, candidate_runs=1, changes=list(changes))],
    }  # fmt: skip
    return Comparison(**{**values, **of})  # type: ignore[arg-type]


def test_changes_have_their_sign_and_unit_and_open_ends_are_open() -> None:
    assert moved(change(), 0.123) == "+12.3 %"
    assert moved(change(), None) == "–"
    assert moved(change(), 97.017) == "> +1000 %"
    assert moved(change(unit="share"), -0.005) == "-0.50 pp"
    text = table(comparison(change(ci95=(0.1, None), verdict="FAIL", reason="worse")), 140, color=False)
    assert "+10.0 to … %" in text


def test_what_is_unlike_is_said_above_the_figures() -> None:
    text = table(comparison(change(), unlike=["model: a against b"], outcome="INCONCLUSIVE"), 140, color=False)
    assert text.index("unlike: model: a against b") < text.index("p99(ttft)")
    assert "unlike: model: a against b" in markdown(comparison(change(), unlike=["model: a against b"]))


def test_reasons_are_told_once_with_the_levels_that_have_them() -> None:
    found = comparison(change(verdict="FAIL", reason="worse"))
    other = Compared(name="c=8", base_runs=1, candidate_runs=1, changes=[change(verdict="PASS")])
    two = msgspec.structs.replace(found, levels=[*found.levels, other])
    assert reasons(found) == ["regression: p99(ttft): worse"]
    assert reasons(two) == ["regression: p99(ttft) (c=4): worse"]


def test_runs_beside_each_other_are_named_shortly() -> None:
    found = comparison(change(), base=["out/base/1", "out/base/2"], candidate=["a", "x/b"])
    assert sides(found) == ["base: out/base: 1, 2 (2 runs)", "candidate: a, x/b (2 runs)"]


def test_every_figure_is_a_case_for_a_pipeline() -> None:
    found = cases(comparison(change(verdict="FAIL", reason="worse", ci95=(0.1, 0.3)), change(metric="requests_per_s")))
    assert [(case.title, case.outcome) for case in found] == [
        ("c=4: p99(ttft)", "FAIL"), ("c=4: requests_per_s", "SKIPPED"),
    ]  # fmt: skip
    assert found[0].figures == "base 100, candidate 120, change +20.0 %, 95 % confidence interval +10.0 to +30.0 %"


def test_the_comment_has_the_answer_and_nothing_of_it_is_markup() -> None:
    text = markdown(
        comparison(change(verdict="FAIL", reason="worse"), base=["a|b<script>"], notes=["x: `1` against *2*"])
    )
    assert text.startswith("### ❌ FAIL")
    assert "Regression: p99" in text
    assert "<script>" not in text
    assert "`" not in text
