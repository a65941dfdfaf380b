"""What a pipeline is told of a run, case by case: each SLO of each level, and what ended it early. Pure."""

from collections.abc import Sequence
from fractions import Fraction
from typing import Literal

import msgspec

from loadtest.errors import EXIT_INTERRUPTED
from loadtest.reports.figures import FEW, NOT_MEASURED, UNBOUNDED, failure, figure, on_few
from loadtest.result import LevelResult, Result, SloResult
from loadtest.slo import Slo, parse

Outcome = Literal["PASS", "FAIL", "INCONCLUSIVE", "INVALID", "ERROR", "SKIPPED"]

WHOLE = "the run"
_BY_EXIT_CODE: dict[int, Outcome] = {97: "INVALID", 98: "INCONCLUSIVE", 99: "FAIL"}


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was looked at. ``level`` of "" is the whole; ``seconds`` is how long the level was played."""

    name: str
    outcome: Outcome
    level: str = ""
    reason: str = ""
    figures: str = ""
    seconds: float = 0.0

    @property
    def title(self) -> str:
        """Its name among all cases of the run."""
        return f"{self.level}: {self.name}" if self.level else self.name

    @property
    def bad(self) -> bool:
        """Whether a pipeline must not go on as if all were well."""
        return self.outcome not in ("PASS", "SKIPPED")


def cases(result: Result) -> list[Case]:
    """The cases in the order of the levels, audits first; a run that was not all right has at least one that is bad.

    A level without an SLO is one case, in error when none of its requests was answered. What went wrong with the
    run and is said by no level stands first.
    """
    found = [Case(name=f"audit {each.kind}", outcome=each.outcome, reason=each.words) for each in result.audits]
    found += [case for level in result.levels for case in _of(level)]
    return [*_whole(result, found), *found]


def no_result(why: str) -> list[Case]:
    """The one case of a run that could not begin, or could not keep what it measured."""
    return [Case(name=WHOLE, outcome="ERROR", reason=why)]


def read(slo: SloResult) -> Slo | None:
    """Its expression; None where that is of a later version, which knew more."""
    try:
        return parse(slo.expression)
    except ValueError:
        return None


def measured(slo: SloResult) -> str:
    """The value with its unit; ``∞`` among the failures, ``~`` before a percentile that rests on few samples."""
    if slo.value is None:
        return UNBOUNDED if slo.n and slo.unit == "ms" else NOT_MEASURED
    own = read(slo)
    few = own is not None and own.quantile is not None and on_few(slo.n, Fraction(str(own.quantile)))
    return f"{FEW if few else ''}{quantity(slo.value, slo.unit)}"


def interval(slo: SloResult) -> str:
    """The confidence interval with its unit; an end of which nothing was measured is left open."""
    low, high = (None if end is None else quantity(end, slo.unit) for end in slo.ci or (None, None))
    if low and high:
        return f"{low} to {high}"
    return f"from {low}" if low else f"up to {high}" if high else NOT_MEASURED


def quantity(value: float, unit: str) -> str:
    """``value`` as people write it: 412 ms, 99.2 %, 2,010/s."""
    if unit == "share":
        # Near the whole it is the distance to it that is read: 99.95 % is half of 99.9 %.
        return f"{value * 100:.{5 if value > 0.9 else 3}g} %"
    return f"{figure(value)} ms" if unit == "ms" else f"{figure(value)}/s"


def _of(level: LevelResult) -> list[Case]:
    window = level.window
    seconds = window.warmup_s + (window.measured_s or 0.0) + (window.drain_s or 0.0)
    if level.slo:
        return [
            Case(
                name=slo.expression,
                outcome=slo.verdict,
                level=level.name,
                reason=slo.reason,
                figures=f"measured {measured(slo)}, 95 % confidence interval {interval(slo)}, n {slo.n:,}",
                seconds=seconds,
            )
            for slo in level.slo
        ]
    counts = level.counts
    if not counts.scheduled:
        why = "the level was not reached" if level.status == "not_reached" else "no request became due"
        return [Case(name="requests", outcome="SKIPPED", level=level.name, reason=why)]
    return [
        Case(
            name="requests",
            outcome="PASS" if counts.ok else "ERROR",
            level=level.name,
            reason="" if counts.ok else _all_failed(level),
            figures=f"{counts.ok:,} of {counts.scheduled:,} requests ok",
            seconds=seconds,
        )
    ]


def _all_failed(level: LevelResult) -> str:
    said = f"all {level.counts.scheduled:,} requests failed"
    if not level.errors:
        return said
    most = level.errors[0]
    return f"{said}, mostly with {failure(most.kind, most.status)}" + (f": {most.example}" if most.example else "")


def _whole(result: Result, found: Sequence[Case]) -> list[Case]:
    """The run as a whole, where the exit code is not what its levels say."""
    outcome = _BY_EXIT_CODE.get(result.exit_code, "ERROR")
    if result.complete and (not result.exit_code or any(case.outcome == outcome for case in found)):
        return []
    unanswered = [level for level in result.levels if level.counts.scheduled and not level.counts.ok]
    if result.exit_code == EXIT_INTERRUPTED:
        why = "it was interrupted; what it had measured until then is kept"
    elif not result.exit_code:
        why = "it did not finish: it was killed, or is still going on"
    elif not result.complete:
        why = result.warnings[-1] if result.warnings else ""  # what ended it
    elif outcome == "ERROR":
        why = "; ".join(f"{level.name}: {_all_failed(level)}" for level in unanswered)
    else:
        why = "; ".join(result.verdict.reasons)
    return [Case(name=WHOLE, outcome=outcome, reason=why or f"exit code {result.exit_code}")]
