"""A calibration as a person reads it at a terminal."""

from collections.abc import Callable

from loadtest.calibration import Calibration, Row
from loadtest.reports.column import Column
from loadtest.reports.console import MARK, Page
from loadtest.reports.figures import NOT_MEASURED, figure


def table(calibration: Calibration, width: int, color: bool) -> str:
    """``calibration`` as text in lines of at most ``width`` columns, ending in a newline."""
    page = Page(width, color)
    software = ", ".join(f"{name} {number}" for name, number in calibration.software.items())
    page.paragraphs(
        [
            f"One worker against a server of known latencies (TTFT {calibration.ttft_ms:g} ms, ITL "
            f"{calibration.itl_ms:g} ms) on this machine: {calibration.machine}. {software}."
        ]
    )
    streams = sum(row.kind == "streams" for row in calibration.rows)
    page.table(_columns(calibration.rows), [streams - 1])
    page.paragraphs(
        [
            "added: what the worker saw less the server's own account. burst, whole: as fast as they are answered, "
            "until the last is read and recorded."
        ],
        style="dim",
    )
    page.paragraphs([calibration.finding()], style="bold")
    page.paragraphs(
        [f"{MARK} {_name(row)}: {reason}" for row in calibration.rows for reason in row.reasons],
        style="yellow",
        hanging=2,
    )
    page.paragraphs([f"note: {note}" for note in calibration.notes], style="yellow", hanging=2)
    return page.text()


def _columns(rows: list[Row]) -> list[Column]:
    def cells(value: Callable[[Row], float | None]) -> list[str]:
        return [figure(value(row)) for row in rows]

    def percent(value: float | None) -> str:
        return NOT_MEASURED if value is None else f"{value:.0%}"

    return [
        Column("", [MARK if row.reasons or (row.kind == "streams" and row.excess > 1) else "" for row in rows], "mark"),
        Column("load", [_name(row) for row in rows], "setup"),
        Column("\nevents/s", cells(lambda row: row.events_per_s)),
        Column("\nreq/s", cells(lambda row: row.requests_per_s)),
        Column("added TTFT\np50 ms", cells(lambda row: row.added_ttft_p50_ms)),
        Column("added TTFT\np99 ms", cells(lambda row: row.added_ttft_p99_ms)),
        Column("added ITL\np99 ms", cells(lambda row: row.added_itl_p99_ms)),
        Column("own lag\np99 ms", cells(lambda row: row.own_lag_p99_ms)),
        Column("loop lag\np99 ms", cells(lambda row: row.loop_lag_p99_ms)),
        Column("\nCPU", [percent(row.cpu_share) for row in rows]),
        Column("server\nCPU", [percent(row.server_cpu_share) for row in rows]),
    ]


def _name(row: Row) -> str:
    if row.kind == "streams":
        return f"{row.concurrency:,} stream{'s' if row.concurrency > 1 else ''}"
    return f"{row.kind}, {row.concurrency} at once"
