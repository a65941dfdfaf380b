"""Two sides of runs compared, figure by figure: how far each moved, how sure that is, and whether it is a regression.

Pure. ``likeness`` tells beforehand whether the two may be compared at all, ``shift`` makes the decisions.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

import numpy as np
from msgspec.structs import replace

from loadtest.columns import Columns, Requests
from loadtest.comparison import DEFAULT, Change, Compared, Comparison, Measure, measure
from loadtest.errors import UsageError
from loadtest.evidence import gate
from loadtest.judgement import share_interval
from loadtest.likeness import Run, likeness, setting, settings
from loadtest.records import Record
from loadtest.result import LevelResult, Metric, VerdictName
from loadtest.rows import only, that
from loadtest.shift import (
    ALPHA,
    FEWEST_RUNS,
    Claim,
    Estimate,
    Shift,
    decide,
    of_difference,
    of_mean,
    of_quantile,
    of_ratio,
    of_runs,
)
from loadtest.stats import PERCENTILES, significant
from loadtest.verdict import EXIT_CODES, WORST_FIRST
from loadtest.window import Window, arrived, due_times, window_of_figures

# That a side fails more is a regression once it is certain; that it does not is believed up to this share of requests.
_FAILING = 0.01


class _Playing(NamedTuple):
    """A playing of a level: in which run, its figures and, where its journal is there and whole, its requests."""

    run: str
    level: LevelResult
    window: Window | None


class _Pair(NamedTuple):
    """A level that both sides played."""

    name: str
    base: list[_Playing]
    candidate: list[_Playing]

    @property
    def levels(self) -> list[LevelResult]:
        """Of all playings."""
        return [playing.level for playing in (*self.base, *self.candidate)]


class _Sketch(NamedTuple):
    """A change before the verdicts, which are found for all of them at once: with its claim, if it makes one."""

    change: Change
    claim: Claim | None = None


def compare(
    base: Sequence[Run], candidate: Sequence[Run], tolerance: float, metrics: Sequence[Measure] = (), *,
    allow_unlike: bool = False,
) -> Comparison:  # fmt: skip
    """Compare two sides of one or more runs each.

    Args:
        base: what the others are held against.
        candidate: what may be worse.
        tolerance: the share of a figure by which it may, 0 ≤ tolerance < 1; of failures none is tolerated.
        metrics: the figures to compare; empty: the usual ones, as far as they were measured.
        allow_unlike: compare also what was measured under other conditions.

    Raises:
        UsageError: they are unlike, or have nothing in common that was measured.
    """
    same = likeness(base, candidate)
    if same.unlike and not allow_unlike:
        listed = "".join(f"\n  {what}" for what in same.unlike)
        raise UsageError(
            f"not comparable:{listed}\nMeasure both sides alike, or compare them all the same with --allow-unlike."
        )
    notes = [*same.notes, *_incomplete((*base, *candidate))]
    names, pairs = _names(base, candidate), []
    for ours, theirs in names:
        name = ours if ours == theirs else f"{ours} → {theirs}"
        pair = _Pair(name, _playings(base, ours, notes), _playings(candidate, theirs, notes))
        if pair.base and pair.candidate:
            pairs.append(pair)
        else:
            notes.append(f"{name}: not compared, because one side has no request in its window")
    if not pairs:
        raise UsageError("nothing to compare: no level has requests in its window on both sides")
    levels = _compared(pairs, metrics, tolerance)
    verdicts: list[VerdictName] = [each.verdict for level in levels for each in level.changes if each.verdict]
    if len(pairs) < len(names) or not all(run.result.complete for run in (*base, *candidate)):
        verdicts.append("INCONCLUSIVE")  # docs/metrics.md: what was cut short is never a PASS
    outcome: VerdictName = next((name for name in WORST_FIRST if name in verdicts), "INCONCLUSIVE")
    return Comparison(
        base=[run.name for run in base],
        candidate=[run.name for run in candidate],
        tolerance=tolerance,
        unlike=same.unlike,
        notes=list(dict.fromkeys(notes)),
        levels=levels,
        outcome=outcome,
        exit_code=EXIT_CODES[outcome],
    )


# What is compared ---------------------------------------------------------------------------------------------


def _names(base: Sequence[Run], candidate: Sequence[Run]) -> list[tuple[str, str]]:
    """The levels that are compared: those of one name, and if each side has but one, those two."""
    ours, theirs = list(settings(base)), list(settings(candidate))
    if len(ours) == len(theirs) == 1:
        return [(ours[0], theirs[0])]
    return [(name, name) for name in ours if name in theirs]


def _incomplete(runs: Iterable[Run]) -> Iterable[str]:
    for run in runs:
        if not run.result.complete:
            missing = [level.name for level in run.result.levels if level.status == "not_reached"]
            without = f", without {', '.join(missing)}" if missing else ""
            yield f"{run.name}: the run did not finish; what it had measured until then is compared{without}"
        if not run.records and any(level.counts.in_window for level in run.result.levels):
            yield f"{run.name} has no records: how sure its figures are only {FEWEST_RUNS} runs a side can tell"


def _playings(runs: Iterable[Run], name: str, notes: list[str]) -> list[_Playing]:
    """All playings of a level that have requests in their window; what is odd of them is added to ``notes``."""
    found = []
    for run in runs:
        for place, level in enumerate(run.result.levels):
            if setting(level) == name and level.counts.in_window:
                window = _window(level, run.records.get(place, ()))
                if window is None and run.records:
                    notes.append(
                        f"{run.name}: {level.name}: its records are not those of its figures: they are left out"
                    )
                found.append(_Playing(run.name, level, window))
    return found


def _window(level: LevelResult, records: Sequence[Record]) -> Window | None:
    """The requests of the level's window; None where these are not the records that its figures are of."""
    records = only(records, ~that(records, "probe", bool))
    if len(records) != level.counts.scheduled:
        return None
    columns = Columns.of(records)
    bounds = window_of_figures(level, columns)
    if bounds is None:
        return None
    window = Window(Requests(records, columns), columns.belonging_to(bounds), bounds)
    return window if window.due == level.counts.in_window else None


