"""A file written whole or not at all: whoever reads it meets the old content or the new, never a part."""

import contextlib
import os
import tempfile
from pathlib import Path


def write(path: Path, content: bytes) -> None:
    """Make ``content`` what ``path`` holds; it is on the disk when this returns. The folder must exist.

    Raises:
        OSError: it cannot be written. What was there still is, and nothing is left beside it.
    """
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)  # mkstemp's 0600 would hide it from the user's colleagues
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
        raise
