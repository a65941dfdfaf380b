"""Charts of how a time is spread over the requests of a level: up to its tail, and by the prompt's length. Pure."""

import math
from collections.abc import Sequence
from fractions import Fraction

import altair as alt
import numpy as np

from loadtest import measures
from loadtest.columns import Floats
from loadtest.evidence import intervals
from loadtest.reports.charts import ROWS, Absent, Chart, chart, color, number, scale
from loadtest.reports.charts_levels import Fields, Lead
from loadtest.reports.charts_requests import Drawn
from loadtest.stats import rank
from loadtest.window import due_times

# Points of a curve for each tenfold of its tail.
_PER_DECADE = 8
# Up to so many requests of a level each is a point; of more, how many are in each field of a grid.
MOST_POINTS = 1000
_FIELDS = (40, 28)


def percentiles(levels: Sequence[Drawn], time: Lead) -> Chart | Absent:
    """Each percentile of what users met, failures inside, with its 95 % interval; the tail is spread out.

    Of several runs a curve for each, of one level at a time.
    """
    title = f"Percentiles of {time.word}"
    runs = list(dict.fromkeys(level.run for level in levels))
    rows = [row for level in levels for row in _curve(level, time)]
    if not rows:
        return Absent(title, "no level has requests whose times are known")
    by_run = runs != [""]
    picked = list(dict.fromkeys(level.name for level in levels)) if by_run else []
    names = runs if by_run else list(dict.fromkeys(str(row["level"]) for row in rows))
    line = "run" if by_run else "level"
    most = max(row["tail"] for row in rows)
    x = alt.X(
        "tail:Q",
        scale=alt.Scale(type="log", domain=[1, 10 ** math.ceil(math.log10(max(10.0, most)))]),
        axis=alt.Axis(
            values=[1, 2, 10, 100, 1000, 10_000, 100_000, 1_000_000],
            labelExpr="datum.value == 1 ? 'p0' : 'p' + format(100 - 100 / datum.value, '.6~g')",
        ),
        title="percentile of the requests that became due",
    )
    y = alt.Y(
        "value:Q",
        title=f"{time.word}, ms",
        scale=scale([*(row["value"] for row in rows), *(limit for _, limit in time.limits)]),
    )
    base = alt.Chart(ROWS)
    if by_run:
        base = base.transform_filter("datum.level == level")
    tips = [
        alt.Tooltip("run:N"), alt.Tooltip("level:N"), alt.Tooltip("percentile:N"),
        alt.Tooltip("value:Q", title=f"{time.word}, ms"), alt.Tooltip("low:Q", title="95 % from, ms"),
        alt.Tooltip("high:Q", title="to, ms"), alt.Tooltip("n:Q", title="requests"),
    ]  # fmt: skip
    paint = color(line, names)
    layers = [
        base.transform_filter("isValid(datum.low) && isValid(datum.high)")
        .mark_area(opacity=0.16, clip=True)
        .encode(x=x, y=alt.Y("low:Q"), y2="high:Q", color=paint),
        base.mark_line().encode(x=x, y=y, color=paint),
        base.mark_point(size=90, opacity=0).encode(x=x, y=y, color=paint, tooltip=tips if by_run else tips[1:]),
    ]
    layers += [
        alt.Chart(alt.InlineData(values=[{"limit": limit, "slo": text}]))
        .mark_rule(strokeDash=[6, 4], strokeWidth=1.5, color="#e0485a")
        .encode(y="limit:Q", tooltip=alt.Tooltip("slo:N", title="SLO"))
        for text, limit in time.limits
    ]
    about = (
        f"A curve of {time.word} for each {line}, with its 95 % confidence band where the requests are enough for one. "
        "Of a level with failures it ends where they begin. Whatever is to the right is the tail."
    )
    columns = [(line, line), *([("level", "level")] if by_run else []), ("percentile", "percentile"),
               ("value", f"{time.word} ms"), ("low", "95 % from ms"), ("high", "to ms"), ("n", "requests")]  # fmt: skip
    return chart("percentiles", title, about, alt.layer(*layers), rows, columns, picked, height=340)


