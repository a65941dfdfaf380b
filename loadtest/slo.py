"""Service level objectives as people write them, read into what they mean. Pure.

p99(ttft) < 300ms                        a percentile of a time, of every request that became due
mean(e2e) <= 8s                          its mean
error_rate < 0.1%                        a share of the requests
goodput(ttft < 300ms, tpot < 40ms) >= 99%    the share that met each limit
output_tokens_per_s > 2000               what came out per second
p99(tpot, turn=1) < 40ms                 of some requests only: turn=, workload=, model=, or level='c=16'
"""

import difflib
import re
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple, cast

import msgspec

from loadtest.duration import duration

Op = Literal["<", "<=", ">", ">="]
Unit = Literal["ms", "share", "per_s"]

TIMES = ("ttft", "ttfat", "e2e", "tpot", "itl", "service_ttft", "service_e2e")
SHARES = ("error_rate", "goodput")
RATES = ("output_tokens_per_s", "total_tokens_per_s", "requests_per_s", "samples_per_s", "events_per_s")
METRICS = (*TIMES, *SHARES, *RATES)
SCOPES = ("turn", "workload", "model", "level")
# Times that only a stream of tokens has.
STREAMED = frozenset({"ttft", "ttfat", "tpot", "itl", "service_ttft", "events_per_s"})

# What the same is called elsewhere.
_MEANT = {
    "latency": "e2e",
    "duration": "e2e",
    "inter_token_latency": "itl",
    "time_to_first_token": "ttft",
    "errors": "error_rate",
    "failed": "error_rate",
    "rps": "requests_per_s",
    "throughput": "output_tokens_per_s",
    "tps": "output_tokens_per_s",
}
_EXAMPLES = "such as p99(ttft) < 300ms, error_rate < 0.1% or goodput(ttft < 300ms, tpot < 40ms) >= 99%"
_FORM = re.compile(r"\s*(?P<name>[A-Za-z][\w.]*)\s*(?:\((?P<inside>.*)\))?\s*(?P<op>[<>]=?)\s*(?P<value>[^<>()=]+)")
_LIMIT = re.compile(r"(?P<metric>[A-Za-z]\w*)\s*(?P<op>[<>]=?)\s*(?P<value>[^<>()=]+)")
_SCOPE = re.compile(r"(?P<key>[A-Za-z_]\w*)\s*=\s*(?P<value>.+)")
_PART = re.compile(r"""(?:[^,'"]|'[^']*'|"[^"]*")+""")
_NUMBER = r"[0-9]+(?:\.[0-9]+)?"


class Limit(msgspec.Struct, frozen=True):
    """What a single request must keep to: a time, in ms."""

    metric: str
    op: Literal["<", "<="]
    limit: float


class Scope(msgspec.Struct, frozen=True):
    """Of which requests an SLO speaks; None: of all. ``level`` is a name, or some of the words of one."""

    turn: int | None = None
    workload: str | None = None
    model: str | None = None
    level: str | None = None

    def is_of(self, level: str) -> bool:
        """Whether the level of this name is meant."""
        return self.level is None or {*self.level.split()} <= {*level.split()}

    @property
    def of_some(self) -> bool:
        """Whether only some of a level's requests are meant."""
        return (self.turn, self.workload, self.model) != (None, None, None)

    def __str__(self) -> str:
        given = ((key, getattr(self, key)) for key in SCOPES)
        return ", ".join(f"{key}={_quoted(str(value))}" for key, value in given if value is not None)


class Measure(NamedTuple):
    """A figure by which a level is judged: a percentile (``quantile``) or mean (None) of a time, or a metric itself."""

    text: str
    metric: str
    quantile: float | None
    scope: Scope
    limits: tuple[Limit, ...]

    @property
    def unit(self) -> Unit:
        """What it is measured in."""
        return _unit(self.metric)


class Slo(msgspec.Struct, frozen=True):
    """One objective. ``limit`` is in ms, a share from 0 to 1, or per second, as ``unit`` says.

    ``quantile`` is 0.99 of p99; None of a mean, and of what is no time. ``limits`` are those of goodput; a goodput
    without them takes those of the other SLOs (``limits_of``).
    """

    text: str
    metric: str
    quantile: float | None
    op: Op
    limit: float
    scope: Scope = Scope()
    limits: tuple[Limit, ...] = ()

    @property
    def unit(self) -> Unit:
        """What ``limit`` and the value beside it are measured in."""
        return _unit(self.metric)


