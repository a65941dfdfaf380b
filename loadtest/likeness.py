"""Whether two sides of runs were played under the same conditions: what is unlike, and what else differs. Pure."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from loadtest import repeats
from loadtest.records import Record
from loadtest.result import LevelResult, Result, TokenLengths

UNKNOWN = "unknown"
# Lengths as observed that differ by more than this, and by more than chance, make another workload.
LENGTHS = 0.05
# 99 % of a normal distribution is below so many standard deviations.
_P99 = 2.326
# What of a scenario says nothing of the load.
_NAMES = ("name", "question", "seed", "locked", "slo", "warn", "audit")
_MOST_SHOWN = 60


class Run(NamedTuple):
    """A run that was read again. ``records`` are those of each level by its place; ``values`` are its scenario's."""

    name: str
    result: Result
    records: Mapping[int, Sequence[Record]]
    values: Mapping[str, str]


class Likeness(NamedTuple):
    """What makes two sides incomparable, and what differs besides; each in words."""

    unlike: list[str]
    notes: list[str]


_CONDITIONS: tuple[tuple[str, Callable[[Result], str | None]], ...] = (
    ("endpoint kind", lambda result: result.conditions.endpoint.kind),
    ("model", lambda result: result.conditions.endpoint.model),
    ("precision", lambda result: result.conditions.precision),
    ("the server's hardware", lambda result: result.conditions.hardware.server),
    ("proxy", lambda result: result.conditions.endpoint.proxy or "none"),
    ("transport", lambda result: result.conditions.endpoint.transport),
)
_BESIDES: tuple[tuple[str, Callable[[Result], str | None]], ...] = (
    ("the client's machine", lambda result: result.conditions.hardware.client),
    ("how prompts were sized", lambda result: result.conditions.prompts_sized),
    ("schema_version of the result", lambda result: str(result.schema_version)),
    ("changes made to requests", lambda result: "; ".join(result.adaptations) or "none"),
)


def likeness(base: Sequence[Run], candidate: Sequence[Run]) -> Likeness:
    """Compare the conditions of both sides, of each of which there is at least one run."""
    unlike, notes = _told(base, candidate)
    unlike += [f"{run.name} says itself: {why}" for run in (*base, *candidate) for why in _scaled(run)]
    unlike += _scenario(base, candidate)
    ours, theirs = settings(base), settings(candidate)
    for name in ours:
        if name in theirs:
            unlike += [f"{name}: {what}" for what in _level(ours[name], theirs[name])]
            notes += [f"{name}: {what}" for what in _cached(ours[name], theirs[name])]
    for label, own, other in (("base", ours, theirs), ("candidate", theirs, ours)):
        if alone := [name for name in own if name not in other]:
            unlike.append(f"levels that only the {label} has: {', '.join(alone)}")
    return Likeness(unlike, notes)


def setting(level: LevelResult) -> str:
    """The name under which a level is compared, whichever repeat it is and if it plays another one on."""
    return repeats.setting(level if level.extends is None else replace(level, name=level.extends))


def settings(runs: Iterable[Run]) -> dict[str, list[LevelResult]]:
    """The levels of ``runs`` by ``setting``, also those that were planned and not reached."""
    found: dict[str, list[LevelResult]] = {}
    for run in runs:
        for level in run.result.levels:
            found.setdefault(setting(level), []).append(level)
    return found


def _told(base: Sequence[Run], candidate: Sequence[Run]) -> tuple[list[str], list[str]]:
    """Conditions and what else is told of a run. What only one side knows may be alike: that is a note."""
    unlike, notes = [], []
    for what, of in _CONDITIONS:
        ours, theirs = _values(base, of), _values(candidate, of)
        if UNKNOWN in ours or UNKNOWN in theirs:
            if ours != theirs or len(ours) > 1:
                notes.append(f"{what}: {_against(ours, theirs)}; tell it with --label when you measure")
        elif ours != theirs or len(ours) > 1:
            unlike.append(f"{what}: {_against(ours, theirs)}")
    for what, of in (*_BESIDES, *_software(base, candidate)):
        ours, theirs = _values(base, of), _values(candidate, of)
        if ours != theirs:
            notes.append(f"{what}: {_against(ours, theirs)}")
    return unlike, notes