# Figures ------------------------------------------------------------------------------------------------------


def _compared(pairs: Sequence[_Pair], metrics: Sequence[Measure], tolerance: float) -> list[Compared]:
    """All figures of all levels, decided together: the more of them there are, the sooner one is off by chance."""
    sketches = [
        [_sketch(one, pair, tolerance) for one in metrics or map(measure, DEFAULT) if metrics or _known(one, pair)]
        for pair in pairs
    ]
    claims = [sketch.claim for of in sketches for sketch in of if sketch.claim]
    decisions = iter(decide(claims))
    found = []
    for pair, of in zip(pairs, sketches, strict=True):
        changes = [
            _judged(sketch.change, sketch.claim, next(decisions), len(claims)) if sketch.claim else sketch.change
            for sketch in of
        ]
        changes = _as_sound_as_the_runs([*_held(pair), *changes], [*pair.base, *pair.candidate])
        found.append(
            Compared(name=pair.name, base_runs=len(pair.base), candidate_runs=len(pair.candidate), changes=changes)
        )
    return found


def _known(one: Measure, pair: _Pair) -> bool:
    return any(_figure(level, one) is not None for level in pair.levels)


def _sketch(one: Measure, pair: _Pair, tolerance: float) -> _Sketch:
    ours, theirs = ([_figure(playing.level, one) for playing in side] for side in (pair.base, pair.candidate))
    change = Change(metric=one.name, unit=one.unit, base=_middle(ours), candidate=_middle(theirs))
    if without := [side for side, of in (("base", ours), ("candidate", theirs)) if None in of]:
        return _Sketch(_undecided(change, f"not measured in every run of the {' and the '.join(without)}"))
    if why := _told_only(one, pair):
        return _Sketch(_moved(change, why))
    between = None if one.unit == "share" else _between_runs(change, ours, theirs, tolerance)
    if between and min(len(ours), len(theirs)) >= FEWEST_RUNS:
        return between[0]
    before, after = (_estimate(one, side) for side in (pair.base, pair.candidate))
    if before is None or after is None:
        why = f"how sure it is cannot be told without records; {FEWEST_RUNS} runs a side would tell"
        return _Sketch(_undecided(_moved(change, ""), why))
    change = replace(change, base=_number(before.value), candidate=_number(after.value))
    if one.unit == "share":
        return _claim(change, of_difference(before, after), "requests", tolerance)
    if math.isinf(before.value) or math.isinf(after.value):
        return _Sketch(_among_failures(change, before, after))
    if not before.value or not after.value:
        return _Sketch(_undecided(change, "there is no ratio to 0"))
    shift = of_ratio(before, after)
    if between and between[1].width > shift.width:
        return between[0]  # two or three runs differ more than the requests in them explain
    return _claim(change, shift, "requests", tolerance)


