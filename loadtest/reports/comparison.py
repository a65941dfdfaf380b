"""Two sides compared, as a person reads it: the answer, each figure on both sides, and why. Pure."""

from collections.abc import Callable, Sequence

from loadtest.comparison import Change, Comparison
from loadtest.reports.cases import Case
from loadtest.reports.column import Column
from loadtest.reports.console import Page
from loadtest.reports.figures import NOT_MEASURED, figure, plain
from loadtest.reports.markdown import document, fold, head, items
from loadtest.reports.markdown import table as markdown_table
from loadtest.reports.markdown import text as markdown_text
from loadtest.result import VerdictName

MARK = "!"
_WORDS: dict[VerdictName | None, str] = {
    "PASS": "no regression", "FAIL": "regression", "INCONCLUSIVE": "inconclusive", "INVALID": "invalid",
    None: "not judged",
}  # fmt: skip
_STYLES: dict[VerdictName, str] = {
    "PASS": "bold green", "FAIL": "bold red", "INCONCLUSIVE": "bold yellow", "INVALID": "bold red",
}  # fmt: skip
_SHORT = {
    "requests_per_s": "req/s", "output_tokens_per_s": "output tok/s", "total_tokens_per_s": "total tok/s",
    "samples_per_s": "samples/s",
    "events_per_s": "events/s", "error_rate": "error rate",
}  # fmt: skip
_NAMED = 3
_MOST = 10.0


def table(found: Comparison, width: int, color: bool) -> str:
    """The whole comparison as text in lines of at most ``width`` columns, ending in a newline.

    What does not fit is left out in this order: the detectable change, the interval. Without ``color`` there is no
    escape code.
    """
    page = Page(width, color)
    page.paragraphs([answer(found)], style=_STYLES[found.outcome])
    page.paragraphs([*sides(found)])
    page.paragraphs([f"unlike: {plain(what)}" for what in found.unlike], style="yellow", hanging=2)
    sizes = [len(level.changes) for level in found.levels]
    ends = [sum(sizes[: number + 1]) - 1 for number in range(len(sizes) - 1)]
    shown = page.table(columns(found), ends)
    page.paragraphs(reasons(found), hanging=2)
    page.paragraphs([f"note: {plain(note)}" for note in found.notes], style="yellow", hanging=2)
    page.paragraphs(rests(found, shown), style="dim")
    return page.text()


def markdown(found: Comparison) -> str:
    """A comment for a pull request, ending in a newline."""
    return document(
        [
            *head("compared", cases(found)),
            markdown_text(answer(found)),
            items([f"unlike: {what}" for what in found.unlike]),
            markdown_table(whole := columns(found)),
            items(reasons(found)),
            fold("What was compared", [*map(markdown_text, (*sides(found), *rests(found, whole))), items(found.notes)]),
        ]
    )


def cases(found: Comparison) -> list[Case]:
    """One for each figure of each level, for a pipeline."""
    return [
        Case(
            name=change.metric,
            outcome=change.verdict or "SKIPPED",
            level=level.name,
            reason=change.reason,
            figures=f"base {value(change, change.base)}, candidate {value(change, change.candidate)}, change "
            f"{moved(change, change.change)}, 95 % confidence interval {interval(change)}",
        )
        for level in found.levels
        for change in level.changes
    ]


def answer(found: Comparison) -> str:
    """What came of it, in a sentence."""
    told = [(level.name, change) for level in found.levels for change in level.changes]
    alone = len(found.levels) == 1

    def those(verdict: VerdictName, size: Callable[[Change], float | None]) -> str:
        """Of the changes with that verdict the largest few, with their size."""
        chosen = [each for each in told if each[1].verdict == verdict]
        chosen.sort(key=lambda each: abs(size(each[1]) or 0.0), reverse=True)
        named = [
            f"{'' if alone else f'{plain(name)} '}{_name(change)}"
            + ("" if (by := size(change)) is None else f" {moved(change, by)}")
            for name, change in chosen[:_NAMED]
        ]
        return ", ".join(named) + (f" and {len(chosen) - _NAMED} more" if len(chosen) > _NAMED else "")

    if found.outcome == "FAIL":
        return f"Regression: {those('FAIL', lambda change: change.change)}."
    if found.outcome == "INVALID":
        return "Invalid: the client, not the server, was the limit."
    if found.outcome == "PASS":
        return f"No regression: no figure got worse by more than {percent(found.tolerance)}, for certain."
    open_ = sum(change.verdict == "INCONCLUSIVE" for _, change in told)
    if not open_:
        return "Inconclusive: a run is not whole, and what is missing cannot be compared; nothing else got worse."
    return (
        f"Inconclusive: {open_} of {len(told)} figures may have got worse by more than {percent(found.tolerance)}, or "
        "may not. Longer runs, or more of them on each side, would tell."
    )


