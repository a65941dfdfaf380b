"""OpenAI embeddings: each message of the request is a text to embed, a sample.

Source: https://platform.openai.com/docs/api-reference/embeddings; Text Embeddings Inference (TEI) lists no models and
says at /info which it has: https://huggingface.github.io/text-embeddings-inference.
"""

import functools
import json
from typing import Any

import msgspec

from loadtest.endpoints.answer import Answer, Usage
from loadtest.endpoints.dialect import Dialect, Get
from loadtest.endpoints.lenient import count_of, error_in, read_json, words
from loadtest.endpoints.openai import user_keys
from loadtest.target import Known, model_cards
from loadtest.workload.model import Ask

TEI = "tei"


class _Vector(msgspec.Struct, gc=False):
    embedding: msgspec.Raw


class _Reply(msgspec.Struct, gc=False):
    data: list[_Vector]
    usage: Any = None


_decode = msgspec.json.Decoder(_Reply).decode
_encode = msgspec.json.Encoder().encode


class Texts(Dialect):
    """What embeddings and reranking have in common: several texts in, a value for each out, in one piece."""

    generates = False
    batches = True

    def samples(self, ask: Ask) -> int:
        """See ``Dialect``."""
        return len(ask.messages)

    def event(self, answer: Answer, data: bytes, stamp: int) -> None:
        """See ``Dialect``; nothing of it is streamed."""
        self.whole(answer, data)

    @classmethod
    def discover(cls, get: Get, model: str | None) -> Known:
        """See ``Dialect``. A TEI, which has one model and lists none, is its own owner."""
        get = functools.cache(get)
        if not model_cards(get("/v1/models")):
            info = get("/info").json
            if isinstance(info, dict) and isinstance(info.get("model_id"), str):
                return Known(model or info["model_id"], TEI)
        return super().discover(get, model)


class Embeddings(Texts):
    """Texts in, vectors out: lists of numbers, or base64 where the user's keys ask for that."""

    path = "/v1/embeddings"
    endings = (path,)

    def body(self, ask: Ask) -> bytes:
        """See ``Dialect``."""
        own = {"model": ask.model or self.settings.model, "input": [message.content for message in ask.messages]}
        return _encode({**user_keys(ask.body), **own} if ask.body else own)

    def whole(self, answer: Answer, body: bytes) -> None:
        """See ``Dialect``. A vector without numbers, or with one that is none, is no answer."""
        try:
            reply = _decode(body)
        except (msgspec.DecodeError, RecursionError):
            found = told(answer, body)
            if answer.error is not None:
                return
            reply = _lenient(found)
        if not reply.data:
            raise ValueError(f"the body holds no embeddings: {words(body)}")
        for place, vector in enumerate(reply.data):
            if (fault := _fault(bytes(vector.embedding).strip())) is not None:
                raise ValueError(f"embedding {place} {fault}")
        answer.samples = len(reply.data)
        answer.usage = usage_of(reply.usage)
        answer.ended = True


def told(answer: Answer, body: bytes) -> Any:
    """The JSON of an answer; where it is an error object, that is taken in.

    Raises:
        ValueError: it is no JSON; the message says what it is.
    """
    try:
        reply = read_json(body)
    except ValueError:
        raise ValueError(f"the body is not JSON: {words(body)}") from None
    answer.error = error_in(body)
    return reply


def usage_of(usage: Any) -> Usage | None:
    """The input tokens of a usage object; where it counts the total alone, that is all input."""
    if not isinstance(usage, dict):
        return None
    counts = [count_of(usage.get(key)) for key in ("prompt_tokens", "input_tokens", "total_tokens")]
    return Usage(next((count for count in counts if count is not None), None))


def _fault(vector: bytes) -> str | None:
    """What is wrong with a vector as it stands in JSON."""
    if vector in (b"[]", b'""'):
        return "is empty"
    if not vector.startswith((b"[", b'"')):
        return f"is no vector: {words(vector, 60)}"
    if vector.startswith(b"[") and any(name in vector for name in (b"null", b"NaN", b"Infinity")):
        return "holds values that are no numbers (null or NaN)"
    return None


def _lenient(reply: Any) -> _Reply:
    """Read an answer of an unusual shape; what is no list of vectors is none."""
    data = reply.get("data") if isinstance(reply, dict) else None
    if not isinstance(data, list) or not all(isinstance(item, dict) and "embedding" in item for item in data):
        return _Reply([])
    vectors = [_Vector(msgspec.Raw(json.dumps(item["embedding"]).encode())) for item in data]
    return _Reply(vectors, reply.get("usage"))