def _between_runs(
    change: Change, ours: Sequence[float | None], theirs: Sequence[float | None], tolerance: float
) -> tuple[_Sketch, Shift] | None:
    """By how runs differ; None where a side has a single one, or a figure that has no logarithm."""
    known = [[value for value in side if value is not None and 0 < value < math.inf] for side in (ours, theirs)]
    if len(known[0]) < len(ours) or len(known[1]) < len(theirs) or min(map(len, known)) < 2:
        return None
    shift = of_runs(*known)
    base, candidate = (significant(math.exp(float(np.log(side).mean()))) for side in known)
    return _claim(replace(change, base=base, candidate=candidate), shift, "runs", tolerance), shift


def _figure(level: LevelResult, one: Measure) -> float | None:
    """As the result has it: infinite where it falls among the failures, None where it was not measured."""
    found: float | None
    if one.unit == "share":
        due = level.latency.e2e_ms.due
        found = due.failed / due.n if due and due.n else None
    elif one.percentile is None:
        found = level.rates.completed_per_s if one.name == "requests_per_s" else getattr(level.throughput, one.name)
    else:
        metric: Metric = getattr(level.latency, f"{one.time}_ms")
        among_failures = metric.due and metric.ok.n and one.percentile in metric.due.unbounded
        found = math.inf if among_failures else getattr(metric.met, one.percentile)
    return found


def _estimate(one: Measure, side: Sequence[_Playing]) -> Estimate | None:
    """The figure over all requests of a side, with its interval; None without all of their records."""
    windows = [playing.window for playing in side if playing.window]
    if len(windows) < len(side):
        return None
    if one.unit == "share":
        failed = np.concatenate([window.in_order(~window.requests.columns.ok, window.inside) for window in windows])
        evidence = gate(failed, None, 1 - _FAILING)
        return Estimate(evidence.share_late, *share_interval(evidence))
    if one.time and one.percentile:
        samples = np.concatenate([due_times(window, one.time)[0] for window in windows])
        return of_quantile(samples, PERCENTILES[one.percentile])
    amounts = [amount for window in windows if (amount := arrived(window, one.name))]
    if len(amounts) < len(windows):
        return None
    lengths = [window.bounds.length_s for window in windows]
    value = float(np.average([mean for mean, _ in amounts], weights=np.array(lengths, dtype=np.float64)))
    return of_mean(np.concatenate([series for _, series in amounts]), value)


def _claim(change: Change, shift: Shift, by: Literal["runs", "requests"], tolerance: float) -> _Sketch:
    """The change with its interval, and what is to be decided of it."""
    size = _number if change.unit == "share" else _ratio
    change = replace(change, by=by, change=size(shift.by), ci95=tuple(map(size, shift.ends())))
    if change.unit == "share":
        return _Sketch(change, Claim(shift, _FAILING, 0.0))
    if change.unit == "ms":
        return _Sketch(change, Claim(shift, math.log1p(tolerance), math.log1p(tolerance)))
    return _Sketch(change, Claim(shift.flipped, -math.log1p(-tolerance), -math.log1p(-tolerance)))


def _told_only(one: Measure, pair: _Pair) -> str:
    """Why a figure is told and not judged; "" where it is."""
    overloaded = any(level.status == "overloaded" for level in pair.levels)
    if one.unit == "per_s" and not overloaded and all(level.load.kind != "closed" for level in pair.levels):
        return "set by the load, whatever the target does"
    if one.unit == "ms" and overloaded:
        return "grows with the length of a level that is overloaded"
    return ""


