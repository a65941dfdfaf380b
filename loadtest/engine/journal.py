"""The journal as a worker writes it; loadtest.records says what a line is."""

import errno
import os

import msgspec

from loadtest.errors import ResultError
from loadtest.records import Record


class Journal:
    """Appends records, one unbuffered write each: what was written survives a kill.

    Several workers append to one file: O_APPEND keeps their lines whole.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._encode = msgspec.json.Encoder().encode
        self._fd = self._open()

    def turn(self) -> None:
        """Go on in a new file of the same name: the one so far has got another.

        Raises:
            ResultError: it cannot be made.
        """
        fd = self._open()
        self.close()
        self._fd = fd

    def _open(self) -> int:
        try:
            return os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise self._error(error) from None

    def write(self, record: Record) -> None:
        """Append one record.

        Raises:
            ResultError: it could not be written whole.
        """
        self.append(self._encode(record) + b"\n")

    def append(self, lines: bytes) -> None:
        """Append whole lines that another journal had.

        Raises:
            ResultError: they could not be written whole.
        """
        try:
            written = os.write(self._fd, lines)
        except OSError as error:
            raise self._error(error) from None
        if written != len(lines):
            raise self._error(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))

    def close(self) -> None:
        """Close the file. Of what comes after a failure nothing may go to whatever gets the same number next."""
        os.close(self._fd)
        self._fd = -1

    def _error(self, error: OSError) -> ResultError:
        mend = "make room there or choose another folder with -o"
        return ResultError(f"cannot write {self._path}: {error.strerror}; {mend}. What was written can be loaded")
