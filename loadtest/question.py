"""What is asked of a search for capacity: by flags, or as it was asked when the search to be gone on with began."""

import re
from collections.abc import Sequence

import msgspec

from loadtest import scenario, slo
from loadtest.duration import duration
from loadtest.errors import ResultError, UsageError
from loadtest.options import Options
from loadtest.result import Result, Searched, Usable, load
from loadtest.resume import as_asked
from loadtest.scenario.model import Override, Resolved
from loadtest.search import Space
from loadtest.statement import Axis

# A start that nobody named may turn out too high: the search goes down to this share of it.
LEAST_SHARE = 1 / 16


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked of a search.

    ``axis`` of None is that of the scenario's load. ``least`` and ``most`` bound the loads; without ``least`` it begins
    at 1. ``tiers`` are names and their SLOs, instead of the scenario's. ``usable`` says what is to be kept back.
    """

    axis: Axis | None = None
    least: float | None = None
    most: float | None = None
    trials: int = 3
    budget_s: float = 1800.0
    usable: Usable = Usable(reserve=0.0, replicas=1, lost=0, value=None)
    tiers: dict[str, tuple[str, ...]] = {}


def of_flags(
    axis: Axis | None, least: float | None, most: float | None, trials: int, budget: str, reserve: str, replicas: int,
    lost: int, tiers: Sequence[str],
) -> Question:  # fmt: skip
    """What the flags ask.

    Raises:
        UsageError: one of them says nothing that could be meant.
    """
    if lost >= replicas and lost:
        raise UsageError(f"--lost {lost} of --replicas {replicas} leaves nothing to serve: lower it")
    if least is not None and most is not None and least > most:
        raise UsageError(f"--min {least:g} is above --max {most:g}")
    try:
        budget_s = duration(budget)
    except ValueError as error:
        raise UsageError(f"--budget {budget}: {error}") from None
    return Question(
        axis=axis,
        least=least,
        most=most,
        trials=trials,
        budget_s=budget_s,
        usable=Usable(reserve=_share(reserve), replicas=replicas, lost=lost, value=None),
        tiers=dict(map(_tier, tiers)),
    )


def _share(text: str) -> float:
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*(%?)", text.strip(), re.ASCII)
    share = float(match[1]) / (100 if match[2] else 1) if match else 1.0
    if not share < 1:
        raise UsageError(f"--reserve {text}: expected a share below 100 %, such as 20% or 0.2")
    return round(share, 9)


def _tier(text: str) -> tuple[str, tuple[str, ...]]:
    name, colon, slos = text.partition(":")
    found = [each.strip() for each in slos.split(";") if each.strip()]
    if not colon or not name.strip() or not found:
        raise UsageError(f"--tier {text}: expected NAME: SLO; SLO, such as 'fast: p99(ttft) < 200ms'")
    try:
        return name.strip(), tuple(slo.parse(each).text for each in found)
    except ValueError as error:
        raise UsageError(f"--tier {name.strip()}: {error}") from None


def search_in(options: Options) -> Result:
    """The search that lies in the folder.

    Raises:
        ResultError: there is none that could be gone on with.
    """
    assert options.output is not None
    found = load(options.output)
    if found.capacity is None:
        raise ResultError(f"{options.output} holds a run and no search for capacity; begin one with loadtest capacity")
    if not found.levels:
        raise ResultError(f"{options.output} holds a search without a trial that ended; begin it anew")
    return found


def as_then(options: Options, question: Question, earlier: Result) -> tuple[Options, Question]:
    """What was asked when the search in the folder began.

    Raises:
        ResultError: it is not known any more.
        UsageError: it is to be another target, or the URL has to be given again.
    """
    assert options.output is not None
    each = earlier.searches
    one = each[0]
    least, start = one.searched.least, one.searched.start
    question = Question(
        axis=one.axis,
        least=least if least == start else None,
        most=one.searched.most,
        trials=one.searched.trials,
        budget_s=question.budget_s,
        usable=one.usable,
        tiers={one.tier: tuple(one.slo) for one in each if one.tier},
    )
    if earlier.manner is None:
        raise ResultError(f"{options.output} was made by a loadtest whose searches could not be resumed; begin it anew")
    return as_asked(options, earlier, earlier.manner), question


def scenario_of(options: Options, question: Question) -> tuple[Axis, Resolved]:
    """The axis, and the scenario with a load on it, from which the levels of each setting are made.

    Raises:
        UsageError: it asks for nothing that could be kept.
    """
    given = dict(options.overrides)
    if question.tiers:
        texts = dict.fromkeys(text for tier in question.tiers.values() for text in tier)
        given["slo"] = Override("\n".join(texts), "--tier")
    plain = scenario.seeded(options.source, given)
    stated = plain.scenario.levels[0].concurrency is not None and options.source is not None
    axis = question.axis or ("concurrency" if stated else "rate")
    for flag, bound in (("--min", question.least), ("--max", question.most)):
        if axis == "concurrency" and bound is not None and bound != round(bound):
            raise UsageError(f"{flag} {bound:g}: requests in flight are a whole number; --axis rate takes fractions")
    searched = space_of(axis, question).searched
    start = Override(f"{searched.start if searched.most is None else searched.most:.12g}", "--axis")
    given = {**given, axis: start, "repeat": Override("1", "capacity")}
    if plain.scenario.seed is not None and "seed" not in given:
        given["seed"] = Override(str(plain.scenario.seed), plain.sources["seed"])
    found = scenario.seeded(options.source, given)
    if not found.scenario.slo:
        raise UsageError("a search needs what is to be kept to: give --slo, such as --slo 'p99(ttft) < 300ms'")
    for each in map(slo.parse, found.scenario.slo):
        if each.scope.level is not None:
            raise UsageError(f"slo {each.text}: a search sets the levels itself; leave level= out")
        if each.unit == "per_s":
            raise UsageError(f"slo {each.text}: more load brings more of it, so that it limits none; leave it out")
        if question.tiers and each.metric == "goodput" and not each.limits:
            raise UsageError(f"slo {each.text}: in a tier goodput needs its own limits: goodput(ttft < 300ms) >= 99%")
    return axis, found


def space_of(axis: Axis, question: Question) -> Space:
    start = 1.0 if question.least is None else question.least
    if question.least is None and question.most is not None:
        start = min(start, question.most)
    least = start if question.least is not None or axis == "concurrency" else start * LEAST_SHARE
    searched = Searched(start=start, least=least, most=question.most, trials=question.trials)
    return Space(searched, whole=axis == "concurrency")
