"""The commands about results that are there: their tables, pages and charts, what limited them, which is worse."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from loadtest import intent, terminal
from loadtest.flags import export_flags, live_flags, option, pipeline_flags, quiet_flag, scenario_flags, way_flags
from loadtest.headings import Command

if TYPE_CHECKING:
    from loadtest.progress import Progress


@click.command(cls=Command, short_help="Print the table of an earlier run again, or draw it.")
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

    Several folders are laid over each other, in one table or, with --html, one page (report.html here if no FILE is
    named); what their conditions differ in stands first. Whether one is worse than another is what compare tells.

    \b
    loadtest report results/quickstart-20260101T120000Z
    loadtest report results/before --json - | jq .levels[0].latency.ttft_ms
    loadtest report results/before --html before.html --png charts
    loadtest report results/before results/after
    loadtest report results/before results/after --html both.html
    loadtest report results/before --csv levels.csv --parquet requests.parquet
    """
    with terminal.exits():
        from loadtest.recovery import recovered

        if len(folders) > 1 and (json_to or junit or markdown or csv or parquet or otlp or mlflow or compat):
            raise click.UsageError("--html, --png and --svg take several runs, the other flags one; or see compare")
        if html is not None or png or svg:
            if _draw(folders, Path(html) if html else None, png, svg, page=html is not None) > 1:
                return
        elif len(folders) > 1:
            from loadtest import baselines
            from loadtest.reports import overlay

            runs = baselines.results(folders)
            with terminal.reader_may_leave():
                click.echo(overlay.table(runs, *terminal.paper()), nl=False)
            return
        from loadtest.pipeline import Pipeline

        folder = folders[0]
        result = recovered(folder)
        exports = intent.exports(csv, parquet, otlp, mlflow, compat, kept=result.records)
        notes = Pipeline.of(junit, markdown, os.environ).tell_of(result, folder)
        terminal.show(result, folder, json_to)
        for note in [*exports.make(result, folder), *notes]:
            terminal.note(note)


@click.command(cls=Command, short_help="Say what limited each level of an earlier run.")
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
    with terminal.exits():
        from loadtest.explain import explain as reasons
        from loadtest.recovery import recovered

        terminal.can_write(json_to)
        result = recovered(folder)
        found = reasons(result)
        with terminal.reader_may_leave():
            if terminal.wants_table(found, json_to):
                from loadtest.reports.explain import text

                click.echo(text(found, result, *terminal.paper()), nl=False)


@click.command(cls=Command, short_help="Compare two runs, or several of each side: is it a regression?")
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
@quiet_flag
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
    with terminal.exits() as redact:
        from loadtest import baselines
        from loadtest.compare import compare as decide
        from loadtest.comparison import measure, share, sides
        from loadtest.pipeline import Pipeline
        from loadtest.reports import comparison as shown

        terminal.can_write(json_to)
        if save_baseline is not None and baseline_dir is None:
            raise click.UsageError("--save-baseline: say where with --baseline-dir")
        kept = None if baseline_dir is None or save_baseline is None else baselines.place(baseline_dir, save_baseline)
        if kept and len(named) == 1 and not in_turn:
            click.echo(baselines.save([Path(named[0])], kept))
            return
        base, candidate = sides(named)
        tolerated, asked = share(tolerance), [measure(name) for name in metrics]
        pipeline = Pipeline.of(junit, markdown, os.environ, within=output)
        with pipeline.of_failure("compare", terminal.note, redact):
            if in_turn:
                with terminal.watched(quiet, 0, json_to, live_json, prometheus) as progress:
                    folders = _played_in_turn(ctx, flags, base, candidate, rounds, output, progress, page=not no_html)
            else:
                _only_with_run(ctx)
                folders = (
                    [baselines.find(Path(name), baseline_dir) for name in base],
                    [Path(name) for name in candidate],
                )
            with baselines.runs(folders[0]) as ours, baselines.runs(folders[1]) as theirs:
                found = decide(ours, theirs, tolerated, asked, allow_unlike=allow_unlike)
        notes = pipeline.tell("compare", shown.cases(found), shown.markdown(found))
        with terminal.reader_may_leave():
            if terminal.wants_table(found, json_to) and not (in_turn and live_json == "-"):
                click.echo(shown.table(found, *terminal.paper()), nl=False)
        if kept:
            if found.outcome == "PASS":
                notes.append(f"kept as baseline: {baselines.save(folders[1], kept)}")
            else:
                notes.append(f"not kept as baseline {save_baseline}: that it is no regression is not certain")
        for note in notes:
            terminal.note(note)
        sys.exit(found.exit_code)


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


def _played_in_turn(
    ctx: click.Context, flags: dict[str, Any], base: list[str], candidate: list[str], rounds: int,
    output: Path | None, progress: "Progress", *, page: bool,
) -> tuple[list[Path], list[Path]]:  # fmt: skip
    """The folders of both sides, played now."""
    from loadtest.result import load
    from loadtest.turns import in_turn

    if len(base) != 1 or len(candidate) != 1:
        raise click.UsageError("--run takes two URLs, that of the base and that of the candidate")
    options = intent.options(ctx, flags, url=base[0], source=flags.pop("source"), output=output)
    if options.wanted.metrics not in (None, "off"):
        raise click.UsageError("--metrics URL is of one server, and --run plays two: leave it out, or give off")
    folders = in_turn(options, candidate[0], rounds, progress)
    for folder in (*folders[0], *folders[1]) if page else ():
        terminal.keep_page(load(folder), folder)
    return folders


def _only_with_run(ctx: click.Context) -> None:
    """See that nothing is asked of a run that will not be."""
    own = ("tolerance", "metrics", "allow_unlike", "baseline_dir", "save_baseline", "json_to", "junit", "markdown")
    for each in ctx.command.params:
        given = ctx.get_parameter_source(each.name or "") is click.core.ParameterSource.COMMANDLINE
        if isinstance(each, click.Option) and given and each.name not in own:
            raise click.UsageError(f"{max(each.opts, key=len)} is for --run, and the sides are folders here")
