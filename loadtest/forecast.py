"""What a run would send, seen in its plan and without sending it. Pure."""

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal

import msgspec

from loadtest import plan
from loadtest.endpoints.catalog import dialect
from loadtest.evidence import sample_floor
from loadtest.level import Batching, Level
from loadtest.schedule import Load
from loadtest.slo import Slo
from loadtest.workload import datasets
from loadtest.workload.lengths import Length
from loadtest.workload.model import OUTPUT_TOKENS, Workload
from loadtest.workload.rows import Reader

SHOWN_ARRIVALS = 6
BARS = 16
# What is looked at of a long plan, in all its levels: more would say nothing new, and a user is waiting.
_LOOKED_AT = 20_000
_TIMES_LOOKED_AT = 200_000
_LEAST_LOOKED_AT = 200

# exact: counted in the plan. at_most: a number of requests that a duration may cut short. expected: on average, as the
# plan is too long to be counted. unknown: the answers decide.
Count = Literal["exact", "at_most", "expected", "unknown"]


class Prices(msgspec.Struct, frozen=True):
    """Of a million tokens, in whatever currency."""

    input: float
    output: float

    def cost(self, input_tokens: float, output_tokens: float) -> float:
        """What so many tokens cost."""
        return (input_tokens * self.input + output_tokens * self.output) / 1e6


class Spread(msgspec.Struct, frozen=True):
    """Lengths in tokens as the plan has them; ``histogram`` counts them in equal parts of ``min..max``, 16 at most."""

    n: int
    min: int
    p50: int
    mean: float
    p99: int
    max: int
    histogram: list[int]


class WorkloadForecast(msgspec.Struct, frozen=True):
    """One kind of request over all levels that play it. Lengths of None are known only when it is played.

    What was asked is ``data`` where the lengths are those of the file, and None where there are none to ask for.
    ``input_tokens`` are the prompt's own. ``sent_tokens`` are there where they are more than these: shared prefixes
    (on average), the conversation so far, with answers as long as asked, and all samples of a request.
    """

    name: str
    input_asked: str | None
    output_asked: str | None
    input_tokens: Spread | None
    sent_tokens: Spread | None
    output_tokens: Spread | None


class DataForecast(msgspec.Struct, frozen=True):
    """A file of prompts or arrivals: ``kept`` rows, and why others were skipped (reason, how many, first line)."""

    workload: str
    source: str
    kept: int
    span_s: float | None
    skipped: list[tuple[str, int, int]]


class LevelForecast(msgspec.Struct, frozen=True):
    """One level. Tokens are those of all its requests, prompts as sent and answers as long as asked.

    Of a level whose requests are ``unknown`` so are its totals; the means of one request are there. ``sending_s`` is
    how long it sends, or may send where the count is ``at_most``; None where the answers decide. ``probe_requests`` are
    beside ``requests``, and their tokens in the totals.
    """

    name: str
    load: Load
    batching: Batching | None
    model: str | None
    repeat: int
    input_asked: str
    output_asked: str
    sending_s: float | None
    warmup_s: float
    grace_s: float
    count: Count
    requests: int | None
    sessions: int | None
    probe_requests: int | None
    mean_input_tokens: float | None
    mean_output_tokens: float | None
    input_tokens: float | None
    output_tokens: float | None
    cost: float | None
    first_arrivals_s: list[float]


class Estimate(msgspec.Struct, frozen=True):
    """The whole run. ``open_ended`` levels are in none of the sums, since the answers decide how much they are.

    ``grace_s`` is the most that unfinished requests may take after the levels' ends, all added up.
    """

    levels: int
    open_ended: int
    open_time: int
    sending_s: float
    cooldown_s: float
    grace_s: float
    requests: int
    input_tokens: float
    output_tokens: float
    cost: float | None
    prices: Prices | None


class SloForecast(msgspec.Struct, frozen=True):
    """An SLO, and the fewest requests of a level that can pass it: if none is late, and if they do not cluster.

    ``floor`` of None: it is no share of the requests. ``planned`` are those in the window of the ``level`` that has the
    fewest; None where the answers decide, or only some requests are meant.
    """

    expression: str
    floor: int | None
    planned: int | None
    level: str | None


