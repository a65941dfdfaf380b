"""What is made of a search: how near a trial was, what is usable, and the statement with what is not known said so."""

from collections.abc import Callable

import msgspec
import pytest

from loadtest.capacity import _nearness, _verdict, _why
from loadtest.errors import UsageError
from loadtest.question import Question, of_flags
from loadtest.reports.capacity import table
from loadtest.result import Capacity, RawPeak, Result, Searched, Trial, Usable, Verdict
from loadtest.slo import parse
from loadtest.statement import statement


def trial(
    load: float, outcome: str = "PASS", *, resolved: bool = True, level: int = 0, near: float | None = 0.5
) -> Trial:
    given = {"load": load, "outcome": outcome, "resolved": resolved, "nearness": near, "levels": [level]}
    return msgspec.convert(given, Trial)


def capacity(*trials: Trial, **given: object) -> Capacity:
    values = {
        "axis": "concurrency", "setting": "", "tier": "", "slo": ["p99(ttft) < 300ms"], "bracket": (4.0, 5.0),
        "searched": Searched(start=1.0, least=1.0, most=None, trials=3), "trials": [*trials],
        "raw_peak": RawPeak(output_tokens_per_s=1234.0, requests_per_s=None, load=16.0),
        "usable": Usable(reserve=0.2, replicas=1, lost=0, value=3.2), "cliff": False, "ended": "came to its end",
        "statement": "",
    }  # fmt: skip
    return Capacity(**{**values, **given})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "value", "nearness"),
    [
        ("p99(ttft) < 200ms", 100.0, 0.5),
        ("error_rate < 2%", 0.03, 1.5),
        ("goodput(ttft < 1s) >= 99%", 0.98, 2.0),
        ("goodput(ttft < 1s) >= 99%", 1.0, 0.0),
        ("p99(ttft) < 200ms", None, float("inf")),
    ],
)
def test_nearness_is_1_at_the_limit_whichever_way_it_goes(text: str, value: float | None, nearness: float) -> None:
    assert _nearness(parse(text), value) == pytest.approx(nearness)


def test_nothing_but_three_clear_failures_at_the_least_load_is_a_fail() -> None:
    failed = [trial(1.0, "FAIL")] * 3
    assert _why(capacity(*failed, bracket=(None, 1.0))) == "FAIL"
    assert _why(capacity(*failed[:2], bracket=(None, 1.0))) == "INCONCLUSIVE"
    assert _why(capacity(*failed, trial(1.0), bracket=(None, 1.0))) == "INCONCLUSIVE"
    assert _why(capacity(*([trial(2.0, "FAIL")] * 3), bracket=(None, 2.0))) == "INCONCLUSIVE"
    invalid = [trial(1.0, "INVALID", resolved=False, near=None)] * 2
    assert _why(capacity(*invalid, bracket=(None, None))) == "INVALID"
    assert _why(capacity(bracket=(None, None))) == "INCONCLUSIVE"
    assert _why(capacity(trial(1.0))) == "PASS"


def test_a_search_that_did_not_finish_is_no_pass() -> None:
    passed = capacity(trial(4.0), setting="continuous 16")
    failed = capacity(*[trial(1.0, "FAIL")] * 3, bracket=(None, 1.0), setting="none", statement="Not shown; raw peak 7")
    assert _verdict([passed], complete=True) == Verdict(outcome="PASS", reasons=[])
    assert _verdict([passed], complete=False).outcome == "INCONCLUSIVE"
    assert _verdict([passed, failed], complete=True) == Verdict(outcome="FAIL", reasons=["none: Not shown"])


def test_the_reserve_is_a_share_and_says_what_is_wrong() -> None:
    def asked(reserve: str) -> Question:
        return of_flags(None, None, None, 3, "30m", reserve, 1, 0, [])

    assert asked("20%").usable.reserve == asked("0.2").usable.reserve == 0.2
    for wrong in ("1", "100%", "a lot", "-3%"):
        with pytest.raises(UsageError, match="--reserve"):
            asked(wrong)


