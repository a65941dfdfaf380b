"""The flags that several commands share, each written once. click alone is imported here, as for ``--help``."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from loadtest.completion import endpoints, presets, words

F = TypeVar("F", bound=Callable[..., Any])


def option(*names: str, **settings: Any) -> Callable[[F], F]:
    """An option that LOADTEST_<NAME> can also give."""
    long = next(name for name in reversed(names) if name.startswith("--"))
    variable = "LOADTEST_" + long.strip("-").upper().replace("-", "_")
    return click.option(*names, envvar=variable, show_envvar=False, **settings)


def _taking(*options: Callable[[Any], Any]) -> Callable[[F], F]:
    """A decorator that gives a command these options, in this order."""

    def take(command: F) -> F:
        for each in reversed(options):
            command = each(command)
        return command

    return take


class _Listed(click.types.StringParamType):
    """A text of which a variable may hold several, with semicolons between them."""

    envvar_list_splitter = ";"


_NAMED = (
    option(
        "-s", "--scenario", "source", metavar="NAME|FILE", help="Scenario: a preset's name or a YAML file.",
        shell_complete=presets,
    ),
)  # fmt: skip
_LOADS = (
    option("-c", "--concurrency", metavar="N,…", help="Closed loop: requests in flight, one level each."),
    option("-r", "--rate", metavar="N,…", help="Open loop: requests a second of the whole run, one level each."),
    option("--trace", metavar="FILE", help="Open loop: recorded arrivals and their lengths, one level."),
    option("--speed", metavar="N", help="Of a trace: how many times as fast it is played."),
    option("--repeat", metavar="N", help="Play all levels so often, from the second time on in another order."),
)
_SPOKEN = (
    option(
        "--endpoint",
        metavar="KIND",
        help="chat, responses, embeddings, …: docs/endpoints.md. [default: found out]",
        shell_complete=endpoints,
    ),
    option("--method", metavar="GET|POST|…", help="Of --endpoint http. [default: POST with a body, else GET]"),
    option("--body", metavar="TEXT|@FILE", help="Of --endpoint http: what is sent, with {{ prompt }} and the like."),
    option("--model", metavar="NAME,…", help="Model to ask for; a list is an axis. [default: the first listed]"),
    option("--no-stream", is_flag=True, default=None, help="Ask for whole answers instead of streams."),
)
_ASKED = (
    option(
        "--arrival",
        metavar="poisson|constant|gamma",
        help="How the requests of -r arrive. [default: poisson]",
        shell_complete=words("poisson", "constant", "gamma"),
    ),
    option("--burstiness", metavar="SHAPE", help="Of gamma arrivals: 1 is Poisson, below 1 burstier; the rate stays."),
    option("-n", "--requests", metavar="N", help="Requests of each level; with -d, whichever ends first."),
    option(
        "-d", "--duration", metavar="TIME", help="Sending time of each level, such as 30s. [default: 30s without -n]"
    ),
    option("--warmup", metavar="TIME", help="Played and not measured. [default: 10 % of -d, 1 s to 30 s]"),
    option("--grace", metavar="TIME", help="What unfinished requests may take at a level's end. [default: --timeout]"),
    option("--cooldown", metavar="TIME", help="Pause between two levels. [default: none]"),
    option(
        "--scale",
        metavar="FACTOR",
        help="Try the scenario in the small: times, requests, rates, slots and lengths times FACTOR, 0 to 1. Such a "
        "result is not comparable.",
    ),
    option(
        "--input-tokens", metavar="LENGTH,…", help="Prompt length: a number or uniform(64, 192); a list is an axis."
    ),
    option("--output-tokens", metavar="LENGTH,…", help="Answer length, likewise."),
    option("--batch-size", metavar="N,…", help="Samples a request, of endpoints that make no text; one level each."),
    option("--data", metavar="FILE", help="Prompts out of a file: ShareGPT, chats, JSONL, CSV, Parquet, text, …"),
    option("--tokenizer", metavar="DIR", help="Local tokenizer.json: prompts of exactly so many of its tokens."),
    option("--probe-rate", metavar="N", help="Small requests a second beside the load, to see what they suffer."),
    *_SPOKEN,
    option("--timeout", metavar="TIME", help="For a whole answer. [default: 300s]"),
    option("--connect-timeout", metavar="TIME", help="For a connection. [default: 10s]"),
    option("--stall-timeout", metavar="TIME", help="Between bytes of an answer. [default: 60s]"),
    option(
        "--max-in-flight", metavar="N[:drop]", help="Open loop: most requests in flight; more wait, or are dropped."
    ),
    option(
        "--max-rate",
        metavar="N",
        help="Never send more than N a second in the whole run, whatever the load asks: protects a shared endpoint. "
        "What it holds back waits, and the wait is in the latency; to set a load, use -r.",
    ),
    option("--abort-on", metavar="RULE", help="End the run (exit 99) on a rule such as 'error_rate > 50% for 5s'."),
    option(
        "--audit",
        metavar="deterministic,cache",
        help="Before the levels, by 20 pairs of the same request: is the text the same, and the second no faster "
        "(cache:declared if it may be)?",
    ),
    option(
        "--slo",
        multiple=True,
        type=_Listed(),
        metavar="EXPRESSION",
        help="What each level has to keep to, such as 'p99(ttft) < 300ms'; repeatable, instead of the scenario's. '': "
        "nothing. As a variable with ; between them.",
    ),
    option(
        "--warn",
        multiple=True,
        type=_Listed(),
        metavar="EXPRESSION",
        help="What to warn of without failing the run, such as 'p99(ttft) > 3 * p50(ttft)'; repeatable, as --slo.",
    ),
    option(
        "--workers",
        type=click.IntRange(1, 10_000),
        metavar="N",
        help="Generator processes. [default: as the load needs, cores − 1; of a cluster all]",
    ),
    option("--seed", metavar="N", help="Same seed, same requests at the same times. [default: random, recorded]"),
    option(
        "--scheduler",
        metavar="NAME,…",
        help="Bundled server: continuous, dynamic, static, none; one level each.",
        shell_complete=words("continuous", "dynamic", "static", "none"),
    ),
    option("--max-batch-size", metavar="N,…", help="Bundled server: most requests in a batch, one level each."),
    option("--batch-timeout-ms", metavar="MS", help="Bundled server: wait window of dynamic batches."),
    option(
        "--serve-model",
        metavar="NAME|DIR",
        help="Bundled server: tiny, demo, or a folder.",
        shell_complete=words("tiny", "demo", files=True),
    ),
    option(
        "--provider",
        metavar="auto|cpu|cuda",
        help="Bundled server: where the model runs.",
        shell_complete=words("auto", "cpu", "cuda"),
    ),
    option(
        "--dtype",
        metavar="auto|fp32|fp16|int8",
        help="Bundled server: precision.",
        shell_complete=words("auto", "fp32", "fp16", "int8"),
    ),
    option("--threads", metavar="N", help="Bundled server: threads of ONNX Runtime."),
)


scenario_flags = _taking(*_NAMED, *_LOADS, *_ASKED)
"""The flags that make a scenario or change one: of ``run`` as of ``plan``."""


_WAY = (
    option(
        "--api-key",
        metavar="KEY",
        help="Sent as a bearer token, or in the endpoint's own header; never stored. Better: LOADTEST_API_KEY.",
    ),
    option("--basic", metavar="NAME:PASSWORD", help="Basic authentication. Better: LOADTEST_BASIC."),
    option(
        "--auth-command",
        metavar="COMMAND",
        help="Prints a bearer token, alone or as JSON, such as 'gcloud auth print-access-token'; run without a shell, "
        "and again before the token expires.",
    ),
    option("--auth-refresh", metavar="TIME", help="How often, where a token does not say when. [default: 5m]"),
    click.option(
        "-H", "--header", "headers", multiple=True, metavar="'NAME: VALUE'", help="Further header; repeatable."
    ),
    option(
        "--proxy",
        metavar="URL",
        help="HTTP proxy, '' for none. [default: HTTP(S)_PROXY, ALL_PROXY; never for loopback]",
    ),
    option("--cacert", metavar="FILE", help="https: trust these authorities (PEM) instead of the system's."),
    option("--cert", metavar="FILE", help="https: certificate to show to the server (PEM)."),
    option("--key", metavar="FILE", help="https: its key, if that is not in the same file."),
    option("--key-password", metavar="TEXT", help="https: of an encrypted key. Better: LOADTEST_KEY_PASSWORD."),
    option("--insecure", is_flag=True, help="https: take any certificate of the server."),
    option(
        "--wait-ready",
        metavar="TIME",
        help="Wait so long until the target is ready: healthy, and answering a first request.",
    ),
)
_PLAYED = (
    option(
        "--cluster",
        metavar="URL|local:N",
        help="Play on the workers of a Dask cluster, tcp://SCHEDULER:8786, or on one of N started here: "
        "docs/scaling.md.",
    ),
    option(
        "--transport", type=click.Choice(["fast", "aiohttp"]), help="HTTP client. [default: fast; aiohttp by a proxy]"
    ),
    option("--traceparent", is_flag=True, help="Send a W3C traceparent with each request, as --otlp names its spans."),
    option("--no-run-header", is_flag=True, help="Send no X-Loadtest-Run, which names the run in each request."),
    click.option(
        "--label", "labels", multiple=True, metavar="KEY=TEXT", help="Stored with the result: hardware, precision, …"
    ),
)
_ASSURED = (
    option(
        "--yes",
        is_flag=True,
        help="Send without asking. It is asked where another machine would get more than 50 requests/s or 64 at once.",
    ),
    option(
        "--no-rehearsal",
        is_flag=True,
        help="Send no request before the clock, which is to find out what the target would refuse.",
    ),
    option(
        "--metrics",
        "server_metrics",
        metavar="URL|off",
        help="Where the server's Prometheus metrics are, which are read each second. [default: at the target, if any]",
    ),
    option("--gpu", is_flag=True, help="Watch this host's NVIDIA GPUs, where the target is here."),
    option("--dcgm", metavar="URL", help="Watch the GPUs of a DCGM exporter."),
)
UNPLAYED: dict[str, Any] = {
    "cluster": None,
    "transport": None,
    "traceparent": False,
    "no_run_header": False,
    "yes": False,
    "no_rehearsal": False,
    "labels": (),
    "server_metrics": None,
    "gpu": False,
    "dcgm": None,
    "workers": None,
}
"""What these and --workers are for a command that plays nothing."""


way_flags = _taking(*_WAY, *_PLAYED, *_ASSURED)
"""How to get to a target, and what is told of it: of every command that plays."""


resume_flags = _taking(*_WAY, *_ASSURED)
"""How to get to a target and be let in: of a command that goes on with what has been asked before."""


probe_flags = _taking(*_NAMED, *_SPOKEN, *_WAY)
"""How to get to a target and how to speak to it: of a command that asks and plays nothing."""


search_flags = _taking(*_NAMED, *_ASKED)
"""The same of a search, which sets the loads itself."""


_PIPELINE = (
    option("--junit", type=click.Path(path_type=Path), metavar="FILE", help="Write JUnit XML: a case for each SLO."),
    option("--markdown", type=click.Path(path_type=Path), metavar="FILE", help="Write a comment for a pull request."),
)


pipeline_flags = _taking(*_PIPELINE)
"""The files that a pipeline takes, of every command that judges or reports."""


_LIVE = (
    option(
        "--live-json",
        metavar="-|FILE",
        help="While it runs, a line of JSON a second there; - is stdout, instead of the table.",
    ),
    option("--prometheus", metavar="[HOST]:PORT", help="While it runs, metrics to be scraped there. [host: 127.0.0.1]"),
    option("--no-html", is_flag=True, help="Leave no report.html beside the result: it takes a second."),
)


output_flag = option(
    "-o", "--output", type=click.Path(path_type=Path, file_okay=False), help="New folder for the result."
)
json_flag = option(
    "--json", "json_to", metavar="-|FILE", help="Also write result.json there; - is stdout, instead of the table."
)
"""Where the result goes, of every command that makes one."""


quiet_flag = click.option("-q", "--quiet", is_flag=True, help="No progress on stderr.")
verbose_flag = click.option("-v", "--verbose", count=True, help="Log to stderr; twice for more.")
"""What goes to stderr, of every command that takes its time."""


records_flag = option(
    "--records",
    type=click.Choice(["all", "sampled", "none"]),
    default="all",
    help="Which requests are left in the folder: all; one of each hundred, those that failed and the "
    "slowest; or none. The figures are of all of them in any case. [default: all]",
)


live_flags = _taking(*_LIVE)
"""Who is told while levels are played, and whether a page is left, of every command that plays."""


_EXPORTS = (
    option("--csv", type=click.Path(path_type=Path), metavar="FILE", help="Write a row for each level as CSV."),
    option("--parquet", type=click.Path(path_type=Path), metavar="FILE", help="Write the requests as Parquet."),
    option("--otlp", metavar="URL", help="Send metrics and a span for each request to an OpenTelemetry collector."),
    option("--mlflow", metavar="URI|DIR", help="Log the run to an MLflow tracking server, or to a folder."),
    click.option(
        "--compat",
        type=(click.Choice(["vllm"]), click.Path(path_type=Path)),
        metavar="vllm FILE",
        help="Write what vllm bench serve --save-result does, a file for each level.",
    ),
)


export_flags = _taking(*_EXPORTS)
"""Other programs' forms of a result, of every command that has one."""
