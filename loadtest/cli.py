"""The commands: parse, call, print, exit. Nothing heavy is imported before a command needs it."""

import contextlib
import os
import sys
from pathlib import Path
from typing import Any, Literal

import click

from loadtest import __version__, cli_results, intent, terminal
from loadtest.completion import presets
from loadtest.errors import ResultError
from loadtest.flags import (
    UNPLAYED,
    export_flags,
    json_flag,
    live_flags,
    option,
    output_flag,
    pipeline_flags,
    probe_flags,
    quiet_flag,
    records_flag,
    resume_flags,
    scenario_flags,
    search_flags,
    verbose_flag,
    way_flags,
)
from loadtest.headings import Command


class _Commands(click.Group):
    """``serve`` and ``model`` come from the server's own package, and are imported only when they are asked for."""

    command_class = Command

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*super().list_commands(ctx), "model", "serve"])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name == "serve":
            from servers.cli import serve

            return serve
        if cmd_name == "model":
            from servers.cli_model import model

            return model
        return super().get_command(ctx, cmd_name)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="loadtest")
def main() -> None:
    """Load testing for inference endpoints: figures you can defend in a release decision.

    \b
    loadtest run                                     the bundled server, nothing to configure
    loadtest run http://staging:8000 -s chat         a scenario against your endpoint
    loadtest capacity http://staging:8000 --slo …    the highest load that keeps the SLOs
    loadtest probe http://staging:8000               what an endpoint speaks and takes
    loadtest plan -s chat                            what that would send, without sending it
    loadtest compare results/before results/after    whether it got worse
    loadtest report results/quickstart-…             the table of an earlier run, its page, its charts
    loadtest resume results/soak-…                   go on with a run that ended before its time
    loadtest explain results/quickstart-…            what limited each of its levels
    """


@main.command(short_help="Play a scenario and print what was measured.")
@click.argument("url", required=False)
@scenario_flags
@way_flags
@option(
    "--on-inconclusive",
    type=click.Choice(["report", "fail", "extend"]),
    default="report",
    help="What an SLO is that the requests do not decide: exit 98, exit 99, or a level to be played once more, after "
    "which it is 98 or decided. [default: report]",
)
@click.option("--strict", is_flag=True, help="Exit 97 when the client was the limit in any level.")
@output_flag
@records_flag
@json_flag
@live_flags
@export_flags
@pipeline_flags
@quiet_flag
@verbose_flag
@click.pass_context
def run(
    ctx: click.Context, /, url: str | None, source: str | None, json_to: str | None, output: Path | None,
    strict: bool, quiet: bool, verbose: int, on_inconclusive: Literal["report", "fail", "extend"],
    junit: Path | None, markdown: Path | None, live_json: str | None, prometheus: str | None, no_html: bool,
    csv: Path | None, parquet: Path | None, otlp: str | None, mlflow: str | None,
    compat: tuple[str, Path] | None, records: Literal["all", "sampled", "none"], **flags: Any,
) -> None:  # fmt: skip
    """Play a scenario and print, for each level, what was measured.

    Without a URL the bundled ONNX Runtime server is started, the quickstart scenario is played at each of its
    batching and concurrency levels, and the server is stopped. With a URL and no -s, the flags are the scenario.
    A URL may also be https://, hold user:password@ (Basic authentication), or be a unix socket, unix:/run/server.sock
    or unix:/run/server.sock:/prefix.
    Options can also be given as variables, such as LOADTEST_API_KEY or LOADTEST_RATE; a flag wins.

    \b
    loadtest run
    loadtest run http://127.0.0.1:8000 -c 1,4,16 -d 30s
    loadtest run http://staging:8000 -s chat -r 20 -o results/before
    """
    with terminal.exits(verbose) as redact:
        from loadtest.pipeline import Pipeline
        from loadtest.run import run as play

        source = "quickstart" if source is None and url is None else source
        how: dict[str, Any] = {"strict": strict, "on_inconclusive": on_inconclusive, "records": records}
        options = intent.options(ctx, flags, url=url, source=source, output=output, **how)
        terminal.can_write(json_to)
        exports = intent.exports(csv, parquet, otlp, mlflow, compat, output, records)
        pipeline = Pipeline.of(junit, markdown, os.environ, within=output)
        with (
            terminal.watched(quiet, verbose, json_to, live_json, prometheus) as progress,
            pipeline.of_failure(options.source or "run", terminal.note, redact),
        ):
            outcome = play(options, progress)
        notes = pipeline.tell_of(outcome.result, outcome.folder)
        terminal.leave(outcome, json_to, live_json, no_html=no_html)
        code = outcome.result.exit_code
        try:
            notes = [*exports.make(outcome.result, outcome.folder), *notes]
        except ResultError as error:  # the result is safe, and its own code says more than this
            click.echo(
                f"error: {error}. The run is whole: loadtest report {outcome.folder} takes the flag too", err=True
            )
            code = code or error.exit_code
        for note in notes:
            terminal.note(note)
        sys.exit(code)


