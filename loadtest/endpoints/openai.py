"""The OpenAI dialect: chat completions and completions, streamed or not.

Source: https://platform.openai.com/docs/api-reference (chat/completions, completions), and what servers that speak
it really send: content as null, as a list of typed parts, reasoning beside it, choices without a delta.
"""

import functools
import json
from typing import Annotated, Any, Literal

import msgspec

from loadtest.endpoints.answer import Answer, Usage
from loadtest.wire.sse import ErrorEvent
from loadtest.workload.model import Ask

Kind = Literal["chat", "completions"]
PATHS: dict[Kind, str] = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}

# Servers that are known to take ``ignore_eos`` (an exact output length), by ``owned_by`` in their model list.
_EXACT_LENGTH_SERVERS = frozenset({"vllm", "sglang", "loadtest"})


_Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]  # beyond that it is no count, and no JSON number either


# Made for every event and holding no cycles: of no concern to the garbage collector, which makes them cheaper.
class _Details(msgspec.Struct, gc=False):
    cached_tokens: _Count | None = None


class _Usage(msgspec.Struct, gc=False):
    prompt_tokens: _Count | None = None
    completion_tokens: _Count | None = None
    prompt_tokens_details: _Details | None = None


class _Delta(msgspec.Struct, gc=False):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: list[Any] | None = None
    function_call: dict[str, Any] | None = None


class _Choice(msgspec.Struct, gc=False):
    delta: _Delta | None = None
    text: str | None = None
    finish_reason: str | None = None
    message: _Delta | None = None  # a delta's place in an answer that comes whole


class _Chunk(msgspec.Struct, gc=False):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: Any = None


_decode = msgspec.json.Decoder(_Chunk).decode
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

    def body(self, ask: Ask) -> bytes:
        """The JSON body of one request; of completions, which have no messages, those are paragraphs of the prompt."""
        own: dict[str, Any]
        if self.kind == "chat":
            own = {"messages": [*ask.messages[:-1], _with_images(ask)] if ask.images else ask.messages}
        else:
            own = {"prompt": "\n\n".join(message.content for message in ask.messages)}
        if ask.model is not None:
            own["model"] = ask.model
        if ask.body is None:
            return _encode({**self._fixed, **own, "max_tokens": ask.max_tokens})
        # The user's keys stand above ours, but for what is asked of which model, and how the answer comes.
        own["stream"] = self.streams
        own.setdefault("model", self._fixed["model"])
        return _encode({**self._fixed, "max_tokens": ask.max_tokens, **_keys(ask.body), **own})

    def event(self, answer: Answer, data: bytes, stamp: int) -> None:
        """Take in the data of one stream event."""
        if answer.ended:
            return
        if data == b"[DONE]":
            answer.ended = True
            return
        try:
            chunk = _decode(data)
        except (msgspec.DecodeError, RecursionError):
            try:
                chunk = _lenient(_read(data))
            except ValueError:
                if isinstance(data, ErrorEvent):
                    answer.error = answer.error or _words(data)
                elif data.strip():  # an event without data is a sign of life
                    answer.bad_events += 1
                return
        if (not chunk.choices and chunk.usage is None) or chunk.error or isinstance(data, ErrorEvent):
            error = _error(data)
            if error is None and isinstance(data, ErrorEvent):
                error = _words(data)
            if error is not None:
                answer.error = answer.error or error
                return
        if chunk.usage is not None:
            answer.usage = _usage(chunk.usage)
        brought = False
        for choice in chunk.choices or ():
            if choice.finish_reason:
                answer.finish_reason = choice.finish_reason
            brought = _take(answer, choice, stamp) or brought
        if brought:
            answer.stamps.append(stamp)

    def whole(self, answer: Answer, body: bytes) -> None:
        """Take in a completion that came in one piece; it has text and usage, but no token events.

        Raises:
            ValueError: it is not one; the message says what it is.
        """
        try:
            chunk = _decode(body)
        except (msgspec.DecodeError, RecursionError):
            chunk = _Chunk()
        if not chunk.choices or chunk.error:
            chunk = self._unusual(answer, body)
        if chunk.usage is not None:
            answer.usage = _usage(chunk.usage)
        for choice in chunk.choices or ():
            choice.delta = choice.delta or choice.message
            answer.finish_reason = choice.finish_reason or answer.finish_reason
            _take(answer, choice, 0)
        answer.ended = answer.error is None

    def _unusual(self, answer: Answer, body: bytes) -> _Chunk:
        """A whole answer that the fast way does not know: an error, or what is understood of it."""
        try:
            reply = _read(body)
        except ValueError:
            raise ValueError(f"the body is not JSON: {_words(body)}") from None
        if (error := _error(body)) is not None:
            answer.error = error
            return _Chunk()
        if not isinstance(reply, dict) or not isinstance(reply.get("choices"), list):
            raise ValueError(f"the body is not a completion: {_words(body)}")
        for choice in reply["choices"]:
            if isinstance(choice, dict) and "delta" not in choice:
                choice["delta"] = choice.get("message")
        return _lenient(reply)


