"""The HTTP side of text over models that never end, fail, or have not been loaded yet: in this process."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest
from served import ask, listening

from servers import app as app_module
from servers.app import Options, Served
from servers.batching import Batching
from servers.engine import Engine, Limits
from servers.metrics import Metrics
from servers.text_app import TextApp
from servers.tokenizer import BYTES

ASKED = {"model": "endless", "prompt": "x"}
DEFAULTS, CONTINUOUS = Options(), Batching("continuous", 2)


class Endless:
    """A model that always says "a", at once, until it is ``broken``."""

    def __init__(self, slots: int) -> None:
        self.tokens = np.full(slots, ord("a"), np.int64)
        self.broken = False

    def prefill(self, slot: int, tokens: list[int]) -> int:
        return ord("a")

    def decode(self, count: int) -> list[int]:
        if self.broken:
            raise RuntimeError("out of memory")
        return [ord("a")] * count

    def logits(self, row: int) -> Any:
        raise AssertionError("nobody asked")

    def clear(self, slot: int, keep: int = 0) -> None: ...
    def move(self, source: int, target: int) -> None: ...


@asynccontextmanager
async def serving(
    model: Endless, options: Options = DEFAULTS, batching: Batching = CONTINUOUS, **limits: Any
) -> AsyncIterator[tuple[int, TextApp, Metrics, list[Exception]]]:
    """The port, the app, its counts, and what the engine failed with."""
    app, failures = TextApp(options), list[Exception]()
    metrics = Metrics("endless", lambda: engine.running, lambda: engine.waiting, len(model.tokens))
    engine = Engine(model, batching, app.publish, failures.append, Limits(**limits))
    app.serve_text(engine, BYTES, 10**9, prefix_cache=False)
    app.serve(Served("endless", {}, engine, metrics, places=len(model.tokens)))
    engine.start()
    try:
        async with listening(app) as port, asyncio.timeout(30):
            yield port, app, metrics, failures
    finally:
        engine.stop()


def body(**changes: Any) -> bytes:
    return json.dumps({**ASKED, **changes}).encode()


async def test_while_the_model_loads_everyone_is_told_to_come_back() -> None:
    app = TextApp(Options())
    async with listening(app) as port:
        for method, path in (
            ("POST", "/v1/completions"),
            ("GET", "/v1/models"),
            ("GET", "/metrics"),
            ("GET", "/stats"),
        ):
            answer = await ask(port, method, path, b"{}" if method == "POST" else b"")
            assert answer.startswith(b"HTTP/1.1 503")
            assert b"Retry-After: 1\r\n" in answer
            assert b"still loading" in answer
        assert b'{"status": "loading"}' in await ask(port, "GET", "/health")
        assert (await ask(port, "GET", "/ready")).startswith(b"HTTP/1.1 503")


async def test_a_client_that_does_not_read_loses_its_request_and_nobody_else_does() -> None:
    async with serving(Endless(2)) as (port, app, metrics, _):
        slow = socket.socket()
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        with slow:
            slow.connect(("127.0.0.1", port))
            asked = body(max_tokens=10**8, stream=True)
            slow.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(asked) + asked)
            slow.setblocking(False)
            assert (await asyncio.get_running_loop().sock_recv(slow, 12)) == b"HTTP/1.1 200"
            other = await ask(port, "POST", "/v1/completions", body())
            assert b'"text": "aaaaaaaaaaaaaaaa"' in other
            await app.idle()
        assert metrics.stats()["ended"] == {"abort": 1, "length": 1}


async def test_an_engine_that_fails_leaves_nobody_without_an_answer() -> None:
    model = Endless(2)
    async with serving(model) as (port, app, metrics, failures):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        asked = body(max_tokens=10**8, stream=True)
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n")
        writer.write(b"Content-Length: %d\r\n\r\n" % len(asked) + asked)
        assert (await reader.readuntil(b'"text":"a"')).startswith(b"HTTP/1.1 200")
        model.broken = True
        answer = await reader.read()
        writer.close()
        assert b"the engine failed; see the server's log" in answer
        assert b"[DONE]" not in answer
        for stream in (False, True):  # what comes before the process has ended
            answer = await ask(port, "POST", "/v1/completions", body(stream=stream))
            assert answer.startswith(b"HTTP/1.1 500")
            assert b"out of memory" not in answer, "that is for the log"
        await app.idle()
        assert [str(failure) for failure in failures] == ["out of memory"]
        assert metrics.stats()["ended"] == {"error": 3}


async def test_who_has_heard_signs_of_life_is_told_in_the_stream_that_it_waited_too_long() -> None:
    dynamic = Batching("dynamic", 2, timeout_ms=60_000)
    async with serving(Endless(2), Options(keep_alive_s=0.05), dynamic, queue_timeout_s=0.3) as (port, *_):
        answer = await ask(port, "POST", "/v1/completions", body(stream=True))
        assert answer.startswith(b"HTTP/1.1 200")
        assert b": keep-alive\n\n" in answer
        assert b'"code":"queue_timeout"' in answer
        assert b"[DONE]" not in answer


async def test_a_fault_of_the_server_is_one_line_for_the_client_and_the_rest_for_the_log(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(Endless(2)) as (port, _, metrics, _failures):

        def broken() -> bytes:
            raise KeyError("a secret")

        monkeypatch.setattr(metrics, "exposition", broken)
        answer = await ask(port, "GET", "/metrics")
        assert answer.startswith(b"HTTP/1.1 500")
        assert b"internal error; see the server's log" in answer
        assert b"secret" not in answer
        assert "a secret" in caplog.text


async def test_batching_is_not_for_strangers_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app_module, "_is_loopback", lambda peer: peer is None)
    setting = json.dumps({"scheduler": "none", "max_batch_size": 1}).encode()
    async with serving(Endless(2)) as (port, *_):
        answer = await ask(port, "POST", "/admin/batching", setting)
        assert answer.startswith(b"HTTP/1.1 403")
        assert b"or set --api-key" in answer
        assert b'"scheduler": "continuous"' in await ask(port, "GET", "/health")
