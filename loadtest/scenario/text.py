"""A scenario written out whole, as the YAML that is kept with every result."""

import re
from typing import Any

import msgspec
import yaml

from loadtest.duration import duration_text, durations_text
from loadtest.endpoints.pattern import Pattern
from loadtest.scenario import checks
from loadtest.scenario.document import scalar
from loadtest.scenario.model import Block, Scenario
from loadtest.scenario.pattern import HTTP, Json, written
from loadtest.schedule import Stage
from loadtest.workload.lengths import Length
from loadtest.workload.model import Conversation, Data, Images, Input, Prefix, Trace, Workload

HEADER = "# Every value of this scenario; behind each, where it came from.\n"

Value = str | bool | int | float | Length | Stage | Json | list[Any] | dict[str, Any] | None


def write(scenario: Scenario, sources: dict[str, str], scale: str | None = None) -> str:
    """The YAML text of ``scenario``, complete: ``load`` reads it back as an equal scenario.

    ``sources`` gives the comment behind each value by its dotted key, as in ``Resolved``; ``scale`` says by what values
    have been scaled since they came from there.
    """
    rows: list[tuple[str, str]] = []

    def row(at: str, value: Value, indent: str = "") -> None:
        rows.append((f"{indent}{at.rpartition('.')[2]}: {_written(value)}", sources[at]))

    def section(name: str, values: dict[str, Value]) -> None:
        rows.append((f"{name}:", ""))
        for key, value in values.items():
            row(f"{name}.{key}", value, "  ")

    def items(name: str, values: list[dict[str, Value]]) -> None:
        rows.append((f"{name}:", ""))
        for index, item in enumerate(values):
            marker = "  - "
            for key, value in item.items():
                row(f"{name}.{index}.{key}", value, marker)
                marker = "    "

    alone = scenario.levels[0] if len(scenario.levels) == 1 else None
    mixed = "mix.0.name" in sources
    gapped = any(block.concurrency is None and block.trace is None for block in scenario.levels)
    server, probe = scenario.server, scenario.probe
    head: dict[str, Value] = {
        "name": scenario.name,
        "question": scenario.question,
        "endpoint": scenario.endpoint,
        "stream": scenario.stream,
        "tokenizer": scenario.tokenizer,
        "seed": scenario.seed,
        "locked": scenario.locked,
    }
    templated = scenario.endpoint == HTTP
    if templated:
        del head["stream"]  # the response says it
    for key, value in (head | (_model(alone) if alone else {})).items():
        row(key, value)
    for name, values in zip(("request", "response"), written(scenario.pattern), strict=True) if templated else ():
        if values:
            section(name, values)
    if mixed:
        items("mix", [_part(workload) for workload in scenario.workloads])
    else:
        lengths = _lengths(alone) | _batches(alone) if alone else {}
        section("workload", lengths | _asked(scenario.workloads[0]))
    section(
        "load",
        (_load(alone) if alone else {})
        | ({"arrival": scenario.arrival} if gapped else {})
        | ({"burstiness": scenario.burstiness} if gapped and scenario.arrival == "gamma" else {})
        | {"max_in_flight": scenario.max_in_flight}
        | ({"when_full": scenario.when_full} if scenario.max_in_flight is not None else {})
        | {
            "max_rate": scenario.max_rate_per_s,
            "requests": scenario.requests,
            "duration": _duration(scenario.duration_s),
            "warmup": _duration(scenario.warmup_s),
            "grace": _duration(scenario.grace_s),
            "cooldown": _duration(scenario.cooldown_s),
            "repeat": scenario.repeat,
            "combine": scenario.combine,
        },
    )
    row("checks", checks.written(scenario.checks))
    row("audit", None if scenario.audit is None else msgspec.structs.asdict(scenario.audit))
    if probe is None:
        row("probe_stream", None)
    else:
        lengths = {"input_tokens": probe.input_tokens, "output_tokens": probe.output_tokens}
        section("probe_stream", {"rate": probe.rate_per_s, **lengths})
    section(
        "server",
        {"model": server.model, "provider": server.provider, "dtype": server.dtype, "threads": server.threads}
        | (_batching(alone) if alone else {})
        | {
            "batch_timeout_ms": server.batch_timeout_ms,
            "kv_slots": server.kv_slots,
            "max_seq_len": server.max_seq_len,
        },
    )
    if not alone:
        blocks = scenario.levels
        axes = [_batches(block) | _model(block) | _batching(block) for block in blocks]
        lengths_of = [{} if mixed else _lengths(block) for block in blocks]
        items("levels", [_load(b) | own | rest for b, own, rest in zip(blocks, lengths_of, axes, strict=True)])
    section(
        "timeouts",
        {
            "total": _duration(scenario.timeout_s),
            "connect": _duration(scenario.connect_timeout_s),
            "stall": _duration(scenario.stall_timeout_s),
        },
    )
    row("abort_on", scenario.abort_on)
    row("slo", [*scenario.slo] or None)
    row("warn", [*scenario.warn] or None)
    width = min(60, max(len(text) for text, _ in rows))
    heading = HEADER + (f"# Scaled by {scale}: other values than stand there.\n" if scale else "")
    return heading + "".join((f"{text:<{width}}  # {source}" if source else text) + "\n" for text, source in rows)


