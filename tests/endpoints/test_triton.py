"""Triton's generate: the model is in the path, and little is said of the answer."""

import pytest

from loadtest.endpoints.catalog import dialect, speak
from loadtest.endpoints.dialect import Head, Settings
from loadtest.errors import TargetError
from loadtest.wire.control import Reply
from loadtest.workload.model import Ask
from tests.endpoints.spoken import HELLO, body, read, sse, taken


def test_length_and_streaming_are_parameters() -> None:
    assert body("triton") == {"text_input": "be brief\n\nhello", "parameters": {"max_tokens": 5, "stream": True}}
    found = body("triton", Ask(HELLO.messages, 5, body='{"parameters": {"temperature": 0}, "bad_words": ""}'))
    assert found["parameters"] == {"max_tokens": 5, "stream": True, "temperature": 0}
    assert found["bad_words"] == ""


def test_the_model_is_in_the_path() -> None:
    assert speak(Settings("triton", "my m")).path == "/v2/models/my%20m/generate_stream"
    assert speak(Settings("triton", "m/versions/2", stream=False)).path == "/v2/models/m/versions/2/generate"
    dialect = speak(Settings("triton", "m"))
    assert dialect.head(HELLO) is None
    assert dialect.head(Ask(HELLO.messages, 5, model="n")) == Head("/v2/models/n/generate_stream")


def test_an_event_without_output_is_no_token_and_one_with_another_output_is_not_understood() -> None:
    answer = taken("triton", {"model_name": "m", "model_version": "1"}, {"text_output": ""}, {"OUTPUT0": [1]})
    assert (answer.stamps, answer.bad_events) == ([], 1)


def test_a_model_of_no_text_is_told_instead_of_a_run_of_empty_answers() -> None:
    error = read(speak(Settings("triton", "m")), sse({"model_name": "m", "OUTPUT0": [1]})).error
    assert error is not None
    assert error.message == "the answer has no text_output, but OUTPUT0: is this a model of text?"
    assert read(speak(Settings("triton", "m")), sse({"text_output": ""}, {"model_name": "m"})).outcome == "ok"


def test_the_texts_of_a_batch_are_one_answer() -> None:
    assert taken("triton", {"text_output": ["a", "b", None]}).texts == ["ab"]


@pytest.mark.parametrize(
    "reply", [Reply(200, "", {}), Reply(404, "not here", None), Reply(403, '{"error": "x"}', None)]
)
def test_a_model_that_may_be_there_is_tried(reply: Reply) -> None:
    assert dialect("triton").discover(lambda _: reply, "m").model == "m"


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (None, "name one with --model, or in the URL: /v2/models/NAME"),
        ("m", "/v2/models/m is not there: 400 unknown model: 'm'; is --model right, and loaded?"),
    ],
)
def test_a_model_that_is_missing_is_told_before_the_run(model: str | None, words: str) -> None:
    reply = Reply(400, '{"error": "unknown model: \'m\'"}', None)
    with pytest.raises(TargetError) as raised:
        dialect("triton").discover(lambda _: reply, model)
    assert words in str(raised.value)
