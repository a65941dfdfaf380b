"""What is wrong with a scenario: every fault at once, each in words of the file."""

import difflib
import re
from collections.abc import Iterator
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from loadtest.duration import duration, duration_text
from loadtest.scenario import form
from loadtest.scenario.document import Document, Fault, Keys, Place, dotted

LOADS = ("concurrency", "rate", "stages", "trace")
"""The keys that say what a load is: one of them is given, and a block with one does not inherit another."""

_EXCLUDES = {
    ("concurrency", "rate"): "a rate is an open loop, a concurrency a closed one",
    ("concurrency", "stages"): "stages are an open loop, a concurrency a closed one",
    ("rate", "stages"): "stages have rates of their own",
    ("concurrency", "trace"): "a trace is an open loop, a concurrency a closed one",
    ("rate", "trace"): "a trace has times of its own",
    ("stages", "trace"): "a trace has times of its own",
}
_SHOWN = 60


def check(document: Document) -> tuple[form.File | None, list[Fault]]:
    """The values of the document in their types, or None, and all its faults; a file without any is whole."""
    try:
        file, faults = form.File.model_validate(document.data, context=document.folder), []
    except ValidationError as error:
        file, faults = None, [_fault(found, document) for found in error.errors(include_url=False)]
    return file, [*document.faults, *faults, *_contradictions(document)]


def message(faults: list[Fault]) -> str:
    """All faults, those of the file in its order, then those of flags."""
    ordered = sorted(set(faults), key=lambda fault: (fault.place.line or 10**9, fault.place.column or 0, str(fault)))
    if len(ordered) == 1:
        return str(ordered[0])
    return "\n  ".join([f"the scenario has {len(ordered)} faults:", *map(str, ordered)])


def mapping(data: dict[str, Any], key: str) -> dict[str, Any]:
    """A section of the file; empty when it is not there or not a mapping."""
    section = data.get(key)
    return section if isinstance(section, dict) else {}


def blocks_of(data: dict[str, Any]) -> list[tuple[Keys, dict[str, Any]]]:
    """The blocks of the file that are mappings, each with the way to it."""
    levels = data.get("levels")
    numbered = enumerate(levels) if isinstance(levels, list) else ()
    return [(("levels", index), block) for index, block in numbered if isinstance(block, dict)]


def load_of(*sections: dict[str, Any]) -> str:
    """Which of ``LOADS`` is played: that of the first of ``sections`` that gives one."""
    given = (key for section in sections for key in LOADS if section.get(key) is not None)
    return next(given, "concurrency")


def place_of(places: dict[Keys, Place], at: Keys) -> Place:
    """Where the value stands, or the innermost one around it that has a place."""
    while at not in places:
        at = at[:-1]
    return places[at]


def no_mapping(value: object) -> str:
    """The fault of a section that is something else."""
    return f"expected a mapping of keys to values, got {_shown(value)}"


def _fault(error: ErrorDetails, document: Document) -> Fault:
    at: Keys = error["loc"]
    if error["type"] == "extra_forbidden":
        return Fault(document.keys[at], dotted(at), _unknown(at))
    place = place_of(document.values, at)
    if (isinstance(at[-1], int) and (len(at) > 2 or at[0] == "model")) or error["type"] == "missing":
        at = at[:-1]  # the place of an item says which it is; what is missing has none
    return Fault(place, dotted(at) if place.line else "", _expected(error))


def _unknown(at: Keys) -> str:
    key = str(at[-1])
    section = next((str(key) for key in reversed(at[:-1]) if key in form.SECTIONS), "")
    fields = form.SECTIONS.get(section, form.File).model_fields
    known = [field.alias or name for name, field in fields.items()]
    if key.endswith(")") and "(" not in key:
        return 'belongs to the value before it: between { } write "uniform(64, 192)" in quotes'
    spelt = key.lower().replace("-", "_")
    elsewhere = [name for name, model in form.SECTIONS.items() if spelt in model.model_fields]
    if elsewhere and spelt not in known:
        return f"unknown key here; it belongs under {elsewhere[0]!r}"
    if section and spelt in form.File.model_fields and spelt not in known:
        return "unknown key here; it belongs at the top of the file"
    close = difflib.get_close_matches(spelt, known, n=1)
    if close:
        return f"unknown key; did you mean {close[0]!r}?"
    return f"unknown key; expected one of {', '.join(known)}"


