"""A run as OpenTelemetry metrics and traces, by OTLP over HTTP: a span for each request, a gauge for each figure.

Needs the OpenTelemetry SDK (``loadtest[otel]``). Spans have the ids that ``--traceparent`` told the server, so that its
own spans are their children. OTEL_EXPORTER_OTLP_HEADERS, OTEL_EXPORTER_OTLP_CERTIFICATE and the like are obeyed.
"""

import contextlib
import logging
import re
from calendar import timegm
from collections.abc import Iterable, Iterator
from datetime import datetime
from itertools import islice
from typing import Any

from loadtest.errors import ResultError
from loadtest.exports.flat import rows
from loadtest.records import Record
from loadtest.redact import Redactor
from loadtest.result import LevelResult, Result
from loadtest.trace import ids, of_probes

_SPANS = 512  # of a message
_EVENTS = ("sent", "connected", "first_byte", "first_token", "first_answer", "last_token")
_LABELS = ("level", "name", "load", "concurrency", "rate_per_s", "scheduler", "max_batch_size", "repeat")
_UNITS = (
    ("_tokens_per_s", "{token}/s"), ("_mb_per_s", "MBy/s"), ("_per_s", "1/s"), ("_ms", "ms"), ("_s", "s"), ("_w", "W"),
    ("_mhz", "MHz"), ("_j", "J"),
)  # fmt: skip
_SCOPE = "loadtest"


def send(result: Result, records: Iterable[Record], url: str) -> list[str]:
    """Send the figures of each level to ``url``/v1/metrics and its requests to ``url``/v1/traces.

    Returns what could not be told of it.

    Raises:
        ResultError: the collector is out of reach, or refuses.
    """
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter  # noqa: PLC0415  # an extra
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415

    base = url.rstrip("/")
    resource = _resource(result)
    with _told(base) as complaints:
        metrics = OTLPMetricExporter(f"{base}/v1/metrics")
        _sent(metrics.export(_metrics(result, resource)), base, complaints)
        metrics.shutdown()
        spans = OTLPSpanExporter(f"{base}/v1/traces")
        known = _spans(result, records, resource)
        while batch := [*islice(known, _SPANS)]:
            _sent(spans.export(batch), base, complaints)
        spans.shutdown()
    lost = [level.name for level in result.levels if level.began_at is None and level.counts.scheduled]
    return [f"no spans of {', '.join(lost)}: when they began is not known"] if lost else []


@contextlib.contextmanager
def _told(url: str) -> Iterator[list[str]]:
    """What the exporters log: they say nothing else of why they failed."""
    complaints: list[str] = []
    log = logging.getLogger("opentelemetry")
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: complaints.append(record.getMessage())  # type: ignore[method-assign]
    before = log.propagate
    log.addHandler(handler)
    log.propagate = False
    try:
        yield complaints
    finally:
        log.propagate = before
        log.removeHandler(handler)


def _sent(outcome: Any, url: str, complaints: list[str]) -> None:
    if outcome.name != "SUCCESS":
        # Of a connection that failed they print each layer that it failed through, and the reason innermost.
        innermost = re.search(r"\[Errno -?\d+\] ([\w ,.-]+)", complaints[0]) if complaints else None
        why = f": {innermost[1] if innermost else complaints[0]}" if complaints else ""
        words = f"cannot send to the collector at {url}{why}; see that it takes OTLP over HTTP there"
        raise ResultError(Redactor()(words))


def _resource(result: Result) -> Any:
    from opentelemetry.sdk.resources import Resource  # noqa: PLC0415

    return Resource.create(
        {
            "service.name": "loadtest",
            "service.version": result.tool.version,
            "loadtest.run_id": result.run_id or "",
            "loadtest.scenario": result.conditions.scenario.name,
        }
    )


# Traces -------------------------------------------------------------------------------------------------------


def _spans(result: Result, records: Iterable[Record], resource: Any) -> Iterator[Any]:
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope  # noqa: PLC0415

    scope = InstrumentationScope(_SCOPE, result.tool.version)
    began = [_unix_ns(level) for level in result.levels]
    for record in records:
        t0 = began[record.level] if record.level < len(began) else None
        if t0 is not None and record.done_ms is not None:
            yield _span(result, result.levels[record.level], record, t0, resource, scope)


def _unix_ns(level: LevelResult) -> int | None:
    if level.began_at is None:
        return None
    at = datetime.fromisoformat(level.began_at.replace("Z", "+00:00"))
    return timegm(at.utctimetuple()) * 10**9 + at.microsecond * 1000


def _span(result: Result, level: LevelResult, record: Record, t0: int, resource: Any, scope: Any) -> Any:
    from opentelemetry.sdk.trace import Event, ReadableSpan  # noqa: PLC0415
    from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags  # noqa: PLC0415

    run = result.run_id or ""
    trace, span = ids(of_probes(run) if record.probe else run, record.level, record.id)
    endpoint = result.conditions.endpoint
    model = record.model or level.model or endpoint.model

    def at(value_ms: float) -> int:
        return t0 + round(value_ms * 1e6)

    moments = ((name, getattr(record, f"{name}_ms")) for name in _EVENTS)
    attributes = {
        "gen_ai.operation.name": endpoint.kind,
        "gen_ai.request.model": model,
        "gen_ai.usage.input_tokens": record.input_tokens,
        "gen_ai.usage.output_tokens": record.output_tokens,
        "url.full": endpoint.url,
        "error.type": record.error.kind if record.error else None,
        "http.response.status_code": record.error.status if record.error else None,
        "loadtest.level": level.name,
        "loadtest.request": record.id,
        "loadtest.outcome": record.outcome,
        "loadtest.probe": record.probe,
        "loadtest.session": record.session,
        "loadtest.turn": record.turn,
    }
    return ReadableSpan(
        f"{endpoint.kind} {model}" if model else endpoint.kind,
        SpanContext(int(trace, 16), int(span, 16), is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED)),
        resource=resource,
        attributes={name: value for name, value in attributes.items() if value is not None},
        events=[Event(name, timestamp=at(value)) for name, value in moments if value is not None],
        kind=SpanKind.CLIENT,
        status=Status(StatusCode.ERROR, record.error.message) if record.error else Status(StatusCode.OK),
        start_time=at(record.intended_ms),
        end_time=at(record.done_ms or record.intended_ms),
        instrumentation_scope=scope,
    )


# Metrics ------------------------------------------------------------------------------------------------------


def _metrics(result: Result, resource: Any) -> Any:
    """Each number of each level as a gauge of its column's name."""
    from opentelemetry.sdk.metrics import MeterProvider  # noqa: PLC0415
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader  # noqa: PLC0415

    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], resource, shutdown_on_exit=False)
    meter = provider.get_meter(_SCOPE, result.tool.version)
    gauges: dict[str, Any] = {}
    for row in rows(result):
        labels = {name: row[name] for name in _LABELS if row[name] is not None}
        for name, value in row.items():
            if isinstance(value, int | float) and name not in (*_LABELS, "seed"):
                if name not in gauges:
                    gauges[name] = meter.create_gauge(f"loadtest.{name}", _unit(name))
                gauges[name].set(value + 0, labels)  # of true and false 1 and 0
    found = reader.get_metrics_data()
    provider.shutdown()
    return found


def _unit(name: str) -> str:
    return next((unit for ending, unit in _UNITS if name.endswith(ending)), "1")
