"""The life of the server process: load, listen, serve, drain."""

import asyncio
import contextlib
import logging
import os
import platform
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from servers import builder, catalog, device, process
from servers.batching import Batching
from servers.errors import StartError

if TYPE_CHECKING:
    from servers.app import Options, Served
    from servers.engine import Limits
    from servers.plain_app import PlainApp
    from servers.text_app import TextApp

log = logging.getLogger(__name__)
_CLOSE_S = 2.0  # for connections to close once their answers are written


@dataclass(frozen=True)
class Settings:
    """Everything the command line decides. None is "the default of the machine or the model"."""

    model: str
    batching: Batching
    kv_slots: int
    max_seq_len: int | None
    threads: int | None
    provider: str
    dtype: str
    host: str
    port: int
    drain_timeout_s: float
    exit_on_stdin_close: bool
    limits: "Limits"
    http: "Options"
    cuda_graph: bool = False
    task: str = "generate"
    pooling: str = "auto"


def run(settings: Settings) -> None:
    """Serve until a signal (or the end of stdin) and drain.

    Raises:
        StartError: the server cannot start, or its engine failed.
    """
    warning = device.wheel_conflict()
    if warning:
        print(f"warning: {warning}", file=sys.stderr)
    process.raise_file_limit()
    # The stepping thread takes the GIL back from the event loop between two runs: by default only after 5 ms.
    sys.setswitchinterval(0.5e-3)
    # The port first: it is the cheapest thing to fail.
    listener = process.listen(settings.host, settings.port, backlog=1024)
    with listener, _ended_by_signals(), asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(_serve(settings, listener))


async def _serve(settings: Settings, listener: socket.socket) -> None:
    from aiohttp import web

    from servers.plain_app import PlainApp
    from servers.text_app import TextApp

    loop = asyncio.get_running_loop()
    failures: list[Exception] = []
    stop, cut = asyncio.Event(), asyncio.Event()

    def ask_to_stop() -> None:
        (cut if stop.is_set() else stop).set()  # the second time: do not wait for the running ones

    def end_now() -> None:
        stop.set()
        cut.set()

    def engine_failed(error: Exception) -> None:
        failures.append(error)
        loop.call_soon_threadsafe(end_now)

    app = TextApp(settings.http) if settings.task == "generate" else PlainApp(settings.http)
    # handler_cancellation: a client that goes away cancels its handler, which frees its slot.
    runner = web.AppRunner(
        app.routes(), access_log=None, handler_cancellation=True, shutdown_timeout=_CLOSE_S, logger=_http_log()
    )
    await runner.setup()
    await web.SockSite(runner, listener, backlog=1024).start()
    try:
        if isinstance(app, PlainApp):
            what = await _bring_up_plain(settings, app)
        else:
            what = await _bring_up(settings, app, engine_failed)
    except BaseException:
        await runner.cleanup()
        raise
    for name in (signal.SIGTERM, signal.SIGINT):
        with contextlib.suppress(NotImplementedError):  # Windows: Ctrl-C ends the process without draining
            loop.add_signal_handler(name, ask_to_stop)
    if settings.exit_on_stdin_close:
        process.watch_stdin(lambda: loop.call_soon_threadsafe(end_now))
    print(_ready_line(settings, what, listener), flush=True)
    worker = what.worker
    await stop.wait()

    app.draining = True
    log.info("draining: %d running, %d waiting", worker.running, worker.waiting)
    drained, cut_off = asyncio.create_task(app.idle()), asyncio.create_task(cut.wait())
    await asyncio.wait({drained, cut_off}, timeout=settings.drain_timeout_s, return_when=asyncio.FIRST_COMPLETED)
    if not drained.done():
        log.info("cutting off %d running, %d waiting", worker.running, worker.waiting)
        worker.abort()
        await asyncio.wait({drained}, timeout=_CLOSE_S)
    for task in (drained, cut_off):
        task.cancel()
    await runner.cleanup()
    worker.stop()
    if failures:
        raise StartError(f"the engine failed: {failures[0]}") from failures[0]


async def _bring_up(settings: Settings, app: "TextApp", failed: Callable[[Exception], None]) -> "Served":
    """Load the model beside the event loop, which meanwhile tells clients to come back, and start its engine."""
    from servers.app import Served
    from servers.engine import Engine
    from servers.metrics import Metrics
    from servers.shared import SharedModel

    model = await asyncio.to_thread(_load, settings, _load_on)
    bundle, prefix_cache = model.bundle, settings.limits.prefix_cache
    if prefix_cache and not isinstance(model, SharedModel):
        raise StartError(
            f"--prefix-cache: the caches of {bundle.name} grow with each step ({model.layout.kind} layout) and "
            "cannot be shared; leave it out, or export the model with the onnxruntime-genai builder"
        )
    metrics = Metrics(
        bundle.name, lambda: engine.running, lambda: engine.waiting, model.slots, prefix_cache=prefix_cache
    )
    engine = Engine(model, settings.batching, app.publish, failed, settings.limits, metrics.ran)
    engine.start()
    app.serve_text(engine, bundle.tokenizer, model.max_seq_len, prefix_cache=prefix_cache)
    card: dict[str, Any] = {"max_model_len": model.max_seq_len}
    if bundle.tokenizer.facts is not None:
        card["tokenizer"] = bundle.tokenizer.facts
    facts = _facts(bundle.name, bundle.sha256, bundle.dtype, model.provider, model.threads)
    facts |= {"layout": model.layout.kind, "kv_slots": model.slots, "max_seq_len": model.max_seq_len}
    facts["cuda_graph"] = model.cuda_graph
    return app.serve(Served(bundle.name, facts, engine, metrics, places=model.slots, card=card))


