"""Charts of a level as it went: what came in, what was in flight, how long it took, what failed, the slowest. Pure.

All panels of the timeline count from the level's start, so one of the server's own series (its queue, its GPU) goes
beside them as one more panel: rows of ``level``, ``at`` in seconds and a value, and only where the result has it.
"""

import math
from collections.abc import Iterator, Sequence

import altair as alt
import numpy as np

from loadtest import measures
from loadtest.columns import Floats
from loadtest.records import OUTCOMES
from loadtest.reports.charts import BLUE, GRAY, GREEN, ORANGE, ROWS, Absent, Chart, chart, color, number, scale
from loadtest.reports.charts_levels import Fields, Lead
from loadtest.reports.charts_requests import Drawn
from loadtest.reports.figures import failure
from loadtest.stats import distribution

_BINS = 100
SLOWEST = 20
_PANEL = 150


def timeline(levels: Sequence[Drawn], time: Lead) -> list[Chart | Absent]:
    """The panels of the timeline: arrivals and answers, requests in flight, the time, failures."""
    played = [level for level in levels if level.window]
    if not played:
        return [Absent("Timeline", "there are no records of single requests")]
    return [_arrivals(played), _in_flight(played), _times(played, time), _failures(played)]


def _arrivals(levels: Sequence[Drawn]) -> Chart:
    rows = [
        {"level": level.name, "at": number(at), "what": what, "per_s": number(value)}
        for level in levels
        for what, series in _rates(level)
        for at, value in series
    ]
    drawing = (
        alt.Chart(ROWS)
        .transform_filter("datum.level == level")
        .mark_line(interpolate="step-after", point=alt.OverlayMarkDef(size=40, opacity=0))
        .encode(
            x=_AT,
            y=alt.Y("per_s:Q", title="requests/s"),
            color=color("what", ["became due", "ended ok"]),
            tooltip=[_TIP, alt.Tooltip("what:N", title="requests that"), alt.Tooltip("per_s:Q", title="a second")],
        )
    )
    about = "Requests a second that became due and that ended ok."
    columns = [("level", "level"), ("at", "s"), ("what", "requests that"), ("per_s", "requests/s")]
    return chart("timeline-arrivals", "Arrivals and answers", about, drawing, rows, columns, _names(levels), _PANEL)


def _rates(level: Drawn) -> Iterator[tuple[str, list[tuple[float, float]]]]:
    assert level.window is not None
    columns, edges = level.window.requests.columns, _edges(level)
    width = edges[1] - edges[0]
    for what, times in (("became due", columns.intended), ("ended ok", columns.done[columns.ok])):
        counts = np.histogram(times[~np.isnan(times)] / 1000, edges)[0]
        yield what, list(zip(edges[:-1].tolist(), (counts / width).tolist(), strict=True))


def _in_flight(levels: Sequence[Drawn]) -> Chart:
    rows = [
        {"level": level.name, "at": number(at), "in_flight": value} for level in levels for at, value in _held(level)
    ]
    held = alt.MarkDef(
        type="area", color=BLUE, opacity=0.35, interpolate="step-after", line={"color": BLUE, "strokeWidth": 1.5},
        point=alt.OverlayMarkDef(size=40, opacity=0),
    )  # fmt: skip
    drawing = (
        alt.Chart(ROWS, mark=held)
        .transform_filter("datum.level == level")
        .encode(
            x=_AT,
            y=alt.Y("in_flight:Q", title="in flight"),
            tooltip=[_TIP, alt.Tooltip("in_flight:Q", title="in flight")],
        )
    )
    about = "Requests sent and not ended, at each moment shown."
    columns = [("level", "level"), ("at", "s"), ("in_flight", "in flight")]
    return chart("timeline-in-flight", "Requests in flight", about, drawing, rows, columns, _names(levels), _PANEL)


