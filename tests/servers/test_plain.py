"""Models without a cache: vectors of texts as OpenAI has them, tensors as the Open Inference Protocol has them."""

import asyncio
import base64
import json
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import exported
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from openai import OpenAI
from served import Server, ask, eventually, listening, running
from test_serving import refuse

from servers import pretrained
from servers.app import Options, Served
from servers.batcher import Aborted, Batcher, Tensors
from servers.batching import Batching
from servers.errors import StartError
from servers.metrics import Metrics
from servers.plain import EmbeddingModel, TensorModel
from servers.plain_app import PlainApp

HIDDEN = 8
RNG = np.random.default_rng(3)
TABLE = RNG.standard_normal((exported.SHAPE.vocab, HIDDEN), dtype=np.float32)
WEIGHT = RNG.standard_normal((3, 2), dtype=np.float32)
WAIT_S = 10


def write(folder: Path, nodes: list[Any], inputs: list[Any], outputs: list[Any], tensors: dict[str, Any]) -> Path:
    graph = helper.make_graph(
        nodes, "plain", inputs, outputs, [numpy_helper.from_array(value, name) for name, value in tensors.items()]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    return folder


def encoder(folder: Path, **pooling: Any) -> Path:
    """Each token's vector is tanh of its row of a table: enough to see which tokens were pooled."""
    ids = [exported.info(n, TensorProto.INT64, "B", "S") for n in ("input_ids", "attention_mask", "token_type_ids")]
    out = [exported.info("last_hidden_state", TensorProto.FLOAT, "B", "S", HIDDEN)]
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["rows"]),
        helper.make_node("Tanh", ["rows"], ["last_hidden_state"]),
    ]
    write(folder, nodes, ids, out, {"table": TABLE})
    exported.describe(folder)
    if pooling:
        (folder / "1_Pooling").mkdir()
        (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    return folder


def tensors(folder: Path, rows: str | int = "N") -> Path:
    """y = x · WEIGHT, and how large each x is."""
    inputs = [exported.info("x", TensorProto.FLOAT, rows, 3)]
    outputs = [exported.info("y", TensorProto.FLOAT, rows, 2), exported.info("size", TensorProto.FLOAT, rows)]
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["y"]),
        helper.make_node("ReduceL2", ["x", "axes"], ["size"], keepdims=0),
    ]
    return write(folder, nodes, inputs, outputs, {"w": WEIGHT, "axes": np.array([1])})


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory, environment: dict[str, str]) -> Iterator[tuple[Server, Path]]:
    folder = encoder(tmp_path_factory.mktemp("models") / "encoder")
    with running(environment, "--model", str(folder), "--task", "embed", "--provider", "cpu") as server:
        yield server, folder


@pytest.fixture(scope="module")
def inferrer(tmp_path_factory: pytest.TempPathFactory, environment: dict[str, str]) -> Iterator[Server]:
    folder = tensors(tmp_path_factory.mktemp("models") / "linear")
    options = ("--scheduler", "dynamic", "--max-batch-size", "8", "--batch-timeout-ms", "20", "--provider", "cpu")
    with running(environment, "--model", str(folder), "--task", "infer", *options) as server:
        yield server


def mean_of(folder: Path, text: str) -> Any:
    vector = np.tanh(TABLE[pretrained.tokenizer(folder).encode(text)]).mean(0)
    return vector / np.linalg.norm(vector)


def test_openais_client_gets_the_vectors_of_texts_of_any_length(embedder: tuple[Server, Path]) -> None:
    server, folder = embedder
    texts = ["a", "the inference endpoint " * 5, "東京", "Load testing"]
    with OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none") as client:
        answer = client.embeddings.create(model="encoder", input=texts)
    for text, item in zip(texts, answer.data, strict=True):
        assert item.embedding == pytest.approx(mean_of(folder, text).tolist(), abs=1e-5)
    assert answer.usage.prompt_tokens == sum(len(pretrained.tokenizer(folder).encode(text)) for text in texts)


