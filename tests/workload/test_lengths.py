import random
import statistics
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.workload.distribution import Distribution
from loadtest.workload.lengths import MOST, Length, pair

TEXTS = [
    "128", "uniform(64, 192)", "normal(100, 30)", "lognormal(512, 300, max=4000)", "exponential(40)", "zipf(1.1, 500)",
    "quantiles(p0=1, p50=200, p99_9=4000, p100=8000)", "mix(2*16, 1*normal(300, 20, min=1))",
]  # fmt: skip


@pytest.mark.parametrize("text", TEXTS)
def test_a_length_is_written_as_it_is_read(text: str) -> None:
    assert str(Length.parse(text)) == text
    assert Length.parse(str(Length.parse(text))) == Length.parse(text)


@pytest.mark.parametrize("text", TEXTS)
def test_lengths_are_whole_at_least_1_and_have_the_mean_that_is_told(text: str) -> None:
    length = Length.parse(text)
    rng = random.Random(1)
    seen = [length.sample(rng) for _ in range(20_000)]
    assert all(isinstance(tokens, int) and 1 <= length.low <= tokens <= length.high for tokens in seen)
    assert statistics.fmean(seen) == pytest.approx(length.mean, rel=0.03)


def test_both_ends_of_a_range_belong_to_it() -> None:
    assert Length.parse(" uniform( 64 ,192 ) ") == Length(64, 192)
    assert Length.parse("128") == Length.parse(128) == Length(128, 128)
    rng = random.Random(1)
    seen = Counter(Length(3, 6).sample(rng) for _ in range(4000))
    assert set(seen) == {3, 4, 5, 6}
    assert min(seen.values()) > 850
    assert Length(3, 6).mean == 4.5


def test_what_has_no_end_is_cut_at_the_longest_of_all() -> None:
    assert Length.parse("lognormal(512, 300)").high == MOST
    assert Length.parse("exponential(0.1)").mean == 1


@pytest.mark.parametrize(
    "text",
    [
        "", "many", "0", "-3", "1.5", "uniform(5, 2)", "uniform(0, 2)", "uniform(1, 2.5)", "uniform(1, 9, max=5)",
        "normal(5)",
    ],
)  # fmt: skip
def test_what_is_no_length_is_named_with_the_mend(text: str) -> None:
    with pytest.raises(ValueError, match="is not a length"):
        Length.parse(text)


@given(st.lists(st.integers(1, 5000), min_size=1, max_size=150))
def test_a_short_list_of_lengths_is_played_exactly(values: list[int]) -> None:
    length = Length.of_values(values)
    assert Length.parse(str(length)) == length
    drawn = Counter(length.at((point + 0.5) / len(values)) for point in range(len(values)))
    assert drawn == Counter(values)


def test_lengths_have_weights() -> None:
    length = Length.of_values([300, 20], [0.25, 0.75])
    assert str(length) == "mix(0.75*20, 0.25*300)"
    assert length.mean == pytest.approx(90, rel=1e-3)
    assert (length.low, length.high) == (20, 300)
    assert Length.of_values([7, 7]) == Length(7, 7)


def test_a_long_list_keeps_its_ends_and_its_quantiles() -> None:
    rng = random.Random(1)
    values = sorted(max(1, int(rng.lognormvariate(6, 1))) for _ in range(50_000))
    length = Length.of_values(values)
    assert Length.parse(str(length)) == length
    assert (length.low, length.high) == (values[0], values[-1])
    assert length.mean == pytest.approx(statistics.fmean(values), rel=0.005)
    for percent in (5, 50, 90, 99):
        assert length.at(percent / 100) == pytest.approx(values[percent * 500], rel=0.01)


@pytest.mark.parametrize(
    ("values", "weights", "words"),
    [
        ([], None, "there are no lengths"),
        ([0], None, "0 is not a length"),
        ([float("nan")], None, "nan is not a length"),
        ([5], [0.0], "0 is not a weight"),
        ([5], [float("inf")], "inf is not a weight"),
    ],
)
def test_a_list_that_holds_no_lengths_is_refused(values: list[float], weights: list[float] | None, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Length.of_values(values, weights)


@pytest.mark.parametrize("correlation", [-1.0, -0.6, 0.0, 0.5, 0.9, 1.0])
def test_lengths_are_correlated_as_asked_and_each_alone_stays_what_it_is(correlation: float) -> None:
    first, second = Length.parse("normal(1000, 100)"), Length.parse("uniform(1, 100000)")
    rng = random.Random(2)
    pairs = [pair(first, second, correlation, rng) for _ in range(8000)]
    ones, others = [one for one, _ in pairs], [other for _, other in pairs]
    # Back to normal scores, whose correlation is the one asked for.
    normal = statistics.NormalDist()
    scores = [normal.inv_cdf((other - 0.5) / 100_000) for other in others]
    assert statistics.correlation(ones, scores) == pytest.approx(correlation, abs=0.03)
    assert statistics.fmean(ones) == pytest.approx(1000, rel=0.01)
    assert statistics.fmean(others) == pytest.approx(50_000, rel=0.03)


def test_a_shape_given_as_it_is_has_its_bounds() -> None:
    assert Length(2, 5, Distribution.parse("normal(100, 1)")).at(0.5) == 5


@pytest.mark.parametrize(
    ("text", "scaled"),
    [
        ("100", "10"),
        ("3", "1"),
        ("uniform(10, 300)", "uniform(1, 30)"),
        ("lognormal(500, 200, max=2000)", "lognormal(50, 20, max=200)"),
        ("zipf(1.5, 400)", "zipf(1.5, 40)"),
        ("quantiles(p0=10, p50=100, p100=400)", "quantiles(p0=1, p50=10, p100=40)"),
        ("mix(0.5*100, 0.5*exponential(200))", "mix(0.5*10, 0.5*exponential(20))"),
    ],
)
def test_a_tenth_of_a_length_is_of_the_same_shape(text: str, scaled: str) -> None:
    assert Length.parse(text).scaled(0.1) == Length.parse(scaled)
