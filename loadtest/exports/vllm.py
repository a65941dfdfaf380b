"""A level in the form of ``vllm bench serve --save-result --save-detailed``, so that plots made for that go on working.

Keys and meanings are those of vLLM's vllm/benchmarks/serve.py, which differ from ours: times count from when a request
was sent, failures are in none of them, and percentiles are interpolated. The texts of answers are not kept here, so
``generated_texts`` is left out.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from loadtest.records import Record
from loadtest.result import LevelResult, Result

_BACKENDS = {"chat": "openai-chat", "completions": "openai", "embeddings": "openai-embeddings"}
_PERCENTILES = (90, 95, 99)


def document(result: Result, level: LevelResult, records: Sequence[Record]) -> dict[str, Any]:
    """The level as one JSON object, over its window: ``records`` are those due in it, without probes."""
    good = [record for record in records if record.outcome == "ok"]
    seconds = level.window.measured_s or 0.0
    endpoint = result.conditions.endpoint
    model = level.model or endpoint.model
    inputs, outputs = (sum(getattr(r, name) or 0 for r in good) for name in ("input_tokens", "output_tokens"))
    load = level.load
    burstiness: float | str = load.burstiness or 1.0
    found: dict[str, Any] = {
        "date": result.started_at.replace("-", "").replace(":", "").replace("T", "-").removesuffix("Z"),
        "endpoint_type": _BACKENDS.get(endpoint.kind, endpoint.kind),
        "backend": _BACKENDS.get(endpoint.kind, endpoint.kind),
        "label": level.name,
        "model_id": model,
        "tokenizer_id": model,
        "num_prompts": len(records),
        "request_rate": load.rate_per_s or "inf",
        "burstiness": "inf" if load.kind == "constant" else burstiness,
        "max_concurrency": load.concurrency,
        "duration": seconds,
        "completed": len(good),
        "failed": len(records) - len(good),
        "total_input_tokens": inputs,
        "total_output_tokens": outputs,
        "request_throughput": _per(len(good), seconds),
        "request_goodput": level.rates.good_per_s,
        "output_throughput": _per(outputs, seconds),
        "total_token_throughput": _per(inputs + outputs, seconds),
        "max_output_tokens_per_s": _busiest_second(good),
        "max_concurrent_requests": level.concurrency.peak,
        "input_lens": [record.input_tokens or 0 for record in records],
        "output_lens": [record.output_tokens or 0 for record in records],
        "ttfts": [_seconds(_since_sent(record, record.first_token_ms)) for record in records],
        "itls": [[gap / 1000 for gap in record.itl_ms or ()] for record in records],
        "start_times": [_seconds(record.sent_ms) for record in records],
        "errors": [record.error.message if record.error else "" for record in records],
    }
    for name, values in (
        ("ttft", [_since_sent(record, record.first_token_ms) for record in good]),
        ("tpot", [_tpot(record) for record in good]),
        ("itl", [gap for record in good for gap in record.itl_ms or ()]),
        ("e2el", [_since_sent(record, _ended(record)) for record in good]),
    ):
        known = [value for value in values if value is not None]
        found |= _statistics(name, known) if known else {}
    return found


def _statistics(name: str, values: list[float]) -> dict[str, float]:
    return {
        f"mean_{name}_ms": float(np.mean(values)),
        f"median_{name}_ms": float(np.median(values)),
        f"std_{name}_ms": float(np.std(values)),
        **{f"p{p}_{name}_ms": float(np.percentile(values, p)) for p in _PERCENTILES},
    }


def _per(amount: float, seconds: float) -> float | None:
    return amount / seconds if seconds else None


def _since_sent(record: Record, at_ms: float | None) -> float | None:
    return None if at_ms is None or record.sent_ms is None else at_ms - record.sent_ms


def _ended(record: Record) -> float | None:
    return record.last_token_ms if record.streamed else record.done_ms


def _tpot(record: Record) -> float | None:
    first, last, tokens = record.first_token_ms, record.last_token_ms, record.output_tokens or 0
    return None if first is None or last is None or tokens < 2 else (last - first) / (tokens - 1)


def _seconds(value_ms: float | None) -> float:
    return 0.0 if value_ms is None else value_ms / 1000


def _busiest_second(good: Sequence[Record]) -> float:
    """The most tokens that arrived in a second of the clock, each event of a request taken for as many."""
    times: list[float] = []
    weights: list[float] = []
    for record in good:
        if record.first_token_ms is not None and record.events and record.output_tokens:
            own = [*accumulate(record.itl_ms or (), initial=record.first_token_ms)]
            times += own
            weights += [record.output_tokens / len(own)] * len(own)
    if not times:
        return 0.0
    seconds = np.floor(np.array(times) / 1000).astype(np.int64)
    return float(np.bincount(seconds - seconds.min(), weights=weights).max())
