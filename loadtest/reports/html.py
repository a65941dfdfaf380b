"""The result as one page that opens anywhere: nothing in it is fetched, and what a target said is never markup. Pure.

``page.html.j2`` is the page, ``page.css`` how it looks, ``page.js`` what it does; the charts are Vega-Lite.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from typing import Any

import jinja2
import msgspec

from loadtest.errors import EXIT_INTERRUPTED
from loadtest.exports import csv
from loadtest.reports import capacity, charts_levels, charts_spread, charts_time, verdict
from loadtest.reports.charts import Absent, Chart
from loadtest.reports.charts_requests import MOST_LEVELS, Drawn, Journal, drawn, some
from loadtest.reports.column import Column
from loadtest.reports.conditions import conditions
from loadtest.reports.console import conservation, footnotes, level_columns, marked, resumed, warnings
from loadtest.reports.figures import NOT_MEASURED, failure, figure, plain
from loadtest.reports.finding import finding
from loadtest.reports.overlay import NO_SLO
from loadtest.reports.parts import tables
from loadtest.result import FILE_NAME, LevelResult, Result, Spread


def charts(result: Result, requests: Mapping[int, Journal]) -> list[Chart | Absent]:
    """Every chart of a result, in the order of the page; ``requests`` are those of its levels by their places."""
    return _charts(result, drawn(result, requests))


def _charts(result: Result, levels: Sequence[Drawn]) -> list[Chart | Absent]:
    if not levels:
        return []
    time, chosen = charts_levels.lead(levels), some(levels)
    return [
        *([charts_levels.trials(result.searches)] if result.searches else []),
        charts_levels.tradeoff(levels, time),
        *charts_levels.matrix(levels, time),
        charts_spread.percentiles(chosen, time),
        charts_spread.prompts(chosen, time),
        *charts_time.timeline(chosen, time),
        charts_time.slowest(chosen),
    ]


def page(result: Result, requests: Mapping[int, Journal], script: str, folder: str | None = None) -> str:
    """The whole page. ``script`` is Vega's, with Vega-Lite and Vega-Embed; ``folder`` is where the result lies."""
    own = drawn(result, requests)
    found = _charts(result, own)
    levels, levels_table = result.levels, level_columns(result.levels) if result.levels else []
    beside = tables(result)
    searches = result.searches
    loads = sorted({trial.load for one in searches for trial in one.trials})
    return render(
        "page.html.j2",
        title=plain(result.conditions.scenario.name),
        tone=(result.verdict.outcome or "none").lower(),
        outcome=result.verdict.outcome or (NO_SLO if result.complete else "No verdict"),
        headline=_headline(result),
        notices=_notices(result),
        finding="" if searches else finding(result),
        statements=[capacity.said(one) for one in searches],
        trials=capacity.matrix(searches, loads) if loads else [],
        trials_key=capacity.key(searches) if loads else "",
        not_comparable=result.conditions.not_comparable,
        # Of a search the statement says what came of it: that loads beyond the capacity failed is how it found it.
        reasons=verdict.reasons(result) if result.verdict.outcome and not searches else [],
        audits=verdict.audits(result),
        slos=verdict.columns(result),
        conditions=conditions(result),
        levels=levels_table,
        beside=beside,
        notes=footnotes([column for of in (levels_table, *beside) for column in of]),
        marked=marked(levels),
        conservation=conservation(levels),
        errors=_errors(levels),
        client=_client(levels),
        warnings=[text.removeprefix("warning: ") for text in warnings(result)],
        adaptations=[*map(plain, result.adaptations)],
        charts=[chart for chart in found if isinstance(chart, Chart)],
        absent=[chart for chart in found if isinstance(chart, Absent)],
        thinned=_thinned(own),
        specs=as_json([embedded(chart) for chart in found if isinstance(chart, Chart)]),
        result=as_json(result),
        csv=as_json(csv.text(result)),
        file_name=FILE_NAME,
        folder=folder,
        script=script,
        tool=result.tool,
    )


