"""Every kind of server is known by its metrics, and tells the same things under our names."""

import pytest

from loadtest.telemetry import figures, names
from loadtest.telemetry.figures import Counted, Figure, Server, Span
from loadtest.telemetry.names import Kind
from servers.metrics import Metrics
from tests.telemetry.expositions import LLAMACPP, RECORDED, SGLANG, TENSORRT_LLM, TRITON, VLLM, later


def seen(kind: Kind, exposition: tuple[str, dict[str, float]]) -> Server:
    """What a level shows that was looked at twice, half a second apart."""
    first, grown = exposition
    looks = [(0.0, names.read(first, kind)), (500.0, names.read(later(first, grown), kind))]
    return figures.server(kind, "http://x/metrics", looks, Span(0.0, 2000.0, 500.0))


def means(server: Server) -> dict[str, float]:
    """Each figure that there is, by its mean."""
    found = {name: getattr(server, name) for name in Server.__struct_fields__}
    return {name: figure.mean for name, figure in found.items() if isinstance(figure, Figure)}


@pytest.mark.parametrize("kind", RECORDED)
def test_a_server_is_known_by_its_metrics(kind: Kind) -> None:
    assert names.kind_of(RECORDED[kind][0]) == kind


def test_of_vllms_engines_the_requests_add_up_and_the_fullest_cache_counts() -> None:
    server = seen("vllm", VLLM)
    assert means(server) == pytest.approx(
        {
            "running": 23, "waiting": 7, "kv_usage": 0.72, "queue_ms": 200, "prefix_hit_share": 0.5,
            "prefill_share": 0.75, "prompt_tokens_per_s": 4000, "generation_tokens_per_s": 800,
        }
    )  # fmt: skip
    assert server.preemptions == 2
    assert server.prompt_tokens == Counted(server=2000)
    assert server.generation_tokens == Counted(server=400)


def test_an_older_vllm_has_older_names() -> None:
    old = VLLM[0].replace("kv_cache_usage_perc", "gpu_cache_usage_perc").replace("vllm:prefix_", "vllm:gpu_prefix_")
    assert means(seen("vllm", (old, VLLM[1])))["kv_usage"] == 0.72
    assert means(seen("vllm", (old, VLLM[1])))["prefix_hit_share"] == 0.5


def test_sglangs_ranks_and_priorities_are_not_added_up() -> None:
    assert means(seen("sglang", SGLANG)) == pytest.approx(
        {
            "running": 14, "waiting": 2, "kv_usage": 0.28, "prefix_hit_share": 0.5, "prompt_tokens_per_s": 2000,
            "generation_tokens_per_s": 1000,
        }
    )  # fmt: skip


def test_tgi_tells_batches_and_times_by_method() -> None:
    assert means(seen("tgi", RECORDED["tgi"])) == pytest.approx(
        {
            "running": 6, "waiting": 3, "queue_ms": 200, "batch_size": 6, "prefill_share": 0.5,
            "prompt_tokens_per_s": 1000, "generation_tokens_per_s": 1600,
        }
    )  # fmt: skip


def test_triton_tells_its_queue_and_batches_and_no_tokens() -> None:
    server = seen("triton", TRITON)
    assert means(server) == pytest.approx({"waiting": 5, "queue_ms": 50, "batch_size": 8})
    assert server.generation_tokens is None
    assert server.preemptions is None


def test_behind_triton_tensorrt_llm_tells_its_own_queue() -> None:
    assert names.kind_of(TENSORRT_LLM[0]) == "triton"
    found = means(seen("triton", TENSORRT_LLM))
    assert (found["running"], found["waiting"], found["kv_usage"]) == (8, 2, 0.4)


def test_llamacpp_tells_its_slots_and_seconds() -> None:
    assert means(seen("llamacpp", LLAMACPP)) == pytest.approx(
        {
            "running": 4, "waiting": 1, "kv_usage": 0.25, "prefill_share": 0.25, "prompt_tokens_per_s": 2000,
            "generation_tokens_per_s": 2000,
        }
    )  # fmt: skip


def test_the_bundled_server_is_not_taken_for_a_vllm() -> None:
    metrics = Metrics("tiny", lambda: 3, lambda: 2, slots=4)
    metrics.ran("prefill", 1, 0.3)
    first = metrics.exposition().decode()
    metrics.ran("prefill", 1, 0.1)
    metrics.ran("decode", 3, 0.2)
    metrics.ran("decode", 1, 0.1)
    assert names.kind_of(first) == "loadtest"
    looks = [(0.0, names.read(first, "loadtest")), (1000.0, names.read(metrics.exposition().decode(), "loadtest"))]
    found = means(figures.server("loadtest", "", looks, Span(0.0, 1000.0, 1000.0)))
    assert found == pytest.approx(
        {
            "running": 3, "waiting": 2, "kv_usage": 0.75, "batch_size": 2, "prefill_share": 0.25,
            "prompt_tokens_per_s": 0, "generation_tokens_per_s": 0,
        }
    )  # fmt: skip


def test_what_is_no_server_that_is_known_is_none() -> None:
    assert names.kind_of("process_cpu_seconds_total 12.5\n") is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("<!doctype html><html>vllm:num_requests_running 1</html>", "a page of HTML"),
        ('{"vllm:num_requests_running": 1}', "JSON"),
        ('vllm:num_requests_running{model_name="m" 1\n', "damaged metrics"),
        ("vllm:num_requests_running one\n", "damaged metrics"),
        ("vllm:other 1\n", "no series of vllm"),
        ("vllm:num_requests_running NaN\n", "no series of vllm"),
        ("", "no series of vllm"),
    ],
)
def test_what_is_not_metrics_is_refused_in_words(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        names.read(text, "vllm")


def test_a_damaged_line_that_nobody_asked_for_does_no_harm() -> None:
    assert names.read("vllm:num_requests_running 4\nother{ 1\n", "vllm") == {"running": 4.0}