@main.command(short_help="Search for the highest load that keeps the SLOs.")
@click.argument("url", required=False)
@search_flags
@way_flags
@option("--axis", type=click.Choice(["rate", "concurrency"]), help="What is raised. [default: as the scenario's load]")
@option("--min", "least", type=click.FloatRange(0, min_open=True), metavar="LOAD", help="Begin here. [default: 1]")
@option("--max", "most", type=click.FloatRange(0, min_open=True), metavar="LOAD", help="Try nothing above it.")
@option("--trials", type=click.IntRange(3, 10), default=3, show_default=True, help="That have to pass at a load.")
@option("--budget", metavar="TIME", default="30m", show_default=True, help="Begin no trial that would end after it.")
@option("--reserve", metavar="SHARE", default="0%", show_default=True, help="Of the capacity, to be kept back.")
@option("--replicas", type=click.IntRange(1), default=1, show_default=True, help="Such targets behind one address.")
@option("--lost", type=click.IntRange(0), default=0, show_default=True, help="Of these, how many may be gone.")
@click.option(
    "--tier",
    "tiers",
    multiple=True,
    metavar="'NAME: SLO; …'",
    help="A set of SLOs by itself instead of --slo; repeatable: one search answers all.",
)
@output_flag
@records_flag
@json_flag
@live_flags
@quiet_flag
@verbose_flag
@click.pass_context
def capacity(
    ctx: click.Context, /, url: str | None, source: str | None, axis: Literal["rate", "concurrency"] | None,
    least: float | None, most: float | None, trials: int, budget: str, reserve: str, replicas: int, lost: int,
    tiers: tuple[str, ...], output: Path | None, json_to: str | None, quiet: bool, verbose: int,
    live_json: str | None, prometheus: str | None, no_html: bool, records: Literal["all", "sampled", "none"],
    **flags: Any,
) -> None:  # fmt: skip
    """Search for the highest rate, or concurrency, that keeps the SLOs: up by doublings, then by halves in between,
    until the load that passed in each of at least three trials and the one that did not are a step of 4 % apart.

    -d is the least a trial lasts. Without a URL each batching setting of the bundled server is searched. A search that
    was interrupted, or ended with its budget, goes on with loadtest resume.

    \b
    loadtest capacity http://staging:8000 -s chat --slo 'p99(ttft) < 300ms' --reserve 20%
    loadtest capacity http://staging:8000 --axis rate --min 4 --max 64 --slo 'p99(ttft) < 300ms'
    loadtest capacity http://staging:8000 --tier 'fast: p99(ttft) < 200ms' --tier 'usual: p99(ttft) < 1s'
    """
    with terminal.exits(verbose):
        from loadtest.capacity import capacity as search
        from loadtest.question import of_flags

        asked = of_flags(axis, least, most, trials, budget, reserve, replicas, lost, tiers)
        source = "quickstart" if source is None and url is None else source
        options = intent.options(ctx, flags, url=url, source=source, output=output, records=records)
        terminal.can_write(json_to)
        with terminal.watched(quiet, verbose, json_to, live_json, prometheus) as progress:
            outcome = search(options, asked, progress)
        terminal.leave(outcome, json_to, live_json, no_html=no_html)
        sys.exit(outcome.result.exit_code)