def _held(level: Drawn) -> list[tuple[float, int]]:
    assert level.window is not None
    columns, edges = level.window.requests.columns, _edges(level)
    sent = np.sort(columns.sent[~np.isnan(columns.sent)]) / 1000
    done = np.sort(columns.done[~np.isnan(columns.sent) & ~np.isnan(columns.done)]) / 1000
    held = np.searchsorted(sent, edges, side="right") - np.searchsorted(done, edges, side="right")
    return list(zip(edges.tolist(), held.tolist(), strict=True))


def _times(levels: Sequence[Drawn], time: Lead) -> Chart | Absent:
    title = f"{time.word} over time"
    rows = [row for level in levels for row in _over_time(level, time)]
    if not rows:
        return Absent(title, "no request has such a time")
    base = alt.Chart(ROWS).transform_filter("datum.level == level")
    names = ["median", "slowest"]
    drawing = base.mark_line(point=alt.OverlayMarkDef(size=16)).encode(
        x=_AT,
        y=alt.Y("ms:Q", title=f"{time.word}, ms", scale=scale([row["ms"] for row in rows])),
        color=alt.Color("which:N", title=None, scale=alt.Scale(domain=names, range=[BLUE, ORANGE])),
        tooltip=[
            _TIP,
            alt.Tooltip("which:N", title="of the requests"),
            alt.Tooltip("ms:Q", title=f"{time.word}, ms"),
            alt.Tooltip("n:Q", title="requests"),
        ],
    )
    about = (
        f"{time.word} of good requests by when they were due: the median and the slowest of each moment. A median that "
        "climbs is a queue that grows."
    )
    columns = [("level", "level"), ("at", "s"), ("which", "of the requests"), ("ms", f"{time.word} ms"),
               ("n", "requests")]  # fmt: skip
    return chart("timeline-times", title, about, drawing, rows, columns, _names(levels), _PANEL)


def _over_time(level: Drawn, time: Lead) -> Iterator[Fields]:
    assert level.window is not None
    columns, edges = level.window.requests.columns, _edges(level)
    values = measures.times(columns)[time.time]
    known = columns.ok & ~np.isnan(values)
    at = columns.intended[known] / 1000
    order = np.argsort(at, kind="stable")
    parts = np.split(values[known][order], np.searchsorted(at[order], edges[1:-1]))
    for start, part in zip(edges[:-1].tolist(), parts, strict=True):
        found = distribution(part)
        for which, value in (("median", found.p50), ("slowest", found.max)):
            if value is not None:
                yield {"level": level.name, "at": number(start), "which": which, "ms": number(value), "n": found.n}


def _failures(levels: Sequence[Drawn]) -> Chart | Absent:
    title = "Failures over time"
    rows = [row for level in levels for row in _failed(level)]
    if not rows:
        return Absent(title, "no request failed" + (" in the levels that are drawn" if len(levels) > 1 else ""))
    kinds = list(dict.fromkeys(str(row["kind"]) for row in rows))
    drawing = (
        alt.Chart(ROWS)
        .transform_filter("datum.level == level")
        .mark_bar()
        .encode(
            x=_AT,
            x2="until:Q",
            y=alt.Y("count:Q", title="failures", stack="zero"),
            color=color("kind", kinds),
            tooltip=[_TIP, alt.Tooltip("kind:N", title="how"), alt.Tooltip("count:Q", title="requests")],
        )
    )
    columns = [("level", "level"), ("at", "s"), ("kind", "how"), ("count", "requests")]
    names = [name for name in _names(levels) if any(row["level"] == name for row in rows)]
    about = "Requests that failed, by when they ended and by how."
    return chart("timeline-failures", title, about, drawing, rows, columns, names, height=_PANEL)


def _failed(level: Drawn) -> Iterator[Fields]:
    assert level.window is not None
    columns, edges = level.window.requests.columns, _edges(level)
    ended = np.where(np.isnan(columns.done), columns.intended, columns.done) / 1000
    for place, outcome in enumerate(OUTCOMES):
        counts = np.histogram(ended[level.outcomes == place], edges)[0]
        if outcome != "ok":
            for index in np.flatnonzero(counts).tolist():
                yield {"level": level.name, "at": number(edges[index]), "until": number(edges[index + 1]),
                       "kind": failure(outcome), "count": int(counts[index])}  # fmt: skip


