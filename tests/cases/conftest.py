"""Replay servers for the cases, each in a process of its own."""

import json
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

REPLAYER = Path(__file__).parent / "replay_server.py"


@pytest.fixture(scope="session")
def replayer() -> Iterator[Callable[[], str]]:
    """Starts a replay server and returns its URL; all are stopped at the end."""
    running: list[subprocess.Popen[str]] = []

    def start() -> str:
        command = [sys.executable, str(REPLAYER), "--port", "0", "--max-seconds", "600"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        running.append(process)
        assert process.stdout is not None
        return process.stdout.readline().strip()

    yield start
    for process in running:
        with process:
            process.terminate()


@pytest.fixture(scope="session")
def stats() -> Callable[[str, str], Any]:
    """What a replay server counted for one case, or for all by name."""

    def ask(url: str, case: str = "") -> Any:
        with urllib.request.urlopen(f"{url}/stats/{case}") as reply:
            return json.load(reply)

    return ask