@main.command(short_help="Go on with a run or a search that ended before its time.")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.argument("url", required=False)
@resume_flags
@option("--budget", metavar="TIME", help="Of a search: begin no trial that would end after it. [default: 30m]")
@json_flag
@live_flags
@quiet_flag
@verbose_flag
@click.pass_context
def resume(
    ctx: click.Context, /, folder: Path, url: str | None, budget: str | None, json_to: str | None, quiet: bool,
    verbose: int, live_json: str | None, prometheus: str | None, no_html: bool, **flags: Any,
) -> None:  # fmt: skip
    """Go on in a result folder, as it was asked then: with the levels of a run, or the trials of a search, that have
    not ended. What was interrupted is played again from its start, and what was complete is kept.

    Secrets are not stored: give them again, by variable or flag; and the URL too if it held one.

    \b
    loadtest resume results/chat-20260101T120000Z
    loadtest resume results/chat-20260101T120000Z --budget 2h
    loadtest resume results/chat-20260101T120000Z --auth-command 'gcloud auth print-access-token'
    """
    with terminal.exits(verbose):
        from loadtest.result import load

        terminal.can_write(json_to)
        searched = load(folder).capacity is not None
        if budget is not None and not searched:
            raise click.UsageError(f"--budget {budget}: is of a search for capacity, and {folder} holds a run")
        options = intent.options(ctx, {**UNPLAYED, **flags}, url=url, source=None, output=folder, resume=True)
        with terminal.watched(quiet, verbose, json_to, live_json, prometheus) as progress:
            if searched:
                from loadtest.capacity import capacity as search
                from loadtest.question import Question

                budget_s = intent.seconds("--budget", budget)
                outcome = search(options, Question() if budget_s is None else Question(budget_s=budget_s), progress)
            else:
                from loadtest.run import run as play

                outcome = play(options, progress)
        terminal.leave(outcome, json_to, live_json, no_html=no_html)
        sys.exit(outcome.result.exit_code)


@main.command(short_help="Find out what an endpoint speaks and takes.")
@click.argument("url")
@probe_flags
@option("--json", "json_to", metavar="-|FILE", help="Write what was found there; - is stdout, instead of the text.")
@click.option("-v", "--verbose", is_flag=True, help="Also print the bytes of the timed request and its response.")
@quiet_flag
@click.pass_context
def probe(
    ctx: click.Context, /, url: str, source: str | None, json_to: str | None, verbose: bool, quiet: bool, **flags: Any
) -> None:  # fmt: skip
    """Ask an endpoint what it is and what it takes, and print a table of that with the evidence, the time of one
    request step by step, that request as a curl command, and the lines that a scenario needs for it.

    It takes some GETs and at most ten small requests, one after the other. Exit 0: a run can use it; 1: it cannot, and
    why.

    \b
    loadtest probe http://127.0.0.1:8000
    loadtest probe https://gateway/v1/chat/completions --model small -v
    loadtest probe http://staging:8000 --json - | jq .checks
    """
    with terminal.exits():
        from loadtest.probe import probe as ask
        from loadtest.progress import Progress

        terminal.can_write(json_to)
        with contextlib.closing(Progress(sys.stderr, quiet=quiet)) as progress:
            found = ask(intent.options(ctx, {**UNPLAYED, **flags}, url=url, source=source), progress, raw=verbose)
        with terminal.reader_may_leave():
            if terminal.wants_table(found, json_to):
                from loadtest.reports.probe import text

                click.echo(text(found, *terminal.paper()), nl=False)
        sys.exit(0 if found.reason is None else 1)


@main.command(short_help="Explain what a run would send, and send nothing.")
@click.argument("url", required=False)
@scenario_flags
@option("--price-in", type=click.FloatRange(0), metavar="PRICE", help="Of a million input tokens: estimate the cost.")
@option("--price-out", type=click.FloatRange(0), metavar="PRICE", help="Of a million output tokens, likewise.")
@option("--json", "json_to", metavar="-|FILE", help="Write the plan there as JSON; - is stdout, instead of the text.")
@click.pass_context
def plan(
    ctx: click.Context, /, url: str | None, source: str | None, workers: int | None, price_in: float | None,
    price_out: float | None, json_to: str | None,
    **scenario_flags: Any,
) -> None:  # fmt: skip
    """Print the scenario with the source of each value, the levels in the order they would be played, how many
    requests and tokens they are, how long prompts and answers get, when the first requests leave, and what all of it
    takes in time and, at a given price, in money. Nothing is sent, and no network is used.

    It takes the flags of run that make a scenario. With the same seed, run plays exactly what plan has shown.

    \b
    loadtest plan -s chat
    loadtest plan http://staging:8000 -s ./mine.yaml -r 20 --seed 1
    loadtest plan -s rag-8k --price-in 0.5 --price-out 1.5
    loadtest plan -s chat --json - | jq .estimate
    """
    with terminal.exits():
        from loadtest.forecast import Prices
        from loadtest.preview import preview

        terminal.can_write(json_to)
        priced = price_in is not None or price_out is not None
        found, resolved = preview(
            url,
            "quickstart" if source is None and url is None else source,
            intent.overrides(ctx, scenario_flags),
            workers,
            Prices(price_in or 0.0, price_out or 0.0) if priced else None,
        )
        with terminal.reader_may_leave():
            if terminal.wants_table(found, json_to):
                from loadtest.reports.plan import text

                click.echo(text(found, resolved, *terminal.paper()), nl=False)


