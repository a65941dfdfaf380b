"""The records of a run, one after the other: a journal may be larger than the memory."""

from collections.abc import Iterator
from pathlib import Path

import msgspec

from loadtest.errors import ResultError
from loadtest.records import JOURNAL, Record


def records(folder: Path) -> Iterator[Record]:
    """Every record in the order in which they ended; none where there is no journal.

    A last line without its end was never acknowledged and is left out.

    Raises:
        ResultError: the journal cannot be read, or a line of it is no record.
    """
    path, decode = folder / JOURNAL, msgspec.json.Decoder(Record).decode
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if line.endswith(b"\n"):
                    try:
                        yield decode(line)
                    except (msgspec.DecodeError, UnicodeDecodeError) as error:
                        raise ResultError(f"{path}:{number} is not a record ({error})") from None
    except FileNotFoundError:
        return
    except OSError as error:
        raise ResultError(f"cannot read {path}: {error.strerror}") from None
