"""What other programs read of a result, each checked by the library that those programs read with."""

import csv
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import StringIO
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow.parquet
import pytest

from loadtest import result as results
from loadtest.errors import ResultError, UsageError
from loadtest.exports import csv as csv_export
from loadtest.exports import flat
from loadtest.exports.wanted import Exports
from loadtest.records import JOURNAL, Record
from loadtest.result import Result
from loadtest.summary import summarise
from loadtest.telemetry.figures import Counted, Figure, Gpu, Host, Server
from loadtest.trace import ids, of_probes
from tests.test_summary import OPEN, answer, failure, level, run

RUN = "0123456789abcdef" * 2
BEGAN_NS = 1_700_000_000_123_456_000

FIRST = [*(answer(i, 1000.0 + 800 * i, input_tokens=8 + i) for i in range(9)), failure(9, 9000.0)]
SECOND = [answer(i, 1000.0 + 900 * i, level=1) for i in range(4)]
PROBE = answer(0, 2000.0, probe=True)


@pytest.fixture(scope="module")
def played(result: Callable[..., Result]) -> Result:
    begun = "2023-11-14T22:13:20.123456Z"
    host = Host(sent_mb_per_s=Figure(mean=0.5, max=1.5, series=[(0.0, 0.5)]))
    levels = [
        msgspec.structs.replace(summarise(level(load=OPEN), FIRST, run(began_at=begun)), host=host),
        summarise(level(index=1, name="c=3"), SECOND, run(level=1)),
    ]
    return result(levels, run_id=RUN, labels={"team": "blue"})


@pytest.fixture
def folder(played: Result, tmp_path: Path) -> Path:
    path = tmp_path / "out"
    path.mkdir()
    results.write(played, path)
    (path / JOURNAL).write_bytes(b"".join(msgspec.json.encode(r) + b"\n" for r in (*FIRST, PROBE, *SECOND)))
    return path


# CSV ----------------------------------------------------------------------------------------------------------


def test_csv_has_a_row_for_each_level_and_the_figures_of_the_result(played: Result) -> None:
    first, second = csv.DictReader(StringIO(csv_export.text(played), newline=""))
    latency = played.levels[0].latency.ttft_ms
    assert float(first["ttft_p50_ms"]) == latency.ok.p50
    assert latency.due is not None
    assert "p99" in latency.due.unbounded
    assert (first["ttft_due_failed"], first["ttft_due_p99_ms"]) == ("1", ""), "among failures there is no value"
    assert (first["ttft_n"], first["ttft_due_n"], first["ttft_due_p50_ms"]) == ("9", "10", "101.0")
    assert (first["name"], first["level"], first["run_id"], first["rate_per_s"]) == ("c=2", "1", RUN, "10.0")
    assert (first["ok"], first["http_error"], first["concurrency"], first["client_valid"]) == ("9", "1", "", "true")
    assert (second["name"], second["concurrency"], second["scheduler"], second["began_at"]) == ("c=3", "2", "", "")


def test_columns_of_csv_stay(matrix: Result, interrupted: Result, users: Result) -> None:
    """A column that goes, or gets another name, breaks what somebody has built on it: add at will, change none."""
    golden = (Path(__file__).parent / "golden" / "columns.txt").read_text("utf-8").split()
    for result in (matrix, interrupted, users):
        found = flat.rows(result)
        assert all(list(row) == list(found[0]) for row in found)
        assert [name for name in found[0] if name in golden] == golden


