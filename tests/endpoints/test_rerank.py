"""Reranking: a document is a sample, and an answer has a score for each, in whichever family's words."""

import json
from typing import Any

import pytest
from hypothesis import given, settings

from loadtest.endpoints.catalog import speak
from loadtest.endpoints.dialect import Dialect, Settings
from loadtest.endpoints.rerank import Rerank
from loadtest.endpoints.site import site
from loadtest.workload.model import Ask, Message
from tests.endpoints.cutting import RECORDED, counted, differing, read
from tests.endpoints.shapes import jsons
from tests.endpoints.test_embeddings import replies

LONG = " ".join(f"w{number}" for number in range(40))
TWO = Ask((Message("user", LONG), Message("user", "b")), 0)
RERANK = speak(Settings("rerank", "m"))


def body(dialect: Dialect, ask: Ask) -> Any:
    return json.loads(dialect.body(ask))


def test_a_body_asks_for_each_document_by_the_first_words_of_the_first() -> None:
    query = " ".join(f"w{number}" for number in range(16))
    assert body(RERANK, TWO) == {"model": "m", "query": query, "documents": [LONG, "b"]}
    keys = {"query": "what?", "top_n": 1, "return_documents": False, "documents": [], "model": "x"}
    assert body(speak(Settings("rerank", "m")), Ask(TWO.messages, 0, body=json.dumps(keys))) == {
        "model": "m", "query": "what?", "documents": [LONG, "b"], "top_n": 1, "return_documents": False,
    }  # fmt: skip


def test_tei_has_a_path_and_words_of_its_own() -> None:
    known = Rerank.discover(replies(info={"model_id": "BAAI/bge-reranker", "model_type": {"reranker": {}}}), None)
    tei = speak(Settings("rerank", known.model, owner=known.owner))
    assert (tei.path, body(tei, TWO)["texts"]) == ("/rerank", [LONG, "b"])
    assert "documents" not in body(tei, TWO)
    assert speak(Settings("rerank", "m", owner="tei", path="/x/rerank")).path == "/x/rerank"


@pytest.mark.parametrize(
    ("url", "target"),
    [
        ("http://h", "/v1/rerank"),
        ("https://api.cohere.com/v2/rerank", "/v2/rerank"),
        ("http://h/v3/rerank", "/v3/rerank"),
        ("http://h/tei/rerank", "/tei/rerank"),
    ],
)
def test_the_path_is_the_urls_own(url: str, target: str) -> None:
    found = site(url, "rerank")
    assert found.origin.path(found.path or RERANK.path) == target


RESULTS = [{"index": 1, "relevance_score": 0.9}, {"index": 0, "relevance_score": -3}]


@pytest.mark.parametrize(
    ("reply", "tokens"),
    [
        ({"results": RESULTS, "meta": {"billed_units": {"search_units": 1}, "tokens": {"input_tokens": 9}}}, 9),
        ({"results": RESULTS, "meta": {"billed_units": {"search_units": 1}}}, None),
        ({"results": RESULTS, "usage": {"total_tokens": 7}}, 7),
        ({"results": RESULTS, "usage": {"prompt_tokens": 6, "total_tokens": 7}, "meta": None}, 6),
        ({"object": "list", "data": RESULTS, "usage": None}, None),
        ([{"index": 0, "score": 0.1}, {"index": 1, "score": 0}], None),
        ([{"index": 0, "score": 10**400}, {"index": 1, "score": 0}], None),
    ],
)
def test_scores_are_counted_whichever_family_sent_them(reply: Any, tokens: int | None) -> None:
    reading = read(RERANK, counted(json.dumps(reply).encode()))
    answer = reading.answer
    assert (reading.outcome, answer.samples, answer.ended) == ("ok", 2, True)
    assert (answer.usage.input_tokens if answer.usage else None) == tokens


def test_fewer_scores_are_right_where_fewer_were_asked_for() -> None:
    dialect = speak(Settings("rerank", "m"))
    dialect.body(Ask(TWO.messages, 0, body='{"top_n": 1}'))
    reading = read(dialect, counted(json.dumps({"results": RESULTS[:1]}).encode()))
    assert (reading.outcome, reading.answer.samples) == ("ok", None)


@pytest.mark.parametrize(
    ("reply", "kind", "words"),
    [
        ({"results": []}, "not_a_stream", "holds no scores"),
        ({"results": {"0": 0.5}}, "not_a_stream", "holds no scores"),
        ({"ranked": RESULTS}, "not_a_stream", "holds no scores"),
        ({"results": [{"index": 0}]}, "not_a_stream", "no index or no score"),
        ({"results": [{"index": 0, "relevance_score": None}]}, "not_a_stream", "no index or no score"),
        ({"results": [{"index": 0, "relevance_score": float("nan")}]}, "not_a_stream", "no index or no score"),
        ({"results": [{"relevance_score": 0.5}]}, "not_a_stream", "no index or no score"),
        ({"results": [0.5]}, "not_a_stream", "no index or no score"),
        ({"results": [RESULTS[0], RESULTS[0]]}, "not_a_stream", "scored twice"),
        ({"error": "model is not a reranker", "error_type": "Backend"}, "json_error", "not a reranker"),
    ],
)
def test_what_is_no_score_is_no_answer(reply: Any, kind: str, words: str) -> None:
    error = read(RERANK, counted(json.dumps(reply).encode())).error
    assert error is not None
    assert error.kind == kind
    assert words in error.message


def test_no_cut_changes_what_an_answer_says() -> None:
    assert not differing(RERANK, (RECORDED / "api-rerank-cohere" / "response.bin").read_bytes())


@settings(max_examples=100, deadline=None)
@given(jsons("results index score relevance_score usage meta tokens"))
def test_no_shape_of_json_makes_it_raise(reply: Any) -> None:
    assert read(RERANK, counted(json.dumps(reply).encode())).outcome in ("ok", "stream_error")
