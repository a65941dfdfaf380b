"""From a file and flags to a complete scenario, or to every fault in them at once."""

import difflib
import hashlib
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from loadtest.errors import ScenarioError
from loadtest.scenario import catalog, form
from loadtest.scenario.document import Document, Fault, Keys, Place, dotted, parse, read, scalar
from loadtest.scenario.model import Block, Override, Resolved, Scenario, ServerSettings
from loadtest.scenario.text import write

_FLAGS: dict[str, tuple[str, ...]] = {
    "concurrency": ("load", "concurrency"),
    "rate": ("load", "rate"),
    "arrival": ("load", "arrival"),
    "requests": ("load", "requests"),
    "duration": ("load", "duration"),
    "warmup": ("load", "warmup"),
    "grace": ("load", "grace"),
    "input_tokens": ("workload", "input_tokens"),
    "output_tokens": ("workload", "output_tokens"),
    "endpoint": ("endpoint",),
    "stream": ("stream",),
    "model": ("model",),
    "seed": ("seed",),
    "timeout": ("timeouts", "total"),
    "connect_timeout": ("timeouts", "connect"),
    "stall_timeout": ("timeouts", "stall"),
    "scheduler": ("server", "scheduler"),
    "max_batch_size": ("server", "max_batch_size"),
    "batch_timeout_ms": ("server", "batch_timeout_ms"),
    "provider": ("server", "provider"),
    "dtype": ("server", "dtype"),
    "threads": ("server", "threads"),
    "serve_model": ("server", "model"),
}
_AXES: dict[str, str] = {
    "concurrency": "load",
    "rate": "load",
    "input_tokens": "workload",
    "output_tokens": "workload",
    "scheduler": "server",
    "max_batch_size": "server",
}
"""The keys of a block, and the section that gives what a block does not."""
_TEXTS = {"model", "serve_model"}  # never read as a number: a model may be called 7


_COMMAS = re.compile(r",(?![^(]*\))")  # not those inside uniform(64, 192)
_MAX_LEVELS = 1000
_SHOWN = 60


def resolve(source: str | None, overrides: dict[str, Override]) -> Resolved:
    """See ``loadtest.scenario.load``."""
    name, document = _document(source)
    _apply(overrides, document)
    file, faults = _validate(document)
    faults = [*document.faults, *faults, *_contradictions(document)]
    if file is None or faults:
        raise ScenarioError(_message(faults))
    scenario, sources = _build(name, file, document.values)
    count = sum(_levels(block) for block in scenario.levels)
    if count > _MAX_LEVELS:
        raise ScenarioError(
            f"{source or scenario.name}: the axes make {count} levels, at most {_MAX_LEVELS} can be played in one "
            "run: shorten an axis"
        )
    text = write(scenario, sources)
    return Resolved(scenario, sources, text, hashlib.sha256(text.encode()).hexdigest())


def _document(source: str | None) -> tuple[str, Document]:
    """The default name of the scenario in ``source``, and its values."""
    if source is None:
        return "flags", Document({}, {}, {}, [])
    path = Path(source)
    names = catalog.paths()
    named = source in names or not (path.suffix in {".yaml", ".yml"} or path.name != source or path.exists())
    if named:
        path = catalog.find(source)
    elif path.stem in names and not path.exists():
        raise ScenarioError(f"{source}: no such file; did you mean the preset {path.stem!r}?")
    origin = path.name if named else source if source.isprintable() else ascii(source)
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", path.stem).lstrip("._-")[:100]
    return stem or "scenario", parse(read(path, origin), origin)


def _apply(overrides: dict[str, Override], document: Document) -> None:
    """Put the overrides in the place of what the file says, in every block."""
    data, values = document.data, document.values
    replaced = _AXES.keys() & overrides.keys()
    if replaced & {"concurrency", "rate"}:
        replaced |= {"concurrency", "rate"}
        if "rate" not in overrides:
            _mapping(data, "load").pop("arrival", None)
    for axis in replaced:
        _mapping(data, _AXES[axis]).pop(axis, None)
        for _, block in _blocks(data):
            block.pop(axis, None)
    for flag, override in overrides.items():
        at = _FLAGS[flag]
        section, key = at if len(at) == 2 else ("", at[0])
        for stale in [keys for keys in values if keys[: len(at)] == at]:
            del values[stale]
        values[at] = Place(override.origin)
        if section and not isinstance(data.get(section), dict):
            if data.get(section) is not None:  # noted here, as the section is about to be replaced by a good one
                document.faults.append(Fault(values[section,], section, _no_mapping(data[section])))
            data[section] = {}
        (data[section] if section else data)[key] = _typed(flag, override.value)


def _typed(flag: str, text: str) -> Any:
    """The text of a flag as the file would give it."""
    if flag in _TEXTS:
        return text
    # "null" means "not given" in a file; nobody passes a flag in order not to give it
    items = [item if (value := scalar(item)) is None else value for item in map(str.strip, _COMMAS.split(text))]
    return items if flag in _AXES else items[0] if len(items) == 1 else text


def _mapping(data: dict[str, Any], key: str) -> dict[str, Any]:
    """A section of the file; empty when it is not there or not a mapping."""
    section = data.get(key)
    return section if isinstance(section, dict) else {}