def test_what_was_seen_of_the_server_its_gpus_and_this_host_is_in_the_row_and_nothing_else(played: Result) -> None:
    def over(mean: float, most: float) -> Figure:
        return Figure(mean=mean, max=most, series=[(0.0, mean)])

    seen = msgspec.structs.replace(
        played.levels[1],
        server=Server(
            kind="vllm", url="http://x/metrics", looks=9, waiting=over(2.5, 7), queue_ms=over(30.5, 90),
            prefix_hit_share=over(0.25, 0.5), generation_tokens_per_s=over(800, 900), preemptions=3,
            generation_tokens=Counted(server=777, client=770),
        ),
        gpus=[
            Gpu(id="0", power_w=over(300, 690), energy_j=50.0, throttled={"power_cap": 0.5, "thermal": 0.25}),
            Gpu(id="1", power_w=over(500, 600), energy_j=70.0),
        ],
        energy_per_output_token_j=0.16,
        host=Host(cpu_share=over(0.5, 0.75)),
    )  # fmt: skip
    first, second = flat.rows(msgspec.structs.replace(played, levels=[seen, played.levels[1]]))
    before = list(first).index("client_valid") + 1
    told = {name: value for name, value in list(first.items())[before:] if value is not None}
    assert told == {
        "server_kind": "vllm", "server_waiting_mean": 2.5, "server_waiting_max": 7, "server_queue_mean_ms": 30.5,
        "server_queue_max_ms": 90, "server_prefix_hit_mean_share": 0.25, "server_prefix_hit_max_share": 0.5,
        "server_generation_mean_tokens_per_s": 800, "server_generation_max_tokens_per_s": 900, "server_preemptions": 3,
        "server_generation_tokens": 777, "gpus": 2, "gpu_power_mean_w": 400, "gpu_power_max_w": 690,
        "gpu_throttled_share": 0.5, "gpu_energy_j": 120, "energy_per_output_token_j": 0.16,
        "host_cpu_mean_share": 0.5, "host_cpu_max_share": 0.75,
    }  # fmt: skip
    assert not [value for value in list(second.values())[before:] if value is not None]
    less = msgspec.structs.replace(seen, gpus=[*seen.gpus, Gpu(id="2")])
    (row,) = flat.rows(msgspec.structs.replace(played, levels=[less]))
    assert row["gpu_energy_j"] is None, "of one of them it is not known"
    assert row["gpu_power_mean_w"] == 400, "of those that tell it"


def test_a_run_without_levels_has_no_rows(result: Callable[..., Result]) -> None:
    assert csv_export.text(result([])) == "\r\n"


# Parquet ------------------------------------------------------------------------------------------------------


def test_parquet_holds_every_request_as_the_journal_has_it(played: Result, folder: Path, tmp_path: Path) -> None:
    Exports(parquet=tmp_path / "new" / "requests.parquet").make(played, folder)
    table = pyarrow.parquet.read_table(tmp_path / "new" / "requests.parquet")
    assert table.schema.metadata[b"loadtest.run_id"] == RUN.encode()
    found = table.to_pylist()
    assert len(found) == len(FIRST) + 1 + len(SECOND)
    for row, record in zip(found, (*FIRST, PROBE, *SECOND), strict=True):
        assert row["level_name"] == played.levels[record.level].name
        error = record.error
        given = (row["error_kind"], row["error_message"], row["error_status"])
        assert given == ((error.kind, error.message, error.status) if error else (None, None, None))
        for name in set(Record.__struct_fields__) - {"error"}:
            assert row[name] == getattr(record, name), name


def test_a_parquet_file_that_cannot_be_written_is_told(played: Result, folder: Path) -> None:
    with pytest.raises(ResultError, match="cannot write"):
        Exports(parquet=folder / "result.json" / "requests.parquet").make(played, folder)


# vLLM ---------------------------------------------------------------------------------------------------------


