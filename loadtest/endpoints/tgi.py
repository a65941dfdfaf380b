"""Text Generation Inference: an event for each token, details with the last.

Source: https://huggingface.github.io/text-generation-inference/ (generate, generate_stream, info).
"""

from typing import Any

import msgspec

from loadtest.endpoints.answer import Answer, Usage
from loadtest.endpoints.dialect import Get, Settings
from loadtest.endpoints.lenient import count_of, text_of, words
from loadtest.endpoints.objects import Objects, paragraphs
from loadtest.errors import TargetError
from loadtest.target import Known
from loadtest.workload.model import Ask

_WHOLE = "/generate"


class TGI(Objects):
    """Completions. A model other than the server's own is an adapter of it."""

    path = "/generate_stream"
    endings = (path, _WHOLE)
    sign = "generated_text"

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        if not self.streams and settings.path is None:
            self.path = _WHOLE
        self.streams = self.streams and self.path != _WHOLE
        base = msgspec.json.decode(settings.told).get("model", settings.model)
        self._adapter = settings.model if settings.model != base else None

    def request(self, ask: Ask) -> tuple[dict[str, Any], dict[str, Any]]:
        """See ``Objects``."""
        parameters: dict[str, Any] = {"max_new_tokens": ask.max_tokens, "details": True}
        if self.settings.counting:  # a stream says it by itself; to ask it of every request would slow the server
            parameters["decoder_input_details"] = True
        if adapter := ask.model or self._adapter:
            parameters["adapter_id"] = adapter
        return {"parameters": parameters}, {"inputs": paragraphs(ask)}

    def take(self, answer: Answer, reply: dict[str, Any], stamp: int) -> bool:
        """See ``Objects``. A special token, as the end of a sequence is one, is no text."""
        token, text = reply.get("token"), reply.get("generated_text")
        if isinstance(token, dict):
            if token.get("special") is not True:
                answer.heard(stamp, text_of(token.get("text")))
        elif isinstance(text, str):
            answer.heard(stamp, text_of(text))
        else:
            return False
        if isinstance(text, str):
            answer.ended = True
            self._details(answer, reply.get("details"))
        return True

    def _details(self, answer: Answer, details: Any) -> None:
        if not isinstance(details, dict):
            return
        answer.finish_reason = text_of(details.get("finish_reason"))
        prefill = details.get("prefill")
        inputs = count_of(details.get("input_length"))
        if inputs is None and isinstance(prefill, list) and prefill:
            inputs = len(prefill)
        answer.usage = Usage(inputs, count_of(details.get("generated_tokens")))

    @classmethod
    def discover(cls, get: Get, model: str | None) -> Known:
        """See ``Dialect``. It serves one model, and tells its name."""
        reply = get("/info")
        card = reply.json if reply.status == 200 and isinstance(reply.json, dict) else {}
        own = card.get("model_id")
        if isinstance(own, str) and own:
            return Known(model or own, told=msgspec.json.encode({"model": own}).decode())
        if model is None:
            said = words(reply.text.encode())
            raise TargetError(f"/info names no model: {reply.status} {said}; name it with --model")
        return Known(model)
