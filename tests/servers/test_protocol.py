"""What a request may say, and what it is told when it may not."""

import json
from typing import Any

import pytest

from servers.answer import Answer
from servers.engine import Generation, Output
from servers.errors import RequestError
from servers.protocol import Kind, Request, parse
from servers.tokenizer import BYTES

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
COMPLETION = {"model": "tiny", "prompt": "hi"}


def read(kind: Kind, *, ignore_unsupported: bool = False, **changes: Any) -> Request:
    body = {**(CHAT if kind == "chat" else COMPLETION), **changes}
    return parse(kind, json.dumps(body).encode(), "tiny", 64, ignore_unsupported=ignore_unsupported)


def only(request: Request) -> Generation:
    (generation,) = request.generations
    return generation


def refused(kind: Kind, body: bytes) -> RequestError:
    with pytest.raises(RequestError) as caught:
        parse(kind, body, "tiny", 64)
    error = caught.value.body()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert "servers." not in error["message"]
    return caught.value


def test_a_plain_completion() -> None:
    request = read("completions")
    assert only(request).prompt == BYTES.encode("hi")
    assert only(request).max_tokens == 16
    assert only(request).sampler is None
    assert not request.stream


def test_a_plain_chat_may_fill_the_context() -> None:
    request = read("chat")
    assert only(request).prompt == BYTES.encode_chat([("user", "hi")])
    assert len(only(request).prompt) + only(request).max_tokens == 64


@pytest.mark.parametrize("prompt", ["hi", ["hi"], [256, 104, 105], [[256, 104, 105]]])
def test_every_form_of_one_prompt(prompt: Any) -> None:
    assert only(read("completions", prompt=prompt)).prompt == [256, 104, 105]


def test_text_parts_are_joined() -> None:
    parts = [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]
    request = read("chat", messages=[{"role": "user", "content": parts}])
    assert only(request).prompt == BYTES.encode_chat([("user", "hi")])


def test_options_arrive() -> None:
    request = read(
        "chat", max_completion_tokens=7, ignore_eos=True, stop=["a", "bc"], temperature=0.5, top_p=0.9, seed=3,
        stream=True, stream_options={"include_usage": True}, user="me", metadata={"a": "b"}, n=1,
        tools=[], logprobs=True, top_logprobs=3, top_k=5, min_p=0.1, min_tokens=2,
    )  # fmt: skip
    generation = only(request)
    assert (generation.min_tokens, generation.logprobs) == (2, 3)
    assert (generation.max_tokens, generation.ignore_eos, generation.stops) == (7, True, ("a", "bc"))
    assert generation.sampler is not None
    assert request.stream
    assert request.include_usage


def test_nulls_are_as_good_as_nothing() -> None:
    nothing = dict.fromkeys(
        (
            "max_tokens",
            "temperature",
            "top_p",
            "top_k",
            "min_p",
            "min_tokens",
            "seed",
            "stop",
            "ignore_eos",
            "stream",
            "stream_options",
            "n",
            "tools",
            "logprobs",
            "top_logprobs",
        ),
    )
    assert only(read("chat", **nothing)).max_tokens == only(read("chat")).max_tokens


def test_temperature_0_is_greedy() -> None:
    assert only(read("chat", temperature=0, seed=1)).sampler is None


