import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.workload.distribution import Distribution

numbers = st.floats(0.001, 1e6, allow_nan=False).map(lambda number: round(number, 3))


@st.composite
def shapes(draw: st.DrawFn, depth: int = 0) -> Distribution:
    kind = draw(
        st.sampled_from(
            ["fixed", "uniform", "normal", "lognormal", "exponential", "zipf", "quantiles"] + ["mix"] * (depth < 2)
        )
    )
    bounds = ""
    if kind != "fixed" and draw(st.booleans()):
        low = draw(numbers)
        bounds = f", min={low!r}, max={low + draw(numbers)!r}"
    match kind:
        case "fixed":
            return Distribution.parse(repr(draw(numbers)))
        case "uniform":
            low = draw(numbers)
            inner = f"{low!r}, {low + draw(numbers)!r}"
        case "normal" | "lognormal":
            inner = f"{draw(numbers)!r}, {draw(numbers)!r}"
        case "exponential":
            inner = f"{draw(numbers)!r}"
        case "zipf":
            inner = f"{draw(st.floats(0.1, 3)):.2f}, {draw(st.integers(1, 500))}"
        case "quantiles":
            between = sorted({*draw(st.lists(st.floats(1e-7, 99.999999), max_size=5))})
            values = sorted(draw(st.lists(numbers, min_size=len(between) + 2, max_size=len(between) + 2)))
            names = ["0", *(f"{percent:.9f}".replace(".", "_") for percent in between), "100"]
            names = list(dict.fromkeys(names))
            inner = ", ".join(f"p{name}={value!r}" for name, value in zip(names, values, strict=False))
            inner = inner if len(names) == len(values) else "p0=1, p100=2"
        case _:
            parts = draw(st.lists(st.tuples(numbers, shapes(depth + 1)), min_size=1, max_size=3))
            inner = ", ".join(f"{weight!r}*{part}" for weight, part in parts)
    return Distribution.parse(f"{kind}({inner}{bounds})")


@given(shapes())
def test_what_is_written_is_read_back(shape: Distribution) -> None:
    assert Distribution.parse(str(shape)) == shape


@given(shapes(), st.floats(0, 1))
def test_values_lie_between_the_ends(shape: Distribution, share: float) -> None:
    value = shape.at(share)
    assert 0 <= shape.low <= shape.high
    assert shape.low * (1 - 1e-9) - 1e-9 <= value <= shape.high * (1 + 1e-9) + 1e-9
    assert shape.least is None or value >= shape.least
    assert shape.most is None or value <= shape.most


@given(shapes(), st.floats(0, 1), st.floats(0, 1))
def test_of_all_but_overlapping_mixes_the_value_grows_with_the_share(
    shape: Distribution, one: float, two: float
) -> None:
    if shape.kind != "mix":
        assert shape.at(min(one, two)) <= shape.at(max(one, two)) * (1 + 1e-12)


# Mean and standard deviation by the textbook.
THEORY = [
    ("42", 42, 0),
    ("uniform(10, 50)", 30, 40 / math.sqrt(12)),
    ("normal(500, 50)", 500, 50),
    ("lognormal(512, 300)", 512, 300),
    ("exponential(80)", 80, 80),
    ("zipf(1, 3)", (1 + 1 + 1) / (1 + 1 / 2 + 1 / 3), math.sqrt(6 / (11 / 6) - (3 / (11 / 6)) ** 2)),
    ("quantiles(p0=0, p50=10, p100=110)", 32.5, math.sqrt(0.5 * 100 / 3 + 0.5 * (3600 + 1e4 / 12) - 32.5**2)),
    ("mix(3*10, 1*uniform(90, 110))", 32.5, math.sqrt(0.75 * 100 + 0.25 * (1e4 + 400 / 12) - 32.5**2)),
]  # fmt: skip


@pytest.mark.parametrize(("text", "mean", "deviation"), THEORY, ids=[text for text, *_ in THEORY])
def test_values_have_the_mean_and_the_deviation_of_theory(text: str, mean: float, deviation: float) -> None:
    shape = Distribution.parse(text)
    values = [shape.at((point + 0.5) / 20_000) for point in range(20_000)]
    assert statistics.fmean(values) == pytest.approx(mean, rel=2e-3)
    assert statistics.pstdev(values) == pytest.approx(deviation, rel=1e-2)
    assert shape.mean == pytest.approx(mean, rel=5e-3)


def test_half_of_the_values_lie_below_the_median() -> None:
    assert Distribution.parse("lognormal(512, 300)").at(0.5) == pytest.approx(512 / math.sqrt(1 + (300 / 512) ** 2))
    assert Distribution.parse("exponential(10)").at(0.5) == pytest.approx(10 * math.log(2))
    assert Distribution.parse("quantiles(p0=1, p50=7, p99_9=50, p100=90)").at(0.5) == pytest.approx(7)


def test_bounds_clip_what_is_drawn_and_move_the_mean() -> None:
    clipped = Distribution.parse("normal(10, 100, min=5, max=20)")
    assert {clipped.at(share / 100) for share in range(101)} >= {5, 20}
    assert (clipped.low, clipped.high) == (5, 20)
    assert 5 < clipped.mean < 20


def test_parts_of_a_mix_are_put_in_order_so_that_large_shares_are_large_values() -> None:
    assert str(Distribution.parse("mix(1*900, 3*20)")) == "mix(3*20, 1*900)"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "write a number"),
        ("lambda: 3", "write a number"),
        ("os.system(3)", "write a number"),
        ("(" * 500, "write a number"),
        ("-5", "write a number"),
        ("'5'", "'5' is not a number"),
        ("True", "True is not a number"),
        ("1e999", "is not a number"),
        ("pareto(3, 4)", "there is no distribution 'pareto'"),
        ("normal(3)", r"write normal\(mean, sd\)"),
        ("normal(-3, 4)", "-3 is not a number"),
        ("uniform(5, 2)", "range is empty"),
        ("lognormal(0, 2)", "mean must be above 0"),
        ("exponential(0)", "mean must be above 0"),
        ("zipf(0, 10)", "zipf takes"),
        ("zipf(1, 2000000)", "zipf takes"),
        ("normal(3, 4, max=2, min=3)", "min is above its max"),
        ("normal(3, 4, most=2)", "not most="),
        ("normal(3, 4, **3)", "not \\*\\*="),
        ("quantiles(1, 2)", "write its quantiles as p50="),
        ("quantiles(p0=1, q50=3, p100=4)", "q50 is no quantile"),
        ("quantiles(p0=1, p101=4)", "p101 is no quantile"),
        ("quantiles(p0=1)", "begin with p0"),
        ("quantiles()", "begin with p0"),
        ("quantiles(p0=1, p50=9, p100=4)", "never fall"),
        ("quantiles(p0=1, p50=2, p50_0=3, p100=4)", "never fall"),
        ("mix()", "a mix has parts"),
        ("mix(3, 4)", "weight\\*distribution"),
        ("mix(0*3, 1*4)", "weight above 0"),
        ("mix(1*nothing(3))", "there is no distribution 'nothing'"),
    ],
)
def test_what_is_no_distribution_is_named_with_the_mend(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Distribution.parse(text)
