"""The result as a comment that a reviewer reads in ten seconds: verdict, SLOs, figures; the rest is folded away. Pure.

It is written for what GitHub and GitLab make of Markdown. Much of it is another's text, names of models and words of
servers, and none of that can format, link, mention or end anything: see ``text``.
"""

import re
from collections.abc import Iterable, Sequence

from loadtest.reports import verdict
from loadtest.reports.cases import Case, Outcome, cases
from loadtest.reports.column import Column
from loadtest.reports.console import (
    conditions,
    conservation,
    errors,
    footnotes,
    level_columns,
    marked,
    resumed,
    warnings,
)
from loadtest.reports.figures import plain
from loadtest.reports.finding import finding
from loadtest.reports.parts import tables
from loadtest.result import Result

# A comment on GitHub holds 65,536 characters, and nobody reads so many.
MOST_ROWS = 40
MOST_LINES = 20
MOST_CHARACTERS = 500

_SIGNS: dict[Outcome, str] = {
    "PASS": "✅", "FAIL": "❌", "INCONCLUSIVE": "❔", "INVALID": "⛔", "ERROR": "❌", "SKIPPED": "➖",
}  # fmt: skip
_WORST_FIRST: tuple[Outcome, ...] = ("ERROR", "INVALID", "FAIL", "INCONCLUSIVE", "PASS", "SKIPPED")
_SPECIAL = {ord(sign): f"&#{ord(sign)};" for sign in r"&<>\|`*_[]~$"}
# Takes no room, and keeps apart what would become a link, a mention or a reference.
_NOTHING = "\u200b"


def markdown(result: Result, folder: str | None = None) -> str:
    """The whole comment, ending in a newline. ``folder`` is where the result lies, as it is to be shown."""
    levels = result.levels
    what, *how = conditions(result)
    columns, beside = level_columns(levels) if levels else [], tables(result)
    notes = footnotes([column for of in (columns, *beside) for column in of])
    said = [*errors(levels), *warnings(result), *(f"changed: {change}" for change in result.adaptations)]
    return document(
        [
            *head(result.conditions.scenario.name, cases(result), asked=any(level.slo for level in levels)),
            text(what),
            *map(text, resumed(result)),
            *(f"**Not comparable:** {text(why)}" for why in result.conditions.not_comparable),
            table(verdict.columns(result)),
            items(verdict.reasons(result)),
            table(columns),
            items(marked(levels)),
            text(finding(result)),
            fold(f"Failures and warnings ({len(said)})", [items(said)]),
            fold("Further tables", map(table, beside)),
            fold("Conditions", map(text, [*how, *notes, *conservation(levels), f"result: {folder}" if folder else ""])),
        ]
    )


def head(name: str, found: Sequence[Case], *, asked: bool = True) -> list[str]:
    """The heading with the worst of the cases of ``name``, and what is to be said of the whole.

    ``asked``: whether the cases are answers. If not, that nothing went wrong is no PASS.
    """
    worst = min((case.outcome for case in found), key=_WORST_FIRST.index, default=_WORST_FIRST[-1])
    said = f"{_SIGNS[worst]} {worst}" if asked or any(case.bad for case in found) else "No SLO was asked"
    whole = [f"**{text(case.name)}:** {text(case.reason)}" for case in found if not case.level]
    return [f"### {said} · {text(name)}", *whole]


def document(parts: Iterable[str]) -> str:
    """The paragraphs, tables and folds of ``parts`` that say something, ending in a newline."""
    return "\n\n".join(filter(None, parts)) + "\n"


def text(foreign: str) -> str:
    """Any text as itself within a paragraph, an item or a cell: on one line, all that Markdown or HTML would take for
    its own spelt out, and no address, user or issue in it that would become a link."""
    shown = plain(foreign)
    if len(shown) > MOST_CHARACTERS:
        shown = f"{shown[: MOST_CHARACTERS // 2]} … {shown[-MOST_CHARACTERS // 2 :]}"
    return re.sub(r"://|www\.|[@#]", lambda found: found[0][0] + _NOTHING + found[0][1:], shown).translate(_SPECIAL)


def table(columns: Sequence[Column]) -> str:
    """``columns`` as a table, figures to the right; of many rows the first, and how many are left."""
    if not columns:
        return ""
    heads = [text(column.head.replace("\n", " ")) for column in columns]
    rules = ["---:" if column.role == "figure" else "---" for column in columns]
    rows = [[*map(_cell, cells)] for cells in zip(*(column.cells for column in columns), strict=True)]
    lines = "\n".join(f"| {' | '.join(cells)} |" for cells in (heads, rules, *rows[:MOST_ROWS]))
    return lines + (f"\n\nand {len(rows) - MOST_ROWS} rows more" if len(rows) > MOST_ROWS else "")


def items(texts: Sequence[str]) -> str:
    """A list, of many texts the first, and how many are left."""
    more = [f"and {len(texts) - MOST_LINES} more"] if len(texts) > MOST_LINES else []
    return "\n".join(f"- {text(one)}" for one in (*texts[:MOST_LINES], *more))


def fold(summary: str, parts: Iterable[str]) -> str:
    """``parts`` out of the way under a ``summary`` of ours; nothing when they say nothing."""
    inside = document(parts).strip()
    return f"<details><summary>{summary}</summary>\n\n{inside}\n\n</details>" if inside else ""


def _cell(shown: str) -> str:
    return ("&emsp;" if shown.startswith(" ") else "") + text(shown)
