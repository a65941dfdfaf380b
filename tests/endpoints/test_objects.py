"""Dialects of JSON objects: however the bytes come, and whatever they are, the answer is read and never a crash."""

import json

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from loadtest.endpoints.answer import Answer
from loadtest.endpoints.catalog import speak
from loadtest.endpoints.dialect import Settings
from loadtest.records import OUTCOMES
from loadtest.wire.sse import ErrorEvent
from loadtest.workload.model import Ask, Message
from tests.endpoints.shapes import jsons
from tests.endpoints.spoken import HELLO, SPOKEN, Spoken, body, read, sse, taken, whole

KINDS = [spoken.kind for spoken in SPOKEN]


def said(answer: Answer) -> tuple[object, ...]:
    """All of an answer but its stamps."""
    return (
        answer.texts, answer.thoughts, answer.usage, answer.finish_reason, answer.error, answer.bad_events,
        answer.ended, len(answer.stamps),
    )  # fmt: skip


@pytest.mark.parametrize("spoken", SPOKEN, ids=KINDS)
def test_a_stream_is_read_the_same_wherever_it_is_cut(spoken: Spoken) -> None:
    dialect, stream = speak(Settings(spoken.kind, "m")), spoken.stream
    once = read(dialect, stream)
    assert (once.outcome, once.streamed, once.answer.texts) == ("ok", True, [*spoken.texts])
    for cuts in (*[(cut,) for cut in range(1, len(stream))], tuple(range(len(stream)))):
        cut = read(dialect, stream, cuts)
        assert (cut.outcome, said(cut.answer)) == ("ok", said(once.answer))


@pytest.mark.parametrize("spoken", SPOKEN, ids=KINDS)
def test_a_stream_says_text_counts_and_end(spoken: Spoken) -> None:
    answer = read(speak(Settings(spoken.kind, "m")), spoken.stream, tuple(range(len(spoken.stream)))).answer
    assert (answer.usage, answer.finish_reason, answer.bad_events) == (spoken.usage, spoken.finish_reason, 0)
    assert len(answer.stamps) == len(spoken.texts)
    assert answer.said == spoken.text
    assert "".join(answer.texts[place] for place in answer.thoughts) == spoken.thought
    assert answer.first_answer == answer.stamps[len(answer.thoughts)]


@pytest.mark.parametrize("spoken", SPOKEN, ids=KINDS)
def test_a_whole_answer_says_the_same_and_has_no_first_token(spoken: Spoken) -> None:
    reading = read(speak(Settings(spoken.kind, "m", stream=False)), json.dumps(spoken.whole).encode())
    answer = reading.answer
    assert (reading.outcome, reading.streamed, answer.stamps, answer.first_answer) == ("ok", False, [], 0)
    assert (answer.said, answer.usage, answer.finish_reason) == (spoken.text, spoken.usage, spoken.finish_reason)
    assert answer.ended


