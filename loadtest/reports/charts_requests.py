"""The requests of a run as columns, taken line by line from its journal: what charts of single requests draw. Pure.

A million records as structs take gigabytes; as columns they are some hundred megabytes, and no chart needs more.
"""

from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from loadtest.columns import Bounds, Columns, Floats, Requests
from loadtest.errors import ResultError
from loadtest.records import OUTCOMES, Outcome
from loadtest.result import LevelResult, Result
from loadtest.window import Window, window_of_figures

# So many levels are drawn request by request; more colours than this nobody tells apart.
MOST_LEVELS = 12
_NUMBERS = (
    "intended_ms", "sent_ms", "first_token_ms", "last_token_ms", "done_ms", "asked_output_tokens", "input_tokens",
    "output_tokens", "events",
)  # fmt: skip


class Drawn(NamedTuple):
    """A level of a run as charts take it. ``run`` is "" where there is but one; ``name`` is unique within its run.

    ``window`` holds the columns of all its requests, in the order of their ids, without their records; None where
    there are none, or they are not those of its figures. ``outcomes`` are places in OUTCOMES, one a request.
    """

    run: str
    name: str
    figures: LevelResult
    window: Window | None
    ids: Floats
    outcomes: Floats


class _Line(msgspec.Struct, gc=False):
    """What charts need of a record; the times between tokens, by far the most of a line, are passed over."""

    id: int
    level: int
    intended_ms: float
    outcome: Outcome
    asked_output_tokens: int | None = None
    sent_ms: float | None = None
    first_token_ms: float | None = None
    last_token_ms: float | None = None
    done_ms: float | None = None
    streamed: bool = True
    input_tokens: int | None = None
    output_tokens: int | None = None
    events: int = 0
    probe: bool = False


class Journal(NamedTuple):
    """The requests of one level, a value each: its numbers by name, NaN where there is none, and what else it is."""

    numbers: dict[str, Floats]
    ids: Floats
    outcomes: Floats
    streamed: Floats

    def columns(self) -> Columns:
        """As figures take them; what no chart needs is NaN throughout."""
        get, n = self.numbers.__getitem__, len(self.ids)
        unknown = np.broadcast_to(np.nan, n)
        known: dict[str, NDArray[Any]] = {
            "intended": get("intended_ms"),
            "sent": get("sent_ms"),
            "first_token": get("first_token_ms"),
            "last_token": get("last_token_ms"),
            "done": get("done_ms"),
            "input_tokens": get("input_tokens"),
            "asked_output_tokens": get("asked_output_tokens"),
            "output_tokens": get("output_tokens"),
            "events": get("events"),
            "ok": self.outcomes == OUTCOMES.index("ok"),
            "streamed": self.streamed == 1,
            "unsent": np.broadcast_to(np.False_, n),
        }
        return Columns(lambda name: known.get(name, unknown))


def journal(lines: Iterable[bytes], name: str) -> dict[int, Journal]:
    """The requests of each level by its place, without those of probe streams; a last line without its end is left out.

    Raises:
        ResultError: a line of it is no record; ``name`` is what the journal is called then.
    """
    decode = msgspec.json.Decoder(_Line).decode
    places = {outcome: float(place) for place, outcome in enumerate(OUTCOMES)}
    names = (*_NUMBERS, "id", "outcome", "streamed")
    found: dict[int, list[array[float]]] = {}
    nan = float("nan")
    for number, line in enumerate(lines, 1):
        if not line.endswith(b"\n"):
            break
        try:
            one = decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ResultError(f"{name}: line {number} is not a record ({error})") from None
        if one.probe:
            continue
        if (arrays := found.get(one.level)) is None:
            arrays = found[one.level] = [array("d") for _ in names]
        values = (
            one.intended_ms, one.sent_ms, one.first_token_ms, one.last_token_ms, one.done_ms, one.asked_output_tokens,
            one.input_tokens, one.output_tokens, one.events, one.id, places[one.outcome], one.streamed,
        )  # fmt: skip
        for column, value in zip(arrays, values, strict=True):
            column.append(nan if value is None else value)
    return {level: _journal([np.frombuffer(each) for each in arrays]) for level, arrays in found.items()}


def _journal(arrays: Sequence[Floats]) -> Journal:
    order = np.argsort(arrays[-3], kind="stable")
    *numbers, ids, outcomes, streamed = (each[order] for each in arrays)
    return Journal(dict(zip(_NUMBERS, numbers, strict=True)), ids, outcomes, streamed)


def drawn(result: Result, requests: Mapping[int, Journal], run: str = "") -> list[Drawn]:
    """The levels of ``result`` that were played, each with its requests where ``requests`` has them."""
    found: list[Drawn] = []
    names: dict[str, int] = {}
    nothing = np.empty(0)
    for place, level in enumerate(result.levels):
        if not level.counts.scheduled:
            continue
        names[level.name] = count = names.get(level.name, 0) + 1
        name = level.name if count == 1 else f"{level.name} #{count}"
        own = requests.get(place)
        window = None if own is None else _window(level, own.columns())
        found.append(Drawn(run, name, level, window, own.ids if own else nothing, own.outcomes if own else nothing))
    return found


def some(levels: Sequence[Drawn], most: int = MOST_LEVELS) -> list[Drawn]:
    """``levels`` that have requests or, of more than ``most``, so many of them evenly, the first and the last among."""
    known = [level for level in levels if level.window]
    if len(known) <= most:
        return known
    return [known[round(place)] for place in np.linspace(0, len(known) - 1, most)]


def _window(level: LevelResult, columns: Columns) -> Window | None:
    if len(columns.ok) != level.counts.scheduled:
        return None
    bounds = window_of_figures(level, columns)
    if bounds is None:
        # Nothing is measured, and what was played can be looked at all the same.
        return Window(Requests((), columns), np.zeros(len(columns.ok), dtype=np.bool_), Bounds(0.0, 0.0, 0.0))
    return Window(Requests((), columns), columns.belonging_to(bounds), bounds)
