"""Arrivals out of recorded traces, in the formats in which they are published.

    azure     CSV  TIMESTAMP,ContextTokens,GeneratedTokens: Azure LLM inference 2023 (Splitwise) and 2024 (DynamoLLM)
    burstgpt  CSV  Timestamp[,Session ID,Elapsed time],Model,Request tokens,Response tokens,Total tokens,Log Type
    mooncake  JSON Lines  {"timestamp": ms, "input_length": …, "output_length": …, "hash_ids": [one per 512 tokens]}
    jsonl     JSON Lines  {"timestamp": seconds or RFC 3339, "input_tokens": …, "output_tokens": …[, "session": …]}

Sources: github.com/Azure/AzurePublicDataset, github.com/HPMLL/BurstGPT, github.com/kvcache-ai/Mooncake.
"""

import math
from array import array
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from loadtest.errors import ScenarioError
from loadtest.schedule import stream
from loadtest.workload import sources
from loadtest.workload.lengths import MOST
from loadtest.workload.model import BLOCK_TOKENS, Row, Trace, TraceFormat, Turn
from loadtest.workload.sources import Items, Skip

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_SECOND = 1_000_000


class _Keys(NamedTuple):
    """What a format calls its values; ``unit_us`` is what a number of its timestamps counts."""

    at: str
    input: str
    output: str
    session: str
    blocks: str = ""
    unit_us: int = _SECOND


_KEYS: dict[TraceFormat, _Keys] = {
    "azure": _Keys("TIMESTAMP", "ContextTokens", "GeneratedTokens", ""),
    "burstgpt": _Keys("Timestamp", "Request tokens", "Response tokens", "Session ID"),
    "mooncake": _Keys("timestamp", "input_length", "output_length", "session_id", "hash_ids", 1000),
    "jsonl": _Keys("timestamp", "input_tokens", "output_tokens", "session"),
}


class _Arrival(NamedTuple):
    at_us: int
    input: int
    output: int
    session: object
    blocks: list[object]


class _Events:
    """The arrivals of a window, as plain numbers: some 30 bytes each, and 8 for each block."""

    def __init__(self, trace: Trace) -> None:
        self._start_us = round(trace.start_s * _SECOND)
        self._end_us = math.inf if trace.end_s is None else round(trace.end_s * _SECOND)
        self._sessions: dict[str, int] = {}
        self._blocks: dict[object, int] = {}
        self.first_us = self.last_us = 0
        self.seen = False
        self.at_us = array("q")
        self.input = array("i")
        self.output = array("i")
        self.session = array("i")  # -1: alone
        self.blocks = array("q")
        self.blocks_end = array("q")

    def add(self, arrival: _Arrival) -> None:
        at_us = arrival.at_us
        self.first_us = min(self.first_us, at_us) if self.seen else at_us
        self.last_us = max(self.last_us, at_us) if self.seen else at_us
        self.seen = True
        # What is after the window by the first arrival so far is so by an earlier one, too: it need not be kept.
        if at_us - self.first_us >= self._end_us:
            return
        self.at_us.append(at_us)
        self.input.append(arrival.input)
        self.output.append(arrival.output)
        session = arrival.session
        alone = session is None or session == ""
        self.session.append(-1 if alone else self._sessions.setdefault(str(session), len(self._sessions)))
        self.blocks.extend(self._blocks.setdefault(block, len(self._blocks)) for block in arrival.blocks)
        self.blocks_end.append(len(self.blocks))

    def window(self) -> "array[int]":
        """Make times count from the window's start; the places of the arrivals in it, by time."""
        import numpy as np  # noqa: PLC0415 - 50 ms that only a trace need pay

        times = np.frombuffer(self.at_us, np.int64)
        times -= self.first_us + self._start_us
        inside = np.flatnonzero((times >= 0) & (times < self._end_us - self._start_us))
        return array("q", inside[_by_time(times[inside])].tobytes())

    def span_us(self, last_us: int, gap_us: float) -> float:
        """The window's length; if the file ends within it, that to a gap after the last arrival."""
        whole = self.last_us - self.first_us >= self._end_us
        return self._end_us - self._start_us if whole else last_us + gap_us

    def turn(self, index: int, shift_us: int, copy: int, trace: Trace) -> Turn:
        """One arrival as a turn; a copy has blocks of its own."""
        own = copy * len(self._blocks)
        blocks = self.blocks[self.blocks_end[index - 1] if index else 0 : self.blocks_end[index]]
        at_s = (self.at_us[index] + shift_us) / _SECOND / trace.speed
        asked, answer = (max(1, round(many[index] * trace.lengths)) for many in (self.input, self.output))
        return Turn((), None, asked, answer, at_s, tuple(block + own for block in blocks))


