"""Charts of the figures of levels: what each load got done, how long it took, and what passed. Pure."""

import math
from collections.abc import Collection, Sequence
from statistics import median
from typing import Any, NamedTuple

import altair as alt

from loadtest.likeness import setting
from loadtest.reports.cases import read
from loadtest.reports.charts import GRAY, OUTCOMES, ROWS, Absent, Chart, chart, color, number, scale
from loadtest.reports.charts_requests import Drawn
from loadtest.reports.figures import AGAIN, FEW, UNBOUNDED, figure, percentile_value, rests_on_few
from loadtest.result import Capacity, LevelResult, Metric
from loadtest.stats import PERCENTILES

# Of the chart of latency against throughput, in pixels; a name is its letters, and some room.
_HEIGHT, _LINE, _LETTER, _GAP = 340, 15, 7, 10
# Of a heat map, from the least to the most; on those from this share of the way on, figures are white.
SHADES = ("#d6e8f7", "#0b4f8a")
WHITE_FROM = 0.72
Fields = dict[str, Any]
_WORDS = {"ttft": "TTFT", "e2e": "E2E"}


class Lead(NamedTuple):
    """The time that charts show, and its percentile: those of the SLO if there is one on it."""

    time: str
    percentile: str
    limits: tuple[tuple[str, float], ...]

    @property
    def word(self) -> str:
        """The time as reports call it."""
        return _WORDS[self.time]

    @property
    def title(self) -> str:
        """The percentile with its unit."""
        return f"{self.word} {self.percentile.replace('p999', 'p99.9')}, ms"

    def of(self, level: LevelResult) -> float | None:
        """The figure of a level: infinite among its failures, None where it was not measured."""
        return percentile_value(self._metric(level), self.percentile)

    def on_few(self, level: LevelResult) -> bool:
        """Whether that figure is nothing but the slowest request."""
        return rests_on_few(self._metric(level), self.percentile)

    def _metric(self, level: LevelResult) -> Metric:
        found: Metric = getattr(level.latency, f"{self.time}_ms")
        return found


def lead(levels: Sequence[Drawn]) -> Lead:
    """TTFT or, where nothing was streamed, E2E; with the limits that SLOs set on it."""
    streamed = any(level.figures.latency.ttft_ms.ok.n for level in levels)
    time = "ttft" if streamed or not any(level.figures.latency.e2e_ms.ok.n for level in levels) else "e2e"
    names = {float(quantile): name for name, quantile in PERCENTILES.items()}
    slos = map(read, {slo.expression: slo for level in levels for slo in level.figures.slo}.values())
    own = [slo for slo in slos if slo and slo.metric == time and slo.quantile in names and not slo.scope.of_some]
    if not own:
        return Lead(time, "p99", ())
    first = names[own[0].quantile or 0.0]
    return Lead(time, first, tuple((slo.text, slo.limit) for slo in own if names[slo.quantile or 0.0] == first))


def output(levels: Sequence[Drawn]) -> tuple[str, list[float | None]]:
    """What the levels got done per second, with its name: output tokens or samples where they are known."""
    for what, name in (("output tok/s", "output_tokens_per_s"), ("samples/s", "samples_per_s")):
        found = [getattr(level.figures.throughput, name) for level in levels]
        if any(value is not None for value in found):
            return what, found
    return "requests/s", [level.figures.rates.completed_per_s for level in levels]