async def _bring_up_plain(settings: Settings, app: "PlainApp") -> "Served":
    """The same for a model without a cache."""
    from servers.app import Served
    from servers.batcher import Batcher
    from servers.metrics import Metrics
    from servers.plain import EmbeddingModel

    model = await asyncio.to_thread(_load, settings, _load_plain_on)
    graph = model.graph
    metrics = Metrics(graph.name, lambda: batcher.running, lambda: batcher.waiting)
    batcher = Batcher(model, settings.batching, metrics.ran)
    batcher.start()
    app.serve_plain(model, batcher)
    card = {"max_model_len": model.max_seq_len} if isinstance(model, EmbeddingModel) else {}
    facts = _facts(graph.name, graph.sha256, graph.dtype, model.provider, model.threads)
    facts |= {"task": settings.task, "batches": model.batchable}
    return app.serve(Served(graph.name, facts, batcher, metrics, card=card))


def _load(settings: Settings, load_on: Callable[[device.Provider, Settings], Any]) -> Any:
    cuda_missing = None if settings.provider == "cpu" else device.why_no_cuda()
    where = device.choose(settings.provider, cuda_missing)
    try:
        return load_on(where, settings)
    except device.FellBack as error:
        if settings.provider != "auto":
            raise
        print(f"warning: {error}", file=sys.stderr)
        return load_on("cpu", settings)


def _load_plain_on(where: device.Provider, settings: Settings) -> Any:
    from servers.plain import EmbeddingModel, TensorModel

    if where == "cuda":
        device.load_cuda_libraries()
    if settings.model in builder.PRESETS:
        raise StartError(f"--task {settings.task}: {settings.model} generates text; give the folder of another model")
    path, threads = Path(settings.model), settings.threads or max(1, _cores() - 1)
    if settings.task == "embed":
        pooling: Any = settings.pooling
        return EmbeddingModel(path, settings.dtype, where, threads, pooling, settings.max_seq_len)
    return TensorModel(path, settings.dtype, where, threads)


def _load_on(where: device.Provider, settings: Settings) -> Any:
    from servers.model import load

    if where == "cuda":
        device.load_cuda_libraries()
    bundle = catalog.find(settings.model, settings.dtype, where)
    longest = bundle.max_seq_len
    max_seq_len = settings.max_seq_len or longest
    if max_seq_len is None:
        raise StartError(f"{settings.model} does not say how long a context the model has; give --max-seq-len")
    if longest is not None and max_seq_len > longest:
        raise StartError(f"--max-seq-len {max_seq_len}: the {bundle.name} model reaches {longest} tokens")
    threads = settings.threads or max(1, _cores() - 1)
    try:
        return load(
            bundle,
            where,
            slots=settings.kv_slots,
            max_seq_len=max_seq_len,
            threads=threads,
            cuda_graph=settings.cuda_graph,
        )
    except MemoryError as error:
        raise StartError(
            f"not enough memory for {settings.kv_slots} slots of {max_seq_len} tokens; "
            "lower --kv-slots or --max-seq-len"
        ) from error


def _facts(name: str, sha256: str, dtype: str, where: device.Provider, threads: int) -> dict[str, Any]:
    """What /health says of a model and its device, and does not change."""
    import onnxruntime

    try:
        own = version("loadtest")
    except PackageNotFoundError:  # run from a source tree that was never installed
        own = "0+source"
    return {
        "model": name,
        "model_sha256": sha256,
        "device": where,
        "provider": device.PROVIDERS[where],
        "dtype": dtype,
        "threads": threads,
        "versions": {
            "loadtest": own,
            "onnxruntime": onnxruntime.__version__,
            "python": platform.python_version(),
        },
    }


def _ready_line(settings: Settings, served: "Served", listener: socket.socket) -> str:
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    batching, facts = settings.batching, served.facts
    return (
        f"serving {served.name} on http://{host}:{listener.getsockname()[1]} "
        f"({facts['device']}, {facts['dtype']}, {batching.scheduler}, max batch {batching.batch_size})"
    )


@contextlib.contextmanager
def _ended_by_signals() -> Iterator[None]:
    """While the model loads, Ctrl-C ends the process at once, as SIGTERM does: there is nothing to drain yet."""
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _http_log() -> logging.Logger:
    """aiohttp's log, in which what is no valid HTTP is one line at -v, and no traceback."""
    from aiohttp.http_exceptions import HttpProcessingError

    http = logging.getLogger("servers.http")

    def mend(record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if not isinstance(error, HttpProcessingError):
            return True
        record.exc_info, record.levelno, record.levelname = None, logging.INFO, "INFO"
        record.msg, record.args = f"{record.getMessage()}: {error.message}", ()
        return http.isEnabledFor(logging.INFO)

    http.filters[:] = [mend]
    return http


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop where it installs (not on Windows), else asyncio's own loop."""
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


def _cores() -> int:
    """Cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
