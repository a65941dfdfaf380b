"""The HTTP side: the OpenAI API, /health, /ready, /metrics, /stats and /admin/batching, on aiohttp's event loop."""

import asyncio
import contextlib
import hmac
import ipaddress
import json
import logging
import math
import sys
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any

import msgspec
from aiohttp import web

from servers.batching import Batching
from servers.engine import Engine, Generation, Output
from servers.metrics import CONTENT_TYPE, Metrics
from servers.protocol import Answer, Kind, Request, RequestError, parse, unknown_model
from servers.tokenizer import Tokenizer

_BODY_LIMIT_MIB = 16  # far above any prompt that fits a context
_LONG_BODY = 2**16  # bytes; tens of milliseconds of tokenizing
_BACKLOG = 1024  # pieces that may wait for a slow reader, beyond what its connection buffers
_RETRY_LIMIT_S = 60
_OPEN = (
    "/health",
    "/ready",
    "/metrics",
    "/stats",
    "/v2/health/live",
    "/v2/health/ready",
)  # what probes and scrapers ask, without a key
_ID = web.RequestKey("id", str)
_REQUEST = web.RequestKey("request", Request)  # what its body asks for, once it has been accepted
log = logging.getLogger(__name__)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True)
class Options:
    """What the command line decides of the HTTP side."""

    api_key: str | None = None
    queue_limit: int | None = None  # answers that may wait for a place
    ignore_unsupported: bool = False
    cors_origins: tuple[str, ...] = ()
    keep_alive_s: float = 15.0  # longest silence in a stream
    access_log: bool = False


@dataclass(frozen=True)
class Served:
    """The model that is served. ``facts`` is what /health says of it and its device, unchanged while it runs.

    ``max_seq_len`` and ``tokenizer`` are None where they mean nothing, as for a model of tensors.
    """

    name: str
    max_seq_len: int | None
    kv_slots: int
    facts: dict[str, Any]
    tokenizer: Tokenizer | None
    engine: Engine
    metrics: Metrics
    prefix_cache: bool


