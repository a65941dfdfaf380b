import pytest

from loadtest.alert import Alert, Figure, parse
from loadtest.slo import measure


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("p99(ttft)>3*p50(ttft)", "p99(ttft) > 3 * p50(ttft)"),
        ("0.5 × P99( itl , level=c=4 ) >= mean(itl)", "0.5 * p99(itl, level='c=4') >= mean(itl)"),
        ("error_rate > 0%", "error_rate > 0%"),
        ("p99.9(e2e) > 8s", "p99.9(e2e) > 8s"),
        ("p99(ttft, level='a (more)') < 1s", "p99(ttft, level='a (more)') < 1s"),
        ("output_tokens_per_s < 20 * requests_per_s", "output_tokens_per_s < 20 * requests_per_s"),
        ("goodput < 99%", "goodput < 99%"),
    ],
)
def test_it_is_read_and_written_back(text: str, written: str) -> None:
    assert parse(text).text == written
    assert parse(written).text == written


def test_what_it_means() -> None:
    assert parse("p99(ttft) > 3 * p50(ttft)") == Alert(
        "p99(ttft) > 3 * p50(ttft)", Figure(measure("p99", "ttft")), ">", Figure(measure("p50", "ttft"), 3.0)
    )
    assert parse("p99(ttft) > 1.5s").right == 1500.0
    assert parse("error_rate <= 2%").right == 0.02


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("p99(ttft)", r"expected FIGURE OP FIGURE, such as p99\(ttft\) > 3 \* p50\(ttft\)"),
        ("p99(ttft) > 3 * 300ms", "expected FIGURE OP FIGURE"),
        ("p99(ttft) > 300", "a time with its unit"),
        ("p99(tfft) > 1s", "'tfft' is no metric: did you mean ttft"),
        ("p99(ttft) > p50(ttf)", "'ttf' is no metric"),
        ("ttft > 1s", "say which of them, such as p99"),
        ("p99(ttft) > error_rate", "ttft is a time and error_rate is a share: they cannot be compared"),
        ("p75(ttft) > 1s", "are p50, p90, p95, p99 and p99.9"),
        ("p99(ttft, turn=1) > 1s", "of the scopes it takes level= alone"),
        ("goodput(ttft < 1s) < 99%", "expected FIGURE OP FIGURE|write goodput"),
        ("max(ttft) > 1s", "write p99.9"),
    ],
)
def test_a_fault_says_what_and_the_mend(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        parse(text)
