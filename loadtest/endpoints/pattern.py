"""What a template says of an API that no dialect knows: the request that is sent, and where things sit in the answer.

Frozen values, with nothing of them looked at yet: they are the sections ``request`` and ``response`` of a scenario.
"""

from typing import Literal, get_args

import msgspec

from loadtest.endpoints.blanks import names

Method = Literal["GET", "POST", "PUT", "PATCH", "DELETE"]
Stream = Literal["none", "sse", "ndjson", "chunks", "lines"]
BODIES = ("json", "form", "multipart", "raw", "file")
"""The keys of a request of which one is its body."""
STREAMS: tuple[Stream, ...] = get_args(Stream)
FOUND = ("text", "input_tokens", "output_tokens", "finish")
"""What an answer is expected to have wherever its path is named; ``error`` is expected to be absent."""


class Upload(msgspec.Struct, frozen=True):
    """A file to send, or a folder or pattern of several, of which each request takes one. ``path`` is absolute."""

    path: str
    type: str | None = None


class RequestForm(msgspec.Struct, frozen=True):
    """A request with blanks in it (``loadtest.endpoints.blanks``); at most one of ``BODIES`` is given.

    ``method`` of None is GET without a body and POST with one. ``route`` is below the URL of the run; of None that URL
    is the request's own. ``json`` is JSON text, ``type`` the Content-Type where it is not that of the body's form.
    """

    method: Method | None = None
    route: str | None = None
    headers: tuple[tuple[str, str], ...] = ()
    json: str | None = None
    form: tuple[tuple[str, str], ...] | None = None
    multipart: tuple[tuple[str, str | Upload], ...] | None = None
    raw: str | None = None
    file: Upload | None = None
    type: str | None = None

    @property
    def blanks(self) -> tuple[str, ...]:
        """The names of its blanks, each once."""
        parts = [self.route, self.json, self.raw, *(value for _, value in (*self.headers, *(self.form or ())))]
        parts += [value for _, value in self.multipart or () if isinstance(value, str)]
        return tuple(dict.fromkeys(name for part in parts if part is not None for name in names(part)))


class Rule(msgspec.Struct, frozen=True):
    """Something that holds of an answer: what is ``at`` a JSON path ``equals`` a value (JSON text), or is there."""

    at: str
    equals: str | None = None
    exists: bool = True


class ResponseForm(msgspec.Struct, frozen=True):
    """Where in an answer, or in each event of a stream, things sit: JSON paths, None where nobody says.

    ``done`` is the event that ends a stream; of None the end of its body is the end. ``status`` are the good ones, of
    () those from 200 to 299; ``success`` has to hold of a whole answer besides.
    """

    stream: Stream = "none"
    done: str | None = None
    status: tuple[int, ...] = ()
    success: Rule | None = None
    text: str | None = None
    input_tokens: str | None = None
    output_tokens: str | None = None
    finish: str | None = None
    error: str | None = None

    @property
    def wordy(self) -> bool:
        """Whether it brings text: at a path, or as lines or pieces that are text themselves."""
        return self.text is not None or self.stream in ("lines", "chunks")


class Pattern(msgspec.Struct, frozen=True):
    """A request and what is expected of its answer."""

    request: RequestForm = RequestForm()
    response: ResponseForm = ResponseForm()
