"""Charts of a level as it went: what came in, what was in flight, how long it took, what failed, the slowest. Pure.

All panels of the timeline count from the level's start. What the server and its GPUs told has panels beside those of
the requests, of the same clock; made only where the result has it.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import altair as alt
import numpy as np

from loadtest import measures
from loadtest.columns import Columns, Floats
from loadtest.records import OUTCOMES
from loadtest.reports.charts import (
    BLUE,
    COLORS,
    GRAY,
    GREEN,
    HEIGHT,
    ORANGE,
    RED,
    ROWS,
    Absent,
    Chart,
    chart,
    color,
    number,
    scale,
)
from loadtest.reports.charts_levels import Fields, Lead
from loadtest.reports.charts_requests import Drawn
from loadtest.reports.figures import failure
from loadtest.result import LevelResult
from loadtest.stats import distribution
from loadtest.telemetry.figures import Figure

SLOWEST = 20
# Parts of a level's time: so many, and of few requests fewer, lest each part hold one or none.
_MOST_PARTS, _FEWEST_PARTS = 100, 12
_EACH = 5
_PANEL = 150


class _Played(NamedTuple):
    """A level whose requests are known, and its time in s in equal parts: ``edges`` is (parts + 1,)."""

    name: str
    columns: Columns
    outcomes: Floats
    ids: Floats
    edges: Floats


def timeline(levels: Sequence[Drawn], time: Lead) -> list[Chart | Absent]:
    """The panels of the timeline: arrivals and answers, requests in flight, the time, failures, and what the server and
    its GPUs told, where they did."""
    played = _played(levels)
    if not played:
        return [Absent("Timeline", "there are no records of single requests")]
    told = [panel for of in _TOLD if (panel := _told(levels, played, of)) is not None]
    return [_arrivals(played), _in_flight(played), _times(played, time), *told, _failures(played)]


class _Told(NamedTuple):
    """A panel of what was watched: its lines by their names, each with the figures of a level that it draws."""

    name: str
    title: str
    about: str
    unit: str
    factor: float
    lines: dict[str, Callable[[LevelResult], list[Figure | None]]]


def _of_server(name: str) -> Callable[[LevelResult], list[Figure | None]]:
    return lambda level: [getattr(level.server, name)] if level.server else []


def _of_gpus(name: str) -> Callable[[LevelResult], list[Figure | None]]:
    return lambda level: [getattr(gpu, name) for gpu in level.gpus]


_TOLD = (
    _Told(
        "timeline-queue", "The server's requests", "Requests that the server computed, and those in its queue.",
        "requests", 1.0, {"running": _of_server("running"), "waiting": _of_server("waiting")},
    ),
    _Told(
        "timeline-cache", "The server's key/value cache",
        "How much of it was in use, and how much of the prompts was found in it.", "%", 100.0,
        {"in use": _of_server("kv_usage"), "prompts found": _of_server("prefix_hit_share")},
    ),
    _Told(
        "timeline-gpu", "GPUs", "How much of the time something ran on each of the GPUs, and of its memory in use.",
        "%", 100.0, {"busy": _of_gpus("utilisation"), "memory": _of_gpus("memory_share")},
    ),
    _Told("timeline-power", "GPU power", "What each of the GPUs took.", "W", 1.0, {"power": _of_gpus("power_w")}),
)  # fmt: skip


def _told(levels: Sequence[Drawn], played: Sequence[_Played], of: _Told) -> Chart | None:
    # The last look may come after the last answer, and what is past the end of an axis leaves a chart no width.
    ends = {one.name: float(one.edges[-1]) for one in played}
    rows: list[Fields] = [
        {"level": level.name, "at": number(at / 1000), "what": f"{what} {place}" if place else what,
         "value": number(of.factor * value)}
        for level in levels
        for what, figures in of.lines.items()
        for place, figure in enumerate(figures(level.figures))
        for at, value in (figure.series if figure else ())
        if 0 <= at / 1000 <= ends.get(level.name, 0.0)
    ]  # fmt: skip
    if not rows:
        return None
    lines = list(dict.fromkeys(row["what"] for row in rows))
    drawing = (
        alt.Chart(ROWS)
        .mark_line(interpolate="step-after", point=alt.OverlayMarkDef(size=40, opacity=0, clip=True))
        .encode(
            x=_at(),
            y=alt.Y(
                "value:Q", title=of.unit, axis=_FEW, scale=alt.Scale(domain=[0, 100]) if of.unit == "%" else alt.Scale()
            ),
            color=color("what", lines),
            tooltip=[_TIP, alt.Tooltip("what:N", title="what"), alt.Tooltip("value:Q", title=of.unit)],
        )
    )
    columns = [("level", "level"), ("at", "s"), ("what", "what"), ("value", of.unit)]
    names = {row["level"] for row in rows}
    return _panel(of.name, of.title, of.about, drawing, rows, columns, [one for one in played if one.name in names])


def _arrivals(levels: Sequence[_Played]) -> Chart:
    rows = [
        {"level": level.name, "at": number(at), "what": what, "per_s": number(value)}
        for level in levels
        for what, at, value in _rates(level)
    ]
    drawing = (
        alt.Chart(ROWS)
        .mark_line(interpolate="step-after", point=alt.OverlayMarkDef(size=40, opacity=0, clip=True))
        .encode(
            x=_at(),
            y=alt.Y("per_s:Q", title="requests/s", axis=_FEW),
            color=color("what", ["became due", "ended ok"]),
            tooltip=[_TIP, alt.Tooltip("what:N", title="requests that"), alt.Tooltip("per_s:Q", title="a second")],
        )
    )
    columns = [("level", "level"), ("at", "s"), ("what", "requests that"), ("per_s", "requests/s")]
    about = "Requests a second that became due and that ended ok."
    return _panel("timeline-arrivals", "Arrivals and answers", about, drawing, rows, columns, levels)


def _rates(level: _Played) -> Iterator[tuple[str, float, float]]:
    columns, edges = level.columns, level.edges
    for what, times in (("became due", columns.intended), ("ended ok", columns.done[columns.ok])):
        counts = np.histogram(times[~np.isnan(times)] / 1000, edges)[0]
        for at, value in zip(edges[:-1].tolist(), (counts / (edges[1] - edges[0])).tolist(), strict=True):
            yield what, at, value
        yield what, float(edges[-1]), 0.0  # so that the last part is as wide as the others


def _in_flight(levels: Sequence[_Played]) -> Chart:
    rows = [{"level": level.name, "at": number(at), "in_flight": n} for level in levels for at, n in _held(level)]
    held = alt.MarkDef(
        type="area", color=BLUE, opacity=0.35, interpolate="step-after", line={"color": BLUE, "strokeWidth": 1.5},
        point=alt.OverlayMarkDef(size=40, opacity=0, clip=True),
    )  # fmt: skip
    drawing = alt.Chart(ROWS, mark=held).encode(
        x=_at(),
        y=alt.Y("in_flight:Q", title="in flight", axis=_FEW),
        tooltip=[_TIP, alt.Tooltip("in_flight:Q", title="in flight")],
    )
    columns = [("level", "level"), ("at", "s"), ("in_flight", "in flight")]
    about = "Requests sent and not ended, in the middle of each moment shown."
    return _panel("timeline-in-flight", "Requests in flight", about, drawing, rows, columns, levels)


def _held(level: _Played) -> Iterator[tuple[float, int]]:
    columns = level.columns
    sent = np.sort(columns.sent[~np.isnan(columns.sent)]) / 1000
    done = np.sort(columns.done[~np.isnan(columns.sent) & ~np.isnan(columns.done)]) / 1000
    # A closed loop begins just after the first edge: there it would seem to be empty until the second.
    moments = np.append((level.edges[:-1] + level.edges[1:]) / 2, level.edges[-1])
    held = np.searchsorted(sent, moments, side="right") - np.searchsorted(done, moments, side="right")
    yield from zip(level.edges.tolist(), held.tolist(), strict=True)


def _times(levels: Sequence[_Played], time: Lead) -> Chart | Absent:
    title = f"{time.word} over time"
    rows = [row for level in levels for row in _over_time(level, time)]
    if not rows:
        return Absent(title, "no good request has such a time")
    which = alt.Scale(domain=["median", "slowest"], range=[BLUE, ORANGE])
    drawing = (
        alt.Chart(ROWS)
        .mark_line(point=alt.OverlayMarkDef(size=16))
        .encode(
            x=_at(),
            y=alt.Y("ms:Q", title=f"{time.word}, ms", scale=scale([row["ms"] for row in rows]), axis=_FEW),
            color=alt.Color("which:N", title=None, scale=which),
            tooltip=[
                _TIP,
                alt.Tooltip("which:N", title="of the requests"),
                alt.Tooltip("ms:Q", title=f"{time.word}, ms"),
                alt.Tooltip("n:Q", title="requests"),
            ],
        )
    )
    about = (
        f"{time.word} of good requests by when they were due: the median and the slowest of each moment. A median that "
        "climbs is a queue that grows."
    )
    columns = [("level", "level"), ("at", "s"), ("which", "of the requests"), ("ms", f"{time.word} ms"),
               ("n", "requests")]  # fmt: skip
    return _panel("timeline-times", title, about, drawing, rows, columns, levels)


def _over_time(level: _Played, time: Lead) -> Iterator[Fields]:
    columns, edges = level.columns, level.edges
    values = measures.time_of(columns, time.time)
    known = columns.ok & ~np.isnan(values)
    at = columns.intended[known] / 1000
    order = np.argsort(at, kind="stable")
    parts = np.split(values[known][order], np.searchsorted(at[order], edges[1:-1]))
    for start, part in zip(edges[:-1].tolist(), parts, strict=True):
        found = distribution(part)
        for which, value in (("median", found.p50), ("slowest", found.max)):
            if value is not None:
                yield {"level": level.name, "at": number(start), "which": which, "ms": number(value), "n": found.n}


def _failures(levels: Sequence[_Played]) -> Chart | Absent:
    title = "Failures over time"
    rows = [row for level in levels for row in _failed(level)]
    if not rows:
        return Absent(title, f"no request failed{' in the levels that are drawn' if len(levels) > 1 else ''}")
    kinds = list(dict.fromkeys(row["kind"] for row in rows))
    paint = alt.Scale(domain=kinds, range=[RED, *COLORS][: len(kinds)])
    drawing = (
        alt.Chart(ROWS)
        .mark_bar(binSpacing=0)
        .encode(
            x=_at(bin="binned"),
            x2="until:Q",
            y=alt.Y("count:Q", title="failures", axis=_FEW),
            color=alt.Color("kind:N", title=None, scale=paint),
            tooltip=[_TIP, alt.Tooltip("kind:N", title="how"), alt.Tooltip("count:Q", title="requests")],
        )
    )
    columns = [("level", "level"), ("at", "s"), ("kind", "how"), ("count", "requests")]
    failing = [level for level in levels if any(row["level"] == level.name for row in rows)]
    about = "Requests that failed, by when they ended and by how."
    return _panel("timeline-failures", title, about, drawing, rows, columns, failing)


def _failed(level: _Played) -> Iterator[Fields]:
    columns, edges = level.columns, level.edges
    ended = np.where(np.isnan(columns.done), columns.intended, columns.done) / 1000
    for place, outcome in enumerate(OUTCOMES):
        counts = np.histogram(ended[level.outcomes == place], edges)[0]
        for index in np.flatnonzero(counts).tolist() if outcome != "ok" else ():
            yield {
                "level": level.name,
                "at": number(edges[index]),
                "until": number(edges[index + 1]),
                "kind": failure(outcome),
                "count": int(counts[index]),
            }


def slowest(levels: Sequence[Drawn]) -> Chart | Absent:
    """The slowest requests of a level, in the parts that they waited for."""
    title = "The slowest requests"
    played = _played(levels)
    rows = [row for level in played for row in _waterfall(level)]
    if not rows:
        return Absent(title, "no request was sent and ended")
    paint = {"until it was sent": GRAY, "until the first token": ORANGE, "until it ended": GREEN}
    shown = [part for part in paint if any(row["part"] == part for row in rows)]
    drawing = (
        alt.Chart(ROWS)
        .mark_bar(height=10)
        .encode(
            x=alt.X("from:Q", title="ms since it was due"),
            x2="to:Q",
            y=alt.Y("request:N", sort=None, title="request"),
            color=alt.Color("part:N", title=None, scale=alt.Scale(domain=shown, range=[paint[part] for part in shown])),
            tooltip=[
                alt.Tooltip("request:N"),
                alt.Tooltip("due:Q", title="due at, s"),
                alt.Tooltip("part:N", title="part"),
                alt.Tooltip("took:Q", title="took, ms"),
                alt.Tooltip("outcome:N"),
                alt.Tooltip("input_tokens:Q", title="input tokens"),
                alt.Tooltip("output_tokens:Q", title="output tokens"),
            ],
        )
    )
    columns = [("level", "level"), ("request", "request"), ("due", "due at s"), ("outcome", "outcome"),
               ("part", "part"), ("took", "took ms"), ("input_tokens", "input tokens"),
               ("output_tokens", "output tokens")]  # fmt: skip
    about = f"The {SLOWEST} requests that took longest from when they were due until they ended, failed ones as well."
    names = {row["level"] for row in rows}
    own = [level for level in played if level.name in names]
    return _panel("slowest", title, about, drawing, rows, columns, own, height=HEIGHT + 4 * SLOWEST)


def _waterfall(level: _Played) -> Iterator[Fields]:
    columns = level.columns
    took = columns.done - columns.intended
    known = np.flatnonzero(~np.isnan(took) & ~np.isnan(columns.sent))
    for index in known[np.argsort(-took[known], kind="stable")][:SLOWEST].tolist():
        due, sent, first, done = (
            float(column[index]) for column in (columns.intended, columns.sent, columns.first_token, columns.done)
        )
        answering = sent if math.isnan(first) else first
        parts = [("until it was sent", due, sent), ("until the first token", sent, answering),
                 ("until it ended", answering, done)]  # fmt: skip
        for part, start, end in parts:
            if end > start:
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


def _played(levels: Sequence[Drawn]) -> list[_Played]:
    return [
        _Played(
            level.name, level.window.requests.columns, level.outcomes, level.ids, _edges(level.window.requests.columns)
        )
        for level in levels
        if level.window
    ]


def _edges(columns: Columns) -> Floats:
    """From the level's start past its last event, each part of a round length."""
    end = max(float(np.nanmax(each, initial=0.0)) for each in (columns.intended, columns.sent, columns.done)) / 1000
    parts = min(max(len(columns.ok) / _EACH, _FEWEST_PARTS), _MOST_PARTS)
    least = max(end, 0.001) / parts
    step = 10.0 ** math.floor(math.log10(least))
    step *= next(times for times in (1, 2, 5, 10) if step * times >= least)
    found: Floats = np.arange(math.floor(end / step) + 2, dtype=np.float64) * step
    return found


