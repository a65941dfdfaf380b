"""Anthropic's messages: where a system prompt and pictures go, and what its counts mean."""

import pytest

from loadtest.endpoints.answer import Usage
from loadtest.endpoints.catalog import speak
from loadtest.endpoints.dialect import Settings
from loadtest.workload.model import Ask, Message
from tests.endpoints.spoken import HELLO, body, read, taken, whole


def test_the_system_has_a_place_of_its_own() -> None:
    assert body("anthropic") == {
        "model": "m",
        "max_tokens": 5,
        "system": "be brief",
        "messages": [{"role": "user", "content": "hello"}],
        "stream": True,
    }
    assert "system" not in body("anthropic", Ask(HELLO.messages[1:], 5), stream=False)


def test_pictures_go_with_the_last_message() -> None:
    ask = Ask((Message("user", "what is it?"),), 5, images=("data:image/png;base64,iVBO", "http://h/a.png"))
    assert body("anthropic", ask)["messages"][0]["content"] == [
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBO"}},
        {"type": "image", "source": {"type": "url", "url": "http://h/a.png"}},
        {"type": "text", "text": "what is it?"},
    ]


@pytest.mark.parametrize(
    ("start", "end", "usage"),
    [
        ({"input_tokens": 4, "output_tokens": 1}, {"output_tokens": 9}, Usage(4, 9)),
        (
            {"input_tokens": 4, "cache_read_input_tokens": 6, "cache_creation_input_tokens": 5},
            {"output_tokens": 9},
            Usage(15, 9, 6),
        ),
        ({"input_tokens": 4}, {"input_tokens": 5, "cache_read_input_tokens": 0, "output_tokens": 9}, Usage(5, 9, 0)),
        (None, {"output_tokens": 9.0}, Usage(None, 9)),
        ("?", {"output_tokens": "?", "input_tokens": None}, Usage()),
    ],
)
def test_the_prompt_is_all_that_was_read_whatever_a_cache_held(start: object, end: object, usage: Usage) -> None:
    assert (
        taken(
            "anthropic",
            {"type": "message_start", "message": {"usage": start}},
            {"type": "message_delta", "delta": {"stop_reason": "max_tokens"}, "usage": end},
        ).usage
        == usage
    )


def test_the_last_running_total_of_the_output_counts() -> None:
    totals = [{"type": "message_delta", "delta": {}, "usage": {"output_tokens": count}} for count in (3, 8)]
    assert taken("anthropic", *totals).usage == Usage(None, 8)
    assert taken("anthropic", *totals, {"type": "message_delta", "delta": {}}).usage == Usage(None, 8)


def test_a_tool_call_is_output_by_its_name_and_arguments_and_a_signature_is_none() -> None:
    def delta(**fields: object) -> object:
        return {"type": "content_block_delta", "index": 0, "delta": fields}

    answer = taken(
        "anthropic",
        {"type": "content_block_start", "content_block": {"type": "tool_use", "id": "1", "name": "tide", "input": {}}},
        delta(type="input_json_delta", partial_json=""),
        delta(type="input_json_delta", partial_json='{"at": 1}'),
        delta(type="signature_delta", signature="EqQB"),
        {"type": "content_block_start", "content_block": {"type": "text", "text": ""}},
    )
    assert (answer.texts, answer.stamps, answer.first_answer, answer.bad_events) == (
        ["tide", '{"at": 1}'],
        [1, 3],
        1,
        0,
    )
    call = {"type": "tool_use", "name": "tide", "input": {"at": 1}}
    assert whole("anthropic", {"type": "message", "content": [call]}).texts == ['tide{"at": 1}']


def test_a_reason_is_no_end_of_a_stream() -> None:
    start = b'data: {"type": "content_block_delta", "delta": {"text": "a"}}\n\n'
    last = b'data: {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 1}}\n\n'
    error = read(speak(Settings("anthropic", "m")), start + last).error
    assert error is not None
    assert (error.kind, "without message_stop" in error.message) == ("no_terminal", True)


def test_events_of_kinds_to_come_are_let_pass() -> None:
    assert taken("anthropic", {"type": "message_hint", "hint": 1}).bad_events == 0


@pytest.mark.parametrize(
    ("error", "words"),
    [
        ({"type": "overloaded_error", "message": "Overloaded"}, "overloaded_error: Overloaded"),
        ({"type": 5, "message": "Overloaded"}, "Overloaded"),
        ("Overloaded", "Overloaded"),
    ],
)
def test_an_error_is_named_by_its_type(error: object, words: str) -> None:
    assert taken("anthropic", {"type": "error", "error": error}).error == words


def test_what_follows_the_end_is_ignored() -> None:
    late = {"type": "content_block_delta", "delta": {"text": "late"}}
    assert taken("anthropic", {"type": "message_stop"}, late, b"junk").stamps == []


def test_its_key_and_version_go_in_headers_of_their_own() -> None:
    dialect = speak(Settings("anthropic", "m"))
    assert (dialect.key_header, dialect.headers) == ("x-api-key", (("anthropic-version", "2023-06-01"),))