def test_many_at_once_each_get_their_own(embedder: tuple[Server, Path]) -> None:
    server, folder = embedder
    texts = [exported.TEXT[i : i + 3 * i + 1] for i in range(40)]

    def ask(text: str) -> Any:
        status, answer = server.ask("POST", "/v1/embeddings", {"model": "encoder", "input": text})
        assert status == 200, answer
        return answer["data"][0]["embedding"]

    with ThreadPoolExecutor(16) as pool:
        for text, vector in zip(texts, pool.map(ask, texts), strict=True):
            assert vector == pytest.approx(mean_of(folder, text).tolist(), abs=1e-5)
    assert server.load() == (0, 0)


def test_token_ids_and_base64(embedder: tuple[Server, Path]) -> None:
    server, folder = embedder
    body = {"model": "encoder", "input": [7, 8, 9], "encoding_format": "base64"}
    answer = server.ask("POST", "/v1/embeddings", body)[1]
    vector = np.frombuffer(base64.b64decode(answer["data"][0]["embedding"]), "<f4")
    expected = np.tanh(TABLE[[7, 8, 9]]).mean(0)
    assert vector == pytest.approx(expected / np.linalg.norm(expected), abs=1e-6)
    assert folder.name == answer["model"]


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        ({"model": "encoder", "input": ""}, 400, "not empty"),
        ({"model": "encoder", "input": []}, 400, "1 to 2048 texts"),
        ({"model": "encoder", "input": [[999]]}, 400, "token ids 0 to 319"),
        ({"model": "encoder", "input": "the " * 3000}, 400, "this model takes 256"),
        ({"model": "encoder", "input": "a", "dimensions": 3}, 400, "dimensions is not supported"),
        ({"model": "other", "input": "a"}, 404, "`other` does not exist"),
        ({"model": "encoder", "input": "a \ud800 lone surrogate"}, 400, "surrogate pair"),
        ({"model": "encoder"}, 400, "`input`"),
        (b"{", 400, "truncated"),
    ],
)
def test_wrong_requests_are_told_so(body: Any, status: int, text: str, embedder: tuple[Server, Path]) -> None:
    got, answer = embedder[0].ask("POST", "/v1/embeddings", body)
    assert (got, text in answer["error"]["message"]) == (status, True), answer


def test_an_encoder_does_not_chat(embedder: tuple[Server, Path]) -> None:
    body = {"model": "encoder", "messages": [{"role": "user", "content": "hi"}]}
    status, answer = embedder[0].ask("POST", "/v1/chat/completions", body)
    assert (status, answer["error"]["code"]) == (404, "not_a_generator")
    assert "/v1/embeddings" in answer["error"]["message"]
    (card,) = embedder[0].ask("GET", "/v1/models")[1]["data"]
    assert card["max_model_len"] == 256
    assert embedder[0].ask("GET", "/health")[1]["task"] == "embed"


