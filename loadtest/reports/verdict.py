"""The verdict as a person reads it first: the answer, each SLO beside what was measured, and why. Pure."""

from collections import Counter

from loadtest.reports.cases import interval, measured
from loadtest.reports.column import Column
from loadtest.reports.figures import NOT_MEASURED, plain
from loadtest.result import LevelResult, Result, SloResult, VerdictName
from loadtest.verdict import WORST_FIRST, unpassed

STYLES: dict[VerdictName, str] = {
    "PASS": "bold green", "FAIL": "bold red", "INCONCLUSIVE": "bold yellow", "INVALID": "bold red",
}  # fmt: skip


def headline(result: Result) -> str:
    """The verdict of the whole run in a line, which must have one."""
    counts = Counter(slo.verdict for level in result.levels for slo in level.slo)
    counts.update(audit.outcome for audit in result.audits)
    several = ", ".join(f"{counts[name]} {name}" for name in WORST_FIRST if counts[name])
    outcome = result.verdict.outcome
    told = f" · of {counts.total()} judged: {several}" if counts.total() > 1 else ""
    if _by_policy(result):
        told += " · what is not decided counts as failed (--on-inconclusive fail)"
    return f"{outcome}{told}"


def columns(result: Result) -> list[Column]:
    """A row for each SLO of each level, the worst first; none without an SLO."""
    rows = _rows(result)
    if not rows:
        return []
    more = [_more(slo.more_requests) for _, slo in rows]
    levels = [Column("level", [plain(level.name) for level, _ in rows], "setup")] if len(result.levels) > 1 else []
    return [
        Column("verdict", [slo.verdict for _, slo in rows], "setup"),
        Column("SLO", [plain(slo.expression) for _, slo in rows], "setup"),
        *levels,
        Column("measured", [measured(slo) for _, slo in rows]),
        Column("95 % interval", [interval(slo) for _, slo in rows], drop=1),
        Column("n", [f"{slo.n:,}" for _, slo in rows], drop=0),
        *([Column("to decide\nrequests", more)] if {*more} != {NOT_MEASURED} else []),
    ]


def reasons(result: Result) -> list[str]:
    """Why SLOs did not pass, once for those with the same reason, the worst first; of audits see ``audits``."""
    alike: dict[str, list[str]] = {}
    for level, slo in _rows(result):
        if slo.verdict != "PASS":
            name = f"{level.name}: {slo.expression}" if len(result.levels) > 1 else slo.expression
            alike.setdefault(f"{slo.verdict}, {slo.reason}", []).append(name)
    said = [f"{plain(', '.join(names))}: {plain(why)}" for why, names in alike.items()]
    if any(slo.verdict == result.verdict.outcome for _, slo in _rows(result)) or _by_policy(result):
        return said
    of_audits = {why for _, why in unpassed(result.audits)}
    return [*(plain(why) for why in result.verdict.reasons if why not in of_audits), *said]


def audits(result: Result) -> list[str]:
    """A line for each audit, whatever it came to."""
    return [f"audit {each.kind}: {each.outcome}, {plain(each.words)}" for each in result.audits]


def _more(requests: int | None) -> str:
    """To two digits: it is no better known."""
    return NOT_MEASURED if requests is None else f"+{float(f'{requests:.2g}'):,.0f}"


def _by_policy(result: Result) -> bool:
    """Whether the run failed only because it was not decided."""
    found = {slo.verdict for level in result.levels for slo in level.slo} | {each.outcome for each in result.audits}
    return result.verdict.outcome == "FAIL" and "FAIL" not in found


def _rows(result: Result) -> list[tuple[LevelResult, SloResult]]:
    rows = [(level, slo) for level in result.levels for slo in level.slo]
    return sorted(rows, key=lambda row: WORST_FIRST.index(row[1].verdict))
