"""A run that can only do harm ends by itself, and no other run does."""

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.abort import Rule, Watch, parse


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("error_rate > 50% for 5s", Rule("error_rate", ">", 0.5, 5.0)),
        ("error_rate>=0.5 for 500ms", Rule("error_rate", ">=", 0.5, 0.5)),
        ("  error-rate  >  12.5 %  for  2 m ", Rule("error_rate", ">", 0.125, 120.0)),
        ("in_flight > 500 for 10s", Rule("in_flight", ">", 500.0, 10.0)),
        ("IN_FLIGHT >= 500 for 0s", Rule("in_flight", ">=", 500.0, 0.0)),
        ("error_rate > 10%", Rule("error_rate", ">", 0.1, 5.0)),
        ("in_flight < 1 for 1m", Rule("in_flight", "<", 1.0, 60.0)),
        ("silence > 2m", Rule("silence", ">", 0.0, 120.0)),
        ("error_rate <= 1 for 1s", Rule("error_rate", "<=", 1.0, 1.0)),
    ],
)
def test_a_condition_is_read(text: str, rule: Rule) -> None:
    assert parse(text) == rule


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected METRIC OP VALUE for TIME, such as 'error_rate > 50% for 5s', 'in_flight > 500 for 10s' or "
         "'silence > 60s'"),
        ("error_rate", "expected METRIC OP VALUE for TIME, such as "),
        ("error_rate = 5%", "expected METRIC OP VALUE for TIME, such as "),
        ("error_rate > half", "expected METRIC OP VALUE for TIME, such as "),
        ("error_rate > -1%", "expected METRIC OP VALUE for TIME, such as "),
        ("error_rate > 5% 5s", "expected METRIC OP VALUE for TIME, such as "),
        ("error_rate > 5% for5", "expected METRIC OP VALUE for TIME, such as "),
        ("eror_rate > 5%", "'eror_rate' is no metric to abort on: they are error_rate, in_flight, silence; did you "
         "mean 'error_rate'?"),
        ("ttft > 5", "'ttft' is no metric to abort on: they are error_rate, in_flight, silence"),
        ("error_rate > 50", "an error_rate of 50 cannot be: write 50% or a fraction such as 0.5"),
        ("error_rate > 101%", "an error_rate of 101% cannot be: it is at most 100%"),
        ("in_flight > 50%", "in_flight is a number of requests and takes no %: write 50"),
        ("error_rate > 50% for 5", "after 'for': expected a duration with its unit: write for example 30s, 500ms or "
         "2m, got '5'"),
        ("error_rate > 50% for", "after 'for': expected a duration with its unit: "),
        ("in_flight > 5 for 200h", "after 'for': expected at most 7 days (168h), got '200h'"),
        ("error_rate > 50% for 0s", "an error_rate is that of a time: write for example 'for 5s'"),
        ("error_rate > 100%", "error_rate > 100% can never be: write >="),
        ("in_flight < 0", "in_flight < 0 can never be: write <="),
        ("silence > 60", "a silence lasts a time, such as 'silence > 60s': expected a duration with its unit: "),
        ("silence > 5ms", "a silence is told from 1 s on: write for example 'silence > 60s'"),
        ("silence < 60s", "expected METRIC OP VALUE for TIME, such as "),
        ("silence < 60", "a silence lasts a time: write for example 'silence > 60s', not 'silence < 60'"),
    ],
)  # fmt: skip
def test_what_cannot_be_meant_is_refused_in_words(text: str, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse(text)
    assert str(caught.value).startswith(message)


METRICS = st.one_of(
    st.tuples(st.just("error_rate"), st.integers(1, 999).map(lambda tenths: tenths / 1000)),
    st.tuples(st.just("in_flight"), st.integers(1, 10**6).map(float)),
)


@given(METRICS, st.sampled_from([">", ">=", "<", "<="]), st.integers(1, 10**9))
def test_a_rule_is_written_as_it_is_read(metric: tuple[str, float], op: str, us: int) -> None:
    rule = Rule(metric[0], op, metric[1], us / 1e6)  # type: ignore[arg-type]
    assert parse(str(rule)) == rule


def test_half_the_requests_failing_over_the_whole_time_ends_the_level() -> None:
    watch = Watch(parse("error_rate > 50% for 5s"))
    for second in range(5):
        assert watch.see(100.0 + second, 4 * second, 6 * second, 10) is None
    assert watch.see(105.0, 20, 30, 10) == (
        "error_rate > 50% for 5s: 30 of the 50 requests that finished in the last 5.0 s failed (60%)"
    )


def test_only_what_finished_within_the_time_counts() -> None:
    watch = Watch(parse("error_rate > 50% for 5s"))
    assert watch.see(0.0, 1000, 0, 10) is None
    for second in range(1, 5):
        assert watch.see(second, 1000, 10 * second, 10) is None
    assert "50 of the 50 requests" in str(watch.see(5.0, 1000, 50, 10))


def test_a_short_burst_of_failures_does_not_end_the_level() -> None:
    watch = Watch(parse("error_rate > 50% for 5s"))
    failed = 0
    for tick in range(400):
        failed += 10 if 100 <= tick < 110 else 0
        assert watch.see(tick / 10, 10 * tick, failed, 10) is None


def test_failures_long_past_do_not_end_the_level() -> None:
    watch = Watch(parse("error_rate >= 50% for 5s"))
    assert watch.see(0.0, 0, 500, 10) is None
    for tick in range(1, 200):
        assert watch.see(tick / 4, tick, 500, 10) is None


def test_exactly_at_the_limit_is_not_above_it() -> None:
    above, reached = Watch(parse("error_rate > 50% for 1s")), Watch(parse("error_rate >= 50% for 1s"))
    assert above.see(0.0, 0, 0, 0) is None
    assert reached.see(0.0, 0, 0, 0) is None
    assert above.see(1.0, 5, 5, 0) is None
    assert reached.see(1.0, 5, 5, 0) is not None
    seven = Watch(parse("error_rate > 0.7% for 1s"))
    assert seven.see(0.0, 0, 0, 0) is None
    assert seven.see(1.0, 993, 7, 0) is None


@pytest.mark.parametrize("text", ["error_rate > 0% for 1s", "error_rate <= 100% for 1s", "error_rate < 1% for 1s"])
def test_nothing_finished_is_no_reason(text: str) -> None:
    watch = Watch(parse(text))
    for second in range(60):
        assert watch.see(second, 0, 0, 500) is None


def test_a_clock_that_jumps_gives_a_longer_time_and_not_a_shorter_one() -> None:
    watch = Watch(parse("error_rate > 50% for 5s"))
    assert watch.see(0.0, 0, 0, 10) is None
    assert watch.see(4.9, 0, 40, 10) is None
    # Over the last 5.1 s 40 failed and 60 did not; over the very last moment alone all did.
    assert watch.see(10.0, 60, 40, 10) is None
    assert "60 of the 60 requests that finished in the last 30.0 s" in str(watch.see(40.0, 60, 100, 10))


def test_many_in_flight_must_be_so_at_every_look() -> None:
    watch = Watch(parse("in_flight > 500 for 10s"))
    for second in range(10):
        assert watch.see(second, 0, 0, 501) is None
    assert watch.see(9.5, 0, 0, 500) is None
    for second in range(10, 20):
        assert watch.see(second, 0, 0, 900) is None
    assert watch.see(20.0, 0, 0, 1200) == (
        "in_flight > 500 for 10s: 1,200 requests are in flight, and it has been so for 10.0 s"
    )


def test_at_once_is_at_the_first_look() -> None:
    watch = Watch(parse("in_flight > 500 for 0s"))
    assert watch.see(0.0, 0, 0, 500) is None
    assert watch.see(0.1, 0, 0, 501) is not None


def looks() -> st.SearchStrategy[list[tuple[float, int, int]]]:
    return st.lists(st.tuples(st.floats(0.01, 20), st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=40)


@given(looks())
def test_the_verdict_is_that_of_the_figures_read_afresh(steps: list[tuple[float, int, int]]) -> None:
    watch = Watch(parse("error_rate > 50% for 5s"))
    seen: list[tuple[float, int, int]] = []

    def window() -> Iterator[tuple[float, int, int]]:
        return (look for look in reversed(seen) if look[0] <= seen[-1][0] - 5)

    at, ok, failed = 0.0, 0, 0
    for gap, more_ok, more_failed in steps:
        at, ok, failed = at + gap, ok + more_ok, failed + more_failed
        seen.append((at, ok, failed))
        then = next(window(), None)
        worse = then is not None and failed - then[2] > ok - then[1]
        assert (watch.see(at, ok, failed, 0) is not None) == worse


def test_a_target_that_owes_answers_and_sends_nothing_ends_the_level() -> None:
    watch = Watch(parse("silence > 60s"))
    assert watch.see(100.0, 5, 0, 3, 60.0) is None
    reason = watch.see(101.0, 5, 0, 3, 61.5)
    assert reason == "silence > 60s: 3 requests are in flight, and no byte has come for 61.5 s"