@main.group(invoke_without_command=True, short_help="List, show or copy the scenarios that come with the tool.")
@click.pass_context
def scenarios(ctx: click.Context) -> None:
    """The scenarios that come with the tool, each with the question it answers. Without a command: list.

    \b
    loadtest scenarios
    loadtest scenarios show chat
    loadtest scenarios copy chat ./mine.yaml
    """
    if ctx.invoked_subcommand is None:
        ctx.invoke(list_scenarios)


@scenarios.command("list")
def list_scenarios() -> None:
    """Print the name of each scenario and its question, one a line, a tab between them.

    \b
    loadtest scenarios list
    loadtest scenarios list | cut -f1
    loadtest scenarios list | grep -i prefix
    """
    with terminal.exits(), terminal.reader_may_leave():
        from loadtest.scenario import presets

        found = presets()
        # A tab for programs; for people the questions stand below each other.
        width = max((len(preset.name) for preset in found), default=0) if sys.stdout.isatty() else 0
        for preset in found:
            click.echo(f"{preset.name:<{width}}{'  ' if width else chr(9)}{preset.question}")


@scenarios.command("show")
@click.argument("name", shell_complete=presets)
def show_scenario(name: str) -> None:
    """Print the file of a scenario as it is.

    \b
    loadtest scenarios show chat
    loadtest scenarios show chat > mine.yaml
    loadtest scenarios show mlperf-llama2-70b-server | head -20
    """
    with terminal.exits(), terminal.reader_may_leave():
        from loadtest.scenario import find

        click.echo(find(name).read_text("utf-8"), nl=False)


@scenarios.command("copy")
@click.argument("name", shell_complete=presets)
@click.argument("destination", metavar="[DEST]", required=False, type=click.Path(path_type=Path))
def copy_scenario(name: str, destination: Path | None) -> None:
    """Copy the file of a scenario to DEST, a new file or a folder; without it, to NAME.yaml here.

    \b
    loadtest scenarios copy chat
    loadtest scenarios copy chat ./mine.yaml
    loadtest scenarios copy soak ~/scenarios
    """
    with terminal.exits():
        from loadtest.scenario.catalog import copy

        click.echo(copy(name, destination))


@main.command(short_help="Print the JSON Schema of a scenario file or a result.")
@click.argument("of", metavar="[scenario|result]", type=click.Choice(["scenario", "result"]), default="scenario")
def schema(of: str) -> None:
    """Print the JSON Schema (draft 2020-12) of a scenario file, or of result.json.

    \b
    loadtest schema > scenario.schema.json
    loadtest schema result > result.schema.json
    loadtest schema | jq '.properties | keys'
    """
    with terminal.reader_may_leave():
        import json

        from loadtest import result, scenario

        click.echo(json.dumps((scenario if of == "scenario" else result).schema(), indent=2, ensure_ascii=False))


@main.command(short_help="Measure what this machine can carry.")
@click.option("--quick", is_flag=True, help="Fewer and shorter rows: under 15 s instead of a minute.")
@click.option("--save", is_flag=True, help="Keep the limits, so that later runs on this machine warn beforehand.")
@option("--json", "json_to", metavar="-|FILE", help="Also write the figures there; - is stdout, instead of the table.")
@quiet_flag
def calibrate(*, quick: bool, save: bool, json_to: str | None, quiet: bool) -> None:
    """Play a server whose latencies are known, at 1 to 1,024 streams, and print what one worker adds to them.

    The answer says up to how many streams, or events and requests a second, the figures of a run on this machine are
    the server's and not the client's. It is best measured while nothing else runs here.

    \b
    loadtest calibrate
    loadtest calibrate --quick --save
    loadtest calibrate --json calibration.json
    """
    with terminal.exits():
        from loadtest import calibration
        from loadtest.calibrate import calibrate as measure
        from loadtest.progress import Progress

        terminal.can_write(json_to)
        found = measure(Progress(sys.stderr, quiet=quiet), quick=quick)
        with terminal.reader_may_leave():
            if terminal.wants_table(found.document(), json_to):
                from loadtest.reports.calibration import table

                click.echo(table(found, *terminal.paper()), nl=False)
        if save:
            click.echo(f"saved: {calibration.save(found)}", err=True)


for each in (cli_results.report, cli_results.explain, cli_results.compare):
    main.add_command(each)
