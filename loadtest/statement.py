"""What a search for capacity found, in words, with every condition that it holds under. Pure."""

import math
from collections.abc import Sequence
from typing import Literal

from loadtest.level import NONE
from loadtest.result import Capacity, Conditions, LevelResult, RawPeak, TokenLengths, Usable

Axis = Literal["rate", "concurrency"]


def statement(found: Capacity, levels: Sequence[LevelResult], told: Conditions, seed: int) -> str:
    """The capacity, what of it is usable, the raw peak, and what all of it holds for.

    ``levels`` are all of the result.
    """
    passed, beyond = found.bracket
    trials = found.searched.trials
    what = " and ".join(found.slo)
    if passed is None:
        lowest = min((trial.load for trial in found.trials), default=None)
        tried = "no load was tried" if lowest is None else f"no load from {amount(found.axis, lowest)} on passed"
        said = [f"Capacity: not shown; {tried} in {trials} trials ({what})"]
        if (near := _once(found)) is not None:
            upper = "" if beyond is None else f", {amount(found.axis, beyond)} did not"
            said.append(f"{amount(found.axis, near)} passed in as many as there were{upper}")
    else:
        upper = "nothing higher was judged" if beyond is None else f"{amount(found.axis, beyond)} did not"
        said = [
            f"Capacity at SLO: {amount(found.axis, passed)} passed in each of its trials, at least {trials}, {upper} "
            f"({what})"
        ]
    lost = _lost(found)
    if lost:
        between = " and ".join(f"{load:g}" for load in lost)
        said.append(f"of {between} nothing is known, as the client was the limit there")
    if found.usable.value is not None:
        said.append(f"usable: {_usable(found.axis, found.usable)}")
    if found.raw_peak is not None:
        said.append(f"raw peak, whatever the latency: {_peak(found.axis, found.raw_peak)}")
    if found.cliff and passed is not None and not lost:
        said.append("a cliff: far within the limits up to there, and far beyond them after it")
    said.append(f"the search {found.ended}")
    return f"{'; '.join(said)}. It holds for: {', '.join(_conditions(found, levels, told, seed))}."


def _once(found: Capacity) -> float | None:
    """The highest load that passed wherever it was judged, however seldom, below the one that did not."""
    beyond = math.inf if found.bracket[1] is None else found.bracket[1]
    return max((t.load for t in found.trials if t.resolved and t.outcome == "PASS" and t.load < beyond), default=None)


def _lost(found: Capacity) -> list[float]:
    """The loads above the one that passed, and below the one that did not, of which every trial was invalid."""
    passed, beyond = found.bracket
    low, high = passed or 0.0, math.inf if beyond is None else beyond
    known = {trial.load for trial in found.trials if trial.outcome != "INVALID"}
    return sorted({trial.load for trial in found.trials if low < trial.load < high} - known)


def amount(axis: Axis, load: float) -> str:
    """A load with what it is counted in."""
    return f"{load:g} requests/s" if axis == "rate" else f"{load:g} in flight"


def _usable(axis: Axis, usable: Usable) -> str:
    assert usable.value is not None
    kept = usable.replicas - usable.lost
    fleet = f" on {kept} of {usable.replicas} replicas, {usable.lost} lost" if usable.replicas > 1 else ""
    # The load that passed is not known to more than these digits.
    return f"{amount(axis, float(f'{usable.value:.3g}'))}{fleet}, with a reserve of {100 * usable.reserve:g} %"


def _peak(axis: Axis, peak: RawPeak) -> str:
    tokens = "" if peak.output_tokens_per_s is None else f"{peak.output_tokens_per_s:,.4g} output tokens/s"
    answers = "" if peak.requests_per_s is None else f"{peak.requests_per_s:,.4g} answers/s"
    return f"{' and '.join(filter(None, (tokens, answers)))} at {amount(axis, peak.load)}"


def _conditions(found: Capacity, levels: Sequence[LevelResult], told: Conditions, seed: int) -> list[str]:
    shown = found.bracket[0] if found.bracket[0] is not None else _once(found)
    end = shown if shown is not None else min((t.load for t in found.trials), default=None)
    own = [levels[index] for trial in found.trials if trial.load == end for index in trial.levels]
    software = [f"{name} {version}" for name, version in told.software.items()]
    parts = [
        f"model {(own[0].model if own else None) or told.endpoint.model}",
        f"precision {told.precision}" if told.precision else "precision not told",
        *software,
        f"server {told.hardware.server}" if told.hardware.server else "server hardware not told",
        f"client {told.hardware.client}" if told.hardware.client else "",
        f"{told.endpoint.kind} endpoint",
    ]
    if own:
        first = own[0]
        seen = [level.concurrency for level in own]
        means = [each.mean for each in seen if each.mean is not None]
        peaks = [each.peak for each in seen if each.peak is not None]
        windows = [level.window.measured_s for level in own if level.window.measured_s is not None]
        parts += [
            _lengths("input", first.workload.input_tokens),
            _lengths("output", first.workload.output_tokens),
            f"{first.batch_size} samples a request" if first.batch_size > 1 else "",
            "closed loop" if first.load.kind == "closed" else f"{first.load.kind} arrivals",
            f"concurrency {sum(means) / len(means):.3g} in the mean, {max(peaks)} at most" if means and peaks else "",
            f"batching {first.batching}" if first.batching else "the server's own batching",
            f"windows of {sum(windows) / len(windows):.3g} s" if windows else "",
            f"n = {sum(level.counts.in_window for level in own):,} requests at that load",
        ]
    return [part for part in (*parts, f"seed {seed}") if part]


def _lengths(name: str, lengths: TokenLengths) -> str:
    if lengths.requested == NONE:
        return ""
    seen = lengths.observed
    observed = "" if seen.mean is None else f" (observed mean {seen.mean:.4g}, p99 {seen.p99:.4g})"
    return f"{name} {lengths.requested} tokens{observed}"
