"""What a run taught, in a sentence or two: the first thing a person wants to know. Pure."""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import groupby

from loadtest.repeats import setting
from loadtest.repeats import sound as is_sound
from loadtest.reports.figures import failure, figure, percentile, percentile_value, tokens
from loadtest.result import LevelResult, Result

# A load counts as having reached the plateau from this share of the highest throughput on.
PLATEAU = 0.90
# An open loop is falling behind when the share of the offered work that comes out drops to this part of what it
# was at the lowest rate. (Not to this part of 1: long answers to the window's last requests end outside it.)
KEPT_UP = 0.90
# Unless the lowest rate gets out even less than this itself.
LEAST_SHARE = 0.60


def finding(result: Result) -> str:
    """What was learned. Failures come first, and nothing is praised above them or from an invalid level."""
    ran = [level for level in result.levels if level.counts.scheduled]
    if not ran:
        reached = any(level.status != "not_reached" for level in result.levels)
        return f"Nothing was measured: {'no request became due' if reached else 'no level was reached'}."
    sound = _typical([level for level in ran if is_sound(level) and not level.counts.failed and _throughput(level)])
    failures = _failures(ran)
    if failures:
        # A sweep that lost its failing end teaches the wrong lesson; a matrix only misses a cell.
        learned = _batching(sound)
        return f"{failures} Among the levels without failures: {learned}" if learned else failures
    if not sound:
        return "Nothing can be concluded: no level was complete and valid, with a request in its window."
    for lesson in (_batching, _loads, _samples, _prompts):
        learned = lesson(sound)
        if learned:
            return learned
    return _one(sound)