class App:
    """Routes over one engine, which may still be on its way: until ``serve`` everyone is told to come back.

    ``publish`` is for the engine's thread; everything else belongs to the event loop.
    """

    def __init__(self, options: Options) -> None:
        self.draining = False
        self._options = options
        self._served: Served | None = None
        self._loop = asyncio.get_running_loop()
        self._inboxes: dict[Generation, _Inbox] = {}  # by each answer that has not ended
        self._answering = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def serve(self, served: Served) -> None:
        """Answer with this model from now on."""
        self._served = served

    def publish(self, outputs: list[Output]) -> None:
        """Hand outputs over to the event loop: one call for all tokens of a run."""
        self._loop.call_soon_threadsafe(self._deliver, outputs)

    async def idle(self) -> None:
        """Return when no request is being answered."""
        await self._idle.wait()

    def routes(self) -> web.Application:
        """The aiohttp application."""
        app = web.Application(client_max_size=_BODY_LIMIT_MIB * 2**20, middlewares=[self._frame])
        app.on_response_prepare.append(self._add_headers)
        app.cleanup_ctx.append(self._keeping_alive)
        app.router.add_get("/health", self._health)
        app.router.add_get("/ready", self._ready)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/stats", self._stats)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/v1/models/{model:.+}", self._one_model)
        app.router.add_post("/v1/completions", self._completions)
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_post("/admin/batching", self._switch_batching)
        return app

    @property
    def _model(self) -> Served:
        if self._served is None:
            raise RequestError(
                "the model is still loading", status=503, kind="server_error", code="loading", retry_after_s=1
            )
        return self._served

    def _deliver(self, outputs: list[Output]) -> None:
        metrics = self._model.metrics
        metrics.delivered([output.generation for output in outputs])
        for output in outputs:
            inbox = self._inboxes.get(output.generation)
            if inbox is None:
                continue  # the client has gone
            if output.finish:
                del self._inboxes[output.generation]
                metrics.ended(output.generation, output.finish)
            if inbox.put(output) == _BACKLOG + 1:
                log.info("a client reads too slowly; its request is cancelled")
                inbox.hang_up()

    async def _health(self, _: web.Request) -> web.Response:
        if self._served is None:
            return web.json_response({"status": "loading"}, status=503)
        engine = self._served.engine
        return web.json_response(
            {
                "status": "draining" if self.draining else "ok",
                **self._served.facts,
                "batching": _as_json(engine.batching),
                "running": engine.running,
                "waiting": engine.waiting,
            }
        )

    async def _ready(self, _: web.Request) -> web.Response:
        ready = self._served is not None and not self.draining
        return web.json_response({"ready": ready}, status=200 if ready else 503)

    async def _metrics(self, _: web.Request) -> web.Response:
        return web.Response(body=self._model.metrics.exposition(), headers={"Content-Type": CONTENT_TYPE})

    async def _stats(self, _: web.Request) -> web.Response:
        return web.json_response(self._model.metrics.stats())

    async def _models(self, _: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [_card(self._model)]})

    async def _one_model(self, request: web.Request) -> web.Response:
        if request.match_info["model"] != self._model.name:
            raise unknown_model(request.match_info["model"], self._model.name)
        return web.json_response(_card(self._model))

    async def _switch_batching(self, request: web.Request) -> web.Response:
        # Behind a reverse proxy everyone comes from the loopback address; there a key must be set.
        if self._options.api_key is None and not _is_loopback(request.remote):
            message = "/admin is answered to this machine only; ask from the loopback address, or set --api-key"
            raise RequestError(message, status=403, kind="permission_error", code="loopback_only")
        served = self._model
        try:
            batching = msgspec.json.decode(await request.read(), type=_BatchingBody).batching()
        except (msgspec.DecodeError, ValueError) as error:
            raise RequestError(str(error)) from error
        if batching.batch_size > served.kv_slots:
            message = (
                f"max_batch_size {batching.max_batch_size} is more than the {served.kv_slots} slots this server was "
                f"started with; restart it with --kv-slots {batching.max_batch_size}"
            )
            raise RequestError(message, param="max_batch_size")
        done: Future[Batching] = served.engine.switch(batching)
        return web.json_response(_as_json(await asyncio.wrap_future(done)))

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        return await self._generate("completions", request)

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        return await self._generate("chat", request)

    async def _generate(self, kind: Kind, http: web.Request) -> web.StreamResponse:
        served = self._model
        assert served.tokenizer is not None
        assert served.max_seq_len is not None
        body = await http.read()
        if self.draining:
            raise _shutting_down()
        ignoring = self._options.ignore_unsupported
        read = partial(
            parse, kind, body, served.name, served.max_seq_len, served.tokenizer, ignore_unsupported=ignoring
        )
        if len(body) < _LONG_BODY:
            request = read()
        else:  # a real tokenizer takes seconds for megabytes, and the others' answers must flow on
            request = await asyncio.to_thread(read)
            if self.draining:
                raise _shutting_down()
        self._refuse_if_full(served, len(request.generations))
        http[_REQUEST] = request
        inbox = _Inbox(self._loop, http.transport, len(request.generations))
        self._answering += 1
        self._idle.clear()
        for generation in request.generations:
            self._inboxes[generation] = inbox
            served.engine.submit(generation)
        try:
            if request.stream:
                return await self._stream(request, inbox, http, served)
            return await self._collect(request, inbox, served)
        finally:
            # Also when the client has gone: aiohttp then cancels this handler.
            for generation in request.generations:
                if self._inboxes.pop(generation, None) is not None:
                    served.engine.cancel(generation)
                    served.metrics.ended(generation, "abort")
            self._answering -= 1
            if not self._answering:
                self._idle.set()

    def _refuse_if_full(self, served: Served, count: int) -> None:
        """Raises RequestError if ``count`` more answers would wait beyond the limit, unless nothing else runs."""
        if self._options.queue_limit is None or not self._inboxes:
            return
        places = served.engine.batching.batch_size
        if len(self._inboxes) + count <= places + self._options.queue_limit:
            return
        # A place becomes free each time one of those that run together has ended.
        soon_s = math.ceil(served.metrics.recent_e2e_s / places)
        raise RequestError(
            f"the server is full: {len(self._inboxes)} answers run or wait, and --queue-limit is "
            f"{self._options.queue_limit}; try again later",
            status=429,
            kind="rate_limit_error",
            code="queue_full",
            retry_after_s=min(max(soon_s, 1), _RETRY_LIMIT_S),
        )

    async def _collect(self, request: Request, inbox: "_Inbox", served: Served) -> web.Response:
        outputs: list[Output] = []
        while inbox.open:
            outputs += await inbox.take()
        for output in outputs:
            _refuse_failed(output)
        return web.json_response(Answer(request, show_cached=served.prefix_cache).whole(outputs))

    async def _stream(self, request: Request, inbox: "_Inbox", http: web.Request, served: Served) -> web.StreamResponse:
        # The status is sent with the first token, so that a request that never got one can still be refused; or
        # with the first sign of life, when the first token takes long.
        outputs = await inbox.take()
        for output in outputs:
            _refuse_failed(output)
        answer = Answer(request, show_cached=served.prefix_cache)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
        try:
            await response.prepare(http)
            opened = False
            while True:
                failed = next((output.finish for output in outputs if output.finish in ("error", "expired")), None)
                if failed:
                    await response.write(answer.failure(_engine_failed() if failed == "error" else _expired()))
                    break
                data = b"" if opened or not outputs else answer.opening()
                opened = opened or bool(outputs)
                data += b"".join([answer.piece(output) for output in outputs])
                if not inbox.open:
                    await response.write(data + answer.closing())
                    break
                await response.write(data or b": keep-alive\n\n")
                outputs = await inbox.take()
            await response.write_eof()
        except ConnectionResetError:
            pass  # the client has gone; nobody is left to be told
        return response

    async def _keeping_alive(self, _: web.Application) -> AsyncIterator[None]:
        async def nudge_all() -> None:
            while True:
                await asyncio.sleep(self._options.keep_alive_s / 2)
                for inbox in set(self._inboxes.values()):
                    inbox.nudge()

        task = asyncio.create_task(nudge_all())
        yield
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    @web.middleware
    async def _frame(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Around every request: its id, the key, errors as JSON, the access log."""
        begun = time.perf_counter()
        given = request.headers.get("X-Request-Id", "")
        request[_ID] = given if 0 < len(given) <= 128 and given.isascii() and given.isprintable() else uuid.uuid4().hex
        status = 499  # as nginx has it: the client has gone
        try:
            response = await self._answer(request, handler)
            status = response.status
            return response
        finally:
            if self._options.access_log:
                _log_access(request, status, time.perf_counter() - begun)

    async def _answer(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            if request.method == "OPTIONS" and self._options.cors_origins and "Origin" in request.headers:
                return web.Response(status=204)
            self._refuse_stranger(request)
            return await handler(request)
        except RequestError as error:
            if self._served is not None:
                self._served.metrics.refused(error.code or f"http_{error.status}")
            headers = {} if error.retry_after_s is None else {"Retry-After": str(error.retry_after_s)}
            if error.status == 401:
                headers["WWW-Authenticate"] = "Bearer"
            return web.json_response(error.body(), status=error.status, headers=headers)
        except web.HTTPException as error:
            message = f"{request.method} {request.path}: {error.reason}"
            if error.status == 413:
                message = f"the body is larger than {_BODY_LIMIT_MIB} MiB"
            body = RequestError(message, code=error.reason.lower().replace(" ", "_")).body()
            allow = {"Allow": error.headers["Allow"]} if "Allow" in error.headers else None
            return web.json_response(body, status=error.status, headers=allow)
        except Exception:
            log.exception("%s %s", request.method, request.path)
            body = RequestError("internal error; see the server's log", kind="server_error").body()
            return web.json_response(body, status=500)

    def _refuse_stranger(self, request: web.Request) -> None:
        if self._options.api_key is None or request.path in _OPEN:
            return
        scheme, _, key = request.headers.get("Authorization", "").partition(" ")
        known = hmac.compare_digest(key.strip().encode(errors="surrogateescape"), self._options.api_key.encode())
        if scheme.lower() != "bearer" or not known:
            raise RequestError(
                "the API key is missing or wrong; send the header Authorization: Bearer KEY",
                status=401,
                kind="authentication_error",
                code="invalid_api_key",
            )

    async def _add_headers(self, request: web.Request, response: web.StreamResponse) -> None:
        if _ID not in request:
            return  # it was no valid HTTP, so it never came past the middleware
        response.headers["X-Request-Id"] = request[_ID]
        if _REQUEST in request and request[_REQUEST].ignored:
            response.headers["X-Ignored-Fields"] = ", ".join(request[_REQUEST].ignored)
        origins, origin = self._options.cors_origins, request.headers.get("Origin")
        if not origins or origin is None:
            return
        response.headers["Vary"] = "Origin"
        if "*" in origins or origin in origins:
            response.headers["Access-Control-Allow-Origin"] = origin
            response.headers["Access-Control-Expose-Headers"] = "X-Request-Id, X-Ignored-Fields, Retry-After"
            if request.method == "OPTIONS":
                response.headers["Access-Control-Allow-Methods"] = "GET, POST"
                response.headers["Access-Control-Allow-Headers"] = "Authorization, Content-Type, X-Request-Id"
                response.headers["Access-Control-Max-Age"] = "600"


class _Inbox:
    """Outputs of one request, waiting to be written. ``open`` until the last of its answers has been taken."""

    __slots__ = ("_left", "_loop", "_outputs", "_quiet", "_transport", "_waiter")

    def __init__(self, loop: asyncio.AbstractEventLoop, transport: asyncio.Transport | None, answers: int) -> None:
        self._loop = loop
        self._transport = transport
        self._outputs: list[Output] = []
        self._waiter: asyncio.Future[None] | None = None
        self._quiet = False
        self._left = answers

    @property
    def open(self) -> bool:
        return self._left > 0

    def put(self, output: Output) -> int:
        """Add an output; how many wait now."""
        self._outputs.append(output)
        self._quiet = False
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
        return len(self._outputs)

    async def take(self) -> list[Output]:
        """All outputs since the last call: at least one, or none after a long silence."""
        if not self._outputs:
            self._waiter = self._loop.create_future()
            await self._waiter
        outputs, self._outputs = self._outputs, []
        self._left -= sum(output.finish is not None for output in outputs)
        return outputs

    def nudge(self) -> None:
        """Called now and then: ends a silence that has lasted since the last call."""
        if self._quiet and self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
        self._quiet = True

    def hang_up(self) -> None:
        """Close the connection at once; the handler is then cancelled."""
        if self._transport is not None:
            self._transport.abort()


class _BatchingBody(msgspec.Struct, forbid_unknown_fields=True):
    scheduler: str
    max_batch_size: int
    timeout_ms: float = Batching.timeout_ms

    def batching(self) -> Batching:
        return Batching(self.scheduler, self.max_batch_size, self.timeout_ms)  # type: ignore[arg-type]


def _card(served: Served) -> dict[str, Any]:
    card: dict[str, Any] = {
        "id": served.name,
        "object": "model",
        "created": 0,
        "owned_by": "loadtest",
    }
    if served.max_seq_len is not None:
        card["max_model_len"] = served.max_seq_len
    if served.tokenizer is not None and served.tokenizer.facts is not None:
        card["tokenizer"] = served.tokenizer.facts
    return card


def _as_json(batching: Batching) -> dict[str, Any]:
    return {
        "scheduler": batching.scheduler,
        "max_batch_size": batching.batch_size,
        "timeout_ms": batching.timeout_ms,
    }


def _is_loopback(peer: str | None) -> bool:
    if peer is None:
        return False
    address = ipaddress.ip_address(peer.partition("%")[0])
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback


def _refuse_failed(output: Output) -> None:
    """A request that ended before anything was sent can still be answered by a status.

    Raises:
        RequestError: it ended by the engine's failure, waited too long, or was cut off before its first token.
    """
    if output.finish == "error":
        raise _engine_failed()
    if output.finish == "expired":
        raise _expired()
    if output.finish == "abort" and not output.generation.produced:
        raise _shutting_down()


def _shutting_down() -> RequestError:
    return RequestError("the server is shutting down", status=503, kind="server_error", code="shutting_down")


def _expired() -> RequestError:
    return RequestError(
        "the request waited longer for a place than --queue-timeout-ms allows; try again later",
        status=503, kind="server_error", code="queue_timeout", retry_after_s=1,
    )  # fmt: skip


def _engine_failed() -> RequestError:
    return RequestError("the engine failed; see the server's log", status=500, kind="server_error")


def _log_access(http: web.Request, status: int, seconds: float) -> None:
    """One line of JSON on stderr."""
    entry: dict[str, Any] = {
        "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "request_id": http[_ID],
        "client": http.remote,
        "method": http.method,
        "path": http.path,
        "status": status,
        "duration_ms": round(1e3 * seconds, 3),
    }
    if _REQUEST in http:
        request = http[_REQUEST]
        generations = request.generations
        first = generations[0]
        entry |= {
            "stream": request.stream,
            "answers": len(generations),
            "prompt_tokens": sum(len(generation.prompt) for generation in generations[:: request.n]),
            "completion_tokens": sum(generation.produced for generation in generations),
            "queue_ms": _since(first.submitted_s, (generation.started_s for generation in generations)),
            "ttft_ms": _since(first.submitted_s, (generation.first_token_s for generation in generations)),
        }
    print(json.dumps(entry), file=sys.stderr, flush=True)


def _since(begun_s: float, times: Iterable[float | None]) -> float | None:
    """Milliseconds to the first of ``times`` that has come."""
    known = [at for at in times if at is not None]
    return round(1e3 * (min(known) - begun_s), 3) if known else None
