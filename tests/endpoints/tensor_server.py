"""A server of the Open Inference Protocol that computes what it answers: sums of what came, so that wrong bytes show.

``python tensor_server.py [--binary]`` prints its URL. The name of a model says what it takes and how it misbehaves.
``GET /seen`` tells of each request its model, whether it came as bytes, and each input's shape, sum and first number.
"""

import argparse
import asyncio
import json
from typing import Any

import numpy as np
from aiohttp import web
from numpy.typing import NDArray

KINDS = {
    "BOOL": "?", "UINT8": "u1", "UINT16": "<u2", "UINT32": "<u4", "UINT64": "<u8", "INT8": "i1", "INT16": "<i2",
    "INT32": "<i4", "INT64": "<i8", "FP16": "<f2", "FP32": "<f4", "FP64": "<f8", "BF16": "<u2",
}  # fmt: skip


def port(name: str, datatype: str, *shape: int) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": [*shape]}


SUM = [port("sum", "FP64", -1)]
MODELS: dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]]]] = {
    "adder": ([port("x", "FP32", -1, 4)], SUM),
    "picture": ([port("pixels", "FP32", -1, 3, 224, 224)], SUM),
    "kinds": ([port(kind.lower(), kind, -1, 100) for kind in KINDS], SUM),
    "text": ([port("text", "BYTES", -1, 1)], [*SUM, port("shout", "BYTES", -1)]),
    "single": ([port("x", "FP32", 4)], [port("sum", "FP64", 1)]),
    "open": ([port("ids", "INT64", -1, -1)], SUM),
    "silent": ([], []),
    "one-row": ([port("x", "FP32", -1, 4)], SUM),
    "refusing": ([port("x", "FP32", -1, 4)], SUM),
    "odd": ([port("x", "FP32", -1, 4)], SUM),
    "empty": ([port("x", "FP32", -1, 4)], SUM),
    "nan": ([port("x", "FP32", -1, 4)], SUM),
    "short": ([port("x", "FP32", -1, 4)], SUM),
}


def received(headers: Any, body: bytes) -> dict[str, NDArray[Any]]:
    """The inputs of a request; texts are their UTF-8. Raises AssertionError where it breaks the protocol."""
    length = headers.get("Inference-Header-Content-Length")
    head = json.loads(body if length is None else body[: int(length)])
    at = len(body) if length is None else int(length)
    found: dict[str, NDArray[Any]] = {}
    for tensor in head["inputs"]:
        kind, shape = tensor["datatype"], tensor["shape"]
        if "parameters" in tensor:
            assert "data" not in tensor
            data = body[at : (at := at + tensor["parameters"]["binary_data_size"])]
            values = np.array(_texts(data)) if kind == "BYTES" else np.frombuffer(data, KINDS[kind])
            if kind == "BF16":
                values = (values.astype("<u4") << 16).view("<f4")
        else:
            listed = [item.encode() for item in tensor["data"]] if kind == "BYTES" else tensor["data"]
            values = np.array(listed, None if kind == "BYTES" else KINDS[kind])
        found[tensor["name"]] = values.reshape(shape)
    assert at == len(body), "more bytes than the tensors have"
    return found


def _texts(data: bytes) -> list[bytes]:
    found, at = [], 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "little")
        found.append(data[at + 4 : (at := at + 4 + size)])
        assert at <= len(data), "a text is cut off"
    return found


def sums(inputs: dict[str, NDArray[Any]]) -> NDArray[Any]:
    """What is answered: for each row the sum of all inputs, of a text its length."""
    rows = []
    for values in inputs.values():
        numbers = np.vectorize(len)(values) if values.dtype.kind == "S" else values
        rows.append(np.atleast_2d(numbers).reshape(len(np.atleast_2d(numbers)), -1).sum(axis=1, dtype=np.float64))
    total: NDArray[Any] = np.sum(rows, axis=0)
    return total


