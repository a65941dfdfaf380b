"""What keeps the server standing and its clients informed: limits, keys, ids, slow and idle clients, logs."""

import json
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import openai
import pytest
from served import Server, eventually

COMPLETION = {"model": "tiny", "prompt": "hello", "max_tokens": 12, "ignore_eos": True}
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4, "ignore_eos": True}
ENDLESS = {**COMPLETION, "max_tokens": 500, "stream": True, "n": 100}  # several seconds where one runs at a time
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,"}}
KEY = "sk-one-of-ours"
Start = Callable[..., Any]


@pytest.fixture(scope="module")
def guarded(environment: dict[str, str]) -> Iterator[Server]:
    """A server with a key, a short queue, CORS, an access log, and one place."""
    from served import running

    options = (
        "--api-key", KEY, "--queue-limit", "1", "--scheduler", "none", "--cors-origin", "https://a.example",
        "--ignore-unsupported", "--access-log", "--kv-slots", "4",
    )  # fmt: skip
    with running(environment, *options) as server:
        yield server


def authorized(server: Server, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any, bytes]:
    return server.raw(method, path, body, Authorization=f"Bearer {KEY}", **headers)


def logged(server: Server, request_id: str) -> dict[str, Any]:
    """The line of the access log of one request."""
    while line := server.process.stderr.readline():  # type: ignore[union-attr]
        entry: dict[str, Any] = json.loads(line)
        if entry["request_id"] == request_id:
            return entry
    pytest.fail("the access log has ended")


def test_a_request_id_comes_back_and_a_bad_or_missing_one_is_replaced(own_server: Server) -> None:
    status, headers, _ = own_server.raw("POST", "/v1/completions", COMPLETION, X_Request_Id="mine-1")
    assert (status, headers["x-request-id"]) == (200, "mine-1")
    _, headers, _ = own_server.raw("POST", "/v1/completions", {**COMPLETION, "stream": True}, X_Request_Id="mine-2")
    assert headers["x-request-id"] == "mine-2"
    _, headers, _ = own_server.raw("GET", "/nothing", X_Request_Id="mine-3")
    assert headers["x-request-id"] == "mine-3"
    ids = {own_server.raw("GET", "/ready", X_Request_Id=bad)[1]["x-request-id"] for bad in ("", "x" * 129, "é")}
    assert len(ids) == 3
    assert all(len(made) == 32 for made in ids)


def test_a_web_page_open_on_this_machine_cannot_reconfigure_it(own_server: Server, guarded: Server) -> None:
    wanted = {"scheduler": "none", "max_batch_size": 1}
    status, _, text = own_server.raw("POST", "/admin/batching", wanted, Origin="http://page.example")
    assert status == 403
    assert "no web page" in json.loads(text)["error"]["message"]
    page = {"Authorization": f"Bearer {KEY}", "Origin": "http://page.example"}
    assert guarded.raw("POST", "/admin/batching", wanted, **page)[0] == 200


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/v1/models", None),
        ("POST", "/v1/completions", COMPLETION),
        ("POST", "/admin/batching", {"scheduler": "none", "max_batch_size": 1}),
    ],
)
def test_a_key_is_wanted_where_one_was_set(method: str, path: str, body: Any, guarded: Server) -> None:
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": KEY}, {"Authorization": f"Basic {KEY}"}):
        status, answered, text = guarded.raw(method, path, body, **headers)
        assert status == 401
        assert answered["www-authenticate"] == "Bearer"
        assert json.loads(text)["error"]["code"] == "invalid_api_key"
        assert KEY not in text.decode()
    assert authorized(guarded, method, path, body)[0] == 200


def test_health_and_metrics_need_no_key(guarded: Server) -> None:
    assert {guarded.raw("GET", path)[0] for path in ("/health", "/ready", "/metrics", "/stats")} == {200}


def test_the_official_client_sends_its_key(guarded: Server) -> None:
    url = f"http://127.0.0.1:{guarded.port}/v1"
    with openai.OpenAI(base_url=url, api_key=KEY, max_retries=0) as client:
        assert client.models.list().data[0].id == "tiny"
        assert client.models.retrieve("tiny").id == "tiny"
        with pytest.raises(openai.NotFoundError, match="gpt-4"):
            client.models.retrieve("gpt-4")
    with openai.OpenAI(base_url=url, api_key="x", max_retries=0) as client, pytest.raises(openai.AuthenticationError):
        client.models.list()