def test_vllms_file_has_its_keys_and_its_meanings(played: Result, folder: Path, tmp_path: Path) -> None:
    said = Exports(vllm=tmp_path / "vllm.json").make(played, folder)
    assert said == [f"vllm: {tmp_path / 'vllm-1.json'}", f"vllm: {tmp_path / 'vllm-2.json'}"]
    found = json.loads((tmp_path / "vllm-1.json").read_text("utf-8"))
    # Those of vllm/benchmarks/serve.py without generated_texts.
    assert {
        "date", "endpoint_type", "backend", "label", "model_id", "tokenizer_id", "num_prompts", "request_rate",
        "burstiness", "max_concurrency", "duration", "completed", "failed", "total_input_tokens", "total_output_tokens",
        "request_throughput", "request_goodput", "output_throughput", "total_token_throughput",
        "max_output_tokens_per_s", "max_concurrent_requests", "input_lens", "output_lens", "ttfts", "itls",
        "start_times", "errors",
        *(f"{s}_{m}_ms" for s in ("mean", "median", "std", "p99") for m in ("ttft", "tpot", "itl", "e2el")),
    } <= set(found)  # fmt: skip
    assert (found["date"], found["backend"], found["request_rate"]) == ("20250131-120000", "openai-chat", 10.0)
    assert (found["num_prompts"], found["completed"], found["failed"]) == (10, 9, 1)
    assert found["duration"] == played.levels[0].window.measured_s == 9.0
    assert found["total_input_tokens"] == sum(8 + i for i in range(9))
    assert found["output_throughput"] == 4 * 9 / 9.0
    assert found["mean_ttft_ms"] == pytest.approx(100.0), "from when it was sent"
    assert found["mean_e2el_ms"] == pytest.approx(130.0)
    assert found["mean_tpot_ms"] == pytest.approx(10.0)
    assert found["ttfts"] == pytest.approx([0.1] * 9 + [0.0])
    assert found["itls"][0] == [0.01, 0.01, 0.01]
    assert found["errors"] == [""] * 9 + ["overloaded"]
    assert found["max_output_tokens_per_s"] == 8.0, "two answers in the second from 5 s on"
    assert found["p99_itl_ms"] == np.percentile([10.0] * 27, 99)


def test_of_one_level_vllms_file_is_the_one_that_was_named(
    result: Callable[..., Result], folder: Path, tmp_path: Path, played: Result
) -> None:
    assert Exports(vllm=tmp_path / "v.json").make(result(played.levels[:1]), folder) == [f"vllm: {tmp_path / 'v.json'}"]


# OpenTelemetry ------------------------------------------------------------------------------------------------


