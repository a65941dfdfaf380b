"""The OpenAI dialect: request bodies in, answers out. No sockets here.

What a field would change and this server cannot do is refused by name; fields that change nothing in the answer
(``user``, ``metadata``…) are accepted. Format: OpenAI API reference, "Completions" and "Chat".
"""

import json
import re
import time
import uuid
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec

from servers.engine import FinishReason, Generation
from servers.sampling import Sampler
from servers.tokenizer import BYTES, ROLES, Tokenizer, Unencodable

Kind = Literal["chat", "completions"]

# Fields with the values that ask for nothing special; any other value is refused.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "audio": (None,),
    "best_of": (None, 1),
    "echo": (None, False),
    "frequency_penalty": (None, 0),
    "function_call": (None, "none", "auto"),
    "functions": (None, []),
    "logit_bias": (None, {}),
    "logprobs": (None, False),
    "modalities": (None, ["text"]),
    "n": (None, 1),
    "prediction": (None,),
    "presence_penalty": (None, 0),
    "response_format": (None, {"type": "text"}),
    "suffix": (None, ""),
    "tool_choice": (None, "none", "auto"),
    "tools": (None, []),
    "top_logprobs": (None, 0),
    "web_search_options": (None,),
}
_WITHOUT_EFFECT = (
    "metadata", "parallel_tool_calls", "prompt_cache_key", "safety_identifier", "service_tier", "store", "user",
)  # fmt: skip
_OBJECTS = {
    ("chat", True): "chat.completion.chunk",
    ("chat", False): "chat.completion",
    ("completions", True): "text_completion",
    ("completions", False): "text_completion",
}


