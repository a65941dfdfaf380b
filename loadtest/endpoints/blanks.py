"""Texts with blanks in them, such as ``{{ prompt }}``: taken apart once, filled in for each request.

    {{ prompt }}        what is asked, as text: the messages of the request
    {{ input_tokens }}  how long that is, {{ max_tokens }} how long an answer is asked for, in tokens
    {{ model }}         the model asked for
    {{ uuid }}          of each request its own
    {{ row.COLUMN }}    what the request's row of the data has there
    {{ env.NAME }}      an environment variable, which is never stored

A text that is nothing but one blank is its value, whatever that is: a number stays a number in JSON. Within a longer
text a value is written out, and escaped as its place asks.
"""

import difflib
import functools
import hashlib
import json
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote, quote_plus

import msgspec

from loadtest.workload.model import Ask

_BLANK = re.compile(r"\{\{[ \t]*([^{}\"\n]*?)[ \t]*\}\}")
_QUOTES = re.compile(rf'"(?:[^"\\]|\\.)*"|({_BLANK.pattern})')
_PLAIN = ("prompt", "input_tokens", "max_tokens", "model", "uuid")
_NAME = re.compile(rf"({'|'.join(_PLAIN)})|row\.(.+)|env\.([A-Za-z_][A-Za-z0-9_]*)")
_THERE = ", ".join(f"{{{{ {name} }}}}" for name in (*_PLAIN, "row.COLUMN", "env.NAME"))
_encode = msgspec.json.Encoder().encode

Piece = bytes | Callable[[Ask], bytes]
Escape = Callable[[str], bytes]


def names(text: str) -> list[str]:
    """The blanks in a text, in order.

    Raises:
        ValueError: there is no such blank.
    """
    found = _BLANK.findall(text)
    for name in found:
        if not _NAME.fullmatch(name):
            close = difflib.get_close_matches(name, _PLAIN, n=1)
            hint = f"did you mean {{{{ {close[0]} }}}}? There" if close else "there"
            raise ValueError(f"there is no {{{{ {name} }}}}: {hint} are {_THERE}")
    return found


def columns(found: Sequence[str]) -> tuple[str, ...]:
    """The columns of data among names of blanks, each once."""
    return tuple(dict.fromkeys(name[4:] for name in found if name.startswith("row.")))


def variables(found: Sequence[str]) -> tuple[str, ...]:
    """The environment variables among names of blanks, each once."""
    return tuple(dict.fromkeys(name[4:] for name in found if name.startswith("env.")))


def quoted(text: str) -> str:
    """Text that would be JSON but for blanks that stand in it as they are, without quotes: with them."""
    return _QUOTES.sub(lambda found: f'"{found[1]}"' if found[1] else found[0], text)


def plain(text: str) -> bytes:
    """Text as it is."""
    return text.encode()


def in_json(text: str) -> bytes:
    """Text within the quotes of a JSON string."""
    return _encode(text)[1:-1]


def in_path(text: str) -> bytes:
    """Text within a part of a path or of a query."""
    return quote(text, safe="").encode()


def in_form(text: str) -> bytes:
    """Text within a value of a URL-encoded form."""
    return quote_plus(text).encode()


def in_header(text: str) -> bytes:
    """Text within the value of a header, where it cannot begin another one."""
    return re.sub(r"[\x00-\x1f\x7f]+", " ", text).encode()


class Blanks:
    """Takes texts apart for one model and the values of environment variables."""

    def __init__(self, model: str, environment: Mapping[str, str]) -> None:
        self._model = model
        self._environment = environment

    def text(self, text: str, escape: Escape, around: Escape = plain) -> list[Piece]:
        """The pieces of a text: what stands around its blanks escaped the one way, their values the other."""
        pieces: list[Piece] = []
        for index, part in enumerate(_BLANK.split(text)):
            if index % 2:
                pieces += self._written(part, escape)
            elif part:
                pieces.append(around(part))
        return [*_merged(pieces)]

    def json(self, value: Any) -> list[Piece]:
        """The pieces of a JSON value whose texts have blanks."""
        return [*_merged(self._json(value))]

    def _json(self, value: Any) -> Iterator[Piece]:
        if isinstance(value, str):
            whole = _BLANK.fullmatch(value)
            yield from self._value(whole[1]) if whole else self._quoted(value)
        elif isinstance(value, dict):
            for index, (key, inner) in enumerate(value.items()):
                yield b"," if index else b"{"
                yield from self._quoted(key)
                yield b":"
                yield from self._json(inner)
            yield b"}" if value else b"{}"
        elif isinstance(value, list):
            for index, inner in enumerate(value):
                yield b"," if index else b"["
                yield from self._json(inner)
            yield b"]" if value else b"[]"
        else:
            yield _encode(value)

    def _quoted(self, text: str) -> Iterator[Piece]:
        yield b'"'
        for index, part in enumerate(_BLANK.split(text)):
            if index % 2:
                yield from self._written(part, in_json)
            else:
                yield in_json(part)
        yield b'"'

    def _value(self, name: str) -> list[Piece]:
        """A blank that is a whole JSON value."""
        value = self._getter(name)
        return [lambda ask: _encode(value(ask))] if callable(value) else [_encode(value)]

    def _written(self, name: str, escape: Escape) -> list[Piece]:
        """A blank within a text."""
        value = self._getter(name)
        return [lambda ask: escape(words(value(ask)))] if callable(value) else [escape(value)]

    def _getter(self, name: str) -> Callable[[Ask], Any] | str:
        """What a blank is of a request, or of all."""
        kind, _, key = name.partition(".")
        match kind:
            case "prompt":
                return _prompt
            case "input_tokens":
                return lambda ask: ask.input_tokens
            case "max_tokens":
                return lambda ask: ask.max_tokens
            case "model":
                return lambda ask: ask.model or self._model
            case "uuid":
                return _uuid
            case "row":
                return lambda ask: _cells(ask.row or "{}").get(key)
        return self._environment[key]


def filled(pieces: Sequence[Piece], ask: Ask) -> bytes:
    """The pieces put together for a request."""
    return b"".join([piece if piece.__class__ is bytes else piece(ask) for piece in pieces])  # type: ignore[operator]


def constant(pieces: Sequence[Piece]) -> bool:
    """Whether there is no blank in it that differs from request to request."""
    return all(piece.__class__ is bytes for piece in pieces)


def _prompt(ask: Ask) -> str:
    if len(ask.messages) == 1:
        return ask.messages[0].content
    return "\n\n".join(message.content for message in ask.messages)


def _uuid(ask: Ask) -> str:
    """By the request's own number, so that the same seed sends the same."""
    return str(uuid.UUID(bytes=hashlib.blake2b(ask.seed.to_bytes(8), digest_size=16).digest(), version=4))


@functools.lru_cache(64)  # a row is looked at once for each of its blanks
def _cells(row: str) -> dict[str, Any]:
    return msgspec.json.decode(row, type=dict[str, Any])


def words(value: Any) -> str:
    """A value within a text: text as it is, nothing as nothing, all else as JSON writes it."""
    if isinstance(value, str):
        return value
    return "" if value is None else json.dumps(value, ensure_ascii=False)


def _merged(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """The pieces, neighbours that are the same in every request made one."""
    fixed = b""
    for piece in pieces:
        if isinstance(piece, bytes):
            fixed += piece
            continue
        if fixed:
            yield fixed
        yield piece
        fixed = b""
    if fixed:
        yield fixed
