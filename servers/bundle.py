"""What the server knows of a model before it is loaded, wherever it came from."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from servers.tokenizer import Tokenizer


@dataclass(frozen=True)
class Bundle:
    """A model on disk: its graph, what to call it, and how to talk to it.

    ``dtype`` is the precision of the weights, ``max_seq_len`` the longest prompt and answer together in tokens, or None
    where the folder does not say. ``head_dim`` is the size of one key or value, None where the graph itself must say.
    ``operators`` are the operator types in the graph; empty for loadtest's own, whose layout needs no look at them.
    """

    name: str
    path: Path
    sha256: str
    dtype: str
    max_seq_len: int | None
    tokenizer: Tokenizer
    head_dim: int | None = None
    operators: frozenset[str] = frozenset()


def graph_sha256(path: Path) -> str:
    """SHA-256 of a graph file, hexadecimal, and of the file with its weights where they are kept beside it.

    Raises:
        OSError: one of them cannot be read.
    """
    digest = hashlib.sha256()
    for part in (path, external_data(path)):
        if part is path or part.exists():
            with part.open("rb") as file:
                while chunk := file.read(1 << 22):
                    digest.update(chunk)
    return digest.hexdigest()


def external_data(path: Path) -> Path:
    """Where the weights of a graph that is too large for one protobuf lie, by everybody's convention."""
    for ending in (".data", "_data"):
        beside = path.with_name(path.name + ending)
        if beside.exists():
            return beside
    return path.with_name(path.name + ".data")