def _expected(error: ErrorDetails) -> str:
    """What was expected and what was there, in words of the file rather than of the validator."""
    value = error["input"]
    context = error.get("ctx", {})
    got = f", got {_shown(value)}"
    match error["type"]:
        case "value_error":
            text = str(context["error"])
            return text + got if text.startswith("expected") else text
        case "int_type" | "int_from_float":
            return f"expected a whole number{got}"
        case "float_type" | "finite_number":
            return f"expected a number{got}"
        case "bool_type":
            return f"expected true or false{got}"
        case "string_type":
            return f"expected text{got}" + ("" if isinstance(value, dict | list) else ": put it in quotes")
        case "literal_error":
            choices = re.findall(r"'([^']*)'", context["expected"])
            close = difflib.get_close_matches(str(value).lower(), choices, n=1)
            return f"expected {context['expected']}{got}" + (f"; did you mean {close[0]!r}?" if close else "")
        case "greater_than_equal":
            return f"expected at least {_shown(context['ge'])}{got}"
        case "greater_than":
            return f"expected more than {_shown(context['gt'])}{got}"
        case "less_than_equal":
            return f"expected at most {_shown(context['le'])}{got}"
        case "less_than":
            return f"expected less than {_shown(context['lt'])}{got}"
        case "missing":
            return f"is missing {error['loc'][-1]!r}"
        case "model_type":
            return no_mapping(value)
        case "list_type":
            return f"expected a list{got}"
        case "too_short" | "string_too_short":
            return "is empty: expected a value, or remove the key"
        case "too_long":
            return f"expected at most {context['max_length']} values, got {context['actual_length']}"
        case "string_too_long":
            return f"expected at most {context['max_length']} characters, got {len(value)}"
        case "string_pattern_mismatch" if error["loc"] == ("name",):
            return f"expected letters, digits, '.', '_' and '-', beginning with a letter or digit{got}"
        case "string_pattern_mismatch" | "string_unicode":
            return f"expected text without control characters{got}"
    return f"{error['msg']}{got}"


def _shown(value: object) -> str:
    match value:
        case None:
            return "nothing"
        case bool():
            return str(value).lower()
        case dict():
            return "a mapping"
        case list():
            return "a list"
        case float():
            return repr(value).removesuffix(".0")
    text = ascii(value) if isinstance(value, str) and not value.isprintable() else repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _contradictions(document: Document) -> Iterator[Fault]:
    """Faults between keys. Reads the raw values, so that they are found beside faults of single ones."""
    data = document.data
    load, blocks = mapping(data, "load"), blocks_of(data)
    for at, axes in [(("load",), load), *blocks]:
        first, *others = [key for key in LOADS if axes.get(key) is not None] or [""]
        for other in others:
            excluded, here = (*at, first), (*at, other)
            text = f"excludes {_where(document, excluded, here)}: {_EXCLUDES[first, other]}; keep one"
            yield _between(document, here, text)
        stages = axes.get("stages")
        for keys, text in _stage_faults(stages if isinstance(stages, list) else []):
            yield _between(document, (*at, "stages", *keys), text)

    played: dict[Keys, Any] = {}  # the loads that are played, by where they stand
    for at, axes in blocks or [(("load",), load)]:
        key = load_of(axes, load)
        played[(*at, key) if axes.get(key) is not None else ("load", key)] = axes.get(key) or load.get(key)
    for key, text in _load_faults(load, open_loop=any(at[-1] != "concurrency" for at in played)):
        yield _between(document, ("load", key), text)
    yield from _time_faults(document, load, played)
    yield from _slot_faults(document, mapping(data, "server"), [block for _, block in blocks])


def _between(document: Document, at: Keys, text: str) -> Fault:
    """The fault at a value that is given."""
    place = document.values.get(at) or document.keys[at]
    return Fault(place, dotted(at) if place.line else "", text)


def _where(document: Document, at: Keys, seen_from: Keys) -> str:
    """The name of a value and where it stands."""
    place, here = document.values.get(at), document.values[seen_from]
    if place is None:
        return f"the default {at[-1]}"
    near = place.line and place.origin == here.origin
    return f"{at[-1]} ({f'line {place.line}' if near else place.source})"


