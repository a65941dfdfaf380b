"""The server of known latencies: what it says it did is what it did, and what it was told to do.

Its timings are held to what any machine can keep: never early, and medians within generous bounds.
"""

import contextlib
import http.client
import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from servers.account import Tally
from servers.fake import Settings, _draws

MESSAGES = [{"role": "user", "content": "how long is this"}]


class Fake:
    """A running server, asked one thing at a time."""

    def __init__(self, process: "subprocess.Popen[str]", url: str) -> None:
        self.process = process
        self.port = urlsplit(url).port
        assert self.port is not None

    def ask(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        """Status and JSON of a reply."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        with contextlib.closing(connection):
            connection.request(method, path, None if body is None else json.dumps(body))
            response = connection.getresponse()
            return response.status, json.loads(response.read())

    def stream(self, path: str, **body: object) -> list[str]:
        """The data of the events of a stream."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        with contextlib.closing(connection):
            connection.request("POST", path, json.dumps({"stream": True, **body}))
            response = connection.getresponse()
            assert response.status == 200
            assert response.headers["Content-Type"] == "text/event-stream"
            return [line[6:] for line in response.read().decode().splitlines() if line]

    def truth(self) -> dict[str, Any]:
        """Its account."""
        status, truth = self.ask("GET", "/truth")
        assert status == 200
        return dict(truth)

    def dial(self) -> socket.socket:
        """A connection for bytes that no client would send."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=30)


@contextlib.contextmanager
def fake(*options: str) -> Iterator[Fake]:
    """A server in a process of its own."""
    command = [sys.executable, "-m", "servers.fake", "--port", "0", "--exit-on-stdin-close", *options]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        match = re.fullmatch(r"serving fake on (http://127\.0\.0\.1:\d+) \(.+\)\n", process.stdout.readline())
        assert match
        yield Fake(process, match[1])
        process.terminate()


@pytest.fixture(scope="module")
def quick() -> Iterator[Fake]:
    """One that answers at once."""
    with fake("--ttft-ms", "0", "--itl-ms", "0", "--tokens", "5") as server:
        yield server


def test_the_account_holds_to_what_was_asked_and_is_never_early() -> None:
    with fake("--ttft-ms", "40", "--itl-ms", "10") as server:
        for _ in range(3):
            server.stream("/v1/chat/completions", messages=MESSAGES, max_tokens=11)
        status, _ = server.ask("POST", "/v1/completions", {"prompt": "a", "max_tokens": 4})
        assert status == 200
        truth = server.truth()
    assert (truth["requests"], truth["ok"], truth["events"]) == (4, 4, 33)
    assert (truth["ttft_ms"]["n"], truth["itl_ms"]["n"], truth["late_ms"]["n"], truth["e2e_ms"]["n"]) == (3, 30, 34, 4)
    assert 40 <= truth["ttft_ms"]["p50"] < 80
    assert 5 < truth["itl_ms"]["p50"] < 20
    assert 0 <= truth["late_ms"]["p50"] < 40
    assert truth["e2e_ms"]["p50"] >= 40 + 3 * 10
    assert truth["ttft_ms"]["p50"] <= truth["ttft_ms"]["p99"] <= truth["ttft_ms"]["max"]


def test_a_chat_stream_is_role_words_reason_usage_done(quick: Fake) -> None:
    *events, done = quick.stream(
        "/v1/chat/completions", messages=MESSAGES, max_completion_tokens=20, stream_options={"include_usage": True}
    )
    assert done == "[DONE]"
    role, *words, reason, usage = map(json.loads, events)
    assert role["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert len(words) == 20
    assert all(word["choices"][0]["delta"]["content"].strip() for word in words)
    assert reason["choices"][0] == {"index": 0, "delta": {}, "logprobs": None, "finish_reason": "length"}
    assert usage["choices"] == []
    assert usage["usage"] == {"prompt_tokens": 4, "completion_tokens": 20, "total_tokens": 24}
    assert len({event["id"] for event in (role, *words, reason, usage)}) == 1
    assert {event["object"] for event in (role, *words, reason)} == {"chat.completion.chunk"}


def test_a_completion_stream_has_text_and_no_usage_unless_it_was_asked_for(quick: Fake) -> None:
    *events, done = quick.stream("/v1/completions", prompt="one two")
    assert done == "[DONE]"
    *words, reason = map(json.loads, events)
    assert len(words) == 5
    assert all(word["choices"][0]["text"] and word["choices"][0]["finish_reason"] is None for word in words)
    assert reason["choices"][0]["finish_reason"] == "stop"
    assert not any("usage" in event for event in (*words, reason))


@pytest.mark.parametrize(
    ("prompt", "tokens"), [("one two three", 3), ([1, 2, 3, 4], 4), (["one two", "three"], 3), ([[1, 2], [3]], 3)]
)
def test_a_whole_answer_counts_the_prompt_in_words_or_ids(quick: Fake, prompt: object, tokens: int) -> None:
    status, answer = quick.ask("POST", "/v1/completions", {"prompt": prompt, "max_tokens": 18})
    assert status == 200
    assert len(answer["choices"][0]["text"].split()) == 18
    assert answer["usage"] == {"prompt_tokens": tokens, "completion_tokens": 18, "total_tokens": tokens + 18}


def test_a_whole_chat_answer_takes_content_in_parts(quick: Fake) -> None:
    parts = [{"role": "user", "content": [{"type": "text", "text": "a b"}, {"type": "image_url"}]}]
    status, answer = quick.ask("POST", "/v1/chat/completions", {"messages": parts})
    assert status == 200
    assert answer["choices"][0]["message"]["content"].split()
    assert answer["usage"]["prompt_tokens"] == 2


def test_the_model_list_names_the_owner_and_no_tokenizer(quick: Fake) -> None:
    status, models = quick.ask("GET", "/v1/models")
    assert status == 200
    (card,) = models["data"]
    assert (card["id"], card["owned_by"]) == ("fake", "loadtest")
    assert "tokenizer" not in card
    assert quick.ask("GET", "/health") == (200, {"status": "ok"})


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "words"),
    [
        ("POST", "/v1/embeddings", {}, 404, "/v1/embeddings"),
        ("GET", "/v1/completions", None, 405, "takes POST"),
        ("POST", "/v1/completions", {}, 400, "prompt is missing"),
        ("POST", "/v1/chat/completions", {"prompt": "a"}, 400, "messages is missing"),
        ("POST", "/v1/completions", {"prompt": "a", "max_tokens": 0}, 400, "between 1 and 100,000"),
        ("POST", "/v1/completions", {"prompt": "a", "max_tokens": "many"}, 400, "max_tokens"),
        ("POST", "/v1/completions", [1], 400, "not a request"),
        ("POST", "/reset?after_ms=soon", None, 400, "after_ms"),
        ("POST", "/reset?later=1", None, 400, "after_ms"),
    ],
)
def test_what_cannot_be_meant_is_refused_in_openais_form(
    quick: Fake, method: str, path: str, body: object, status: int, words: str
) -> None:
    got, answer = quick.ask(method, path, body)
    assert got == status
    assert words in answer["error"]["message"]
    assert answer["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"HELLO\r\n\r\n", b"400"),
        (b"GET /health HTTP/1.0\r\n\r\n", b"400"),
        (b"POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", b"411"),
        (b"POST /v1/completions HTTP/1.1\r\nContent-Length: -1\r\n\r\n", b"400"),
        (b"POST /v1/completions HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\n", b"413"),
        (b"GET /health HTTP/1.1\r\nX: " + b"x" * 70_000, b"431"),
    ],
)
def test_bytes_that_are_no_request_get_an_answer_and_the_end(quick: Fake, sent: bytes, status: bytes) -> None:
    with quick.dial() as sock:
        sock.sendall(sent)
        answer = b""
        with contextlib.suppress(ConnectionResetError):  # it did not wait for the rest of what was too long
            while data := sock.recv(4096):
                answer += data
    assert answer.startswith(b"HTTP/1.1 " + status)


def test_requests_may_come_in_pieces_or_several_at_once(quick: Fake) -> None:
    body = b'{"prompt": "a", "max_tokens": 2}'
    request = b"POST /v1/completions HTTP/1.1\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
    last = request.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    with quick.dial() as sock:
        for piece in (request[:20], request[20:70], request[70:] + request + last[:9], last[9:]):
            sock.sendall(piece)
        answer = b""
        while data := sock.recv(4096):  # ended by the last one's Connection: close
            answer += data
    assert answer.count(b"HTTP/1.1 200 OK") == 3
    assert answer.count(b"Connection: close") == 1


def test_every_nth_request_fails_as_asked() -> None:
    with fake("--ttft-ms", "0", "--itl-ms", "0", "--error-every", "3") as server:
        statuses = [server.ask("POST", "/v1/completions", {"prompt": "a"})[0] for _ in range(7)]
        truth = server.truth()
    assert statuses == [200, 200, 503, 200, 200, 503, 200]
    assert (truth["ok"], truth["injected_errors"]) == (5, 2)


def test_beyond_its_capacity_latency_grows_by_the_service_time() -> None:
    body = b'{"prompt": "a", "max_tokens": 1}'
    request = b"POST /v1/completions HTTP/1.1\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
    with fake("--ttft-ms", "0", "--itl-ms", "0", "--capacity", "50") as server, contextlib.ExitStack() as stack:
        socks = [stack.enter_context(server.dial()) for _ in range(20)]
        for sock in socks:
            sock.sendall(request)
        for sock in socks:
            assert sock.recv(4096).startswith(b"HTTP/1.1 200")
        truth = server.truth()
        assert (
            truth["e2e_ms"]["max"] >= 200
        )  # the last of 20, of which each is served for 20 ms, were they all at once 400
        assert truth["e2e_ms"]["p50"] >= 100
        server.ask("POST", "/reset")
        server.ask("POST", "/v1/completions", {"prompt": "a", "max_tokens": 1})
        assert 20 <= server.truth()["e2e_ms"]["p50"] < truth["e2e_ms"]["max"]


def test_an_account_begins_after_the_warm_up_and_holds_whole_answers() -> None:
    with fake("--ttft-ms", "0", "--itl-ms", "30", "--tokens", "3") as server:
        server.ask("POST", "/reset?after_ms=40")
        server.stream("/v1/completions", prompt="a")  # goes on past the 40 ms, and is not of this account
        assert server.truth()["requests"] == 1
        server.stream("/v1/completions", prompt="a")
        truth = server.truth()
        assert (truth["requests"], truth["ok"], truth["events"], truth["itl_ms"]["n"]) == (1, 1, 3, 2)
        server.ask("POST", "/reset")
        truth = server.truth()
    assert (truth["requests"], truth["since_first_request_s"]) == (0, None)
    assert truth["ttft_ms"] == {"n": 0, "p50": None, "p99": None, "max": None}


def test_a_client_that_goes_away_is_counted_and_forgotten() -> None:
    body = b'{"prompt": "a", "stream": true, "max_tokens": 1000}'
    with fake("--ttft-ms", "0", "--itl-ms", "20") as server:
        with server.dial() as sock:
            sock.sendall(b"POST /v1/completions HTTP/1.1\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
            assert sock.recv(4096)
        for _ in range(1000):
            if server.truth()["aborted"]:
                break
        truth = server.truth()
    assert (truth["aborted"], truth["ok"]) == (1, 0)


def test_a_client_that_does_not_read_holds_up_nobody_else(quick: Fake) -> None:
    body = b'{"prompt": "a", "stream": true, "max_tokens": 60000}'
    with quick.dial() as sock:
        sock.sendall(
            b"POST /v1/completions HTTP/1.1\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
        )
        status, _ = quick.ask("POST", "/v1/completions", {"prompt": "a"})
        assert status == 200
        answer = b"".join(iter(lambda: sock.recv(1 << 20), b""))
    assert answer.count(b"data: {") == 60_001
    assert answer.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")


@pytest.mark.parametrize("jitter", ["exp", "lognormal"])
def test_jitter_has_mean_1_and_is_the_seeds(jitter: Any) -> None:
    draw, again, other = (_draws(Settings(jitter=jitter, seed=seed)) for seed in (1, 1, 2))
    assert draw is not None
    assert again is not None
    assert other is not None
    drawn = [draw() for _ in range(20_000)]
    assert sum(drawn) / len(drawn) == pytest.approx(1, abs=0.03)
    assert drawn == [again() for _ in range(20_000)]
    assert drawn[:9] != [other() for _ in range(9)]


def test_jitter_reaches_the_stream() -> None:
    with fake("--ttft-ms", "2", "--itl-ms", "2", "--jitter", "exp", "--seed", "7") as server:
        assert server.stream("/v1/completions", prompt="a", max_tokens=50)[-1] == "[DONE]"
        status, _ = server.ask("POST", "/v1/completions", {"prompt": "a", "max_tokens": 10})
        truth = server.truth()
    assert status == 200
    assert truth["itl_ms"]["max"] > truth["itl_ms"]["p50"]
    assert truth["settings"]["jitter"] == "exp"


def test_percentiles_are_nearest_rank() -> None:
    tally = Tally()
    for number in range(1, 201):
        tally.add(number * 1_000_000)
    assert tally.figures_ms() == {"n": 200, "p50": 100.0, "p99": 198.0, "max": 200.0}


def run(*options: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "servers.fake", *options], capture_output=True, text=True, timeout=30, check=False
    )


def test_a_taken_port_is_exit_3_with_the_mend() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = run("--port", str(port))
    assert done.returncode == 3
    assert done.stderr == (
        f"error: cannot listen on 127.0.0.1 port {port}: Address already in use; "
        "choose another --port (0 takes any free one)\n"
    )


@pytest.mark.parametrize("option", ["--ttft-ms=nan", "--itl-ms=-1", "--capacity=0", "--tokens=0", "--jitter=uniform"])
def test_a_setting_that_cannot_be_meant_is_exit_2(option: str) -> None:
    done = run(option)
    assert done.returncode == 2
    assert option.partition("=")[0] in done.stderr
    assert "Traceback" not in done.stderr


def test_it_ends_with_the_process_that_started_it_and_when_told() -> None:
    with fake() as server:
        assert server.process.stdin is not None
        server.process.stdin.close()
        assert server.process.wait(20) == 0
    with fake() as server:
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(20) == 0
