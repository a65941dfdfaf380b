"""The shapes that servers really send, taken as what they mean."""

import json
from typing import Any

import pytest

from loadtest.endpoints.answer import Answer
from loadtest.endpoints.catalog import speak
from loadtest.endpoints.dialect import Dialect, Settings
from loadtest.endpoints.lenient import error_text
from loadtest.wire.sse import ErrorEvent
from loadtest.workload.model import Ask, Message
from tests.endpoints.cutting import RECORDED, differing, read


def taken(*events: Any) -> Answer:
    """The answer after these events, stamped 1, 2, …; a value that is not bytes is sent as JSON."""
    dialect, answer = speak(Settings("chat", "m")), Answer()
    for stamp, event in enumerate(events, 1):
        dialect.event(answer, event if isinstance(event, bytes) else json.dumps(event).encode(), stamp)
    return answer


def delta(**fields: Any) -> dict[str, Any]:
    """A chunk with one choice."""
    return {"choices": [{"index": 0, "delta": fields}]}


@pytest.mark.parametrize(
    ("fields", "texts"),
    [
        ({"content": "a"}, ["a"]),
        ({"role": "assistant", "content": ""}, []),
        ({"content": None}, []),
        ({"refusal": "no"}, ["no"]),
        ({"reasoning": "hm"}, ["hm"]),
        ({"reasoning_content": "hm", "content": "a"}, ["hm", "a"]),
        ({"content": [{"type": "text", "text": "a"}, {"type": "thinking", "thinking": "hm"}]}, ["hm", "a"]),
        ({"content": [{"type": "thinking", "thinking": [{"text": "h"}, {"text": "m"}]}]}, ["hm"]),
        ({"content": 5}, []),
        ({"tool_calls": [{"function": {"name": "f", "arguments": ""}}]}, ["f"]),
        ({"tool_calls": [{"function": {"arguments": "{}"}}, None, {"function": None}]}, ["{}"]),
        ({"function_call": {"name": "f"}}, ["f"]),
        ({"content": "\ud83d"}, ["?"]),
    ],
)
def test_generated_output_of_any_channel_is_a_token_event(fields: dict[str, Any], texts: list[str]) -> None:
    answer = taken(delta(**fields))
    assert answer.texts == texts
    assert answer.stamps == ([1] if texts else [])
    assert answer.bad_events == 0


def test_an_event_is_one_event_however_many_choices_it_has() -> None:
    answer = taken({"choices": [{"delta": {"content": "a"}}, {"delta": {"content": "b"}}]})
    assert (answer.stamps, answer.texts) == ([1], ["a", "b"])


def test_the_first_answer_is_not_the_first_thought() -> None:
    assert taken(delta(reasoning="hm"), delta(content="a")).first_answer == 2


@pytest.mark.parametrize(
    "event",
    [
        b'{"choices":[{"delta":{"content":"a"},"logprobs":NaN}]}',
        b'{"choices":[{"delta":{"content":"a\xff"}}]}',
        b'{"choices":[{"delta":{"content":"a"},"finish_reason":7}]}',
        b'{"choices":[{"delta":{"content":"a"}}, 5, null],"usage":"none"}',
        b'{"choices":[{"delta":{"content":"a","tool_calls":"x"}}],"error":null}',
        b'{"choices":[{"delta":{"content":"a"}}],"error":{}}',
    ],
)
def test_an_odd_event_still_brings_its_text(event: bytes) -> None:
    answer = taken(event)
    assert answer.texts[0].startswith("a")
    assert (answer.stamps, answer.bad_events, answer.error) == ([1], 0, None)


@pytest.mark.parametrize("event", [b"", b" ", b"null", b"5", b'"ping"', b"[]", b"{}", b'{"type":"ping"}'])
def test_a_sign_of_life_is_neither_token_nor_fault(event: bytes) -> None:
    answer = taken(event, delta(content="a"))
    assert (answer.stamps, answer.bad_events, answer.error) == ([2], 0, None)


