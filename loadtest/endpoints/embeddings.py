"""OpenAI embeddings: each message of the request is a text to embed, a sample.

Source: https://platform.openai.com/docs/api-reference/embeddings
"""

from typing import Any

import msgspec

from loadtest.endpoints.answer import Answer, Usage
from loadtest.endpoints.dialect import Dialect
from loadtest.endpoints.lenient import count_of, error_in, read_json, words
from loadtest.workload.model import Ask


class Embeddings(Dialect):
    """Texts in, vectors out."""

    path = "/v1/embeddings"
    endings = (path,)
    generates = False

    def body(self, ask: Ask) -> bytes:
        """See ``Dialect``."""
        own: dict[str, Any] = msgspec.json.decode(ask.body) if ask.body else {}
        texts = [message.content for message in ask.messages]
        return msgspec.json.encode({"model": ask.model or self.settings.model, **own, "input": texts})

    def event(self, answer: Answer, data: bytes, stamp: int) -> None:
        """See ``Dialect``; nothing of it is streamed."""
        self.whole(answer, data)

    def whole(self, answer: Answer, body: bytes) -> None:
        """See ``Dialect``."""
        try:
            reply = read_json(body)
        except ValueError:
            raise ValueError(f"the body is not JSON: {words(body)}") from None
        if (error := error_in(body)) is not None:
            answer.error = error
            return
        data = reply.get("data") if isinstance(reply, dict) else None
        if (
            not isinstance(data, list)
            or not data
            or not all(isinstance(item, dict) and item.get("embedding") for item in data)
        ):
            raise ValueError(f"the body holds no embeddings: {words(body)}")
        usage = reply.get("usage")
        if isinstance(usage, dict):
            answer.usage = Usage(count_of(usage.get("prompt_tokens")))
        answer.ended = True