def test_the_first_token_alone_where_the_folder_or_the_flag_says_so(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    folder = encoder(tmp_path / "cls", pooling_mode_cls_token=True)
    expected = np.tanh(TABLE[7]) / np.linalg.norm(np.tanh(TABLE[7]))
    with running(environment, "--model", str(folder), "--task", "embed", "--provider", "cpu") as server:
        answer = server.ask("POST", "/v1/embeddings", {"model": "cls", "input": [7, 8, 9]})[1]
    assert answer["data"][0]["embedding"] == pytest.approx(expected.tolist(), abs=1e-6)


def infer(server: Server, x: Any, **more: Any) -> tuple[int, Any]:
    x = np.asarray(x, np.float32)
    body = {"inputs": [{"name": "x", "shape": [*x.shape], "datatype": "FP32", "data": x.ravel().tolist()}], **more}
    return server.ask("POST", "/v2/models/linear/infer", body)


def test_tensors_in_tensors_out(inferrer: Server) -> None:
    x = RNG.standard_normal((5, 3), dtype=np.float32)
    status, answer = infer(inferrer, x, id="42")
    assert (status, answer["model_name"], answer["id"]) == (200, "linear", "42")
    y, size = answer["outputs"]
    assert (y["name"], y["datatype"], y["shape"]) == ("y", "FP32", [5, 2])
    assert y["data"] == pytest.approx((x @ WEIGHT).ravel().tolist(), abs=1e-5)
    assert size["data"] == pytest.approx(np.linalg.norm(x, axis=1).tolist(), abs=1e-5)
    answer = infer(inferrer, x, outputs=[{"name": "size"}])[1]
    assert [each["name"] for each in answer["outputs"]] == ["size"]


def test_rows_of_many_clients_share_runs(inferrer: Server) -> None:
    before = inferrer.ask("GET", "/stats")[1]
    x = RNG.standard_normal((64, 3), dtype=np.float32)
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda row: infer(inferrer, row[None])[1], x))
    for row, answer in zip(x, answers, strict=True):
        assert answer["outputs"][0]["data"] == pytest.approx((row @ WEIGHT).tolist(), abs=1e-5)
    after = inferrer.ask("GET", "/stats")[1]
    assert after["steps"]["infer"] - before["steps"]["infer"] < 64


def test_the_protocol_tells_what_the_model_takes(inferrer: Server) -> None:
    assert inferrer.ask("GET", "/v2/health/live") == (200, {"live": True})
    assert inferrer.ask("GET", "/v2/health/ready")[0] == 200
    assert inferrer.ask("GET", "/v2/models/linear/ready")[0] == 200
    card = inferrer.ask("GET", "/v2/models/linear")[1]
    assert card["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 3]}]
    assert [port["name"] for port in card["outputs"]] == ["y", "size"]
    assert inferrer.ask("GET", "/v2")[1]["name"] == "loadtest"


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"name": "z"}, "no input z; there are x"),
        ({"datatype": "INT64"}, "datatype is FP32, not INT64"),
        ({"shape": [2, 4]}, "shape is [-1, 3]"),
        ({"shape": [6]}, "shape is [-1, 3]"),
        ({"data": [1, 2]}, "takes 6 values, not 2"),
        ({"data": ["a"] * 6}, "not all FP32"),
        ({"shape": [0, 3], "data": []}, "at least 1"),
        ({"data": [[1, 2, 3], [4]]}, "not all FP32"),
    ],
)
def test_wrong_tensors_are_told_so_in_the_protocols_form(change: dict[str, Any], text: str, inferrer: Server) -> None:
    tensor = {"name": "x", "shape": [2, 3], "datatype": "FP32", "data": [1, 2, 3, 4, 5, 6], **change}
    status, answer = inferrer.ask("POST", "/v2/models/linear/infer", {"inputs": [tensor]})
    assert (status, text in answer["error"]) == (400, True), answer


def test_other_names_are_told_so(inferrer: Server) -> None:
    assert inferrer.ask("POST", "/v2/models/x/infer", {"inputs": []})[0] == 404
    status, answer = inferrer.ask("POST", "/v2/models/linear/infer", {"inputs": []})
    assert (status, answer["error"]) == (400, "the input x is missing")
    status, answer = infer(inferrer, [[1, 2, 3]], outputs=[{"name": "z"}])
    assert (status, answer["error"]) == (400, "no output z; there are y, size")


def test_a_graph_of_fixed_size_runs_each_request_as_it_is(tmp_path: Path, environment: dict[str, str]) -> None:
    folder = tensors(tmp_path / "linear", rows=2)
    with running(environment, "--model", str(folder), "--task", "infer", "--provider", "cpu") as server:
        x = RNG.standard_normal((2, 3), dtype=np.float32)
        assert infer(server, x)[1]["outputs"][0]["data"] == pytest.approx((x @ WEIGHT).ravel().tolist(), abs=1e-5)
        assert "shape is [2, 3]" in infer(server, x[:1])[1]["error"]


