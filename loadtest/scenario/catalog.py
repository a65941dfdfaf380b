"""The scenarios that come with the tool, found by name."""

import difflib
from pathlib import Path

import loadtest
from loadtest.errors import ScenarioError
from loadtest.scenario.model import Preset


def folder(package: Path) -> Path:
    """Where the presets of the package at ``package`` lie: inside it in a wheel, beside it in a source tree."""
    inside = package / "scenarios"
    return inside if inside.is_dir() else package.parent / "scenarios"


def presets() -> list[Preset]:
    """All presets by name.

    Raises:
        ScenarioError: a preset was damaged after installation.
    """
    # yaml is imported by those who read a scenario, not by those who import its structs
    from loadtest.scenario.document import parse, read  # noqa: PLC0415

    return [
        Preset(name, str(parse(read(path, path.name), path.name).data.get("question", "")), str(path))
        for name, path in paths().items()
    ]


def find(name: str) -> Path:
    """The file of the preset called ``name``.

    Raises:
        ScenarioError: there is none; the message lists those that there are.
    """
    known = paths()
    if name in known:
        return known[name]
    if not known:
        raise ScenarioError(f"no scenario {name!r}: this installation has no presets; install loadtest again")
    close = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {close[0]!r}? The" if close else "the"
    raise ScenarioError(
        f"no scenario {name!r}: {hint} presets are {', '.join(known)}; "
        "a file of your own is named by its path (./mine.yaml)"
    )


def paths() -> dict[str, Path]:
    """The file of each preset by its name, in the names' order."""
    return {path.stem: path for path in sorted(folder(Path(loadtest.__file__).parent).glob("*.yaml"))}


def copy(name: str, destination: Path | None) -> Path:
    """Copy the preset called ``name`` to a new file, or into a folder, and return where; None is the current folder.

    Raises:
        ScenarioError: there is no such preset, something is there already, or it cannot be written.
    """
    source = find(name)
    target = destination or Path(source.name)
    if target.is_dir():
        target /= source.name
    try:
        with target.open("xb") as file:
            file.write(source.read_bytes())
    except FileExistsError:
        raise ScenarioError(f"{target} is there already, and is not overwritten; name another file") from None
    except OSError as error:
        raise ScenarioError(f"cannot write {target}: {error.strerror}; name another file") from None
    return target