def _held(pair: _Pair) -> list[Change]:
    """Whether both sides kept up with the load; nothing where they always did."""
    before, after = (sum(each.level.status == "overloaded" for each in side) / len(side) for side in pair[1:])
    if not before and not after:
        return []
    verdict: VerdictName
    if after <= before:
        verdict, why = "PASS", "the candidate keeps up with the load no less than the base does"
    elif not before and after > 0.5:
        verdict, why = "FAIL", "the candidate does not keep up with a load that the base holds: its queue kept growing"
    else:
        verdict, why = "INCONCLUSIVE", "the candidate kept up with the load in fewer of its runs"
    return [
        Change(
            metric="overloaded", unit="share", base=significant(before), candidate=significant(after),
            change=significant(after - before), verdict=verdict, reason=why,
        )
    ]  # fmt: skip


# Verdicts -----------------------------------------------------------------------------------------------------


def _judged(change: Change, claim: Claim, verdict: VerdictName, claims: int) -> Change:
    """The change with the verdict on its claim, in words."""
    least, most = claim.worse.ends()
    tolerated = "more than tolerated"
    if verdict == "FAIL":
        reason = "worse for certain"
        if change.unit != "share":
            reason += f", by {tolerated}" if least > claim.tolerated else f", perhaps by {tolerated}"
    elif verdict == "PASS":
        reason = "better for certain" if most < 0 else f"not worse by {tolerated}, for certain"
    else:
        reason = f"of {claims} figures one may look so by chance" if least > 0 else "too little was measured to tell"
    found = claim.worse.detectable(ALPHA / claims)
    size = found if change.unit == "share" else _exp(found) if change.unit == "ms" else _exp(-found)
    return replace(change, verdict=verdict, reason=reason, detectable=_number(size))


def _among_failures(change: Change, before: Estimate, after: Estimate) -> Change:
    """A percentile that falls among the failures has no ratio, and may be worse for certain all the same."""
    if after.low > before.high:
        return replace(change, by="requests", verdict="FAIL", reason="it falls among the candidate's failures")
    if before.low > after.high:
        return replace(change, by="requests", verdict="PASS", reason="it fell among the base's failures")
    return _undecided(change, "it falls among failures; see error_rate")


def _as_sound_as_the_runs(changes: Sequence[Change], playings: Sequence[_Playing]) -> list[Change]:
    """The changes, INVALID where the client was the limit in a playing, and none a PASS where one ended early."""
    if not all(each.level.client.valid for each in playings):
        why = "; ".join(dict.fromkeys(f"{each.run}: {why}" for each in playings for why in each.level.client.reasons))
        return [replace(each, verdict="INVALID", reason=why) if each.verdict else each for each in changes]
    if all(each.level.status in ("ok", "overloaded") for each in playings):
        return [*changes]
    early = "a playing ended early; until then"
    return [_undecided(each, f"{early} {each.reason}") if each.verdict == "PASS" else each for each in changes]


def _undecided(change: Change, why: str) -> Change:
    return replace(change, verdict="INCONCLUSIVE", reason=why)


def _moved(change: Change, why: str) -> Change:
    """The change of two figures of which nothing else is known."""
    by = None
    if change.base is not None and change.candidate is not None:
        if change.unit == "share":
            by = change.candidate - change.base
        elif change.base:
            by = change.candidate / change.base - 1
    return replace(change, change=None if by is None else significant(by), reason=why)


def _middle(values: Sequence[float | None]) -> float | None:
    """The median of the figures of several runs; None if it is not a number."""
    known = [value for value in values if value is not None]
    return _number(float(np.median(known))) if len(known) == len(values) else None


def _ratio(log: float) -> float | None:
    return None if log == -math.inf else _number(_exp(log))  # or an unknown end would be told as −100 %


def _exp(log: float) -> float:
    """As a change: 0.05 is 5 % more."""
    return math.expm1(log) if log < 700 else math.inf


def _number(value: float) -> float | None:
    return significant(value) if math.isfinite(value) else None