class Collector:
    """An OTLP receiver on loopback that decodes what it gets with the protocol's own classes."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.metrics: dict[str, Any] = {}
        self.resource: dict[str, str] = {}
        self.status = 200
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                collector.take(self.path, body)
                self.send_response(collector.status)
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.05,))
        self.thread.start()

    def take(self, path: str, body: bytes) -> None:
        from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

        if path == "/v1/traces":
            traces = ExportTraceServiceRequest.FromString(body)
            for of in traces.resource_spans:
                self.resource = {each.key: each.value.string_value for each in of.resource.attributes}
                self.spans += [span for scope in of.scope_spans for span in scope.spans]
        else:
            assert path == "/v1/metrics"
            metrics = ExportMetricsServiceRequest.FromString(body)
            for of in metrics.resource_metrics:
                self.metrics |= {metric.name: metric for scope in of.scope_metrics for metric in scope.metrics}

    def close(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture
def collector() -> Iterator[Collector]:
    found = Collector()
    yield found
    found.close()


def test_each_request_is_a_span_with_the_id_that_the_server_was_told(
    played: Result, folder: Path, collector: Collector
) -> None:
    said = Exports(otlp=collector.url + "/").make(played, folder)
    assert said == ["otlp: no spans of c=3: when they began is not known"]
    assert collector.resource["service.name"] == "loadtest"
    assert collector.resource["loadtest.run_id"] == RUN
    assert len(collector.spans) == len(FIRST) + 1
    by_id = {(span.trace_id.hex(), span.span_id.hex()): span for span in collector.spans}
    span = by_id[ids(RUN, 0, 3)]
    at = BEGAN_NS + 3_400_000_000
    assert span.name == "chat demo"
    assert (span.start_time_unix_nano, span.end_time_unix_nano) == (at, at + 132_000_000)
    assert {event.name: event.time_unix_nano - at for event in span.events} == {
        "sent": 1_000_000, "first_byte": 100_000_000, "first_token": 101_000_000, "first_answer": 101_000_000,
        "last_token": 131_000_000,
    }  # fmt: skip
    attributes = {each.key: each.value for each in span.attributes}
    assert attributes["gen_ai.usage.input_tokens"].int_value == 11
    assert attributes["loadtest.level"].string_value == "c=2"
    failed = by_id[ids(RUN, 0, 9)]
    assert (failed.status.code, failed.status.message) == (2, "overloaded")
    assert {each.key: each.value.int_value for each in failed.attributes}["http.response.status_code"] == 503
    assert ids(of_probes(RUN), 0, 0) in by_id


def test_each_figure_is_a_gauge_with_its_unit_and_its_level(played: Result, folder: Path, collector: Collector) -> None:
    Exports(otlp=collector.url).make(played, folder)
    metric = collector.metrics["loadtest.ttft_p99_ms"]
    assert metric.unit == "ms"
    first, second = metric.gauge.data_points
    assert first.as_double == played.levels[0].latency.ttft_ms.ok.p99
    assert {each.key for each in first.attributes} >= {"level", "name", "load"}
    assert collector.metrics["loadtest.output_tokens_per_s"].unit == "{token}/s"
    seen = collector.metrics["loadtest.host_sent_max_mb_per_s"]
    assert (seen.unit, seen.gauge.data_points[0].as_double) == ("MBy/s", 1.5)
    assert not [name for name in collector.metrics if "server_" in name], "it was not seen"
    assert collector.metrics["loadtest.client_valid"].gauge.data_points[0].as_int == 1
    assert second.as_double == 101.0


def test_a_collector_that_refuses_is_told_with_its_reason(played: Result, folder: Path, collector: Collector) -> None:
    collector.status = 400
    with pytest.raises(ResultError, match=r"cannot send to the collector at http://\[redacted\]@127.0.0.1:\d+: .*400"):
        Exports(otlp=collector.url.replace("//", "//me:secret@")).make(played, folder)


# MLflow -------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_mlflow_reads_the_run_back(
    played: Result, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("MLFLOW_ALLOW_FILE_STORE", "MLFLOW_DISABLE_TELEMETRY"):
        monkeypatch.setenv(name, "true")
    store = tmp_path / "mlruns"
    (said,) = Exports(mlflow=str(store)).make(played, folder)
    from mlflow import MlflowClient

    client = MlflowClient(store.as_uri())
    run = client.get_run(said.removeprefix("mlflow: run "))
    assert run.info.status == "FINISHED"
    assert run.data.params["run_model"] == "demo"
    assert run.data.params["level_1.name"] == "c=2"
    assert run.data.tags["loadtest.run_id"] == RUN
    assert run.data.tags["loadtest.label.team"] == "blue"
    history = client.get_metric_history(run.info.run_id, "ttft_p99_ms")
    assert [(each.step, each.value) for each in history] == [(1, 101.0), (2, 101.0)]
    assert [each.path for each in client.list_artifacts(run.info.run_id)] == ["result.json"]
    experiment = client.get_experiment_by_name("quickstart")
    assert experiment is not None
    assert run.info.experiment_id == experiment.experiment_id


def test_a_store_that_is_none_is_told(played: Result, folder: Path) -> None:
    with pytest.raises(ResultError, match="cannot log to MLflow at nonsense://x"):
        Exports(mlflow="nonsense://x").make(played, folder)


# Before the run -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (Exports(otlp="localhost:4318"), "expected the URL of a collector, such as http://127.0.0.1:4318"),
        (Exports(csv=Path("-")), "only --json writes to stdout; name a file"),
        (Exports(csv=Path("none/levels.csv")), "--csv none/levels.csv: No such file or directory"),
        (Exports(vllm=Path("none/v.json")), "--compat vllm none/v.json: No such file or directory"),
    ],
)
def test_what_cannot_be_made_is_refused_before_the_run(
    asked: Exports, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError) as caught:
        asked.check()
    assert says in str(caught.value)
    assert not [*tmp_path.iterdir()]


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadtest.exports.wanted.find_spec", lambda _: None)
    for asked, extra in (
        (Exports(parquet=Path("x")), "parquet"), (Exports(otlp="http://h"), "otel"), (Exports(mlflow="x"), "mlflow")
    ):  # fmt: skip
        with pytest.raises(UsageError, match=rf"needs the package \w+: pip install 'loadtest\[{extra}\]'"):
            asked.check()


def test_looking_whether_a_file_can_be_written_leaves_none_and_harms_none(tmp_path: Path) -> None:
    kept, new = tmp_path / "kept.csv", tmp_path / "new.parquet"
    kept.write_text("mine")
    Exports(csv=kept, parquet=new, vllm=tmp_path / "out" / "v.json").check(within=tmp_path / "out")
    assert kept.read_text() == "mine"
    assert not new.exists()
