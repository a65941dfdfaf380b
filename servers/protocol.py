"""The OpenAI dialect on its way in: request bodies, read and judged. No sockets here.

What a field would change and this server cannot do is refused by name, or left out and named where the server was
told to (``--ignore-unsupported``); fields that change nothing in the answer (``user``, ``metadata``…) are accepted.
Format: OpenAI API reference, "Completions" and "Chat"; ``top_k``, ``min_p``, ``min_tokens``, ``ignore_eos`` as in vLLM.
"""

import json
import re
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec

from servers.engine import Generation
from servers.errors import RequestError, unknown_model
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
    "modalities": (None, ["text"]),
    "prediction": (None,),
    "presence_penalty": (None, 0),
    "reasoning_effort": (None,),
    "repetition_penalty": (None, 1),
    "response_format": (None, {"type": "text"}),
    "stop_token_ids": (None, []),
    "suffix": (None, ""),
    "tool_choice": (None, "none", "auto"),
    "tools": (None, []),
    "verbosity": (None,),
    "web_search_options": (None,),
}
# The same for the fields of one chat message: what clients send back of an earlier answer, or of a tool.
_NEUTRAL_IN_MESSAGE: dict[str, tuple[Any, ...]] = {
    "annotations": (None, []),
    "audio": (None,),
    "function_call": (None,),
    "reasoning_content": (None, ""),
    "refusal": (None, ""),
    "tool_call_id": (None,),
    "tool_calls": (None, []),
}
_CHOICES = 128  # most answers to one request
_WITHOUT_EFFECT = (
    "metadata", "parallel_tool_calls", "prompt_cache_key", "safety_identifier", "service_tier", "store", "user",
)  # fmt: skip


