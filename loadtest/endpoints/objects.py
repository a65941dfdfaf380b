"""What dialects have in common whose requests and events are JSON objects: the user's keys, errors, and junk."""

import abc
import functools
from typing import Any

import msgspec

from loadtest.endpoints.answer import Answer
from loadtest.endpoints.dialect import Dialect
from loadtest.endpoints.lenient import read_json, words
from loadtest.wire.sse import ErrorEvent
from loadtest.workload.model import Ask

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


class Objects(Dialect):
    """``request`` out, ``take`` in: a dialect of JSON objects has to write these two."""

    @abc.abstractmethod
    def request(self, ask: Ask) -> tuple[dict[str, Any], dict[str, Any]]:
        """What is asked: keys that the user's own may replace, and keys that they may not."""

    @abc.abstractmethod
    def take(self, answer: Answer, reply: dict[str, Any], stamp: int) -> bool:
        """Take in one event that is no error, or with a stamp of 0 a whole answer. False: it is neither."""

    def body(self, ask: Ask) -> bytes:
        """See ``Dialect``. An object of ours and one of the user's by the same key are one, key by key."""
        ours, asked = self.request(ask)
        if ask.body is None:
            return _encode({**ours, **asked})
        keys = dict(_keys(ask.body))
        for key in ours.keys() & keys.keys():
            if isinstance(ours[key], dict) and isinstance(keys[key], dict):
                keys[key] = {**ours[key], **keys[key]}
        return _encode({**ours, **keys, **asked})

    def event(self, answer: Answer, data: bytes, stamp: int) -> None:
        """See ``Dialect``."""
        if answer.ended:
            return
        try:
            reply = _decode(data)
        except (msgspec.DecodeError, RecursionError):
            try:
                reply = read_json(data)
            except ValueError:
                reply = None
        if isinstance(data, ErrorEvent) or (isinstance(reply, dict) and reply.get("error")):
            answer.error = answer.error or self.error_text(data) or words(data)
        elif isinstance(reply, dict):
            answer.bad_events += not self.take(answer, reply, stamp)
        elif data.strip():  # an event without data is a sign of life
            answer.bad_events += 1


def paragraphs(ask: Ask) -> str:
    """The messages as one text, for an endpoint that takes no messages."""
    return "\n\n".join(message.content for message in ask.messages)


@functools.lru_cache(64)
def _keys(body: str) -> dict[str, Any]:
    return msgspec.json.decode(body, type=dict[str, Any])
