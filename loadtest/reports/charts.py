"""What a chart of a report is, and how all of them look: on white and on black, on a screen and on paper. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import altair as alt

Row = Mapping[str, Any]

# Of each at least three to one against both grounds of the page, which tests/reports/test_charts.py measures.
COLORS = (
    "#1f83d6",
    "#d9620f",
    "#1a9660",
    "#c453b0",
    "#7b6ff0",
    "#0e93a5",
    "#e0485a",
    "#a07a10",
    "#8a7f78",
    "#a0673b",
    "#5f8f1f",
    "#b5587a",
)
GROUNDS = ("#ffffff", "#15181d")
BLUE, ORANGE, GREEN, RED, GRAY = "#1f83d6", "#d9620f", "#1a9660", "#e0485a", "#8a7f78"
OUTCOMES = {"PASS": GREEN, "FAIL": RED, "INCONCLUSIVE": "#a07a10", "INVALID": "#c453b0"}
HEIGHT = 280
# Of a file for slides, in pixels before it is scaled.
WIDTH = 760
# The colour of the text around it; of a picture by itself black.
_INK = "currentColor"


class Chart(NamedTuple):
    """A chart and what stands around it.

    ``name`` is that of a file without its suffix. ``about`` says what is drawn, to those who do not see it as well.
    ``spec`` is Vega-Lite with all data in it; ``rows`` are what it draws, and ``columns`` the fields of them that its
    table shows, with their heads. ``levels`` are those that it can be asked to draw, one at a time; it draws the first.
    """

    name: str
    title: str
    about: str
    spec: Mapping[str, Any]
    rows: Sequence[Row]
    columns: Sequence[tuple[str, str]]
    levels: Sequence[str] = ()


class Absent(NamedTuple):
    """A chart that has nothing to show, and why."""

    title: str
    why: str


ROWS = alt.NamedData(name="rows")


def chart(
    name: str, title: str, about: str, drawing: alt.Chart | alt.LayerChart, rows: Sequence[Row],
    columns: Sequence[tuple[str, str]], levels: Sequence[str] = (), height: int = HEIGHT,
) -> Chart:  # fmt: skip
    """``drawing``, whose data are ROWS, with ``rows`` in it and the look of all charts.

    With ``levels`` it draws the rows of one, which the page may change by its signal ``level``.
    """
    if levels:
        drawing = drawing.add_params(alt.param(name="level", value=levels[0]))
    spec = drawing.properties(width="container", height=height, background="transparent").to_dict()
    spec["autosize"] = {"type": "fit-x", "contains": "padding"}
    spec["config"] = _CONFIG
    spec.setdefault("datasets", {})["rows"] = list(rows)
    return Chart(name, title, about, spec, rows, columns, levels)


def alone(of: Chart) -> dict[str, Any]:
    """The spec of a picture by itself: on white, of its own width, with its title."""
    said = f"{of.title}: {of.levels[0]}" if of.levels else of.title
    return {**of.spec, "width": WIDTH, "title": {"text": said, "anchor": "start"}, "background": "white"}


def number(value: float | None, digits: int = 4) -> float | None:
    """As many digits as a chart needs; None of what is no number."""
    if value is None or not abs(value) < float("inf"):
        return None
    return float(f"{value:.{digits}g}")


def color(field: str, names: Sequence[str], title: str | None = None) -> alt.Color:
    """A colour for each of ``names``, without a legend where there is but one."""
    scale = alt.Scale(domain=list(names), range=[COLORS[place % len(COLORS)] for place in range(len(names))])
    return alt.Color(f"{field}:N", scale=scale, title=title, legend=alt.Legend() if len(names) > 1 else None)


def scale(values: Iterable[object]) -> alt.Scale:
    """Of a figure: logarithmic where its largest is far above its smallest, else from 0. All ``values`` are on it."""
    known = [float(value) for value in values if isinstance(value, float | int)]
    low, high = min(known, default=0.0), max(known, default=1.0)
    # Domains are told and not found, because a level without a value has none.
    if 0 < low < high / 20:
        return alt.Scale(type="log", domain=[low, high], nice=True)
    return alt.Scale(domain=[0, high * 1.05 or 1], nice=True)


_CONFIG: dict[str, Any] = {
    # The page says in words what is drawn; a label for each mark would bury that.
    "aria": False,
    "font": "system-ui, sans-serif",
    "view": {"stroke": None},
    "axis": {
        "labelColor": _INK,
        "titleColor": _INK,
        "gridColor": GRAY,
        "gridOpacity": 0.25,
        "domainColor": GRAY,
        "tickColor": GRAY,
        "labelFontSize": 12,
        "titleFontSize": 12,
        "titleFontWeight": "normal",
        "tickCount": 6,
        "labelOverlap": True,
    },
    "legend": {
        "orient": "bottom",
        "columns": 4,
        "labelColor": _INK,
        "titleColor": _INK,
        "labelFontSize": 12,
        "labelLimit": 160,
        "symbolType": "circle",
        "symbolOpacity": 1,
    },
    "text": {"fill": _INK, "fontSize": 12},
    "line": {"strokeWidth": 2},
    "point": {"filled": True, "size": 60, "opacity": 1},
}