def _curve(level: Drawn, time: Lead) -> list[Fields]:
    if level.window is None or not level.window.due:
        return []
    samples, _ = due_times(level.window, time.time)
    n = len(samples)
    if not n:
        return []
    steps = max(1, math.ceil(math.log10(n) * _PER_DECADE))
    tails = [*(10 ** (step / _PER_DECADE) for step in range(1, steps + 1)), 2.0, 10.0, 20.0, 100.0, 1000.0]
    ps = [1 - 1 / tail for tail in sorted({tail for tail in tails if tail <= n})]
    ascending = np.sort(samples)
    ends = intervals(samples, ps)
    found = []
    for p, (low, high) in zip(ps, ends, strict=True):
        value = float(ascending[rank(_exact(p), n) - 1])
        if math.isinf(value):
            break
        found.append(
            {
                "run": level.run,
                "level": level.name,
                "tail": number(1 / (1 - p)),
                "percentile": f"p{100 * p:.6g}",
                "value": number(value),
                "low": number(low),
                "high": number(high),
                "n": n,
            }
        )
    return found


def prompts(levels: Sequence[Drawn], time: Lead) -> Chart | Absent:
    """The time by the length of the prompt, a point for each request or, of many, a density."""
    title = f"{time.word} against prompt length"
    rows = [row for level in levels for row in _points(level, time)]
    if len({row["from"] for row in rows}) < 2:
        return Absent(title, "the prompts are all of one length, or their lengths are unknown")
    ends = [row.get(end) for row in rows for end in ("from", "to")]
    lengths = [float(end) for end in ends if isinstance(end, float)]
    most = max(row["count"] for row in rows)
    base = alt.Chart(ROWS).transform_filter("datum.level == level")
    x = alt.X("from:Q", title="input tokens", scale=alt.Scale(domain=[min(lengths), max(lengths)], nice=True))
    y = alt.Y("value:Q", title=f"{time.word}, ms", scale=scale([row["value"] for row in rows]))
    tips = [alt.Tooltip("from:Q", title="input tokens"), alt.Tooltip("value:Q", title=f"{time.word}, ms"),
            alt.Tooltip("count:Q", title="requests")]  # fmt: skip
    layers = [
        base.transform_filter("!isValid(datum.to)")
        .mark_point(size=22, opacity=0.55, color="#1f83d6")
        .encode(x=x, y=y, tooltip=tips),
        base.transform_filter("isValid(datum.to)")
        .mark_rect(color="#1f83d6")
        .encode(
            x=x,
            x2="to:Q",
            y=y,
            y2="until:Q",
            opacity=alt.Opacity(
                "count:Q", scale=alt.Scale(type="log", domain=[1, max(2.0, most)], range=[0.12, 1]), legend=None
            ),
            tooltip=tips,
        ),
    ]
    about = (
        f"{time.word} of the window's good requests by the length of their prompt. Of a level with more than "
        f"{MOST_POINTS:,} requests it is how many are in each field: the stronger, the more."
    )
    columns = [("level", "level"), ("from", "input tokens"), ("to", "to"), ("value", f"{time.word} ms"),
               ("until", "to ms"), ("count", "requests")]  # fmt: skip
    names = list(dict.fromkeys(str(row["level"]) for row in reversed(rows)))
    return chart("prompt-length", title, about, alt.layer(*layers), rows, columns, names)


def _points(level: Drawn, time: Lead) -> list[Fields]:
    if level.window is None:
        return []
    columns = level.window.requests.columns
    times, lengths = measures.time_of(columns, time.time), columns.input_tokens
    chosen = level.window.inside & columns.ok & ~np.isnan(times) & ~np.isnan(lengths)
    x, y = lengths[chosen], times[chosen]
    if len(x) <= MOST_POINTS:
        return [
            {"level": level.name, "from": number(a), "value": number(b), "count": 1}
            for a, b in zip(x.tolist(), y.tolist(), strict=True)
        ]
    counts, across, up = np.histogram2d(x, _positive(y), bins=(_edges(x, _FIELDS[0]), _spread(y)))
    return [
        {
            "level": level.name,
            "from": number(across[i]),
            "to": number(across[i + 1]),
            "value": number(up[j]),
            "until": number(up[j + 1]),
            "count": int(counts[i, j]),
        }
        for i, j in zip(*(each.tolist() for each in np.nonzero(counts)), strict=True)
    ]


def _edges(values: Floats, fields: int) -> Floats:
    """Whole numbers of tokens, so that no field has more lengths in it than its neighbours by rounding."""
    low, high = float(values.min()), float(values.max())
    step = max(1.0, math.ceil((high - low + 1) / fields))
    return np.arange(low, high + step + 0.5, step)


def _spread(values: Floats) -> Floats:
    known = _positive(values)
    return np.geomspace(float(known.min()), float(known.max()) * 1.000001 + 1e-9, _FIELDS[1] + 1)


def _positive(values: Floats) -> Floats:
    return np.maximum(values, 1e-3)


def _exact(p: float) -> Fraction:
    return Fraction(p).limit_denominator(10**9)
