"""What servers of each dialect of JSON objects send: a stream, the same answer whole, and what both say."""

import itertools
import json
from typing import Any, NamedTuple

from loadtest.endpoints.answer import Answer, Usage
from loadtest.endpoints.catalog import speak
from loadtest.endpoints.dialect import Dialect, Settings
from loadtest.endpoints.reading import Reading
from loadtest.wire.exchange import Exchange
from loadtest.workload.model import Ask, Message


def sse(*events: object, lead: bytes = b"data: ") -> bytes:
    """Events of a stream."""
    return b"".join(lead + json.dumps(event, ensure_ascii=False).encode() + b"\n\n" for event in events)


def lines(*events: object) -> bytes:
    """One event a line."""
    return b"".join(json.dumps(event, ensure_ascii=False).encode() + b"\n" for event in events)


class Spoken(NamedTuple):
    """An answer as one dialect brings it. ``thought`` is what of its text is reasoning."""

    kind: str
    stream: bytes
    whole: object
    texts: tuple[str, ...]
    usage: Usage | None
    finish_reason: str | None
    thought: str = ""
    text: str = "Salt é"


def _delta(**fields: str) -> dict[str, object]:
    return {"type": "content_block_delta", "index": 0, "delta": fields}


def _token(text: str, *, special: bool = False, **more: object) -> dict[str, object]:
    return {"token": {"id": 1, "text": text, "logprob": -1.5, "special": special}, **more}


_TGI = {"finish_reason": "length", "generated_tokens": 3, "seed": None}
_LLAMA = {"stop": True, "tokens_predicted": 2, "tokens_evaluated": 9, "tokens_cached": 10, "stop_type": "limit"}
_OLLAMA = {"done": True, "done_reason": "stop", "prompt_eval_count": 9, "eval_count": 2}

SPOKEN = [
    Spoken(
        "anthropic",
        sse(
            {"type": "message_start", "message": {"content": [], "usage": {"input_tokens": 4, "output_tokens": 1}}},
            {"type": "ping"},
            _delta(type="thinking_delta", thinking="Hm"),
            _delta(type="text_delta", text="Salt"),
            _delta(type="text_delta", text=" é"),
            {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 3}},
            {"type": "message_stop"},
        ),
        {
            "type": "message",
            "content": [{"type": "thinking", "thinking": "Hm"}, {"type": "text", "text": "Salt é"}],
            "stop_reason": "end_turn",
            "usage": {"input_tokens": 4, "output_tokens": 3},
        },
        ("Hm", "Salt", " é"),
        Usage(4, 3),
        "end_turn",
        "Hm",
    ),
    Spoken(
        "ollama",
        lines(
            {"message": {"role": "assistant", "content": "", "thinking": "Hm"}, "done": False},
            {"message": {"role": "assistant", "content": "Salt"}, "done": False},
            {"message": {"content": " é"}, "done": False},
            {"message": {"content": ""}, **_OLLAMA},
        ),
        {"message": {"content": "Salt é", "thinking": "Hm"}, **_OLLAMA},
        ("Hm", "Salt", " é"),
        Usage(9, 2),
        "stop",
        "Hm",
    ),
    Spoken(
        "ollama-generate",
        lines({"response": "Salt", "done": False}, {"response": " é", "done": False}, {"response": "", **_OLLAMA}),
        {"response": "Salt é", **_OLLAMA},
        ("Salt", " é"),
        Usage(9, 2),
        "stop",
    ),
    Spoken(
        "tgi",
        sse(
            _token("Salt"),
            _token(" é", generated_text=None, details=None),
            _token("</s>", special=True, generated_text="Salt é", details={**_TGI, "input_length": 2}),
            lead=b"data:",
        ),
        {"generated_text": "Salt é", "details": {**_TGI, "prefill": [{"id": 1}, {"id": 2}], "tokens": []}},
        ("Salt", " é"),
        Usage(2, 3),
        "length",
    ),
    Spoken(
        "llamacpp",
        sse({"content": "Salt", "stop": False}, {"content": " é", "stop": False}, {"content": "", **_LLAMA}),
        {"content": "Salt é", **_LLAMA},
        ("Salt", " é"),
        Usage(9, 2),
        "limit",
    ),
    Spoken(
        "triton",
        sse({"model_name": "m", "text_output": "Salt"}, {"text_output": " é"}, {"text_output": ""}),
        {"model_name": "m", "model_version": "1", "text_output": "Salt é"},
        ("Salt", " é"),
        None,
        None,
    ),
]

HELLO = Ask((Message("system", "be brief"), Message("user", "hello")), 5)


def body(kind: str, ask: Ask = HELLO, **settings: Any) -> Any:
    """The body that asks this, read again."""
    return json.loads(speak(Settings(kind, "m", **settings)).body(ask))


def taken(kind: str, *events: Any) -> Answer:
    """The answer after these events, stamped 1, 2, …; a value that is not bytes is sent as JSON."""
    dialect, answer = speak(Settings(kind, "m")), Answer()
    for stamp, event in enumerate(events, 1):
        dialect.event(answer, event if isinstance(event, bytes) else json.dumps(event).encode(), stamp)
    return answer


def whole(kind: str, reply: object) -> Answer:
    """An answer that was not streamed."""
    answer = Answer()
    data = reply if isinstance(reply, bytes) else json.dumps(reply).encode()
    speak(Settings(kind, "m", stream=False)).whole(answer, data)
    return answer


def read(dialect: Dialect, data: bytes, cuts: tuple[int, ...] = (), status: str = "200 OK") -> Reading:
    """The body of a response, read in pieces; each is stamped with its number."""
    exchange = Exchange(b"", 0, lambda _: None, lambda _: None)
    reading = Reading(dialect)
    exchange.reads = [1, f"HTTP/1.1 {status}\r\nContent-Length: {len(data)}\r\n\r\n".encode()]
    for stamp, (start, stop) in enumerate(itertools.pairwise(sorted({0, *cuts, len(data)})), 2):
        exchange.reads += [stamp, data[start:stop]]
        reading.part(exchange)
    reading.finish(exchange)
    return reading
