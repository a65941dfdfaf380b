"""The folder that takes what comes of a run, and the scenario in it."""

import contextlib
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from loadtest.errors import ResultError, UsageError
from loadtest.redact import Redactor
from loadtest.scenario.model import Resolved

RESOLVED = "scenario.resolved.yaml"


@contextlib.contextmanager
def output_folder(asked: Path | None, name: str, *, resume: bool) -> Iterator[Path]:
    """A new folder for the result; taken away again if the run could not begin and left nothing in it."""
    folder = asked or _new_folder(f"{name}-{datetime.now(UTC):%Y%m%dT%H%M%SZ}")
    try:
        if not resume and folder.is_dir() and any(folder.iterdir()):
            raise UsageError(f"the output folder {folder} is not empty; name a new one with -o")
        existed = folder.is_dir()
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ResultError(f"cannot make the output folder {folder}: {error.strerror}; name another with -o") from None
    try:
        yield folder
    except BaseException:
        if not existed and not (folder / RESOLVED).exists():
            (folder / "server.log").unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # something else has come to lie in it: leave it
                folder.rmdir()
        raise


def _new_folder(name: str) -> Path:
    """A folder under results/ that is not there yet: two runs may begin within a second."""
    names = (name, *(f"{name}-{number}" for number in range(2, 100)))
    return next(folder for name in names if not (folder := Path("results") / name).exists())


def write_scenario(folder: Path, resolved: Resolved, redact: Redactor) -> None:
    """Leave the scenario that is played in the folder, without its secrets.

    Raises:
        ResultError: it cannot be written.
    """
    try:
        (folder / RESOLVED).write_text(redact(resolved.text), "utf-8")
    except OSError as error:
        raise ResultError(f"cannot write {folder / RESOLVED}: {error.strerror}; name another folder with -o") from None
