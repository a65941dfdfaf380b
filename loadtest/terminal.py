"""What a command shows and how it ends: its table, its log, one message for what goes wrong, the exit code."""

import contextlib
import logging
import os
import shutil
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from loadtest.errors import LoadtestError, ResultError
from loadtest.redact import Redactor

if TYPE_CHECKING:
    from loadtest.progress import Progress
    from loadtest.result import Result
    from loadtest.run import Outcome


@contextlib.contextmanager
def exits(verbose: int = 0) -> Iterator[Redactor]:
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
        refuse(f"{redact(str(error))}{error.pointer}")
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


def refuse(words: str) -> None:
    """Why not, on stderr."""
    click.echo(f"error: {_harmless(words)}", err=True)


def _harmless(text: str) -> str:
    """The text in all its lines: what a server put among them steers no terminal."""
    return "".join(sign if sign.isprintable() or sign == "\n" else " " for sign in text)


def note(line: str) -> None:
    """To stderr, with its colour: the log of a pipeline is no terminal, and shows it all the same."""
    click.echo(line, err=True, color=not os.environ.get("NO_COLOR"))


@contextlib.contextmanager
def watched(
    quiet: bool, verbose: int, json_to: str | None, live_json: str | None, prometheus: str | None
) -> Iterator["Progress"]:
    """What shows how a run goes; the terminal is as it was afterwards, whatever happens."""
    from loadtest.feeds import Exposition, JsonLines
    from loadtest.progress import Feed, Progress

    if live_json == "-" and json_to == "-":
        raise click.UsageError("--json - and --live-json - both take stdout: give one of them a file")
    feeds: list[Feed] = [] if live_json is None else [JsonLines(live_json, note)]
    feeds += [] if prometheus is None else [Exposition(prometheus)]
    with contextlib.closing(Progress(sys.stderr, quiet=quiet, feeds=feeds, keys=True, lines=verbose > 0)) as progress:
        yield progress


def leave(outcome: "Outcome", json_to: str | None, live_json: str | None, *, no_html: bool) -> None:
    """Print what came of it, leave its page, and say what went wrong."""
    show(outcome.result, outcome.folder, json_to, live_json)
    if not (no_html or outcome.at_once):
        keep_page(outcome.result, outcome.folder)
    if outcome.error is not None:
        refuse(f"{outcome.result.warnings[-1]}{outcome.error.pointer}")


def show(result: "Result", folder: Path, json_to: str | None, live_json: str | None = None) -> None:
    """Print the result in ``folder``: its table, or its JSON where that was asked for."""
    with reader_may_leave():
        if wants_table(result, json_to) and live_json != "-":
            if result.capacity is None:
                from loadtest.reports.console import table
            else:
                from loadtest.reports.capacity import table

            click.echo(table(result, *paper(), str(folder)), nl=False)


def keep_page(result: "Result", folder: Path) -> None:
    """Leave report.html beside the result. The figures are safe without it, so the run does not fail by it."""
    from loadtest.page import of, write

    try:
        write([of(result, folder)])
    except ResultError as error:
        click.echo(f"warning: there is no page: {error}", err=True)


@contextlib.contextmanager
def reader_may_leave() -> Iterator[None]:
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


def can_write(json_to: str | None) -> None:
    """See beforehand that --json can be obeyed: a run is too long to find out after it."""
    if json_to is None or json_to == "-":
        return
    try:
        Path(json_to).open("ab").close()
    except OSError as error:
        raise click.UsageError(f"--json {json_to}: {error.strerror}; name a file that can be written") from None


def wants_table(figures: object, json_to: str | None) -> bool:
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


def paper() -> tuple[int, bool]:
    """The width of a table on stdout, and whether it may have colour."""
    terminal = sys.stdout.isatty()
    # shutil's, because some terminals say that they are 0 wide
    width = click.formatting.FORCED_WIDTH or (shutil.get_terminal_size().columns if terminal else 140)
    return width, terminal and not os.environ.get("NO_COLOR")
