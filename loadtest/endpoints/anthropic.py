"""Anthropic's messages: typed events, reasoning and tool calls in blocks of their own, usage at both ends.

Source: https://docs.anthropic.com/en/api/messages and /en/api/messages-streaming.
"""

import json
from typing import Any

from loadtest.endpoints.answer import Answer, Usage
from loadtest.endpoints.lenient import clean, count_of, error_text, read_json, text_of
from loadtest.endpoints.objects import Objects
from loadtest.workload.model import Ask

_CACHE_READ, _CACHE_WRITTEN = "cache_read_input_tokens", "cache_creation_input_tokens"


class Anthropic(Objects):
    """Messages, streamed or not.

    Its ``input_tokens`` are those that no cache had to do with; ours are all of the prompt: with those that were read
    from a cache, which stand apart as cached, and those that were written to one.
    """

    path = "/v1/messages"
    converses = True
    key_header = "x-api-key"
    headers = (("anthropic-version", "2023-06-01"),)
    endings = (path,)
    greedy = '{"temperature": 0}'
    sign = "message_stop"

    def request(self, ask: Ask) -> tuple[dict[str, Any], dict[str, Any]]:
        """See ``Objects``. What the system says has a place of its own."""
        system = [message.content for message in ask.messages if message.role in ("system", "developer")]
        messages: list[Any] = [message for message in ask.messages if message.role not in ("system", "developer")]
        if ask.images and messages:
            last = messages[-1]
            parts = [*map(_picture, ask.images), {"type": "text", "text": last.content}]
            messages[-1] = {"role": last.role, "content": parts}
        asked: dict[str, Any] = {"messages": messages, "stream": self.streams}
        ours: dict[str, Any] = {"max_tokens": ask.max_tokens}
        if system:
            asked["system"] = "\n\n".join(system)
        (ours if ask.model is None else asked)["model"] = ask.model or self.settings.model
        return ours, asked

    def take(self, answer: Answer, reply: dict[str, Any], stamp: int) -> bool:
        """See ``Objects``. Kinds of events that are not known are let pass, as the source asks."""
        kind = reply.get("type")
        if kind == "content_block_delta":
            block = reply.get("delta")
            if isinstance(block, dict):
                said = text_of(block.get("text")) or text_of(block.get("partial_json"))
                answer.heard(stamp, said, text_of(block.get("thinking")))
        elif kind == "content_block_start":
            block = reply.get("content_block")
            if isinstance(block, dict):
                said = text_of(block.get("text")) or text_of(block.get("name"))
                answer.heard(stamp, said, text_of(block.get("thinking")))
        elif kind == "message_start":
            message = reply.get("message")
            answer.kept = message.get("usage") if isinstance(message, dict) else None
        elif kind == "message_delta":
            self._last(answer, reply.get("delta"), reply.get("usage"))
        elif kind == "message_stop":
            answer.ended = True
        elif kind == "message" and isinstance(blocks := reply.get("content"), list):
            for block in blocks:
                if isinstance(block, dict):
                    said = text_of(block.get("text")) or _call_text(block)
                    answer.heard(stamp, said, text_of(block.get("thinking")))
            self._last(answer, reply, reply.get("usage"))
        else:
            return isinstance(kind, str) and stamp > 0
        return True

    def error_text(self, body: bytes) -> str | None:
        """See ``Dialect``. The error's type (``overloaded_error``) says more than its words."""
        said = error_text(body)
        try:
            kind = read_json(body)["error"]["type"]
        except (ValueError, LookupError, TypeError):
            return said
        return f"{clean(kind)}: {said}" if said and isinstance(kind, str) else said

    def _last(self, answer: Answer, outcome: Any, usage: Any) -> None:
        """Why it ended, and the counts: of the prompt at the start, of the output at the end and in all."""
        if isinstance(outcome, dict):
            answer.finish_reason = text_of(outcome.get("stop_reason")) or answer.finish_reason
        known = {
            key: count
            for source in (answer.kept, usage)
            if isinstance(source, dict)
            for key in ("input_tokens", _CACHE_READ, _CACHE_WRITTEN)
            if (count := count_of(source.get(key))) is not None
        }
        output = count_of(usage.get("output_tokens")) if isinstance(usage, dict) else None
        if output is None and answer.usage is not None:  # a second delta without counts takes none away
            output = answer.usage.output_tokens
        answer.usage = Usage(sum(known.values()) if known else None, output, known.get(_CACHE_READ))


def _picture(url: str) -> dict[str, Any]:
    head, comma, data = url.partition(";base64,")
    if not comma:
        return {"type": "image", "source": {"type": "url", "url": url}}
    return {
        "type": "image",
        "source": {"type": "base64", "media_type": head.removeprefix("data:"), "data": data},
    }


def _call_text(block: dict[str, Any]) -> str | None:
    """A tool call that came whole, as the text that a stream would have brought."""
    if block.get("type") != "tool_use":
        return None
    return clean(f"{block.get('name') or ''}{json.dumps(block.get('input'))}")
