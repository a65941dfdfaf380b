"""A scenario written out whole, as the YAML that is kept with every result."""

import re

import yaml

from loadtest.duration import duration_text
from loadtest.scenario.document import scalar
from loadtest.scenario.model import Block, Scenario
from loadtest.schedule import Stage
from loadtest.workload.lengths import Length

HEADER = "# Every value of this scenario; behind each, where it came from.\n"

Value = str | bool | int | float | Length | Stage | None


def write(scenario: Scenario, sources: dict[str, str]) -> str:
    """The YAML text of ``scenario``, complete: ``load`` reads it back as an equal scenario.

    ``sources`` gives the comment behind each value by its dotted key, as in ``Resolved``.
    """
    rows: list[tuple[str, str]] = []

    def row(at: str, value: Value | list[Value], indent: str = "") -> None:
        items = value if isinstance(value, list) else [value]
        written = ", ".join(map(_written, items))
        key = at.rpartition(".")[2]
        bare = len(items) == 1 and not isinstance(items[0], Stage)
        rows.append((f"{indent}{key}: {written if bare else f'[{written}]'}", sources[at]))

    def section(name: str, values: dict[str, Value | list[Value]]) -> None:
        rows.append((f"{name}:", ""))
        for key, value in values.items():
            row(f"{name}.{key}", value, "  ")

    alone = scenario.levels[0] if len(scenario.levels) == 1 else None
    open_loop = any(block.concurrency is None for block in scenario.levels)
    server = scenario.server
    head: dict[str, Value] = {
        "name": scenario.name,
        "question": scenario.question,
        "endpoint": scenario.endpoint,
        "stream": scenario.stream,
        "model": scenario.model,
        "seed": scenario.seed,
    }
    for key, value in head.items():
        row(key, value)
    if alone:
        section("workload", _workload(alone))
    section(
        "load",
        (_load(alone) if alone else {})
        | ({"arrival": scenario.arrival} if open_loop else {})
        | ({"burstiness": scenario.burstiness} if open_loop and scenario.arrival == "gamma" else {})
        | {"max_in_flight": scenario.max_in_flight}
        | ({"when_full": scenario.when_full} if scenario.max_in_flight is not None else {})
        | {
            "max_rate": scenario.max_rate_per_s,
            "requests": scenario.requests,
            "duration": _duration(scenario.duration_s),
            "warmup": _duration(scenario.warmup_s),
            "grace": _duration(scenario.grace_s),
        },
    )
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
        rows.append(("levels:", ""))
        for index, block in enumerate(scenario.levels):
            marker = "  - "
            for key, values in (_load(block) | _workload(block) | _batching(block)).items():
                row(f"levels.{index}.{key}", values, marker)
                marker = "    "
    section(
        "timeouts",
        {
            "total": _duration(scenario.timeout_s),
            "connect": _duration(scenario.connect_timeout_s),
            "stall": _duration(scenario.stall_timeout_s),
        },
    )
    row("abort_on", scenario.abort_on)
    width = min(60, max(len(text) for text, _ in rows))
    return HEADER + "".join((f"{text:<{width}}  # {source}" if source else text) + "\n" for text, source in rows)


def _load(block: Block) -> dict[str, Value | list[Value]]:
    if block.stages is not None:
        return {"stages": [*block.stages]}
    if block.rate_per_s is not None:
        return {"rate": [*block.rate_per_s]}
    return {"concurrency": [*(block.concurrency or [])]}


def _workload(block: Block) -> dict[str, Value | list[Value]]:
    return {"input_tokens": [*block.input_tokens], "output_tokens": [*block.output_tokens]}


def _batching(block: Block) -> dict[str, Value | list[Value]]:
    return {"scheduler": [*block.scheduler], "max_batch_size": [*block.max_batch_size]}


def _duration(seconds: float | None) -> str | None:
    return None if seconds is None else duration_text(seconds)


def _written(value: Value) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case Length(low=low, high=high):
            return str(low) if low == high else f'"{value}"'
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
