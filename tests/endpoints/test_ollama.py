"""Ollama: chat and generate, the models that it has, and its calls of tools."""

from typing import Any

import pytest

from loadtest.endpoints.catalog import dialect
from loadtest.errors import TargetError
from loadtest.wire.control import Reply
from loadtest.workload.model import Ask, Message
from tests.endpoints.spoken import body, taken


def test_chat_takes_messages_and_generate_a_text() -> None:
    assert body("ollama") == {
        "model": "m",
        "messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"}],
        "stream": True,
        "options": {"num_predict": 5},
    }
    assert body("ollama-generate", stream=False) == {
        "model": "m",
        "prompt": "be brief\n\nhello",
        "stream": False,
        "options": {"num_predict": 5},
    }


def test_pictures_go_with_the_last_message() -> None:
    ask = Ask((Message("system", "s"), Message("user", "what is it?")), 5, images=("data:image/png;base64,iVBO",))
    assert body("ollama", ask)["messages"] == [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "what is it?", "images": ["iVBO"]},
    ]


def test_a_tool_call_is_output() -> None:
    call = {"function": {"name": "tide", "arguments": {"at": 1}}}
    assert taken("ollama", {"message": {"content": "", "tool_calls": [call, None]}}).texts == ['tide{"at": 1}']
    assert taken("ollama", {"message": {"content": "", "tool_calls": "?"}}).stamps == []


def test_generate_may_think_too() -> None:
    answer = taken("ollama-generate", {"response": "", "thinking": "Hm"}, {"response": "a"})
    assert (answer.texts, answer.thoughts, answer.first_answer) == (["Hm", "a"], [0], 2)


def test_an_older_server_gives_no_reason_and_is_done_all_the_same() -> None:
    answer = taken("ollama", {"done": True})
    assert (answer.ended, answer.finish_reason, answer.bad_events) == (True, None, 0)


TAGS: Any = {"models": [{"name": "a:latest"}, {"name": "b:7b"}, {}, None]}


@pytest.mark.parametrize(
    ("asked", "reply", "model"),
    [
        (None, Reply(200, "", TAGS), "a:latest"),
        ("a", Reply(200, "", TAGS), "a"),
        ("b:7b", Reply(200, "", TAGS), "b:7b"),
        ("b:7b", Reply(404, "", None), "b:7b"),
        ("b:7b", Reply(200, "", {"models": "?"}), "b:7b"),
    ],
)
def test_the_model_is_one_that_it_has(asked: str | None, reply: Reply, model: str) -> None:
    assert dialect("ollama").discover(lambda _: reply, asked).model == model


@pytest.mark.parametrize(
    ("asked", "reply", "words"),
    [
        ("b", Reply(200, "", TAGS), "/api/tags has no model 'b'; there are a:latest, b:7b"),
        (None, Reply(200, '{"models":[]}', {"models": []}), "names no model: 200 .*pull one"),
        (None, Reply(503, "busy", None), "names no model: 503 busy"),
    ],
)
def test_a_model_that_is_not_there_is_told_before_the_run(asked: str | None, reply: Reply, words: str) -> None:
    with pytest.raises(TargetError, match=words):
        dialect("ollama").discover(lambda _: reply, asked)
