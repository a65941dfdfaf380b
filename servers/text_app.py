"""The HTTP side of models that generate text: /v1/completions and /v1/chat/completions as OpenAI has them.

Everything around it (health, metrics, keys, ids, batching) is ``servers.app``'s.
"""

import asyncio
import contextlib
import logging
import math
from collections.abc import AsyncIterator, Iterable
from functools import partial
from typing import Any

from aiohttp import web

from servers.answer import Answer
from servers.app import GONE, IGNORED, App, Options, queue_full, shutting_down
from servers.engine import Engine, Generation, Output
from servers.errors import RequestError
from servers.inbox import Inbox
from servers.protocol import Kind, Request, parse
from servers.tokenizer import Tokenizer

_LONG_BODY = 2**16  # bytes; tens of milliseconds of tokenizing
_BACKLOG = 1024  # pieces that may wait for a slow reader, beyond what its connection buffers
_RETRY_LIMIT_S = 60
_REQUEST = web.RequestKey("request", Request)  # what its body asks for, once it has been accepted
log = logging.getLogger(__name__)


class TextApp(App):
    """Routes over an engine, given by ``serve_text``.

    ``publish`` is for the engine's thread; everything else belongs to the event loop.
    """

    _engine: Engine
    _tokenizer: Tokenizer
    _max_seq_len: int
    _prefix_cache: bool

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._loop = asyncio.get_running_loop()
        self._inboxes: dict[Generation, Inbox] = {}  # by each answer that has not ended

    def serve_text(self, engine: Engine, tokenizer: Tokenizer, max_seq_len: int, *, prefix_cache: bool) -> None:
        """The engine to answer with; before ``serve``, which says the rest of it."""
        self._engine = engine
        self._tokenizer = tokenizer
        self._max_seq_len = max_seq_len
        self._prefix_cache = prefix_cache

    def routes(self) -> web.Application:
        app = super().routes()
        app.cleanup_ctx.append(self._keeping_alive)
        app.router.add_post("/v1/completions", self._completions)
        app.router.add_post("/v1/chat/completions", self._chat)
        return app

    def publish(self, outputs: list[Output]) -> None:
        """Hand outputs over to the event loop: one call for all tokens of a run."""
        self._loop.call_soon_threadsafe(self._deliver, outputs)

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

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        return await self._generate("completions", request)

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        return await self._generate("chat", request)

    async def _generate(self, kind: Kind, http: web.Request) -> web.StreamResponse:
        name = self._model.name
        body = await http.read()
        self._refuse_if_draining()
        ignoring = self._options.ignore_unsupported
        read = partial(parse, kind, body, name, self._max_seq_len, self._tokenizer, ignore_unsupported=ignoring)
        if len(body) < _LONG_BODY:
            request = read()
        else:  # a real tokenizer takes seconds for megabytes, and the others' answers must flow on
            request = await asyncio.to_thread(read)
            self._refuse_if_draining()
        self._refuse_if_full(len(request.generations))
        http[_REQUEST] = request
        http[IGNORED] = request.ignored
        inbox = Inbox(self._loop, http.transport, len(request.generations))
        with self._busy():
            for generation in request.generations:
                self._inboxes[generation] = inbox
                self._engine.submit(generation)
            try:
                if request.stream:
                    return await self._stream(request, inbox, http)
                return await self._collect(request, inbox)
            finally:
                # Also when the client has gone: aiohttp then cancels this handler.
                for generation in request.generations:
                    if self._inboxes.pop(generation, None) is not None:
                        self._engine.cancel(generation)
                        self._model.metrics.ended(generation, "abort")

    def _refuse_if_full(self, count: int) -> None:
        """Raises RequestError if ``count`` more answers would wait beyond the limit, unless nothing else runs."""
        limit, places = self._options.queue_limit, self._engine.batching.batch_size
        if limit is None or not self._inboxes or len(self._inboxes) + count <= places + limit:
            return
        # A place becomes free each time one of those that run together has ended.
        soon_s = math.ceil(self._model.metrics.recent_e2e_s / places)
        raise queue_full(f"{len(self._inboxes)} answers run or wait", limit, min(max(soon_s, 1), _RETRY_LIMIT_S))

    async def _collect(self, request: Request, inbox: Inbox) -> web.Response:
        outputs: list[Output] = []
        while inbox.open:
            outputs += await inbox.take()
        for output in outputs:
            _refuse_failed(output)
        return web.json_response(Answer(request, show_cached=self._prefix_cache).whole(outputs))

    async def _stream(self, request: Request, inbox: Inbox, http: web.Request) -> web.StreamResponse:
        # The status is sent with the first token, so that a request that never got one can still be refused; or
        # with the first sign of life, when the first token takes long.
        outputs = await inbox.take()
        for output in outputs:
            _refuse_failed(output)
        answer = Answer(request, show_cached=self._prefix_cache)
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
            http[GONE] = True  # nobody is left to be told
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

    def _account(self, http: web.Request) -> dict[str, Any]:
        if _REQUEST not in http:
            return {}
        request = http[_REQUEST]
        generations = request.generations
        first = generations[0]
        return {
            "stream": request.stream,
            "answers": len(generations),
            "prompt_tokens": sum(len(generation.prompt) for generation in generations[:: request.n]),
            "completion_tokens": sum(generation.produced for generation in generations),
            "queue_ms": _since(first.submitted_s, (generation.started_s for generation in generations)),
            "ttft_ms": _since(first.submitted_s, (generation.first_token_s for generation in generations)),
        }


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
        raise shutting_down()


def _expired() -> RequestError:
    return RequestError(
        "the request waited longer for a place than --queue-timeout-ms allows; try again later",
        status=503, kind="server_error", code="queue_timeout", retry_after_s=1,
    )  # fmt: skip


def _engine_failed() -> RequestError:
    return RequestError("the engine failed; see the server's log", status=500, kind="server_error")


def _since(begun_s: float, times: Iterable[float | None]) -> float | None:
    """Milliseconds to the first of ``times`` that has come."""
    known = [at for at in times if at is not None]
    return round(1e3 * (min(known) - begun_s), 3) if known else None
