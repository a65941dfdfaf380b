"""Embeddings: a text is a sample, and a vector that holds no numbers is none."""

import json
from typing import Any

import pytest
from hypothesis import given, settings

from loadtest.endpoints.answer import Answer, Usage
from loadtest.endpoints.catalog import speak
from loadtest.endpoints.dialect import Settings
from loadtest.endpoints.embeddings import Embeddings
from loadtest.errors import TargetError
from loadtest.wire.control import Reply
from loadtest.workload.model import Ask, Message
from tests.endpoints.cutting import RECORDED, counted, differing, read
from tests.endpoints.shapes import jsons

EMBEDDINGS = speak(Settings("embeddings", "m"))
TWO = Ask((Message("user", "a"), Message("user", "b")), 0)


def vectors(*values: Any, **more: Any) -> bytes:
    data = [{"object": "embedding", "index": index, "embedding": value} for index, value in enumerate(values)]
    return json.dumps({"object": "list", "data": data, **more}).encode()


def test_a_body_holds_each_message_as_a_text() -> None:
    assert json.loads(EMBEDDINGS.body(TWO)) == {"model": "m", "input": ["a", "b"]}
    keys = {"encoding_format": "base64", "model": "x", "input": "y"}
    asked = Ask(TWO.messages, 0, model="other", body=json.dumps(keys))
    assert json.loads(EMBEDDINGS.body(asked)) == {"model": "other", "input": ["a", "b"], "encoding_format": "base64"}


@pytest.mark.parametrize(
    ("body", "samples", "tokens"),
    [
        (vectors([0.5, -1e-7], [1, 2], usage={"prompt_tokens": 5, "total_tokens": 5}), 2, 5),
        (vectors("AACAPw==", usage={"total_tokens": 4}), 1, 4),
        (vectors("nullNaN="), 1, None),
        (vectors([[0.5], [0.25]]), 1, None),
        (vectors([0.5], usage="none"), 1, None),
        (vectors([0.5], usage={"prompt_tokens": 2.0}, extra=float("nan")), 1, 2),
        (vectors([0.5], error=None), 1, None),
    ],
)
def test_vectors_are_counted_whatever_form_they_have(body: bytes, samples: int, tokens: int | None) -> None:
    reading = read(EMBEDDINGS, counted(body))
    answer = reading.answer
    assert (reading.outcome, answer.samples, answer.ended, answer.texts) == ("ok", samples, True, [])
    assert (answer.usage.input_tokens if answer.usage else None) == tokens
    assert answer.usage is None or answer.usage == Usage(tokens)


@pytest.mark.parametrize(
    ("body", "kind", "words"),
    [
        (vectors([0.5], []), "not_a_stream", "embedding 1 is empty"),
        (vectors(""), "not_a_stream", "embedding 0 is empty"),
        (vectors(None), "not_a_stream", "embedding 0 is no vector: null"),
        (vectors([0.5], [0.1, None]), "not_a_stream", "embedding 1 holds values that are no numbers"),
        (vectors([float("nan")]), "not_a_stream", "embedding 0 holds values that are no numbers"),
        (vectors(), "not_a_stream", "holds no embeddings"),
        (b'{"data":[{"index":0}]}', "not_a_stream", "holds no embeddings"),
        (b'{"data":"x"}', "not_a_stream", "holds no embeddings"),
        (b"[[0.5]]", "not_a_stream", "holds no embeddings"),
        (b"nope", "not_a_stream", "not JSON: nope"),
        (b'{"error":{"message":"too long"}}', "json_error", "too long"),
        (b'{"error":"too long","error_type":"Validation"}', "json_error", "too long"),
    ],
)
def test_what_is_no_vector_is_no_answer(body: bytes, kind: str, words: str) -> None:
    error = read(EMBEDDINGS, counted(body)).error
    assert error is not None
    assert error.kind == kind
    assert words in error.message


def test_no_cut_changes_what_an_answer_says() -> None:
    reply = (RECORDED / "api-embeddings-base64" / "response.bin").read_bytes()
    assert not differing(EMBEDDINGS, reply)


def replies(**bodies: Any) -> Any:
    def get(path: str) -> Reply:
        found = bodies.get(path.strip("/").replace("/", "_"))
        return Reply(404 if found is None else 200, "" if found is None else json.dumps(found), found)

    return get


def test_the_one_model_of_a_server_that_lists_none_is_known() -> None:
    info = {"model_id": "BAAI/bge-m3", "model_type": {"embedding": {"pooling": "cls"}}}
    assert Embeddings.discover(replies(info=info), None).model == "BAAI/bge-m3"
    assert Embeddings.discover(replies(v1_models={"data": [{"id": "e"}]}, info=info), None).model == "e"
    assert Embeddings.discover(replies(), "mine").model == "mine"
    with pytest.raises(TargetError, match="--model"):
        Embeddings.discover(replies(info={"model_id": None}), None)


@settings(max_examples=100, deadline=None)
@given(jsons("data embedding usage error total_tokens"))
def test_no_shape_of_json_makes_it_raise(reply: Any) -> None:
    assert read(EMBEDDINGS, counted(json.dumps(reply).encode())).outcome in ("ok", "stream_error")
    EMBEDDINGS.error_text(json.dumps(reply).encode())


def test_nothing_of_it_is_asked_for_or_read_as_a_stream() -> None:
    assert (EMBEDDINGS.streams, EMBEDDINGS.accept) == (False, "application/json")
    answer = Answer()
    EMBEDDINGS.event(answer, vectors([0.5]), 7)
    assert (answer.stamps, answer.samples) == ([], 1)
