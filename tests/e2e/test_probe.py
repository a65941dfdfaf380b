"""``loadtest probe`` as a user meets it: what works is told with its evidence, and what is printed can be used."""

import json
import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from loadtest import scenario
from loadtest.redact import MARK
from tests.conftest import Command
from tests.e2e.scripted import Answer, Scripted, answers

pytestmark = pytest.mark.e2e
SECRET = "sk-test-0123456789"


def found(done: "subprocess.CompletedProcess[str]") -> dict[str, Any]:
    """What it printed with --json -."""
    portrait: dict[str, Any] = json.loads(done.stdout)
    return portrait


def checks(portrait: dict[str, Any]) -> dict[str, tuple[bool | None, str]]:
    """What was tried, by name."""
    return {check["name"]: (check["works"], check["evidence"]) for check in portrait["checks"]}


def test_the_bundled_server_shows_what_it_can(loadtest: Command, tiny: str, tmp_path: Path) -> None:
    done = loadtest("probe", tiny, "--json", "-")
    assert done.returncode == 0, done.stderr
    portrait = found(done)
    assert (portrait["endpoint"], portrait["model"], portrait["reason"]) == ("chat", "tiny", None)
    assert portrait["how"] == "/v1/models lists models"
    seen = checks(portrait)
    works = ["model list", "health", "keep-alive", "stream", "no stream", "usage", "stream_options", "max_tokens"]
    assert [name for name in works if seen[name][0] is not True] == []
    assert seen["ignore_eos"] == (True, "taken; 16 tokens asked, 16 came")
    assert seen["clock"][0] is not False
    steps = portrait["waterfall"]
    assert [step["name"] for step in steps] == [
        "look-up", "connect", "send", "first byte", "first token", "tokens", "end",
    ]  # fmt: skip
    assert all(step["from_ms"] <= step["to_ms"] for step in steps)
    assert [step["from_ms"] for step in steps[1:]] == [step["to_ms"] for step in steps[:-1]]
    file = tmp_path / "pasted.yaml"
    file.write_text(portrait["section"], "utf-8")
    loaded = scenario.load(str(file), {}).scenario
    assert (loaded.endpoint, loaded.model, loaded.stream) == ("chat", "tiny", True)


@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl here")
def test_the_curl_command_asks_the_same(loadtest: Command, tiny: str) -> None:
    command = found(loadtest("probe", tiny, "--json", "-", "--no-stream"))["curl"]
    assert shlex.split(command)[0] == "curl"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=20, check=True)
    assert json.loads(done.stdout)["usage"]["completion_tokens"] == 16


def test_a_person_gets_a_table_bars_and_the_bytes(loadtest: Command, tiny: str) -> None:
    done = loadtest("probe", tiny, "-v")
    assert done.returncode == 0, done.stderr
    for part in ("first token", "█", "POST /v1/chat/completions HTTP/1.1", "HTTP/1.1 200 OK", 'endpoint: "chat"'):
        assert part in done.stdout
    assert "\x1b" not in done.stdout
    assert "It can be used." in done.stdout


def test_few_requests_are_sent_and_one_at_a_time(
    loadtest: Command, replayer: Callable[..., str], tmp_path: Path
) -> None:
    url = f"{replayer()}/case/req-max-completion-tokens"
    done = loadtest("probe", url, "--json", str(tmp_path / "p.json"), "-q")
    assert done.returncode == 0, done.stderr
    portrait = json.loads((tmp_path / "p.json").read_text("utf-8"))
    assert portrait["requests"] <= 10
    assert checks(portrait)["max_tokens"] == (False, "refused, and left out")
    assert checks(portrait)["max_completion_tokens"][0] is True
    assert "max_completion_tokens" in portrait["adaptations"][0]
    assert '"max_completion_tokens":16' in portrait["curl"]


def test_a_secret_is_a_variable_in_what_is_printed(loadtest: Command, scripted: Callable[[Answer], Scripted]) -> None:
    def answer(path: str, body: dict[str, Any]) -> tuple[int, Any]:
        status, said = answers(path, body)
        return status, {**said, "echo": SECRET}

    done = loadtest("probe", scripted(answer).url, "-v", LOADTEST_API_KEY=SECRET)
    assert done.returncode == 0, done.stderr
    assert SECRET not in done.stdout + done.stderr
    assert '-H "Authorization: Bearer $LOADTEST_API_KEY"' in done.stdout
    assert MARK in done.stdout


@pytest.mark.parametrize(
    ("status", "said", "words"),
    [
        (401, {"error": {"message": "no such key"}}, "no such key"),
        (200, "<html><title>Sign in</title><form></form></html>", "Sign in"),
    ],
)
def test_what_cannot_be_used_is_told_with_the_reason(
    loadtest: Command, scripted: Callable[[Answer], Scripted], status: int, said: Any, words: str
) -> None:
    def answer(path: str, body: dict[str, Any]) -> tuple[int, Any]:
        return answers(path, body) if path.endswith("/models") else (status, said)

    done = loadtest("probe", scripted(answer).url)
    assert done.returncode == 1
    assert "It cannot be used as it was called" in done.stdout
    assert words in done.stdout
    assert "Traceback" not in done.stderr


def test_an_endpoint_that_does_not_stream_is_told_apart(
    loadtest: Command, scripted: Callable[[Answer], Scripted]
) -> None:
    def answer(path: str, body: dict[str, Any]) -> tuple[int, Any]:
        if body.get("stream"):
            return 400, {"error": {"message": "this server cannot stream"}}
        return answers(path, body)

    portrait = found(loadtest("probe", scripted(answer).url, "--json", "-"))
    assert portrait["reason"] is None
    assert checks(portrait)["stream"] == (False, "400 Bad Request: this server cannot stream")
    assert checks(portrait)["no stream"][0] is True
    assert portrait["section"].endswith("stream: false\n")


def test_nobody_listens(loadtest: Command) -> None:
    done = loadtest("probe", "http://127.0.0.1:9")
    assert done.returncode == 1
    assert done.stderr.startswith("error: cannot reach http://127.0.0.1:9")


def test_other_kinds_are_found_and_probed(loadtest: Command, scripted: Callable[[Answer], Scripted]) -> None:
    def answer(path: str, body: dict[str, Any]) -> tuple[int, Any]:
        if path == "/api/tags":
            return 200, {"models": [{"name": "small:1b"}]}
        if path == "/api/chat" and not body["stream"]:
            return 200, {"message": {"content": "hi"}, "done": True, "done_reason": "stop", "eval_count": 3}
        return 404, {"error": "not found"}

    portrait = found(loadtest("probe", scripted(answer).url, "--json", "-", "--no-stream"))
    assert (portrait["endpoint"], portrait["model"]) == ("ollama", "small:1b")
    assert portrait["how"] == "/api/tags answers as such an endpoint does"
    assert portrait["reason"] is None
