"""The tiny model in this process, and a bundled server of these tests' own, which they may reconfigure."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from served import Server, running

from servers import builder


@pytest.fixture(scope="session")
def own_server(environment: dict[str, str]) -> Iterator[Server]:
    """One server for the tests of this room: continuous, at most 4 at a time."""
    with running(environment, "--max-batch-size", "4") as server:
        yield server


@pytest.fixture
def start_server(environment: dict[str, str]) -> Callable[..., Any]:
    """Starts another server with the given options, as a context manager."""
    return lambda *options: running(environment, *options)


@pytest.fixture(scope="session")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> builder.Built:
    """The tiny preset, built into a folder of its own."""
    folder = tmp_path_factory.mktemp("tiny")
    builder.write(folder, "tiny", builder.PRESETS["tiny"], "fp32")
    return builder.read(folder)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder for this process and those it starts."""
    monkeypatch.setitem(os.environ, "XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "loadtest" / "models"
