"""Several runs as one page: what their conditions differ in, their figures beside each other, their charts overlaid.

Nothing here says that one is better: that is for compare, which knows how sure it is. Pure.
"""

from collections.abc import Mapping, Sequence

from loadtest.likeness import Run
from loadtest.reports import charts_levels, charts_spread, overlay
from loadtest.reports.charts import Absent, Chart
from loadtest.reports.charts_requests import Drawn, Journal, drawn, some
from loadtest.reports.conditions import common
from loadtest.reports.console import footnotes
from loadtest.reports.figures import plain
from loadtest.reports.html import as_json, embedded, render


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
    differences = overlay.differences(runs)
    unlike = differences[1].cells.count("unlike") if differences else 0
    columns = overlay.levels(runs)
    return render(
        "overlay.html.j2",
        title=" · ".join(plain(run.name) for run in runs),
        tone="none",
        outcome=f"{len(runs)} runs",
        unlike=unlike,
        names=[plain(run.name) for run in runs],
        differences=differences,
        common=common(runs),
        differing=overlay.differing_columns(runs),
        verdicts=overlay.verdicts(runs),
        levels=columns,
        notes=footnotes(columns),
        marked=overlay.marks(runs),
        charts=[chart for chart in found if isinstance(chart, Chart)],
        absent=[chart for chart in found if isinstance(chart, Absent)],
        thinned="",
        specs=as_json([embedded(chart) for chart in found if isinstance(chart, Chart)]),
        result=as_json([run.result for run in runs]),
        script=script,
        tool=runs[0].result.tool,
    )
