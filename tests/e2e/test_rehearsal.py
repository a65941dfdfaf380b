"""The request before the clock, as a user meets it: what it finds out, what it changes, and what it leaves alone."""

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from loadtest.cli import main
from tests.conftest import Command
from tests.e2e.scripted import Answer, Scripted, answers

pytestmark = pytest.mark.e2e


def result(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "out" / "result.json").read_text("utf-8"))
    return found


RUN = ("-c", "1", "-n", "2", "--output-tokens", "5", "--no-stream", "-o", "out")


def test_its_prompt_is_none_of_the_run_s_and_its_answer_short(
    loadtest: Command, scripted: Callable[[Answer], Scripted], tmp_path: Path
) -> None:
    server = scripted(answers)
    done = loadtest("run", server.url, "-c", "1", "-n", "4", "--output-tokens", "400", "--no-stream", "-o", "out")
    assert done.returncode == 0, done.stderr
    first, *others = server.bodies
    assert first["max_tokens"] == 16
    assert first.keys() == others[-1].keys()
    assert first["messages"] not in [body["messages"] for body in others]
    assert result(tmp_path)["levels"][0]["counts"]["scheduled"] == 4
    assert len((tmp_path / "out" / "records.jsonl").read_text("utf-8").splitlines()) == 4


def test_each_model_of_an_axis_is_asked_and_a_missing_one_ends_the_run_before_it_begins(
    loadtest: Command, scripted: Callable[[Answer], Scripted], tmp_path: Path
) -> None:
    def answer(path: str, body: dict[str, Any]) -> tuple[int, Any]:
        if body.get("model") == "b":
            return 404, {"error": {"message": "there is no model b"}}
        return answers(path, body)

    server = scripted(answer)
    done = loadtest("run", server.url, "--model", "a,b", *RUN)
    assert done.returncode == 1
    assert "there is no model b" in done.stderr
    assert [body["model"] for body in server.bodies] == ["a", "b"]
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("status", "said", "words"),
    [
        (401, {"error": {"message": "no such key"}}, "no such key"),
        (404, {"detail": "Not Found"}, "404"),
        (200, "<html><title>Sign in</title><form></form></html>", "Sign in"),
        (200, {"vectors": [1, 2]}, "vectors"),
    ],
)
def test_what_every_request_would_meet_ends_the_run_at_once(
    loadtest: Command, scripted: Callable[[Answer], Scripted], status: int, said: Any, words: str, tmp_path: Path
) -> None:
    def answer(path: str, body: dict[str, Any]) -> tuple[int, Any]:
        return answers(path, body) if path.endswith("/models") else (status, said)

    server = scripted(answer)
    done = loadtest("run", server.url, *RUN)
    assert done.returncode == 1
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert len(server.bodies) == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("status", [400, 429, 500, 503])
def test_what_another_request_may_not_meet_is_a_warning(
    loadtest: Command, scripted: Callable[[Answer], Scripted], status: int, tmp_path: Path
) -> None:
    first = threading.Lock()

    def answer(path: str, body: dict[str, Any]) -> tuple[int, Any]:
        if "messages" in body and first.acquire(blocking=False):
            return status, {"error": {"message": "only this once"}}
        return answers(path, body)

    done = loadtest("run", scripted(answer).url, *RUN)
    assert done.returncode == 0, done.stderr
    warned = [text for text in result(tmp_path)["warnings"] if "a request before the clock failed" in text]
    assert len(warned) == 1
    assert "only this once" in warned[0]


def test_without_it_the_run_s_own_requests_are_the_first(
    loadtest: Command, scripted: Callable[[Answer], Scripted], tmp_path: Path
) -> None:
    server = scripted(lambda path, body: answers(path, body) if path.endswith("/models") else (503, {"detail": "busy"}))
    loadtest("run", server.url, *RUN, "--no-rehearsal", "--input-tokens", "9")
    assert not [text for text in result(tmp_path)["warnings"] if "before the clock" in text]


def test_a_target_that_does_not_get_ready_ends_the_run_with_its_last_words(
    loadtest: Command, scripted: Callable[[Answer], Scripted], tmp_path: Path
) -> None:
    def answer(path: str, body: dict[str, Any]) -> tuple[int, Any]:
        return (503, {"status": "loading weights"}) if path == "/health" else answers(path, body)

    done = loadtest("run", scripted(answer).url, *RUN, "--wait-ready", "1s")
    assert done.returncode == 1
    assert "not ready in the time of --wait-ready" in done.stderr
    assert "loading weights" in done.stderr
    assert not (tmp_path / "out").exists()


def test_nobody_has_to_listen_yet_when_the_wait_begins(loadtest: Command) -> None:
    done = loadtest("run", "http://127.0.0.1:9", "--wait-ready", "1s", "-n", "1")
    assert done.returncode == 1
    assert "not ready in the time of --wait-ready: cannot reach http://127.0.0.1:9" in done.stderr


def test_a_time_without_its_unit_is_refused(loadtest: Command) -> None:
    done = loadtest("run", "http://127.0.0.1:9", "--wait-ready", "120")
    assert done.returncode == 2
    assert "--wait-ready 120: expected a duration with its unit" in done.stderr


def test_what_a_server_says_steers_no_terminal(scripted: Callable[[Answer], Scripted], tmp_path: Path) -> None:
    server = scripted(lambda *_: (401, {"error": {"message": "no\x07 \x9b31mkey\x1b]0;mine\x07"}}))
    flags = ("--endpoint", "chat", "--model", "m", "-n", "1", "-o", str(tmp_path / "out"))
    done = CliRunner().invoke(main, ["run", server.url, *flags])
    assert done.exit_code == 1
    assert "401 Unauthorized: no" in done.stderr
    assert not {"\x07", "\x9b", "\x1b"} & {*done.output}
