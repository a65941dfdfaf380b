"""What an endpoint speaks is found by its URL, else by a few GETs; without a sign it is chat, as before."""

from typing import Any

import pytest

from loadtest import detect
from loadtest.errors import TargetError
from loadtest.wire.control import Reply

MODELS = {"object": "list", "data": [{"id": "m", "object": "model"}]}
OF_ANTHROPIC = {"data": [{"type": "model", "id": "c", "display_name": "C"}], "has_more": False}


class Target:
    """Answers some paths with JSON, all others with ``other``."""

    def __init__(self, answers: dict[str, Any], other: int = 404) -> None:
        self.asked: list[str] = []
        self._answers = answers
        self._other = other

    def get(self, path: str) -> Reply:
        """One GET."""
        self.asked.append(path)
        if path in self._answers:
            return Reply(200, "", self._answers[path])
        return Reply(self._other, "no", None)


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("http://h/v1/chat/completions", "chat"),
        ("http://h/v1/completions", "completions"),
        ("http://h/prefix/v1/embeddings/", "embeddings"),
        ("http://h/v1beta/openai/chat/completions?key=1", "chat"),
        ("http://h/v1/messages", "anthropic"),
        ("http://h/api/chat", "ollama"),
        ("http://h/api/generate", "ollama-generate"),
        ("http://h/generate_stream", "tgi"),
        ("http://h/v2/models/m/generate_stream", "triton"),
        ("http://h/v2/models/m/versions/3/generate", "triton"),
        ("unix:/run/s.sock:/v1/completions", "completions"),
    ],
)
def test_the_end_of_a_url_says_it(url: str, kind: str) -> None:
    found = detect.by_url(url)
    assert found is not None
    assert found.kind == kind


@pytest.mark.parametrize("url", ["http://h", "http://h/", "http://h/v1", "http://h/v2/models/m", "http://h/chat"])
def test_a_base_says_nothing(url: str) -> None:
    assert detect.by_url(url) is None


@pytest.mark.parametrize(
    ("answers", "kind"),
    [
        ({"/v1/models": MODELS}, "chat"),
        ({"/v1/models": OF_ANTHROPIC}, "anthropic"),
        ({"/api/tags": {"models": [{"name": "llama3:latest"}]}}, "ollama"),
        ({"/info": {"model_id": "x/y", "version": "3.0"}}, "tgi"),
        ({"/info": {"model_id": "x/y", "model_type": {"embedding": {"pooling": "cls"}}}}, "embeddings"),
        ({"/props": {"default_generation_settings": {}, "total_slots": 1}}, "llamacpp"),
        ({"/openapi.json": {"paths": {"/health": {}, "/app/v1/completions": {}}}}, "completions"),
        ({}, "chat"),
    ],
)
def test_the_answers_of_a_target_say_it(answers: dict[str, Any], kind: str) -> None:
    assert detect.by_asking(Target(answers).get).kind == kind


def test_a_target_that_lists_models_is_asked_once() -> None:
    target = Target({"/v1/models": MODELS, "/api/tags": {"models": []}})
    assert detect.by_asking(target.get).how == "/v1/models lists models"
    assert target.asked == ["/v1/models"]


def test_a_target_that_wants_a_key_is_asked_no_further() -> None:
    target = Target({}, other=401)
    assert detect.by_asking(target.get) == ("chat", "/v1/models answers 401")
    assert target.asked == ["/v1/models"]


@pytest.mark.parametrize("odd", [[], "text", 7, None, {"data": "x"}, {"paths": []}, {"models": {}}, {"data": [3]}])
def test_answers_of_any_shape_are_no_sign_and_no_fault(odd: Any) -> None:
    paths = ("/v1/models", "/api/tags", "/info", "/props", "/v2", "/openapi.json")
    assert detect.by_asking(Target(dict.fromkeys(paths, odd)).get).kind == "chat"


def test_a_target_that_cannot_be_reached_is_told_and_one_that_leaves_a_question_open_is_not() -> None:
    def dead(path: str) -> Reply:
        raise TargetError(f"cannot reach {path}")

    def moody(path: str) -> Reply:
        return Target({"/props": {"default_generation_settings": {}}}).get(path) if "t" not in path else dead(path)

    with pytest.raises(TargetError, match="cannot reach /v1/models"):
        detect.by_asking(dead)
    assert detect.by_asking(moody).kind == "llamacpp"


@pytest.mark.parametrize(
    ("url", "kind", "source", "words"),
    [
        ("http://h/v1", "chat", "found: /v1/models lists models", ""),
        ("http://h", "ollama", "found: /api/tags answers", "asked as endpoint ollama, since /api/tags answers"),
        ("http://h/v1/completions", "completions", "chat.yaml:8", ""),
        ("http://h/v1/completions", "chat", "chat.yaml:8", "though its URL ends in /v1/completions, a path of complet"),
        ("http://h/v1/completions", "http", "--endpoint", ""),
        ("http://h", "tgi", "--endpoint", ""),
    ],
)
def test_a_kind_that_surprises_is_told(url: str, kind: str, source: str, words: str) -> None:
    told = detect.remarks(url, kind, source)
    assert bool(told) == bool(words)
    assert words in "".join(told)
