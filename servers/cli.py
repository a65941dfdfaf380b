"""The command ``loadtest serve``, also ``python -m servers``. Imports nothing heavy until it runs."""

import logging
import sys

import click
from click.core import ParameterSource

from servers.number import Number

# Options that only some tasks know.
_FOR = {
    "cuda_graph": ("generate",),
    "prefill_chunk": ("generate",),
    "kv_slots": ("generate",),
    "prefix_cache": ("generate",),
    "queue_timeout_ms": ("generate",),
    "ignore_unsupported": ("generate",),
    "sse_keep_alive": ("generate",),
    "max_seq_len": ("generate", "embed"),
    "pooling": ("embed",),
}
_SCHEDULERS = ("continuous", "dynamic", "static", "none")


@click.command(context_settings={"show_default": True})
@click.option(
    "--model",
    default="demo",
    metavar="NAME|DIR",
    help="tiny or demo (15.7M weights), built on first use; or a folder, or an .onnx file, of a model that loadtest, "
    "onnxruntime-genai, optimum-onnx or transformers.js exported.",
)
@click.option(
    "--task",
    type=click.Choice(("generate", "embed", "infer")),
    default="generate",
    help="generate: chats and completions. embed: an encoder's vectors at /v1/embeddings. infer: any graph of tensors "
    "at /v2/models/NAME/infer. The last two have no key/value cache: a batch is one run.",
)
@click.option(
    "--pooling",
    type=click.Choice(("auto", "mean", "cls")),
    default="auto",
    help="With --task embed, how token vectors become one; auto as the model's folder says, else the mean.",
)
@click.option(
    "--scheduler",
    type=click.Choice(_SCHEDULERS),
    default="continuous",
    help="Who may run together. continuous: a request joins as soon as a place is free. dynamic: a batch "
    "starts when it is full or its first request has waited --batch-timeout-ms, and is then closed. static: "
    "the same, but it waits for a full batch for 1 s (or --batch-timeout-ms if longer). none: one at a time.",
)
@click.option("--max-batch-size", type=click.IntRange(1, 1024), default=16, help="Most requests that run together.")
@click.option(
    "--batch-timeout-ms",
    type=Number(0, 60_000),
    default=50.0,
    help="How long the first request of a dynamic batch waits for others.",
)
@click.option(
    "--kv-slots",
    type=click.IntRange(1, 1024),
    show_default="--max-batch-size",
    help="Places in the key/value cache: the largest batch that POST /admin/batching may set.",
)
@click.option(
    "--max-seq-len",
    type=click.IntRange(min=16),
    show_default="the model's",
    help="Longest prompt and answer together, in tokens.",
)
@click.option(
    "--threads",
    type=click.IntRange(1, 1024),
    show_default="cores − 1",
    help="Threads of ONNX Runtime for one operator.",
)
@click.option(
    "--provider", type=click.Choice(("auto", "cpu", "cuda")), default="auto", help="auto takes CUDA where it works."
)
@click.option(
    "--dtype",
    type=click.Choice(("auto", "fp32", "fp16", "int8")),
    default="auto",
    help="Precision: fp32 or int8 on the CPU, fp16 on CUDA; of a folder with several, the one to take.",
)
@click.option(
    "--cuda-graph",
    is_flag=True,
    help="On CUDA, capture a decode step once for each number of requests and replay it. For models that loadtest "
    "built or converted.",
)
@click.option(
    "--prefill-chunk",
    type=click.IntRange(1, 65_536),
    default=128,
    help="Most prompt tokens that run between two decode steps: less lets answers flow more evenly beside a long "
    "prompt, more ends the prompt sooner.",
)
@click.option(
    "--prefix-cache",
    is_flag=True,
    help="Do not run again the start that a prompt shares with an earlier one. Off, because it changes what a load "
    "test measures.",
)
@click.option(
    "--queue-limit",
    type=click.IntRange(min=0),
    show_default="none",
    help="Most answers that wait for a place; further requests get 429 and Retry-After.",
)
@click.option(
    "--queue-timeout-ms",
    type=Number(0, min_open=True),
    show_default="none",
    help="Longest wait for a place; then the request gets 503.",
)
@click.option("--host", default="127.0.0.1", help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65_535), default=8000, help="Port to listen on; 0 takes a free one.")
@click.option(
    "--drain-timeout",
    type=Number(0),
    default=30.0,
    metavar="SECONDS",
    help="After SIGTERM, how long running requests may take to finish.",
)
@click.option(
    "--api-key",
    envvar="LOADTEST_SERVE_API_KEY",
    show_envvar=True,
    metavar="KEY",
    help="Answer /v1 and /admin only with this key (Authorization: Bearer KEY). Without one /admin is for this "
    "machine only.",
)
@click.option(
    "--cors-origin",
    "cors_origins",
    multiple=True,
    metavar="ORIGIN",
    help="Let web pages of this origin use the API ('*': of any). May be given several times.",
    show_default="none",
)
@click.option(
    "--ignore-unsupported",
    is_flag=True,
    help="Leave out what a request asks for and this server cannot do (tools, images…), and name it in the header "
    "X-Ignored-Fields, instead of refusing it with 400.",
)
@click.option(
    "--sse-keep-alive",
    type=Number(0.1, 3600),
    default=15.0,
    metavar="SECONDS",
    help="Longest silence in a stream, as on a long prompt; then a comment is sent.",
)
@click.option("--access-log", is_flag=True, help="Write a line of JSON on stderr for each request.")
@click.option("--exit-on-stdin-close", is_flag=True, hidden=True)
@click.option("-v", "--verbose", count=True, help="Log to stderr; twice for more.", show_default=False)
def serve(
    *,
    model: str,
    task: str,
    pooling: str,
    scheduler: str,
    max_batch_size: int,
    batch_timeout_ms: float,
    kv_slots: int | None,
    max_seq_len: int | None,
    threads: int | None,
    provider: str,
    dtype: str,
    cuda_graph: bool,
    prefill_chunk: int,
    prefix_cache: bool,
    queue_limit: int | None,
    queue_timeout_ms: float | None,
    host: str,
    port: int,
    drain_timeout: float,
    api_key: str | None,
    cors_origins: tuple[str, ...],
    ignore_unsupported: bool,
    sse_keep_alive: float,
    access_log: bool,
    exit_on_stdin_close: bool,
    verbose: int,
) -> None:
    """Serve a model with ONNX Runtime behind an OpenAI-compatible API.

    When it can be used it prints one line, "serving NAME on URL (device, precision, batching)". SIGTERM and Ctrl-C
    drain: new requests get 503, running ones finish.

    \b
    loadtest serve
    loadtest serve --model models/smollm2 --max-batch-size 32 --prefix-cache
    loadtest serve --scheduler dynamic --batch-timeout-ms 20 --port 8001
    loadtest serve --task embed --model models/bge-small
    """
    from servers.app import Options
    from servers.batching import Batching
    from servers.engine import Limits
    from servers.errors import StartError
    from servers.server import Settings, run

    _refuse_others(task, scheduler)
    level = (logging.WARNING, logging.INFO, logging.DEBUG)[min(verbose, 2)]
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    batching = Batching(scheduler, max_batch_size, batch_timeout_ms)  # type: ignore[arg-type]
    if kv_slots is not None and kv_slots < batching.batch_size:
        raise click.UsageError(
            f"--kv-slots {kv_slots} is less than --max-batch-size {max_batch_size}: each running request needs a slot"
        )
    if api_key is not None and (not api_key or not api_key.isascii() or not api_key.isprintable() or " " in api_key):
        raise click.UsageError("--api-key must be printable ASCII without blanks, and not empty")
    limits = Limits(
        prefill_chunk=prefill_chunk,
        queue_timeout_s=None if queue_timeout_ms is None else queue_timeout_ms / 1e3,
        prefix_cache=prefix_cache,
    )
    http = Options(
        api_key=api_key,
        queue_limit=queue_limit,
        ignore_unsupported=ignore_unsupported,
        cors_origins=cors_origins,
        keep_alive_s=sse_keep_alive,
        access_log=access_log,
    )
    settings = Settings(
        model=model,
        batching=batching,
        kv_slots=kv_slots or max_batch_size,
        max_seq_len=max_seq_len,
        threads=threads,
        provider=provider,
        dtype=dtype,
        cuda_graph=cuda_graph,
        host=host,
        port=port,
        drain_timeout_s=drain_timeout,
        exit_on_stdin_close=exit_on_stdin_close,
        limits=limits,
        http=http,
        task=task,
        pooling=pooling,
    )
    try:
        run(settings)
    except StartError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(error.exit_code)


def _refuse_others(task: str, scheduler: str) -> None:
    """Refuse what was given and would do nothing."""
    _refuse_unless("batch_timeout_ms", "--scheduler", scheduler, ("dynamic", "static"))
    for name, tasks in _FOR.items():
        _refuse_unless(name, "--task", task, tasks)


def _refuse_unless(name: str, option: str, value: str, needed: tuple[str, ...]) -> None:
    given = click.get_current_context().get_parameter_source(name) is not ParameterSource.DEFAULT
    if given and value not in needed:
        flag = "--" + name.replace("_", "-")
        raise click.UsageError(f"{flag} is for {option} {' and '.join(needed)}; leave it out with {option} {value}")
