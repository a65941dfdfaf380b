"""What is said of a level because the user asked to be told."""

import pytest

from loadtest.alert import parse
from loadtest.caveats import caveats
from loadtest.records import Record
from loadtest.summary import summarise
from tests.test_summary import OPEN, answer, failure, level, run


def slow(id_: int, at: float) -> Record:
    return answer(
        id_, at, first_token_ms=at + 500, first_answer_ms=at + 500, last_token_ms=at + 530, done_ms=at + 531
    )  # fmt: skip


FIGURES = summarise(level(load=OPEN), [*(answer(i, 2000.0 + 100 * i) for i in range(9)), slow(9, 4000.0)], run())
FAILING = summarise(
    level(load=OPEN), [*(answer(i, 2000.0 + 100 * i) for i in range(9)), failure(9, 4000.0)], run()
)  # fmt: skip


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("p99(ttft) > 3 * p50(ttft)", "p99(ttft) is 500 ms, and 3 * p50(ttft) is 303 ms"),
        ("p99(ttft) > 400ms", "p99(ttft) is 500 ms"),
        ("mean(ttft) > p50(ttft)", "mean(ttft) is 141 ms, and p50(ttft) is 101 ms"),
        ("error_rate <= 0%", "error_rate is 0%"),
        ("requests_per_s < 1000", "requests_per_s is"),
        ("goodput < 99%", "nothing to tell it by, as goodput was not measured"),
        ("p99(ttft) > 5 * p50(ttft)", None),
        ("p99(ttft, level='c=3') > 1ms", None),
        ("p99(ttft, level='c=2') > 1ms", "p99(ttft, level='c=2') is 500 ms"),
    ],
)
def test_a_warning_is_given_where_it_holds_with_both_figures(text: str, said: str | None) -> None:
    found = [line for line in caveats(FIGURES, alerts=[parse(text)]) if "warn" in line]
    assert len(found) == (said is not None)
    if said:
        assert found[0].startswith(f"c=2: warn {parse(text).text}: {said}")


def test_failures_are_inside() -> None:
    assert "c=2: warn error_rate > 5%: error_rate is 10%" in caveats(FAILING, alerts=[parse("error_rate > 5%")])
    for text in ("p99(e2e) > 1s", "mean(e2e) > 1s"):
        (line,) = caveats(FAILING, alerts=[parse(text)])
        assert line.endswith("is without end, as requests failed")
