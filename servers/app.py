"""The HTTP side that every model has: /health, /ready, /metrics, /stats, /v1/models and /admin/batching, and around
every request its id, the key, errors as JSON and the access log. On aiohttp's event loop.
"""

import asyncio
import contextlib
import hmac
import ipaddress
import json
import logging
import sys
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import msgspec
from aiohttp import web

from servers.batching import Batching
from servers.errors import RequestError, unknown_model
from servers.metrics import CONTENT_TYPE, Metrics
from servers.worker import Worker

_BODY_LIMIT_MIB = 16  # far above any prompt that fits a context
_OPEN = (
    "/health",
    "/ready",
    "/metrics",
    "/stats",
    "/v2/health/live",
    "/v2/health/ready",
)  # what probes and scrapers ask, without a key
_ID = web.RequestKey("id", str)
IGNORED = web.RequestKey("ignored", tuple)  # what was left out of a request
GONE = web.RequestKey("gone", bool)  # its client went away before the end of the answer
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
    """The model that is served.

    ``facts`` is what /health says of it and its device, ``card`` what /v1/models says of it beyond its name; neither
    changes while it runs. ``places`` is the largest batch that /admin/batching may set, None if any may be.
    """

    name: str
    facts: dict[str, Any]
    worker: Worker[Any]
    metrics: Metrics
    places: int | None = None
    card: dict[str, Any] = field(default_factory=dict)


class App:
    """Routes over one model, which may still be on its way: until ``serve`` everyone is told to come back."""

    def __init__(self, options: Options) -> None:
        self.draining = False
        self._options = options
        self._served: Served | None = None
        self._answering = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def serve(self, served: Served) -> Served:
        """Answer with this model from now on."""
        self._served = served
        return served

    async def idle(self) -> None:
        """Return when no request is being answered."""
        await self._idle.wait()

    def routes(self) -> web.Application:
        """The aiohttp application."""
        app = web.Application(client_max_size=_BODY_LIMIT_MIB * 2**20, middlewares=[self._frame])
        app.on_response_prepare.append(self._add_headers)
        app.router.add_get("/health", self._health)
        app.router.add_get("/ready", self._ready)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/stats", self._stats)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/v1/models/{model:.+}", self._one_model)
        app.router.add_post("/admin/batching", self._switch_batching)
        return app

    @property
    def _model(self) -> Served:
        if self._served is None:
            raise RequestError(
                "the model is still loading", status=503, kind="server_error", code="loading", retry_after_s=1
            )
        return self._served

    @contextlib.contextmanager
    def _busy(self) -> Iterator[None]:
        """While a request is being answered; ``idle`` waits for its end."""
        self._answering += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._answering -= 1
            if not self._answering:
                self._idle.set()

    def _refuse_if_draining(self) -> None:
        if self.draining:
            raise shutting_down()

    async def _health(self, _: web.Request) -> web.Response:
        if self._served is None:
            return web.json_response({"status": "loading"}, status=503)
        worker = self._served.worker
        return web.json_response(
            {
                "status": "draining" if self.draining else "ok",
                **self._served.facts,
                "batching": _as_json(worker.batching),
                "running": worker.running,
                "waiting": worker.waiting,
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
        # Behind a reverse proxy everyone comes from the loopback address; there a key must be set. And so does any web
        # page that is open on this machine; browsers say of which page a request is.
        elsewhere = not _is_loopback(request.remote) or "Origin" in request.headers
        if self._options.api_key is None and elsewhere:
            message = "/admin is answered to this machine only, and to no web page; ask it directly, or set --api-key"
            raise RequestError(message, status=403, kind="permission_error", code="loopback_only")
        served = self._model
        try:
            batching = msgspec.json.decode(await request.read(), type=_BatchingBody).batching()
        except (msgspec.DecodeError, ValueError) as error:
            raise RequestError(str(error)) from error
        if served.places is not None and batching.batch_size > served.places:
            message = (
                f"max_batch_size {batching.max_batch_size} is more than the {served.places} slots this server was "
                f"started with; restart it with --kv-slots {batching.max_batch_size}"
            )
            raise RequestError(message, param="max_batch_size")
        done: Future[Batching] = served.worker.switch(batching)
        return web.json_response(_as_json(await asyncio.wrap_future(done)))

    @web.middleware
    async def _frame(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Around every request: its id, the key, errors as JSON, the access log."""
        begun = time.perf_counter()
        given = request.headers.get("X-Request-Id", "")
        request[_ID] = given if 0 < len(given) <= 128 and given.isascii() and given.isprintable() else uuid.uuid4().hex
        status = 499  # as nginx has it: the client has gone
        try:
            response = await self._answer(request, handler)
            status = 499 if GONE in request else response.status
            return response
        finally:
            if self._options.access_log:
                self._log_access(request, status, time.perf_counter() - begun)

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
            return web.json_response(self._told(request, error), status=error.status, headers=headers)
        except web.HTTPException as error:
            message = f"{request.method} {request.path}: {error.reason}"
            if error.status == 413:
                message = f"the body is larger than {_BODY_LIMIT_MIB} MiB"
            told = self._told(request, RequestError(message, code=error.reason.lower().replace(" ", "_")))
            allow = {"Allow": error.headers["Allow"]} if "Allow" in error.headers else None
            return web.json_response(told, status=error.status, headers=allow)
        except Exception:
            log.exception("%s %s", request.method, request.path)
            told = self._told(request, RequestError("internal error; see the server's log", kind="server_error"))
            return web.json_response(told, status=500)

    def _told(self, _: web.Request, error: RequestError) -> dict[str, Any]:
        """A refusal in the form of the API that was asked."""
        return error.body()

    def _log_access(self, http: web.Request, status: int, seconds: float) -> None:
        """One line of JSON on stderr."""
        entry = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "request_id": http[_ID],
            "client": http.remote,
            "method": http.method,
            "path": http.path,
            "status": status,
            "duration_ms": round(1e3 * seconds, 3),
            **self._account(http),
        }
        print(json.dumps(entry), file=sys.stderr, flush=True)

    def _account(self, _: web.Request) -> dict[str, Any]:
        """What the access log tells of a request beyond its HTTP."""
        return {}

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
        if ignored := request.get(IGNORED):
            response.headers["X-Ignored-Fields"] = ", ".join(ignored)
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


class _BatchingBody(msgspec.Struct, forbid_unknown_fields=True):
    scheduler: str
    max_batch_size: int
    timeout_ms: float = Batching.timeout_ms

    def batching(self) -> Batching:
        return Batching(self.scheduler, self.max_batch_size, self.timeout_ms)  # type: ignore[arg-type]


def _card(served: Served) -> dict[str, Any]:
    return {"id": served.name, "object": "model", "created": 0, "owned_by": "loadtest", **served.card}


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


def shutting_down() -> RequestError:
    """The refusal of whatever comes while the server drains."""
    return RequestError("the server is shutting down", status=503, kind="server_error", code="shutting_down")


def queue_full(found: str, limit: int, retry_after_s: int) -> RequestError:
    """The refusal of what would have to wait beyond ``--queue-limit``; ``found`` says who is there already."""
    return RequestError(
        f"the server is full: {found}, and --queue-limit is {limit}; try again later",
        status=429, kind="rate_limit_error", code="queue_full", retry_after_s=retry_after_s,
    )  # fmt: skip
