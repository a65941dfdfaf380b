"""What many tests need: the real command in a process of its own, and a real server to play against."""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

REPLAYER = Path(__file__).parent / "cases" / "replay_server.py"
Command = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a user who wants no page and has set nothing else, with a cache folder of the tests' own."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("LOADTEST_", "COV"))}
    own = {"XDG_CACHE_HOME": str(tmp_path_factory.mktemp("cache")), "LOADTEST_NO_HTML": "1"}
    return {**kept, **own, "PYTHONWARNINGS": "error"}


@pytest.fixture
def loadtest(environment: dict[str, str], tmp_path: Path) -> Command:
    """Runs ``loadtest`` in an empty folder and returns what it printed and its exit code."""

    def run(*arguments: str, timeout: float = 120, **variables: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, "-P", "-m", "loadtest", *arguments],  # as the installed command: not from this folder
            cwd=tmp_path, env={**environment, **variables}, capture_output=True, text=True, timeout=timeout,
            check=False,
        )  # fmt: skip

    return run


@pytest.fixture(scope="session")
def tiny(environment: dict[str, str]) -> Iterator[str]:
    """The URL of a bundled server with the tiny model, in a process of its own."""
    command = [sys.executable, "-m", "servers", "--model", "tiny", "--port", "0", "--exit-on-stdin-close"]
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        match = re.search(r"http://\S+", line)
        assert match, f"the server did not start: {line!r}"
        yield match[0]
        process.terminate()


@pytest.fixture(scope="session")
def replayer() -> Iterator[Callable[..., str]]:
    """Starts a server that replays recorded faults, with further arguments, and returns its URL; all end with the
    tests."""
    running: list[subprocess.Popen[str]] = []

    def start(*arguments: str) -> str:
        command = [sys.executable, str(REPLAYER), "--port", "0", "--max-seconds", "1800", *arguments]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        running.append(process)
        assert process.stdout is not None
        return process.stdout.readline().strip()

    yield start
    for process in running:
        with process:
            process.terminate()


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A self-signed certificate for loopback, and its key."""
    folder = tmp_path_factory.mktemp("tls")
    command = (
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"
        " -keyout key.pem -out cert.pem -subj /CN=localhost -addext subjectAltName=DNS:localhost,IP:127.0.0.1"
    )
    subprocess.run(command.split(), cwd=folder, check=True, capture_output=True)
    return folder / "cert.pem", folder / "key.pem"
