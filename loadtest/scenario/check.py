"""What is wrong with a scenario: every fault at once, each in words of the file."""

import difflib
import re
from collections.abc import Iterator
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from loadtest.scenario import form
from loadtest.scenario.document import Document, Fault, Keys, Place, dotted

_SHOWN = 60


def check(document: Document) -> tuple[form.File | None, list[Fault]]:
    """The values of the document in their types, or None, and all its faults; a file without any is whole."""
    try:
        file, faults = form.File.model_validate(document.data), []
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
    if (isinstance(at[-1], int) and at[0] != "levels") or len(at) == 4:
        at = at[:-1]  # an item of an axis: its place says which
    return Fault(place, dotted(at) if place.line else "", _expected(error))


def _unknown(at: Keys) -> str:
    key = str(at[-1])
    section = str(at[0]) if len(at) > 1 else ""
    known = (form.Block if section == "levels" else form.SECTIONS.get(section, form.File)).model_fields
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
    data, places = document.data, document.keys | document.values
    load, server, blocks = mapping(data, "load"), mapping(data, "server"), blocks_of(data)

    def fault(at: Keys, text: str) -> Fault:
        place = places[at]
        return Fault(place, dotted(at) if place.line else "", text)

    def where(at: Keys, seen_from: Keys) -> str:
        place = places.get(at)
        if place is None:
            return f"the default {at[-1]}"
        near = place.line and place.origin == places[seen_from].origin
        return f"{at[-1]} ({f'line {place.line}' if near else place.source})"

    for at, axes in [(("load",), load), *blocks]:
        if axes.get("concurrency") is not None and axes.get("rate") is not None:
            rate, concurrency = (*at, "rate"), (*at, "concurrency")
            yield fault(
                rate,
                f"excludes {where(concurrency, rate)}: a rate is an open loop, a concurrency a closed one; keep one",
            )
    rates = [axes for axes in (load, *(block for _, block in blocks)) if axes.get("rate") is not None]
    if load.get("arrival") is not None and not rates:
        yield fault(("load", "arrival"), "applies to a rate only (open loop): give a rate, or remove it")

    warmup, duration = _seconds(load.get("warmup")), _seconds(load.get("duration"))
    if load.get("duration") is None and load.get("requests") is None:
        duration = form.DEFAULTS["load.duration"]
    if warmup and load.get("duration") is None and load.get("requests") is not None:
        yield fault(
            ("load", "warmup"), "needs a duration: a level bounded by requests alone is measured whole; remove one"
        )
    elif warmup and duration is not None and warmup >= duration:
        yield fault(
            ("load", "warmup"),
            f"expected less than {where(('load', 'duration'), ('load', 'warmup'))} of {form.duration_text(duration)}, "
            f"got {form.duration_text(warmup)}: nothing would be left to measure",
        )

    slots = server.get("kv_slots")
    sizes = [axes.get("max_batch_size") or server.get("max_batch_size") for axes in [b for _, b in blocks] or [server]]
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
        yield fault(("server", "kv_slots"), f"expected at least the largest max_batch_size ({largest}), got {slots}")


def _seconds(value: object) -> float | None:
    """A duration, or None where there is none or validation reports it."""
    try:
        return form.duration(value)
    except ValueError:
        return None
