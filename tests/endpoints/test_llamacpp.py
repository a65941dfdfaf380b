"""llama.cpp: what is asked of it, what its counts mean, and how it names its model."""

from typing import Any

import pytest

from loadtest.endpoints.answer import Usage
from loadtest.endpoints.catalog import dialect
from loadtest.errors import TargetError
from loadtest.wire.control import Reply
from loadtest.workload.model import Ask
from tests.endpoints.spoken import HELLO, body, taken


def test_the_length_is_exact_and_no_cache_helps_unless_the_user_says_so() -> None:
    assert body("llamacpp") == {
        "model": "m",
        "prompt": "be brief\n\nhello",
        "stream": True,
        "n_predict": 5,
        "ignore_eos": True,
        "temperature": 0,
        "cache_prompt": False,
    }
    assert body("llamacpp", Ask(HELLO.messages, 5, body='{"cache_prompt": true}'))["cache_prompt"] is True


@pytest.mark.parametrize(
    ("timings", "cached"),
    [
        (None, None),
        ({"prompt_n": 4}, 5),
        ({"prompt_n": 4, "cache_n": 3}, 3),
        ({"prompt_n": 99}, 0),
        ({"prompt_n": "?"}, None),
    ],
)
def test_what_a_cache_held_is_told_by_the_timings(timings: object, cached: int | None) -> None:
    end = {"content": "", "stop": True, "tokens_predicted": 2, "tokens_evaluated": 9, "tokens_cached": 10}
    assert taken("llamacpp", {**end, "timings": timings}).usage == Usage(9, 2, cached)


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        ({"stop_type": "eos"}, "eos"),
        ({"stopped_eos": False, "stopped_limit": True}, "limit"),
        ({"stopped_word": True}, "word"),
        ({}, None),
    ],
)
def test_the_reason_is_the_servers_old_or_new(end: dict[str, object], reason: str | None) -> None:
    answer = taken("llamacpp", {"content": "", "stop": True, **end})
    assert (answer.finish_reason, answer.ended) == (reason, True)


@pytest.mark.parametrize(
    ("replies", "model"),
    [
        ({"/v1/models": {"data": [{"id": "a", "owned_by": "llamacpp"}]}}, "a"),
        ({"/props": {"model_path": "/models/b.gguf"}}, "b.gguf"),
        ({"/props": {"model_alias": "b", "model_path": "/models/b.gguf"}}, "b"),
    ],
)
def test_it_names_its_model(replies: dict[str, Any], model: str) -> None:
    def get(path: str) -> Reply:
        return Reply(200 if path in replies else 404, "", replies.get(path))

    assert dialect("llamacpp").discover(get, None).model == model


def test_a_server_that_still_loads_is_told_in_its_own_words() -> None:
    with pytest.raises(TargetError, match=r"503 .*Loading model"):
        dialect("llamacpp").discover(lambda _: Reply(503, '{"error": {"message": "Loading model"}}', None), None)