@pytest.mark.parametrize("event", [b"{", b"hello", b'{"choices":', b"[" * 100_000])
def test_an_unreadable_event_is_counted_and_passed_over(event: bytes) -> None:
    answer = taken(event, delta(content="a"))
    assert (answer.stamps, answer.bad_events) == ([2], 1)


@pytest.mark.parametrize(
    ("event", "words"),
    [
        ({"error": {"message": "engine stopped", "code": 500}}, "engine stopped"),
        ({"error": "engine stopped", "error_type": "generation"}, "engine stopped"),
        ({"object": "error", "message": "engine stopped", "code": 400}, "engine stopped"),
        ({"type": "error", "error": {"message": "engine stopped"}}, "engine stopped"),
        ({"text": "engine stopped", "error_code": 50001}, "engine stopped"),
        ({"error": {"code": 7}}, '"code": 7'),
        (ErrorEvent(b"engine stopped"), "engine stopped"),
        (ErrorEvent(b'{"message": "engine stopped"}'), "engine stopped"),
        (ErrorEvent(b""), "(empty)"),
    ],
)
def test_an_error_in_the_stream_is_heard_in_its_own_words(event: Any, words: str) -> None:
    answer = taken(delta(content="a"), event, {"error": {"message": "a later one"}}, b"[DONE]")
    assert answer.error is not None
    assert words in answer.error
    assert answer.stamps == [1]


@pytest.mark.parametrize(
    ("usage", "counts"),
    [
        ({"prompt_tokens": 3, "completion_tokens": 4}, (3, 4, None)),
        ({"prompt_tokens": 3, "prompt_tokens_details": {"cached_tokens": 2}}, (3, None, 2)),
        ({"prompt_tokens": 3, "prompt_tokens_details": {"cached_tokens": "x"}}, (3, None, None)),
        ({"prompt_tokens": 3, "prompt_tokens_details": "x"}, (3, None, None)),
        ({"prompt_tokens": 3.0, "completion_tokens": 4.5}, (3, None, None)),
        ({"prompt_tokens": -1, "completion_tokens": 2**70}, (None, None, None)),
        ({"prompt_tokens": True, "completion_tokens": None}, (None, None, None)),
    ],
)
def test_a_count_is_a_count_or_unknown(usage: dict[str, Any], counts: tuple[int | None, ...]) -> None:
    found = taken({"choices": [], "usage": usage}).usage
    assert found is not None
    assert (found.input_tokens, found.output_tokens, found.cached_input_tokens) == counts


def test_the_last_usage_replaces_the_others() -> None:
    usage = taken(*[{"choices": [], "usage": {"completion_tokens": n}} for n in (1, 2, 3)]).usage
    assert usage is not None
    assert usage.output_tokens == 3


def test_what_follows_done_is_ignored() -> None:
    assert taken(b"[DONE]", delta(content="a"), b"junk").stamps == []


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"error":{"message":"m"}}', "m"),
        (b'{"error":"m"}', "m"),
        (b'{"message":"m"}', "m"),
        (b'{"detail":"m"}', "m"),
        (b'{"detail":[{"loc":["body"],"msg":"m"}]}', '[{"loc": ["body"], "msg": "m"}]'),
        (b'{"error":{"message":"\\ud83d"}}', "?"),
        (b"[]", None),
        (b"plain", None),
    ],
)
def test_an_error_body_of_any_shape_gives_its_words(body: bytes, words: str | None) -> None:
    assert error_text(body) == words