@pytest.mark.parametrize(
    ("task", "make", "text"),
    [
        ("embed", tensors, "takes input_ids and attention_mask, this one x; serve it with --task infer"),
        ("embed", lambda folder: exported.write(folder, "optimum"), "this one"),
        ("generate", encoder, "serve it with --task embed"),
    ],
)
def test_a_model_of_another_task_is_refused(task: str, make: Any, text: str, tmp_path: Path) -> None:
    code, error = refuse("--model", str(make(tmp_path)), "--task", task)
    assert (code, error.count("\n")) == (3, 1)
    assert text in error


def test_options_of_generation_are_refused(tmp_path: Path) -> None:
    for task, *option in (
        ("infer", "--prefix-cache"),
        ("infer", "--prefill-chunk", "128"),  # its default, and yet it would do nothing
        ("infer", "--sse-keep-alive", "1"),
        ("infer", "--cuda-graph"),
        ("infer", "--max-seq-len", "64"),
        ("infer", "--pooling", "cls"),
        ("embed", "--kv-slots", "16"),
        ("embed", "--queue-timeout-ms", "10"),
        ("embed", "--ignore-unsupported"),
        ("generate", "--pooling", "mean"),
    ):
        code, error = refuse("--model", str(tmp_path), "--task", task, *option)
        assert code == 2
        assert f"{option[0]} is for --task " in error
        assert f"leave it out with --task {task}" in error


def test_a_preset_is_no_model_of_tensors() -> None:
    code, error = refuse("--model", "tiny", "--task", "infer")
    assert (code, error) == (3, "error: --task infer: tiny generates text; give the folder of another model\n")


class Doubling:
    """Doubles its rows; one that holds a 13 fails, and fails whatever it shares a run with."""

    def __init__(self) -> None:
        self.runs: list[int] = []
        self.go = threading.Event()

    def key(self, feeds: Tensors) -> Any:
        return feeds["x"].shape[1:]

    def run(self, feeds: list[Tensors]) -> list[Tensors]:
        assert self.go.wait(WAIT_S)
        self.runs.append(len(feeds))
        if any((each["x"] == 13).any() for each in feeds):
            raise ValueError("thirteen")
        return [{"y": 2 * each["x"]} for each in feeds]


@pytest.fixture
def doubling() -> Iterator[tuple[Doubling, Batcher]]:
    model = Doubling()
    batcher = Batcher(model, Batching(max_batch_size=4), lambda *_: None)
    batcher.start()
    yield model, batcher
    model.go.set()
    batcher.stop()


def row(*values: int) -> Tensors:
    return {"x": np.array([values])}


def test_one_bad_row_does_not_spoil_its_neighbours(doubling: tuple[Doubling, Batcher]) -> None:
    model, batcher = doubling
    first = batcher.submit(row(0))  # runs alone, while the others gather
    eventually(lambda: batcher.running == 1, "the first does not run")
    jobs = [batcher.submit(row(value)) for value in (1, 13, 3)]
    model.go.set()
    assert first.done.result(WAIT_S)["y"] == 0
    assert jobs[0].done.result(WAIT_S)["y"] == 2
    assert jobs[2].done.result(WAIT_S)["y"] == 6
    with pytest.raises(ValueError, match="thirteen"):
        jobs[1].done.result(WAIT_S)
    assert model.runs == [1, 3, 1, 1, 1]


def test_rows_of_other_shapes_run_apart_and_the_cancelled_not_at_all(doubling: tuple[Doubling, Batcher]) -> None:
    model, batcher = doubling
    first = batcher.submit(row(0))
    eventually(lambda: batcher.running == 1, "the first does not run")
    jobs = [batcher.submit(each) for each in (row(1), row(1, 2), row(2), row(3), row(4))]
    jobs[3].done.cancel()
    switched = batcher.switch(Batching(max_batch_size=2))
    model.go.set()
    assert first.done.result(WAIT_S)["y"] == 0
    for i in (0, 1, 2, 4):
        jobs[i].done.result(WAIT_S)
    assert switched.result(WAIT_S).max_batch_size == 2
    assert model.runs == [1, 1, 1, 2], "two shapes in the first pair, then two alike"


