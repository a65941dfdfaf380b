"""The OpenAI dialect: chat completions and completions, streamed or not.

Source: https://platform.openai.com/docs/api-reference (chat/completions, completions), and what servers that speak
it really send: content as null, as a list of typed parts, reasoning beside it, choices without a delta.
"""

from typing import Any, Literal

import msgspec

from loadtest.endpoints.answer import Answer, Usage
from loadtest.wire.sse import ErrorEvent

Kind = Literal["chat", "completions"]
PATHS: dict[Kind, str] = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}

# Servers that are known to take ``ignore_eos`` (an exact output length), by ``owned_by`` in their model list.
_EXACT_LENGTH_SERVERS = frozenset({"vllm", "sglang", "loadtest"})


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: list[Any] | None = None
    function_call: dict[str, Any] | None = None


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    text: str | None = None
    finish_reason: str | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: Any = None


_decode = msgspec.json.Decoder(_Chunk).decode
_decode_any = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


class OpenAI:
    """Bodies out, events in, for one model."""

    def __init__(self, kind: Kind, model: str, *, stream: bool, owner: str | None) -> None:
        self.kind = kind
        self.path = PATHS[kind]
        self.streams = stream
        self._fixed: dict[str, Any] = {"model": model, "stream": stream}
        if stream:
            self._fixed["stream_options"] = {"include_usage": True}
        if owner in _EXACT_LENGTH_SERVERS:
            self._fixed |= {"ignore_eos": True, "temperature": 0}

    def body(self, prompt: str, max_tokens: int) -> bytes:
        """The JSON body of one request."""
        asked: dict[str, Any] = (
            {"messages": [{"role": "user", "content": prompt}]} if self.kind == "chat" else {"prompt": prompt}
        )
        return _encode({**self._fixed, **asked, "max_tokens": max_tokens})

    def event(self, answer: Answer, data: bytes, stamp: int) -> None:
        """Take in the data of one stream event."""
        if answer.ended:
            return
        if data == b"[DONE]":
            answer.ended = True
            return
        try:
            chunk = _decode(data)
        except msgspec.ValidationError:
            chunk = _lenient(_decode_any(data))  # well-formed JSON in a shape the fast way does not know
        except (msgspec.DecodeError, UnicodeDecodeError):
            if isinstance(data, ErrorEvent):
                answer.error = _words(data)
            else:
                answer.bad_events += 1
            return
        if chunk.error is not None or isinstance(data, ErrorEvent):
            answer.error = error_text(data) or _words(data)
            return
        if chunk.usage is not None:
            answer.usage = _usage(chunk.usage)
        for choice in chunk.choices or ():
            if choice.finish_reason:
                answer.finish_reason = choice.finish_reason
            _take(answer, choice.delta, choice.text, stamp)

    def whole(self, answer: Answer, body: bytes) -> None:
        """Take in a completion that came in one piece; it has text and usage, but no token events.

        Raises:
            ValueError: it is not one; the message says what it is.
        """
        try:
            reply = _decode_any(body)
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise ValueError(f"the body is not JSON: {_words(body)}") from None
        if isinstance(reply, dict) and reply.get("error") is not None:
            answer.error = error_text(body) or _words(body)
            return
        if not isinstance(reply, dict) or not isinstance(reply.get("choices"), list):
            raise ValueError(f"the body is not a completion: {_words(body)}")
        for choice in reply["choices"]:
            if isinstance(choice, dict) and "delta" not in choice:
                choice["delta"] = choice.get("message")
        chunk = _lenient(reply)
        if chunk.usage is not None:
            answer.usage = _usage(chunk.usage)
        for choice in chunk.choices or ():
            answer.finish_reason = choice.finish_reason or answer.finish_reason
            _take(answer, choice.delta, choice.text, 0)
        answer.stamps.clear()
        answer.ended = True


def error_text(body: bytes) -> str | None:
    """The server's own words in an error body of any of the usual shapes, or None."""
    try:
        reply = _decode_any(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    if not isinstance(reply, dict):
        return None
    error = reply.get("error")
    for source in (error, reply):
        if isinstance(source, dict):
            for key in ("message", "detail", "error_description"):
                if source.get(key):
                    text = source[key]
                    return text if isinstance(text, str) else _encode(text).decode()
    return error if isinstance(error, str) and error else None


def _words(body: bytes, limit: int = 300) -> str:
    text = " ".join(body.decode("utf-8", "replace").split())
    return (text[:limit] + "…" if len(text) > limit else text) or "(empty)"


def _usage(usage: _Usage) -> Usage:
    details = usage.prompt_tokens_details
    return Usage(usage.prompt_tokens, usage.completion_tokens, details.cached_tokens if details else None)


def _take(answer: Answer, delta: _Delta | None, text: str | None, stamp: int) -> None:
    reasoning = False
    if delta is not None and not text:
        text = delta.content or delta.refusal
        if not text:
            if delta.tool_calls or delta.function_call:
                text = _call_text(delta)
            if not text:
                text = delta.reasoning_content or delta.reasoning
                reasoning = True
    if text:
        answer.stamps.append(stamp)
        answer.texts.append(text)
        if not reasoning and not answer.first_answer:
            answer.first_answer = stamp


def _call_text(delta: _Delta) -> str:
    calls = [call.get("function") for call in delta.tool_calls or () if isinstance(call, dict)]
    return "".join(
        str(call.get(key) or "")
        for call in (*calls, delta.function_call)
        if isinstance(call, dict)
        for key in ("name", "arguments")
    )


def _lenient(reply: Any) -> _Chunk:
    """Read a chunk of an unusual shape field by field; what is not understood is left out."""
    if not isinstance(reply, dict):
        return _Chunk()
    choices = []
    for choice in reply.get("choices") or ():
        if not isinstance(choice, dict):
            continue
        delta = choice.get("delta")
        finish, text = choice.get("finish_reason"), choice.get("text")
        choices.append(
            _Choice(
                _lenient_delta(delta) if isinstance(delta, dict) else None,
                text if isinstance(text, str) else None,
                finish if isinstance(finish, str) else None,
            )
        )
    usage = reply.get("usage")
    try:
        read = msgspec.convert(usage, _Usage) if isinstance(usage, dict) else None
    except msgspec.ValidationError:
        read = None
    return _Chunk(choices, read, reply.get("error"))


def _lenient_delta(delta: dict[str, Any]) -> _Delta:
    texts: dict[str, str | None] = {}
    for key in ("content", "reasoning_content", "reasoning", "refusal"):
        value = delta.get(key)
        texts[key] = value if isinstance(value, str) else None
    if isinstance(parts := delta.get("content"), list):
        said, thought = "", ""
        for part in parts:
            if not isinstance(part, dict):
                continue
            text = part.get("text")
            thinking = part.get("thinking") or part.get("reasoning") or ""
            if isinstance(thinking, list):  # Mistral nests text parts once more
                thinking = "".join(str(inner.get("text") or "") for inner in thinking if isinstance(inner, dict))
            if part.get("type") in ("thinking", "reasoning"):
                thought += str(thinking or text or "")
            else:
                said += text if isinstance(text, str) else ""
        texts["content"], texts["reasoning_content"] = said or None, thought or texts["reasoning_content"]
    calls, call = delta.get("tool_calls"), delta.get("function_call")
    return _Delta(
        **texts,
        tool_calls=calls if isinstance(calls, list) else None,
        function_call=call if isinstance(call, dict) else None,
    )
