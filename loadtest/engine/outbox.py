"""A worker's journal that somebody elsewhere collects while it is written."""

from collections.abc import Callable
from pathlib import Path

_CALLS_A_FILE = 4


class Outbox:
    """The journal at ``path``: what has been collected is dropped, so that hours do not fill the disk.

    A file that would fill several calls gets another name, and ``turn`` is to have the writer go on in a new one, some
    time later. That one's being there tells that nothing is added to the full one any more.
    """

    def __init__(self, path: Path, turn: Callable[[], None]) -> None:
        self._path = path
        self._turn = turn
        self._full = path.with_name(f"{path.name}.full")
        self._turning = False  # ``_full`` is read, not ``_path``
        self._begin = 0  # of the file that is read, in all that was ever written

    def take(self, offset: int, most: int) -> tuple[bytes, bool]:
        """Whole lines, of some ``most`` bytes, from ``offset`` on, and whether there are more.

        Whoever asks has kept all that lies before ``offset``: only that is dropped.
        """
        if self._turned and offset == (end := self._begin + self._full.stat().st_size):
            self._full.unlink()
            self._turning, self._begin = False, end
        try:
            with (self._full if self._turning else self._path).open("rb") as file:
                file.seek(offset - self._begin)
                part = file.read(most)
                whole = len(part) < most
                part += b"" if whole else file.readline()  # a line is not to be longer than what is asked for
                size = file.seek(0, 2)
        except FileNotFoundError:  # not begun, or removed
            return b"", False
        if size >= _CALLS_A_FILE * most and not self._turning:
            self._path.rename(self._full)
            self._turning = True
            self._turn()
        lines = part[: part.rfind(b"\n") + 1]
        if lines:
            return lines, not whole or self._turned
        return b"", self._turned and not part  # a line that a full disk has torn stays there

    def remove(self) -> None:
        """Remove what there is: nobody writes any more."""
        self._path.unlink(missing_ok=True)
        self._full.unlink(missing_ok=True)

    @property
    def _turned(self) -> bool:
        return self._turning and self._path.exists()
