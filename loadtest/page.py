"""The page of a run, or of several over each other, and their charts as pictures: written to files."""

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Literal, NamedTuple

from loadtest import baselines, whole
from loadtest.errors import ResultError
from loadtest.folder import RESOLVED
from loadtest.host import cache_folder
from loadtest.likeness import Run
from loadtest.records import JOURNAL, lines
from loadtest.recovery import recovered
from loadtest.reports import html, html_overlay
from loadtest.reports.charts import Chart, alone
from loadtest.reports.charts_requests import Journal, journal
from loadtest.result import Result

FILE_NAME = "report.html"
# Dots of a picture for each of its pixels: sharp on slides as well.
_SCALE = 2


class Shown(NamedTuple):
    """A run as pages take it: its requests are columns, and the ``run`` has no records."""

    folder: Path
    run: Run
    requests: Mapping[int, Journal]


def of(result: Result, folder: Path) -> Shown:
    """The ``result`` in ``folder``, with its requests where the journal has all of them.

    Raises:
        ResultError: the journal is damaged.
    """
    # What was left of the requests for a sample is no picture of them.
    requests = _requests(folder) if result.records == "all" else {}
    return Shown(folder, Run(str(folder), result, {}, baselines.values(folder / RESOLVED)), requests)


def read(folders: Iterable[Path]) -> list[Shown]:
    """The runs that ``folders`` stand for, read again.

    Raises:
        ResultError: there is none in one of them, or one is damaged.
        ScenarioError: one was cut short, and the scenario beside its journal is damaged.
    """
    return [of(recovered(each), each) for folder in folders for each in baselines.run_folders(folder)]


def write(runs: Sequence[Shown], path: Path | None = None) -> Path:
    """Write the page of ``runs``, one at least, whole or not at all; return where.

    Without a ``path`` that is report.html, of one run in its folder and of several here.

    Raises:
        ResultError: it cannot be written.
    """
    if len(runs) == 1:
        (one,) = runs
        path = path or one.folder / FILE_NAME
        text = html.page(one.run.result, one.requests, _script(), str(one.folder))
    else:
        path = path or Path(FILE_NAME)
        text = html_overlay.page([run.run for run in runs], [run.requests for run in runs], _script())
    _write(path, text.encode())
    return path


def pictures(runs: Sequence[Shown], folder: Path, suffix: Literal["png", "svg"]) -> Iterator[Path]:
    """Draw each chart of the page of ``runs`` into a file of its name in ``folder``; yields each when it is written.

    Raises:
        ResultError: one cannot be written.
    """
    import vl_convert  # noqa: PLC0415 - it loads a JavaScript engine

    if len(runs) == 1:
        found = html.charts(runs[0].run.result, runs[0].requests)
    else:
        found = html_overlay.charts([run.run for run in runs], [run.requests for run in runs])
    for chart in found:
        if not isinstance(chart, Chart):
            continue
        path = folder / f"{chart.name}.{suffix}"
        if suffix == "png":
            _write(path, vl_convert.vegalite_to_png(alone(chart), scale=_SCALE))
        else:
            _write(path, vl_convert.vegalite_to_svg(alone(chart)).encode())
        yield path


def _write(path: Path, content: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        whole.write(path, content)
    except OSError as error:
        raise ResultError(f"cannot write {path}: {error.strerror}; name another place") from None


def _requests(folder: Path) -> Mapping[int, Journal]:
    return journal(lines(folder), str(folder / JOURNAL))


def _script() -> str:
    """Vega with Vega-Lite and Vega-Embed, as one script; made once, which takes a second or more, and then kept."""
    folder = cache_folder()
    kept = folder / f"vega-{version('vl-convert-python')}.js"
    with contextlib.suppress(OSError):
        return kept.read_text("utf-8")
    import vl_convert  # noqa: PLC0415 - it loads a JavaScript engine

    # Within a page nothing in a script may look like its end.
    made = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;").replace("</script", "<\\/script")
    with contextlib.suppress(OSError):  # where nothing can be kept it is made each time
        folder.mkdir(parents=True, exist_ok=True)
        whole.write(kept, made.encode())
    return made