class Source(msgspec.Struct, frozen=True):
    """The scenario: its values as its file would have them, and by dotted key where each came from."""

    name: str
    question: str
    sha256: str
    values: dict[str, Any]
    sources: dict[str, str]


class Forecast(msgspec.Struct, frozen=True):
    """A plan explained. ``target`` of None is the bundled server; ``workers`` are generator processes."""

    scenario: Source
    target: str | None
    seed: int
    workers: int
    levels: list[LevelForecast]
    workloads: list[WorkloadForecast]
    data: list[DataForecast]
    estimate: Estimate
    warnings: list[str]
    slos: list[SloForecast] = []


class _Seen(msgspec.Struct, frozen=True):
    """The lengths of one request of the plan: the prompt's own, all that is sent, and the answer's."""

    own: int | None
    sent: float | None
    answer: int | None


class _Look(msgspec.Struct, frozen=True):
    """The first requests of a level's plan, each with the place of its workload, and whether these are all."""

    asks: list[tuple[int, _Seen]]
    arrivals: int
    sessions: int
    whole: bool


def forecast(
    scenario: Source, levels: Sequence[Level], seed: int, *, target: str | None, workers: int, cooldown_s: float,
    prices: Prices | None, warnings: Sequence[str], count: Callable[[str], int], slos: Sequence[Slo] = (),
) -> Forecast:  # fmt: skip
    """What playing ``levels`` with ``seed`` would send: the very requests and instants, as far as they are counted.

    ``count`` gives the tokens of a text of the user's data that comes without its length; ``slos`` are what the levels
    have to keep to.
    """
    unsaid = OUTPUT_TOKENS if dialect(str(scenario.values.get("endpoint", "chat"))).generates else None
    found: list[LevelForecast] = []
    lengths: dict[Workload, list[_Seen]] = {}
    for level in levels:
        first, times = _times(level, seed, max(_TIMES_LOOKED_AT // len(levels), _LEAST_LOOKED_AT))
        look = _look(level, seed, times, max(_LOOKED_AT // len(levels), _LEAST_LOOKED_AT), count, unsaid)
        for workload in level.workloads:
            lengths.setdefault(workload, [])
        for place, ask in look.asks:
            lengths[level.workloads[place]].append(ask)
        if times is not None and look.whole:
            times = times[: look.arrivals]  # a number of requests may leave out the last
        found.append(_level(level, first, times, look, prices))
    workloads = [_workload(workload, asks, unsaid) for workload, asks in lengths.items()]
    return Forecast(
        scenario=scenario,
        target=target,
        seed=seed,
        workers=workers,
        levels=found,
        workloads=workloads,
        data=list(_data(levels)),
        estimate=_estimate(found, cooldown_s, prices),
        warnings=list(warnings),
        slos=[_slo(slo, found) for slo in slos],
    )


def _slo(slo: Slo, levels: Sequence[LevelForecast]) -> SloForecast:
    p = slo.quantile if slo.unit == "ms" else 1 - slo.limit if slo.metric == "error_rate" else slo.limit
    floor = None if p is None or slo.unit == "per_s" or slo.metric == "itl" else sample_floor(p)
    meant = [level for level in levels if slo.scope.is_of(level.name)]
    measured = [(planned, level.name) for level in meant if (planned := _in_window(level)) is not None]
    planned, level = min(measured, default=(None, None))
    if floor is None or len(measured) < len(meant) or slo.scope.of_some:
        planned = level = None
    return SloForecast(slo.text, floor, planned, level)


def _in_window(level: LevelForecast) -> int | None:
    """How many requests become due after the warm-up."""
    if level.requests is None or not level.sending_s:
        return level.requests
    return round(level.requests * max(0.0, 1 - level.warmup_s / level.sending_s))


def _times(level: Level, seed: int, most: int) -> tuple[list[float], list[float] | None]:
    """The first due times of an open loop, and all of them; None where there are none, or too many to be counted."""
    if level.load.kind == "closed":
        return [], None
    times = list(itertools.islice(plan.due_times(level, seed, 0, 1), most + 1))
    return times[:SHOWN_ARRIVALS], times if len(times) <= most else None


def _look(
    level: Level, seed: int, times: Sequence[float] | None, most: int, count: Callable[[str], int], unsaid: int | None
) -> _Look:
    """The plan's first requests, ``most`` of them at most; ``unsaid`` is asked where data have no length of answer."""
    readers = [Reader(workload.rows) if workload.rows else None for workload in level.workloads]
    seen: list[tuple[int, _Seen]] = []
    arrivals = sessions = 0
    before = 0.0  # the conversation so far; the turns of a session follow each other
    whole = level.requests is not None or times is not None
    for request in plan.requests(level, seed, 0, 1):
        begins = request.turn in (None, 1)
        if begins and times is not None and arrivals == len(times):
            break
        if len(seen) == most:
            whole = False
            break
        arrivals += begins
        sessions += request.turn == 1
        workload, own, answer = level.workloads[request.workload], request.input_tokens, request.output_tokens
        if level.load.kind == "trace":
            before = 0.0  # its prompts are as long as they were sent, prefix, history and all
        elif begins:
            before = workload.prefix.share * workload.prefix.tokens if workload.prefix else 0.0
        if (reader := readers[request.workload]) is not None and request.row is not None:
            turn = reader.row(request.row).turns[(request.turn or 1) - 1]
            own = datasets.input_tokens(turn, count) if own is None else own
            answer = (datasets.output_tokens(turn, count) or unsaid) if answer is None else answer
        lengths = [own] * request.samples
        if reader is not None and request.others:
            lengths[1:] = [datasets.input_tokens(reader.row(other).turns[0], count) for other in request.others]
        sent = None if own is None else math.fsum(before + (each or 0) for each in lengths)
        seen.append((request.workload, _Seen(own, sent, answer)))
        before = (sent or 0.0) + (answer or 0)
    for reader in readers:
        if reader is not None:
            reader.close()
    return _Look(seen, arrivals, sessions, whole)


def _level(
    level: Level, first: Sequence[float], times: Sequence[float] | None, look: _Look, prices: Prices | None
) -> LevelForecast:
    count, requests = _count(level, times, look)
    input_, output = _mean(ask.sent for _, ask in look.asks), _mean(ask.answer for _, ask in look.asks)
    total_input = None if requests is None or input_ is None else requests * input_
    total_output = None if requests is None or output is None else requests * output
    sending_s = _sending_s(level, times)
    probes = None
    if level.probe is not None and sending_s is not None:
        probes = round(level.probe.rate_per_s * sending_s)
        total_input = None if total_input is None else total_input + probes * level.probe.input_tokens.mean
        total_output = None if total_output is None else total_output + probes * level.probe.output_tokens.mean
    return LevelForecast(
        name=level.name,
        load=level.load,
        batching=level.batching,
        model=level.model,
        repeat=level.repeat,
        input_asked=level.input_tokens,
        output_asked=level.output_tokens,
        sending_s=sending_s,
        warmup_s=level.warmup_s,
        grace_s=level.grace_s,
        count=count,
        requests=requests,
        sessions=look.sessions if look.whole and look.sessions else None,
        probe_requests=probes,
        mean_input_tokens=input_,
        mean_output_tokens=output,
        input_tokens=total_input,
        output_tokens=total_output,
        cost=None if prices is None or total_input is None else prices.cost(total_input, total_output or 0.0),
        first_arrivals_s=[round(at, 6) for at in first],
    )


def _count(level: Level, times: Sequence[float] | None, look: _Look) -> tuple[Count, int | None]:
    """How many requests a level has, and what that number is."""
    talks = any(workload.conversation for workload in level.workloads)
    # What a time may cut short: a number of requests, or the later turns of a session.
    bounded: Count = "at_most" if level.duration_s is not None and (talks or level.load.kind == "closed") else "exact"
    if level.load.kind == "closed":
        return ("unknown", None) if level.requests is None else (bounded, level.requests)
    if look.whole:
        return bounded, len(look.asks)
    rows = level.workloads[0].rows
    if level.load.kind == "trace" and rows is not None:
        return bounded, min(rows.turns, level.requests or rows.turns)
    if times is not None and not talks:
        return "exact", len(times)
    rate = level.load.mean_rate_per_s()
    by_time = math.inf if level.duration_s is None or rate is None else rate * level.duration_s
    by_time *= len(look.asks) / look.arrivals  # turns, of which the rate counts only the first
    if level.requests is not None and level.requests <= by_time:
        return "at_most" if level.duration_s is not None else "exact", level.requests
    return "expected", round(by_time)


def _sending_s(level: Level, times: Sequence[float] | None) -> float | None:
    """How long a level sends, or may send; of an open loop that a number of requests bounds, until the last is due."""
    if level.load.kind == "closed":
        return level.duration_s
    if level.requests is not None and times is not None:
        return round(times[-1], 6) if times else 0.0
    rate = level.load.mean_rate_per_s()
    by_count = math.inf if level.requests is None or not rate else level.requests / rate
    return min(level.duration_s or math.inf, by_count)


def _workload(workload: Workload, asks: Sequence[_Seen], unsaid: int | None) -> WorkloadForecast:
    output = _asked(workload, workload.output_tokens)
    if output == "data" and workload.rows and workload.rows.output_tokens is None:
        output = None if unsaid is None else str(unsaid)
    own, sent = _spread(ask.own for ask in asks), _spread(ask.sent for ask in asks)
    return WorkloadForecast(
        name=workload.name,
        input_asked=_asked(workload, workload.input_tokens),
        output_asked=output,
        input_tokens=own,
        sent_tokens=None if sent == own else sent,
        output_tokens=_spread(ask.answer for ask in asks),
    )


def _asked(workload: Workload, length: Length | None) -> str | None:
    return str(length) if length else "data" if workload.rows else None


def _data(levels: Sequence[Level]) -> Iterator[DataForecast]:
    for workload in dict.fromkeys(workload for level in levels for workload in level.workloads):
        if workload.rows is not None:
            rows = workload.rows
            yield DataForecast(workload.name, rows.source, rows.count, rows.span_s, list(rows.skipped))


def _estimate(levels: Sequence[LevelForecast], cooldown_s: float, prices: Prices | None) -> Estimate:
    def total(values: Iterable[float | None]) -> float:
        return math.fsum(value for value in values if value is not None)

    return Estimate(
        levels=len(levels),
        open_ended=sum(level.requests is None for level in levels),
        open_time=sum(level.sending_s is None for level in levels),
        sending_s=total(level.sending_s for level in levels),
        cooldown_s=cooldown_s * max(0, len(levels) - 1),
        grace_s=total(level.grace_s for level in levels),
        requests=sum((level.requests or 0) + (level.probe_requests or 0) for level in levels),
        input_tokens=total(level.input_tokens for level in levels),
        output_tokens=total(level.output_tokens for level in levels),
        cost=None if prices is None else total(level.cost for level in levels),
        prices=prices,
    )


def _spread(values: Iterable[float | None]) -> Spread | None:
    found = sorted(round(value) for value in values if value is not None)
    if not found:
        return None
    low, high = found[0], found[-1]
    parts = min(BARS, high - low + 1)
    bars = Counter((value - low) * parts // (high - low + 1) for value in found)
    return Spread(
        n=len(found),
        min=low,
        p50=_percentile(found, 0.5),
        mean=math.fsum(found) / len(found),
        p99=_percentile(found, 0.99),
        max=high,
        histogram=[bars[bar] for bar in range(parts)],
    )


def _percentile(ascending: Sequence[int], share: float) -> int:
    """The nearest rank."""
    return ascending[math.ceil(share * len(ascending)) - 1]


def _mean(values: Iterable[float | None]) -> float | None:
    found = [value for value in values if value is not None]
    return math.fsum(found) / len(found) if found else None