def answered(model: str, inputs: dict[str, NDArray[Any]], *, binary: bool) -> tuple[bytes, dict[str, str]]:
    """The body of an answer, and its headers."""
    total = sums(inputs)
    if model == "one-row":
        total = total[:1]
    if model == "refusing":
        return json.dumps({"error": "the model is out of order"}).encode(), {}
    if model == "odd":
        return b'{"predictions": [1, 2]}', {}
    if model == "empty":
        return b'{"model_name": "empty", "outputs": []}', {}
    if model == "nan":
        total = total * np.nan
    shape = [len(total) + 1] if model == "short" else [len(total)]
    output = {"name": "sum", "datatype": "FP64", "shape": shape}
    shouts = [text.upper() for text in inputs["text"].ravel().tolist()] if model == "text" else []
    shout = {"name": "shout", "datatype": "BYTES", "shape": [len(shouts)]}
    if not binary:
        outputs = [{**output, "data": total.tolist()}]
        outputs += [{**shout, "data": [text.decode() for text in shouts]}] if shouts else []
        return json.dumps({"model_name": model, "outputs": outputs}).encode(), {}
    tail = [total.astype("<f8").tobytes(), b"".join(len(text).to_bytes(4, "little") + text for text in shouts)]
    outputs = [{**output, "parameters": {"binary_data_size": len(tail[0])}}]
    outputs += [{**shout, "parameters": {"binary_data_size": len(tail[1])}}] if shouts else []
    head = json.dumps({"model_name": model, "outputs": outputs}).encode()
    return head + b"".join(tail), {"Inference-Header-Content-Length": str(len(head))}


def application(*, binary: bool) -> web.Application:
    """The server; ``binary``: it has the extension of tensors as bytes."""
    seen: list[dict[str, Any]] = []
    routes = web.RouteTableDef()

    @routes.get("/v2")
    async def server(_: web.Request) -> web.Response:
        return web.json_response({"name": "sums", "version": "1", "extensions": ["binary_tensor_data"] * binary})

    @routes.get("/v2/models/{model}")
    @routes.get("/v2/models/{model}/versions/{version}")
    async def model(http: web.Request) -> web.Response:
        name = http.match_info["model"]
        if name not in MODELS:
            return web.json_response({"error": f"Request for unknown model: '{name}' is not found"}, status=400)
        inputs, outputs = MODELS[name]
        return web.json_response({"name": name, "platform": "sums", "inputs": inputs, "outputs": outputs})

    @routes.post("/v2/models/{model}/infer")
    @routes.post("/v2/models/{model}/versions/{version}/infer")
    async def infer(http: web.Request) -> web.Response:
        name, body = http.match_info["model"], await http.read()
        try:
            inputs = received(http.headers, body)
            for described in MODELS[name][0]:
                fits = zip(described["shape"], inputs[described["name"]].shape, strict=True)
                assert all(want in (-1, size) for want, size in fits), "unexpected shape"
        except (AssertionError, ValueError, KeyError, TypeError) as error:
            return web.json_response({"error": f"{type(error).__name__}: {error}"}, status=400)
        as_bytes = "Inference-Header-Content-Length" in http.headers
        tensors = {
            key: {"shape": [*values.shape], "sum": float(sums({key: values}).sum()), "first": str(values.ravel()[0])}
            for key, values in inputs.items()
        }
        version = http.match_info.get("version")
        seen.append({"model": name, "version": version, "binary": as_bytes, "inputs": tensors, "bytes": len(body)})
        answer, headers = answered(name, inputs, binary=as_bytes)
        kind = "application/octet-stream" if headers else "application/json"
        return web.Response(body=answer, headers={"Content-Type": kind, **headers})

    @routes.get("/seen")
    async def what_came(_: web.Request) -> web.Response:
        return web.json_response(seen)

    app = web.Application(client_max_size=1 << 30)
    app.add_routes(routes)
    return app


async def main() -> None:
    """Serve until stopped."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--binary", action="store_true")
    parser.add_argument("--port", type=int, default=0)
    asked = parser.parse_args()
    runner = web.AppRunner(application(binary=asked.binary))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", asked.port).start()
    print(f"http://127.0.0.1:{runner.addresses[0][1]}", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