def test_what_has_not_run_when_the_server_ends_is_told_so(doubling: tuple[Doubling, Batcher]) -> None:
    model, batcher = doubling
    first = batcher.submit(row(0))
    eventually(lambda: batcher.running == 1, "the first does not run")
    second = batcher.submit(row(1))
    batcher.abort()
    with pytest.raises(Aborted):
        second.done.result(WAIT_S)
    model.go.set()
    assert first.done.result(WAIT_S)["y"] == 0


@asynccontextmanager
async def waiting(model: TensorModel, options: Options) -> AsyncIterator[tuple[int, PlainApp, Batcher, Metrics]]:
    """The model served in this process, where rows wait for seven others."""
    app = PlainApp(options)
    batcher = Batcher(model, Batching("dynamic", 8, timeout_ms=60_000), lambda *_: None)
    metrics = Metrics("m", lambda: batcher.running, lambda: batcher.waiting)
    batcher.start()
    try:
        async with listening(app) as port, asyncio.timeout(WAIT_S):
            answer = await ask(port, "GET", "/v2/health/ready")
            assert answer.startswith(b"HTTP/1.1 503")
            answer = await ask(port, "POST", "/v2/models/m/infer", b"{}")
            assert answer.startswith(b"HTTP/1.1 503")
            assert answer.endswith(b'{"error": "the model is still loading"}')
            app.serve_plain(model, batcher)
            app.serve(Served("m", {}, batcher, metrics))
            yield port, app, batcher, metrics
    finally:
        batcher.stop()


@pytest.mark.parametrize("task", ["embed", "infer"])
async def test_who_waits_too_many_and_who_comes_too_late_are_told_so(task: str, tmp_path: Path) -> None:
    model: TensorModel
    if task == "embed":
        model = EmbeddingModel(encoder(tmp_path), "auto", "cpu", 1, "auto", None)
        path, body = "/v1/embeddings", {"model": "m", "input": "hello"}
    else:
        model = TensorModel(tensors(tmp_path), "auto", "cpu", 1)
        x = {"name": "x", "shape": [1, 3], "datatype": "FP32", "data": [1, 2, 3]}
        path, body = "/v2/models/m/infer", {"inputs": [x]}
    asked = json.dumps(body).encode()
    async with waiting(model, Options(queue_limit=1)) as (port, app, batcher, metrics):
        first = asyncio.create_task(ask(port, "POST", path, asked))
        await asyncio.to_thread(eventually, lambda: batcher.waiting == 1, "the first has not come")
        answer = await ask(port, "POST", path, asked)
        assert answer.startswith(b"HTTP/1.1 429")
        assert b"Retry-After: 1\r\n" in answer
        assert b"1 rows wait, and --queue-limit is 1; try again later" in answer
        assert (b'"code": "queue_full"' in answer) is (task == "embed"), "each in the form of its API"
        app.draining = True
        answer = await ask(port, "POST", path, asked)
        assert answer.startswith(b"HTTP/1.1 503")
        assert b"the server is shutting down" in answer
        assert (await ask(port, "GET", "/v2/health/ready")).startswith(b"HTTP/1.1 503")
        batcher.abort()
        assert (await first).startswith(b"HTTP/1.1 503")
        await app.idle()
        assert metrics.stats()["refused"] == {"queue_full": 1, "shutting_down": 2}