def _blocks(data: dict[str, Any]) -> list[tuple[Keys, dict[str, Any]]]:
    """The blocks of the file that are mappings, each with the way to it."""
    levels = data.get("levels")
    blocks = enumerate(levels) if isinstance(levels, list) else ()
    return [(("levels", index), block) for index, block in blocks if isinstance(block, dict)]


def _validate(document: Document) -> tuple[form.File | None, list[Fault]]:
    try:
        return form.File.model_validate(document.data), []
    except ValidationError as error:
        return None, [_fault(found, document) for found in error.errors(include_url=False)]


def _fault(error: ErrorDetails, document: Document) -> Fault:
    at: Keys = error["loc"]
    if error["type"] == "extra_forbidden":
        return Fault(document.keys[at], dotted(at), _unknown(at))
    place = _place(document.values, at)
    if (isinstance(at[-1], int) and at[0] != "levels") or len(at) == 4:
        at = at[:-1]  # an item of an axis: its place says which
    return Fault(place, dotted(at) if place.line else "", _expected(error))


def _place(places: dict[Keys, Place], at: Keys) -> Place:
    """Where the value stands, or the innermost one around it that has a place."""
    while at not in places:
        at = at[:-1]
    return places[at]


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
            return _no_mapping(value)
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


def _no_mapping(value: object) -> str:
    return f"expected a mapping of keys to values, got {_shown(value)}"


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
    load, server, blocks = _mapping(data, "load"), _mapping(data, "server"), _blocks(data)

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


def _message(faults: list[Fault]) -> str:
    """All faults, those of the file in its order, then those of flags."""
    ordered = sorted(set(faults), key=lambda fault: (fault.place.line or 10**9, fault.place.column or 0, str(fault)))
    if len(ordered) == 1:
        return str(ordered[0])
    return "\n  ".join([f"the scenario has {len(ordered)} faults:", *map(str, ordered)])


def _levels(block: Block) -> int:
    """How many levels a block is."""
    axes = (block.concurrency or block.rate_per_s or [], block.input_tokens, block.output_tokens)
    return math.prod(map(len, (*axes, block.scheduler, block.max_batch_size)))


def _build(name: str, file: form.File, values: dict[Keys, Place]) -> tuple[Scenario, dict[str, str]]:
    """The scenario of a valid file, and the source of each value by its dotted key."""
    sources: dict[str, str] = {}

    def given(at: Keys) -> Any:
        section: Any = file
        for key in at:
            if section is None:
                return None
            section = section[key] if isinstance(key, int) else getattr(section, key)
        return section

    def first(to: Keys, *ways: Keys, default: Any = None) -> Any:
        """The value of the first way that was given, its source noted under ``to``."""
        for at in ways:
            if (value := given(at)) is not None:
                sources[dotted(to)] = _place(values, at).source
                return value
        sources[dotted(to)] = "default"
        return default

    def one(*at: str) -> Any:
        return first(at, at, default=form.DEFAULTS.get(dotted(at)))

    def block(index: int, alone: bool) -> Block:
        def axis(key: str) -> Any:
            inherited, own = (_AXES[key], key), ("levels", index, key)
            to = inherited if alone else own
            return first(to, own, inherited, default=form.DEFAULTS.get(dotted(inherited)))

        # a block with one kind of load does not inherit the other
        has = [key for key in ("concurrency", "rate") if given(("levels", index, key)) is not None]
        has = has or [key for key in ("concurrency", "rate") if given(("load", key)) is not None] or ["concurrency"]
        return Block(
            concurrency=axis("concurrency") if has == ["concurrency"] else None,
            rate_per_s=axis("rate") if has == ["rate"] else None,
            input_tokens=axis("input_tokens"),
            output_tokens=axis("output_tokens"),
            scheduler=axis("scheduler"),
            max_batch_size=axis("max_batch_size"),
        )

    count = len(file.levels or [None])
    levels = [block(index, alone=count == 1) for index in range(count)]
    requests = one("load", "requests")
    duration = first(
        ("load", "duration"),
        ("load", "duration"),
        default=None if requests is not None else form.DEFAULTS["load.duration"],
    )
    open_loop = any(level.rate_per_s for level in levels)
    scenario = Scenario(
        name=first(("name",), ("name",), default=name),
        question=one("question"),
        endpoint=one("endpoint"),
        stream=one("stream"),
        model=one("model"),
        seed=one("seed"),
        levels=levels,
        duration_s=duration,
        requests=requests,
        warmup_s=one("load", "warmup"),
        grace_s=one("load", "grace"),
        arrival=one("load", "arrival") if open_loop else form.DEFAULTS["load.arrival"],
        timeout_s=one("timeouts", "total"),
        connect_timeout_s=one("timeouts", "connect"),
        stall_timeout_s=one("timeouts", "stall"),
        server=ServerSettings(
            model=one("server", "model"),
            provider=one("server", "provider"),
            dtype=one("server", "dtype"),
            threads=one("server", "threads"),
            batch_timeout_ms=one("server", "batch_timeout_ms"),
            kv_slots=one("server", "kv_slots"),
            max_seq_len=one("server", "max_seq_len"),
        ),
    )
    return scenario, sources
