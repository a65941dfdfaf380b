"""Whether a level kept its SLOs. Pure.

A limit on the time of requests is one on a share of them: p99(ttft) < 300 ms says that at most 1 % of those that became
due are later or fail. ``evidence`` tells whether so few, or so many, prove it; this room makes a verdict of it.
"""

import math
import operator
import statistics
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import msgspec
import numpy as np

from loadtest import measures
from loadtest.columns import Columns, Floats, Mask, Requests, measured
from loadtest.duration import span
from loadtest.evidence import ALPHA, THRESHOLDS, Evidence, Series, ends, gate, intervals, series, weighed
from loadtest.gaps import Gaps
from loadtest.level import Level, LevelRun
from loadtest.records import Record
from loadtest.result import Goodput, LevelResult, Metric, SloResult, VerdictName
from loadtest.rows import only, that
from loadtest.selection import Selection
from loadtest.slo import Limit, Slo, limits_of
from loadtest.stats import DECIMALS, PERCENTILES, rank, significant
from loadtest.summary import window_of
from loadtest.tails import at_least, at_most
from loadtest.window import Window, arrived, due_times

_HOLDS: dict[str, Callable[[Any, float], Any]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
# Below this, requests say as good as what independent ones would, and there is nothing to explain.
_CLUSTERED = 1.5
_CONFIDENCE = 0.95
# Nobody waits for so many more requests.
_MOST_MORE = 10**9


class Played(NamedTuple):
    """One playing of a level: figures, all its records in any order, and how it went (None: only these are left)."""

    level: Level
    figures: LevelResult
    records: Sequence[Record]
    run: LevelRun | None


class _Judgement(NamedTuple):
    """A verdict by the figures alone."""

    value: float | None
    ci: tuple[float, float] | None
    n: int
    verdict: VerdictName
    reason: str
    more_requests: int | None = None


# A level ------------------------------------------------------------------------------------------------------


def judge(played: Sequence[Played], slos: Sequence[Slo], looks: int = 1, alpha: float = ALPHA) -> LevelResult:
    """The figures with confidence intervals, goodput, and a verdict for each of ``slos`` that is of this level.

    They are those of the first of ``played``; further ones extend it, and the evidence of all is taken together.
    ``looks``: at how many points such a verdict may be reached, which share ``alpha`` among them, the chance of
    each error.
    """
    figures = played[0].figures
    own = [slo for slo in slos if slo.scope.is_of(figures.name)]
    windows = [_window(each) for each in played]
    found = [_verdict(slo, limits_of(slos), played, windows, alpha / looks) for slo in own]
    latency = figures.latency
    for name in ("ttft", "ttfat", "e2e", "tpot"):
        metric = _with_interval(getattr(latency, f"{name}_ms"), windows[0], name)
        latency = msgspec.structs.replace(latency, **{f"{name}_ms": metric})
    goodput = _goodput(windows[0], limits_of(slos) or tuple(limit for slo in own for limit in slo.limits))
    rates = msgspec.structs.replace(figures.rates, good_per_s=goodput.per_s) if goodput else figures.rates
    return msgspec.structs.replace(figures, slo=found, latency=latency, goodput=goodput, rates=rates)


def _window(played: Played) -> Window:
    records = only(played.records, that(played.records, "probe", operator.not_))
    columns = Columns.of(records)
    stretch = window_of(played.level, columns, played.run)
    inside = columns.belonging_to(stretch)
    if played.run is not None and played.run.end in ("interrupted", "aborted"):
        # What was then cut off, or not sent any more, the target has not failed.
        inside &= ~that(records, "outcome", {"cancelled", "never_sent"}.__contains__)
    return Window(Requests(records, columns), inside, stretch)


def _verdict(
    slo: Slo, limits: Sequence[Limit], played: Sequence[Played], windows: Sequence[Window], alpha: float
) -> SloResult:
    chosen = [window.only(slo.scope, played[0].level) for window in windows]
    unsound = [reason for each in played for reason in each.figures.client.reasons]
    states = {each.figures.status for each in played}
    found = _judgement(slo, slo.limits or limits, chosen, alpha)
    verdict, reason = found.verdict, found.reason
    if unsound:
        verdict, reason = "INVALID", "; ".join(dict.fromkeys(unsound))
    elif "overloaded" in states and (slo.unit == "ms" or slo.metric == "goodput") and verdict != "FAIL":
        verdict = "FAIL"
        reason = f"the queue kept growing: at this load no limit on a time is kept for long. So far {reason}"
    elif states - {"ok", "overloaded"} and verdict == "PASS":
        verdict, reason = "INCONCLUSIVE", f"the level ended early. Until then {reason}"
    return SloResult(
        expression=slo.text,
        unit=slo.unit,
        value=None if found.value is None or not math.isfinite(found.value) else significant(found.value),
        ci=None if found.ci is None else (_end(found.ci[0]), _end(found.ci[1])),
        n=found.n,
        verdict=verdict,
        reason=reason,
        more_requests=found.more_requests if verdict == "INCONCLUSIVE" else None,
    )


def _end(value: float) -> float | None:
    return significant(value) if math.isfinite(value) else None


# The judgement ------------------------------------------------------------------------------------------------


def _judgement(slo: Slo, limits: Sequence[Limit], windows: Sequence[Window], alpha: float) -> _Judgement:
    due = sum(window.due for window in windows)
    if not due:
        of = f" of {slo.scope}" if str(slo.scope) else ""
        return _nothing(f"no request{of} was due in the window")
    if slo.unit == "per_s":
        return _rate(slo, windows, alpha)
    if slo.metric == "itl" and slo.quantile is not None:
        return _gaps(slo, windows, slo.quantile, alpha)
    if slo.unit == "ms":
        return _mean(slo, windows, alpha) if slo.quantile is None else _percentile(slo, windows, slo.quantile, alpha)
    if slo.metric == "error_rate":
        late = np.concatenate([window.in_order(~window.requests.columns.ok, window.inside) for window in windows])
        evidence = gate(late, None, 1 - slo.limit, alpha)
        ci = share_interval(evidence)
        return _by(evidence, 1 - slo.limit, evidence.share_late, ci, "due requests failed", windows, alpha)
    samples = np.concatenate([_worst(window, limits) for window in windows])
    evidence = gate(samples > 1, samples, slo.limit, alpha, 1.0)
    low, high = share_interval(evidence)
    what = "due requests failed or missed a limit"
    if unknown := sum(_unmeasured(window, limits) for window in windows):
        what += f" ({unknown:,} of them good answers without a time that has a limit)"
    return _by(evidence, slo.limit, 1 - evidence.share_late, (1 - high, 1 - low), what, windows, alpha)


def _nothing(why: str) -> _Judgement:
    return _Judgement(None, None, 0, "INCONCLUSIVE", f"nothing to judge by: {why}")


def _late(samples: Floats, op: str, limit: float) -> Mask:
    late: Mask = ~_HOLDS[op](samples, limit)
    return late


def _percentile(slo: Slo, windows: Sequence[Window], p: float, alpha: float) -> _Judgement:
    both = [due_times(window, slo.metric) for window in windows]
    known, whole = (np.concatenate(each) for each in zip(*both, strict=True))
    if not len(known):
        return _nothing(f"no answer had a {slo.metric}")
    evidence = gate(_late(known, slo.op, slo.limit), known, p, alpha, slo.limit)
    value = float(np.partition(known, place := _rank(p, len(known)) - 1)[place])
    ci = intervals(known, [p], _CONFIDENCE)[0]
    found = _by(evidence, p, value, ci, "due requests were late or failed", windows, alpha)
    unknown = len(whole) - len(known)
    if (
        found.verdict != "PASS"
        or not unknown
        or gate(_late(whole, slo.op, slo.limit), whole, p, alpha, slo.limit).p_pass <= alpha
    ):
        return found
    why = f"{found.reason}; but {unknown:,} good answers had no {slo.metric}, and with them late it would not hold"
    return found._replace(verdict="INCONCLUSIVE", reason=why)


def _gaps(slo: Slo, windows: Sequence[Window], p: float, alpha: float) -> _Judgement:
    """Gaps cluster in a request that is slow, and where the server stalls: the worse of both counts."""
    gaps = Gaps(windows)
    chosen = Selection(gaps.unordered)
    n = chosen.n
    if not n:
        return _nothing("no answer had two events with tokens that did not arrive together")
    *thresholds, value = (round(at, DECIMALS) for at in chosen.at([_rank(each, n) for each in (*THRESHOLDS, p)]))
    late, effect, clustered = 0, 1.0, 1.0
    for in_order in (gaps.by_request(), gaps.by_time()):
        of_late, *body, tail = (Series(n) for _ in range(len(thresholds) + 2))
        for some in in_order:
            of_late.add(_late(some, slo.op, slo.limit))
            for each, threshold in zip((*body, tail), (*thresholds, value), strict=True):
                each.add(some > threshold)
        middle = statistics.median(each.design_effect for each in body)
        late = round(of_late.mean * n)
        effect, clustered = max(effect, of_late.design_effect, middle), max(clustered, middle, tail.design_effect)
    evidence = weighed(late, n, effect, p, alpha)
    low, high = ends(n, p, clustered, _CONFIDENCE)
    at = dict(zip(within := [place for place in (low, high) if 0 < place <= n], chosen.at(within), strict=True))
    ci = round(at.get(low, -math.inf), DECIMALS), round(at.get(high, math.inf), DECIMALS)
    each_due = n / sum(window.due for window in windows)
    return _by(evidence, p, value, ci, "gaps between tokens were longer", windows, alpha, each_due)


def _rank(p: float, n: int) -> int:
    return rank(Fraction(str(p)), n)


def _worst(window: Window, limits: Sequence[Limit]) -> Floats:
    """Of each of the window's requests in order, how many times its limits it took at worst: above 1 it missed one.

    A limit on a time that it cannot have had, the TPOT of a single token, does not apply to it; one on what was not
    measured is missed.
    """
    columns = window.requests.columns
    worst = np.zeros(len(columns.ok))
    for limit, values, missing in _limited(columns, limits):
        taken = np.where(np.isnan(values), np.where(missing, np.inf, 0.0), values / limit.limit)
        if limit.op == "<":
            taken = np.where(taken == 1, np.nextafter(1.0, 2.0), taken)
        worst = np.maximum(worst, taken)
    return window.in_order(np.where(columns.ok, worst, np.inf), window.inside)


def _unmeasured(window: Window, limits: Sequence[Limit]) -> int:
    """How many good answers miss a limit because they were not measured."""
    columns = window.requests.columns
    missing = np.any([absent for _, _, absent in _limited(columns, limits)], axis=0)
    return int(np.count_nonzero(window.inside & columns.ok & missing))


def _limited(columns: Columns, limits: Sequence[Limit]) -> Iterator[tuple[Limit, Floats, Mask]]:
    """Each limit with the times that it is on, and where they were not measured though the request had them."""
    for limit in limits:
        values = measures.time_of(columns, limit.metric)
        missing = np.isnan(np.round(values, DECIMALS, out=values))
        yield limit, values, missing & ~(columns.output_tokens < 2) if limit.metric == "tpot" else missing


def _mean(slo: Slo, windows: Sequence[Window], alpha: float) -> _Judgement:
    if slo.metric == "itl":
        gaps = Gaps(windows)
        pooled = Series(Selection(gaps.unordered).n)
        for some in gaps.by_request():
            pooled.add(some)
        whole = n = pooled.n
        failed = 0
    else:
        both = [due_times(window, slo.metric) for window in windows]
        samples = np.concatenate([known for known, _ in both])
        n, whole = len(samples), sum(len(every) for _, every in both)
        failed = int(np.count_nonzero(np.isinf(samples)))
        pooled = series(samples[:0] if failed else samples)
    if not n:
        return _nothing(f"no answer had a {slo.metric}")
    if failed:
        why = (
            f"{failed:,} of {n:,} requests failed, and no mean over them has an end; a percentile has, with error_rate"
        )
        return _Judgement(None, None, n, "FAIL", why)
    found = _against(slo, pooled.mean, pooled, n, windows, alpha)
    if found.verdict != "PASS" or whole == n:
        return found
    why = f"{found.reason}; but {whole - n:,} good answers had no {slo.metric}, which may have been any"
    return found._replace(verdict="INCONCLUSIVE", reason=why)


def _rate(slo: Slo, windows: Sequence[Window], alpha: float) -> _Judgement:
    amounts = [arrived(window, slo.metric) for window in windows]
    if not amounts or any(each is None for each in amounts):
        return _nothing(f"no answer had what {slo.metric} is counted in, or there was no window")
    parts = [each for each in amounts if each is not None]
    rates = series(np.concatenate([each for _, each in parts]))
    seconds = [window.bounds.length_s or 0.0 for window in windows]
    value = sum(mean * length for (mean, _), length in zip(parts, seconds, strict=True)) / sum(seconds)
    due = sum(window.due for window in windows)
    return _against(slo, value, rates, due, windows, alpha)


# Verdicts -----------------------------------------------------------------------------------------------------


def _by(
    evidence: Evidence, p: float, value: float, ci: tuple[float, float], what: str, windows: Sequence[Window],
    alpha: float, each: float = 1.0,
) -> _Judgement:  # fmt: skip
    """The verdict on a share of at most 1 − ``p``; ``each`` is how many samples one request makes."""
    n, allowed = evidence.n, math.floor((1 - p) * evidence.n + 1e-9)
    reason = f"{evidence.late:,} of {n:,} {what}, {allowed:,} {'is' if allowed == 1 else 'are'} allowed"
    if evidence.p_pass <= alpha:
        return _Judgement(value, ci, n, "PASS", f"{reason}; none came near" if evidence.far else reason)
    if evidence.p_fail <= alpha:
        return _Judgement(value, ci, n, "FAIL", f"{reason}; that is more than chance explains")
    if evidence.design_effect >= _CLUSTERED:
        reason += (
            f"; they come in clusters, so all of them say as much as {_about(evidence.effective_n)} independent ones"
        )
    more = None if evidence.more_needed is None else math.ceil(evidence.more_needed / each)
    return _undecided(value, ci, n, f"{reason}: not enough to be sure", more, windows)


def _against(slo: Slo, value: float, pooled: Series, n: int, windows: Sequence[Window], alpha: float) -> _Judgement:
    """The verdict on a mean or a rate: by the confidence interval of the mean of ``pooled``."""
    confidence = 1 - 2 * alpha
    low, high = pooled.interval(confidence)
    if not math.isfinite(high - low):
        return _undecided(value, None, n, "too little was measured to tell how sure it is", None, windows)
    ci = pooled.interval(_CONFIDENCE)
    kept = _HOLDS[slo.op](low, slo.limit)
    if kept == _HOLDS[slo.op](high, slo.limit):
        said = f"all of its {confidence * 100:.3g} % confidence interval is {'within' if kept else 'beyond'} the limit"
        return _Judgement(value, ci, n, "PASS" if kept else "FAIL", said)
    more = None
    if value != slo.limit:  # the interval shrinks with the root of what is measured
        more = max(1, math.ceil(n * (((high - low) / 2 / abs(value - slo.limit)) ** 2 - 1)))
    return _undecided(value, ci, n, "its confidence interval is on both sides of the limit", more, windows)


def _undecided(
    value: float, ci: tuple[float, float] | None, n: int, why: str, more: int | None, windows: Sequence[Window]
) -> _Judgement:
    due, seconds = sum(window.due for window in windows), sum(window.bounds.length_s or 0.0 for window in windows)
    if more is None or more > _MOST_MORE:
        mend = "it is so near its limit that no number of requests within reason would decide"
        return _Judgement(value, ci, n, "INCONCLUSIVE", f"{why}; {mend}")
    time = f" ({span(more * seconds / due)} at this rate)" if seconds else ""
    mend = f"about {_about(more)} more requests{time} would decide, if they are as these"
    return _Judgement(value, ci, n, "INCONCLUSIVE", f"{why}; {mend}", more)


def _about(number: float) -> str:
    """To two digits: it is no better known."""
    return f"{float(f'{number:.2g}'):,.0f}"


def share_interval(evidence: Evidence) -> tuple[float, float]:
    """A confidence interval of the share that is late: Clopper and Pearson's, of the effective counts."""
    outside = (1 - _CONFIDENCE) / 2
    n, late = evidence.effective_n, evidence.late / evidence.design_effect
    low = _first_share(lambda share: at_least(late, n, share) > outside) if evidence.late else 0.0
    high = _first_share(lambda share: at_most(late, n, share) <= outside) if evidence.late < evidence.n else 1.0
    return low, high


def _first_share(holds: Callable[[float], bool]) -> float:
    """The least share for which ``holds``, which does for all above it."""
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


# Beside the verdicts ------------------------------------------------------------------------------------------


def _with_interval(metric: Metric, window: Window, name: str) -> Metric:
    columns = window.requests.columns
    samples = measured(window.in_order(measures.time_of(columns, name), window.inside & columns.ok))
    found = intervals(samples, [float(p) for p in PERCENTILES.values()], _CONFIDENCE)
    ends = {name: ends for name, ends in zip(PERCENTILES, found, strict=True) if all(map(math.isfinite, ends))}
    return msgspec.structs.replace(metric, ci95=ends or None)


def _goodput(window: Window, limits: Sequence[Limit]) -> Goodput | None:
    if not limits or not window.due:
        return None
    good = int(np.count_nonzero(_worst(window, limits) <= 1))
    length_s = window.bounds.length_s
    return Goodput(
        good=good,
        share_of_scheduled=significant(good / window.due),
        per_s=None if length_s is None else significant(good / length_s),
    )
