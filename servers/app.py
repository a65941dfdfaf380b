"""The HTTP side: the OpenAI API, /health, /ready and /admin/batching, on aiohttp's event loop."""

import asyncio
import ipaddress
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import Any

import msgspec
from aiohttp import web

from servers.batching import Batching
from servers.engine import Engine, Generation, Output
from servers.protocol import Answer, Kind, Request, RequestError, parse
from servers.tokenizer import BYTES, Tokenizer

_BODY_LIMIT = 16 * 2**20  # bytes; far above any prompt that fits a context
log = logging.getLogger(__name__)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class App:
    """Routes over one engine. ``facts`` is what /health says of the model and the device, unchanged while it runs.

    ``publish`` is for the engine's thread; everything else belongs to the event loop.
    """

    def __init__(
        self, model_name: str, max_seq_len: int, kv_slots: int, facts: dict[str, Any], tokenizer: Tokenizer = BYTES
    ) -> None:
        self.draining = False
        self._model_name = model_name
        self._max_seq_len = max_seq_len
        self._kv_slots = kv_slots
        self._facts = facts
        self._tokenizer = tokenizer
        self._loop = asyncio.get_running_loop()
        self._inboxes: dict[Generation, _Inbox] = {}
        self._idle = asyncio.Event()
        self._idle.set()
        self._engine: Engine

    def attach(self, engine: Engine) -> None:
        """Give the app the engine that publishes to it."""
        self._engine = engine

    def publish(self, outputs: list[Output]) -> None:
        """Hand outputs over to the event loop: one call for all tokens of a run."""
        self._loop.call_soon_threadsafe(self._deliver, outputs)

    async def idle(self) -> None:
        """Return when no request is being answered."""
        await self._idle.wait()

    def routes(self) -> web.Application:
        """The aiohttp application."""
        app = web.Application(client_max_size=_BODY_LIMIT, middlewares=[_errors_as_json])
        app.router.add_get("/health", self._health)
        app.router.add_get("/ready", self._ready)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/v1/completions", self._completions)
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_post("/admin/batching", self._switch_batching)
        return app

    def _deliver(self, outputs: list[Output]) -> None:
        for output in outputs:
            inbox = self._inboxes.get(output.generation)
            if inbox is not None:  # else the client has gone
                inbox.put(output)

    async def _health(self, _: web.Request) -> web.Response:
        return web.json_response(
            {
                "status": "draining" if self.draining else "ok",
                **self._facts,
                "batching": _as_json(self._engine.batching),
                "running": self._engine.running,
                "waiting": self._engine.waiting,
            }
        )

    async def _ready(self, _: web.Request) -> web.Response:
        return web.json_response({"ready": not self.draining}, status=503 if self.draining else 200)

    async def _models(self, _: web.Request) -> web.Response:
        model = {
            "id": self._model_name,
            "object": "model",
            "created": 0,
            "owned_by": "loadtest",
            "max_model_len": self._max_seq_len,
        }
        if self._tokenizer.facts is not None:
            model["tokenizer"] = self._tokenizer.facts
        return web.json_response({"object": "list", "data": [model]})

    async def _switch_batching(self, request: web.Request) -> web.Response:
        if not _is_loopback(request.remote):
            message = "/admin is answered to this machine only; ask from the loopback address"
            raise RequestError(message, status=403, kind="permission_error", code="loopback_only")
        try:
            batching = msgspec.json.decode(await request.read(), type=_BatchingBody).batching()
        except (msgspec.DecodeError, ValueError) as error:
            raise RequestError(str(error)) from error
        if batching.batch_size > self._kv_slots:
            message = (
                f"max_batch_size {batching.max_batch_size} is more than the {self._kv_slots} slots this server was "
                f"started with; restart it with --kv-slots {batching.max_batch_size}"
            )
            raise RequestError(message, param="max_batch_size")
        done: Future[Batching] = self._engine.switch(batching)
        return web.json_response(_as_json(await asyncio.wrap_future(done)))

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        return await self._generate("completions", request)

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        return await self._generate("chat", request)

    async def _generate(self, kind: Kind, http: web.Request) -> web.StreamResponse:
        body = await http.read()
        if self.draining:
            raise _shutting_down()
        request = parse(kind, body, self._model_name, self._max_seq_len, self._tokenizer)
        inbox = _Inbox(self._loop)
        self._inboxes[request.generation] = inbox
        self._idle.clear()
        self._engine.submit(request.generation)
        try:
            if request.stream:
                return await self._stream(request, inbox, http)
            return await self._collect(request, inbox)
        finally:
            # Also when the client has gone: aiohttp then cancels this handler.
            if not inbox.finished:
                self._engine.cancel(request.generation)
            del self._inboxes[request.generation]
            if not self._inboxes:
                self._idle.set()

    async def _collect(self, request: Request, inbox: "_Inbox") -> web.Response:
        text = ""
        while not inbox.finished:
            text += "".join([output.text for output in await inbox.take()])
        _refuse_failed(request.generation, inbox.finished)
        return web.json_response(Answer(request).whole(text, inbox.finished))

    async def _stream(self, request: Request, inbox: "_Inbox", http: web.Request) -> web.StreamResponse:
        # The status is sent with the first token, so that a request that never got one can still be refused.
        outputs = await inbox.take()
        _refuse_failed(request.generation, inbox.finished)
        answer = Answer(request)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
        try:
            await response.prepare(http)
            data = answer.opening()
            while True:
                data += b"".join([answer.token(output.text) for output in outputs if output.text])
                if inbox.finished == "error":
                    await response.write(data + answer.failure(_engine_failed()))
                    break
                if inbox.finished:
                    await response.write(data + answer.closing(inbox.finished))
                    break
                await response.write(data)
                outputs, data = await inbox.take(), b""
            await response.write_eof()
        except ConnectionResetError:
            pass  # the client has gone; nobody is left to be told
        return response


