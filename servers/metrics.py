"""What the server counts: Prometheus text for /metrics, JSON for /stats.

Names are vLLM's where the meaning is the same (docs.vllm.ai, "Production Metrics"), so that dashboards and scrapers
made for it work here; what it has no name for begins with ``loadtest:``. Every series has the label ``model_name``.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4 as CONTENT_TYPE

from servers.engine import FinishReason, Generation, Phase

__all__ = ["CONTENT_TYPE", "Metrics"]
_RECENT = 1000  # requests that /stats takes its percentiles from
# Seconds; the steps of a tiny model are shorter than vLLM's first boundaries, so there are finer ones.
_LATENCY = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
_PER_TOKEN = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5)
_END_TO_END = (0.01, 0.025, 0.05, 0.1, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


class Metrics:
    """Counts of one server. ``running`` and ``waiting`` are asked when someone looks.

    ``slots`` of the key/value cache; None where there is none.

    ``ran`` belongs to the engine's thread, everything else to the event loop.
    """

    def __init__(
        self,
        model: str,
        running: Callable[[], int],
        waiting: Callable[[], int],
        slots: int | None = None,
        *,
        prefix_cache: bool = False,
    ) -> None:
        self._slots = slots
        self._prefix_cache = prefix_cache
        self._registry = CollectorRegistry()
        self._model = model
        self._recent: deque[tuple[float | None, float | None, float]] = deque(maxlen=_RECENT)

        def made(kind: Any, name: str, text: str, *labels: str, **options: Any) -> Any:
            metric = kind(name, text, ("model_name", *labels), registry=self._registry, **options)
            return metric if labels else metric.labels(model)

        made(Gauge, "vllm:num_requests_running", "Answers being generated.").set_function(running)
        made(Gauge, "vllm:num_requests_waiting", "Answers waiting for a place.").set_function(waiting)
        if slots is not None:
            usage = made(Gauge, "vllm:kv_cache_usage_perc", "Share of the key/value slots in use; 1 is all.")
            usage.set_function(lambda: running() / slots)
        self._prompt = made(Counter, "vllm:prompt_tokens", "Prompt tokens, once a prompt is done.")
        self._generated = made(Counter, "vllm:generation_tokens", "Answer tokens.")
        self._queried = made(Counter, "vllm:prefix_cache_queries", "Prompt tokens looked up in the prefix cache.")
        self._hits = made(Counter, "vllm:prefix_cache_hits", "Prompt tokens found in the prefix cache.")
        self._ended = made(
            Counter, "vllm:request_success", "Answers that ended, by how; abort: the client went.", "finished_reason"
        )
        self._refused = made(Counter, "loadtest:requests_refused", "Requests refused, by why.", "reason")
        self._queue = made(
            Histogram, "vllm:request_queue_time_seconds", "From arrival to the start of the prompt.", buckets=_LATENCY
        )
        self._ttft = made(
            Histogram, "vllm:time_to_first_token_seconds", "From arrival to the first token.", buckets=_LATENCY
        )
        self._tpot = made(
            Histogram,
            "vllm:request_time_per_output_token_seconds",
            "Mean time of each token after the first, a sample for each answer.",
            buckets=_PER_TOKEN,
        )
        self._e2e = made(
            Histogram, "vllm:e2e_request_latency_seconds", "From arrival to the end of the answer.", buckets=_END_TO_END
        )
        self._rows = made(
            Histogram,
            "loadtest:batch_size",
            "Answers that share a decode step; rows that share a run.",
            buckets=_ROWS,
        )
        steps = made(Histogram, "loadtest:step_seconds", "Time of one run of the model.", "phase", buckets=_PER_TOKEN)
        self._steps = {phase: steps.labels(model, phase) for phase in get_args(Phase)}

    def ran(self, phase: Phase, rows: int, seconds: float) -> None:
        """One run of the model over ``rows`` slots."""
        self._steps[phase].observe(seconds)
        if phase != "prefill":
            self._rows.observe(rows)

    def delivered(self, generations: Iterable[Generation]) -> None:
        """These have got on: count the tokens since they were last seen here."""
        fresh = 0
        for generation in generations:
            if generation.counted is None:
                if generation.prefilled < len(generation.prompt):
                    continue
                generation.counted = 0
                self._prompt.inc(len(generation.prompt))
                if self._prefix_cache:
                    self._queried.inc(len(generation.prompt))
                    self._hits.inc(generation.cached)
            produced = generation.produced  # read once: the engine goes on meanwhile
            fresh += produced - generation.counted
            generation.counted = produced
        self._generated.inc(fresh)

    def ended(self, generation: Generation, reason: FinishReason) -> None:
        """An answer ended, or (``abort``) its client has gone."""
        self._ended.labels(self._model, reason).inc()
        self.delivered([generation])
        if generation.started_s is None:
            return
        self._queue.observe(generation.started_s - generation.submitted_s)
        if reason not in ("stop", "length") or generation.ended_s is None:
            return  # a latency of what was cut short describes nothing
        ttft_s = tpot_s = None
        if generation.first_token_s is not None:
            ttft_s = generation.first_token_s - generation.submitted_s
            self._ttft.observe(ttft_s)
            if generation.produced > 1:
                tpot_s = (generation.ended_s - generation.first_token_s) / (generation.produced - 1)
                self._tpot.observe(tpot_s)
        e2e_s = generation.ended_s - generation.submitted_s
        self._e2e.observe(e2e_s)
        self._recent.append((ttft_s, tpot_s, e2e_s))

    def refused(self, reason: str) -> None:
        """A request was refused."""
        self._refused.labels(self._model, reason).inc()

    @property
    def recent_e2e_s(self) -> float:
        """Mean time of the latest answers, 0 before the first."""
        latest = [e2e_s for *_, e2e_s in list(self._recent)[-32:]]
        return sum(latest) / len(latest) if latest else 0.0

    def exposition(self) -> bytes:
        """Prometheus text, format 0.0.4."""
        return generate_latest(self._registry)

    def stats(self) -> dict[str, Any]:
        """The same for people: counts since the start, and latencies of the latest requests in milliseconds."""
        steps = {phase: self._value("loadtest:step_seconds_count", phase=phase) for phase in self._steps}
        runs = self._value("loadtest:batch_size_count")
        ttfts, tpots, e2es = zip(*self._recent, strict=True) if self._recent else ((), (), ())
        return {
            "running": self._value("vllm:num_requests_running"),
            "waiting": self._value("vllm:num_requests_waiting"),
            "kv_cache_usage": self._value("vllm:kv_cache_usage_perc") if self._slots else None,
            "ended": self._by_label(self._ended, "finished_reason"),
            "refused": self._by_label(self._refused, "reason"),
            "prompt_tokens": self._value("vllm:prompt_tokens_total"),
            "cached_prompt_tokens": self._value("vllm:prefix_cache_hits_total"),
            "generation_tokens": self._value("vllm:generation_tokens_total"),
            "steps": steps,
            "mean_batch_size": self._value("loadtest:batch_size_sum") / runs if runs else None,
            "recent": {"ttft_ms": _spread(ttfts), "tpot_ms": _spread(tpots), "e2e_ms": _spread(e2es)},
        }

    def _value(self, name: str, **labels: str) -> float:
        return self._registry.get_sample_value(name, {"model_name": self._model, **labels}) or 0.0

    @staticmethod
    def _by_label(counter: Counter, label: str) -> dict[str, float]:
        return {
            sample.labels[label]: sample.value
            for metric in counter.collect()
            for sample in metric.samples
            if sample.name.endswith("_total")
        }


def _spread(seconds: Sequence[float | None]) -> dict[str, float | None]:
    """Number, median and 99th percentile (nearest rank) in milliseconds; null where there is none."""
    values = sorted(1e3 * value for value in seconds if value is not None)

    def rank(percent: int) -> float | None:
        return round(values[-(-percent * len(values) // 100) - 1], 3) if values else None

    return {"n": len(values), "p50": rank(50), "p99": rank(99)}