def render(template: str, **values: object) -> str:
    """A template of this room with all that is put in escaped, but for what is marked as safe in it."""
    room = files("loadtest.reports")
    loader = jinja2.FunctionLoader(lambda name: room.joinpath(name).read_text("utf-8"))
    # Every name has to be given: a page with a hole in it would be found by its reader alone.
    made = jinja2.Environment(
        loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return made.get_template(template).render(**values)


def as_json(value: object) -> str:
    """``value`` as JSON that can stand in a script of a page: nothing in it ends that."""
    return msgspec.json.encode(value).decode().replace("<", "\\u003c")


def embedded(chart: Chart) -> dict[str, Any]:
    """What the script of the page takes of a chart."""
    return {"name": chart.name, "spec": chart.spec, "columns": chart.columns, "levels": chart.levels}


def _headline(result: Result) -> str:
    """What the verdict is of: so many trials of a search, or SLOs of levels."""
    if result.searches:
        return capacity.counted(result.searches)
    return verdict.headline(result).partition(" · ")[2] if result.verdict.outcome else ""


def _notices(result: Result) -> list[str]:
    """What is to be known before any figure is read, and is no reason of the verdict."""
    said = resumed(result)
    if not result.complete:
        what = "was interrupted" if result.exit_code == EXIT_INTERRUPTED else "did not finish"
        said.append(f"The run {what}: this is what it had measured until then.")
    late = [level.name for level in result.levels if not level.client.valid and not level.slo]
    if late:
        said.append(f"Invalid, as the client and not the server was the limit: {plain(', '.join(late))}.")
    return said


def _thinned(levels: Sequence[Drawn]) -> str:
    count = sum(level.window is not None for level in levels)
    if count <= MOST_LEVELS:
        return ""
    return f"{MOST_LEVELS} of {count} levels are drawn, evenly chosen; the table has all of them."


def _errors(levels: Sequence[LevelResult]) -> list[Column]:
    rows = [(level, error) for level in levels for error in level.errors]
    if not rows:
        return []
    return [
        Column("level", [plain(level.name) for level, _ in rows], "setup"),
        Column("how", [plain(failure(error.kind, error.status)) for _, error in rows], "setup"),
        Column("requests", [f"{error.count:,}" for _, error in rows]),
        Column("such as", [plain(error.example or "") for _, error in rows], "setup"),
    ]


def _client(levels: Sequence[LevelResult]) -> list[Column]:
    """What the generator saw of itself in each level."""
    rows = [(level.name, level.client) for level in levels if level.client.workers]
    if not rows:
        return []
    clients = [client for _, client in rows]

    def lags(name: str, spreads: Iterable[Spread | None]) -> list[Column]:
        known = list(spreads)
        return [
            Column(f"{name}\np99 ms", [figure(spread.p99 if spread else None) for spread in known]),
            Column(f"{name}\nmax ms", [figure(spread.max if spread else None) for spread in known]),
        ]

    columns = [
        Column("level", [plain(name) for name, _ in rows], "setup"),
        Column("workers", [str(client.workers) for client in clients]),
        Column("busiest\n% of a core", [_percent(client.cpu_share) for client in clients]),
        *lags("own lag", (client.send_lag_ms for client in clients)),
        *lags("loop lag", (client.loop_lag_ms for client in clients)),
        Column("error bar\np50 ms", [figure(client.error_bar_p50_ms) for client in clients]),
        Column("error bar\np99 ms", [figure(client.error_bar_ms) for client in clients]),
        Column("reads of several\nevents %", [_percent(client.coalesced_read_share) for client in clients]),
        Column("was the limit", ["" if client.valid else "yes" for client in clients], "setup"),
    ]
    return [column for column in columns if not set(column.cells) <= {"", NOT_MEASURED}]


def _percent(share: float | None) -> str:
    return figure(None if share is None or math.isnan(share) else 100 * share)