class _Inbox:
    """Outputs of one generation, waiting to be written. ``finished`` is the reason in the last one, once taken."""

    __slots__ = ("_loop", "_outputs", "_waiter", "finished")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._outputs: list[Output] = []
        self._waiter: asyncio.Future[None] | None = None
        self.finished: Any = None

    def put(self, output: Output) -> None:
        self._outputs.append(output)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def take(self) -> list[Output]:
        """All outputs since the last call, at least one."""
        if not self._outputs:
            self._waiter = self._loop.create_future()
            await self._waiter
        outputs, self._outputs = self._outputs, []
        self.finished = outputs[-1].finish
        return outputs


class _BatchingBody(msgspec.Struct, forbid_unknown_fields=True):
    scheduler: str
    max_batch_size: int
    timeout_ms: float = Batching.timeout_ms

    def batching(self) -> Batching:
        return Batching(self.scheduler, self.max_batch_size, self.timeout_ms)  # type: ignore[arg-type]


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


def _refuse_failed(generation: Generation, finished: Any) -> None:
    """A generation that ended before anything was sent can still be answered by a status.

    Raises:
        RequestError: it ended by the engine's failure, or was cut off before its first token.
    """
    if finished == "error":
        raise _engine_failed()
    if finished == "abort" and not generation.produced:
        raise _shutting_down()


def _shutting_down() -> RequestError:
    return RequestError("the server is shutting down", status=503, kind="server_error", code="shutting_down")


def _engine_failed() -> RequestError:
    return RequestError("the engine failed; see the server's log", status=500, kind="server_error")


@web.middleware
async def _errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except RequestError as error:
        return web.json_response(error.body(), status=error.status)
    except web.HTTPException as error:
        message = f"{request.method} {request.path}: {error.reason}"
        body = RequestError(message, code=error.reason.lower().replace(" ", "_")).body()
        allow = {"Allow": error.headers["Allow"]} if "Allow" in error.headers else None
        return web.json_response(body, status=error.status, headers=allow)
    except Exception:
        log.exception("%s %s", request.method, request.path)
        body = RequestError("internal error; see the server's log", kind="server_error").body()
        return web.json_response(body, status=500)
