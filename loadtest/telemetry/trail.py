"""What was seen of the level that is played, written down in the run's folder as it is seen: a kill leaves it.

``telemetry.jsonl`` is JSON Lines, a line a look. The figures of levels that are over lie in the result, so it begins
anew with each level and goes with the run: it does not grow with the number of levels, nor, as looks become rarer, with
the length of one but slowly.
"""

import errno
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from loadtest.errors import ResultError
from loadtest.telemetry.watch import Seen, remember

FILE_NAME = "telemetry.jsonl"
Eye = Literal["server", "gpus", "host"]


class Look(msgspec.Struct, frozen=True, tag="look", tag_field="line"):
    """One look of an eye; ``at_ns`` is by ``perf_counter_ns``."""

    level: int
    eye: Eye
    at_ns: int
    seen: Seen


class Setting(msgspec.Struct, frozen=True, tag="level", tag_field="line", omit_defaults=True):
    """The level that the looks are of, its t0 by their clock, and, once that is so, when its last request had ended.

    ``url`` is where the server's metrics are, and ``models`` are the GPUs' by their names.
    """

    level: int
    t0_ns: int
    over_ms: float | None = None
    url: str | None = None
    models: dict[str, str] = {}


class Sighted(NamedTuple):
    """A level, and the looks at it, of each eye in their order."""

    setting: Setting
    looks: dict[Eye, list[tuple[int, Seen]]]


class Trail:
    """The file in ``folder``. ``why`` says why it is not whole, if that is so; nothing else comes of it."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE_NAME
        self.why: str | None = None

    def begin(self) -> None:
        """A level begins."""
        self._write("wb", b"")

    def add(self, line: Look | Setting) -> None:
        """Write it down, from whichever thread: one write, at the end.

        Behind a line that a full disk has cut short nothing more is written: it would make the file a damaged one.
        """
        if self.why is None:
            self._write("ab", msgspec.json.encode(line) + b"\n")

    def _write(self, mode: Literal["wb", "ab"], text: bytes) -> None:
        try:
            with self._path.open(mode, buffering=0) as file:
                why = None if file.write(text) == len(text) else os.strerror(errno.ENOSPC)
        except OSError as error:
            why = error.strerror
        if why is not None:
            self.why = f"what was seen could not be kept in {self._path}: {why}"


def forget(folder: Path) -> None:
    """All of it is in the result."""
    (folder / FILE_NAME).unlink(missing_ok=True)


def read(folder: Path) -> Sighted | None:
    """What was seen of the last level that was played in ``folder``; None if nothing was, or it never began.

    Raises:
        ResultError: it cannot be read, or is damaged.
    """
    path = folder / FILE_NAME
    try:
        lines = path.read_bytes().splitlines(keepends=True)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ResultError(f"cannot read {path}: {error.strerror}") from None
    decode = msgspec.json.Decoder(Look | Setting).decode
    try:
        found = [decode(line) for line in lines if line.endswith(b"\n")]  # the last may have been cut short
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ResultError(
            f"{path} is damaged ({error}); delete it, to do without what was seen of the server"
        ) from None
    setting = next((line for line in reversed(found) if isinstance(line, Setting)), None)
    return None if setting is None else Sighted(setting, _looks(setting.level, found))


def _looks(level: int, lines: Iterable[Look | Setting]) -> dict[Eye, list[tuple[int, Seen]]]:
    """Of a slow eye, the last look at the level before may have come in the next one."""
    looks: dict[Eye, list[tuple[int, Seen]]] = {}
    for line in lines:
        if isinstance(line, Look) and line.level == level:
            remember(looks.setdefault(line.eye, []), line.at_ns, line.seen)
    return looks