class RequestError(Exception):
    """A request that is refused, in OpenAI's terms."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        kind: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.param = param
        self.code = code

    def body(self) -> dict[str, Any]:
        """The JSON body of the refusal."""
        error = {"message": str(self), "type": self.kind, "param": self.param, "code": self.code}
        return {"error": error}


class _StreamOptions(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    include_usage: bool = False


class _Fields(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    model: str
    max_tokens: Annotated[int, msgspec.Meta(ge=1)] | None = None
    temperature: Annotated[float, msgspec.Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, msgspec.Meta(gt=0, le=1)] | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    ignore_eos: bool | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None


class _Completion(_Fields, frozen=True, kw_only=True):
    prompt: str | list[str | int | list[int]]


class _TextPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    type: str
    text: str


class _Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    role: str
    content: str | list[_TextPart]
    name: str | None = None


class _Chat(_Fields, frozen=True, kw_only=True):
    messages: list[_Message]
    max_completion_tokens: Annotated[int, msgspec.Meta(ge=1)] | None = None


@dataclass(frozen=True)
class Request:
    """A request that can be served."""

    kind: Kind
    model: str
    generation: Generation
    stream: bool
    include_usage: bool


def parse(kind: Kind, body: bytes, model: str, max_seq_len: int, tokenizer: Tokenizer = BYTES) -> Request:
    """Read the body of a request to ``model``, whose context holds ``max_seq_len`` tokens of ``tokenizer``.

    Raises:
        RequestError: it is not JSON, a field is unknown, missing, of the wrong type, out of range or not supported,
            the model is another one, or prompt and answer do not fit the context.
    """
    try:
        document = json.loads(body, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"the body is not valid JSON: {error}") from error
    if not isinstance(document, dict):
        raise RequestError("the body must be a JSON object")
    _refuse_unsupported(document)
    fields = _convert(document, kind)
    if fields.model != model:
        raise RequestError(
            f"The model `{fields.model}` does not exist; this server serves `{model}`",
            status=404, param="model", code="model_not_found",
        )  # fmt: skip
    if fields.stream_options is not None and not fields.stream:
        raise RequestError("stream_options is only allowed with stream: true", param="stream_options")
    prompt = _prompt(fields, tokenizer)
    return Request(
        kind=kind,
        model=model,
        generation=Generation(
            prompt=prompt,
            max_tokens=_max_tokens(fields, len(prompt), max_seq_len),
            ignore_eos=bool(fields.ignore_eos),
            stops=_stops(fields.stop),
            sampler=_sampler(fields),
            tokenizer=tokenizer,
        ),
        stream=bool(fields.stream),
        include_usage=fields.stream_options is not None and fields.stream_options.include_usage,
    )


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")


def _refuse_unsupported(document: dict[str, Any]) -> None:
    for name in _WITHOUT_EFFECT:
        document.pop(name, None)
    for name, neutral in _NEUTRAL.items():
        if document.pop(name, None) not in neutral:
            wanted = neutral[1:] or ("null",)
            raise RequestError(f"{name} is not supported here; leave it out or give {wanted[0]!r}", param=name)
    messages = document.get("messages")
    for i, message in enumerate(messages if isinstance(messages, list) else []):
        if not isinstance(message, dict):
            continue
        role = message.get("role", "user")  # that it is missing is said with the other fields
        if not isinstance(role, str) or role not in ROLES:
            roles = ", ".join(ROLES)
            raise RequestError(
                f"messages[{i}].role must be one of {roles}, not {role!r}",
                param=f"messages[{i}].role",
            )
        content = message.get("content")
        for part in content if isinstance(content, list) else []:
            if isinstance(part, dict) and part.get("type", "text") != "text":
                raise RequestError(
                    f"messages[{i}].content: a part of type {part['type']!r} is not supported; "
                    "this model reads text only",
                    param=f"messages[{i}].content",
                )


def _convert(document: dict[str, Any], kind: Kind) -> _Chat | _Completion:
    try:
        if kind == "chat":
            return msgspec.convert(document, _Chat)
        return msgspec.convert(document, _Completion)
    except msgspec.ValidationError as error:
        text = str(error)
        where = re.search(r" - at `\$\.?([^`]*)`$", text)
        named = re.search(r"(?:unknown|required) field `([^`]+)`", text)
        param = ".".join(part for part in (where and where[1], named and named[1]) if part) or None
        message = text[: where.start()] if where else text
        prefix = f"{where[1]}: " if where and where[1] else ""
        raise RequestError(prefix + message[:1].lower() + message[1:], param=param) from error


def _prompt(fields: _Chat | _Completion, tokenizer: Tokenizer) -> list[int]:
    try:
        if isinstance(fields, _Chat):
            if not fields.messages:
                raise RequestError("messages must not be empty", param="messages")
            return tokenizer.encode_chat((m.role, _content(m.content)) for m in fields.messages)
        prompt = fields.prompt
        if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
            if len(prompt) > 1:
                raise RequestError("prompt: one prompt a request; send the others separately", param="prompt")
            prompt = prompt[0] if isinstance(prompt[0], str) else [*prompt[0]]
        if isinstance(prompt, str):
            return tokenizer.encode(prompt)
    except Unencodable as error:
        raise RequestError(str(error), param="messages" if isinstance(fields, _Chat) else "prompt") from error
    ids = [token for token in prompt if isinstance(token, int) and 0 <= token < tokenizer.size]
    if not ids or len(ids) < len(prompt):
        raise RequestError(f"prompt: token ids must be 0 to {tokenizer.size - 1}, and at least one", param="prompt")
    return ids


def _content(content: str | list[_TextPart]) -> str:
    return content if isinstance(content, str) else "".join(part.text for part in content)


def _max_tokens(fields: _Chat | _Completion, prompt: int, max_seq_len: int) -> int:
    name, wanted = "max_tokens", fields.max_tokens
    if isinstance(fields, _Chat) and fields.max_completion_tokens is not None:
        if wanted not in (None, fields.max_completion_tokens):
            raise RequestError("give max_completion_tokens or max_tokens, not both", param="max_tokens")
        name, wanted = "max_completion_tokens", fields.max_completion_tokens
    if wanted is None:
        # OpenAI's defaults: 16 for completions, for chat whatever the context leaves.
        wanted = 16 if isinstance(fields, _Completion) else max(1, max_seq_len - prompt)
    if prompt + wanted > max_seq_len:
        raise RequestError(
            f"This model's maximum context length is {max_seq_len} tokens, but the prompt has {prompt} and "
            f"{name} is {wanted}, together {prompt + wanted}; shorten one of them",
            param="messages" if isinstance(fields, _Chat) else "prompt",
            code="context_length_exceeded",
        )
    return wanted


def _stops(stop: str | list[str] | None) -> tuple[str, ...]:
    stops = (stop,) if isinstance(stop, str) else tuple(stop or ())
    if len(stops) > 4 or not all(stops):
        raise RequestError("stop must be at most four strings, none of them empty", param="stop")
    return stops


def _sampler(fields: _Chat | _Completion) -> Sampler | None:
    """Greedy unless a temperature is asked for: what a load test wants is the same answer every time."""
    if not fields.temperature:
        return None
    return Sampler(fields.temperature, 1.0 if fields.top_p is None else fields.top_p, fields.seed)


def usage(generation: Generation) -> dict[str, int]:
    """Token counts of a finished generation."""
    prompt, answer = len(generation.prompt), generation.produced
    return {"prompt_tokens": prompt, "completion_tokens": answer, "total_tokens": prompt + answer}


class Answer:
    """Writes the answer to one request. Per token only its text is encoded; the rest is made once."""

    def __init__(self, request: Request) -> None:
        self._request = request
        chat = request.kind == "chat"
        self._head = {
            "id": f"{'chatcmpl' if chat else 'cmpl'}-{uuid.uuid4().hex}",
            "object": _OBJECTS[request.kind, request.stream],
            "created": int(time.time()),
            "model": request.model,
        }
        common = json.dumps(self._head, separators=(",", ":"))[:-1]
        field = '"delta":{"content":' if chat else '"text":'
        null_usage = ',"usage":null' if request.include_usage else ""
        self._before = f'data: {common},"choices":[{{"index":0,{field}'.encode()
        self._after = (("}" if chat else "") + f',"logprobs":null,"finish_reason":null}}]{null_usage}}}\n\n').encode()

    def opening(self) -> bytes:
        """What precedes the first token of a stream: for chat the event that names the role."""
        if self._request.kind != "chat":
            return b""
        return self._event({"delta": {"role": "assistant", "content": ""}}, None)

    def token(self, text: str) -> bytes:
        """The event of one piece of text."""
        return self._before + json.dumps(text).encode() + self._after

    def closing(self, finish: FinishReason) -> bytes:
        """What follows the last token of a stream: the reason, the counts if they were asked for, the end sign."""
        events = self._event({"delta": {}} if self._request.kind == "chat" else {"text": ""}, finish)
        if self._request.include_usage:
            document = {**self._head, "choices": [], "usage": usage(self._request.generation)}
            events += b"data: " + json.dumps(document, separators=(",", ":")).encode() + b"\n\n"
        return events + b"data: [DONE]\n\n"

    def whole(self, text: str, finish: FinishReason) -> dict[str, Any]:
        """The body of an answer that is not streamed."""
        if self._request.kind == "chat":
            content: dict[str, Any] = {"message": {"role": "assistant", "content": text, "refusal": None}}
        else:
            content = {"text": text}
        choice = {"index": 0, **content, "logprobs": None, "finish_reason": finish}
        return {**self._head, "choices": [choice], "usage": usage(self._request.generation)}

    def _event(self, content: dict[str, Any], finish: FinishReason | None) -> bytes:
        choice = {"index": 0, **content, "logprobs": None, "finish_reason": finish}
        document = {**self._head, "choices": [choice]}
        if self._request.include_usage:
            document["usage"] = None
        return b"data: " + json.dumps(document, separators=(",", ":")).encode() + b"\n\n"

    def failure(self, error: RequestError) -> bytes:
        """The event that ends a stream which broke after it had begun; no end sign follows it."""
        return b"data: " + json.dumps(error.body(), separators=(",", ":")).encode() + b"\n\n"