class _StreamOptions(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    include_usage: bool = False


class _Fields(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    model: str
    max_tokens: Annotated[int, msgspec.Meta(ge=1)] | None = None
    min_tokens: Annotated[int, msgspec.Meta(ge=0)] | None = None
    n: Annotated[int, msgspec.Meta(ge=1, le=_CHOICES)] | None = None
    temperature: Annotated[float, msgspec.Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, msgspec.Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, msgspec.Meta(ge=-1)] | None = None  # 0 and -1: all
    min_p: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    ignore_eos: bool | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None


class _Completion(_Fields, frozen=True, kw_only=True):
    prompt: str | list[str | int | list[int]]
    logprobs: Annotated[int, msgspec.Meta(ge=0, le=5)] | None = None


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
    logprobs: bool | None = None
    top_logprobs: Annotated[int, msgspec.Meta(ge=0, le=20)] | None = None


@dataclass(frozen=True)
class Request:
    """A request that can be served: its answers in the making, ``n`` to each prompt, in the order of ``index``."""

    kind: Kind
    model: str
    generations: tuple[Generation, ...]
    n: int
    stream: bool
    include_usage: bool
    ignored: tuple[str, ...]  # what was left out of it


def parse(
    kind: Kind,
    body: bytes,
    model: str,
    max_seq_len: int,
    tokenizer: Tokenizer = BYTES,
    *,
    ignore_unsupported: bool = False,
) -> Request:
    """Read the body of a request to ``model``, whose context holds ``max_seq_len`` tokens of ``tokenizer``.

    Raises:
        RequestError: it is not JSON, a field is unknown, missing, of the wrong type, out of range or (unless
            ``ignore_unsupported``) not supported, the model is another one, or prompt and answer do not fit the
            context.
    """
    try:
        document = json.loads(body, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"the body is not valid JSON: {error}") from error
    if not isinstance(document, dict):
        raise RequestError("the body must be a JSON object")
    unsupported = _take_unsupported(document)
    if unsupported and not ignore_unsupported:
        raise unsupported[0]
    fields = _convert(document, kind)
    if fields.model != model:
        raise unknown_model(fields.model, model)
    if fields.stream_options is not None and not fields.stream:
        raise RequestError("stream_options is only allowed with stream: true", param="stream_options")
    prompts, n = _prompts(fields, tokenizer), fields.n or 1
    if n * len(prompts) > _CHOICES:
        raise RequestError(f"{len(prompts)} prompts × n {n} are more than {_CHOICES} answers", param="n")
    return Request(
        kind=kind,
        model=model,
        generations=tuple(
            Generation(
                prompt=prompt,
                max_tokens=_max_tokens(fields, len(prompt), max_seq_len),
                index=i * n + choice,
                min_tokens=fields.min_tokens or 0,
                logprobs=_logprobs(fields),
                ignore_eos=bool(fields.ignore_eos),
                stops=_stops(fields.stop),
                sampler=_sampler(fields, choice),
                tokenizer=tokenizer,
            )
            for i, prompt in enumerate(prompts)
            for choice in range(n)
        ),
        n=n,
        stream=bool(fields.stream),
        include_usage=fields.stream_options is not None and fields.stream_options.include_usage,
        ignored=tuple(str(error.param) for error in unsupported),
    )


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")


def _take_unsupported(document: dict[str, Any]) -> list[RequestError]:
    """Take out what this server cannot do: a refusal for each, whose ``param`` says where it stood."""
    for name in _WITHOUT_EFFECT:
        document.pop(name, None)
    refusals = _take(document, _NEUTRAL, "")
    messages = document.get("messages")
    if not isinstance(messages, list):
        return refusals
    dropped = []
    for i, message in enumerate(messages):
        if not isinstance(message, dict):
            continue
        where = f"messages[{i}]"
        role = message.get("role", "user")  # that it is missing is said with the other fields
        if not isinstance(role, str) or role not in ROLES:
            text = f"{where}.role must be one of {', '.join(ROLES)}, not {role!r}"
            refusal = RequestError(text, param=f"{where}.role")
            if role not in ("tool", "function"):
                raise refusal
            refusals.append(refusal)
            dropped.append(i)
            continue
        refusals += _take(message, _NEUTRAL_IN_MESSAGE, f"{where}.")
        content = message.get("content")
        if content is None and role == "assistant" and "content" in message:
            message["content"] = ""  # what an answer that was only a call of a tool leaves
        if isinstance(content, list):
            kept = [part for part in content if not isinstance(part, dict) or part.get("type", "text") == "text"]
            refusals += [
                RequestError(
                    f"{where}.content: a part of type {part['type']!r} is not supported; this model reads text only",
                    param=f"{where}.content",
                )
                for part in content
                if part not in kept
            ]
            message["content"] = kept
    document["messages"] = [message for i, message in enumerate(messages) if i not in dropped]
    return refusals


def _take(document: dict[str, Any], neutral: dict[str, tuple[Any, ...]], where: str) -> list[RequestError]:
    refusals = []
    for name, values in neutral.items():
        if document.pop(name, None) not in values:
            wanted = values[1:] or ("null",)
            text = f"{where}{name} is not supported here; leave it out or give {wanted[0]!r}"
            refusals.append(RequestError(text, param=where + name))
    return refusals


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


def _prompts(fields: _Chat | _Completion, tokenizer: Tokenizer) -> list[list[int]]:
    try:
        if isinstance(fields, _Chat):
            if not fields.messages:
                raise RequestError("messages must not be empty", param="messages")
            return [tokenizer.encode_chat((m.role, _content(m.content)) for m in fields.messages)]
        prompt = fields.prompt
        if isinstance(prompt, str):
            return [tokenizer.encode(prompt)]
        if not prompt or isinstance(prompt[0], int):
            return [_ids(prompt, tokenizer)]
        return [tokenizer.encode(p) if isinstance(p, str) else _ids(p, tokenizer) for p in prompt]
    except Unencodable as error:
        raise RequestError(str(error), param="messages" if isinstance(fields, _Chat) else "prompt") from error


def _ids(prompt: Any, tokenizer: Tokenizer) -> list[int]:
    given = prompt if isinstance(prompt, list) else []  # a number among texts is neither
    ids = [token for token in given if isinstance(token, int) and 0 <= token < tokenizer.size]
    if not ids or len(ids) < len(given):
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
    if fields.min_tokens and fields.min_tokens > wanted:
        raise RequestError(f"min_tokens {fields.min_tokens} is more than {name} {wanted}", param="min_tokens")
    return wanted


def _logprobs(fields: _Chat | _Completion) -> int | None:
    if isinstance(fields, _Completion):
        return fields.logprobs
    if fields.top_logprobs and not fields.logprobs:
        raise RequestError("top_logprobs is only allowed with logprobs: true", param="top_logprobs")
    return fields.top_logprobs or 0 if fields.logprobs else None


def _stops(stop: str | list[str] | None) -> tuple[str, ...]:
    stops = (stop,) if isinstance(stop, str) else tuple(stop or ())
    if len(stops) > 4 or not all(stops):
        raise RequestError("stop must be at most four strings, none of them empty", param="stop")
    return stops


def _sampler(fields: _Chat | _Completion, choice: int) -> Sampler | None:
    """Greedy unless a temperature is asked for: what a load test wants is the same answer every time."""
    if not fields.temperature:
        return None
    return Sampler(
        fields.temperature,
        1.0 if fields.top_p is None else fields.top_p,
        fields.seed,
        top_k=max(0, fields.top_k or 0),
        min_p=fields.min_p or 0.0,
        choice=choice,
    )
