"""OpenAI responses: typed events, one kind for each thing that can happen.

Source: https://platform.openai.com/docs/api-reference/responses and …/responses-streaming.
"""

from typing import Any

import msgspec

from loadtest.endpoints.answer import Answer, Usage
from loadtest.endpoints.dialect import Dialect, Settings
from loadtest.endpoints.lenient import clean, count_of, error_in, read_json, text_of, words
from loadtest.endpoints.openai import exact_length, user_keys
from loadtest.wire.sse import ErrorEvent
from loadtest.workload.model import Ask

_ENDS = frozenset({"response.completed", "response.incomplete", "response.failed", "response.cancelled"})
_ADDED = "response.output_item.added"
_OPEN = ("queued", "in_progress")  # statuses of a response that is none yet


class _Response(msgspec.Struct, gc=False):
    status: Any = None
    error: Any = None
    incomplete_details: Any = None
    usage: Any = None


class _Event(msgspec.Struct, gc=False):
    type: str
    delta: str | None = None
    response: _Response | None = None


_decode = msgspec.json.Decoder(_Event).decode
_encode = msgspec.json.Encoder().encode


class Responses(Dialect):
    """The Responses API. Nothing is stored there: the history of a conversation goes along with each turn."""

    path = "/v1/responses"
    endings = (path,)
    converses = True
    greedy = '{"temperature": 0}'
    fewest = 16
    sign = "response.completed"

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._fixed: dict[str, Any] = {"model": settings.model, "stream": self.streams, "store": False}
        self._fixed |= exact_length(settings)

    def body(self, ask: Ask) -> bytes:
        """See ``Dialect``. The user's keys stand above ours, but for what is asked of which model, and how."""
        own: dict[str, Any] = {"input": [*ask.messages[:-1], _with_images(ask)] if ask.images else ask.messages}
        if ask.model is not None:
            own["model"] = ask.model
        if ask.body is None:
            return _encode({**self._fixed, **own, "max_output_tokens": ask.max_tokens})
        own = {"model": self._fixed["model"], "stream": self.streams, **own}
        return _encode({**self._fixed, "max_output_tokens": ask.max_tokens, **user_keys(ask.body), **own})

    def event(self, answer: Answer, data: bytes, stamp: int) -> None:
        """See ``Dialect``."""
        if answer.ended or answer.error is not None:
            return
        try:
            event = _decode(data)
        except (msgspec.DecodeError, RecursionError):
            self._unusual(answer, data, stamp)
            return
        if event.type.endswith(".delta"):
            _take(answer, event.type, event.delta, stamp)
        elif event.type in _ENDS:
            _close(answer, event.response or _Response(), event.type.removeprefix("response."))
        elif event.type in (_ADDED, "error") or isinstance(data, ErrorEvent):
            self._unusual(answer, data, stamp)

    def whole(self, answer: Answer, body: bytes) -> None:
        """See ``Dialect``."""
        try:
            reply = read_json(body)
        except ValueError:
            raise ValueError(f"the body is not JSON: {words(body)}") from None
        output = reply.get("output") if isinstance(reply, dict) else None
        if not isinstance(output, list):
            if (error := error_in(body)) is None:
                raise ValueError(f"the body is not a response: {words(body)}")
            answer.error = error
            return
        if reply.get("status") in _OPEN:
            raise ValueError(f"the response is still {reply['status']}: {words(body)}")
        for item in output:
            _whole_item(answer, item)
        _close(answer, _response(reply))

    @staticmethod
    def _unusual(answer: Answer, data: bytes, stamp: int) -> None:
        """Take in an event that comes once in an answer, or is not of the usual shape."""
        try:
            event = read_json(data)
        except ValueError:
            event = None
            if not isinstance(data, ErrorEvent) and data.strip() and data != b"[DONE]":
                answer.bad_events += 1
        kind = event.get("type") if isinstance(event, dict) else None
        if not isinstance(event, dict) or not isinstance(kind, str) or isinstance(data, ErrorEvent) or kind == "error":
            error = error_in(data) or (words(data) if isinstance(data, ErrorEvent) else None)
            answer.error = error
            answer.bad_events += bool(event) and error is None  # no event of this API
        elif kind.endswith(".delta"):
            _take(answer, kind, text_of(event.get("delta")), stamp)
        elif kind in _ENDS:
            _close(answer, _response(event.get("response")), kind.removeprefix("response."))
        elif kind == _ADDED and isinstance(item := event.get("item"), dict) and str(item.get("type")).endswith("_call"):
            _take(answer, kind, text_of(item.get("name")), stamp)


def _with_images(ask: Ask) -> dict[str, Any]:
    """The last message with the pictures that go with it."""
    message = ask.messages[-1]
    pictures = [{"type": "input_image", "image_url": url, "detail": "auto"} for url in ask.images]
    return {"role": message.role, "content": [{"type": "input_text", "text": message.content}, *pictures]}


def _take(answer: Answer, kind: str, text: str | None, stamp: int) -> None:
    """Take in what a delta brought. Sound, which is base64, is output too, but no text."""
    if not text:
        return
    if not kind.endswith("audio.delta"):
        if ".reasoning" in kind:
            answer.thoughts.append(len(answer.texts))
        answer.texts.append(text)
    if ".reasoning" not in kind and not answer.first_answer:
        answer.first_answer = stamp
    answer.stamps.append(stamp)


def _whole_item(answer: Answer, item: Any) -> None:
    """Take in one item of an answer that came in one piece."""
    if not isinstance(item, dict):
        return
    parts = [*_list(item.get("content")), *_list(item.get("summary"))]
    texts = [part.get("text") or part.get("refusal") for part in parts if isinstance(part, dict)]
    said = "".join(text for text in (*texts, item.get("name"), item.get("arguments")) if isinstance(text, str))
    if said:
        if item.get("type") == "reasoning":
            answer.thoughts.append(len(answer.texts))
        answer.texts.append(clean(said))


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _response(reply: Any) -> _Response:
    return msgspec.convert(reply, _Response) if isinstance(reply, dict) else _Response()


def _close(answer: Answer, response: _Response, kind: str = "completed") -> None:
    """The end of an answer: its counts, and why it ended where it did."""
    usage, error, details = response.usage, response.error, response.incomplete_details
    if isinstance(usage, dict):
        of_input = usage.get("input_tokens_details")
        cached = count_of(of_input.get("cached_tokens")) if isinstance(of_input, dict) else None
        answer.usage = Usage(count_of(usage.get("input_tokens")), count_of(usage.get("output_tokens")), cached)
    status = response.status if isinstance(response.status, str) and response.status not in _OPEN else kind
    if error or status in ("failed", "cancelled"):
        message = error.get("message") if isinstance(error, dict) else None
        answer.error = text_of(message) or f"the status of the response is {status}"
        return
    reason = details.get("reason") if isinstance(details, dict) else None
    answer.finish_reason = text_of(reason) or status
    answer.ended = True
