"""OpenAI's dialect without a model: answers made ready beforehand, and HTTP/1.1 to carry them. No sockets here.

Format: OpenAI API reference, "Completions" and "Chat"; RFC 9112 for the framing.
"""

import json
import time
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

MODEL = "fake"
TOKENS_LIMIT = 100_000
HEAD_LIMIT = 64 << 10
BODY_LIMIT = 16 << 20
CREATED = int(time.time())

Kind = Literal["chat", "completions"]
KINDS: dict[bytes, Kind] = {b"/v1/chat/completions": "chat", b"/v1/completions": "completions"}

_REASONS = {
    200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed", 411: "Length Required",
    413: "Content Too Large", 431: "Request Header Fields Too Large", 503: "Service Unavailable",
}  # fmt: skip
_WORDS = "alpha bravo delta hotel india romeo tango zebra north south river stone cloud green amber white".split()


class _StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class _Message(msgspec.Struct):
    content: str | list[dict[str, Any]] | None = None


class _Body(msgspec.Struct):
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    messages: list[_Message] | None = None
    prompt: str | list[Any] | None = None


_decode = msgspec.json.Decoder(_Body).decode


class Refusal(Exception):
    """A request that is not answered: the status, and the message for its sender."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class Asked:
    """What a request asks for."""

    kind: Kind
    stream: bool
    usage: bool
    tokens: int
    finish_reason: str
    prompt_tokens: int


def asked(kind: Kind, body: bytes, default_tokens: int) -> Asked:
    """What a body asks for.

    Raises:
        Refusal: it is not JSON, or a field of it cannot be meant.
    """
    try:
        read = _decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Refusal(400, f"the body is not a request: {error}") from None
    needed = "messages" if kind == "chat" else "prompt"
    if getattr(read, needed) is None:
        raise Refusal(400, f"{needed} is missing")
    limit = read.max_tokens if read.max_completion_tokens is None else read.max_completion_tokens
    if limit is not None and not 1 <= limit <= TOKENS_LIMIT:
        raise Refusal(400, f"max_tokens is {limit}; it must lie between 1 and {TOKENS_LIMIT:,}")
    return Asked(
        kind=kind,
        stream=bool(read.stream),
        usage=bool(read.stream_options and read.stream_options.include_usage),
        tokens=default_tokens if limit is None else limit,
        finish_reason="stop" if limit is None else "length",
        prompt_tokens=_count(read),
    )


def _count(body: _Body) -> int:
    """Tokens of the prompt: its words, or the ids where it is given as ids."""
    if isinstance(body.prompt, str):
        return len(body.prompt.split())
    count = 0
    for part in body.prompt or ():
        count += len(part.split()) if isinstance(part, str) else len(part) if isinstance(part, list) else 1
    for message in body.messages or ():
        if isinstance(message.content, str):
            count += len(message.content.split())
        else:
            count += sum(len(str(part.get("text", "")).split()) for part in message.content or ())
    return count


_ID = b"0" * 12  # stands in the events made beforehand for the id of a request
_STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-cache\r\nTransfer-Encoding: chunked\r\n"
)
_DONE = b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"


def _event(kind: Kind, choices: list[dict[str, Any]], **more: Any) -> bytes:
    """One stream event as an HTTP chunk, for the request of id ``_ID``."""
    chat = kind == "chat"
    event = {
        "id": f"{'chatcmpl' if chat else 'cmpl'}-{_ID.decode()}",
        "object": "chat.completion.chunk" if chat else "text_completion",
        "created": CREATED,
        "model": MODEL,
        "choices": choices,
        **more,
    }
    data = b"data: " + json.dumps(event, separators=(",", ":")).encode() + b"\n\n"
    return b"%x\r\n%b\r\n" % (len(data), data)


def _choice(kind: Kind, text: str, finish_reason: str | None, **delta: str) -> dict[str, Any]:
    said: dict[str, Any] = {"text": text}
    if kind == "chat":
        said = {"delta": {**delta, **({"content": text} if finish_reason is None else {})}}
    return {"index": 0, **said, "logprobs": None, "finish_reason": finish_reason}


_OPENINGS: dict[Kind, bytes] = {
    "chat": _event("chat", [_choice("chat", "", None, role="assistant")]),
    "completions": b"",
}
_EVENTS: dict[Kind, list[bytes]] = {
    kind: [_event(kind, [_choice(kind, f" {word}", None)]) for word in _WORDS] for kind in KINDS.values()
}
_ENDINGS = {
    (kind, reason): _event(kind, [_choice(kind, "", reason)])
    for kind in KINDS.values()
    for reason in ("stop", "length")
}


def _usage(asked: Asked) -> dict[str, int]:
    return {
        "prompt_tokens": asked.prompt_tokens,
        "completion_tokens": asked.tokens,
        "total_tokens": asked.prompt_tokens + asked.tokens,
    }


def whole(asked: Asked, id_: bytes) -> bytes:
    """The body of an answer that is not streamed."""
    chat = asked.kind == "chat"
    words = (_WORDS * (asked.tokens // len(_WORDS) + 1))[: asked.tokens]
    text = "".join(f" {word}" for word in words)
    said = {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
    answer = {
        "id": f"{'chatcmpl' if chat else 'cmpl'}-{id_.decode()}",
        "object": "chat.completion" if chat else "text_completion",
        "created": CREATED,
        "model": MODEL,
        "choices": [{"index": 0, **said, "logprobs": None, "finish_reason": asked.finish_reason}],
        "usage": _usage(asked),
    }
    return msgspec.json.encode(answer)


def reply(status: int, body: bytes, *, close: bool) -> bytes:
    """A whole response with a JSON body."""
    last = b"Connection: close\r\n" if close else b""
    return b"HTTP/1.1 %d %b\r\nContent-Type: application/json\r\nContent-Length: %d\r\n%b\r\n%b" % (
        status, _REASONS[status].encode(), len(body), last, body,
    )  # fmt: skip


def error_body(message: str, kind: str, code: int | None = None) -> bytes:
    """An error as OpenAI's API words it."""
    return json.dumps({"error": {"message": message, "type": kind, "param": None, "code": code}}).encode()


