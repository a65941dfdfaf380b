"""What a user reads who has reached a login page, a firewall or a gateway instead of the endpoint."""

import json
from pathlib import Path

import pytest

from tests.conftest import Command
from tests.e2e.telling import Answer, Asked, models, telling

pytestmark = pytest.mark.e2e
HTML = (("Content-Type", "text/html"),)
LOGIN = Answer(200, b"<!doctype html><title>Sign in</title><form><input type=password></form>", HTML)
NGINX = Answer(
    502, b"<html><head><title>502 Bad Gateway</title></head><center>nginx</center></html>", (*HTML, ("Server", "nginx"))
)
SSO = Answer(302, b"", (("Location", "https://login.acme.example/sso?state=1"),))


@pytest.mark.parametrize(
    ("page", "words"),
    [
        (LOGIN, ["200 with an HTML page (title “Sign in”)", "a page to sign in at", "not the endpoint"]),
        (NGINX, ["502 with an HTML page", "nginx answered in the application's place"]),
        (SSO, ["302 redirects to https://login.acme.example/sso", "sign in there"]),
    ],
)
def test_a_page_in_the_place_of_the_list_of_models(loadtest: Command, page: Answer, words: list[str]) -> None:
    with telling(lambda _: page) as server:
        done = loadtest("run", server.url, "--endpoint", "chat", "-n", "2", "-c", "1")
    assert done.returncode == 1
    for each in words:
        assert each in done.stderr
    assert "<" not in done.stderr


@pytest.mark.parametrize("transport", ["fast", "aiohttp"])
@pytest.mark.parametrize(
    ("page", "kind", "words"),
    [
        (LOGIN, "not_a_stream", "200 with an HTML page (title “Sign in”) where an answer was expected"),
        (NGINX, "http_status", "502 Bad Gateway: an HTML page (title “502 Bad Gateway”): nginx answered"),
    ],
)
def test_a_page_in_the_place_of_an_answer(
    loadtest: Command, tmp_path: Path, page: Answer, kind: str, words: str, transport: str
) -> None:
    def answer(asked: Asked) -> Answer:
        return models() if asked.method == "GET" else page

    with telling(answer) as server:
        done = loadtest(
            "run", server.url, "--endpoint", "chat", "-n", "12", "-c", "1", "--no-rehearsal", "--transport", transport,
            "-o", "out",
        )  # fmt: skip
    assert done.returncode == 1
    assert words in " ".join(done.stderr.split()) + " ".join(done.stdout.split())
    errors = json.loads((tmp_path / "out" / "result.json").read_text("utf-8"))["levels"][0]["errors"]
    assert words in next(error["example"] for error in errors if error["kind"] == kind)
