"""What speaks like OpenAI as a user meets it: clouds and gateways with paths of their own, texts in batches."""

import http.server
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.conftest import Command

pytestmark = pytest.mark.e2e
KEY = "azure-key-0123456789"
CHAT = (
    b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n'
    b'data: {"choices":[{"delta":{"content":"Hi"}}]}\n\ndata: {"choices":[{"delta":{"content":"!"}}]}\n\n'
    b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\n'
    b'data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":2}}\n\ndata: [DONE]\n\n'
)
FEW = ("-n", "4", "-c", "2", "--input-tokens", "8")


class Asked(NamedTuple):
    """One request as the server saw it; ``body`` is None of a GET."""

    target: str
    headers: dict[str, str]
    body: Any


class Server(NamedTuple):
    """A server on loopback, and what it was asked; ``answer`` may be replaced."""

    url: str
    asked: list[Asked]
    answers: list[Callable[[Asked], tuple[int, Any]]]

    def posts(self) -> list[Asked]:
        """The requests that asked for an answer."""
        return [one for one in self.asked if one.body is not None]


@pytest.fixture
def server() -> Iterator[Server]:
    """A server whose answers a test decides: a status, and JSON or the bytes of a stream."""
    asked: list[Asked] = []
    answers: list[Callable[[Asked], tuple[int, Any]]] = []

    class Answering(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._answer(None)

        def do_POST(self) -> None:
            self._answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

        def _answer(self, body: Any) -> None:
            one = Asked(self.path, {name.lower(): value for name, value in self.headers.items()}, body)
            asked.append(one)
            status, reply = answers[0](one)
            data = reply if isinstance(reply, bytes) else json.dumps(reply).encode()
            self.send_response(status)
            self.send_header("Content-Type", "text/event-stream" if data is reply else "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            """Nothing: the test's output is its own."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answering) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        try:
            yield Server(f"http://127.0.0.1:{running.server_port}", asked, answers)
        finally:
            running.shutdown()
            thread.join()


def played(folder: Path) -> tuple[Any, Any]:
    """The result that a run left, and its only level."""
    result = json.loads((folder / "result.json").read_text("utf-8"))
    (level,) = result["levels"]
    return result, level


def test_an_azure_deployment_is_asked_as_azure_wants_it(loadtest: Command, tmp_path: Path, server: Server) -> None:
    server.answers.append(lambda asked: (200, CHAT) if asked.body else (404, {"error": {"message": "no list here"}}))
    url = f"{server.url}/openai/deployments/my-gpt/chat/completions?api-version=2024-10-21"
    done = loadtest("run", url, *FEW, "--api-key", KEY, "-o", "out")
    assert done.returncode == 0, done.stderr
    for asked in server.posts():
        assert asked.target == "/openai/deployments/my-gpt/chat/completions?api-version=2024-10-21"
        assert asked.headers["api-key"] == KEY
        assert "authorization" not in asked.headers
    result, level = played(tmp_path / "out")
    assert result["conditions"]["endpoint"]["model"] == "my-gpt"
    assert (level["counts"]["ok"], level["workload"]["source"]) == (4, "usage")
    files = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert KEY not in done.stdout + done.stderr + "".join(path.read_text("utf-8", "replace") for path in files)


def test_a_gateways_whole_url_is_taken_as_it_stands(loadtest: Command, tmp_path: Path, server: Server) -> None:
    models = {"data": [{"id": "gemini", "owned_by": "google"}]}
    server.answers.append(
        lambda asked: (200, CHAT if asked.body else models) if asked.target.startswith("/v1beta/openai/") else (404, {})
    )
    done = loadtest("run", f"{server.url}/v1beta/openai/chat/completions", *FEW, "--api-key", KEY, "-o", "out")
    assert done.returncode == 0, done.stderr
    assert {asked.target for asked in server.posts()} == {"/v1beta/openai/chat/completions"}
    assert {asked.headers["authorization"] for asked in server.posts()} == {f"Bearer {KEY}"}
    assert played(tmp_path / "out")[0]["conditions"]["endpoint"]["model"] == "gemini"


def test_responses_have_the_figures_of_a_chat(loadtest: Command, tmp_path: Path, replayer: Callable[[], str]) -> None:
    url = f"{replayer()}/case/api-responses-typed-events"
    done = loadtest("run", url, "--endpoint", "responses", *FEW, "-o", "out")
    assert done.returncode == 0, done.stderr
    level = played(tmp_path / "out")[1]
    assert (level["counts"]["ok"], level["finish_reasons"]) == (4, {"completed": 4})
    assert level["workload"]["output_tokens"]["observed"]["p50"] == 21
    latency = level["latency"]
    assert 70 <= latency["ttft_ms"]["ok"]["min"] < latency["ttfat_ms"]["ok"]["min"] < latency["e2e_ms"]["ok"]["min"]


def test_no_request_before_the_clock_asks_for_less_than_is_taken(
    loadtest: Command, tmp_path: Path, server: Server
) -> None:
    def answered(asked: Asked) -> tuple[int, Any]:
        if asked.body is None:
            return 200, {"data": [{"id": "m"}]}
        if asked.body["max_output_tokens"] < 16:
            return 400, {"error": {"message": "Invalid 'max_output_tokens': expected a value >= 16"}}
        words = len(asked.body["input"][0]["content"].split())
        output = [{"type": "message", "content": [{"type": "output_text", "text": "Hi"}]}]
        usage = {"input_tokens": 3 + words, "output_tokens": 1}
        return 200, {"status": "completed", "output": output, "usage": usage}

    server.answers.append(answered)
    done = loadtest("run", f"{server.url}/v1/responses", "--no-stream", *FEW, "--output-tokens", "20", "-o", "out")
    assert done.returncode == 0, done.stderr
    result, level = played(tmp_path / "out")
    assert level["counts"]["ok"] == 4
    assert "400" not in result["conditions"]["prompts_sized"]


def embedded(asked: Asked) -> tuple[int, Any]:
    """A vector for each text but one where four or more are asked for."""
    if asked.body is None:
        return 200, {"data": [{"id": "e"}]}
    texts = asked.body["input"]
    vectors = [{"index": index, "embedding": [0.5, 0.25]} for index in range(len(texts) - (len(texts) > 3))]
    return 200, {"data": vectors, "usage": {"prompt_tokens": 8 * len(texts)}}


def test_a_text_without_a_vector_is_a_failure_of_its_request(loadtest: Command, tmp_path: Path, server: Server) -> None:
    server.answers.append(embedded)
    asked = ("run", f"{server.url}/v1/embeddings", *FEW)
    done = loadtest(*asked, "--batch-size", "3", "-o", "good")
    assert done.returncode == 0, done.stderr
    level = played(tmp_path / "good")[1]
    assert (level["counts"]["ok"], level["throughput"]["output_tokens_per_s"]) == (4, None)
    assert level["throughput"]["samples_per_s"] > 0
    assert [len(one.body["input"]) for one in server.posts()][-4:] == [3] * 4
    done = loadtest(*asked, "--batch-size", "4", "-o", "short")
    level = played(tmp_path / "short")[1]
    assert (done.returncode, level["counts"]["stream_error"]) == (1, 4)
    assert [error["kind"] for error in level["errors"]] == ["check_failed"]
    assert "3" in level["errors"][0]["example"]
    assert "4" in level["errors"][0]["example"]


def test_documents_are_ranked_in_batches(loadtest: Command, tmp_path: Path, server: Server) -> None:
    def ranked(asked: Asked) -> tuple[int, Any]:
        if asked.body is None:
            return (200, {"model_id": "bge"}) if asked.target == "/info" else (404, {})
        if asked.target != "/rerank":
            return 404, {}
        return 200, [{"index": index, "score": 0.5} for index in range(len(asked.body["texts"]))]

    server.answers.append(ranked)
    done = loadtest("run", server.url, "--endpoint", "rerank", *FEW, "--batch-size", "5", "-o", "out")
    assert done.returncode == 0, done.stderr
    result, level = played(tmp_path / "out")
    assert (result["conditions"]["endpoint"]["model"], level["counts"]["ok"]) == ("bge", 4)
    body = server.posts()[-1].body
    assert len(set(body["texts"])) == 5
    assert body["texts"][0].split()[:16] == body["query"].split()


def test_the_plan_too_takes_the_kind_from_the_url(loadtest: Command) -> None:
    done = loadtest("plan", "http://staging:8000/v1/embeddings", "--batch-size", "2,4", "-n", "8", "-c", "1")
    assert done.returncode == 0, done.stderr
    assert "embeddings" in done.stdout
    assert "refuse" not in done.stdout + done.stderr