def opening(kind: Kind, id_: bytes, *, close: bool) -> bytes:
    """How a stream begins: the head, and for chat the event that names the role."""
    last = b"Connection: close\r\n\r\n" if close else b"\r\n"
    return _STREAM_HEAD + last + _OPENINGS[kind].replace(_ID, id_)


def events(kind: Kind, id_: bytes) -> list[bytes]:
    """The token events of a stream; token ``i`` is the one at ``i`` modulo their number."""
    return [event.replace(_ID, id_) for event in _EVENTS[kind]]


def ending(asked: Asked, id_: bytes) -> bytes:
    """How a stream ends: the finish reason, the usage where it was asked for, and the end of the body."""
    last = _ENDINGS[asked.kind, asked.finish_reason]
    if asked.usage:
        last += _event(asked.kind, [], usage=_usage(asked))
    return last.replace(_ID, id_) + _DONE


def request(inbox: bytearray) -> tuple[bytes, bytes, bytes, bool] | None:
    """Take a request off ``inbox``: method, target, body, and whether the connection ends with it; None if not whole.

    Raises:
        Refusal: these bytes are no request that can be taken in, and what follows them has no known start.
    """
    end = inbox.find(b"\r\n\r\n")
    if end < 0 or end > HEAD_LIMIT:
        if len(inbox) > HEAD_LIMIT:
            raise Refusal(431, f"the request's head is longer than {HEAD_LIMIT:,} bytes")
        return None
    head = bytes(inbox[: end + 2])
    line, _, _ = head.partition(b"\r\n")
    words = line.split(b" ")
    if len(words) != 3 or words[2] != b"HTTP/1.1":
        raise Refusal(400, "the request line is not one of HTTP/1.1")
    fields = head.lower()
    if b"\r\ntransfer-encoding:" in fields:
        raise Refusal(411, "a request needs a Content-Length: chunked bodies are not taken")
    length = _field(fields, b"content-length") or b"0"
    if not length.isdigit():
        raise Refusal(400, "Content-Length is not a number")
    if len(length) > 12 or (size := int(length)) > BODY_LIMIT:
        raise Refusal(413, f"the body is longer than {BODY_LIMIT:,} bytes")
    start = end + 4
    if len(inbox) < start + size:
        return None
    body = bytes(inbox[start : start + size])
    del inbox[: start + size]
    return words[0], words[1], body, _field(fields, b"connection") == b"close"


def _field(fields: bytes, name: bytes) -> bytes:
    """A header field's value in lower case, empty if there is none."""
    _, found, rest = fields.partition(b"\r\n%b:" % name)
    return rest.partition(b"\r\n")[0].strip() if found else b""