def parse(text: str) -> Slo:
    """Read one expression; times need their unit, a share is 99% or 0.99.

    Raises:
        ValueError: another form, an unknown metric (with the nearest and the list), or what no run could prove.
    """
    match = _FORM.fullmatch(text)
    if match is None:
        raise ValueError(f"expected METRIC OP LIMIT, {_EXAMPLES}")
    op, value = cast(Op, match["op"]), match["value"].strip()
    measured = measure(match["name"], match["inside"] or "", f" {op} {value}")
    _direction(measured.metric, op, value)
    return Slo(
        text=f"{measured.text} {op} {value}",
        metric=measured.metric,
        quantile=measured.quantile,
        op=op,
        limit=_value(measured.metric, op, value),
        scope=measured.scope,
        limits=measured.limits,
    )


def measure(name: str, inside: str, rest: str = "") -> Measure:
    """Read what stands before the operator: a name, and what is between the brackets behind it.

    ``rest`` is what follows, for the words of an error.

    Raises:
        ValueError: an unknown metric (with the nearest and the list), or one that is said in another way.
    """
    found = _Inside.read(inside)
    if (statistic := _statistic(name)) is not None:
        metric, quantile = _time_of(name, found.metrics), statistic.quantile
    else:
        metric, quantile = _metric(name), None
        if metric in TIMES:
            raise ValueError(f"{metric} is a time of each request: say which of them, such as p99({metric}){rest}")
        if found.metrics:
            raise ValueError(f"{metric} takes no {found.metrics[0]!r} between its brackets")
    if found.limits and metric != "goodput":
        raise ValueError("limits of single requests go with goodput: goodput(ttft < 300ms) >= 99%")
    arguments = [metric] if statistic else [f"{limit.metric} {limit.op} {said}" for limit, said in found.limits]
    within = ", ".join(filter(None, [*arguments, str(found.scope)]))
    return Measure(
        f"{name.lower()}{f'({within})' if within else ''}",
        metric,
        quantile,
        found.scope,
        tuple(limit for limit, _ in found.limits),
    )


def limits_of(slos: Iterable[Slo]) -> tuple[Limit, ...]:
    """What a request has to keep to, to be good by ``slos``: on each time the loosest limit, whatever its percentile.

    The gaps between tokens are many in one request, and so not among them, nor is what holds for some requests only.
    """
    found: dict[str, Limit] = {}
    for slo in slos:
        own = slo.limits
        if slo.quantile is not None and slo.metric != "itl":
            own = (Limit(slo.metric, cast(Literal["<", "<="], slo.op), slo.limit),)
        for limit in own if slo.scope == Scope() else ():
            if limit.metric not in found or found[limit.metric].limit < limit.limit:
                found[limit.metric] = limit
    return tuple(found.values())


def tightest_ms(slos: Iterable[Slo]) -> float | None:
    """The lowest limit on a time among ``slos``."""
    times = [slo.limit for slo in slos if slo.unit == "ms"] + [limit.limit for slo in slos for limit in slo.limits]
    return min(times, default=None)


class _Statistic(NamedTuple):
    quantile: float | None


class _Inside(NamedTuple):
    """What stands between the brackets: metrics, limits with their text, and the scope."""

    metrics: list[str]
    limits: list[tuple[Limit, str]]
    scope: Scope

    @classmethod
    def read(cls, text: str) -> "_Inside":
        metrics: list[str] = []
        limits: list[tuple[Limit, str]] = []
        scope: dict[str, str | int] = {}
        parts = [part.strip() for part in _PART.findall(text)]
        if text.strip() and (not all(parts) or _PART.sub("", text).strip(", ")):
            raise ValueError(f"expected {_EXAMPLES.removeprefix('such as ')}; between the brackets stands {text!r}")
        for part in parts:
            if limit := _LIMIT.fullmatch(part):
                limits.append((_limit(limit), limit["value"].strip()))
            elif found := _SCOPE.fullmatch(part):
                key = found["key"]
                if key in scope:
                    raise ValueError(f"{key} is given twice")
                scope[key] = _scoped(key, found["value"])
            else:
                metrics.append(part)
        return cls(metrics, limits, msgspec.convert(scope, Scope))


def _statistic(name: str) -> _Statistic | None:
    lower = name.lower()
    if lower in ("mean", "avg", "average"):
        if lower != "mean":
            raise ValueError(f"{name}: write mean")
        return _Statistic(None)
    if lower in ("max", "p100"):
        raise ValueError(f"{name}: no run proves what the slowest request ever will be; write p99.9, or p99")
    if lower in ("median", "med"):
        raise ValueError(f"{name}: write p50")
    match = re.fullmatch(r"p([0-9]+(?:\.[0-9]+)?)", lower)
    if match is None:
        return None
    percent = float(match[1])
    if percent >= 100 and match[1].startswith("99"):
        raise ValueError(f"{name}: write p{match[1][:2]}.{match[1][2:]}")
    if not 1 <= percent <= 99.999:
        raise ValueError(f"{name}: a percentile is from p1 to p99.999")
    return _Statistic(round(percent / 100, 7))


