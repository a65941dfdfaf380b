"""The command ``loadtest serve``, also ``python -m servers``. Imports nothing heavy until it runs."""

import logging
import sys

import click

from servers.number import Number

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
@click.option("--host", default="127.0.0.1", help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65_535), default=8000, help="Port to listen on; 0 takes a free one.")
@click.option(
    "--drain-timeout",
    type=Number(0),
    default=30.0,
    metavar="SECONDS",
    help="After SIGTERM, how long running requests may take to finish.",
)
@click.option("--exit-on-stdin-close", is_flag=True, hidden=True)
@click.option("-v", "--verbose", count=True, help="Log to stderr; twice for more.", show_default=False)
def serve(
    *,
    model: str,
    scheduler: str,
    max_batch_size: int,
    batch_timeout_ms: float,
    kv_slots: int | None,
    max_seq_len: int | None,
    threads: int | None,
    provider: str,
    dtype: str,
    host: str,
    port: int,
    drain_timeout: float,
    exit_on_stdin_close: bool,
    verbose: int,
) -> None:
    """Serve a model with ONNX Runtime behind an OpenAI-compatible API.

    When it can be used it prints one line, "serving NAME on URL (device, precision, batching)". SIGTERM and Ctrl-C
    drain: new requests get 503, running ones finish.
    """
    from servers.batching import Batching
    from servers.errors import StartError
    from servers.server import Settings, run

    level = (logging.WARNING, logging.INFO, logging.DEBUG)[min(verbose, 2)]
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    batching = Batching(scheduler, max_batch_size, batch_timeout_ms)  # type: ignore[arg-type]
    if kv_slots is not None and kv_slots < batching.batch_size:
        raise click.UsageError(
            f"--kv-slots {kv_slots} is less than --max-batch-size {max_batch_size}: each running request needs a slot"
        )
    settings = Settings(
        model=model,
        batching=batching,
        kv_slots=kv_slots or max_batch_size,
        max_seq_len=max_seq_len,
        threads=threads,
        provider=provider,
        dtype=dtype,
        host=host,
        port=port,
        drain_timeout_s=drain_timeout,
        exit_on_stdin_close=exit_on_stdin_close,
    )
    try:
        run(settings)
    except StartError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(error.exit_code)
