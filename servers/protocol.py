"""The OpenAI dialect: request bodies in, answers out. No sockets here.

What a field would change and this server cannot do is refused by name, or left out and named where the server was
told to (``--ignore-unsupported``); fields that change nothing in the answer (``user``, ``metadata``…) are accepted.
Format: OpenAI API reference, "Completions" and "Chat"; ``top_k``, ``min_p``, ``min_tokens``, ``ignore_eos`` as in vLLM.
"""

import json
import re
import time
import uuid
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec

from servers.engine import FinishReason, Generation, Output
from servers.sampling import Sampler, Scores
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
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
        self.status = status
        self.kind = kind
        self.param = param
        self.code = code

    def body(self) -> dict[str, Any]:
        """The JSON body of the refusal."""
        error = {"message": str(self), "type": self.kind, "param": self.param, "code": self.code}
        return {"error": error}


def unknown_model(wanted: str, served: str) -> RequestError:
    """The refusal of a request for another model."""
    return RequestError(
        f"The model `{wanted}` does not exist; this server serves `{served}`",
        status=404, param="model", code="model_not_found",
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


class Answer:
    """Writes the answers to one request. Per token only its text is encoded; the rest is made once.

    ``show_cached``: whether the counts say how much of the prompts was already in the cache.
    """

    def __init__(self, request: Request, *, show_cached: bool = False) -> None:
        self._request = request
        self._show_cached = show_cached
        self._chat = request.kind == "chat"
        self._head = {
            "id": f"{'chatcmpl' if self._chat else 'cmpl'}-{uuid.uuid4().hex}",
            "object": _OBJECTS[request.kind, request.stream],
            "created": int(time.time()),
            "model": request.model,
        }
        common = json.dumps(self._head, separators=(",", ":"))[:-1]
        field = '"delta":{"content":' if self._chat else '"text":'
        null_usage = ',"usage":null' if request.include_usage else ""
        self._before = [
            f'data: {common},"choices":[{{"index":{i},{field}'.encode() for i in range(len(request.generations))
        ]
        end = "}" if self._chat else ""
        self._after = f'{end},"logprobs":null,"finish_reason":null}}]{null_usage}}}\n\n'.encode()
        self._offsets = [0] * len(request.generations)

    def opening(self) -> bytes:
        """What precedes the first token of a stream: for chat the event that names the role, one for each answer."""
        if not self._chat:
            return b""
        opening = {"delta": {"role": "assistant", "content": ""}}
        return b"".join([self._event(i, opening, None) for i in range(len(self._request.generations))])

    def piece(self, output: Output) -> bytes:
        """The events of one output: its text, if it has any, and the reason, if it is the last."""
        data, index = b"", output.generation.index
        if output.scores:
            content = {"delta": {"content": output.text}} if self._chat else {"text": output.text}
            data = self._event(index, content, None, self._logprobs(index, [output.scores]))
        elif output.text:
            data = self._before[index] + json.dumps(output.text).encode() + self._after
        if output.finish:
            data += self._event(index, {"delta": {}} if self._chat else {"text": ""}, output.finish)
        return data

    def closing(self) -> bytes:
        """What ends a stream: the counts if they were asked for, the end sign."""
        counts = b""
        if self._request.include_usage:
            document = {**self._head, "choices": [], "usage": self.usage()}
            counts = b"data: " + json.dumps(document, separators=(",", ":")).encode() + b"\n\n"
        return counts + b"data: [DONE]\n\n"

    def whole(self, outputs: list[Output]) -> dict[str, Any]:
        """The body of an answer that is not streamed, from all its outputs."""
        pieces: list[list[Output]] = [[] for _ in self._request.generations]
        for output in outputs:
            pieces[output.generation.index].append(output)
        choices = []
        for generation, own in zip(self._request.generations, pieces, strict=True):
            text = "".join([output.text for output in own])
            if self._chat:
                content: dict[str, Any] = {"message": {"role": "assistant", "content": text, "refusal": None}}
            else:
                content = {"text": text}
            thought = [output.scores for output in own if output.scores]
            logprobs = None if generation.logprobs is None else self._logprobs(generation.index, thought)
            choices.append(
                {"index": generation.index, **content, "logprobs": logprobs, "finish_reason": own[-1].finish}
            )
        return {**self._head, "choices": choices, "usage": self.usage()}

    def usage(self) -> dict[str, Any]:
        """Token counts of finished answers. A prompt counts once, however many answers it has."""
        generations = self._request.generations
        prompts = generations[:: self._request.n]
        prompt = sum(len(generation.prompt) for generation in prompts)
        answer = sum(generation.produced for generation in generations)
        counts: dict[str, Any] = {
            "prompt_tokens": prompt,
            "completion_tokens": answer,
            "total_tokens": prompt + answer,
        }
        if self._show_cached:
            counts["prompt_tokens_details"] = {"cached_tokens": sum(generation.cached for generation in prompts)}
        return counts

    def failure(self, error: RequestError) -> bytes:
        """The event that ends a stream which broke after it had begun; no end sign follows it."""
        return b"data: " + json.dumps(error.body(), separators=(",", ":")).encode() + b"\n\n"

    def _event(self, index: int, content: dict[str, Any], finish: FinishReason | None, logprobs: Any = None) -> bytes:
        choice = {"index": index, **content, "logprobs": logprobs, "finish_reason": finish}
        document = {**self._head, "choices": [choice]}
        if self._request.include_usage:
            document["usage"] = None
        return b"data: " + json.dumps(document, separators=(",", ":")).encode() + b"\n\n"

    def _logprobs(self, index: int, thought: list[Scores]) -> dict[str, Any]:
        """Log-probabilities in the form of the endpoint: one entry for each token that ``usage`` counts."""
        tokenizer = self._request.generations[0].tokenizer
        if self._chat:
            content = [
                {
                    **_entry(tokenizer, each.token, each.logprob),
                    "top_logprobs": [_entry(tokenizer, token, logprob) for token, logprob in each.top],
                }
                for each in thought
            ]
            return {"content": content, "refusal": None}
        tokens = [_shown(tokenizer, each.token) for each in thought]
        offsets = []
        for token in tokens:
            offsets.append(self._offsets[index])
            self._offsets[index] += len(token)
        return {
            "tokens": tokens,
            "token_logprobs": [_finite(each.logprob) for each in thought],
            "top_logprobs": [{_shown(tokenizer, i): _finite(logprob) for i, logprob in each.top} for each in thought],
            "text_offset": offsets,
        }


def _entry(tokenizer: Tokenizer, token: int, logprob: float) -> dict[str, Any]:
    text = _shown(tokenizer, token)
    # A token that is no whole character has no text of its own, and so none whose bytes could be told.
    return {"token": text, "logprob": _finite(logprob), "bytes": None if "\ufffd" in text else [*text.encode()]}


def _shown(tokenizer: Tokenizer, token: int) -> str:
    """One token as text, by itself."""
    decoder = tokenizer.decoder()
    return decoder.push(token) + decoder.finish()


def _finite(logprob: float) -> float:
    """OpenAI's API gives -9999 for what has no probability."""
    return max(logprob, -9999.0)
