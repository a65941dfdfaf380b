"""A search for capacity as a person reads it: what was found, every load that was tried, and the levels it rests on."""

from collections import Counter
from collections.abc import Sequence

from loadtest.reports.column import Column
from loadtest.reports.console import (
    Page,
    conservation,
    errors,
    footnotes,
    level_columns,
    marked,
    opening,
    warnings,
)
from loadtest.reports.figures import plain
from loadtest.reports.verdict import STYLES
from loadtest.result import Capacity, LevelResult, Result, Trial
from loadtest.verdict import WORST_FIRST

# Stands after the last load that passed; beyond it begins what did not.
FRONTIER = "|"


def table(result: Result, width: int, color: bool, folder: str | None = None) -> str:
    """The whole report as text in lines of at most ``width`` columns, ending in a newline."""
    searches = result.searches
    page = Page(width, color)
    again = f": loadtest resume {folder}" if folder else ""
    opening(page, result, "search", f"; it can go on{again}")
    outcome = result.verdict.outcome
    page.paragraphs([plain(said(one)) for one in searches], style=STYLES[outcome] if outcome else "", hanging=2)
    if loads := sorted({trial.load for one in searches for trial in one.trials}):
        page.table(matrix(searches, loads), [])
        page.paragraphs([key(searches)], style="dim")
    ends = _ends(searches, result.levels)
    shown = page.table(level_columns(ends), []) if ends else []
    page.paragraphs(footnotes(shown), style="dim")
    page.paragraphs(marked(ends), style="yellow", hanging=2)
    page.paragraphs(errors(ends), style="red", hanging=2, most=3)
    page.paragraphs(warnings(result), style="yellow", hanging=2)
    page.paragraphs([*conservation(result.levels), *([f"result: {folder}"] if folder else [])], style="dim")
    return page.text()


def said(one: Capacity) -> str:
    """The statement of a search, with its name where there are several."""
    name = " ".join(filter(None, (one.setting, one.tier)))
    return f"{name}: {one.statement}" if name else one.statement


def counted(searches: Sequence[Capacity]) -> str:
    """How the trials of all searches came out."""
    counts = Counter(trial.outcome for one in searches for trial in one.trials)
    several = ", ".join(f"{counts[name]} {name}" for name in reversed(WORST_FIRST) if counts[name])
    return f"{counts.total()} trials: {several}" if several else "no trial was played"


def matrix(searches: Sequence[Capacity], loads: Sequence[float]) -> list[Column]:
    """A row for each load that was tried, a column for each search."""
    unit = "requests/s" if searches[0].axis == "rate" else "in flight"
    rows = [Column(f"load\n{unit}", [f"{load:g}" for load in loads], "setup")]
    for one in searches:
        head = "\n".join(filter(None, (one.setting, one.tier))) or "passed\nof trials"
        rows.append(Column(plain(head), [_cell(one, load) for load in loads]))
    return rows


def _cell(one: Capacity, load: float) -> str:
    own = [trial for trial in one.trials if trial.load == load]
    judged = [trial for trial in own if trial.resolved]
    end = f" {FRONTIER}" if one.bracket[0] == load else "  "
    if not own:
        return end
    if not judged:
        return ("invalid" if own[0].outcome == "INVALID" else _look(own)) + end
    return f"{sum(trial.outcome == 'PASS' for trial in judged)}/{len(judged)}{end}"


def _look(own: Sequence[Trial]) -> str:
    """A trial that was too short to prove anything."""
    near = max((trial.nearness for trial in own if trial.nearness is not None), default=None)
    return "?" if near is None else "within" if near <= 1 else "beyond"


def key(searches: Sequence[Capacity]) -> str:
    """What the cells of ``matrix`` mean."""
    words = f"n/m: n of m trials passed; {FRONTIER} the highest load at which each of enough did."
    looked = any(not trial.resolved and trial.outcome != "INVALID" for one in searches for trial in one.trials)
    return f"{words} within, beyond: a look too short to prove it." if looked else words


def _ends(searches: Sequence[Capacity], levels: Sequence[LevelResult]) -> list[LevelResult]:
    """The levels at both ends of the brackets, in the order in which they were played."""
    chosen = {index for one in searches for trial in one.trials if trial.load in one.bracket for index in trial.levels}
    return [levels[index] for index in sorted(chosen)]
