"""Bundled models: presets by shape, built with seeded random weights into the user's cache folder.

Text from random weights is noise, but the cost of producing it is that of a trained model of the same shape, which
is what a load test needs. A model is a folder with ``model.onnx`` and ``manifest.json``; the manifest's SHA-256 of the
graph is verified at every load.
"""

import contextlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from servers import pretrained
from servers.bundle import Bundle, graph_sha256
from servers.decoder import Dtype, Shape, build, random_weights
from servers.errors import StartError
from servers.tokenizer import BYTES

FORMAT = 1  # part of the cache folder's name: raise it when the graph or its weights change
PRESETS = {
    "tiny": Shape(layers=4, hidden=96, heads=6, kv_heads=2, inter=256, vocab=512, max_seq_len=512),
    "demo": Shape(layers=8, hidden=384, heads=6, kv_heads=2, inter=1024, vocab=8192, max_seq_len=2048),
}
SEED = 20_240_229
_GRAPH, MANIFEST = "model.onnx", "manifest.json"
_ONE_FILE = 2**30  # bytes of weights: a protobuf holds at most 2 GiB


@dataclass(frozen=True, kw_only=True)
class Built(Bundle):
    """A model that loadtest built, verified. ``parameters``: its weights, a matrix that is used twice counted once."""

    shape: Shape
    parameters: int


def cache_root() -> Path:
    """Where built models are kept: ``$XDG_CACHE_HOME/loadtest/models``, by default under ``~/.cache``."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    if base.startswith("~"):  # a user without a home, as in a bare container
        base = tempfile.gettempdir()
    return Path(base) / "loadtest" / "models"


def preset(name: str, dtype: Dtype) -> Built:
    """A preset from the cache, built now if it is not there, or rebuilt if it is damaged.

    Safe when several processes do it at once: one builds, the others wait for it.

    Raises:
        StartError: the cache folder cannot be written.
    """
    root = cache_root()
    folder = root / f"{name}-{dtype}-{FORMAT}"
    try:
        root.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(StartError):
            return read(folder)
        with _locked(root / f"{folder.name}.lock"):
            try:
                return read(folder)  # another process may have built it while we waited for the lock
            except StartError as fault:
                if folder.exists():
                    print(f"{fault}; building it anew", file=sys.stderr)
                    shutil.rmtree(folder)
            with fresh(folder) as made:
                write(made, name, PRESETS[name], dtype)
            return read(folder)
    except OSError as error:
        raise StartError(
            f"cannot keep the {name} model in {root}: {error.strerror or error}; "
            "mend that, or set XDG_CACHE_HOME to a folder that can be written"
        ) from error


def read(folder: Path) -> Built:
    """The model in ``folder``, verified.

    Raises:
        StartError: a file of it is missing or unreadable, or the graph is not the one that was built.
    """
    try:
        manifest = json.loads((folder / MANIFEST).read_bytes())
        shape = Shape(**manifest["shape"])
        bundle = Built(
            name=str(manifest["name"]),
            path=folder / _GRAPH,
            sha256=graph_sha256(folder / _GRAPH),
            dtype=manifest["dtype"],
            max_seq_len=shape.max_seq_len,
            tokenizer=pretrained.tokenizer(folder) if manifest.get("trained") else BYTES,
            head_dim=shape.head_dim,
            shape=shape,
            parameters=int(manifest["parameters"]),
        )
    except OSError as error:
        reason = f"{error.filename}: {error.strerror or error}"
        raise StartError(f"cannot read the model in {folder}: {reason}; build or convert it again") from error
    except (ValueError, TypeError, KeyError) as error:
        raise StartError(f"damaged model in {folder}: {MANIFEST} is not one that loadtest wrote") from error
    if bundle.sha256 != manifest.get("sha256"):
        raise StartError(f"damaged model in {folder}: {_GRAPH} is not the file that {MANIFEST} describes")
    return bundle


def write(folder: Path, name: str, shape: Shape, dtype: Dtype, seed: int = SEED) -> None:
    """Build a model of random weights into ``folder``, which must exist and be empty.

    Raises:
        OSError: the folder cannot be written.
    """
    facts = {"seed": seed, "parameters": shape.parameters}
    save(folder, build(shape, random_weights(shape, seed), dtype), name, shape, dtype, facts)


def save(folder: Path, model: Any, name: str, shape: Shape, dtype: Dtype, facts: dict[str, Any]) -> None:
    """Write a model that ``decoder.build`` made, and its manifest with further ``facts``, into ``folder``.

    Raises:
        OSError: the folder cannot be written.
    """
    import onnx

    graph = folder / _GRAPH
    if sum(len(tensor.raw_data) for tensor in model.graph.initializer) > _ONE_FILE:
        onnx.save_model(model, graph, save_as_external_data=True, location=f"{_GRAPH}.data", size_threshold=1024)
    else:
        graph.write_bytes(model.SerializeToString())
    manifest = {
        "name": name,
        "format": FORMAT,
        "dtype": dtype,
        **facts,
        "shape": asdict(shape),
        "sha256": graph_sha256(graph),
    }
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n")


@contextlib.contextmanager
def fresh(folder: Path) -> Iterator[Path]:
    """An empty folder that becomes ``folder`` once the block has ended well; so ``folder`` is always whole.

    Raises:
        StartError: ``folder`` is there and not empty.
        OSError: it cannot be made.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise StartError(f"{folder} is there already and not an empty folder; give a new one")
    folder.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        yield made
        made.chmod(0o755)
        if folder.exists():
            folder.rmdir()  # Windows renames onto nothing that exists
        made.rename(folder)
    finally:
        shutil.rmtree(made, ignore_errors=True)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the lock file at ``path``. Without fcntl (Windows) processes may build twice, and the first one wins."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