def _load_faults(load: dict[str, Any], open_loop: bool) -> Iterator[tuple[str, str]]:
    """The settings of a load that would do nothing, by key."""
    for key in ("arrival", "max_in_flight"):
        if load.get(key) is not None and not open_loop:
            yield key, "applies to an open loop only: give a rate or stages, or remove it"
    if load.get("burstiness") is not None and load.get("arrival") != "gamma":
        yield "burstiness", "applies to the arrival 'gamma' only: ask for that, or remove it"
    if load.get("when_full") is not None and load.get("max_in_flight") is None:
        yield "when_full", "applies to max_in_flight only: give that, or remove it"


def _time_faults(document: Document, load: dict[str, Any], played: dict[Keys, Any]) -> Iterator[Fault]:
    """What is wrong between the duration, the warm-up and the stages, which have durations of their own."""
    duration_at, warmup_at = ("load", "duration"), ("load", "warmup")
    lasting = {at: _total_s(stages) for at, stages in played.items() if at[-1] == "stages"}
    if len(lasting) == len(played):
        if load.get("duration") is not None:
            stages = _where(document, next(iter(lasting)), duration_at)
            text = f"excludes {stages}: these last as long as each of them says; keep one"
            yield _between(document, duration_at, text)
    elif load.get("duration") is not None:
        lasting[duration_at] = _seconds(load["duration"])
    elif load.get("requests") is None:
        lasting[duration_at] = form.DEFAULTS["load.duration"]
    elif _seconds(load.get("warmup")):
        text = "needs a duration: a level bounded by requests alone is measured whole; remove one"
        yield _between(document, warmup_at, text)
    warmup = _seconds(load.get("warmup"))
    for at, lasts in lasting.items():
        if warmup and lasts is not None and warmup >= lasts:
            text = f"expected less than {_where(document, at, warmup_at)} of {duration_text(lasts)}"
            text += f", got {duration_text(warmup)}: nothing would be left to measure"
            yield _between(document, warmup_at, text)


def _slot_faults(document: Document, server: dict[str, Any], blocks: list[dict[str, Any]]) -> Iterator[Fault]:
    """Too few slots for the largest batch."""
    slots = server.get("kv_slots")
    sizes = [axes.get("max_batch_size") or server.get("max_batch_size") for axes in blocks or [server]]
    largest = max(
        (
            size
            for given in sizes
            for size in (given if isinstance(given, list) else [given or form.DEFAULTS["server.max_batch_size"][0]])
            if isinstance(size, int)
        ),
        default=0,
    )
    if isinstance(slots, int) and slots < largest:
        text = f"expected at least the largest max_batch_size ({largest}), got {slots}"
        yield _between(document, ("server", "kv_slots"), text)


def _stage_faults(stages: list[Any]) -> Iterator[tuple[Keys, str]]:
    """What is wrong between the keys of stages, and where within the list."""
    known = {field.alias or name for name, field in form.Stage.model_fields.items()}
    for index, stage in enumerate(stages):
        if not isinstance(stage, dict) or not stage.keys() <= known:
            continue  # told of elsewhere, and perhaps it is the rate that is misspelt
        ends = [key for key in ("from", "to") if stage.get(key) is not None]
        if stage.get("rate") is not None and ends:
            yield (index, "rate"), "excludes from and to: a stage has one rate or goes from one to another; keep one"
        elif stage.get("rate") is None and not ends:
            yield (index,), "is missing its rate: write rate: 5, or from: 5, to: 50"
        elif stage.get("rate") is None and len(ends) == 1:
            missing = "to" if ends == ["from"] else "from"
            yield (index,), f"is missing {missing!r}: a stage goes from one rate to another"
    if stages and all(isinstance(stage, dict) and _is_pause(stage) for stage in stages):
        yield (), "are all of rate 0: nothing would be sent"


def _is_pause(stage: dict[str, Any]) -> bool:
    rates = [stage[key] for key in ("rate", "from", "to") if stage.get(key) is not None]
    return bool(rates) and all(rate == 0 for rate in rates)


def _total_s(stages: Any) -> float | None:
    """How long stages last together, or None where that is not known because one is wrong."""
    listed = stages if isinstance(stages, list) else [stages]
    each = [_seconds(stage.get("duration")) if isinstance(stage, dict) else None for stage in listed]
    return None if None in each else sum(filter(None, each))


def _seconds(value: object) -> float | None:
    """A duration, or None where there is none or validation reports it."""
    try:
        return duration(value)
    except ValueError:
        return None
