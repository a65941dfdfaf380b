"""What is counted, and that it is what happened."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from served import Server

from servers.engine import Generation
from servers.metrics import Metrics

DOCS = Path(__file__).parents[2] / "docs" / "server.md"
COMPLETION = {"model": "tiny", "prompt": "hello", "max_tokens": 12, "ignore_eos": True}


def samples(server: Server) -> dict[str, float]:
    """Each sample of /metrics by its name, with the labels that are not the model's."""
    status, headers, text = server.raw("GET", "/metrics")
    assert status == 200
    assert headers["content-type"].startswith("text/plain; version=0.0.4")
    found = {}
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            labels = dict(sample.labels)
            assert labels.pop("model_name") == "tiny"
            found[sample.name + "".join(f"[{value}]" for value in labels.values())] = sample.value
    return found


def test_metrics_say_what_happened_under_the_names_people_know(start_server: Callable[..., Any]) -> None:
    with start_server("--max-batch-size", "2", "--prefix-cache") as server:
        assert samples(server)["vllm:num_requests_running"] == 0
        prompt = "a prompt that is asked three times"
        for _ in range(3):
            server.ask("POST", "/v1/completions", {**COMPLETION, "prompt": prompt, "n": 2})
        assert server.ask("POST", "/v1/completions", {**COMPLETION, "echo": True})[0] == 400
        found = samples(server)
        tokens = 6 * (len(prompt) + 1)
        assert found["vllm:request_success_total[length]"] == 6
        assert found["vllm:prompt_tokens_total"] == found["vllm:prefix_cache_queries_total"] == tokens
        assert found["vllm:generation_tokens_total"] == 72
        assert found["vllm:prefix_cache_hits_total"] == 5 * len(prompt)
        for name in (
            "vllm:time_to_first_token_seconds", "vllm:request_time_per_output_token_seconds",
            "vllm:e2e_request_latency_seconds", "vllm:request_queue_time_seconds",
        ):  # fmt: skip
            assert found[f"{name}_count"] == 6
            assert found[f"{name}_sum"] >= 0
        assert found["vllm:time_to_first_token_seconds_sum"] < found["vllm:e2e_request_latency_seconds_sum"]
        assert found["loadtest:batch_size_sum"] == 6 * 11  # the first token comes with the prompt
        assert found["loadtest:step_seconds_count[prefill]"] == 6
        assert found["loadtest:step_seconds_count[decode]"] == found["loadtest:batch_size_count"]
        assert found["vllm:kv_cache_usage_perc"] == 0
        assert found["loadtest:requests_refused_total[http_400]"] == 1

        stats = server.ask("GET", "/stats")[1]
        assert stats["ended"] == {"length": 6}
        assert stats["refused"] == {"http_400": 1}
        assert (stats["prompt_tokens"], stats["generation_tokens"]) == (tokens, 72)
        assert 1 <= stats["mean_batch_size"] <= 2
        assert stats["recent"]["e2e_ms"]["n"] == 6
        assert stats["recent"]["ttft_ms"]["p50"] <= stats["recent"]["e2e_ms"]["p50"] <= stats["recent"]["e2e_ms"]["p99"]

        usage = server.ask("POST", "/v1/completions", {**COMPLETION, "prompt": prompt})[1]["usage"]
        assert usage["prompt_tokens_details"] == {"cached_tokens": len(prompt)}


def test_the_documentation_names_every_metric() -> None:
    documented = set(re.findall(r"`((?:vllm|loadtest):\w+)", DOCS.read_text("utf-8")))
    metrics = Metrics("m", lambda: 0, lambda: 0, 1)
    families = text_string_to_metric_families(metrics.exposition().decode())
    told = {f"{each.name}_total" if each.type == "counter" else each.name for each in families}
    assert documented == {name for name in told if not name.endswith("_created")}


def test_latencies_are_those_of_answers_that_were_given_whole() -> None:
    metrics = Metrics("m", lambda: 3, lambda: 5, 4)
    assert metrics.stats()["recent"]["ttft_ms"] == {"n": 0, "p50": None, "p99": None}
    assert (metrics.stats()["mean_batch_size"], metrics.recent_e2e_s) == (None, 0)
    # EOS at once, a client that went, and one that never got a place, beside two good ones.
    whole = Generation(
        [1, 2], 9, prefilled=2, submitted_s=1.0, started_s=1.5, first_token_s=2.0, ended_s=4.0, produced=5
    )
    single = Generation(
        [1, 2], 9, prefilled=2, submitted_s=1.0, started_s=1.0, first_token_s=2.0, ended_s=2.0, produced=1
    )
    nothing = Generation([1, 2], 9, prefilled=2, submitted_s=1.0, started_s=1.0, ended_s=3.0)
    cut = Generation([1, 2], 9, prefilled=2, submitted_s=1.0, started_s=1.0, first_token_s=2.0, produced=2)
    waited = Generation([1, 2], 9, submitted_s=1.0, ended_s=9.0)
    for generation, reason in ((whole, "stop"), (single, "length"), (nothing, "stop"), (cut, "abort")):
        metrics.ended(generation, reason)  # type: ignore[arg-type]
    metrics.ended(waited, "expired")
    stats = metrics.stats()
    assert (stats["running"], stats["waiting"], stats["kv_cache_usage"]) == (3, 5, 0.75)
    assert stats["ended"] == {"stop": 2, "length": 1, "abort": 1, "expired": 1}
    assert (stats["prompt_tokens"], stats["generation_tokens"], stats["cached_prompt_tokens"]) == (8, 8, 0)
    assert stats["recent"] == {
        "ttft_ms": {"n": 2, "p50": 1000, "p99": 1000},
        "tpot_ms": {"n": 1, "p50": 500, "p99": 500},
        "e2e_ms": {"n": 3, "p50": 2000, "p99": 3000},
    }
    assert metrics.recent_e2e_s == pytest.approx(2.0)


def test_tokens_are_counted_as_they_come_and_once() -> None:
    metrics = Metrics("m", lambda: 1, lambda: 0, 4, prefix_cache=True)
    generation = Generation([1, 2, 3], 9, prefilled=2, cached=2, submitted_s=0.0, started_s=0.0)
    metrics.delivered([generation])
    assert metrics.stats()["prompt_tokens"] == 0  # not yet done
    generation.prefilled, generation.produced = 3, 1
    metrics.delivered([generation, generation])
    stats = metrics.stats()
    assert (stats["prompt_tokens"], stats["cached_prompt_tokens"], stats["generation_tokens"]) == (3, 2, 1)
    generation.produced, generation.ended_s = 4, 1.0
    metrics.ended(generation, "length")
    metrics.delivered([generation])
    assert metrics.stats()["generation_tokens"] == 4