@pytest.mark.filterwarnings("ignore")  # a library this wide has its own
def test_litellm_works_unchanged_where_it_is_installed(own_server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not in the dev extra: it and what it needs are 380 MB."""
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    litellm = pytest.importorskip("litellm")
    messages = [{"role": "user", "content": "hello"}]
    common = {"api_base": f"http://127.0.0.1:{own_server.port}/v1", "api_key": "none", "max_retries": 0}
    chat = {"model": "openai/tiny", "messages": messages, "max_tokens": 10, **common}
    whole = litellm.completion(**chat)
    chunks = list(litellm.completion(**chat, stream=True, stream_options={"include_usage": True}))
    said = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert said == whole.choices[0].message.content
    assert whole.usage.completion_tokens == 10
    two = litellm.text_completion(model="text-completion-openai/tiny", prompt="hello", max_tokens=5, n=2, **common)
    assert len(two.choices) == 2
    with pytest.raises(litellm.BadRequestError, match="tools is not supported"):
        litellm.completion(**chat, tools=[{"type": "function", "function": {"name": "f", "parameters": {}}}])
    with pytest.raises(litellm.ContextWindowExceededError):
        litellm.completion(**{**chat, "messages": [{"role": "user", "content": "x" * 900}]})


def test_a_full_queue_is_said_at_once_with_when_to_come_back(guarded: Server) -> None:
    with ExitStack() as held:
        head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\nContent-Length: "
        body = json.dumps(ENDLESS).encode()
        connection = held.enter_context(socket.create_connection(("127.0.0.1", guarded.port), timeout=30))
        connection.sendall(f"{head}{len(body)}\r\n\r\n".encode() + body)
        assert connection.recv(100).startswith(b"HTTP/1.1 200")  # alone it is let in
        status, headers, text = authorized(guarded, "POST", "/v1/completions", COMPLETION)
        assert status == 429
        assert 1 <= int(headers["retry-after"]) <= 60
        assert json.loads(text)["error"]["code"] == "queue_full"
        assert "--queue-limit is 1" in json.loads(text)["error"]["message"]
    eventually(lambda: guarded.load() == (0, 0), "the queue is still full")
    assert guarded.ask("GET", "/stats")[1]["refused"]["queue_full"] == 1
    assert authorized(guarded, "POST", "/v1/completions", COMPLETION)[0] == 200


def test_who_waits_longer_than_the_queue_timeout_gets_503(start_server: Start) -> None:
    with start_server("--scheduler", "dynamic", "--batch-timeout-ms", "60000", "--queue-timeout-ms", "20") as server:
        for stream in (False, True):
            status, headers, text = server.raw("POST", "/v1/completions", {**COMPLETION, "stream": stream})
            assert (status, headers["retry-after"]) == (503, "1")
            assert json.loads(text)["error"]["code"] == "queue_timeout"
        assert server.load() == (0, 0)
        assert server.ask("GET", "/stats")[1]["ended"] == {"expired": 2}


def test_what_is_left_out_is_named_in_a_header(guarded: Server, own_server: Server) -> None:
    content = [{"type": "text", "text": "hello"}, IMAGE]
    body = {**CHAT, "tools": [{"type": "function"}], "messages": [{"role": "user", "content": content}]}
    status, headers, _ = authorized(guarded, "POST", "/v1/chat/completions", body)
    assert (status, headers["x-ignored-fields"]) == (200, "tools, messages[0].content")
    assert "x-ignored-fields" not in authorized(guarded, "POST", "/v1/chat/completions", CHAT)[1]
    status, _, text = own_server.raw("POST", "/v1/chat/completions", body)
    assert status == 400
    assert json.loads(text)["error"]["param"] == "tools"
    del body["tools"]
    assert "reads text only" in own_server.ask("POST", "/v1/chat/completions", body)[1]["error"]["message"]


def test_web_pages_of_other_origins_are_let_in_only_where_named(guarded: Server, own_server: Server) -> None:
    asked = {"Origin": "https://a.example", "Access_Control_Request_Method": "POST"}
    status, headers, _ = guarded.raw("OPTIONS", "/v1/chat/completions", **asked)
    assert (status, headers["access-control-allow-origin"]) == (204, "https://a.example")
    assert "Authorization" in headers["access-control-allow-headers"]
    status, headers, _ = authorized(guarded, "POST", "/v1/chat/completions", CHAT, Origin="https://a.example")
    assert (status, headers["access-control-allow-origin"]) == (200, "https://a.example")
    other = guarded.raw("OPTIONS", "/v1/chat/completions", **{**asked, "Origin": "https://b.example"})[1]
    assert "access-control-allow-origin" not in other
    status, headers, _ = own_server.raw("OPTIONS", "/v1/chat/completions", **asked)
    assert status == 405
    assert not [name for name in headers if name.startswith("access-control")]


def test_the_access_log_has_a_line_of_json_for_each_request(guarded: Server) -> None:
    authorized(guarded, "POST", "/v1/completions", {**COMPLETION, "stream": True}, X_Request_Id="logged")
    entry = logged(guarded, "logged")
    assert (entry["method"], entry["path"], entry["status"]) == ("POST", "/v1/completions", 200)
    assert (entry["prompt_tokens"], entry["completion_tokens"], entry["answers"]) == (6, 12, 1)
    assert 0 <= entry["queue_ms"] <= entry["ttft_ms"] <= entry["duration_ms"]
    guarded.raw("GET", "/v1/models", X_Request_Id="refused")
    assert logged(guarded, "refused")["status"] == 401
    assert KEY not in json.dumps(entry)


def test_a_client_that_went_away_is_logged_as_such(guarded: Server) -> None:
    body = json.dumps(ENDLESS).encode()
    head = f"Authorization: Bearer {KEY}\r\nX-Request-Id: gone\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", guarded.port), timeout=30) as connection:
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n" + head.encode() + body)
        connection.recv(100)
    assert logged(guarded, "gone")["status"] == 499


@pytest.mark.parametrize("options", [(), ("-v",)])
def test_oversized_headers_and_nonsense_are_refused_without_a_traceback(
    options: tuple[str, ...], start_server: Start
) -> None:
    with start_server(*options) as server:
        for sent in (
            b"GET /health HTTP/1.1\r\nHost: x\r\nX-Long: " + b"x" * 9000 + b"\r\n\r\n",
            b"GET /" + b"x" * 9000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
            b"GET /health HTTP/1.1\r\nHost: x\r\n" + b"".join(b"X-%d: y\r\n" % i for i in range(200)) + b"\r\n",
            b"\x16\x03\x01 this is TLS\r\n\r\n",
        ):
            with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
                connection.sendall(sent)
                answer = b""
                while piece := connection.recv(65536):
                    answer += piece
                assert answer.startswith((b"HTTP/1.1 400", b"HTTP/1.0 400"))
        assert server.ask("GET", "/ready")[0] == 200
        server.process.terminate()
        server.process.wait(15)
        said = server.process.stderr.read()
        assert said.count(" INFO servers.http: Error handling request") == (3 if options else 0)
        assert ("Traceback" in said, " ERROR " in said) == (False, False)
        assert options or not said


def test_a_silent_stream_shows_signs_of_life(start_server: Start) -> None:
    options = ("--scheduler", "dynamic", "--batch-timeout-ms", "500", "--sse-keep-alive", "0.1")
    with start_server(*options) as server:
        for path, body in (("/v1/completions", COMPLETION), ("/v1/chat/completions", CHAT)):
            status, _, text = server.raw("POST", path, {**body, "stream": True})
            assert status == 200
            before, _, after = text.partition(b"data: ")
            assert before.count(b": keep-alive\n\n") >= 2
            assert b"keep-alive" not in after
            assert after.endswith(b"data: [DONE]\n\n")
            assert after.count(b'"finish_reason":"length"') == 1


def test_a_thousand_idle_connections_cost_next_to_nothing(start_server: Start) -> None:
    def resident_kib() -> int:
        with open(f"/proc/{server.process.pid}/status", encoding="ascii") as status:
            return next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))

    def ticks() -> int:
        with open(f"/proc/{server.process.pid}/stat", encoding="ascii") as stat:
            return sum(map(int, stat.read().rpartition(")")[2].split()[11:13]))

    with start_server() as server, ExitStack() as idle:
        try:
            before = resident_kib()
        except OSError:
            pytest.skip("no /proc on this machine")
        for _ in range(1000):
            connection = idle.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=30))
            connection.sendall(b"GET /ready HTTP/1.1\r\nHost: x\r\n\r\n")
            assert connection.recv(4096).startswith(b"HTTP/1.1 200")
        assert resident_kib() - before < 1000 * 64
        spent = ticks()
        connection.settimeout(0.5)
        with pytest.raises(TimeoutError):  # half a second in which nobody asks for anything
            connection.recv(1)
        assert ticks() - spent <= 5
        assert server.ask("POST", "/v1/completions", COMPLETION)[0] == 200
