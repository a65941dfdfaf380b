"""The Responses API: what its typed events mean, however they are cut, and what is no answer of it."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadtest.endpoints.answer import Answer, Usage
from loadtest.endpoints.catalog import speak
from loadtest.endpoints.dialect import Settings
from loadtest.wire.sse import ErrorEvent
from loadtest.workload.model import Ask, Message
from tests.endpoints.cutting import RECORDED, counted, differing, read
from tests.endpoints.shapes import jsons

RESPONSES = speak(Settings("responses", "m"))
ASK = Ask((Message("system", "be brief"), Message("user", "hello")), 40)
TEXT = "response.output_text.delta"


def taken(*events: Any) -> Answer:
    """The answer after these events, stamped 1, 2, …; a value that is not bytes is sent as JSON."""
    answer = Answer()
    for stamp, event in enumerate(events, 1):
        RESPONSES.event(answer, event if isinstance(event, bytes) else json.dumps(event).encode(), stamp)
    return answer


def delta(kind: str, text: Any) -> dict[str, Any]:
    return {"type": kind, "delta": text}


def body(ask: Ask, **given: Any) -> Any:
    return json.loads(speak(Settings("responses", "m", **given)).body(ask))


def test_a_body_is_stateless_and_of_the_lengths_asked() -> None:
    assert body(ASK) == {
        "model": "m",
        "stream": True,
        "store": False,
        "input": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"}],
        "max_output_tokens": 40,
    }
    exact = body(ASK, stream=False, owner="vllm")
    assert (exact["stream"], exact["ignore_eos"], exact["temperature"]) == (False, True, 0)


def test_the_users_keys_stand_above_ours_but_not_above_what_is_asked() -> None:
    keys = {"reasoning": {"effort": "low"}, "store": True, "max_output_tokens": 9, "input": "x", "stream": False}
    found = body(Ask(ASK.messages, 40, model="other", body=json.dumps({**keys, "model": "x"})))
    assert (found["reasoning"], found["store"], found["max_output_tokens"]) == ({"effort": "low"}, True, 9)
    assert (found["model"], found["stream"], len(found["input"])) == ("other", True, 2)


def test_pictures_go_with_the_last_message() -> None:
    found = body(Ask(ASK.messages, 40, images=("data:a",)))["input"]
    assert found == [
        {"role": "system", "content": "be brief"},
        {
            "role": "user",
            "content": [
                {"type": "input_text", "text": "hello"},
                {"type": "input_image", "image_url": "data:a", "detail": "auto"},
            ],
        },
    ]


@pytest.mark.parametrize(
    ("event", "texts", "thoughts"),
    [
        (delta(TEXT, "a"), ["a"], 0),
        (delta(TEXT, ""), [], 0),
        (delta("response.refusal.delta", "no"), ["no"], 0),
        (delta("response.reasoning_text.delta", "hm"), ["hm"], 1),
        (delta("response.reasoning_summary_text.delta", "hm"), ["hm"], 1),
        (delta("response.function_call_arguments.delta", "{}"), ["{}"], 0),
        (delta("response.custom_tool_call_input.delta", "x"), ["x"], 0),
        (delta(TEXT, 5), [], 0),
        ({"type": "response.output_item.added", "item": {"type": "function_call", "name": "f"}}, ["f"], 0),
        ({"type": "response.output_item.added", "item": {"type": "message"}}, [], 0),
        ({"type": "response.output_item.added", "item": None}, [], 0),
        ({"type": "response.output_text.done", "text": "a"}, [], 0),
        ({"type": "response.created", "response": {"status": "in_progress"}}, [], 0),
        ({"type": "keepalive"}, [], 0),
        ({"type": "response.something.new", "delta": {"x": 1}}, [], 0),
        (b'{"type":"response.output_text.delta","delta":"\xff"}', ["\ufffd"], 0),
        (b'{"type":"response.output_text.delta","delta":"\\ud83d"}', ["?"], 0),
        (b'{"type":"response.output_text.delta","delta":"a","logprobs":NaN}', ["a"], 0),
    ],
)
def test_generated_output_of_any_channel_is_a_token_event(event: Any, texts: list[str], thoughts: int) -> None:
    answer = taken(event)
    assert answer.texts == texts
    assert len(answer.stamps) == len(texts)
    assert len(answer.thoughts) == thoughts
    assert answer.first_answer == (len(texts) if not thoughts else 0)
    assert (answer.bad_events, answer.error, answer.ended) == (0, None, False)


def test_sound_is_output_and_no_text() -> None:
    answer = taken(delta("response.audio.delta", "UklGRg=="), delta("response.audio.transcript.delta", "hi"))
    assert (answer.texts, answer.stamps, answer.first_answer) == (["hi"], [1, 2], 1)


@pytest.mark.parametrize(
    ("event", "finish", "usage"),
    [
        (
            {
                "type": "response.completed",
                "response": {
                    "status": "completed",
                    "usage": {
                        "input_tokens": 3,
                        "output_tokens": 4,
                        "input_tokens_details": {"cached_tokens": 2},
                    },
                },
            },
            "completed",
            Usage(3, 4, 2),
        ),
        (
            {"type": "response.incomplete", "response": {"incomplete_details": {"reason": "content_filter"}}},
            "content_filter",
            None,
        ),
        ({"type": "response.incomplete", "response": {"usage": "x"}}, "incomplete", None),
        ({"type": "response.completed"}, "completed", None),
    ],
)
def test_an_answer_ends_by_its_last_event_alone(event: Any, finish: str, usage: Usage | None) -> None:
    answer = taken(delta(TEXT, "a"), b"[DONE]", delta(TEXT, "b"), event, delta(TEXT, "late"), b"junk")
    assert (answer.texts, answer.ended, answer.finish_reason, answer.usage) == (["a", "b"], True, finish, usage)
    assert answer.bad_events == 0


@pytest.mark.parametrize(
    ("event", "words"),
    [
        ({"type": "error", "code": "server_error", "message": "engine stopped", "param": None}, "engine stopped"),
        ({"type": "error", "error": {"message": "engine stopped"}}, "engine stopped"),
        ({"error": {"message": "engine stopped"}}, "engine stopped"),
        ({"type": "response.failed", "response": {"error": {"message": "engine stopped"}}}, "engine stopped"),
        ({"type": "response.failed", "response": {"status": "failed", "error": None}}, "response is failed"),
        ({"type": "response.cancelled"}, "response is cancelled"),
        (ErrorEvent(b"engine stopped"), "engine stopped"),
        (ErrorEvent(b'{"type":"x","message":"engine stopped"}'), "engine stopped"),
        ({"type": "error"}, '{"type": "error"}'),
    ],
)
def test_an_error_in_the_stream_is_heard_in_its_own_words(event: Any, words: str) -> None:
    answer = taken(delta(TEXT, "a"), event, {"type": "response.completed"}, delta(TEXT, "b"))
    assert answer.error is not None
    assert words in answer.error
    assert (answer.texts, answer.ended) == (["a"], False)


@pytest.mark.parametrize("event", [b"hello", b"{", {"choices": [{"delta": {"content": "a"}}]}, b"[" * 100_000, [1]])
def test_an_event_of_no_such_api_is_counted_and_passed_over(event: Any) -> None:
    answer = taken(event, delta(TEXT, "a"))
    assert (answer.texts, answer.bad_events, answer.error) == (["a"], 1, None)


@pytest.mark.parametrize("event", [b"", b" ", b"null", b"{}", b"[DONE]"])
def test_a_sign_of_life_is_neither_token_nor_fault(event: bytes) -> None:
    answer = taken(event)
    assert (answer.stamps, answer.bad_events, answer.error, answer.ended) == ([], 0, None, False)


WHOLE = {
    "object": "response",
    "status": "completed",
    "error": None,
    "output": [
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
        {"type": "message", "content": [{"type": "output_text", "text": "a"}, {"type": "refusal", "refusal": "b"}]},
        {"type": "function_call", "name": "f", "arguments": "{}"},
        None,
        {"type": "message", "content": "odd"},
    ],
    "usage": {"input_tokens": 3, "output_tokens": 4},
}


def test_a_whole_answer_has_text_and_no_token_events() -> None:
    reading = read(RESPONSES, counted(json.dumps(WHOLE).encode()))
    answer = reading.answer
    assert (reading.outcome, reading.streamed, answer.texts, answer.thoughts) == ("ok", False, ["hm", "ab", "f{}"], [0])
    assert (answer.said, answer.stamps, answer.usage, answer.finish_reason) == (
        "abf{}", [], Usage(3, 4, None), "completed",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("reply", "kind", "words"),
    [
        ({**WHOLE, "status": "in_progress"}, "not_a_stream", "still in_progress"),
        ({**WHOLE, "error": {"message": "engine stopped"}}, "json_error", "engine stopped"),
        ({**WHOLE, "status": "failed", "error": {"message": "engine stopped"}}, "json_error", "engine stopped"),
        ({"error": {"message": "engine stopped"}}, "json_error", "engine stopped"),
        ({"choices": []}, "not_a_stream", "not a response"),
        ([1], "not_a_stream", "not a response"),
    ],
)
def test_a_whole_body_that_is_no_answer_says_what_it_is(reply: Any, kind: str, words: str) -> None:
    error = read(RESPONSES, counted(json.dumps(reply).encode())).error
    assert error is not None
    assert error.kind == kind
    assert words in error.message


def test_an_answer_in_the_chat_dialect_is_not_taken_for_one() -> None:
    stream = b'data: {"choices":[{"delta":{"content":"a"},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
    error = read(RESPONSES, counted(stream, "text/event-stream")).error
    assert error is not None
    assert error.kind == "no_terminal"


@pytest.mark.parametrize("case", ["typed-events", "incomplete", "failed"])
def test_no_cut_changes_what_a_stream_says(case: str) -> None:
    reply = (RECORDED / f"api-responses-{case}" / "response.bin").read_bytes()
    assert read(RESPONSES, reply).answer.texts
    assert not differing(RESPONSES, reply)


JSON = jsons(
    "type delta response item error usage status output content summary text incomplete_details "
    "input_tokens input_tokens_details cached_tokens name arguments message",
    [TEXT, "response.completed", "response.output_item.added", "error", "failed"],
)


@settings(max_examples=150, deadline=None)
@given(st.lists(JSON, max_size=4), JSON)
def test_no_shape_of_json_makes_it_raise(events: list[Any], whole: Any) -> None:
    taken(*events)
    for reply in (whole, {"output": [whole], **whole} if isinstance(whole, dict) else [whole]):
        assert read(RESPONSES, counted(json.dumps(reply).encode())).outcome in ("ok", "stream_error")
