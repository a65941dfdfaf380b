"""When a level is to end before its time: a condition that has held for a while. Pure.

error_rate > 50% for 5s     of the requests that finished in the last 5 s, more than half failed
in_flight > 500 for 10s     more than 500 requests were waiting for an answer for 10 s on end
silence > 60s               requests were waiting for an answer, and the target sent nothing at all for 60 s
"""

import difflib
import operator
import re
from collections import deque
from typing import Literal, NamedTuple, cast

import msgspec

from loadtest.duration import duration, duration_text

Metric = Literal["error_rate", "in_flight", "silence"]
METRICS: tuple[Metric, ...] = ("error_rate", "in_flight", "silence")
DEFAULT_FOR_S = 5.0
_LEAST_SILENCE_S = 1.0

_HOLDS = {">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le}
_FORM = re.compile(
    r"\s*(?P<metric>[A-Za-z][\w-]*)\s*(?P<op>[<>]=?)\s*(?P<value>[0-9]+(?:\.[0-9]+)?)\s*(?P<percent>%?)"
    r"(?:\s*\bfor\b\s*(?P<time>.*?))?\s*",
    re.ASCII,
)
_SILENCE = re.compile(r"\s*silence\s*>=?\s*(?P<time>[0-9].*?)\s*", re.ASCII | re.IGNORECASE)
_EXAMPLES = "'error_rate > 50% for 5s', 'in_flight > 500 for 10s' or 'silence > 60s'"


class Rule(msgspec.Struct, frozen=True):
    """A condition and for how long it must hold. ``value`` is a share (0..1) for error_rate, else a number.

    Of silence it is that time that counts, and ``value`` is 0.
    """

    metric: Metric
    op: Literal[">", ">=", "<", "<="]
    value: float
    for_s: float

    def __str__(self) -> str:
        if self.metric == "silence":
            return f"silence > {duration_text(self.for_s)}"
        limit = _percent(self.value) if self.metric == "error_rate" else f"{self.value:.15g}"
        return f"{self.metric} {self.op} {limit} for {duration_text(self.for_s)}"


def parse(text: str) -> Rule:
    """Read ``METRIC OP VALUE [for TIME]``; without a time it is 5 s.

    METRIC is ``error_rate``, with a VALUE such as ``50%`` or ``0.5``, or ``in_flight``. OP is >, >=, < or <=.
    TIME has its unit; ``in_flight`` takes ``0s`` as well, which is as soon as it is seen. Or read ``silence > TIME``.

    Raises:
        ValueError: another form, an unknown metric, or a value that could never be met.
    """
    if silence := _SILENCE.fullmatch(text):
        try:
            silent_s = duration(silence["time"])
        except ValueError as error:
            raise ValueError(f"a silence lasts a time, such as 'silence > 60s': {error}") from None
        if silent_s < _LEAST_SILENCE_S:
            raise ValueError(f"a silence is told from {_LEAST_SILENCE_S:g} s on: write for example 'silence > 60s'")
        return Rule("silence", ">", 0.0, silent_s)
    match = _FORM.fullmatch(text)
    if match is None:
        raise ValueError(f"expected METRIC OP VALUE for TIME, such as {_EXAMPLES}")
    name, op, percent = match["metric"], match["op"], bool(match["percent"])
    spelt = name.lower().replace("-", "_")
    if spelt == "silence":
        raise ValueError(f"a silence lasts a time: write for example 'silence > 60s', not {text.strip()!r}")
    if spelt not in METRICS:
        close = difflib.get_close_matches(spelt, METRICS, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise ValueError(f"{name!r} is no metric to abort on: they are {', '.join(METRICS)}{hint}")
    metric = cast(Metric, spelt)
    # Rounded, so that 0.7% is the same number as 7 failures of 1,000.
    value = round(float(match["value"]) / (100 if percent else 1), 12)
    if metric == "error_rate" and value > 1:
        mend = "it is at most 100%" if percent else f"write {match['value']}% or a fraction such as 0.5"
        raise ValueError(f"an error_rate of {match['value']}{match['percent']} cannot be: {mend}")
    if metric == "in_flight" and percent:
        raise ValueError(f"in_flight is a number of requests and takes no %: write {match['value']}")
    try:
        for_s = DEFAULT_FOR_S if match["time"] is None else duration(match["time"])
    except ValueError as error:
        raise ValueError(f"after 'for': {error}, got {match['time']!r}") from None
    if metric == "error_rate" and for_s == 0:
        raise ValueError("an error_rate is that of a time: write for example 'for 5s'")
    if (op == ">" and metric == "error_rate" and value == 1) or (op == "<" and value == 0):
        raise ValueError(f"{metric} {op} {match['value']}{match['percent']} can never be: write {op}=")
    return Rule(metric, cast(Literal[">", ">=", "<", "<="], op), value, for_s)


class _Look(NamedTuple):
    at_s: float
    ok: int
    failed: int


class Watch:
    """Watches one level for ``rule``. Fed a few times a second, it says once when the level is to end, and why."""

    def __init__(self, rule: Rule) -> None:
        self._rule = rule
        self._holds = _HOLDS[rule.op]
        self._looks: deque[_Look] = deque()
        self._held_since_s: float | None = None

    def see(
        self, now_s: float, finished_ok: int, failed: int, in_flight: int, silent_s: float = 0.0
    ) -> str | None:  # fmt: skip
        """Take in what is known at ``now_s`` (any clock that never goes back) and judge.

        ``finished_ok`` and ``failed`` are the level's totals so far, ``in_flight`` is the number at this moment, and
        ``silent_s`` how long the target has sent nothing though it owes answers.
        Returns the reason to abort, with its figures, once the condition has held over the rule's whole time: for
        ``error_rate`` that of the requests which finished within it (none is no reason), for ``in_flight`` at
        every look within it. None otherwise.
        """
        if self._rule.metric == "silence":
            if silent_s <= self._rule.for_s:
                return None
            return f"{self._rule}: {in_flight:,} requests are in flight, and no byte has come for {silent_s:.1f} s"
        if self._rule.metric == "error_rate":
            return self._error_rate(_Look(now_s, finished_ok, failed))
        return self._in_flight(now_s, in_flight)

    def _error_rate(self, now: _Look) -> str | None:
        looks, start_s = self._looks, now.at_s - self._rule.for_s
        looks.append(now)
        # The window starts at the last look that lies a whole time back, so it is never shorter than asked.
        while len(looks) > 1 and looks[1].at_s <= start_s:
            looks.popleft()
        then = looks[0]
        failed, finished = now.failed - then.failed, now.ok + now.failed - then.ok - then.failed
        if then.at_s > start_s or finished == 0 or not self._holds(failed / finished, self._rule.value):
            return None
        return (
            f"{self._rule}: {failed:,} of the {finished:,} requests that finished in the last "
            f"{now.at_s - then.at_s:.1f} s failed ({_percent(failed / finished, digits=3)})"
        )

    def _in_flight(self, now_s: float, in_flight: int) -> str | None:
        if not self._holds(in_flight, self._rule.value):
            self._held_since_s = None
            return None
        if self._held_since_s is None:
            self._held_since_s = now_s
        held_s = now_s - self._held_since_s
        if held_s < self._rule.for_s:
            return None
        return f"{self._rule}: {in_flight:,} requests are in flight, and it has been so for {held_s:.1f} s"


def _percent(share: float, digits: int = 15) -> str:
    return f"{share * 100:.{digits}g}%"
