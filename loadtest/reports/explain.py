"""What limited the levels of a run, as a person reads it at a terminal. Pure."""

from loadtest.explain import NAMES, Explanation, Finding
from loadtest.reports.console import Page
from loadtest.reports.figures import plain
from loadtest.result import Result


def text(found: Explanation, result: Result, width: int, color: bool) -> str:
    """The explanation in lines of at most ``width`` columns: each level, then all of them; without ``color`` plain."""
    page = Page(width, color)
    if not found.levels:
        page.paragraphs(["Nothing can be explained: no request was due in the window of a level."], style="yellow")
        return page.text()
    for level in found.levels:
        page.paragraphs([f"{plain(level.level)}: {NAMES[level.findings[0].limit]}"], style="bold")
        page.paragraphs([f"  {_said(finding)}" for finding in level.findings], hanging=7)
    if len(found.levels) > 1:
        lines = [
            f"  {NAMES[one.limit]}: {len(one.levels)} of {len(found.levels)} levels ({plain(', '.join(one.levels))})"
            for one in found.matrix
        ]
        page.paragraphs(["What came first, over all levels"], style="bold")
        page.paragraphs(lines, hanging=4)
    page.paragraphs([plain(note) for note in result.conditions.telemetry], style="dim", hanging=2)
    return page.text()


def _said(finding: Finding) -> str:
    weight = f"{finding.weight:4.0%}" if finding.weight else "    "
    return f"{weight} {NAMES[finding.limit]}: {plain(finding.words)}"
