"""Several runs as one page: what their conditions differ in, their figures beside each other, their charts overlaid.

Nothing here says that one is better: that is for compare, which knows how sure it is. Pure.
"""

from collections.abc import Mapping, Sequence

from loadtest.likeness import Run, likeness, setting
from loadtest.reports import charts_levels, charts_spread
from loadtest.reports.charts import Absent, Chart
from loadtest.reports.charts_requests import Drawn, Journal, drawn, some
from loadtest.reports.column import Column
from loadtest.reports.console import footnotes, level_columns, marked
from loadtest.reports.figures import plain
from loadtest.reports.finding import finding
from loadtest.reports.html import NO_SLO, as_json, embedded, render
from loadtest.result import LevelResult


def charts(runs: Sequence[Run], requests: Sequence[Mapping[int, Journal]]) -> list[Chart | Absent]:
    """Every chart of ``runs``, two or more, with a colour for each; ``requests`` are theirs, in the same order."""
    own = [drawn(run.result, of, run.name) for run, of in zip(runs, requests, strict=True)]
    levels = [level for of in own for level in of]
    if not levels:
        return []
    time = charts_levels.lead(levels)
    return [charts_levels.tradeoff(levels, time), charts_spread.percentiles(_alike(own), time)]


def _alike(runs: Sequence[Sequence[Drawn]]) -> list[Drawn]:
    """The levels that have requests; of many the same few of each run."""
    named = {level.name: level for of in runs for level in of if level.window}
    chosen = {level.name for level in some([*named.values()])}
    return [level for of in runs for level in of if level.window and level.name in chosen]


def page(runs: Sequence[Run], requests: Sequence[Mapping[int, Journal]], script: str) -> str:
    """The whole page of ``runs``, two or more, of which the others are held against the first."""
    found = charts(runs, requests)
    differences = _differences(runs)
    unlike = differences[1].cells.count("unlike") if differences else 0
    columns = _levels(runs)
    return render(
        "overlay.html.j2",
        title=" · ".join(plain(run.name) for run in runs),
        tone="none",
        outcome=f"{len(runs)} runs",
        unlike=unlike,
        names=[plain(run.name) for run in runs],
        differences=differences,
        verdicts=_verdicts(runs),
        levels=columns,
        notes=footnotes(columns),
        marked=[f"{plain(run.name)}: {text}" for run in runs for text in marked(run.result.levels)],
        charts=[chart for chart in found if isinstance(chart, Chart)],
        absent=[chart for chart in found if isinstance(chart, Absent)],
        thinned="",
        specs=as_json([embedded(chart) for chart in found if isinstance(chart, Chart)]),
        result=as_json([run.result for run in runs]),
        script=script,
        tool=runs[0].result.tool,
    )


def _differences(runs: Sequence[Run]) -> list[Column]:
    """What each other run does not have in common with the first; none where all is alike."""
    rows = []
    for other in runs[1:]:
        same = likeness(runs[:1], [other])
        rows += [(other.name, "unlike", what) for what in same.unlike]
        rows += [(other.name, "besides", what) for what in same.notes]
    if not rows:
        return []
    return [
        Column(f"against {plain(runs[0].name)}", [plain(name) for name, _, _ in rows], "setup"),
        Column("differs", [kind for _, kind, _ in rows], "setup"),
        Column("in", [plain(what) for _, _, what in rows], "setup"),
    ]


def _verdicts(runs: Sequence[Run]) -> list[Column]:
    return [
        Column("run", [plain(run.name) for run in runs], "setup"),
        Column("verdict", [run.result.verdict.outcome or NO_SLO for run in runs], "setup"),
        Column("complete", ["yes" if run.result.complete else "no" for run in runs], "setup"),
        Column("started", [run.result.started_at for run in runs], "setup"),
        Column("what it taught", [plain(finding(run.result)) for run in runs], "setup"),
    ]


def _levels(runs: Sequence[Run]) -> list[Column]:
    """The levels of all runs, those of one setting under each other."""
    order: dict[str, list[tuple[str, LevelResult]]] = {}
    for run in runs:
        for level in run.result.levels:
            order.setdefault(setting(level), []).append((run.name, level))
    rows = [row for of in order.values() for row in of]
    if not rows:
        return []
    names = [cell for name, level in rows for cell in (plain(name), *("" for _ in level.workloads))]
    return [Column("run", names, "setup"), *level_columns([level for _, level in rows])]
