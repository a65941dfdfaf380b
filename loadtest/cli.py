"""The commands: parse, call, print, exit. Nothing heavy is imported before a command needs it."""

import contextlib
import functools
import logging
import os
import select
import shlex
import shutil
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn

import click

from loadtest import __version__
from loadtest.completion import presets
from loadtest.errors import LoadtestError, ResultError
from loadtest.flags import (
    UNPLAYED,
    export_flags,
    live_flags,
    option,
    pipeline_flags,
    probe_flags,
    records_flag,
    resume_flags,
    scenario_flags,
    search_flags,
    way_flags,
)
from loadtest.headings import Command
from loadtest.redact import Redactor

if TYPE_CHECKING:
    from loadtest.exports.wanted import Exports
    from loadtest.pipeline import Pipeline
    from loadtest.progress import Progress
    from loadtest.result import Result
    from loadtest.run import Outcome
    from loadtest.sitting import Options


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
@option("-o", "--output", type=click.Path(path_type=Path, file_okay=False), help="New folder for the result.")
@records_flag
@option("--json", "json_to", metavar="-|FILE", help="Also write result.json there; - is stdout, instead of the table.")
@live_flags
@export_flags
@pipeline_flags
@click.option("-q", "--quiet", is_flag=True, help="No progress on stderr.")
@click.option("-v", "--verbose", count=True, help="Log to stderr; twice for more.")
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
    with _exits(verbose) as redact:
        from loadtest.pipeline import Pipeline
        from loadtest.run import run as play

        source = "quickstart" if source is None and url is None else source
        how: dict[str, Any] = {"strict": strict, "on_inconclusive": on_inconclusive, "records": records}
        options = _options(ctx, flags, url=url, source=source, output=output, **how)
        _can_write(json_to)
        exports = _exports(csv, parquet, otlp, mlflow, compat, output, records)
        pipeline = Pipeline.of(junit, markdown, os.environ, within=output)
        with (
            _watched(quiet, verbose, json_to, live_json, prometheus) as progress,
            pipeline.of_failure(options.source or "run", _note, redact),
        ):
            outcome = play(options, progress)
        notes = _tell(pipeline, outcome.result, outcome.folder)
        _print(outcome.result, outcome.folder, json_to, live_json)
        if not (no_html or outcome.at_once):
            _keep_page(outcome.result, outcome.folder)
        if outcome.error is not None:
            _refuse(f"{outcome.result.warnings[-1]}{outcome.error.pointer}")
        code = outcome.result.exit_code
        try:
            notes = [*exports.make(outcome.result, outcome.folder), *notes]
        except ResultError as error:  # the result is safe, and its own code says more than this
            click.echo(
                f"error: {error}. The run is whole: loadtest report {outcome.folder} takes the flag too", err=True
            )
            code = code or error.exit_code
        for note in notes:
            _note(note)
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
@option("-o", "--output", type=click.Path(path_type=Path, file_okay=False), help="New folder for the result.")
@records_flag
@option("--json", "json_to", metavar="-|FILE", help="Also write result.json there; - is stdout, instead of the table.")
@live_flags
@click.option("-q", "--quiet", is_flag=True, help="No progress on stderr.")
@click.option("-v", "--verbose", count=True, help="Log to stderr; twice for more.")
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
    was interrupted goes on with loadtest resume.

    \b
    loadtest capacity http://staging:8000 -s chat --slo 'p99(ttft) < 300ms' --reserve 20%
    loadtest capacity http://staging:8000 --axis rate --min 4 --max 64 --slo 'p99(ttft) < 300ms'
    loadtest capacity http://staging:8000 --tier 'fast: p99(ttft) < 200ms' --tier 'usual: p99(ttft) < 1s'
    """
    with _exits(verbose):
        from loadtest.capacity import capacity as search
        from loadtest.question import of_flags

        asked = of_flags(axis, least, most, trials, budget, reserve, replicas, lost, tiers)
        source = "quickstart" if source is None and url is None else source
        options = _options(ctx, flags, url=url, source=source, output=output, records=records)
        _can_write(json_to)
        with _watched(quiet, verbose, json_to, live_json, prometheus) as progress:
            outcome = search(options, asked, progress)
        _leave(outcome, json_to, live_json, no_html=no_html)


@main.command(short_help="Go on with a run or a search that ended before its time.")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.argument("url", required=False)
@resume_flags
@option("--budget", metavar="TIME", help="Of a search: begin no trial that would end after it. [default: 30m]")
@option("--json", "json_to", metavar="-|FILE", help="Also write result.json there; - is stdout, instead of the table.")
@live_flags
@click.option("-q", "--quiet", is_flag=True, help="No progress on stderr.")
@click.option("-v", "--verbose", count=True, help="Log to stderr; twice for more.")
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
    with _exits(verbose):
        from loadtest.result import load

        _can_write(json_to)
        searched = load(folder).capacity is not None
        if budget is not None and not searched:
            raise click.UsageError(f"--budget {budget}: is of a search for capacity, and {folder} holds a run")
        options = _options(ctx, {**UNPLAYED, **flags}, url=url, source=None, output=folder, resume=True)
        with _watched(quiet, verbose, json_to, live_json, prometheus) as progress:
            if searched:
                from loadtest.capacity import capacity as search
                from loadtest.question import Question

                budget_s = _seconds("--budget", budget)
                outcome = search(options, Question() if budget_s is None else Question(budget_s=budget_s), progress)
            else:
                from loadtest.run import run as play

                outcome = play(options, progress)
        _leave(outcome, json_to, live_json, no_html=no_html)


@main.command(short_help="Find out what an endpoint speaks and takes.")
@click.argument("url")
@probe_flags
@option("--json", "json_to", metavar="-|FILE", help="Write what was found there; - is stdout, instead of the text.")
@click.option("-v", "--verbose", is_flag=True, help="Also print the bytes of the timed request and its response.")
@click.option("-q", "--quiet", is_flag=True, help="No progress on stderr.")
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
    with _exits():
        from loadtest.probe import probe as ask
        from loadtest.progress import Progress

        _can_write(json_to)
        with contextlib.closing(Progress(sys.stderr, quiet=quiet)) as progress:
            found = ask(_options(ctx, {**UNPLAYED, **flags}, url=url, source=source), progress, raw=verbose)
        with _reader_may_leave():
            if _wants_table(found, json_to):
                from loadtest.reports.probe import text

                click.echo(text(found, *_paper()), nl=False)
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
    with _exits():
        from loadtest.forecast import Prices
        from loadtest.preview import preview

        _can_write(json_to)
        priced = price_in is not None or price_out is not None
        found, resolved = preview(
            url,
            "quickstart" if source is None and url is None else source,
            _overrides(ctx, scenario_flags),
            workers,
            Prices(price_in or 0.0, price_out or 0.0) if priced else None,
        )
        with _reader_may_leave():
            if _wants_table(found, json_to):
                from loadtest.reports.plan import text

                click.echo(text(found, resolved, *_paper()), nl=False)


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
    with _exits(), _reader_may_leave():
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
    with _exits(), _reader_may_leave():
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
    with _exits():
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
    with _reader_may_leave():
        import json

        from loadtest import result, scenario

        click.echo(json.dumps((scenario if of == "scenario" else result).schema(), indent=2, ensure_ascii=False))


@main.command(short_help="Print the table of an earlier run again, or draw it.")
@click.argument("folders", nargs=-1, required=True, metavar="DIR…", type=click.Path(path_type=Path))
@option("--json", "json_to", metavar="-|FILE", help="Write result.json there; - is stdout, instead of the table.")
@click.option(
    "--html", is_flag=False, flag_value="", metavar="[FILE]", help="Write the page; without FILE, into DIR again."
)
@click.option("--png", type=click.Path(path_type=Path, file_okay=False), metavar="DIR", help="Draw each chart there.")
@click.option("--svg", type=click.Path(path_type=Path, file_okay=False), metavar="DIR", help="The same, to any size.")
@export_flags
@pipeline_flags
def report(
    folders: tuple[Path, ...], json_to: str | None, html: str | None, png: Path | None, svg: Path | None,
    junit: Path | None, markdown: Path | None, csv: Path | None, parquet: Path | None, otlp: str | None,
    mlflow: str | None, compat: tuple[str, Path] | None,
) -> None:  # fmt: skip
    """Print the table of a result folder, also of a run that was interrupted or killed; or write its page and charts.

    Of several folders it is one page that lays them over each other, report.html here if no FILE is named; what their
    conditions differ in stands first. Whether one is worse than another is what compare tells.

    \b
    loadtest report results/quickstart-20260101T120000Z
    loadtest report results/before --json - | jq .levels[0].latency.ttft_ms
    loadtest report results/before --html before.html --png charts
    loadtest report results/before results/after --html both.html
    loadtest report results/before --csv levels.csv --parquet requests.parquet
    """
    with _exits():
        from loadtest.recovery import recovered

        if len(folders) > 1 and (json_to or junit or markdown or csv or parquet or otlp or mlflow or compat):
            raise click.UsageError("--html, --png and --svg take several runs, the other flags one; or see compare")
        if html is not None or png or svg or len(folders) > 1:
            page = html is not None or not (png or svg)
            if _draw(folders, Path(html) if html else None, png, svg, page=page) > 1:
                return
        from loadtest.pipeline import Pipeline

        folder = folders[0]
        result = recovered(folder)
        exports = _exports(csv, parquet, otlp, mlflow, compat, kept=result.records)
        notes = _tell(Pipeline.of(junit, markdown, os.environ), result, folder)
        _print(result, folder, json_to)
        for note in [*exports.make(result, folder), *notes]:
            _note(note)


@main.command(short_help="Say what limited each level of an earlier run.")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@option("--json", "json_to", metavar="-|FILE", help="Write it there as JSON; - is stdout, instead of the text.")
def explain(folder: Path, json_to: str | None) -> None:
    """Print what limited each level of a result folder, the heaviest first, with the figures that say so: the client,
    waiting before the server, its queue, its key/value cache, prefill, decode, the GPU's power, or nothing at all.

    It rests on what the server and the GPUs told while the levels were played (run --metrics, --gpu, --dcgm), and says
    what it would have needed where it cannot tell.

    \b
    loadtest explain results/quickstart-20260101T120000Z
    loadtest explain results/before --json - | jq .levels[0].findings
    loadtest explain results/before --json why.json
    """
    with _exits():
        from loadtest.explain import explain as reasons
        from loadtest.recovery import recovered

        _can_write(json_to)
        result = recovered(folder)
        found = reasons(result)
        with _reader_may_leave():
            if _wants_table(found, json_to):
                from loadtest.reports.explain import text

                click.echo(text(found, result, *_paper()), nl=False)


@main.command(short_help="Compare two runs, or several of each side: is it a regression?")
@click.argument("named", nargs=-1, metavar="BASE… [vs] CANDIDATE…")
@click.option("--tolerance", default="5%", show_default=True, metavar="SHARE", help="How much worse a figure may get.")
@click.option(
    "--metric",
    "metrics",
    multiple=True,
    metavar="NAME",
    help="Compare this figure, such as p99(ttft); repeatable. [default: rates, p50 and p99 of times, error_rate]",
)
@click.option("--allow-unlike", is_flag=True, help="Compare also what was measured under other conditions.")
@option(
    "--baseline-dir", type=click.Path(path_type=Path), metavar="DIR", help="Where named baselines lie; BASE is one."
)
@click.option("--save-baseline", metavar="NAME", help="Keep CANDIDATE there, if there is no regression or no BASE.")
@click.option("--run", "in_turn", is_flag=True, help="The sides are two URLs: play them in turn, then compare.")
@click.option("--rounds", type=click.IntRange(1, 100), default=4, show_default=True, help="With --run: runs of each.")
@scenario_flags
@way_flags
@click.option("-o", "--output", type=click.Path(path_type=Path, file_okay=False), help="With --run: a new folder.")
@option("--json", "json_to", metavar="-|FILE", help="Write the comparison there; - is stdout, instead of the table.")
@live_flags
@pipeline_flags
@click.option("-q", "--quiet", is_flag=True, help="No progress on stderr.")
@click.pass_context
def compare(
    ctx: click.Context, /, named: tuple[str, ...], tolerance: str, metrics: tuple[str, ...], allow_unlike: bool,
    baseline_dir: Path | None, save_baseline: str | None, in_turn: bool, rounds: int, output: Path | None,
    json_to: str | None, junit: Path | None, markdown: Path | None, quiet: bool,
    live_json: str | None, prometheus: str | None, no_html: bool,
    **flags: Any,
) -> None:  # fmt: skip
    """Compare result folders, figure by figure, and exit 99 if CANDIDATE is worse than BASE, 98 if that cannot be told.

    A side is a folder that run has made, several of them (then with the word vs between the sides), or a folder with
    several in it. Conditions that differ are named, and refused without --allow-unlike. A change has a confidence
    interval: from four runs a side on by how these differ, of fewer by the requests within them too.

    \b
    loadtest compare results/before results/after
    loadtest compare results/before-* vs results/after-* --tolerance 3%
    loadtest compare --baseline-dir baselines main results/after --save-baseline main
    loadtest compare --run http://old:8000 http://new:8000 -s chat -c 8 -d 60s
    """
    with _exits() as redact:
        from loadtest import baselines
        from loadtest.compare import compare as decide
        from loadtest.comparison import measure, share, sides
        from loadtest.pipeline import Pipeline
        from loadtest.reports import comparison as shown

        _can_write(json_to)
        if save_baseline is not None and baseline_dir is None:
            raise click.UsageError("--save-baseline: say where with --baseline-dir")
        kept = None if baseline_dir is None or save_baseline is None else baselines.place(baseline_dir, save_baseline)
        if kept and len(named) == 1 and not in_turn:
            click.echo(baselines.save([Path(named[0])], kept))
            return
        base, candidate = sides(named)
        tolerated, asked = share(tolerance), [measure(name) for name in metrics]
        pipeline = Pipeline.of(junit, markdown, os.environ, within=output)
        with pipeline.of_failure("compare", _note, redact):
            if in_turn:
                with _watched(quiet, 0, json_to, live_json, prometheus) as progress:
                    folders = _played_in_turn(ctx, flags, base, candidate, rounds, output, progress, page=not no_html)
            else:
                _only_with_run(ctx)
                folders = (
                    [baselines.find(Path(name), baseline_dir) for name in base],
                    [Path(name) for name in candidate],
                )
            runs = [baselines.runs(side) for side in folders]
            found = decide(runs[0], runs[1], tolerated, asked, allow_unlike=allow_unlike)
        notes = pipeline.tell("compare", shown.cases(found), shown.markdown(found))
        with _reader_may_leave():
            if _wants_table(found, json_to) and not (in_turn and live_json == "-"):
                click.echo(shown.table(found, *_paper()), nl=False)
        if kept:
            if found.outcome == "PASS":
                notes.append(f"kept as baseline: {baselines.save(folders[1], kept)}")
            else:
                notes.append(f"not kept as baseline {save_baseline}: that it is no regression is not certain")
        for note in notes:
            _note(note)
        sys.exit(found.exit_code)


@main.command(short_help="Measure what this machine can carry.")
@click.option("--quick", is_flag=True, help="Fewer and shorter rows: under 15 s instead of a minute.")
@click.option("--save", is_flag=True, help="Keep the limits, so that later runs on this machine warn beforehand.")
@option("--json", "json_to", metavar="-|FILE", help="Also write the figures there; - is stdout, instead of the table.")
@click.option("-q", "--quiet", is_flag=True, help="No progress on stderr.")
def calibrate(*, quick: bool, save: bool, json_to: str | None, quiet: bool) -> None:
    """Play a server whose latencies are known, at 1 to 1,024 streams, and print what one worker adds to them.

    The answer says up to how many streams, or events and requests a second, the figures of a run on this machine are
    the server's and not the client's. It is best measured while nothing else runs here.

    \b
    loadtest calibrate
    loadtest calibrate --quick --save
    loadtest calibrate --json calibration.json
    """
    with _exits():
        from loadtest import calibration
        from loadtest.calibrate import calibrate as measure
        from loadtest.progress import Progress

        _can_write(json_to)
        found = measure(Progress(sys.stderr, quiet=quiet), quick=quick)
        with _reader_may_leave():
            if _wants_table(found.document(), json_to):
                from loadtest.reports.calibration import table

                click.echo(table(found, *_paper()), nl=False)
        if save:
            click.echo(f"saved: {calibration.save(found)}", err=True)


def _played_in_turn(
    ctx: click.Context, flags: dict[str, Any], base: list[str], candidate: list[str], rounds: int,
    output: Path | None, progress: "Progress", *, page: bool,
) -> tuple[list[Path], list[Path]]:  # fmt: skip
    """The folders of both sides, played now."""
    from loadtest.result import load
    from loadtest.turns import in_turn

    if len(base) != 1 or len(candidate) != 1:
        raise click.UsageError("--run takes two URLs, that of the base and that of the candidate")
    options = _options(ctx, flags, url=base[0], source=flags.pop("source"), output=output)
    if options.wanted.metrics not in (None, "off"):
        raise click.UsageError("--metrics URL is of one server, and --run plays two: leave it out, or give off")
    folders = in_turn(options, candidate[0], rounds, progress)
    for folder in (*folders[0], *folders[1]) if page else ():
        _keep_page(load(folder), folder)
    return folders


def _only_with_run(ctx: click.Context) -> None:
    """See that nothing is asked of a run that will not be."""
    own = ("tolerance", "metrics", "allow_unlike", "baseline_dir", "save_baseline", "json_to", "junit", "markdown")
    for each in ctx.command.params:
        given = ctx.get_parameter_source(each.name or "") is click.core.ParameterSource.COMMANDLINE
        if isinstance(each, click.Option) and given and each.name not in own:
            raise click.UsageError(f"{max(each.opts, key=len)} is for --run, and the sides are folders here")


def _options(ctx: click.Context, flags: dict[str, Any], **given: Any) -> "Options":
    """What to play, by the ``flags`` of ``scenario_flags`` and ``way_flags``, all of them."""
    from loadtest.sitting import Options
    from loadtest.telemetry.sight import Wanted
    from loadtest.wire.tls import Tls

    way = {name: flags.pop(name) for name in ("transport", "proxy", "traceparent", "workers", "cluster")}
    names = ("cacert", "cert", "key", "insecure", "key_password")
    return Options(
        redact=ctx.obj,
        **_who(ctx, flags),
        run_header=not flags.pop("no_run_header"),
        confirm=_confirmed(yes=flags.pop("yes")),
        headers=tuple(_pair(text, ":", "-H", "'Name: value'") for text in flags.pop("headers")),
        labels=dict(_pair(text, "=", "--label", "key=text") for text in flags.pop("labels")),
        tls=Tls(*(flags.pop(name) for name in names)),
        rehearse=not flags.pop("no_rehearsal"),
        wanted=Wanted(flags.pop("server_metrics"), flags.pop("gpu"), flags.pop("dcgm")),
        wait_ready_s=_seconds("--wait-ready", flags.pop("wait_ready")),
        overrides=_overrides(ctx, flags),  # what is left of them is the scenario's
        command=("loadtest", *map(shlex.quote, sys.argv[1:])),
        **way,
        **given,
    )


def _who(ctx: click.Context, flags: dict[str, Any]) -> dict[str, Any]:
    """How we say who we are. A flag stands above a variable that says it in another way."""
    from loadtest.credentials import RENEWED_EVERY_S, Bearer

    found = {name: flags.pop(name) for name in ("api_key", "basic", "auth_command")}
    typed = [name for name in found if ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE]
    if typed or any(text.partition(":")[0].strip().lower() == "authorization" for text in flags["headers"]):
        found = {name: value if name in typed else None for name, value in found.items()}
    every_s = _seconds("--auth-refresh", flags.pop("auth_refresh"))
    if every_s is not None and every_s < 1:
        raise click.UsageError("--auth-refresh: more often than once a second; write for example 5m")
    command = found["auth_command"]
    if command and " " in command:
        ctx.obj.learn([command], least=command.index(" ") + 2)  # its arguments may hold a password, and no name does
    return {
        "api_key": (found["api_key"] or "").strip() or None,
        "basic": found["basic"],
        "bearer": None if command is None else Bearer(command, every_s or RENEWED_EVERY_S, ctx.obj),
    }


def _confirmed(*, yes: bool) -> Callable[[str], bool] | None:
    """Who is asked whether much may be sent; None where nobody is there."""

    @functools.cache  # of runs in turn each asks the same
    def ask(question: str) -> bool:
        click.echo(f"{question}. Go on? [y/N] ", nl=False, err=True)
        # A Ctrl-C just before a read begins is not seen until the read ends: so it begins when there is text.
        while sys.platform != "win32" and not select.select([sys.stdin], [], [], 0.1)[0]:
            pass
        return sys.stdin.readline().strip().lower() in ("y", "yes")

    if yes:
        return lambda _: True
    return ask if sys.stdin.isatty() and sys.stderr.isatty() else None


def _seconds(flag: str, text: str | None) -> float | None:
    from loadtest.duration import duration

    try:
        return None if text is None else duration(text)
    except ValueError as error:
        raise click.UsageError(f"{flag} {text}: {error}") from None


def _overrides(ctx: click.Context, flags: dict[str, Any]) -> dict[str, Any]:
    """What flags and LOADTEST_* variables say of the scenario, as text, with where it was said."""
    from loadtest.scenario.model import Override

    found = {}
    for parameter in ctx.command.params:
        name = parameter.name or ""
        value = flags.get(name)
        if value in (None, ()) or not isinstance(parameter, click.Option):
            continue
        by_flag = ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
        origin = max(parameter.opts, key=len) if by_flag else str(parameter.envvar)
        if name == "no_stream":
            found["stream"] = Override("false" if value else "true", origin)
        elif name in ("slo", "warn"):
            found[name] = Override("\n".join(value), origin)
        else:
            found[name] = Override(str(value), origin)
    loads = [name for name in ("concurrency", "rate", "trace") if name in found]
    if any(found[name].origin.startswith("-") for name in loads):
        for name in loads:  # one load, not two: the flag wins over the variable
            if not found[name].origin.startswith("-"):
                del found[name]
    return found


def _pair(text: str, separator: str, flag: str, form: str) -> tuple[str, str]:
    name, found, value = text.partition(separator)
    if not found or not name.strip() or any(sign in text for sign in "\r\n"):
        raise click.UsageError(f"{flag}: not of the form {form}")
    return name.strip(), value.strip()


def _tell(pipeline: "Pipeline", result: "Result", folder: Path) -> list[str]:
    """Write what the pipeline takes; returns the lines for the end of its log."""
    from loadtest.reports.cases import cases
    from loadtest.reports.markdown import markdown

    name = result.conditions.scenario.name
    return pipeline.tell(name, cases(result), markdown(result, str(folder)), result.started_at)


def _exports(
    csv: Path | None, parquet: Path | None, otlp: str | None, mlflow: str | None, compat: tuple[str, Path] | None,
    within: Path | None = None, kept: Literal["all", "sampled", "none"] = "all",
) -> "Exports":  # fmt: skip
    """The exports that are asked for, seen to be possible."""
    from loadtest.exports.wanted import Exports

    asked = Exports(csv, parquet, otlp, mlflow, compat[1] if compat else None)
    asked.check(within, kept)
    return asked


def _note(line: str) -> None:
    """To stderr, with its colour: the log of a pipeline is no terminal, and shows it all the same."""
    click.echo(line, err=True, color=not os.environ.get("NO_COLOR"))


@contextlib.contextmanager
def _watched(
    quiet: bool, verbose: int, json_to: str | None, live_json: str | None, prometheus: str | None
) -> Iterator["Progress"]:
    """What shows how a run goes; the terminal is as it was afterwards, whatever happens."""
    from loadtest.feeds import Exposition, JsonLines
    from loadtest.progress import Feed, Progress

    if live_json == "-" and json_to == "-":
        raise click.UsageError("--json - and --live-json - both take stdout: give one of them a file")
    feeds: list[Feed] = [] if live_json is None else [JsonLines(live_json, _note)]
    feeds += [] if prometheus is None else [Exposition(prometheus)]
    with contextlib.closing(Progress(sys.stderr, quiet=quiet, feeds=feeds, keys=True, lines=verbose > 0)) as progress:
        yield progress


def _draw(folders: Sequence[Path], to: Path | None, png: Path | None, svg: Path | None, *, page: bool) -> int:
    """Write what was asked for of one run or of several over each other, and say where on stderr; how many it was."""
    from loadtest.page import pictures, read, write

    runs = read(folders)
    if page:
        click.echo(f"page: {write(runs, to)}", err=True)
    if png is not None:
        for path in pictures(runs, png, "png"):
            click.echo(f"chart: {path}", err=True)
    if svg is not None:
        for path in pictures(runs, svg, "svg"):
            click.echo(f"chart: {path}", err=True)
    return len(runs)


def _leave(outcome: "Outcome", json_to: str | None, live_json: str | None, *, no_html: bool) -> NoReturn:
    """Print what came of it, leave its page, and exit."""
    _print(outcome.result, outcome.folder, json_to, live_json)
    if not (no_html or outcome.at_once):
        _keep_page(outcome.result, outcome.folder)
    if outcome.error is not None:
        _refuse(f"{outcome.result.warnings[-1]}{outcome.error.pointer}")
    sys.exit(outcome.result.exit_code)


def _keep_page(result: "Result", folder: Path) -> None:
    """Leave report.html beside the result. The figures are safe without it, so the run does not fail by it."""
    from loadtest.page import of, write

    try:
        write([of(result, folder)])
    except ResultError as error:
        click.echo(f"warning: there is no page: {error}", err=True)


def _print(result: "Result", folder: Path, json_to: str | None, live_json: str | None = None) -> None:
    with _reader_may_leave():
        if _wants_table(result, json_to) and live_json != "-":
            if result.capacity is None:
                from loadtest.reports.console import table
            else:
                from loadtest.reports.capacity import table

            click.echo(table(result, *_paper(), str(folder)), nl=False)


@contextlib.contextmanager
def _reader_may_leave() -> Iterator[None]:
    """Whoever reads our stdout may have enough of it; the exit code is the run's all the same.

    Raises:
        ResultError: stdout cannot be written for another reason, such as a full disk.
    """
    try:
        yield
    except OSError as error:
        # What is left to be flushed at the interpreter's end goes nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            raise ResultError(f"cannot write to stdout: {error.strerror or error}; send it elsewhere") from None


def _can_write(json_to: str | None) -> None:
    """See beforehand that --json can be obeyed: a run is too long to find out after it."""
    if json_to is None or json_to == "-":
        return
    try:
        Path(json_to).open("ab").close()
    except OSError as error:
        raise click.UsageError(f"--json {json_to}: {error.strerror}; name a file that can be written") from None


def _wants_table(figures: object, json_to: str | None) -> bool:
    """Write ``figures`` as JSON where that was asked for; tells whether stdout is still free for a table."""
    if json_to is None:
        return True
    import msgspec

    text = msgspec.json.format(msgspec.json.encode(figures), indent=2)
    if json_to == "-":
        click.echo(text)
        return False
    try:
        Path(json_to).write_bytes(text + b"\n")
    except OSError as error:
        raise click.FileError(json_to, error.strerror or str(error)) from None
    return True


def _paper() -> tuple[int, bool]:
    """The width of a table on stdout, and whether it may have colour."""
    terminal = sys.stdout.isatty()
    # shutil's, because some terminals say that they are 0 wide
    width = click.formatting.FORCED_WIDTH or (shutil.get_terminal_size().columns if terminal else 140)
    return width, terminal and not os.environ.get("NO_COLOR")


def _refuse(words: str) -> None:
    """Why not, on stderr."""
    click.echo(f"error: {_harmless(words)}", err=True)


def _harmless(text: str) -> str:
    """The text in all its lines: what a server put among them steers no terminal."""
    return "".join(sign if sign.isprintable() or sign == "\n" else " " for sign in text)


@contextlib.contextmanager
def _exits(verbose: int = 0) -> Iterator[Redactor]:
    """One clear message and the right exit code for everything that can go wrong, and a log on stderr.

    Nothing of what the redactor within has learned is shown, not even by a bug of ours.
    """
    click.get_current_context().obj = redact = Redactor()
    log = logging.StreamHandler()
    log.setFormatter(_Redacting(redact))
    level = (logging.WARNING, logging.INFO, logging.DEBUG)[min(verbose, 2)]
    logging.basicConfig(level=level, handlers=[log])
    try:
        yield redact
    except LoadtestError as error:
        _refuse(f"{redact(str(error))}{error.pointer}")
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
    except (click.ClickException, click.exceptions.Exit, click.Abort):
        raise
    except Exception:  # noqa: BLE001  # a bug of ours, told as Python does, but for the secrets
        click.echo(redact(traceback.format_exc()), err=True, nl=False)
        click.echo("error: that is a bug in loadtest; please report it", err=True)
        sys.exit(1)


class _Redacting(logging.Formatter):
    """Lines of a log, tracebacks in it and all, without secrets."""

    def __init__(self, redact: Redactor) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")
        self._redact = redact

    def format(self, record: logging.LogRecord) -> str:
        return _harmless(self._redact(super().format(record)))