def tradeoff(levels: Sequence[Drawn], time: Lead) -> Chart | Absent:
    """Latency against throughput, a point for each level, with the limits and the frontier of the best."""
    title = "Latency against throughput"
    what, done = output(levels)
    lines = _lines(levels)
    rows: list[Fields] = [
        {
            "series": level.run or lines[place],
            "line": lines[place],
            "level": level.name,
            "load": str(level.figures.load),
            "size": _size(level.figures),
            "throughput": number(done[place]),
            "latency": number(time.of(level.figures)),
            "state": "client was the limit" if not level.figures.client.valid else level.figures.status,
        }
        for place, level in enumerate(levels)
    ]
    known = [row for row in rows if row["throughput"] and row["latency"]]
    if len(known) < 2:
        return Absent(title, "it takes two levels that have both figures")
    overlaid = any(level.run for level in levels)
    # Of several runs none is held against another, and what is not to be taken as it stands beats nothing.
    best = [] if overlaid else _frontier([row for row in known if row["state"] == "ok"])
    for row in rows:
        row["best"] = any(row is one for one in best)
    names = list(dict.fromkeys(row["series"] for row in rows))
    base = alt.Chart(ROWS).transform_filter("isValid(datum.throughput) && isValid(datum.latency)")
    up = scale([*(row["latency"] for row in known), *(limit for _, limit in time.limits)])
    _make_room(known, up)
    x = alt.X("throughput:Q", title=what, scale=alt.Scale(zero=True))
    y = alt.Y("latency:Q", title=time.title, scale=up)
    layers = [
        # Of a load that was played several times through the middle, as lines between these would show nothing; and
        # where the client was the limit the target has no point.
        base.transform_filter("datum.state != 'client was the limit'")
        .transform_aggregate(
            throughput="median(throughput)", latency="median(latency)", groupby=["series", "line", "size"]
        )
        .mark_line(opacity=0.8)
        .encode(x=x, y=y, color=color("series", names), detail="line:N", order="size:Q"),
        base.mark_point().encode(
            x=x,
            y=y,
            color=color("series", names),
            shape=alt.condition("datum.state == 'ok'", alt.value("circle"), alt.value("triangle-up")),
            tooltip=_tips(("level", "level"), ("throughput", what), ("latency", time.title), ("state", "state")),
        ),
    ]
    if best:
        front = alt.MarkDef(type="line", strokeDash=[2, 3], strokeWidth=5, opacity=0.35, color="currentColor")
        dots = alt.Chart(ROWS, mark=front).transform_filter("datum.best")
        layers.insert(0, dots.encode(x=x, y=y, order="throughput:Q"))
    named = base.transform_filter("datum.room <= width")
    layers.append(named.mark_text(align="left", dx=8, dy=-6).encode(x=x, y=y, text="load:N"))
    for text, limit in time.limits:
        own = alt.Chart(alt.InlineData(values=[{"limit": limit, "slo": text}]))
        layers.append(own.mark_rule(strokeDash=[6, 4], strokeWidth=1.5, color=OUTCOMES["FAIL"]).encode(y="limit:Q"))
        layers.append(
            own.mark_text(align="left", x=4, dy=-6).encode(y="limit:Q", text="slo:N", tooltip=_tips(("slo", "SLO")))
        )
    without = len(rows) - len(known)
    about = (
        f"{len(known)} levels by {what} and {time.title}."
        + (" The thick dots join those that no other beats in both." if best else "")
        + (f" {without} without both figures, or with the percentile among failures, are left out." if without else "")
        + (" Triangles are levels whose figures are not to be taken as they stand." if _odd(known) else "")
    )
    columns = [("series", "series"), ("level", "level"), ("throughput", what), ("latency", time.title),
               ("state", "state")]  # fmt: skip
    return chart("latency-throughput", title, about, alt.layer(*layers), rows, columns, height=_HEIGHT)


def matrix(levels: Sequence[Drawn], time: Lead) -> list[Chart | Absent]:
    """Batching by load as heat maps, one of throughput and one of latency."""
    title = "Batching by load"
    own = [level for level in levels if level.figures.batching]
    if len({level.figures.batching for level in own}) < 2:
        return [Absent(title, "there is one batching setting")] if own else []
    what, done = output(own)
    late = [time.of(level.figures) for level in own]
    few = {_cell(level) for level in own if time.on_few(level.figures)}
    return [
        _heat("matrix-throughput", f"{title}: {what}", own, done, what, "more is better"),
        _heat("matrix-latency", f"{title}: {time.title}", own, late, time.title, "less is better", few),
    ]


