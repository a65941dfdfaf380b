"""What people write as an SLO is read as they mean it, or refused with the mend."""

import re
from pathlib import Path

import pytest

from loadtest.slo import METRICS, Limit, Scope, limits_of, parse, tightest_ms


@pytest.mark.parametrize(
    ("text", "metric", "quantile", "op", "limit", "unit"),
    [
        ("p99(ttft) < 300ms", "ttft", 0.99, "<", 300.0, "ms"),
        ("p99.9(ttft)<0.3s", "ttft", 0.999, "<", 300.0, "ms"),
        ("P95(E2E) <= 8s", "e2e", 0.95, "<=", 8000.0, "ms"),
        ("mean(itl) < 40ms", "itl", None, "<", 40.0, "ms"),
        ("p50(service-ttft) < 1m", "service_ttft", 0.5, "<", 60_000.0, "ms"),
        ("error_rate < 0.1%", "error_rate", None, "<", 0.001, "share"),
        ("error_rate <= 0.25", "error_rate", None, "<=", 0.25, "share"),
        ("goodput >= 99%", "goodput", None, ">=", 0.99, "share"),
        ("output_tokens_per_s > 2000", "output_tokens_per_s", None, ">", 2000.0, "per_s"),
        ("  requests_per_s >= 12.5  ", "requests_per_s", None, ">=", 12.5, "per_s"),
    ],
)
def test_an_expression_is_read(
    text: str, metric: str, quantile: float | None, op: str, limit: float, unit: str
) -> None:
    slo = parse(text)
    assert (slo.metric, slo.quantile, slo.op, slo.limit, slo.unit) == (metric, quantile, op, limit, unit)
    assert slo.scope == Scope()
    assert parse(slo.text) == slo, "the text that is stored means the same"


def test_a_scope_says_of_which_requests() -> None:
    assert parse("p99(tpot, turn=1) < 40ms").scope == Scope(turn=1)
    assert parse("error_rate(workload=chat, model=llama/8b) < 1%").scope == Scope(workload="chat", model="llama/8b")
    slo = parse("p99(ttft, level='continuous 16 c=4') < 1s")
    assert slo.scope.level == "continuous 16 c=4"
    assert parse(slo.text) == slo
    assert parse("p99(ttft, level='a, b') < 1s").scope.level == "a, b"


def test_a_level_is_meant_by_some_words_of_its_name() -> None:
    scope = Scope(level="c=4")
    assert scope.is_of("continuous 16 c=4")
    assert scope.is_of("c=4 (2/3)")
    assert not scope.is_of("c=48")
    assert Scope().is_of("anything")


def test_goodput_takes_limits_of_single_requests() -> None:
    slo = parse("goodput(ttft < 300ms, tpot <= 40ms, workload=chat) >= 99%")
    assert slo.limits == (Limit("ttft", "<", 300.0), Limit("tpot", "<=", 40.0))
    assert slo.scope == Scope(workload="chat")
    assert parse(slo.text) == slo


def test_a_good_request_keeps_the_loosest_limit_on_each_time() -> None:
    texts = ["p50(ttft) < 100ms", "p99(ttft) < 300ms", "p99(itl) < 20ms", "mean(e2e) < 8s", "p99(tpot, turn=2) < 9ms"]
    slos = [parse(text) for text in [*texts, "goodput(tpot < 40ms) >= 99%"]]
    assert limits_of(slos) == (Limit("ttft", "<", 300.0), Limit("tpot", "<", 40.0))
    assert tightest_ms(slos) == 9.0
    assert tightest_ms([parse("error_rate < 1%")]) is None


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("p99(tfft) < 300ms", f"'tfft' is no metric: did you mean ttft? They are {', '.join(METRICS)}"),
        ("latency < 1s", "did you mean e2e?"),
        ("rps > 5", "did you mean requests_per_s?"),
        ("p99(ttft) < 300", "expected a time with its unit, such as 300ms or 8s, got '300'"),
        ("p99(ttft) < 0ms", "can never be"),
        ("ttft < 300ms", "say which of them, such as p99(ttft) < 300ms"),
        ("p99 < 1s", "p99 is of one time: write p99(ttft)"),
        ("p99(ttft, e2e) < 1s", "p99 is of one time"),
        ("p99(error_rate) < 1%", "write error_rate without it"),
        ("p999(ttft) < 1s", "write p99.9"),
        ("p0(ttft) < 1s", "from p1 to"),
        ("max(e2e) < 1s", "no run proves what the slowest request ever will be"),
        ("avg(e2e) < 1s", "write mean"),
        ("p99(ttft) > 300ms", "ttft is to be low: write < 300ms"),
        ("goodput < 99%", "goodput is to be high: write > 99%"),
        ("error_rate < 5", "write 5%, or a fraction"),
        ("error_rate <= 0", "no number of requests proves it; write for example 0.1%"),
        ("error_rate < 1", "write 1%, if you mean that"),
        ("goodput >= 100%", "no number of requests proves it; write for example 99.9%"),
        ("requests_per_s > 5%", "expected 2000, got '5%'"),
        ("error_rate(ttft) < 5%", "takes no 'ttft' between its brackets"),
        ("error_rate(ttft < 1s) < 5%", "limits of single requests go with goodput"),
        ("goodput(itl < 4ms) >= 90%", "itl is no time that one request has"),
        ("goodput(ttft > 4ms) >= 90%", "ttft is to be low"),
        ("p99(ttft, trun=1) < 1s", "'trun' is no scope: did you mean turn?"),
        ("p99(ttft, turn=0) < 1s", "turns count from 1"),
        ("p99(ttft, turn=1, turn=2) < 1s", "turn is given twice"),
        ("p99(ttft < 1s", "expected METRIC OP LIMIT"),
        ("p99(ttft) == 1s", "expected METRIC OP LIMIT"),
        ("p99(ttft, level='a) < 1s", "between the brackets stands"),
        ("", "expected METRIC OP LIMIT, such as p99(ttft) < 300ms"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_the_mend(text: str, says: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse(text)
    assert says in str(caught.value)


def test_the_expressions_of_the_documentation_are_read() -> None:
    page = (Path(__file__).parent.parent / "docs" / "slo.md").read_text("utf-8")
    block = page.split("## Expressions")[1].split("\n- ")[0]
    expressions = [re.split(r"\s{2,}", line.strip())[0] for line in block.splitlines() if line.startswith("    ")]
    assert len(expressions) == 8
    for text in expressions:
        parse(text)
    for metric in METRICS:
        assert f"`{metric}`" in page