def test_the_statement_says_what_was_not_told(sweep: Callable[..., Result]) -> None:
    whole = sweep()
    said = statement(capacity(trial(4.0, level=1)), whole.levels, whole.conditions, 7)
    assert said.startswith("Capacity at SLO: 4 in flight passed in each of its trials, at least 3, 5 in flight did not")
    assert "usable: 3.2 in flight, with a reserve of 20 %" in said
    assert "raw peak, whatever the latency: 1,234 output tokens/s at 16 in flight" in said
    assert "seed 7." in said
    bare = msgspec.structs.replace(
        whole.conditions, precision=None, hardware=msgspec.structs.replace(whole.conditions.hardware, server=None)
    )
    unknown = statement(capacity(trial(4.0, level=1), bracket=(4.0, None)), whole.levels, bare, 7)
    assert "precision not told" in unknown
    assert "server hardware not told" in unknown
    assert "nothing higher was judged" in unknown
    none = capacity(bracket=(None, None), usable=Usable(reserve=0.2, replicas=1, lost=0, value=None), raw_peak=None)
    assert "no load was tried" in statement(none, [], bare, 7)


def test_the_statement_says_at_which_loads_the_client_was_why(sweep: Callable[..., Result]) -> None:
    whole = sweep()
    invalid = [trial(load, "INVALID", resolved=False, near=None) for load in (4.0, 4.4, 4.6, 4.6, 6.0)]
    found = capacity(
        trial(4.0, level=1), *invalid, trial(4.2), trial(5.0, "FAIL"), cliff=True,
        usable=Usable(reserve=0.2, replicas=1, lost=0, value=7.368),
    )  # fmt: skip
    said = statement(found, whole.levels, whole.conditions, 7)
    assert "; of 4.4 and 4.6 nothing is known, as the client was the limit there; usable: 7.37 in flight," in said
    assert "cliff" not in said, "what is next to the load that passed is not known"
    known = statement(msgspec.structs.replace(found, trials=[trial(4.0, level=1)]), whole.levels, whole.conditions, 7)
    assert "a cliff" in known
    assert "the client was the limit" not in known


def test_what_passed_too_seldom_to_be_shown_is_said(sweep: Callable[..., Result]) -> None:
    whole = sweep()
    trials = [trial(2.0, "INCONCLUSIVE", resolved=False), trial(4.0, level=1), trial(5.0, "FAIL", level=2)]
    nothing = Usable(reserve=0.2, replicas=1, lost=0, value=None)
    said = statement(
        capacity(*trials, bracket=(None, 5.0), usable=nothing, cliff=True), whole.levels, whole.conditions, 7
    )
    assert "; 4 in flight passed in as many as there were, 5 in flight did not; raw peak" in said
    assert f"n = {whole.levels[1].counts.in_window:,} requests at that load" in said, "and not at the least load"
    assert "cliff" not in said


def test_the_frontier_is_marked_in_each_setting(sweep: Callable[..., Result]) -> None:
    one = capacity(
        trial(1.0, "INCONCLUSIVE", resolved=False), *([trial(4.0, level=1)] * 3), trial(5.0, "FAIL", level=2),
        trial(8.0, "INVALID", resolved=False, near=None), setting="continuous 16", statement="So much.",
    )  # fmt: skip
    other = capacity(
        trial(1.0), trial(4.0, "INCONCLUSIVE", resolved=False, near=1.3), setting="none", bracket=(None, None),
        statement="Not shown.",
    )  # fmt: skip
    whole = msgspec.structs.replace(
        sweep(), capacity=one, capacities=[one, other], verdict=Verdict(outcome="INCONCLUSIVE", reasons=[])
    )
    text = table(whole, 140, False, "out")
    rows = {line.split()[0]: line.split()[1:] for line in text.splitlines() if line[:2] in ("1 ", "4 ", "5 ", "8 ")}
    assert rows == {"1": ["within", "1/1"], "4": ["3/3", "|", "beyond"], "5": ["0/1"], "8": ["invalid"]}
    assert "continuous 16: So much." in text
    assert "none: Not shown." in text
    for width in (80, 140):
        assert max(map(len, table(whole, width, False, "out").splitlines())) <= width
