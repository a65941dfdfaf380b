"""Where each kind of server keeps what we ask of all of them. Pure.

Names are from the servers' own documents: vLLM "Production Metrics", SGLang "Production Metrics", TGI "Metrics",
Triton "Metrics" and TensorRT-LLM's backend for it, llama.cpp's server README. Where a name has changed, the newer one
stands first. What a kind has no series for is not in its table, and null in the result.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Literal, NamedTuple

from loadtest.telemetry.exposition import Sample, samples

Kind = Literal["loadtest", "vllm", "sglang", "tgi", "triton", "llamacpp"]
Reading = Mapping[str, float]
"""What one look at a server found, by the names of ``_KINDS``; what it does not tell is not in it."""


class _Of(NamedTuple):
    """The series of one figure: the first of ``names`` that is there, of those ``labels`` only."""

    names: tuple[str, ...]
    labels: Mapping[str, str] = {}
    join: Callable[[Iterable[float]], float] = sum
    unit: float = 1.0


def _of(*names: str, **labels: str) -> _Of:
    return _Of(names, labels)


def _fullest(*names: str, **labels: str) -> _Of:
    """Of several engines the one that is nearest to its limit."""
    return _Of(names, labels, max)


_VLLM = {
    "running": _of("vllm:num_requests_running"),
    "waiting": _of("vllm:num_requests_waiting"),
    "kv_usage": _fullest("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
    "preemptions": _of("vllm:num_preemptions_total"),
    "prompt_tokens": _of("vllm:prompt_tokens_total"),
    "generation_tokens": _of("vllm:generation_tokens_total"),
    "cache_queried": _of("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total"),
    "cache_hit": _of("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"),
    "queued_s": _of("vllm:request_queue_time_seconds_sum"),
    "dequeued": _of("vllm:request_queue_time_seconds_count"),
    "prefill_s": _of("vllm:request_prefill_time_seconds_sum"),
    "decode_s": _of("vllm:request_decode_time_seconds_sum"),
}
_KINDS: dict[Kind, dict[str, _Of]] = {
    # Ours has vLLM's names, and a few of its own; it stands first because it would pass for a vLLM.
    "loadtest": {
        **_VLLM,
        "batch_sum": _of("loadtest:batch_size_sum"),
        "batch_count": _of("loadtest:batch_size_count"),
        "prefill_s": _of("loadtest:step_seconds_sum", phase="prefill"),
        "decode_s": _of("loadtest:step_seconds_sum", phase="decode"),
    },
    "vllm": _VLLM,
    "sglang": {
        "running": _of("sglang:num_running_reqs"),
        "waiting": _of("sglang:num_queue_reqs"),
        "kv_usage": _fullest("sglang:token_usage"),
        "preemptions": _of("sglang:num_retracted_requests_total"),
        "prompt_tokens": _of("sglang:prompt_tokens_total"),
        "generation_tokens": _of("sglang:generation_tokens_total"),
        "cache_queried": _of("sglang:prompt_tokens_total"),
        "cache_hit": _of("sglang:cached_tokens_total"),
        "queued_s": _of("sglang:queue_time_seconds_sum"),
        "dequeued": _of("sglang:queue_time_seconds_count"),
    },
    "tgi": {
        "running": _of("tgi_batch_current_size"),
        "waiting": _of("tgi_queue_size"),
        "batch_sum": _of("tgi_batch_next_size_sum"),
        "batch_count": _of("tgi_batch_next_size_count"),
        "prompt_tokens": _of("tgi_request_input_length_sum"),
        "generation_tokens": _of("tgi_request_generated_tokens_sum"),
        "queued_s": _of("tgi_request_queue_duration_sum"),
        "dequeued": _of("tgi_request_queue_duration_count"),
        "prefill_s": _of("tgi_batch_inference_duration_sum", method="prefill"),
        "decode_s": _of("tgi_batch_inference_duration_sum", method="decode"),
    },
    "triton": {
        "running": _of("nv_trt_llm_request_metrics", request_type="scheduled"),
        # Of the batcher of TensorRT-LLM where there is one: what that has taken, Triton no longer calls pending.
        "waiting": _of("nv_trt_llm_request_metrics", request_type="waiting"),
        "pending": _of("nv_inference_pending_request_count"),
        "kv_usage": _fullest("nv_trt_llm_kv_cache_block_metrics", kv_cache_block_type="fraction"),
        "batch_sum": _of("nv_inference_count"),
        "batch_count": _of("nv_inference_exec_count"),
        "queued_s": _Of(("nv_inference_queue_duration_us",), unit=1e-6),
        "dequeued": _of("nv_inference_request_success"),
    },
    "llamacpp": {
        "running": _of("llamacpp:requests_processing"),
        "waiting": _of("llamacpp:requests_deferred"),
        "kv_usage": _fullest("llamacpp:kv_cache_usage_ratio"),
        "prompt_tokens": _of("llamacpp:prompt_tokens_total"),
        "generation_tokens": _of("llamacpp:tokens_predicted_total"),
        "prefill_s": _of("llamacpp:prompt_seconds_total"),
        "decode_s": _of("llamacpp:tokens_predicted_seconds_total"),
    },
}
_TELLING: dict[Kind, str] = {
    "loadtest": "loadtest:",
    "vllm": "vllm:",
    "sglang": "sglang:",
    "tgi": "tgi_",
    "triton": "nv_inference_",
    "llamacpp": "llamacpp:",
}
# The ranks of one engine each report the whole of it, and are not to be added up.
_RANKS = {"tp_rank", "pp_rank", "moe_ep_rank"}


def kind_of(text: str) -> Kind | None:
    """The kind of server that an exposition is of; None if it is of none that is known here."""
    lines = text.splitlines()
    return next((kind for kind, start in _TELLING.items() if any(line.startswith(start) for line in lines)), None)


def read(text: str, kind: Kind) -> Reading:
    """What the exposition of a server of ``kind`` says: gauges as they are, counters since its start.

    Raises:
        ValueError: it is none, it is damaged, or it holds nothing of such a server.
    """
    table = _KINDS[kind]
    by_name: dict[str, list[Sample]] = {}
    for sample in samples(text, {name for of in table.values() for name in of.names}):
        if math.isfinite(sample.value):
            by_name.setdefault(sample.name, []).append(sample)
    found = {figure: value for figure, of in table.items() if (value := _value(by_name, of)) is not None}
    if not found:
        raise ValueError(f"no series of {kind} in it")
    return found


def _value(by_name: Mapping[str, list[Sample]], of: _Of) -> float | None:
    for name in of.names:
        apart: dict[tuple[tuple[str, str], ...], float] = {}
        for sample in by_name.get(name, ()):
            labels = sample.labels
            # A priority is a part of the same series without one.
            if labels.get("priority") or any(labels.get(key) != value for key, value in of.labels.items()):
                continue
            own = tuple(sorted((key, value) for key, value in labels.items() if key not in _RANKS))
            apart[own] = max(sample.value, apart.get(own, -math.inf))
        if apart:
            return of.join(apart.values()) * of.unit
    return None
