"""TGI: its two paths, its adapters, and where its counts stand."""

import pytest

from loadtest.endpoints.answer import Usage
from loadtest.endpoints.catalog import dialect, speak
from loadtest.endpoints.dialect import Settings
from loadtest.errors import TargetError
from loadtest.wire.control import Reply
from loadtest.workload.model import Ask
from tests.endpoints.spoken import HELLO, body, taken, whole

OWN = '{"model": "m"}'


def test_a_body_asks_for_details_and_of_the_prompt_only_outside_the_measurement() -> None:
    parameters = {"max_new_tokens": 5, "details": True}
    assert body("tgi") == {"inputs": "be brief\n\nhello", "parameters": parameters}
    assert body("tgi", stream=False)["parameters"] == parameters
    counted = body("tgi", stream=False, counting=True)["parameters"]
    assert counted == {**parameters, "decoder_input_details": True}


def test_another_model_is_an_adapter_of_the_servers_own() -> None:
    assert "adapter_id" not in body("tgi", told=OWN)["parameters"]
    assert body("tgi", told='{"model": "base"}')["parameters"]["adapter_id"] == "m"
    assert body("tgi", Ask(HELLO.messages, 5, model="lora"), told=OWN)["parameters"]["adapter_id"] == "lora"


@pytest.mark.parametrize(
    ("path", "stream", "streams", "target"),
    [
        (None, True, True, "/generate_stream"),
        (None, False, False, "/generate"),
        ("/generate", True, False, "/generate"),
    ],
)
def test_the_path_is_that_of_a_stream_or_of_none(path: str | None, stream: bool, streams: bool, target: str) -> None:
    found = speak(Settings("tgi", "m", stream, path=path))
    assert (found.path, found.streams) == (target, streams)


def test_a_special_token_is_no_text_but_the_end_all_the_same() -> None:
    answer = taken("tgi", {"token": {"text": "</s>", "special": True}, "generated_text": "", "details": None})
    assert (answer.texts, answer.ended, answer.usage, answer.bad_events) == ([], True, None, 0)


def test_the_prompt_is_counted_by_its_tokens_where_it_is_listed() -> None:
    details = {
        "generated_tokens": 1,
        "prefill": [{"id": 1, "text": "a", "logprob": None}] * 7,
        "finish_reason": "length",
    }
    assert whole("tgi", {"generated_text": "a", "details": details}).usage == Usage(7, 1)
    assert whole("tgi", {"generated_text": "a", "details": {**details, "prefill": []}}).usage == Usage(None, 1)
    assert whole("tgi", {"generated_text": "a"}).usage is None


@pytest.mark.parametrize(
    ("asked", "reply", "model", "told"),
    [
        (None, Reply(200, "", {"model_id": "m"}), "m", OWN),
        ("lora", Reply(200, "", {"model_id": "m"}), "lora", OWN),
        ("lora", Reply(404, "", None), "lora", "{}"),
    ],
)
def test_it_tells_its_model(asked: str | None, reply: Reply, model: str, told: str) -> None:
    known = dialect("tgi").discover(lambda _: reply, asked)
    assert (known.model, known.told.replace(":", ": ")) == (model, told)


def test_a_server_without_a_name_needs_one() -> None:
    with pytest.raises(TargetError, match="/info names no model: 404 nothing here; name it with --model"):
        dialect("tgi").discover(lambda _: Reply(404, "nothing\n here", None), None)
