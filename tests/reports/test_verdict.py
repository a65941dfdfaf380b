"""The verdict block of the console: the answer, each SLO, and why."""

from collections.abc import Callable

import msgspec
import pytest

from loadtest.reports.cases import measured
from loadtest.reports.console import table
from loadtest.reports.verdict import columns, headline, reasons
from loadtest.result import Result, SloResult, Verdict
from loadtest.verdict import overall


def slo(verdict: str = "PASS", **given: object) -> SloResult:
    values = {
        "expression": "p99(ttft) < 300ms", "value": 212.4, "ci": (199.0, 240.0), "n": 4000, "verdict": verdict,
        "reason": "12 of 4,000 due requests were late or failed, 40 are allowed",
    }  # fmt: skip
    return msgspec.convert({**values, **given}, SloResult)


Build = Callable[..., Result]


@pytest.fixture
def with_slos(sweep: Callable[..., Result]) -> Build:
    """A run of levels with these SLO results, judged as a whole."""

    def build(*of: list[SloResult]) -> Result:
        whole = sweep()
        levels = [msgspec.structs.replace(level, slo=slos) for level, slos in zip(whole.levels, of, strict=False)]
        return msgspec.structs.replace(whole, levels=levels, verdict=overall(levels))

    return build


def test_the_answer_stands_above_the_table_with_value_interval_and_n(with_slos: Build) -> None:
    text = table(with_slos([slo(), slo("FAIL", expression="error_rate < 1%", unit="share", value=0.02)]), 140, False)
    assert text.index("FAIL · of 2 judged: 1 FAIL, 1 PASS") < text.index("req/s")
    row = next(line for line in text.splitlines() if line.startswith("PASS"))
    assert "212 ms" in row
    assert "199 ms to 240 ms" in row
    assert "4,000" in row
    assert "2 %" in next(line for line in text.splitlines() if line.startswith("FAIL  "))


@pytest.mark.parametrize(("n", "said"), [(99, "~212 ms"), (100, "212 ms")])
def test_a_percentile_that_is_but_the_slowest_request_is_marked(n: int, said: str) -> None:
    assert measured(slo(n=n)) == said
    assert measured(slo(n=n, expression="error_rate < 1%", unit="share", value=0.02)) == "2 %"
    assert measured(slo(n=n, expression="of a later version")) == "212 ms"


def test_without_an_slo_it_says_nothing(with_slos: Build) -> None:
    quiet = with_slos([])
    assert columns(quiet) == []
    assert "verdict" not in table(quiet, 140, False)


def test_reasons_are_told_once_of_what_did_not_pass(with_slos: Build) -> None:
    late = [
        slo("INVALID", reason="the generator sent late"),
        slo("INVALID", expression="b", reason="the generator sent late"),
    ]
    found = with_slos(late, [slo()])
    assert reasons(found) == ["c=1: p99(ttft) < 300ms, c=1: b: INVALID, the generator sent late"]
    assert headline(found) == "INVALID · of 3 judged: 2 INVALID, 1 PASS"
    assert [column.cells for column in columns(found) if column.head == "level"] == [["c=1", "c=1", "c=8"]]


def test_a_value_among_the_failures_and_an_open_end_are_shown_as_such(with_slos: Build) -> None:
    found = with_slos([slo("FAIL", value=None, ci=(120.0, None))])
    cells = {column.head: column.cells[0] for column in columns(found)}
    assert cells["measured"] == "∞"
    assert cells["95 % interval"] == "from 120 ms"


def test_many_reasons_do_not_bury_the_figures_and_how_many_more_requests_decide_stands_in_the_table(
    with_slos: Build,
) -> None:
    open_ones = [
        slo("INCONCLUSIVE", expression=f"p99(ttft) < {n}ms", reason=f"reason {n}", more_requests=3810 + n)
        for n in range(1, 11)
    ]
    text = table(with_slos([slo(), *open_ones]), 140, False)
    assert "p99(ttft) < 6ms: INCONCLUSIVE, reason 6\nand 4 more, in result.json\n" in text
    assert "reason 7" not in text
    rows = [line.split()[-1] for line in text.splitlines() if line.startswith(("INCONCLUSIVE  ", "PASS  "))]
    assert rows == ["+3,800"] * 10 + ["–"]


def test_it_says_that_the_policy_and_not_the_figures_failed_it(with_slos: Build) -> None:
    found = with_slos([slo("INCONCLUSIVE")])
    failed = msgspec.structs.replace(found, verdict=overall(found.levels, inconclusive="fail"))
    assert headline(failed) == "FAIL · what is not decided counts as failed (--on-inconclusive fail)"


def test_a_strict_run_without_an_slo_tells_why_it_is_invalid(with_slos: Build) -> None:
    found = msgspec.structs.replace(with_slos([]), verdict=Verdict(outcome="INVALID", reasons=["c=4: late"]))
    assert "INVALID\n\nc=4: late" in table(found, 140, False)


def test_a_strict_run_tells_why_it_is_invalid_beside_an_slo_that_is_not(with_slos: Build) -> None:
    found = with_slos([slo("INCONCLUSIVE", reason="too few")], [])
    strict = msgspec.structs.replace(found, verdict=Verdict(outcome="INVALID", reasons=["c=8: late"]))
    assert reasons(strict)[0] == "c=8: late"
