"""From a file and flags to a complete scenario, or to every fault in them at once."""

import hashlib
import json
import math
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from loadtest.endpoints.pattern import BODIES
from loadtest.errors import ScenarioError
from loadtest.scenario import catalog
from loadtest.scenario.build import build
from loadtest.scenario.check import check, message, no_mapping
from loadtest.scenario.clashes import AXES, LOADS, blocks_of, mapping
from loadtest.scenario.document import Document, Fault, Place, dotted, parse, read, scalar
from loadtest.scenario.model import Block, Override, Resolved, Scenario
from loadtest.scenario.pattern import body_of
from loadtest.scenario.scale import scaled
from loadtest.scenario.text import write

_FLAGS: dict[str, tuple[str, ...]] = {
    "concurrency": ("load", "concurrency"),
    "rate": ("load", "rate"),
    "trace": ("load", "trace"),
    "speed": ("load", "trace", "speed"),
    "arrival": ("load", "arrival"),
    "burstiness": ("load", "burstiness"),
    "max_in_flight": ("load", "max_in_flight"),
    "when_full": ("load", "when_full"),
    "max_rate": ("load", "max_rate"),
    "requests": ("load", "requests"),
    "duration": ("load", "duration"),
    "warmup": ("load", "warmup"),
    "grace": ("load", "grace"),
    "cooldown": ("load", "cooldown"),
    "repeat": ("load", "repeat"),
    "data": ("workload", "data"),
    "input_tokens": ("workload", "input_tokens"),
    "output_tokens": ("workload", "output_tokens"),
    "batch_size": ("workload", "batch_size"),
    "endpoint": ("endpoint",),
    "stream": ("stream",),
    "method": ("request", "method"),
    "body_json": ("request", "json"),
    "body_raw": ("request", "raw"),
    "body_file": ("request", "file"),
    "model": ("model",),
    "tokenizer": ("tokenizer",),
    "probe_rate": ("probe_stream", "rate"),
    "seed": ("seed",),
    "abort_on": ("abort_on",),
    "audit": ("audit",),
    "slo": ("slo",),
    "warn": ("warn",),
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
_TEXTS = {"model", "serve_model", "abort_on", "audit"}  # never read as a number: a model may be called 7
_FILES = {"data", "trace", "tokenizer"}  # of a flag relative to the working directory, not to the scenario's folder
_BODIES = {"body_json", "body_raw", "body_file"}
_LENGTHS = ("input_tokens", "output_tokens", "correlation")
"""What a file says of the prompts that it has made, and is not said of those that a flag takes from another file."""
_UNSAID = {
    "concurrency": ("arrival", "burstiness", "max_in_flight", "when_full"),
    "trace": ("arrival", "burstiness", "duration"),
}
"""What a file says of its own load, and is not said of the one that a flag asks for instead."""
_MAX_LEVELS = 1000


def resolve(source: str | None, overrides: dict[str, Override], *, played: bool) -> Resolved:
    """See ``loadtest.scenario.load``."""
    name, document = _document(source)
    if played:
        document = msgspec.structs.replace(document, folder=None)
    overrides = dict(_parted(overrides))
    scale = overrides.pop("scale", None)
    factor = _factor(scale, document) if scale else 1.0
    alone = _left_open(document.data)
    _apply(overrides, document)
    file, faults = check(document)
    if file is None or faults:
        raise ScenarioError(message(faults))
    scenario, sources = build(name, file, document.values)
    count = _levels(scenario)
    if count > _MAX_LEVELS:
        raise ScenarioError(
            f"{source or scenario.name}: the axes make {count} levels, at most {_MAX_LEVELS} can be played in one "
            "run: shorten an axis"
        )
    reasons = []
    if scale:
        scenario = scaled(scenario, factor)
        reasons.append(f"played in the small ({scale.origin} {scale.value})")
    if scenario.locked:
        # These change what the figures are held against, or what is asked beside them, and none of them.
        alone |= {"slo", "warn", "audit"}
        changes = [override.origin for flag, override in overrides.items() if flag not in alone]
        reasons += [f"the scenario is locked, and {origin} changed it" for origin in dict.fromkeys(changes)]
    text = write(scenario, sources, f"{scale.origin} {scale.value}" if scale else None)
    return Resolved(scenario, sources, text, _digest(scenario), reasons)


def names(source: str | None, overrides: dict[str, Override], key: str) -> bool:
    """See ``loadtest.scenario.names``."""
    return key in overrides or key in _document(source)[1].data


def _factor(scale: Override, document: Document) -> float:
    """The factor in the text of a flag; a fault is noted in the document."""
    factor = scalar(scale.value.strip())
    if not isinstance(factor, bool) and isinstance(factor, int | float) and 0 < factor <= 1:
        return float(factor)
    document.faults.append(Fault(Place(scale.origin), "", f"expected more than 0 and at most 1, got {scale.value!r}"))
    return 1.0


def _left_open(data: dict[str, Any]) -> set[str]:
    """What a locked scenario leaves to whoever plays it, as far as it is null in the file."""
    return {key for key in ("endpoint", "model", "tokenizer", "seed") if data.get(key) is None}


def _document(source: str | None) -> tuple[str, Document]:
    """The default name of the scenario in ``source``, and its values."""
    if source is None:
        return "flags", Document({}, {}, {}, [], Path())
    path = Path(source)
    names = catalog.paths()
    named = source in names or not (path.suffix in {".yaml", ".yml"} or path.name != source or path.exists())
    if named:
        path = catalog.find(source)
    elif path.stem in names and not path.exists():
        raise ScenarioError(f"{source}: no such file; did you mean the preset {path.stem!r}?")
    origin = path.name if named else source if source.isprintable() else ascii(source)
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", path.stem).lstrip("._-")[:100]
    return stem or "scenario", parse(read(path, origin), origin, path.parent)


def _apply(overrides: dict[str, Override], document: Document) -> None:
    """Put the overrides in the place of what the file says, in every block."""
    data, values = document.data, document.values
    load = mapping(data, "load")
    replaced = AXES.keys() & overrides.keys()
    if replaced & {*LOADS}:
        replaced |= {*LOADS}
        for flag in _UNSAID.keys() & overrides.keys() if "rate" not in overrides else ():
            for key in _UNSAID[flag]:
                load.pop(key, None)
    if {"data", "trace"} & overrides.keys():
        for section in (mapping(data, "workload"), *(block for _, block in blocks_of(data))):
            for key in _LENGTHS:
                section.pop(key, None)
    if "trace" in overrides:
        mapping(data, "workload").pop("data", None)
    if _BODIES & overrides.keys():
        for key in (*BODIES, "type"):
            mapping(data, "request").pop(key, None)
    if "arrival" in overrides and overrides["arrival"].value != "gamma":
        load.pop("burstiness", None)
    for axis in replaced:
        (mapping(data, AXES[axis]) if AXES[axis] else data).pop(axis, None)
        for _, block in blocks_of(data):
            block.pop(axis, None)
    for flag, override in sorted(overrides.items(), key=lambda given: len(_FLAGS[given[0]])):  # a trace, then its speed
        at = _FLAGS[flag]
        if flag == "speed" and mapping(data, "load").get("trace") is None:
            document.faults.append(Fault(Place(override.origin), "", "applies to a trace only: give one with --trace"))
            continue
        for stale in [keys for keys in values if keys[: len(at)] == at]:
            del values[stale]
        values[at] = Place(override.origin)
        section = data
        for depth, name in enumerate(at[:-1], start=1):
            if not isinstance(section.get(name), dict):
                if section.get(name) is not None:  # noted here, as it is about to be replaced by a good one
                    here = at[:depth]
                    document.faults.append(Fault(values[here], dotted(here), no_mapping(section[name])))
                section[name] = {}
            section = section[name]
        section[at[-1]] = _typed(flag, override.value)


def _parted(overrides: dict[str, Override]) -> Iterator[tuple[str, Override]]:
    """The overrides, ``100:drop`` of ``max_in_flight`` parted into its two keys, a body under the key of its form."""
    for flag, override in overrides.items():
        number, colon, when_full = override.value.partition(":")
        if flag == "max_in_flight" and colon:
            yield flag, Override(number.strip(), override.origin)
            yield "when_full", Override(when_full.strip(), override.origin)
        elif flag == "body":
            key, value = body_of(override.value, override.origin)
            yield f"body_{key}", Override(json.dumps(value) if key == "json" else value, override.origin)
        else:
            yield flag, override


def _typed(flag: str, text: str) -> Any:
    """The text of a flag as the file would give it."""
    if flag in ("slo", "warn"):  # one a line; an empty one takes those of the file away
        return [line.strip() for line in text.split("\n") if line.strip()] or None
    if flag == "tokenizer":
        return os.path.abspath(text)
    if flag == "method":
        return text.strip().upper()
    if flag in _BODIES:
        return json.loads(text) if flag == "body_json" else text
    if flag in _FILES:
        return {"path": os.path.abspath(text)}
    if flag in _TEXTS:
        return text if flag not in AXES else [*map(str.strip, text.split(","))] if "," in text else [text]
    # "null" means "not given" in a file; nobody passes a flag in order not to give it
    items = [item if (value := scalar(item)) is None else value for item in map(str.strip, _parts(text))]
    return items if flag in AXES else items[0] if len(items) == 1 else text


def _parts(text: str) -> Iterator[str]:
    """What stands between the commas, but not between those inside uniform(64, 192)."""
    depth = start = 0
    for at, sign in enumerate(text):
        depth += (sign == "(") - (sign == ")")
        if sign == "," and depth <= 0:
            yield text[start:at]
            start = at + 1
    yield text[start:]


def _levels(scenario: Scenario) -> int:
    """How many levels a run is."""
    lengths = [_axis_lengths(block) for block in scenario.levels]
    return scenario.repeat * sum(max(found) if scenario.combine == "zip" else math.prod(found) for found in lengths)


def _axis_lengths(block: Block) -> list[int]:
    """How many values each axis of a block has."""
    load = block.concurrency or block.rate_per_s or [None]
    lengths = block.input_tokens, block.output_tokens, block.batch_size
    axes = (load, *lengths, block.model, block.scheduler, block.max_batch_size)
    return [len(axis or [None]) for axis in axes]


def _digest(scenario: Scenario) -> str:
    """See ``Resolved.sha256``."""
    anonymous = msgspec.structs.replace(scenario, name="", question="", seed=None, slo=(), warn=(), audit=None)
    return hashlib.sha256(msgspec.json.encode(_named(msgspec.to_builtins(anonymous)))).hexdigest()


def _named(value: Any) -> Any:
    """The value, each path in it cut down to the name of its file: the same data lie elsewhere for somebody else."""
    if isinstance(value, dict):
        return {
            key: os.path.basename(inner) if key in ("path", "corpus", "tokenizer") and inner else _named(inner)
            for key, inner in value.items()
        }
    return [*map(_named, value)] if isinstance(value, list | tuple) else value
