import json
import re
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from loadtest.endpoints.dialect import Settings
from loadtest.errors import TargetError, UsageError
from loadtest.level import Batching
from loadtest.schedule import stream
from loadtest.sizing import sized
from loadtest.target import Facts
from loadtest.wire.control import Reply
from loadtest.workload.corpus import UNICODE
from loadtest.workload.prompts import Prompts
from loadtest.workload.tokens import Tokens
from tests.workload.vocabularies import TEMPLATE, byte_level, save

CHAT = Settings("chat", "m")
WORDS = Facts(url="http://x", address="127.0.0.1", model="m", owner=None, tokens=Tokens("words"))


class Endpoint:
    """A target that answers small requests, and counts them as it is told to."""

    def __init__(self, reply: Any) -> None:
        self.reply = reply
        self.asked: list[str] = []

    def open(self) -> Facts:
        return WORDS

    def ask(self, path: str, body: Any) -> Reply:
        assert path == "/v1/chat/completions"
        assert body["max_tokens"] == 1
        assert body["stream"] is False
        assert body["model"] == "m"
        text = body["messages"][0]["content"]
        self.asked.append(text)
        answer = self.reply(text)
        if isinstance(answer, Reply):
            return answer
        said = {"choices": [], "usage": {"prompt_tokens": answer}} if isinstance(answer, int) else answer
        return Reply(200, json.dumps(said), said)

    def set_batching(self, batching: Batching | None) -> None: ...

    def check(self) -> None: ...

    def close(self) -> None: ...


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return byte_level()


def test_words_are_fitted_to_what_the_endpoint_counts(tokenizer: Tokenizer) -> None:
    endpoint = Endpoint(lambda text: 11 + len(tokenizer.encode(text).ids))
    tokens = sized(endpoint, WORDS, CHAT, None, [None, UNICODE], 1)
    assert [fit.corpus for fit in tokens.fits] == [None, UNICODE]
    assert len(endpoint.asked) == len({*endpoint.asked}) == 2 + 2 * 6
    assert re.fullmatch(r"by what the endpoint counted in a few small requests, ± \d+\.\d%", tokens.how)
    for corpus in (None, UNICODE):
        prompts = Prompts(tokens, corpus, 1)
        texts = [prompts.prompt(1000, stream(1, number)) for number in range(20)]
        counted = [11 + len(tokenizer.encode(text).ids) for text in texts]
        assert sum(counted) / len(counted) == pytest.approx(1000, rel=0.1)


def test_a_busy_endpoint_is_asked_again(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    monkeypatch.setattr("time.sleep", waited.append)
    busy = iter([429, 503, 200, 429])

    def answer(text: str) -> Any:
        status = next(busy, 200)
        return Reply(status, "busy", None) if status != 200 else 11 + len(tokenizer.encode(text).ids)

    assert sized(Endpoint(answer), WORDS, CHAT, None, [None], 1).fits
    assert waited == [0.5, 1.0, 0.5]


def refuse(text: str) -> int:
    raise TargetError("cannot reach it")


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (lambda text: {"choices": []}, "does not say how many"),
        (lambda text: {"choices": [], "usage": None}, "does not say how many"),
        (lambda text: {"choices": [], "usage": {"prompt_tokens": "5"}}, "does not say how many"),
        (lambda text: {"choices": [], "usage": {"prompt_tokens": True}}, "does not say how many"),
        (lambda text: [], "cannot be read: the body is not a completion"),
        (lambda text: 0, "does not say how many"),
        (lambda text: 11, "counts the same for whatever text"),
        (lambda text: Reply(429, "slow\ndown", None), "answered 429 slow down"),
        (refuse, "cannot reach it"),
    ],
)
def test_an_endpoint_that_does_not_count_fails_nothing_and_it_is_said(reply: Any, words: str) -> None:
    tokens = sized(Endpoint(reply), WORDS, CHAT, None, [None], 1)
    assert tokens.kind == "words"
    assert tokens.fits == ()
    assert re.search(rf"one word a token, since .*{words}.*; name its --tokenizer", tokens.how)


def test_nothing_is_asked_where_all_is_known_or_nothing_is_made(tmp_path: Path) -> None:
    endpoint = Endpoint(refuse)
    known = Tokens("bytes", 4, how="one byte a token")
    facts = Facts(url="http://x", address="", model="m", owner=None, tokens=known)
    assert sized(endpoint, facts, CHAT, None, [None], 1) == known
    assert sized(endpoint, WORDS, CHAT, None, [], 1) == WORDS.tokens
    folder = save(byte_level(600), tmp_path, template=TEMPLATE)
    assert sized(endpoint, facts, CHAT, str(folder), [None], 1).how.endswith("tokenizer.json, exactly")
    assert endpoint.asked == []


def test_what_no_template_tells_is_counted(tokenizer: Tokenizer, tmp_path: Path) -> None:
    folder = save(tokenizer, tmp_path)
    endpoint = Endpoint(lambda text: 11 + len(tokenizer.encode(text).ids))
    tokens = sized(endpoint, WORDS, CHAT, str(folder), [None], 1)
    assert tokens.overhead == 11
    assert tokens.how.endswith("tokenizer.json and 11 tokens that the endpoint adds around a message, exactly")
    text = Prompts(tokens, None, 1).prompt(500, stream(1, 1))
    assert 11 + len(tokenizer.encode(text).ids) == 500


def test_a_tokenizer_that_is_not_the_endpoints_is_noticed(tokenizer: Tokenizer, tmp_path: Path) -> None:
    folder = save(tokenizer, tmp_path)
    tokens = sized(Endpoint(lambda text: 3 + len(text.encode())), WORDS, CHAT, str(folder), [None], 1)
    assert re.search(r"± \d+ tokens, since the two do not count alike", tokens.how)


def test_a_tokenizer_without_a_template_before_a_mute_endpoint(tokenizer: Tokenizer, tmp_path: Path) -> None:
    folder = save(tokenizer, tmp_path)
    tokens = sized(Endpoint(refuse), WORDS, CHAT, str(folder), [None], 1)
    assert tokens.overhead == 0
    assert tokens.how.endswith("without what the server adds around a message, since cannot reach it")


def test_a_tokenizer_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no"):
        sized(Endpoint(refuse), WORDS, CHAT, str(tmp_path), [None], 1)
