"""Reranking: each message of the request is a document to score against a query, a sample.

Source: https://docs.cohere.com/reference/rerank (v1 and v2), https://jina.ai/reranker, vLLM's Re-rank API, and the
/rerank of Text Embeddings Inference (TEI), whose documents are ``texts`` and whose answer is a bare list.
"""

import math
from itertools import islice
from typing import Any

import msgspec

from loadtest.endpoints.answer import Answer, Usage
from loadtest.endpoints.dialect import Settings
from loadtest.endpoints.embeddings import TEI, Texts, told, usage_of
from loadtest.endpoints.lenient import count_of, words
from loadtest.endpoints.openai import user_keys
from loadtest.workload.model import Ask

QUERY_WORDS = 16

_encode = msgspec.json.Encoder().encode


class Rerank(Texts):
    """Documents in, scores out. The query is the first words of the first document, so that it fits one of them."""

    path = "/v1/rerank"
    endings = (path, "/v2/rerank")

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._documents = "documents"
        self._cut = False  # whether fewer scores than documents are asked for
        if settings.owner == TEI:
            self._documents = "texts"
            self.path = settings.path or "/rerank"

    def body(self, ask: Ask) -> bytes:
        """See ``Dialect``. The user's keys stand above ours, but for the model and the documents."""
        texts = [message.content for message in ask.messages]
        query = " ".join(islice(texts[0].split(), QUERY_WORDS))
        own = {"model": ask.model or self.settings.model, self._documents: texts}
        if ask.body is None:
            return _encode({"query": query, **own})
        keys = user_keys(ask.body)
        self._cut = self._cut or "top_n" in keys
        return _encode({"query": query, **keys, **own})

    def whole(self, answer: Answer, body: bytes) -> None:
        """See ``Dialect``. A document without a score, or with one that is no number, is no answer."""
        reply = told(answer, body)
        if answer.error is not None:
            return
        results = reply
        if isinstance(reply, dict):
            results = next((reply[key] for key in ("results", "data") if key in reply), None)
            answer.usage = _usage(reply)
        if not isinstance(results, list) or not results:
            raise ValueError(f"the body holds no scores: {words(body)}")
        if not all(_scored(result) for result in results):
            raise ValueError(f"a result has no index or no score: {words(body)}")
        if len({result["index"] for result in results}) < len(results):
            raise ValueError(f"a document is scored twice: {words(body)}")
        answer.samples = None if self._cut else len(results)
        answer.ended = True


def _scored(result: Any) -> bool:
    if not isinstance(result, dict) or count_of(result.get("index")) is None:
        return False
    score = next((result[key] for key in ("relevance_score", "score") if key in result), None)
    return isinstance(score, int) or (isinstance(score, float) and not math.isnan(score))


def _usage(reply: dict[str, Any]) -> Usage | None:
    """Token counts, where each of the families has them; units that are billed are none."""
    if (found := usage_of(reply.get("usage"))) is not None or not isinstance(meta := reply.get("meta"), dict):
        return found
    return usage_of(meta.get("tokens")) or usage_of(meta.get("billed_units"))
