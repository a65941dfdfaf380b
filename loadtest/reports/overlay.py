"""Several runs over each other: what they have in common, what they differ in, their figures beside each other.

Nothing here says that one is better: that is for compare, which knows how sure it is. Pure.
"""

from collections.abc import Sequence

from loadtest.likeness import Run, likeness, setting
from loadtest.reports.column import Column
from loadtest.reports.conditions import common, differing
from loadtest.reports.console import Page, footnotes, level_columns, marked
from loadtest.reports.figures import plain
from loadtest.reports.finding import finding
from loadtest.result import LevelResult

NO_SLO = "No SLO was asked"


def table(runs: Sequence[Run], width: int, color: bool) -> str:
    """``runs``, two or more, as text in lines of at most ``width`` columns, ending in a newline."""
    names = [plain(run.name) for run in runs]
    page = Page(width, color)
    page.paragraphs([" · ".join(f"{name}: {text}" for name, text in common(runs))])
    page.paragraphs(
        [
            f"{name}: {'; '.join(f'{of}: {text}' for of, text in zip(names, texts, strict=True))}"
            for name, texts in differing(runs)
        ],
        hanging=2,
    )
    page.paragraphs([f"unlike: {what}" for what in _unlike(runs)], style="yellow", hanging=2)
    columns = levels(runs)
    shown = page.table(columns, []) if columns else []
    page.paragraphs(footnotes(shown), style="dim")
    page.paragraphs(marks(runs), style="yellow", hanging=2)
    page.table(verdicts(runs)[:-1], [])
    page.paragraphs([f"{name}: {finding(run.result)}" for name, run in zip(names, runs, strict=True)], hanging=2)
    page.paragraphs(["Whether one is worse than another is what loadtest compare tells."], style="dim")
    return page.text()


def marks(runs: Sequence[Run]) -> list[str]:
    """Why levels of each run are not to be taken as they stand."""
    return [f"{plain(run.name)}: {text}" for run in runs for text in marked(run.result.levels)]


def _unlike(runs: Sequence[Run]) -> list[str]:
    found = differences(runs)
    if not found:
        return []
    return [f"{name}: {what}" for name, kind, what in zip(*(column.cells for column in found), strict=True)
            if kind == "unlike"]  # fmt: skip


def differences(runs: Sequence[Run]) -> list[Column]:
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


def differing_columns(runs: Sequence[Run]) -> list[Column]:
    """The conditions that are not the same in all of ``runs``, a row each; none where all are."""
    rows = differing(runs)
    if not rows:
        return []
    own = [Column(plain(run.name), [texts[place] for _, texts in rows], "setup") for place, run in enumerate(runs)]
    return [Column("condition", [name for name, _ in rows], "setup"), *own]


def verdicts(runs: Sequence[Run]) -> list[Column]:
    """How each run came out."""
    resumed = [", ".join(run.result.resumed) for run in runs]
    return [
        Column("run", [plain(run.name) for run in runs], "setup"),
        Column("verdict", [run.result.verdict.outcome or NO_SLO for run in runs], "setup"),
        Column("complete", ["yes" if run.result.complete else "no" for run in runs], "setup"),
        Column("started", [run.result.started_at for run in runs], "setup"),
        *([Column("resumed", resumed, "setup")] if any(resumed) else []),
        Column("what it taught", [plain(finding(run.result)) for run in runs], "setup"),
    ]


def levels(runs: Sequence[Run]) -> list[Column]:
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
