"""From a file and flags to a complete scenario, or to every fault in them at once."""

import hashlib
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from loadtest.errors import ScenarioError
from loadtest.scenario import catalog, form
from loadtest.scenario.check import LOADS, blocks_of, check, mapping, message, no_mapping, place_of
from loadtest.scenario.document import Document, Fault, Keys, Place, dotted, parse, read, scalar
from loadtest.scenario.model import Block, Override, Resolved, Scenario, ServerSettings
from loadtest.scenario.text import write
from loadtest.schedule import Stage

_FLAGS: dict[str, tuple[str, ...]] = {
    "concurrency": ("load", "concurrency"),
    "rate": ("load", "rate"),
    "arrival": ("load", "arrival"),
    "burstiness": ("load", "burstiness"),
    "max_in_flight": ("load", "max_in_flight"),
    "when_full": ("load", "when_full"),
    "max_rate": ("load", "max_rate"),
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
    "abort_on": ("abort_on",),
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
    "stages": "load",
    "input_tokens": "workload",
    "output_tokens": "workload",
    "scheduler": "server",
    "max_batch_size": "server",
}
"""The keys of a block, and the section that gives what a block does not."""
_TEXTS = {"model", "serve_model", "abort_on"}  # never read as a number: a model may be called 7
_OPEN_LOOP = ("arrival", "burstiness", "max_in_flight", "when_full")
"""What a file says of its open loop, and is not said of the closed one that a flag asks for instead."""
_COMMAS = re.compile(r",(?![^(]*\))")  # not those inside uniform(64, 192)
_MAX_LEVELS = 1000


def resolve(source: str | None, overrides: dict[str, Override]) -> Resolved:
    """See ``loadtest.scenario.load``."""
    name, document = _document(source)
    _apply(overrides, document)
    file, faults = check(document)
    if file is None or faults:
        raise ScenarioError(message(faults))
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
    overrides = dict(_parted(overrides))
    load = mapping(data, "load")
    replaced = _AXES.keys() & overrides.keys()
    if replaced & {*LOADS}:
        replaced |= {*LOADS}
        if "rate" not in overrides:
            for key in _OPEN_LOOP:
                load.pop(key, None)
    if "arrival" in overrides and overrides["arrival"].value != "gamma":
        load.pop("burstiness", None)
    for axis in replaced:
        mapping(data, _AXES[axis]).pop(axis, None)
        for _, block in blocks_of(data):
            block.pop(axis, None)
    for flag, override in overrides.items():
        at = _FLAGS[flag]
        section, key = at if len(at) == 2 else ("", at[0])
        for stale in [keys for keys in values if keys[: len(at)] == at]:
            del values[stale]
        values[at] = Place(override.origin)
        if section and not isinstance(data.get(section), dict):
            if data.get(section) is not None:  # noted here, as the section is about to be replaced by a good one
                document.faults.append(Fault(values[section,], section, no_mapping(data[section])))
            data[section] = {}
        (data[section] if section else data)[key] = _typed(flag, override.value)


def _parted(overrides: dict[str, Override]) -> Iterator[tuple[str, Override]]:
    """The overrides, ``100:drop`` of ``max_in_flight`` parted into its two keys."""
    for flag, override in overrides.items():
        number, colon, when_full = override.value.partition(":")
        if flag == "max_in_flight" and colon:
            yield flag, Override(number.strip(), override.origin)
            yield "when_full", Override(when_full.strip(), override.origin)
        else:
            yield flag, override


def _typed(flag: str, text: str) -> Any:
    """The text of a flag as the file would give it."""
    if flag in _TEXTS:
        return text
    # "null" means "not given" in a file; nobody passes a flag in order not to give it
    items = [item if (value := scalar(item)) is None else value for item in map(str.strip, _COMMAS.split(text))]
    return items if flag in _AXES else items[0] if len(items) == 1 else text


def _levels(block: Block) -> int:
    """How many levels a block is."""
    axes = (block.concurrency or block.rate_per_s or [block.stages], block.input_tokens, block.output_tokens)
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
                sources[dotted(to)] = place_of(values, at).source
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

        own = file.levels[index] if file.levels else None
        kind = next(
            (key for of in (own, file.load) for key in LOADS if getattr(of, key, None) is not None), "concurrency"
        )
        load = axis(kind)
        return Block(
            concurrency=load if kind == "concurrency" else None,
            rate_per_s=load if kind == "rate" else None,
            stages=tuple(map(_stage, load)) if kind == "stages" else None,
            input_tokens=axis("input_tokens"),
            output_tokens=axis("output_tokens"),
            scheduler=axis("scheduler"),
            max_batch_size=axis("max_batch_size"),
        )

    count = len(file.levels or [None])
    levels = [block(index, alone=count == 1) for index in range(count)]
    requests = one("load", "requests")
    timed = any(level.stages is None for level in levels)
    duration = first(
        ("load", "duration"),
        ("load", "duration"),
        default=None if requests is not None or not timed else form.DEFAULTS["load.duration"],
    )
    open_loop = any(level.concurrency is None for level in levels)
    arrival = one("load", "arrival") if open_loop else form.DEFAULTS["load.arrival"]
    max_in_flight = one("load", "max_in_flight")
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
        arrival=arrival,
        burstiness=one("load", "burstiness") if open_loop and arrival == "gamma" else form.DEFAULTS["load.burstiness"],
        max_in_flight=max_in_flight,
        when_full=one("load", "when_full") if max_in_flight is not None else form.DEFAULTS["load.when_full"],
        max_rate_per_s=one("load", "max_rate"),
        abort_on=one("abort_on"),
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


def _stage(stage: form.Stage) -> Stage:
    """A valid stage of the file, with the rates at its two ends."""
    start, end = (stage.from_, stage.to) if stage.rate is None else (stage.rate, stage.rate)
    return Stage(start or 0.0, end or 0.0, stage.duration)