def _with_images(ask: Ask) -> dict[str, Any]:
    """The last message with the pictures that go with it."""
    message = ask.messages[-1]
    pictures = [{"type": "image_url", "image_url": {"url": url}} for url in ask.images]
    return {"role": message.role, "content": [{"type": "text", "text": message.content}, *pictures]}


@functools.lru_cache(64)
def _keys(body: str) -> dict[str, Any]:
    return msgspec.json.decode(body, type=dict[str, Any])


def error_text(body: bytes) -> str | None:
    """The server's own words in an error body of any of the usual shapes, or None."""
    try:
        reply = _read(body)
    except ValueError:
        return None
    if not isinstance(reply, dict):
        return None
    error = reply.get("error")
    for source in (error, reply):
        if isinstance(source, dict):
            for key in ("message", "detail", "error_description"):
                if source.get(key):
                    text = source[key]
                    return _clean(text if isinstance(text, str) else json.dumps(text))
    return _clean(error) if isinstance(error, str) and error else None


def _error(data: bytes) -> str | None:
    """The words of an error object, or None if this is not one.

    ``{"error": …}`` is the usual shape; older vLLM and FastChat send the error flat, told by its object or its code.
    """
    try:
        reply = _read(data)
    except ValueError:
        return None
    if not isinstance(reply, dict):
        return None
    flat = "choices" not in reply and (
        reply.get("object") == "error" or reply.get("type") == "error" or reply.get("error_code")
    )
    return error_text(data) or _words(data) if reply.get("error") or flat else None


def _read(data: bytes) -> Any:
    """JSON as servers write it: also with NaN, lone surrogates, or bytes that are not UTF-8 (read as U+FFFD).

    Raises:
        ValueError: it is not JSON.
    """
    try:
        return json.loads(data.decode("utf-8", "replace"))
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _clean(text: str) -> str:
    """Text that can be stored: a lone surrogate is no character."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _words(body: bytes, limit: int = 300) -> str:
    text = " ".join(body.decode("utf-8", "replace").split())
    return (text[:limit] + "…" if len(text) > limit else text) or "(empty)"


def _usage(usage: _Usage) -> Usage:
    details = usage.prompt_tokens_details
    return Usage(usage.prompt_tokens, usage.completion_tokens, details.cached_tokens if details else None)


def _take(answer: Answer, choice: _Choice, stamp: int) -> bool:
    """Take in what one choice brought; tells whether that was generated output of any channel."""
    delta, said, thought = choice.delta, choice.text, None
    if delta is not None and not said:
        said = delta.content or delta.refusal
        if not said and (delta.tool_calls or delta.function_call):
            said = _call_text(delta)
        thought = delta.reasoning_content or delta.reasoning
    if thought:
        answer.thoughts.append(len(answer.texts))
        answer.texts.append(thought)
    if said:
        answer.texts.append(said)
        if not answer.first_answer:
            answer.first_answer = stamp
    return bool(said or thought)


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
    listed = reply.get("choices")
    for choice in listed if isinstance(listed, list) else ():
        if not isinstance(choice, dict):
            continue
        delta = choice.get("delta")
        choices.append(
            _Choice(
                _lenient_delta(delta) if isinstance(delta, dict) else None,
                _text(choice.get("text")),
                _text(choice.get("finish_reason")),
            )
        )
    usage = reply.get("usage")
    return _Chunk(choices, _lenient_usage(usage) if isinstance(usage, dict) else None, reply.get("error"))


def _text(value: Any) -> str | None:
    return _clean(value) if isinstance(value, str) else None


def _count(value: Any) -> int | None:
    """A token count, also one written as 5.0; None if it cannot be one."""
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 2**53 and value == int(value):
        return int(value)
    return None


def _lenient_usage(usage: dict[str, Any]) -> _Usage:
    details = usage.get("prompt_tokens_details")
    cached = _count(details.get("cached_tokens")) if isinstance(details, dict) else None
    return _Usage(
        _count(usage.get("prompt_tokens")),
        _count(usage.get("completion_tokens")),
        None if cached is None else _Details(cached),
    )


def _lenient_delta(delta: dict[str, Any]) -> _Delta:
    texts: dict[str, str | None] = {}
    for key in ("content", "reasoning_content", "reasoning", "refusal"):
        texts[key] = _text(delta.get(key))
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
        texts["content"] = _clean(said) or None
        texts["reasoning_content"] = _clean(thought) or texts["reasoning_content"]
    calls, call = delta.get("tool_calls"), delta.get("function_call")
    return _Delta(
        **texts,
        tool_calls=calls if isinstance(calls, list) else None,
        function_call=call if isinstance(call, dict) else None,
    )