@pytest.mark.parametrize(
    ("body", "words"),
    [(b"nope", "not JSON: nope"), (b"[1]", "not a completion"), (b'{"object":"list"}', "not a completion")],
)
def test_a_body_that_is_no_completion_says_what_it_is(body: bytes, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        speak(Settings("chat", "m", stream=False)).whole(Answer(), body)


@pytest.mark.parametrize(
    "choice",
    [
        {"message": {"content": "a"}, "finish_reason": "stop"},
        {"text": "a", "finish_reason": "stop"},
        {"message": {"content": [{"type": "text", "text": "a"}]}, "finish_reason": "stop"},
        {"delta": {"content": "a"}, "finish_reason": "stop"},
    ],
)
def test_a_whole_answer_has_text_and_no_token_events(choice: dict[str, Any]) -> None:
    answer = Answer()
    speak(Settings("chat", "m", stream=False)).whole(answer, json.dumps({"choices": [choice]}).encode())
    assert (answer.texts, answer.stamps, answer.first_answer, answer.finish_reason) == (["a"], [], 0, "stop")
    assert answer.ended


HELLO = Ask((Message("user", "p"),), 5)


def body(dialect: Dialect, ask: Ask) -> Any:
    return json.loads(dialect.body(ask))


def test_a_body_asks_for_usage_only_in_a_stream() -> None:
    streamed = body(speak(Settings("chat", "m")), HELLO)
    whole = body(speak(Settings("completions", "m", stream=False, owner="vllm")), HELLO)
    assert streamed["stream_options"] == {"include_usage": True}
    assert streamed["messages"] == [{"role": "user", "content": "p"}]
    assert "stream_options" not in whole
    assert (whole["prompt"], whole["max_tokens"], whole["ignore_eos"], whole["model"]) == ("p", 5, True, "m")


def test_messages_keep_their_roles_and_are_paragraphs_where_there_are_none() -> None:
    ask = Ask((Message("system", "be brief"), Message("user", "hello")), 5)
    assert body(speak(Settings("chat", "m")), ask)["messages"] == [
        {"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"},
    ]  # fmt: skip
    assert body(speak(Settings("completions", "m")), ask)["prompt"] == "be brief\n\nhello"


def test_pictures_go_with_the_last_message() -> None:
    ask = Ask((Message("system", "s"), Message("user", "what is it?")), 5, images=("data:a", "data:b"))
    assert body(speak(Settings("chat", "m")), ask)["messages"] == [
        {"role": "system", "content": "s"},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "what is it?"},
                {"type": "image_url", "image_url": {"url": "data:a"}},
                {"type": "image_url", "image_url": {"url": "data:b"}},
            ],
        },
    ]


def test_the_users_keys_stand_above_ours_but_not_above_what_is_asked() -> None:
    keys = {"temperature": 0.7, "tools": [{"type": "function"}], "max_tokens": 9, "stream": False, "model": "x"}
    ask = Ask((Message("user", "p"),), 5, model="adapter", body=json.dumps({**keys, "messages": []}))
    found = body(speak(Settings("chat", "m", owner="vllm")), ask)
    assert (found["temperature"], found["tools"], found["max_tokens"]) == (0.7, keys["tools"], 9)
    assert (found["stream"], found["model"], found["messages"]) == (True, "adapter", [{"role": "user", "content": "p"}])
    assert found["ignore_eos"] is True
    assert body(speak(Settings("chat", "m")), Ask(ask.messages, 5, body="{}"))["model"] == "m"


def test_what_was_said_leaves_the_reasoning_out() -> None:
    answer = taken(delta(reasoning="hm"), delta(content="a"), delta(reasoning="so", content="b"), delta(content="c"))
    assert answer.said == "abc"
    assert taken(delta(content="a"), delta(content="b")).said == "ab"


SENT = speak(Settings("chat", "m", owner="vllm"))  # with all that can be left out


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("Unsupported parameter: 'max_tokens' is not supported. Use 'max_completion_tokens' instead.", 1),
        ("this model has no max_tokens; send max_completion_tokens", 1),
        ("`max_tokens` is deprecated in favour of `max_completion_tokens`", 1),
        ("stream_options is not a known field", 0),
        ("Unrecognized request argument supplied: stream_options", 0),
        ("property 'stream_options' is unsupported, did you mean 'stream'?", 0),
        ("Unknown parameter: 'stream_options'. Known: messages, max_tokens, temperature", 0),
        ('[{"type": "extra_forbidden", "loc": ["body", "stream_options"], "msg": "Extra inputs"}]', 0),
        ("1 validation error: body -> stream_options extra fields not permitted (type=value_error.extra)", 0),
        ("Stream option include_usage isn't supported by this provider", 0),
        ("Unsupported value: 'temperature' does not support 0. Only the default (1) value is supported.", 2),
        ("litellm.UnsupportedParamsError: openai does not support parameters: ['temperature'], for model=o1", 2),
        ("invalid temperature: only 1 is allowed for this model", 2),
        ("max_tokens is too large: 5000. This model supports at most 4096 completion tokens", None),
        ("'max_tokens' or 'max_completion_tokens' is too large: 5000. The maximum context length is 2048 tokens", None),
        ("max_tokens must be at least 1, got 0", None),
        ("[{'type': 'less_than_equal', 'loc': ('body', 'max_tokens'), 'msg': 'Input should be less than 100'}]", None),
        ("This model does not support images", None),
        ("Unrecognized request argument supplied: my_max_tokens", None),
        ("", None),
    ],
)  # fmt: skip
def test_a_refusal_names_the_field_that_can_be_asked_otherwise(words: str, name: int | None) -> None:
    names = ("stream_options", "max_tokens \N{RIGHTWARDS ARROW} max_completion_tokens", "temperature")
    assert SENT.adaptation(words) == (None if name is None else names[name])