@pytest.mark.parametrize("spoken", [spoken for spoken in SPOKEN if spoken.kind != "triton"], ids=lambda s: s.kind)
def test_a_stream_without_its_end_is_no_answer(spoken: Spoken) -> None:
    events = spoken.stream.splitlines(keepends=True)
    cut = b"".join(events[: len(events) // 2])
    error = read(speak(Settings(spoken.kind, "m")), cut).error
    assert error is not None
    assert error.kind == "no_terminal"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("event", "words"),
    [
        ({"error": "it broke"}, "it broke"),
        ({"error": {"message": "it broke", "code": 500}}, "it broke"),
        ({"error": {"code": 7}}, '"code": 7'),
        ({"error": "it broke", "error_type": "generation"}, "it broke"),
        (ErrorEvent(b"it broke"), "it broke"),
    ],
)
def test_an_error_in_the_stream_is_heard_in_its_own_words(kind: str, event: object, words: str) -> None:
    error = taken(kind, event, {"error": "a later one"}).error
    assert error is not None
    assert words in error


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_in_place_of_an_answer_is_one(kind: str) -> None:
    for stream in (True, False):
        error = read(speak(Settings(kind, "m", stream=stream)), b'{"error": "it broke"}').error
        assert error is not None
        assert (error.kind in ("json_error", "sse_error"), error.message) == (True, "it broke")


@pytest.mark.parametrize("kind", KINDS)
def test_a_refusal_has_the_servers_words(kind: str) -> None:
    error = read(speak(Settings(kind, "m")), b'{"error": "model is gone"}', status="404 Not Found").error
    assert error is not None
    assert (error.kind, error.message) == ("http_status", "404 Not Found: model is gone")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("event", [b"{", b"hello", b"[" * 100_000, b"[]", b"5", b"null", b"{}"])
def test_an_event_of_no_known_shape_is_counted(kind: str, event: bytes) -> None:
    known = kind == "triton" and event == b"{}"  # an event of it may have no output
    assert (taken(kind, event).bad_events, taken(kind, b"", b" ").bad_events) == (0 if known else 1, 0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("reply", [b" ", b"hello", b"[1]", b'{"object": "list"}', b'{"choices": []}', b"<html>"])
def test_a_body_that_is_no_answer_says_what_it_is(kind: str, reply: bytes) -> None:
    with pytest.raises(ValueError, match=f"no answer of the endpoint {kind}: "):
        whole(kind, reply)


JSON = jsons(
    "type delta text thinking partial_json message content content_block usage input_tokens output_tokens "
    "stop_reason name input response done done_reason eval_count prompt_eval_count tool_calls function "
    "arguments token special generated_text details finish_reason generated_tokens prefill input_length "
    "stop stop_type tokens_predicted tokens_evaluated timings cache_n prompt_n text_output error",
)
TYPES = "content_block_delta content_block_start message_start message_delta message_stop message error ping".split()
EVENTS = st.dictionaries(st.sampled_from(["type", "message", "token", "stop", "content"]), JSON, max_size=3)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(st.sampled_from([*TYPES, None]), EVENTS, JSON), max_size=4))
def test_whatever_comes_is_read_and_can_be_stored(events: list[tuple[str | None, dict[str, object], object]]) -> None:
    sent = [event if kind is None else {**event, "delta": odd, "type": kind} for kind, event, odd in events]
    for kind in KINDS:
        data = sse(*sent) if not kind.startswith("ollama") else b"\n".join(json.dumps(event).encode() for event in sent)
        for stream in (True, False):
            for bytes_in in (data, json.dumps(sent[0] if sent else None).encode()):
                reading = read(speak(Settings(kind, "m", stream=stream)), bytes_in)
                answer = reading.answer
                assert reading.outcome in OUTCOMES
                assert (reading.error is None) == (reading.outcome == "ok")
                msgspec.json.encode([reading.error, answer.usage, answer.finish_reason, answer.texts])
                assert len(answer.stamps) <= len(answer.texts)


def test_an_object_of_the_users_stands_within_ours_and_not_in_its_place() -> None:
    keys = {"options": {"num_ctx": 8192, "num_predict": 7}, "keep_alive": "1h", "stream": False, "messages": []}
    found = body("ollama", Ask(HELLO.messages, 5, body=json.dumps(keys)))
    assert found["options"] == {"num_predict": 7, "num_ctx": 8192}
    assert (found["keep_alive"], found["stream"], len(found["messages"])) == ("1h", True, 2)


@pytest.mark.parametrize("kind", ["anthropic", "ollama", "llamacpp"])
def test_a_requests_own_model_stands_above_all(kind: str) -> None:
    keys = json.dumps({"model": "x"})
    hello = (Message("user", "hello"),)
    assert body(kind, Ask(hello, 5, body=keys))["model"] == "x"
    assert body(kind, Ask(hello, 5, model="adapter", body=keys))["model"] == "adapter"
    assert body(kind, Ask(hello, 5))["model"] == "m"


@pytest.mark.parametrize("spoken", SPOKEN, ids=KINDS)
def test_a_byte_order_mark_before_an_answer_is_not_part_of_it(spoken: Spoken) -> None:
    reading = read(speak(Settings(spoken.kind, "m", stream=False)), b"\xef\xbb\xbf" + json.dumps(spoken.whole).encode())
    assert (reading.outcome, reading.answer.said) == ("ok", spoken.text)