def test_each_api_says_where_the_other_is(embedder: tuple[Server, Path], inferrer: Server) -> None:
    status, answer = embedder[0].ask("POST", "/v2/models/encoder/infer", {"inputs": []})
    assert (status, "start it with --task infer" in answer["error"]) == (400, True)
    status, answer = inferrer.ask("POST", "/v1/embeddings", {"model": "linear", "input": "a"})
    assert (status, answer["error"]["code"]) == (404, "not_an_encoder")
    assert "--task embed" in answer["error"]["message"]
    assert inferrer.ask("PUT", "/v2/models/linear/infer") == (
        405, {"error": "PUT /v2/models/linear/infer: Method Not Allowed"},
    )  # fmt: skip


def test_what_json_has_no_number_for_is_null(inferrer: Server) -> None:
    status, answer = infer(inferrer, [[3e38, 3e38, 3e38]])
    assert status == 200
    assert answer["outputs"][1]["data"] == [None], "its size is beyond float32"


def test_rows_that_a_graph_multiplies_are_run_alone(tmp_path: Path, environment: dict[str, str]) -> None:
    """Its output has another first axis than its input, which only shows when rows share a run."""
    inputs, outputs = ([exported.info(name, TensorProto.FLOAT, name, 3)] for name in "xy")
    folder = write(tmp_path / "twice", [helper.make_node("Concat", ["x", "x"], ["y"], axis=0)], inputs, outputs, {})
    with running(environment, "--model", str(folder), "--task", "infer", "--provider", "cpu") as server:
        body = {"inputs": [{"name": "x", "shape": [2, 3], "datatype": "FP32", "data": [1, 2, 3, 4, 5, 6]}]}
        status, answer = server.ask("POST", "/v2/models/twice/infer", body)
        assert (status, answer["outputs"][0]["data"]) == (200, [1, 2, 3, 1, 2, 3, 4, 5, 6, 4, 5, 6])


def test_a_graph_that_pools_by_itself_is_taken_at_its_word(tmp_path: Path) -> None:
    folder = encoder(tmp_path / "encoder")
    model = onnx.load(folder / "model.onnx")
    pooled = helper.make_node("ReduceMax", ["last_hidden_state", "axes"], ["sentence_embedding"], keepdims=0)
    model.graph.node.append(pooled)
    model.graph.initializer.append(numpy_helper.from_array(np.array([1]), "axes"))
    model.graph.output.append(exported.info("sentence_embedding", TensorProto.FLOAT, "B", HIDDEN))
    onnx.save(model, folder / "model.onnx")
    (result,) = EmbeddingModel(folder, "auto", "cpu", 1, "auto", None).run([{"input_ids": np.array([[7, 8]])}])
    expected = np.tanh(TABLE[[7, 8]]).max(0)
    assert result["embedding"][0] == pytest.approx(expected / np.linalg.norm(expected), abs=1e-6)


def test_an_encoder_is_refused_where_nothing_can_be_made_of_it(tmp_path: Path) -> None:
    def refused(text: str, longest: int | None = None) -> None:
        with pytest.raises(StartError, match=text):
            EmbeddingModel(folder, "auto", "cpu", 1, "auto", longest)

    folder = encoder(tmp_path / "encoder")
    refused("--max-seq-len 257: the encoder model reaches 256 tokens", 257)
    (folder / "config.json").unlink()
    refused("does not say how long a text the model takes; give --max-seq-len")
    model = onnx.load(folder / "model.onnx")
    model.graph.node[-1].output[0] = model.graph.output[0].name = "scores"
    onnx.save(model, folder / "model.onnx")
    refused(r"no sentence_embedding and no last_hidden_state among its outputs \(scores\); export it with `optimum-cli")


def test_a_graph_of_texts_is_refused(tmp_path: Path) -> None:
    inputs, outputs = ([exported.info(name, TensorProto.STRING, "N")] for name in "xy")
    folder = write(tmp_path, [helper.make_node("Identity", ["x"], ["y"])], inputs, outputs, {})
    with pytest.raises(StartError, match=r"x is tensor\(string\), and only tensors of numbers can be served"):
        TensorModel(folder, "auto", "cpu", 1)