def _cell(level: Drawn) -> tuple[str, str]:
    return str(level.figures.batching), str(level.figures.load)


def _heat(
    name: str, title: str, levels: Sequence[Drawn], values: Sequence[float | None], what: str, sense: str,
    few: Collection[tuple[str, str]] = (),
) -> Chart | Absent:  # fmt: skip
    cells: dict[tuple[str, str], list[float]] = {}
    for level, value in zip(levels, values, strict=True):
        cell = cells.setdefault(_cell(level), [])
        cell += [] if value is None else [value]
    rows = [
        {
            "batching": batching,
            "load": load,
            "value": number(value),
            "shown": UNBOUNDED if value == math.inf else f"{FEW if (batching, load) in few else ''}{figure(value)}",
        }
        for (batching, load), of in cells.items()
        for value in [median(of) if of else None]
    ]
    known = [row["value"] for row in rows if isinstance(row["value"], float)]
    if not known:
        return Absent(title, "no level has this figure")
    low, high = min(known), max(known)
    log = low > 0 and high / low > 20
    base = alt.Chart(ROWS).encode(
        x=alt.X("load:N", sort=list(dict.fromkeys(row["load"] for row in rows)), title="load",
                axis=alt.Axis(labelAngle=0, orient="top")),
        y=alt.Y("batching:N", sort=list(dict.fromkeys(row["batching"] for row in rows)), title=None),
        tooltip=_tips(("batching", "batching"), ("load", "load"), ("shown", what)),
    )  # fmt: skip
    shades = alt.Scale(type="log" if log else "linear", domain=[low, high], range=list(SHADES), interpolate="rgb")
    white_from = low * (high / low) ** WHITE_FROM if log else low + (high - low) * WHITE_FROM
    layers = alt.layer(
        base.mark_rect(stroke="transparent", strokeWidth=2).encode(
            color=alt.condition(
                "isValid(datum.value)",
                alt.Color("value:Q", scale=shades, title=what, legend=None),
                alt.value(GRAY),
            )
        ),
        base.mark_text(fontSize=13, fontWeight="bold").encode(
            text="shown:N",
            color=alt.condition(f"datum.value > {white_from!r}", alt.value("#ffffff"), alt.value("#000000")),
        ),
    )
    about = f"A cell for each batching and load; {sense}, and darker is the higher figure."
    if len(levels) > len(cells):
        about += " Of several playings it is the median."
    if few:
        about += f" {FEW}: of so few requests that it is simply the slowest of them."
    columns = [("batching", "batching"), ("load", "load"), ("value", what)]
    height = 46 * len({row["batching"] for row in rows})
    return chart(name, title, about, layers, rows, columns, height=height)