def template(pattern: Pattern) -> str:
    """The sections ``request`` and ``response``, a line each."""
    found = zip(("request", "response"), written(pattern), strict=True)
    return "".join(f"{name}: {_written(values)}\n" for name, values in found if values)


def _load(block: Block) -> dict[str, Value]:
    if block.trace is not None:
        return {"trace": _trace(block.trace)}
    if block.stages is not None:
        return {"stages": [*block.stages]}
    if block.rate_per_s is not None:
        return {"rate": _axis(block.rate_per_s)}
    return {"concurrency": _axis(block.concurrency)}


def _lengths(block: Block) -> dict[str, Value]:
    return {"input_tokens": _axis(block.input_tokens), "output_tokens": _axis(block.output_tokens)}


def _batches(block: Block) -> dict[str, Value]:
    return {"batch_size": _axis(block.batch_size)}


def _model(block: Block) -> dict[str, Value]:
    return {"model": _axis(block.model)}


def _batching(block: Block) -> dict[str, Value]:
    return {"scheduler": _axis(block.scheduler), "max_batch_size": _axis(block.max_batch_size)}


def _part(workload: Workload) -> dict[str, Value]:
    lengths = {"input_tokens": workload.input_tokens, "output_tokens": workload.output_tokens}
    own = checks.written(workload.checks)
    return _without_none(name=workload.name, weight=workload.weight, **lengths, **_asked(workload), checks=own)


def _asked(workload: Workload) -> dict[str, Value]:
    prefix, data, talk, images = workload.prefix, workload.data, workload.conversation, workload.images
    return {
        "correlation": workload.correlation,
        "corpus": workload.corpus,
        "prefix": _prefix(prefix) if prefix else None,
        "data": _data(data) if data else None,
        "conversation": _conversation(talk) if talk else None,
        "models": {model.name: model.weight for model in workload.models} or None,
        "images": _images(images) if images else None,
        "body": msgspec.json.decode(workload.body) if workload.body else None,
        "inputs": [*map(_input, workload.tensors.inputs)] or None,
        "binary": workload.tensors.binary,
    }


def _input(given: Input) -> dict[str, Value]:
    return _without_none(
        name=given.name,
        dtype=given.dtype,
        shape=None if given.shape is None else [*given.shape],
        values=given.values,
        range=None if given.low is None else [given.low, given.high],
        order=given.order,
    )


def _prefix(prefix: Prefix) -> dict[str, Value]:
    return {"share": prefix.share, "tokens": prefix.tokens, "pool": prefix.pool}


def _data(data: Data) -> dict[str, Value]:
    asked, answer = [data.min_input, data.max_input], [data.min_output, data.max_output]
    return _without_none(
        path=data.path,
        format=data.format,
        columns=dict(data.columns) or None,
        order=data.order,
        input_tokens=asked if any(asked) else None,
        output_tokens=answer if any(answer) else None,
    )


def _trace(trace: Trace) -> dict[str, Value]:
    whole = (trace.start_s, trace.end_s) == (0, None)
    return _without_none(
        path=trace.path,
        format=trace.format,
        speed=trace.speed,
        window=None if whole else [_duration(trace.start_s), _duration(trace.end_s)],
        scale=trace.scale,
        lengths=trace.lengths,
    )


def _conversation(talk: Conversation) -> dict[str, Value]:
    return _without_none(
        turns=talk.turns,
        think=durations_text(talk.think_s),
        history=talk.history,
        abandon=talk.abandon,
        next_input=talk.next_input,
    )


def _images(images: Images) -> dict[str, Value]:
    return {"count": images.count, "size": f"{images.width}x{images.height}"}


def _without_none(**values: Value) -> dict[str, Value]:
    return {key: value for key, value in values.items() if value is not None}


def _axis(values: list[Any] | None) -> Value:
    """An axis as one writes it: a single value without brackets."""
    return values[0] if values and len(values) == 1 else values


def _duration(seconds: float | None) -> str | None:
    return None if seconds is None else duration_text(seconds)


def _json(value: Any) -> str:
    """A JSON value, of which 2.0 is another text than 2."""
    match value:
        case list():
            return f"[{', '.join(map(_json, value))}]"
        case dict():
            return f"{{{', '.join(f'{_written(key)}: {_json(inner)}' for key, inner in value.items())}}}"
        case float():
            return repr(value)
    return _written(value)


def _written(value: Value) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case Json(text=text):
            return _json(msgspec.json.decode(text))
        case list():
            return f"[{', '.join(map(_written, value))}]"
        case dict():
            return f"{{{', '.join(f'{_written(key)}: {_written(inner)}' for key, inner in value.items())}}}"
        case Length(low=low, high=high, shape=shape):
            return str(low) if low == high and shape is None else f'"{value}"'
        case Stage(from_per_s=low, to_per_s=high, duration_s=seconds):
            rates = f"rate: {_written(low)}" if low == high else f"from: {_written(low)}, to: {_written(high)}"
            return f"{{{rates}, duration: {duration_text(seconds)}}}"
        case float():
            return repr(value).removesuffix(".0")
        case str() if re.fullmatch(r"[A-Za-z0-9][\w./-]*", value, re.ASCII) and isinstance(scalar(value), str):
            return value
        case str():
            return yaml.safe_dump(value, default_style='"', allow_unicode=True, width=10**6).rstrip("\n")
    return str(value)