def slowest(levels: Sequence[Drawn]) -> Chart | Absent:
    """The slowest requests of a level, in the parts that they waited for."""
    title = "The slowest requests"
    rows = [row for level in levels for row in _waterfall(level)]
    if not rows:
        return Absent(title, "no request was sent and ended")
    parts = ["until it was sent", "until the first token", "until it ended"]
    shown = [part for part in parts if any(row["part"] == part for row in rows)]
    paint = dict(zip(parts, (GRAY, ORANGE, GREEN), strict=True))
    drawing = (
        alt.Chart(ROWS)
        .transform_filter("datum.level == level")
        .mark_bar(height=10)
        .encode(
            x=alt.X("from:Q", title="ms since it was due"),
            x2="to:Q",
            y=alt.Y("request:N", sort=None, title="request"),
            color=alt.Color("part:N", title=None, scale=alt.Scale(domain=shown, range=[paint[part] for part in shown])),
            tooltip=[
                alt.Tooltip("request:N"), alt.Tooltip("due:Q", title="due at, s"), alt.Tooltip("part:N", title="part"),
                alt.Tooltip("took:Q", title="took, ms"), alt.Tooltip("outcome:N"),
                alt.Tooltip("input_tokens:Q", title="input tokens"),
                alt.Tooltip("output_tokens:Q", title="output tokens"),
            ],
        )
    )  # fmt: skip
    about = f"The {SLOWEST} requests that took longest from when they were due until they ended, failed ones as well."
    columns = [("level", "level"), ("request", "request"), ("due", "due at s"), ("outcome", "outcome"),
               ("part", "part"), ("took", "took ms"), ("input_tokens", "input tokens"),
               ("output_tokens", "output tokens")]  # fmt: skip
    return chart("slowest", title, about, drawing, rows, columns, _names(levels), height=18 * SLOWEST)


def _waterfall(level: Drawn) -> Iterator[Fields]:
    assert level.window is not None
    columns = level.window.requests.columns
    took = columns.done - columns.intended
    known = np.flatnonzero(~np.isnan(took) & ~np.isnan(columns.sent))
    most = known[np.argsort(-took[known], kind="stable")][:SLOWEST]
    for index in most.tolist():
        due, sent, first, done = (
            float(column[index]) for column in (columns.intended, columns.sent, columns.first_token, columns.done)
        )
        ends = [("until it was sent", due, sent)]
        ends += [("until it ended", sent, done)] if math.isnan(first) else [
            ("until the first token", sent, first), ("until it ended", first, done)]  # fmt: skip
        for part, start, end in ends:
            yield {
                "level": level.name,
                "request": f"{level.ids[index]:.0f}",
                "due": number(due / 1000),
                "part": part,
                "from": number(start - due, 6),
                "to": number(end - due, 6),
                "took": number(end - start),
                "outcome": failure(OUTCOMES[int(level.outcomes[index])]),
                "input_tokens": number(columns.input_tokens[index], 9),
                "output_tokens": number(columns.output_tokens[index], 9),
            }


def _edges(level: Drawn) -> Floats:
    """The level's time in s, in at most so many equal parts of a round length, from its start to its last event."""
    assert level.window is not None
    columns = level.window.requests.columns
    end = max(float(np.nanmax(each, initial=0.0)) for each in (columns.intended, columns.sent, columns.done)) / 1000
    step = 10.0 ** math.floor(math.log10(max(end, 0.01) / _BINS))
    step *= next(times for times in (1, 2, 5, 10) if end / (step * times) <= _BINS)
    found: Floats = np.arange(math.floor(end / step) + 2, dtype=np.float64) * step
    return found


def _names(levels: Sequence[Drawn]) -> list[str]:
    """The last first: it is the heaviest load of most runs."""
    return [level.name for level in reversed(levels)]


_AT = alt.X("at:Q", title="s since the level began", axis=alt.Axis(tickCount=alt.ExprRef("ceil(width / 90)")))
_TIP = alt.Tooltip("at:Q", title="at, s")