def trials(searches: Sequence[Capacity]) -> Chart | Absent:
    """Each trial of a search for capacity: its load, and how near it came to the limit of its worst SLO."""
    title = "Trials of the search"
    rows = [
        {
            "search": " ".join(filter(None, (one.setting, one.tier))) or "search",
            "load": trial.load,
            "nearness": number(trial.nearness),
            "outcome": trial.outcome,
            "bound": "yes" if trial.resolved else "no",
        }
        for one in searches
        for trial in one.trials
    ]
    if not any(row["nearness"] for row in rows):
        return Absent(title, "no trial has a figure that its SLOs limit")
    axis = searches[0].axis
    what = "requests/s" if axis == "rate" else "requests in flight"
    names = list(dict.fromkeys(str(row["outcome"]) for row in rows))
    paint = alt.Scale(domain=names, range=[OUTCOMES[name] for name in names])
    x = alt.X("load:Q", title=what, scale=alt.Scale(zero=False, nice=True))
    shades = alt.condition("datum.bound == 'yes'", alt.value(1), alt.value(0.45))
    tips = _tips(
        ("load", what), ("nearness", "value ÷ limit"), ("outcome", "outcome"), ("bound", "sets a bound"),
        ("search", "search"),
    )  # fmt: skip
    drawing = alt.layer(
        alt.Chart(alt.InlineData(values=[{"limit": 1, "slo": "the limit"}]))
        .mark_rule(strokeDash=[6, 4], strokeWidth=1.5, color=OUTCOMES["FAIL"])
        .encode(y="limit:Q"),
        alt.Chart(ROWS)
        .transform_filter("isValid(datum.nearness)")
        .mark_point(size=80)
        .encode(
            x=x,
            y=alt.Y(
                "nearness:Q",
                title="worst SLO: value ÷ limit",
                scale=scale([1.0, *(row["nearness"] for row in rows)]),
            ),
            color=alt.Color("outcome:N", scale=paint, title=None),
            opacity=shades,
            shape=alt.Shape("search:N", title=None, legend=alt.Legend() if len(searches) > 1 else None),
            tooltip=tips,
        ),
        # On the axis, for they have no height.
        alt.Chart(ROWS)
        .transform_filter("!isValid(datum.nearness)")
        .mark_tick(thickness=3, size=16)
        .encode(x=x, y=alt.value("height"), color=alt.Color("outcome:N", scale=paint, title=None), tooltip=tips),
    )
    pale = " Pale ones set no bound." if any(row["bound"] == "no" and row["nearness"] for row in rows) else ""
    bare = " Strokes on the axis are those without a figure." if any(row["nearness"] is None for row in rows) else ""
    about = f"{len(rows)} trials by load; above the dashed line the worst SLO was missed.{pale}{bare}"
    columns = [("search", "search"), ("load", what), ("nearness", "value ÷ limit"), ("outcome", "outcome"),
               ("bound", "sets a bound")]  # fmt: skip
    return chart("trials", title, about, drawing, rows, columns)


def _lines(levels: Sequence[Drawn]) -> list[str]:
    """What a line joins: the levels of a run that differ in their load alone, so called what is left of their names."""
    names = [AGAIN.sub("", setting(level.figures)).replace(str(level.figures.load), "") for level in levels]
    return [" ".join(f"{level.run} {name}".split()) or "levels" for level, name in zip(levels, names, strict=True)]


def _size(level: LevelResult) -> float:
    return level.load.concurrency or level.load.rate_per_s or 0.0


def _frontier(rows: Sequence[Fields]) -> list[Fields]:
    """Those of which no other has both more throughput and less latency."""
    kept: list[Fields] = []
    for row in sorted(rows, key=lambda one: (-one["throughput"], one["latency"])):
        if not kept or row["latency"] < kept[-1]["latency"]:
            kept.append(row)
    return kept


def _make_room(rows: Sequence[Fields], up: alt.Scale) -> None:
    """From which width of the chart on each of ``rows`` has its name beside it, so that none is written over another.

    The best come first, then what has more throughput. One that no width gives room has none, and is known by its tip.
    """
    log = up["type"] == "log"
    low, high = (math.log(end) if log else end for end in up["domain"])
    right = max(row["throughput"] for row in rows)
    placed: list[tuple[Fields, float, float]] = []
    for row in sorted(rows, key=lambda one: (not one["best"], -one["throughput"])):
        x = row["throughput"] / right
        y = ((math.log(row["latency"]) if log else row["latency"]) - low) / (high - low)
        near = [(other, abs(x - at)) for other, at, above in placed if abs(y - above) * _HEIGHT < _LINE]
        if all(apart for _, apart in near):
            wide = _LETTER * max(len(one["load"]) for one in (row, *(other for other, _ in near))) + _GAP
            row["room"] = number(max((wide / apart for _, apart in near), default=0.0))
            placed.append((row, x, y))


def _odd(rows: Sequence[Fields]) -> bool:
    return any(row["state"] != "ok" for row in rows)


def _tips(*fields: tuple[str, str]) -> list[alt.Tooltip]:
    return [alt.Tooltip(f"{name}:N", title=title) for name, title in fields]