def _time_of(statistic: str, metrics: Sequence[str]) -> str:
    if len(metrics) != 1:
        raise ValueError(f"{statistic} is of one time: write {statistic}(ttft), of {', '.join(TIMES)}")
    metric = _metric(metrics[0])
    if metric not in TIMES:
        raise ValueError(f"{metric} is one figure and has no {statistic}: write {metric} without it")
    return metric


def _metric(name: str) -> str:
    spelt = name.lower().replace("-", "_")
    if spelt in METRICS:
        return spelt
    close = _MEANT.get(spelt.removesuffix("_ms")) or next(iter(difflib.get_close_matches(spelt, METRICS, n=1)), None)
    hint = f"did you mean {close}? " if close else ""
    raise ValueError(f"{name!r} is no metric: {hint}They are {', '.join(METRICS)}, and p99(…), mean(…) of the times")


def _limit(match: re.Match[str]) -> Limit:
    metric, op = _metric(match["metric"]), match["op"]
    if metric not in TIMES or metric == "itl":
        raise ValueError(f"{metric} is no time that one request has: {', '.join(t for t in TIMES if t != 'itl')} are")
    _direction(metric, cast(Op, op), match["value"].strip())
    return Limit(metric, cast(Literal["<", "<="], op), _value(metric, cast(Op, op), match["value"].strip()))


def _scoped(key: str, text: str) -> str | int:
    if key not in SCOPES:
        close = difflib.get_close_matches(key, SCOPES, n=1)
        raise ValueError(
            f"{key!r} is no scope: {f'did you mean {close[0]}? ' if close else ''}They are {', '.join(SCOPES)}"
        )
    value = text.strip()
    if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"":
        value = value[1:-1]
    if key != "turn":
        return value
    if not re.fullmatch(r"[1-9][0-9]{0,5}", value, re.ASCII):
        raise ValueError(f"turn={value}: turns count from 1")
    return int(value)


def _direction(metric: str, op: Op, value: str) -> None:
    """An SLO keeps times and errors low, and goodput and throughput high."""
    low = metric in TIMES or metric == "error_rate"
    if op.startswith("<") != low:
        raise ValueError(f"{metric} is to be {'low' if low else 'high'}: write {'<' if low else '>'} {value}")


def _value(metric: str, op: Op, text: str) -> float:
    """A limit that some run could prove."""
    found = quantity(metric, text)
    if metric in TIMES and not found:
        raise ValueError(f"{metric} {op} {text} can never be")
    if metric in SHARES and found in (0, 1):
        sure, nearly = (0, "0.1%") if metric == "error_rate" else (1, "99.9%")
        if found == sure:
            raise ValueError(f"{metric} {op} {text}: no number of requests proves it; write for example {nearly}")
        mend = f"1%, if you mean that, or {nearly}" if text == "1" else nearly
        raise ValueError(f"{metric} {op} {text} says nothing: write {mend}")
    return found


def quantity(metric: str, text: str) -> float:
    """What stands behind the operator, in the unit of ``metric``: ms, a share from 0 to 1, or per second.

    Raises:
        ValueError: it is none.
    """
    if metric in TIMES:
        try:
            return round(duration(text) * 1000, 3)
        except ValueError:
            raise ValueError(f"{metric}: expected a time with its unit, such as 300ms or 8s, got {text!r}") from None
    match = re.fullmatch(rf"({_NUMBER})\s*(%?)", text, re.ASCII)
    if match is None or (match[2] and metric in RATES):
        form = "99% or 0.99" if metric in SHARES else "2000"
        raise ValueError(f"{metric}: expected {form}, got {text!r}")
    if metric in RATES:
        return float(match[1])
    share = round(float(match[1]) / (100 if match[2] else 1), 9)
    if share > 1:
        raise ValueError(f"{metric}: a share is at most 100%: write {match[1]}%, or a fraction such as 0.99")
    return share


def _unit(metric: str) -> Unit:
    return "ms" if metric in TIMES else "share" if metric in SHARES else "per_s"


def _quoted(value: str) -> str:
    return value if re.fullmatch(r"[\w./:-]+", value) else f'"{value}"' if "'" in value else f"'{value}'"