def _software(base: Sequence[Run], candidate: Sequence[Run]) -> list[tuple[str, Callable[[Result], str | None]]]:
    names = dict.fromkeys(name for run in (*base, *candidate) for name in run.result.conditions.software)
    return [(name, lambda result, name=name: result.conditions.software.get(name)) for name in names]  # type: ignore[misc]


def _values(runs: Iterable[Run], of: Callable[[Result], str | None]) -> list[str]:
    return sorted({of(run.result) or UNKNOWN for run in runs})


def _against(ours: Sequence[str], theirs: Sequence[str]) -> str:
    return f"{_short(' and '.join(ours))} against {_short(' and '.join(theirs))}"


def _short(text: str) -> str:
    return text if len(text) <= _MOST_SHOWN else f"{text[: _MOST_SHOWN - 2]} …"


def _scaled(run: Run) -> list[str]:
    return run.result.conditions.not_comparable


def _scenario(base: Sequence[Run], candidate: Sequence[Run]) -> list[str]:
    """Where the scenarios differ: by their values where those are known, else only that they do."""
    runs = (*base, *candidate)
    if len({run.result.conditions.scenario.sha256 for run in runs}) == 1:
        return []
    found = []
    if all(run.values for run in runs):
        keys = dict.fromkeys(key for run in runs for key in run.values if key.split(".")[0] not in _NAMES)
        for key in keys:
            ours, theirs = ([*dict.fromkeys(run.values.get(key, "none") for run in side)] for side in (base, candidate))
            if ours != theirs or len(ours) > 1:
                found.append(f"{key} of the scenario: {_against(ours, theirs)}")
    names = [sorted({run.result.conditions.scenario.name for run in side}) for side in (base, candidate)]
    return found or [f"scenario: {_against(*names)}, and their digests differ"]


def _level(base: Sequence[LevelResult], candidate: Sequence[LevelResult]) -> list[str]:
    """What is unlike of the same level."""
    found = []
    told: tuple[tuple[str, Callable[[LevelResult], object]], ...] = (
        ("load", lambda level: level.load),
        ("batching", lambda level: level.batching),
        ("model", lambda level: level.model),
        ("data", lambda level: [(data.source, data.sha256[:12]) for data in level.workload.data]),
        ("input tokens asked", lambda level: level.workload.input_tokens.requested),
        ("samples a request", lambda level: str(level.batch_size)),
        ("output tokens asked", lambda level: level.workload.output_tokens.requested),
    )
    for what, of in told:
        ours, theirs = (sorted({str(of(level)) for level in side}) for side in (base, candidate))
        if ours != theirs or len(ours) > 1:
            found.append(f"{what}: {_against(ours, theirs)}")
    for what in ("input", "output"):
        means = [_observed([getattr(level.workload, f"{what}_tokens") for level in side]) for side in (base, candidate)]
        (before, error), (after, other) = means
        if before and after and abs(after - before) > LENGTHS * before + 3 * math.hypot(error, other):
            found.append(f"{what} tokens as observed: {before:,.1f} against {after:,.1f} on average")
    return found


def _observed(lengths: Sequence[TokenLengths]) -> tuple[float, float]:
    """The mean length over all playings, and its standard error; 0 where none is known."""
    known = [one.observed for one in lengths if one.observed.mean is not None]
    n = sum(one.n for one in known)
    if not n:
        return 0.0, 0.0
    spread = max(((one.p99 or 0.0) - (one.p50 or 0.0)) / _P99 for one in known)
    return sum((one.mean or 0.0) * one.n for one in known) / n, spread / math.sqrt(n)


def _cached(base: Sequence[LevelResult], candidate: Sequence[LevelResult]) -> list[str]:
    """Whether one side had more of its input in the server's cache; it may be what is being tried."""
    shares = []
    for side in (base, candidate):
        cached = sum(level.workload.cached_input_tokens or 0 for level in side)
        lengths = [level.workload.input_tokens.observed for level in side]
        total = sum((one.mean or 0.0) * one.n for one in lengths)
        shares.append(cached / total if total else 0.0)
    ours, theirs = shares
    if abs(ours - theirs) <= LENGTHS:
        return []
    return [f"input tokens that came from the server's cache: {ours:.0%} against {theirs:.0%}"]