def test_only_what_was_sent_can_be_left_out() -> None:
    refused = "'{}' is not supported"
    plain = speak(Settings("chat", "m", stream=False))
    assert plain.adaptation(refused.format("stream_options")) is None
    assert plain.adaptation(refused.format("temperature")) is None
    renamed = SENT.adaptation(refused.format("max_tokens"))
    assert renamed is not None
    assert speak(Settings("chat", "m", left_out=(renamed,))).adaptation(refused.format("max_tokens")) is None


def test_what_is_left_out_is_not_sent_again() -> None:
    assert {"stream_options", "max_tokens", "temperature"} <= body(SENT, HELLO).keys()
    left_out = [
        SENT.adaptation(f"'{field}' is not supported") for field in ("stream_options", "max_tokens", "temperature")
    ]
    found = body(speak(Settings("chat", "m", owner="vllm", left_out=tuple(filter(None, left_out)))), HELLO)
    assert found == {
        "model": "m", "stream": True, "ignore_eos": True, "messages": [{"role": "user", "content": "p"}],
        "max_completion_tokens": 5,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("keys", "asked"),
    [
        ({"max_completion_tokens": 9}, {"max_completion_tokens": 9}),
        ({"max_tokens": 9}, {"max_tokens": 9}),
        ({"min_tokens": 5}, {"max_tokens": 5, "min_tokens": 5}),
    ],
)
def test_a_length_is_asked_for_once(keys: dict[str, int], asked: dict[str, int]) -> None:
    found = body(speak(Settings("chat", "m")), Ask(HELLO.messages, 5, body=json.dumps(keys)))
    assert {key: value for key, value in found.items() if "_tokens" in key} == asked


def test_usage_is_asked_for_beside_the_users_own_options_of_a_stream() -> None:
    ask = Ask(HELLO.messages, 5, body='{"stream_options": {"continuous_usage_stats": true}}')
    both = {"include_usage": True, "continuous_usage_stats": True}
    assert body(speak(Settings("chat", "m")), ask)["stream_options"] == both
    assert "stream_options" not in body(speak(Settings("chat", "m", stream=False)), ask)
    assert (
        body(speak(Settings("chat", "m")), Ask(HELLO.messages, 5, body='{"stream_options": null}'))["stream_options"]
        is None
    )


@pytest.mark.parametrize(
    ("case", "kind"), [("req-stream-options-400", "stream_options"), ("req-max-completion-tokens", "max")]
)
def test_the_words_of_a_recorded_refusal_are_understood(case: str, kind: str) -> None:
    reply = (RECORDED / case / "reject.bin").read_bytes()
    words = SENT.error_text(reply.partition(b"\r\n\r\n")[2])
    assert words is not None
    assert (SENT.adaptation(words) or "").startswith(kind)


@pytest.mark.parametrize(
    "case",
    ["count-continuous-usage", "first-reasoning-content", "first-tool-calls", "shape-content-parts", "sse-utf8-split"],
)
def test_no_cut_changes_what_a_stream_says(case: str) -> None:
    reply = (RECORDED / case / "response.bin").read_bytes()
    assert read(SENT, reply).answer.texts
    assert not differing(SENT, reply)
