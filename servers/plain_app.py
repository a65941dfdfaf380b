"""The HTTP side of models without a cache: /v1/embeddings as OpenAI has it, /v2 as the Open Inference Protocol has it.

Everything around it (health, metrics, keys, ids, batching) is ``servers.app``'s.
"""

import asyncio
import base64
import math
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from aiohttp import web
from numpy.typing import NDArray

from servers.app import App, queue_full, shutting_down
from servers.batcher import Aborted, Batcher, Tensors
from servers.errors import RequestError, unknown_model
from servers.plain import EmbeddingModel, Port, TensorModel

_TEXTS = 2048  # inputs of one embeddings request, as OpenAI has it


class _Embeddings(msgspec.Struct, forbid_unknown_fields=True):
    model: str
    input: str | list[str | int | list[int]]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = None
    user: str | None = None


class _Tensor(msgspec.Struct):
    name: str
    shape: list[Annotated[int, msgspec.Meta(ge=0)]]
    datatype: str
    data: list[Any]


class _Wanted(msgspec.Struct):
    name: str


class _Infer(msgspec.Struct):
    inputs: list[_Tensor]
    id: str | None = None
    outputs: list[_Wanted] | None = None


class PlainApp(App):
    """Routes over a model without a cache, given by ``serve_plain``."""

    _plain: TensorModel
    _batcher: Batcher

    def serve_plain(self, model: TensorModel, batcher: Batcher) -> None:
        """The model to answer with, and what runs it; before ``serve``, which says the rest of it."""
        self._plain = model
        self._batcher = batcher

    def routes(self) -> web.Application:
        app = super().routes()
        add = app.router
        add.add_post("/v1/completions", self._no_text)
        add.add_post("/v1/chat/completions", self._no_text)
        add.add_post("/v1/embeddings", self._embeddings)
        add.add_get("/v2", self._protocol)
        add.add_get("/v2/health/live", self._live)
        add.add_get("/v2/health/ready", self._ready)
        add.add_get("/v2/models/{model}", self._describe)
        add.add_get("/v2/models/{model}/ready", self._model_ready)
        add.add_post("/v2/models/{model}/infer", self._infer)
        return app

    def _told(self, http: web.Request, error: RequestError) -> dict[str, Any]:
        if http.path.startswith("/v2"):  # the protocol's own form
            return {"error": str(error)}
        return super()._told(http, error)

    async def _no_text(self, _: web.Request) -> web.Response:
        name = self._model.name
        raise RequestError(
            f"{name} generates no text; it is served at /v1/embeddings or /v2/models/{name}",
            status=404, code="not_a_generator",
        )  # fmt: skip

    async def _embeddings(self, http: web.Request) -> web.Response:
        served, model = self._model, self._plain
        if not isinstance(model, EmbeddingModel):
            raise RequestError(
                f"{served.name} is served as tensors, at /v2; start the server with --task embed for embeddings",
                status=404, code="not_an_encoder",
            )  # fmt: skip
        body = _decoded(await http.read(), _Embeddings)
        if body.model != served.name:
            raise unknown_model(body.model, served.name)
        if body.dimensions is not None:
            raise RequestError("dimensions is not supported here; leave it out", param="dimensions")
        rows = await asyncio.to_thread(_tokens, body.input, model)
        results = await self._run([{"input_ids": np.array([row], np.int64)} for row in rows])
        vectors = [result["embedding"][0] for result in results]
        as_base64 = body.encoding_format == "base64"
        count = sum(map(len, rows))
        return web.json_response(
            {
                "object": "list",
                "data": [
                    {"object": "embedding", "index": i, "embedding": _vector(vector, as_base64=as_base64)}
                    for i, vector in enumerate(vectors)
                ],
                "model": served.name,
                "usage": {"prompt_tokens": count, "total_tokens": count},
            }
        )

    async def _protocol(self, _: web.Request) -> web.Response:
        facts = self._model.facts
        return web.json_response({"name": "loadtest", "version": facts["versions"]["loadtest"], "extensions": []})

    async def _live(self, _: web.Request) -> web.Response:
        return web.json_response({"live": True})

    async def _describe(self, http: web.Request) -> web.Response:
        self._check_name(http)
        ports = {"inputs": self._plain.inputs, "outputs": self._plain.outputs}
        described = {
            side: [{"name": p.name, "datatype": p.datatype, "shape": list(p.shape)} for p in named.values()]
            for side, named in ports.items()
        }
        return web.json_response({"name": self._model.name, "versions": [], "platform": "onnxruntime", **described})

    async def _model_ready(self, http: web.Request) -> web.Response:
        self._check_name(http)
        return web.json_response({"name": self._model.name, "ready": True})

    async def _infer(self, http: web.Request) -> web.Response:
        self._check_name(http)
        if isinstance(self._plain, EmbeddingModel):
            raise RequestError("this server was started with --task embed; start it with --task infer for tensors")
        body = _decoded(await http.read(), _Infer)
        feeds = _feeds(body.inputs, self._plain.inputs)
        wanted = [each.name for each in body.outputs] if body.outputs else list(self._plain.outputs)
        if unknown := sorted(set(wanted) - self._plain.outputs.keys()):
            raise RequestError(f"no output {', '.join(unknown)}; there are {', '.join(self._plain.outputs)}")
        results = await self._run(_rows(feeds) if self._plain.batchable else [feeds])
        outputs = []
        for name in wanted:
            parts = [result[name] for result in results]
            value = parts[0] if len(parts) == 1 else np.concatenate(parts)
            datatype = self._plain.outputs[name].datatype
            outputs.append(
                {"name": name, "datatype": datatype, "shape": list(value.shape), "data": _finite(value.ravel())}
            )
        answer = {"model_name": self._model.name, "outputs": outputs}
        return web.json_response(answer if body.id is None else {**answer, "id": body.id})

    def _check_name(self, http: web.Request) -> None:
        if http.match_info["model"] != self._model.name:
            raise unknown_model(http.match_info["model"], self._model.name)

    async def _run(self, rows: list[Tensors]) -> list[Tensors]:
        """The results of some rows, which the batcher may run together with those of others."""
        self._refuse_if_draining()
        batcher, limit = self._batcher, self._options.queue_limit
        if limit is not None and batcher.waiting and batcher.waiting + len(rows) > limit:
            raise queue_full(f"{batcher.waiting} rows wait", limit, 1)
        with self._busy():
            jobs = [batcher.submit(row) for row in rows]
            try:
                return await asyncio.gather(*(asyncio.wrap_future(job.done) for job in jobs))
            except Aborted as error:
                raise shutting_down() from error
            except Exception as error:  # ONNX Runtime's, of a row that the graph cannot compute
                raise RequestError(f"the model cannot compute this: {error}", code="inference_failed") from error
            finally:
                for job in jobs:  # the client has gone, or another row of it failed
                    job.done.cancel()