def _typical(levels: Sequence[LevelResult]) -> list[LevelResult]:
    """Of the repeats of each level the one with the median throughput, lest luck be praised."""
    groups: dict[str, list[LevelResult]] = {}
    for level in levels:
        groups.setdefault(setting(level), []).append(level)
    return [sorted(group, key=_throughput)[(len(group) - 1) // 2] for group in groups.values()]


def _failures(levels: Sequence[LevelResult]) -> str:
    failing = [level for level in levels if level.counts.failed]
    # What an interrupted level cut off is the user's doing and no failure of the target.
    failing = [level for level in failing if level.status != "aborted" or _failed_by_itself(level)]
    if not failing:
        return ""
    failed = sum(level.counts.failed for level in failing)
    scheduled = sum(level.counts.scheduled for level in levels)
    counts: Counter[str] = Counter()
    for error in (error for level in failing for error in level.errors):
        counts[failure(error.kind, error.status)] += error.count
    kind = counts.most_common(1)[0][0] if counts else "causes unknown"
    if failed == scheduled:
        share = "all" if len(counts) == 1 else "most of them"
        return f"Every request failed, {share} with {kind}: there are no figures to read."
    where = ", in every level" if len(failing) == len(levels) else f", {_enumerate([level.name for level in failing])}"
    if len(levels) == 1:
        where = ""
    mend = "Give them a longer --grace" if kind == failure("cancelled") else "Mend that first"
    return (
        f"{failed:,} of {scheduled:,} requests failed ({failed / scheduled:.1%}; mostly {kind}){where}. "
        f"{mend}: throughput counts only the requests that survived, and a server that fails some is often faster for "
        "the others."
    )


def _failed_by_itself(level: LevelResult) -> int:
    return level.counts.failed - level.counts.cancelled - level.counts.never_sent


def _batching(levels: Sequence[LevelResult]) -> str:
    """The most productive batching against the smallest one under the same load; then the policies side by side."""
    with_batching = [level for level in levels if level.batching is not None]
    if len({str(level.batching) for level in with_batching}) < 2:
        return ""
    best = max(with_batching, key=_throughput)
    peers = [level for level in with_batching if _alike(level, best)]
    least = min(peers, key=_batch_size)
    if best is least or _batch_size(best) == _batch_size(least):
        first = f"{best.batching} at {_load(best)} gave the most: {_output(best)}."
        if len(peers) > 1 and _batch_size(max(peers, key=_batch_size)) > _batch_size(best):
            first += " Larger batches bought nothing."
    else:
        factor = _throughput(best) / _throughput(least)
        first = (
            f"{best.batching} at {_load(best)} gave the most: {_output(best)}, {factor:.2g}× that of {least.batching} "
            f"under the same load{_cost(least, best)}."
        )
    policies = _policies(with_batching)
    return f"{first} {policies}" if policies else first


def _policies(levels: Sequence[LevelResult]) -> str:
    """TTFT p99 of the schedulers tried with one batch size under one load, the heaviest such, the lowest first."""
    candidates = [
        [
            level
            for level in levels
            if _alike(level, one)
            and _p99(level) is not None
            and level.batching
            and one.batching
            and (level.batching.max_batch_size == one.batching.max_batch_size or level.batching.scheduler == "none")
        ]
        for one in levels
        if one.batching and one.batching.scheduler != "none" and _p99(one) is not None
    ]
    side_by_side = max(
        candidates, key=lambda group: (len(group), _size(group[0]), max(map(_batch_size, group))), default=[]
    )
    if len({level.batching.scheduler for level in side_by_side if level.batching}) < 2:
        return ""
    ordered = sorted(side_by_side, key=lambda level: _p99(level) or math.inf)
    said = [f"{level.batching} {percentile(level.latency.ttft_ms, 'p99')} ms" for level in ordered]
    return f"Policies at {_load(side_by_side[0])}, TTFT p99: {', '.join(said)}."


def _loads(levels: Sequence[LevelResult]) -> str:
    """Where throughput stopped growing with the load, and what going beyond costs."""
    sweep = _longest(levels, lambda level: (str(level.batching), _lengths(level), level.load.kind))
    sweep = sorted(sweep, key=_size)
    if len({_size(level) for level in sweep}) < 2:
        return ""
    said = _rates(sweep) if sweep[0].load.kind != "closed" else _concurrencies(sweep)
    if len({_lengths(level) for level in levels}) == 1:
        return said
    asked = sweep[0].workload
    of = f"model {sweep[0].model}, " if len({level.model for level in levels}) > 1 else ""
    if len({level.batch_size for level in levels}) > 1:
        of += f"{sweep[0].batch_size:,} sample{'s' * (sweep[0].batch_size > 1)} a request"
    else:
        of += f"{asked.input_tokens.requested} input and {asked.output_tokens.requested} output tokens"
    return f"With {of}, {said[0].lower()}{said[1:]}"


def _concurrencies(sweep: Sequence[LevelResult]) -> str:
    last = sweep[-1]
    best = max(sweep, key=_throughput)
    knee = next(level for level in sweep if _throughput(level) >= PLATEAU * _throughput(best))
    if knee is last:
        return (
            f"Throughput was still growing at {_load(last)}: {_output(last)}, up from {figure(_throughput(sweep[0]))} "
            f"at {_load(sweep[0])}{_cost(sweep[0], last)}. The limit is not in sight; try more."
        )
    return (
        f"Throughput stopped growing at {_load(knee)}: {_output(knee)} there, {_output(last)} at {_load(last)}"
        f"{_cost(knee, last)}."
    )


def _rates(sweep: Sequence[LevelResult]) -> str:
    floor = KEPT_UP * max(LEAST_SHARE, min(1.0, _share_done(sweep[0])))
    behind = next((level for level in sweep if _share_done(level) < floor), None)
    if behind is None:
        last = sweep[-1]
        return f"The target kept up with every rate, up to {_load(last)}: {_output(last)}{_cost(sweep[0], last)}."
    before = [level for level in sweep if _size(level) < _size(behind)]
    fell = f"at {_load(behind)} it fell behind{_ttft(behind)}"
    if not before:
        return f"The target kept up with no rate: {fell}."
    return f"The target kept up to {_load(before[-1])}: {_output(before[-1])}{_ttft(before[-1])}; {fell}."


def _samples(levels: Sequence[LevelResult]) -> str:
    """What more samples a request bring, and cost, under one load."""
    sweep = _longest(levels, lambda level: (str(level.load), level.model))
    few, many = (choose(sweep, key=lambda level: level.batch_size) for choose in (min, max))
    if few.batch_size == many.batch_size:
        return ""
    times = [percentile(level.latency.e2e_ms, "p50") for level in (few, many)]
    return (
        f"From {few.batch_size:,} to {many.batch_size:,} samples a request at {_load(many)}, throughput went from "
        f"{_output(few)} to {_output(many)}; E2E p50 from {times[0]} to {times[1]} ms."
    )


def _prompts(levels: Sequence[LevelResult]) -> str:
    """What longer prompts cost, under one load."""
    sweep = _longest(levels, lambda level: (str(level.batching), str(level.load)))
    sized = sorted(
        ((level.workload.input_tokens.observed.mean or 0.0, level) for level in sweep), key=lambda pair: pair[0]
    )
    (small, shortest), (large, longest) = sized[0], sized[-1]
    if len({level.workload.input_tokens.requested for level in sweep}) == 1:
        return ""
    return (
        f"From {tokens(small)} to {tokens(large)} input tokens at {_load(longest)}, throughput went from "
        f"{_output(shortest)} to {_output(longest)}{_cost(shortest, longest)}."
    )


def _one(levels: Sequence[LevelResult]) -> str:
    best = max(levels, key=_throughput)
    under = "Under" if best.load.kind == "trace" else "At"
    rates = dict.fromkeys([_output(best), f"{figure(best.rates.completed_per_s)} requests/s"])
    return f"{under} {_load(best)}: {', '.join(rates)}{_ttft(best)}."


def _load(level: LevelResult) -> str:
    if level.load.kind == "trace":
        return f"the {level.load}"
    return f"{level.load}{' of sessions' if level.sessions and not level.load.concurrency else ''}"


def _throughput(level: LevelResult) -> float:
    """What a level got done per second: samples, output tokens, or else requests. Levels of a run are alike in this."""
    done = level.throughput
    return done.samples_per_s or done.output_tokens_per_s or level.rates.completed_per_s or 0.0


def _output(level: LevelResult) -> str:
    if level.throughput.samples_per_s is not None:
        return f"{figure(level.throughput.samples_per_s)} samples/s"
    if level.throughput.output_tokens_per_s is not None:
        return f"{figure(level.throughput.output_tokens_per_s)} output tok/s"
    return f"{figure(level.rates.completed_per_s)} requests/s"


def _share_done(level: LevelResult) -> float:
    """The share of the work offered in the window that came out of it there: tokens, or else requests."""
    offered = level.rates.offered_per_s or 0.0
    done = level.rates.completed_per_s or 0.0
    each = level.workload.output_tokens.observed.mean
    if each and level.throughput.output_tokens_per_s is not None:
        offered, done = offered * each, level.throughput.output_tokens_per_s
    return done / offered if offered else 0.0


def _p99(level: LevelResult) -> float | None:
    return percentile_value(level.latency.ttft_ms, "p99")


def _ttft(level: LevelResult) -> str:
    return f", TTFT p99 {percentile(level.latency.ttft_ms, 'p99')} ms" if _p99(level) is not None else ""


def _cost(before: LevelResult, after: LevelResult) -> str:
    """How TTFT p99 changed, as the tail of a sentence; nothing where it was not measured."""
    old, new = _p99(before), _p99(after)
    if old is None or new is None:
        return ""
    verb = "rose" if new > old else "fell"
    old_text, new_text = (percentile(level.latency.ttft_ms, "p99") for level in (before, after))
    if old_text == new_text:
        return f", TTFT p99 the same ({new_text} ms)"
    return f"; TTFT p99 {verb} from {old_text} to {new_text} ms"


def _batch_size(level: LevelResult) -> int:
    if level.batching is None or level.batching.scheduler == "none":
        return 1
    return level.batching.max_batch_size


def _size(level: LevelResult) -> float:
    return level.load.concurrency or level.load.rate_per_s or 0.0


def _lengths(level: LevelResult) -> str:
    asked = level.workload
    return f"{asked.input_tokens.requested} {asked.output_tokens.requested} {level.batch_size} {level.model or ''}"


def _alike(one: LevelResult, other: LevelResult) -> bool:
    return one.load == other.load and _lengths(one) == _lengths(other)


def _longest(levels: Sequence[LevelResult], key: Callable[[LevelResult], object]) -> list[LevelResult]:
    """The largest group of levels that differ in nothing that ``key`` sees."""
    text = lambda level: str(key(level))  # noqa: E731 - groupby and sorted need the same order
    return max((list(group) for _, group in groupby(sorted(levels, key=text), key=text)), key=len)


def _enumerate(names: Sequence[str]) -> str:
    few = ", ".join(names[:3])
    return f"in {few}" + (f" and {len(names) - 3} more" if len(names) > 3 else "")