def sides(found: Comparison) -> list[str]:
    """What was compared with what."""
    return [f"base: {_runs(found.base)}", f"candidate: {_runs(found.candidate)}"]


def columns(found: Comparison) -> list[Column]:
    """A row for each figure of each level."""
    rows = [(level, change) for level in found.levels for change in level.changes]
    changes = [change for _, change in rows]
    several = len(found.levels) > 1
    names = ["" if change is not level.changes[0] else plain(level.name) for level, change in rows]
    marks = [MARK if change.verdict in ("FAIL", "INVALID") else "" for change in changes]
    return [
        *([Column("", marks, "mark")] if any(marks) else []),
        *([Column("level", names, "setup")] if several else []),
        Column("figure", [f"{_name(change)}{' ms' * (change.unit == 'ms')}" for change in changes], "setup"),
        Column("base", [value(change, change.base) for change in changes]),
        Column("candidate", [value(change, change.candidate) for change in changes]),
        Column("change", [moved(change, change.change) for change in changes]),
        Column("95 % interval", [interval(change) for change in changes], drop=1),
        Column("detectable", [moved(change, change.detectable) for change in changes], drop=0),
        Column("", [_word(change) for change in changes], "setup"),
    ]


def reasons(found: Comparison) -> list[str]:
    """Why figures are not plainly without regression, a line for those that have it in common."""
    alike: dict[tuple[VerdictName | None, str], dict[str, list[str]]] = {}
    for level in found.levels:
        for change in level.changes:
            if change.verdict != "PASS":
                figures = alike.setdefault((change.verdict, change.reason), {})
                figures.setdefault(_name(change), []).append(level.name)
    order: list[VerdictName | None] = ["INVALID", "FAIL", "INCONCLUSIVE", None]
    lines = []
    for (verdict, why), figures in sorted(alike.items(), key=lambda item: order.index(item[0][0])):
        names = [
            name if len(where) == len(found.levels) else f"{name} ({', '.join(where)})"
            for name, where in figures.items()
        ]
        lines.append(f"{_WORDS[verdict]}: {plain(', '.join(names))}: {plain(why)}")
    return lines


def rests(found: Comparison, shown: Sequence[Column]) -> list[str]:
    """What the intervals and the detectable changes are, of the columns that are shown."""
    by = {change.by for level in found.levels for change in level.changes if change.unit != "share"}
    said = []
    if "requests" in by:
        said.append(
            "Intervals rest on the requests within the runs; that runs differ among each other is not in them. Four "
            "runs a side would tell, best played in turn: compare --run."
        )
    if any(column.head == "detectable" and set(column.cells) != {NOT_MEASURED} for column in shown):
        said.append("detectable: the least worsening that these runs would have shown four times in five.")
    return said


def value(change: Change, of: float | None) -> str:
    """A figure as people write it; its unit stands with its name."""
    if of is None:
        return NOT_MEASURED
    return percent(of) if change.unit == "share" else figure(of)


def moved(change: Change, by: float | None) -> str:
    """A change with its sign: +12.3 %, of a share +0.5 pp; beyond ten times as much no number says more."""
    if by is not None and by > _MOST:
        return f"> +{100 * _MOST:.0f} %"
    return NOT_MEASURED if by is None else f"{_points(change, by)} {_unit(change)}"


def interval(change: Change) -> str:
    """Between what the change lies; an open end is ``…``."""
    if change.ci95 is None or change.ci95 == (None, None):
        return NOT_MEASURED
    low, high = ("…" if end is None else _points(change, end) for end in change.ci95)
    return f"{low} to {high} {_unit(change)}"


def percent(share: float) -> str:
    """0.05 is 5 %."""
    return f"{100 * share:.3g} %"


def _runs(folders: Sequence[str]) -> str:
    """The folders of a side; those beside each other with their common part said once."""
    if len(folders) == 1:
        return plain(folders[0])
    parents = {folder.rpartition("/")[0] for folder in folders}
    parent = parents.pop() if len(parents) == 1 else ""
    names = [folder.removeprefix(f"{parent}/") for folder in folders] if parent else folders
    return plain(f"{f'{parent}: ' if parent else ''}{', '.join(names)}") + f" ({len(folders)} runs)"


def _points(change: Change, by: float) -> str:
    return f"{100 * by:+.2f}" if change.unit == "share" else f"{100 * by:+.1f}"


def _unit(change: Change) -> str:
    return "pp" if change.unit == "share" else "%"


def _name(change: Change) -> str:
    """The figure as reports call it."""
    return _SHORT.get(change.metric, change.metric)


def _word(change: Change) -> str:
    """The verdict; a change for the better is told as such."""
    if change.verdict == "PASS" and change.reason.startswith("better"):
        return "better"
    return _WORDS[change.verdict]