def _decoded(body: bytes, kind: Any) -> Any:
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.DecodeError as error:
        raise RequestError(str(error)) from error


def _tokens(given: str | list[str | int | list[int]], model: EmbeddingModel) -> list[list[int]]:
    """The token ids of each input.

    Raises:
        RequestError: none, too many, an empty or too long one, or ids that are none of the model's.
    """
    inputs: list[Any] = [given] if isinstance(given, str) else given
    if inputs and all(isinstance(each, int) for each in inputs):
        inputs = [inputs]
    if not 0 < len(inputs) <= _TEXTS:
        raise RequestError(f"input must be 1 to {_TEXTS} texts", param="input")
    rows = []
    for i, each in enumerate(inputs):
        row = model.tokenizer.encode(each) if isinstance(each, str) else each
        size = model.tokenizer.size
        if not isinstance(row, list) or not row or not all(isinstance(t, int) and 0 <= t < size for t in row):
            raise RequestError(
                f"input[{i}] must be a text that is not empty, or token ids 0 to {size - 1}", param="input"
            )
        if len(row) > model.max_seq_len:
            raise RequestError(
                f"input[{i}] has {len(row)} tokens, and this model takes {model.max_seq_len}",
                param="input", code="context_length_exceeded",
            )  # fmt: skip
        rows.append(row)
    return rows


def _vector(vector: NDArray[np.float32], *, as_base64: bool) -> str | list[float]:
    if as_base64:
        return base64.b64encode(vector.astype("<f4").tobytes()).decode()
    values: list[float] = vector.tolist()
    return values


def _feeds(given: list[_Tensor], ports: dict[str, Port]) -> Tensors:
    """The inputs of a request as arrays.

    Raises:
        RequestError: one is missing, unknown, of another type, or its data do not fill its shape.
    """
    feeds: Tensors = {}
    for tensor in given:
        port = ports.get(tensor.name)
        if port is None:
            raise RequestError(f"no input {tensor.name}; there are {', '.join(ports)}")
        if tensor.datatype != port.datatype:
            raise RequestError(f"{tensor.name}: datatype is {port.datatype}, not {tensor.datatype}")
        fits = len(tensor.shape) == len(port.shape) and all(
            want in (-1, size) for want, size in zip(port.shape, tensor.shape, strict=True)
        )
        if not fits:
            raise RequestError(f"{tensor.name}: shape is {list(port.shape)} (-1: any), not {tensor.shape}")
        try:
            values = np.array(tensor.data, port.kind)
        except (ValueError, TypeError, OverflowError) as error:
            raise RequestError(f"{tensor.name}: the data are not all {port.datatype}: {error}") from error
        if values.size != math.prod(tensor.shape):
            raise RequestError(
                f"{tensor.name}: shape {tensor.shape} takes {math.prod(tensor.shape)} values, not {values.size}"
            )
        feeds[tensor.name] = values.reshape(tensor.shape)
    if lacking := [name for name in ports if name not in feeds]:
        raise RequestError(f"the input {', '.join(lacking)} is missing")
    return feeds


def _rows(feeds: Tensors) -> list[Tensors]:
    counts = {len(value) for value in feeds.values()}
    if len(counts) != 1 or 0 in counts:
        raise RequestError("the first axis of all inputs must have the same size, at least 1")
    return [{name: value[i : i + 1] for name, value in feeds.items()} for i in range(counts.pop())]


def _finite(values: NDArray[Any]) -> list[Any]:
    """Values for JSON, which has no infinity and no NaN: null."""
    items: list[Any] = values.tolist()
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        return [item if math.isfinite(item) else None for item in items]
    return items
