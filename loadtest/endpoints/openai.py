"""The OpenAI dialect: chat completions and completions, streamed or not.

Source: https://platform.openai.com/docs/api-reference (chat/completions, completions), and what servers that speak
it really send: content as null, as a list of typed parts, reasoning beside it, choices without a delta. What vLLM and
SGLang take besides: https://docs.vllm.ai (OpenAI-compatible server, extra parameters).
"""

import functools
import re
from typing import Annotated, Any

import msgspec

from loadtest.endpoints.answer import Answer, Usage
from loadtest.endpoints.dialect import Dialect, Settings
from loadtest.endpoints.lenient import clean, count_of, error_in, read_json, text_of, words
from loadtest.wire.sse import ErrorEvent
from loadtest.workload.model import Ask

# Servers that are known to take ``ignore_eos`` (an exact output length), by ``owned_by`` in their model list.
_EXACT_LENGTH_SERVERS = frozenset({"vllm", "sglang", "loadtest"})

# What docs/metrics.md allows to be asked otherwise, by the field that a 400 names.
_RENAMED = "max_tokens → max_completion_tokens"
_ADAPTATIONS = {"stream_options": "stream_options", "include_usage": "stream_options", "max_tokens": _RENAMED}
_ADAPTATIONS["temperature"] = "temperature"
_LIMITS = {"max_tokens", "max_completion_tokens"}
_FIELD = re.compile(rf"(?<!\w)({'|'.join(_ADAPTATIONS)})(?!\w)")
# A field that is not taken at all, or not with a value other than the default; not one that is merely too large.
_NOT_TAKEN = re.compile(
    r"unsupported|un(recogni[sz]|expect|know)|extra|forbidden|deprecated|invalid (param|arg|field)"
    r"|(not|n't|no longer) (be |a |an |yet |currently )?(support|permit|allow|accept|know|implement|recogni[sz]|valid)"
    r"|only (1\b|the default)|(has|have) no\b|max_completion_tokens\W* instead|instead of\b",
    re.IGNORECASE,
)

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


class OpenAI(Dialect):
    """What chat completions and completions have in common."""

    greedy = '{"temperature": 0}'

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._limit = "max_completion_tokens" if _RENAMED in settings.left_out else "max_tokens"
        self._fixed: dict[str, Any] = {"model": settings.model, "stream": self.streams}
        if self.streams and "stream_options" not in settings.left_out:
            self._fixed["stream_options"] = {"include_usage": True}
        self._fixed |= exact_length(settings)

    def body(self, ask: Ask) -> bytes:
        """The JSON body of one request; of completions, which have no messages, those are paragraphs of the prompt."""
        own: dict[str, Any]
        if self.converses:
            own = {"messages": [*ask.messages[:-1], _with_images(ask)] if ask.images else ask.messages}
        else:
            own = {"prompt": "\n\n".join(message.content for message in ask.messages)}
        if ask.model is not None:
            own["model"] = ask.model
        if ask.body is None:
            return _encode({**self._fixed, **own, self._limit: ask.max_tokens})
        # The user's keys stand above ours, but for what is asked of which model, and how the answer comes.
        own["stream"] = self.streams
        own.setdefault("model", self._fixed["model"])
        keys = user_keys(ask.body)
        limit = {} if keys.keys() & _LIMITS else {self._limit: ask.max_tokens}  # no server takes both
        asked = {**self._fixed, **limit, **keys, **own}
        if not self.streams:
            asked.pop("stream_options", None)  # of what does not stream it is an error
        elif isinstance(options := keys.get("stream_options"), dict):
            asked["stream_options"] = self._fixed.get("stream_options", {}) | options
        return _encode(asked)

    def adaptation(self, words: str) -> str | None:
        """See ``Dialect``: of the fields that these words name, the first that we sent and can do without."""
        if not _NOT_TAKEN.search(words):
            return None
        for field in _FIELD.findall(words):
            name = _ADAPTATIONS[field]
            if name in self._fixed or (name == _RENAMED and self._limit == "max_tokens"):
                return name
        return None

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
                chunk = _lenient(read_json(data))
            except ValueError:
                if isinstance(data, ErrorEvent):
                    answer.error = answer.error or words(data)
                elif data.strip():  # an event without data is a sign of life
                    answer.bad_events += 1
                return
        if (not chunk.choices and chunk.usage is None) or chunk.error or isinstance(data, ErrorEvent):
            error = error_in(data)
            if error is None and isinstance(data, ErrorEvent):
                error = words(data)
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
            reply = read_json(body)
        except ValueError:
            raise ValueError(f"the body is not JSON: {words(body)}") from None
        if (error := error_in(body)) is not None:
            answer.error = error
            return _Chunk()
        if not isinstance(reply, dict) or not isinstance(reply.get("choices"), list):
            raise ValueError(f"the body is not a completion: {words(body)}")
        for choice in reply["choices"]:
            if isinstance(choice, dict) and "delta" not in choice:
                choice["delta"] = choice.get("message")
        return _lenient(reply)


class Chat(OpenAI):
    """Chat completions."""

    path = "/v1/chat/completions"
    converses = True
    endings = (path, "/invocations")


class Completions(OpenAI):
    """Completions."""

    path = "/v1/completions"
    endings = (path,)


def exact_length(settings: Settings) -> dict[str, Any]:
    """Keys that make an answer as long as it is asked to be, where the server is known to take them."""
    if settings.owner not in _EXACT_LENGTH_SERVERS:
        return {}
    return {"ignore_eos": True} if "temperature" in settings.left_out else {"ignore_eos": True, "temperature": 0}


def _with_images(ask: Ask) -> dict[str, Any]:
    """The last message with the pictures that go with it."""
    message = ask.messages[-1]
    pictures = [{"type": "image_url", "image_url": {"url": url}} for url in ask.images]
    return {"role": message.role, "content": [{"type": "text", "text": message.content}, *pictures]}


@functools.lru_cache(64)
def user_keys(body: str) -> dict[str, Any]:
    """The keys that a request's body is given by the user; not to be changed."""
    return msgspec.json.decode(body, type=dict[str, Any])


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
                text_of(choice.get("text")),
                text_of(choice.get("finish_reason")),
            )
        )
    usage = reply.get("usage")
    return _Chunk(choices, _lenient_usage(usage) if isinstance(usage, dict) else None, reply.get("error"))


def _lenient_usage(usage: dict[str, Any]) -> _Usage:
    details = usage.get("prompt_tokens_details")
    cached = count_of(details.get("cached_tokens")) if isinstance(details, dict) else None
    return _Usage(
        count_of(usage.get("prompt_tokens")),
        count_of(usage.get("completion_tokens")),
        None if cached is None else _Details(cached),
    )


def _lenient_delta(delta: dict[str, Any]) -> _Delta:
    texts: dict[str, str | None] = {}
    for key in ("content", "reasoning_content", "reasoning", "refusal"):
        texts[key] = text_of(delta.get(key))
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
        texts["content"] = clean(said) or None
        texts["reasoning_content"] = clean(thought) or texts["reasoning_content"]
    calls, call = delta.get("tool_calls"), delta.get("function_call")
    return _Delta(
        **texts,
        tool_calls=calls if isinstance(calls, list) else None,
        function_call=call if isinstance(call, dict) else None,
    )
