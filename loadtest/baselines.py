"""The runs that are compared: read from their folders, and kept as named baselines."""

import contextlib
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import yaml

from loadtest.errors import ResultError, UsageError
from loadtest.folder import RESOLVED
from loadtest.likeness import Run
from loadtest.records import files
from loadtest.recovery import recovered, requests_of
from loadtest.result import FILE_NAME
from loadtest.rows import Rows

_KEPT = (FILE_NAME, RESOLVED)


@contextlib.contextmanager
def runs(folders: Iterable[Path]) -> Iterator[list[Run]]:
    """Those that ``folders`` stand for, read again; the requests of a long level lie on disk as long as this lasts.

    Raises:
        ResultError: there is none in one of them, one is damaged, or it was not left all its requests.
        ScenarioError: one was cut short, and the scenario beside its journal is damaged.
    """
    with tempfile.TemporaryDirectory() as made:
        found = [_run(each, Path(made)) for folder in folders for each in run_folders(folder)]
        try:
            yield found
        finally:
            for requests in (requests for run in found for requests in run.records.values()):
                if isinstance(requests, Rows):
                    requests.close()


def results(folders: Iterable[Path]) -> list[Run]:
    """Those that ``folders`` stand for, read again without their requests.

    Raises:
        ResultError: there is none in one of them, or one is damaged.
        ScenarioError: one was cut short, and the scenario beside its journal is damaged.
    """
    each = [one for folder in folders for one in run_folders(folder)]
    return [Run(str(one), recovered(one), {}, values(one / RESOLVED)) for one in each]


def run_folders(folder: Path) -> list[Path]:
    """``folder`` or, if it is no run itself, the folders of runs in it.

    Raises:
        ResultError: there is none.
    """
    if (folder / FILE_NAME).exists():
        return [folder]
    found = sorted(path.parent for path in folder.glob(f"*/{FILE_NAME}"))
    if not found:
        what = "holds no result" if folder.is_dir() else "is not there"
        raise ResultError(f"{folder} {what}: name a folder that run has made (with -o, or under results/)")
    return found


def _run(folder: Path, into: Path) -> Run:
    result = recovered(folder)
    if result.records != "all":
        raise ResultError(
            f"{folder} has not all its requests (--records {result.records}), and compare goes by these: play it with "
            "--records all"
        )
    return Run(str(folder), result, requests_of(folder, into), values(folder / RESOLVED))


def values(path: Path) -> dict[str, str]:
    """The values of the scenario by their dotted keys; empty where they cannot be read, for only words are lost."""
    try:
        document = yaml.safe_load(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        return {}
    return dict(_flat(document, ""))


def _flat(value: object, key: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _flat(inner, f"{key}.{name}" if key else str(name))
    elif isinstance(value, list) and any(isinstance(inner, dict) for inner in value):
        for index, inner in enumerate(value):
            yield from _flat(inner, f"{key}.{index}")
    else:
        yield key, "none" if value is None else str(value)


# Kept under a name --------------------------------------------------------------------------------------------


def find(named: Path, directory: Path | None) -> Path:
    """The baseline of that name in ``directory``, if there is one; else the folder of that name.

    Raises:
        UsageError: there is neither, with the names that there are.
    """
    if directory is None:
        return named
    if (directory / named).is_dir():
        return directory / named
    if not named.exists():
        names = [path.name for path in sorted(directory.glob("*")) if path.is_dir() and not path.name.startswith(".")]
        there = f"it holds {', '.join(names)}" if names else "there is none yet; --save-baseline makes one"
        raise UsageError(f"no baseline {named} in {directory}: {there}")
    return named


def place(directory: Path, name: str) -> Path:
    """Where the baseline of that name is kept.

    Raises:
        UsageError: a baseline cannot be called that.
    """
    if not name or name.startswith(".") or any(sign in name for sign in "/\\"):
        raise UsageError(f"--save-baseline {name}: give a plain name, such as main")
    return directory / name


def save(folders: Sequence[Path], kept: Path) -> Path:
    """Keep the runs in ``folders`` at the ``place`` of a baseline, which is returned, instead of an earlier one.

    Raises:
        ResultError: there is no run in them, or they cannot be written.
    """
    found = [each for folder in folders for each in run_folders(folder)]
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        # Whole or not at all: until the last copy is made the earlier one stays.
        with tempfile.TemporaryDirectory(prefix=".saving-", dir=kept.parent) as made:
            new, old = Path(made) / "new", Path(made) / "old"
            for number, folder in enumerate(found, 1):
                (new / str(number)).mkdir(parents=True)
                for path in (*(folder / name for name in _KEPT), *files(folder)):
                    if path.exists():
                        shutil.copy2(path, new / str(number))
            if kept.exists():
                kept.rename(old)
            new.rename(kept)
    except OSError as error:
        raise ResultError(f"cannot keep a baseline in {kept.parent}: {error.strerror}") from None
    return kept