def _panel(
    name: str, title: str, about: str, drawing: alt.Chart, rows: Sequence[Fields], columns: Sequence[tuple[str, str]],
    levels: Sequence[_Played], height: int = _PANEL,
) -> Chart:  # fmt: skip
    """Of one of ``levels`` at a time, the last first: it is the heaviest load of most runs."""
    ends = {level.name: number(level.edges[-1]) for level in levels}
    one = drawing.transform_filter("datum.level == level").add_params(alt.param(name="ends", value=ends))
    return chart(name, title, about, one, rows, columns, [level.name for level in reversed(levels)], height)


def _at(**given: object) -> alt.X:
    """The time of a panel, up to the end of its level whatever the panel has to show.

    And a little on, for a stroke that reached past the axis would make it shorter than those of the other panels.
    """
    own = alt.Scale(domainMin=0, domainMax=alt.ExprRef("1.005 * ends[level]"), nice=False)
    few = alt.Axis(tickCount=alt.ExprRef("ceil(width / 90)"))
    return alt.X("at:Q", title="s since the level began", scale=own, axis=few, **given)


_TIP = alt.Tooltip("at:Q", title="at, s")
# Room for 100,000 whatever the labels are, so that the same second is at the same place in all panels.
_FEW = alt.Axis(tickCount=4, minExtent=56, maxExtent=56)
