"""What went wrong, in lines that the log of a pipeline makes stand out. Pure."""

from collections.abc import Sequence

from loadtest.reports.cases import Case
from loadtest.reports.figures import plain

# GitHub shows ten of a kind for each step, and drops the others without a word.
MOST = 10


def github(cases: Sequence[Case]) -> list[str]:
    """Workflow commands of GitHub Actions, one for each bad case: annotations of the run and of its pull request."""
    shown, more = _shown(cases)
    lines = [
        f"::{'warning' if case.outcome == 'INCONCLUSIVE' else 'error'} "
        f"title={_property(f'{case.outcome} · {case.title}')}::{_data(case.reason)}"
        for case in shown
    ]
    return lines + ([f"::error title=loadtest::{_data(more)}"] if more else [])


def gitlab(cases: Sequence[Case]) -> list[str]:
    """Coloured lines: GitLab has no annotations of a log, but it shows a failed job by its last lines."""
    shown, more = _shown(cases)
    lines = [
        f"\x1b[{'33' if case.outcome == 'INCONCLUSIVE' else '31'};1m{case.outcome}\x1b[0m "
        f"{plain(f'{case.title}: {case.reason}')}"
        for case in shown
    ]
    return lines + ([more] if more else [])


def _shown(cases: Sequence[Case]) -> tuple[Sequence[Case], str]:
    bad = [case for case in cases if case.bad]
    if len(bad) <= MOST:
        return bad, ""
    return bad[: MOST - 1], f"and {len(bad) - MOST + 1} more: see the report"


def _data(text: str) -> str:
    """Escaped as the runner reads it. No line ends are left to escape."""
    return plain(text).replace("%", "%25")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
