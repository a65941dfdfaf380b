"""The API as its clients see it: a real server process, plain HTTP, and the official OpenAI client."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import openai
import pytest
from served import Server, eventually

COMPLETION = {"model": "tiny", "prompt": "hello", "max_tokens": 12, "ignore_eos": True}
CHAT = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "hello"}],
    "max_tokens": 12,
    "ignore_eos": True,
}
LONG = {**COMPLETION, "max_tokens": 500, "stream": True}
CONTINUOUS = {"scheduler": "continuous", "max_batch_size": 4, "timeout_ms": 50.0}


@pytest.fixture
def server(own_server: Server) -> Iterator[Server]:
    """The shared server, continuous before and after."""
    yield own_server
    assert own_server.ask("POST", "/admin/batching", CONTINUOUS) == (200, CONTINUOUS)


def complete(server: Server, **changes: Any) -> Any:
    status, answer = server.ask("POST", "/v1/completions", {**COMPLETION, **changes})
    assert status == 200, answer
    return answer


def text(server: Server, **changes: Any) -> str:
    answer: str = complete(server, **changes)["choices"][0]["text"]
    return answer


def test_it_says_where_and_how_it_serves(server: Server) -> None:
    assert server.line == f"serving tiny on http://127.0.0.1:{server.port} (cpu, fp32, continuous, max batch 4)\n"


def test_health_gives_the_conditions_of_a_measurement(server: Server) -> None:
    status, health = server.ask("GET", "/health")
    assert status == 200
    assert health["status"] == "ok"
    assert (health["model"], health["device"], health["dtype"]) == ("tiny", "cpu", "fp32")
    assert health["provider"] == "CPUExecutionProvider"
    assert len(health["model_sha256"]) == 64
    assert health["threads"] >= 1
    assert (health["kv_slots"], health["max_seq_len"]) == (4, 512)
    assert health["batching"] == CONTINUOUS
    assert {"loadtest", "onnxruntime", "python"} <= set(health["versions"])
    assert (health["running"], health["waiting"]) == (0, 0)


def test_it_is_ready(server: Server) -> None:
    assert server.ask("GET", "/ready") == (200, {"ready": True})


def test_models_say_how_prompts_are_counted(server: Server) -> None:
    status, models = server.ask("GET", "/v1/models")
    assert (status, models["object"]) == (200, "list")
    (model,) = models["data"]
    assert (model["id"], model["max_model_len"], model["tokenizer"]["kind"]) == ("tiny", 512, "bytes")
    for content in ("", "hello", "é€𝄞"):
        size = len(content.encode())
        chat = {**CHAT, "messages": [{"role": "user", "content": content}]}
        counted = server.ask("POST", "/v1/chat/completions", chat)[1]["usage"]["prompt_tokens"]
        assert counted == size + model["tokenizer"]["overhead"]["chat"]
        counted = complete(server, prompt=content)["usage"]["prompt_tokens"]
        assert counted == size + model["tokenizer"]["overhead"]["completions"]


def test_a_completion(server: Server) -> None:
    answer = complete(server)
    assert (answer["object"], answer["model"]) == ("text_completion", "tiny")
    (choice,) = answer["choices"]
    assert len(choice["text"]) == 12
    assert choice["finish_reason"] == "length"
    assert answer["usage"] == {"prompt_tokens": 6, "completion_tokens": 12, "total_tokens": 18}


def test_a_streamed_completion_is_the_same_text_one_event_a_token(server: Server) -> None:
    *events, last, done = server.stream("/v1/completions", COMPLETION)
    pieces = [event["choices"][0]["text"] for event in events]
    assert all(len(piece) == 1 for piece in pieces)
    assert "".join(pieces) == text(server)
    assert all(event["choices"][0]["finish_reason"] is None for event in events)
    assert last["choices"][0] == {"index": 0, "text": "", "logprobs": None, "finish_reason": "length"}
    assert done == "[DONE]"
    assert len({event["id"] for event in events}) == 1


def test_a_chat_streams_role_tokens_reason_usage_and_end(server: Server) -> None:
    body = {**CHAT, "stream_options": {"include_usage": True}}
    role, *events, last, usage, done = server.stream("/v1/chat/completions", body)
    assert role["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    whole = server.ask("POST", "/v1/chat/completions", CHAT)[1]
    message = whole["choices"][0]["message"]
    assert message["role"] == "assistant"
    assert "".join(event["choices"][0]["delta"]["content"] for event in events) == message["content"]
    assert all(event["object"] == "chat.completion.chunk" and event["usage"] is None for event in events)
    assert last["choices"][0]["delta"] == {}
    assert last["choices"][0]["finish_reason"] == "length"
    assert usage["choices"] == []
    assert usage["usage"] == whole["usage"]
    assert done == "[DONE]"


def test_tokens_sent_back_are_the_tokens_that_came(server: Server) -> None:
    first = text(server, max_tokens=6)
    assert text(server, prompt="hello" + first, max_tokens=6) == text(server)[6:]


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_across_tokens_ends_the_answer_before_it(stream: bool, server: Server) -> None:
    whole = text(server)
    stop = [whole[5:8], "not in it"]
    if stream:
        *events, last, _ = server.stream("/v1/completions", {**COMPLETION, "stop": stop})
        shown = "".join(event["choices"][0]["text"] for event in events)
        reason = last["choices"][0]["finish_reason"]
    else:
        (choice,) = complete(server, stop=stop)["choices"]
        shown, reason = choice["text"], choice["finish_reason"]
    assert shown == whole[: whole.find(stop[0])]
    assert reason == "stop"


def test_an_answer_that_ends_by_itself_says_stop(server: Server) -> None:
    for seed in range(40):
        answer = complete(server, ignore_eos=False, temperature=2.0, seed=seed, max_tokens=300)
        if answer["choices"][0]["finish_reason"] == "stop":
            assert answer["usage"]["completion_tokens"] == len(answer["choices"][0]["text"]) < 300
            return
    pytest.fail("no answer ended by itself")


def test_a_seed_gives_the_same_text_alone_and_among_others(server: Server) -> None:
    alone = text(server, temperature=1.0, seed=7, max_tokens=40)
    assert alone != text(server, temperature=1.0, seed=8, max_tokens=40)
    assert alone != text(server, max_tokens=40)
    with ThreadPoolExecutor(8) as pool:
        futures = [pool.submit(text, server, temperature=1.0, seed=7 if i % 2 else i, max_tokens=40) for i in range(8)]
        assert {future.result() for future in futures[1::2]} == {alone}


def test_more_requests_than_places_are_all_answered_each_its_own(server: Server) -> None:
    prompts = [f"prompt {i} " * (1 + i % 5) for i in range(12)]
    alone = [text(server, prompt=prompt) for prompt in prompts]
    with ThreadPoolExecutor(12) as pool:
        assert list(pool.map(lambda prompt: text(server, prompt=prompt), prompts)) == alone


@pytest.mark.parametrize(
    ("method", "path", "status"), [("GET", "/nothing", 404), ("GET", "/v1/completions", 405), ("POST", "/health", 405)]
)
def test_unknown_paths_and_methods_are_errors_in_json(method: str, path: str, status: int, server: Server) -> None:
    got, body = server.ask(method, path)
    assert got == status
    assert path in body["error"]["message"]


def test_refusals_are_errors_in_json(server: Server) -> None:
    assert server.ask("POST", "/v1/completions", b"{")[0] == 400
    assert server.ask("POST", "/v1/completions", {**COMPLETION, "echo": True})[0] == 400
    status, body = server.ask("POST", "/v1/chat/completions", {**CHAT, "model": "gpt-4"})
    assert (status, body["error"]["code"]) == (404, "model_not_found")
    status, body = server.ask("POST", "/v1/completions", {**COMPLETION, "prompt": "x" * 600})
    assert (status, body["error"]["code"]) == (400, "context_length_exceeded")
    status, body = server.ask("POST", "/v1/completions", b" " * (17 * 2**20))
    assert (status, body["error"]["message"]) == (413, "the body is larger than 16 MiB")


def test_a_client_that_goes_away_frees_its_slot(server: Server) -> None:
    with closing(server.begin("/v1/completions", LONG)) as connection:
        assert connection.recv(100).startswith(b"HTTP/1.1 200")
        assert server.load() == (1, 0)
    eventually(lambda: server.load() == (0, 0), "the slot is still taken")


def test_a_client_that_goes_away_while_it_waits_leaves_the_queue(server: Server) -> None:
    server.ask("POST", "/admin/batching", {"scheduler": "none", "max_batch_size": 1, "timeout_ms": 0})
    with closing(server.begin("/v1/completions", {**LONG, "stream": False})):
        eventually(lambda: server.load()[0] == 1, "the first request does not run")
        with closing(server.begin("/v1/completions", LONG)):
            eventually(lambda: server.load()[1] == 1, "the second request does not wait")
        eventually(lambda: server.load()[1] == 0, "the second request still waits")
    eventually(lambda: server.load() == (0, 0), "the slot is still taken")


def test_batching_is_exchanged_without_a_restart(server: Server) -> None:
    wanted = {"scheduler": "dynamic", "max_batch_size": 3, "timeout_ms": 5.0}
    assert server.ask("POST", "/admin/batching", wanted) == (200, wanted)
    assert server.ask("GET", "/health")[1]["batching"] == wanted
    assert len(text(server)) == 12


def test_batching_waits_until_nothing_runs(server: Server) -> None:
    with closing(server.begin("/v1/completions", LONG)) as connection:
        connection.recv(100)
        assert server.ask("POST", "/admin/batching", {**CONTINUOUS, "max_batch_size": 2})[0] == 200
        rest = b""
        while data := connection.recv(65536):
            rest += data
            if rest.endswith(b"0\r\n\r\n"):
                break
        assert b"data: [DONE]" in rest
        assert rest.count(b'"text":"') > 490


def test_static_with_too_few_clients_does_not_hang(server: Server) -> None:
    server.ask("POST", "/admin/batching", {"scheduler": "static", "max_batch_size": 4, "timeout_ms": 1})
    assert len(text(server)) == 12


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"scheduler": "fifo", "max_batch_size": 2}, "continuous, dynamic, static, none"),
        ({"scheduler": "continuous", "max_batch_size": 5}, "--kv-slots 5"),
        ({"scheduler": "continuous", "max_batch_size": 0}, "at least 1"),
        ({"scheduler": "continuous"}, "max_batch_size"),
        ({"scheduler": "continuous", "max_batch_size": 2, "wait": 1}, "unknown field `wait`"),
    ],
)
def test_impossible_batching_is_refused(body: dict[str, Any], message: str, server: Server) -> None:
    status, answer = server.ask("POST", "/admin/batching", body)
    assert status == 400
    assert message in answer["error"]["message"]


def test_the_official_client_streams(server: Server) -> None:
    with openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none", max_retries=0) as client:
        assert [model.id for model in client.models.list()] == ["tiny"]
        stream = client.chat.completions.create(
            model="tiny",
            messages=[{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hello"}],
            max_completion_tokens=10,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"ignore_eos": True},
        )
        chunks = list(stream)
        said = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        assert len(said) == 10
        assert chunks[-1].usage is not None
        assert chunks[-1].usage.completion_tokens == 10
        assert chunks[-2].choices[0].finish_reason == "length"
        whole = client.completions.create(model="tiny", prompt="hello", max_tokens=5)
        assert whole.usage is not None
        with pytest.raises(openai.NotFoundError, match="gpt-4"):
            client.chat.completions.create(model="gpt-4", messages=[{"role": "user", "content": "x"}])
        with pytest.raises(openai.BadRequestError, match="echo is not supported"):
            client.completions.create(model="tiny", prompt="hello", echo=True)


def test_several_answers_to_one_request(server: Server) -> None:
    choices = complete(server, n=3, temperature=1.0, seed=5, max_tokens=30)["choices"]
    texts = [choice["text"] for choice in choices]
    assert [choice["index"] for choice in choices] == [0, 1, 2]
    assert len(set(texts)) == 3
    assert texts[0] == text(server, temperature=1.0, seed=5, max_tokens=30)
    assert complete(server, n=3, temperature=1.0, seed=5, max_tokens=30)["choices"] == choices
    body = {**CHAT, "n": 2, "temperature": 1.0, "seed": 5, "stream_options": {"include_usage": True}}
    whole = server.ask("POST", "/v1/chat/completions", {**CHAT, "n": 2, "temperature": 1.0, "seed": 5})[1]
    *events, usage, done = server.stream("/v1/chat/completions", body)
    for choice in whole["choices"]:
        own = [event["choices"][0] for event in events if event["choices"][0]["index"] == choice["index"]]
        assert own[0]["delta"]["role"] == "assistant"
        assert "".join(piece["delta"].get("content", "") for piece in own) == choice["message"]["content"]
        assert [piece["finish_reason"] for piece in own if piece["finish_reason"]] == ["length"]
    assert usage["usage"] == whole["usage"]
    assert usage["usage"]["completion_tokens"] == 24
    assert done == "[DONE]"


def test_several_prompts_in_one_request(server: Server) -> None:
    prompts = ["hello", "good bye", "x" * 200]
    choices = complete(server, prompt=prompts)["choices"]
    assert [choice["text"] for choice in choices] == [text(server, prompt=prompt) for prompt in prompts]


def test_log_probabilities_of_a_completion(server: Server) -> None:
    answer = complete(server, logprobs=2, max_tokens=5)["choices"][0]
    thought = answer["logprobs"]
    assert "".join(thought["tokens"]) == answer["text"]
    assert thought["text_offset"] == [0, 1, 2, 3, 4]
    for token, logprob, top in zip(thought["tokens"], thought["token_logprobs"], thought["top_logprobs"], strict=True):
        assert len(top) == 2
        assert logprob == top[token] == max(top.values()) < 0  # greedy takes the best


def test_log_probabilities_of_a_chat_are_the_same_streamed(server: Server) -> None:
    body = {**CHAT, "logprobs": True, "top_logprobs": 3}
    whole = server.ask("POST", "/v1/chat/completions", body)[1]["choices"][0]
    content = whole["logprobs"]["content"]
    assert "".join(entry["token"] for entry in content) == whole["message"]["content"]
    assert all(
        len(entry["top_logprobs"]) == 3 and bytes(entry["bytes"]).decode() == entry["token"] for entry in content
    )
    events = [event["choices"][0] for event in server.stream("/v1/chat/completions", body)[:-1]]
    streamed = [entry for event in events if event["logprobs"] for entry in event["logprobs"]["content"]]
    assert streamed == content


def test_nothing_ends_an_answer_before_its_least_length(server: Server) -> None:
    whole = text(server, max_tokens=30)
    stop = whole[4]
    assert text(server, max_tokens=30, stop=stop, min_tokens=10)[:10] == whole[:10]
    for seed in range(20):
        answer = complete(server, ignore_eos=False, temperature=2.0, seed=seed, max_tokens=60, min_tokens=50)
        assert answer["usage"]["completion_tokens"] >= 50


def test_the_narrowest_choice_is_the_greedy_one(server: Server) -> None:
    greedy = text(server, max_tokens=20)
    for narrow in ({"top_k": 1}, {"min_p": 1.0}, {"top_p": 1e-9}):
        assert text(server, max_tokens=20, temperature=2.0, seed=1, **narrow) == greedy


def test_requests_share_a_kept_alive_connection(server: Server) -> None:
    with closing(server.begin("/v1/completions", COMPLETION)) as connection:
        first = connection.recv(65536)
        assert first.startswith(b"HTTP/1.1 200")
        body = json.dumps(COMPLETION).encode()
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        assert connection.recv(65536).startswith(b"HTTP/1.1 200")