@pytest.mark.parametrize(
    ("kind", "changes", "param", "text"),
    [
        ("chat", {"n": 0}, "n", "n: expected `int` >= 1"),
        ("chat", {"n": 129}, "n", "<= 128"),
        ("completions", {"prompt": ["a"] * 65, "n": 2}, "n", "65 prompts × n 2 are more than 128"),
        ("chat", {"tools": [{"type": "function"}]}, "tools", "tools is not supported"),
        ("chat", {"logprobs": 3}, "logprobs", "expected `bool | null`"),
        ("chat", {"top_logprobs": 3}, "top_logprobs", "only allowed with logprobs: true"),
        ("chat", {"logprobs": True, "top_logprobs": 21}, "top_logprobs", "<= 20"),
        ("completions", {"logprobs": 6}, "logprobs", "<= 5"),
        ("chat", {"min_tokens": 9, "max_tokens": 8}, "min_tokens", "min_tokens 9 is more than max_tokens 8"),
        ("chat", {"min_p": 1.5}, "min_p", "<= 1"),
        ("chat", {"top_k": -2}, "top_k", ">= -1"),
        ("chat", {"logit_bias": {"5": 1}}, "logit_bias", "not supported"),
        ("chat", {"response_format": {"type": "json_object"}}, "response_format", "not supported"),
        ("completions", {"echo": True}, "echo", "not supported"),
        ("completions", {"suffix": "x"}, "suffix", "not supported"),
        ("chat", {"topk": 5}, "topk", "unknown field `topk`"),
        ("chat", {"max_tokens": "5"}, "max_tokens", "max_tokens: expected `int | null`, got `str`"),
        ("chat", {"max_tokens": 0}, "max_tokens", "max_tokens: expected `int` >= 1"),
        ("chat", {"max_tokens": True}, "max_tokens", "got `bool`"),
        ("chat", {"max_tokens": 1.5}, "max_tokens", "got `float`"),
        ("chat", {"max_tokens": 5, "max_completion_tokens": 6}, "max_tokens", "not both"),
        ("chat", {"temperature": -0.1}, "temperature", ">= 0"),
        ("chat", {"temperature": 2.5}, "temperature", "<= 2"),
        ("chat", {"top_p": 0}, "top_p", "> 0"),
        ("chat", {"seed": "x"}, "seed", "expected `int | null`"),
        ("chat", {"stop": ["a"] * 5}, "stop", "at most four"),
        ("chat", {"stop": ""}, "stop", "none of them empty"),
        ("chat", {"stop": 3}, "stop", "stop: expected"),
        ("chat", {"stream": "yes"}, "stream", "stream: expected"),
        ("chat", {"stream_options": {"include_usage": True}}, "stream_options", "only allowed with stream"),
        ("chat", {"stream": True, "stream_options": {"x": 1}}, "stream_options.x", "unknown field"),
        ("chat", {"messages": []}, "messages", "must not be empty"),
        ("chat", {"messages": "hi"}, "messages", "messages: expected `array`"),
        ("chat", {"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role", "'tool'"),
        ("chat", {"messages": [{"role": ["user"], "content": "x"}]}, "messages[0].role", "not ['user']"),
        ("chat", {"messages": [{"role": "user"}]}, "messages[0].content", "missing required field `content`"),
        ("chat", {"messages": [{"role": "user", "content": None}]}, "messages[0].content", "got `null`"),
        (
            "chat",
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            "messages[0].content",
            "'image_url' is not supported",
        ),
        ("chat", {"messages": [{"role": "user", "content": "\ud800"}]}, "messages", "lone surrogate"),
        ("completions", {"prompt": ["a", 1]}, "prompt", "at least one"),
        ("completions", {"prompt": [[65], [999]]}, "prompt", "0 to 260"),
        ("completions", {"prompt": []}, "prompt", "at least one"),
        ("completions", {"prompt": [1, 999]}, "prompt", "0 to 260"),
        ("completions", {"prompt": [1, "a"]}, "prompt", "0 to 260"),
        ("completions", {"prompt": 5}, "prompt", "prompt: expected"),
        ("completions", {"prompt": "\ud800"}, "prompt", "lone surrogate"),
    ],
)
def test_refusals_name_the_field_and_what_was_expected(
    kind: Kind, changes: dict[str, Any], param: str, text: str
) -> None:
    body = {**(CHAT if kind == "chat" else COMPLETION), **changes}
    error = refused(kind, json.dumps(body).encode())
    assert error.status == 400
    assert text in str(error)
    assert error.param == param


def test_the_prompt_is_missing() -> None:
    assert refused("completions", b'{"model": "tiny"}').param == "prompt"


@pytest.mark.parametrize("body", [b"", b"{", b"nonsense", b"\xff", b'"text"', b"[1]", b'{"model": NaN}'])
def test_what_is_no_json_object(body: bytes) -> None:
    assert "JSON" in str(refused("chat", body))


def test_another_model_is_not_found() -> None:
    error = refused("chat", json.dumps({**CHAT, "model": "gpt-4"}).encode())
    assert (error.status, error.code, error.param) == (404, "model_not_found", "model")
    assert "gpt-4" in str(error)
    assert "tiny" in str(error)


def test_a_prompt_over_the_context_names_both_figures() -> None:
    error = refused("completions", json.dumps({**COMPLETION, "prompt": "x" * 60, "max_tokens": 4}).encode())
    assert error.code == "context_length_exceeded"
    assert all(figure in str(error) for figure in ("64 tokens", "prompt has 61", "max_tokens is 4", "together 65"))
    assert only(read("completions", prompt="x" * 60, max_tokens=3)).max_tokens == 3


def test_a_chat_that_leaves_no_room_for_an_answer() -> None:
    error = refused("chat", json.dumps({**CHAT, "messages": [{"role": "user", "content": "x" * 60}]}).encode())
    assert error.code == "context_length_exceeded"


@pytest.mark.parametrize("kind", ["chat", "completions"])
def test_events_are_valid_json_whatever_the_text(kind: Kind) -> None:
    request = read(kind, stream=True, stream_options={"include_usage": True})
    answer = Answer(request)
    for text in ('"', "\\", "\n", "\x00", "é", "\u2028"):
        event = json.loads(answer.piece(Output(only(request), text, None)).removeprefix(b"data: "))
        choice = event["choices"][0]
        assert (choice["delta"]["content"] if kind == "chat" else choice["text"]) == text
        assert event["usage"] is None


def test_each_prompt_has_n_answers_in_order() -> None:
    request = read("completions", prompt=["a", "bc", [256, 100]], n=2, max_tokens=3)
    assert [generation.index for generation in request.generations] == [0, 1, 2, 3, 4, 5]
    texts = ["a", "a", "bc", "bc", "d", "d"]
    assert [generation.prompt for generation in request.generations] == [BYTES.encode(text) for text in texts]
    for generation in request.generations:
        generation.produced = 3
    assert Answer(request).usage() == {"prompt_tokens": 7, "completion_tokens": 18, "total_tokens": 25}


def test_cached_tokens_are_counted_where_there_is_a_cache() -> None:
    request = read("completions", n=2)
    for generation in request.generations:
        generation.cached = 2
    assert Answer(request, show_cached=True).usage()["prompt_tokens_details"] == {"cached_tokens": 2}


IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,"}}
CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def test_what_cannot_be_done_is_left_out_and_named_where_that_is_wanted() -> None:
    request = read(
        "chat",
        ignore_unsupported=True,
        tools=[{"type": "function"}],
        tool_choice="required",
        presence_penalty=0.5,
        messages=[
            {"role": "user", "content": [{"type": "text", "text": "hi"}, IMAGE]},
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "1", "content": "42"},
        ],
    )
    assert set(request.ignored) == {
        "tools", "tool_choice", "presence_penalty", "messages[0].content", "messages[1].tool_calls", "messages[2].role",
    }  # fmt: skip
    assert only(request).prompt == BYTES.encode_chat([("user", "hi"), ("assistant", "")])


def test_a_typing_error_is_refused_even_where_the_unsupported_is_left_out() -> None:
    with pytest.raises(RequestError, match="unknown field `toolz`"):
        read("chat", ignore_unsupported=True, toolz=[])


def test_an_answer_of_this_server_can_be_sent_back_as_the_official_client_dumps_it() -> None:
    dumped = {
        "role": "assistant", "content": "yes", "refusal": None, "annotations": None, "audio": None,
        "function_call": None, "tool_calls": None,
    }  # fmt: skip
    request = read("chat", messages=[{"role": "user", "content": "hi"}, dumped])
    assert request.ignored == ()
    assert only(request).prompt == BYTES.encode_chat([("user", "hi"), ("assistant", "yes")])