def rows(trace: Trace, seed: int, add: Callable[[int, Row | Skip], None]) -> float:
    """Give each session of a trace to ``add`` in the order of its first arrival; returns the trace's length in seconds.

    Times count from the first arrival of the file, or from the window's start; they are taken as microseconds. The file
    need not be in order. ``scale`` gives each session so many copies: the whole part always, one more with the chance
    of the rest, by the seed. A copy comes up to one mean gap earlier or later than its original, as a whole, and shares
    blocks with the copies of the same number alone, as other users would. The length is that of the window, or if the
    file ends before, that to a mean gap after the last arrival.

    Raises:
        ScenarioError: the file cannot be read, is not of the format, or has no arrival in the window.
    """
    events = _Events(trace)
    for line, found in _arrivals(trace):
        if isinstance(found, Skip):
            add(line, found)
        else:
            events.add(found)
    order = events.window()
    if not order:
        if not events.seen:
            return 0.0
        to = "on" if trace.end_s is None else f"to {trace.end_s:g} s"
        raise ScenarioError(
            f"{trace.path}: no arrival lies in the window, from {trace.start_s:g} {to}: "
            f"the file has {(events.last_us - events.first_us) / _SECOND:g} s"
        )
    first_us, last_us = events.at_us[order[0]], events.at_us[order[-1]]
    gap_us = (last_us - first_us) / (len(order) - 1) if last_us > first_us else float(_SECOND)
    # A row is known by its first arrival; only of sessions is there more to keep than numbers in arrays.
    firsts, later = array("q"), dict[int, list[int]]()
    first_of: dict[int, int] = {}
    for index in order:
        session = events.session[index]
        first = index if session < 0 else first_of.setdefault(session, index)
        if first == index:
            firsts.append(index)
        else:
            later.setdefault(first, []).append(index)
    rng = stream(seed, "trace")
    begins, origins, copies = array("q"), array("q"), array("i")
    for first in firsts:
        at_us, end_us = events.at_us[first], events.at_us[later[first][-1] if first in later else first]
        for copy in range(math.floor(trace.scale) + (rng.random() < trace.scale % 1)):
            shift_us = round(rng.uniform(-gap_us, gap_us)) if copy else 0
            begins.append(at_us + max(first_us - at_us, min(shift_us, last_us - end_us)))
            origins.append(first)
            copies.append(copy)
    if not begins:
        raise ScenarioError(f"{trace.path}: scale {trace.scale:g} leaves none of its {len(firsts)} rows: raise it")
    for place in _by_time(begins).tolist():
        first, copy = origins[place], copies[place]
        shift_us = begins[place] - events.at_us[first]
        turns = [events.turn(index, shift_us, copy, trace) for index in (first, *later.get(first, ()))]
        add(0, Row(tuple(turns)))
    return events.span_us(last_us, gap_us) / _SECOND / trace.speed


def _by_time(times: "array[int] | NDArray[np.int64]") -> "NDArray[np.int64]":
    """The order that sorts them; what is equal stays as it is."""
    import numpy as np  # noqa: PLC0415

    return np.argsort(np.asarray(times), kind="stable")


def _arrivals(trace: Trace) -> Iterator[tuple[int, _Arrival | Skip]]:
    kind, items = _opened(trace)
    keys = _KEYS[kind]
    for line, item in items:
        if isinstance(item, Skip):
            yield line, item
        elif not isinstance(item, Mapping):
            yield line, Skip("not an object")
        else:
            yield line, _arrival(item, keys)


def _opened(trace: Trace) -> tuple[TraceFormat, Items]:
    """The format, as told or found, and the items of the file."""
    path, kind = trace.path, trace.format
    start = sources.head(path)
    if kind in ("mooncake", "jsonl") or (kind is None and start[:1] in (b"{", b"[")):
        named = f'"{_KEYS["mooncake"].input}"'.encode()
        return kind or ("mooncake" if named in start else "jsonl"), sources.objects(path)
    names, items = sources.table(path)
    known: list[TraceFormat] = [kind] if kind else ["azure", "burstgpt"]
    for kind in known:
        keys = _KEYS[kind]
        if {keys.at, keys.input, keys.output} <= {*names}:
            return kind, items
    wanted = " or ".join(f"{kind} ({_KEYS[kind].at}, {_KEYS[kind].input}, {_KEYS[kind].output})" for kind in known)
    raise ScenarioError(f"{path}: its columns are {', '.join(names)}, not those of {wanted}")


def _arrival(item: Mapping[str, Any], keys: _Keys) -> _Arrival | Skip:
    at_us = _time(item.get(keys.at), keys.unit_us)
    if at_us is None:
        return Skip(f"no {keys.at} that can be read")
    asked, answer = _tokens(item.get(keys.input)), _tokens(item.get(keys.output))
    if asked is None or answer is None:
        return Skip(f"no {keys.input if asked is None else keys.output}, of 1 or more")
    blocks = item.get(keys.blocks) or []
    if not isinstance(blocks, list) or not all(isinstance(block, int | str) for block in blocks):
        return Skip(f"{keys.blocks} that are no list of numbers")
    return _Arrival(at_us, asked, answer, item.get(keys.session), blocks[: math.ceil(asked / BLOCK_TOKENS)])


def _time(value: Any, unit_us: int) -> int | None:
    """Microseconds out of a number of units or an RFC 3339 time; without a time zone it is UTC."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        try:
            at = datetime.fromisoformat(value.strip())
        except (AttributeError, ValueError):
            return None
        return (at.replace(tzinfo=at.tzinfo or UTC) - _EPOCH) // _MICROSECOND
    return round(number * unit_us) if abs(number) < 1e12 else None


def _tokens(value: Any) -> int | None:
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return int(number) if 1 <= number <= MOST and number.is_integer() else None
