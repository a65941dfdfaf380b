"""The ``http`` dialect: whatever HTTP API a template describes (``loadtest.endpoints.pattern``).

Sources: RFC 7578 (multipart/form-data), the URL standard's application/x-www-form-urlencoded, RFC 9110 (methods).
"""

import functools
import glob
import hashlib
import mimetypes
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from loadtest.endpoints import blanks
from loadtest.endpoints.answer import Answer, Usage
from loadtest.endpoints.blanks import Blanks, Piece, constant, filled
from loadtest.endpoints.dialect import Dialect, Get, Head, Settings
from loadtest.endpoints.jsonpath import Finder, compiled, outline
from loadtest.endpoints.lenient import clean, count_of, read_json, words
from loadtest.endpoints.pattern import FOUND, Pattern, RequestForm, Upload
from loadtest.errors import UsageError
from loadtest.target import Known
from loadtest.wire.origin import in_target
from loadtest.wire.sse import ErrorEvent
from loadtest.workload.model import Ask

_MOST_BYTES = 256 << 20  # of files to send, all of which every generator process holds
_LINES = 10  # of what came, where it is not what was expected
_ANY = "application/octet-stream"
_UNSEEN = object()  # in place of a JSON value where there is none
_decode = msgspec.json.Decoder().decode


class Template(Dialect):
    """Requests filled in, and answers looked at, as the scenario says."""

    path = ""
    counts = False
    exact_url = True

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        request, response = settings.pattern.request, settings.pattern.response
        fill = Blanks(settings.model, dict(settings.variables))
        write, self.content_type = _body(request, fill, settings.seed)
        self._body: Callable[[Ask], bytes] | None = write
        self.method = request.method or ("GET" if write is None else "POST")
        self._path = fill.text(request.route or settings.path or "", blanks.in_path, in_target)
        self._headers = [(name, fill.text(value, blanks.in_header)) for name, value in request.headers]
        self._by_request = not constant(self._path) or not all(constant(pieces) for _, pieces in self._headers)
        if not self._by_request:
            only = self._head(_NOTHING)
            self.path, self.headers = only.path, only.headers
        if any(name.lower() == "content-type" for name, _ in request.headers):
            self.content_type = None
        self.streams = response.stream != "none"
        self.limits = "max_tokens" in request.blanks
        self.framing = "sse" if response.stream == "none" else response.stream
        self.ends_cleanly = response.done is None
        self._done = None if response.done is None else response.done.encode()
        self.sign = "" if response.done is None else f"response.done ({clean(response.done)})"
        self._status = frozenset(response.status)
        self._raw = response.text == "$" or (response.text is None and response.wordy)
        named = {key: path for key in (*FOUND, "error") if (path := getattr(response, key)) is not None}
        if self._raw:
            named.pop("text", None)
        self._paths = named
        self._find: dict[str, Finder] = {key: compiled(path) for key, path in named.items()}
        self._rule = response.success
        self._holds = None if self._rule is None else compiled(self._rule.at)
        self.bodiless = not (self._find or self._raw or self._rule)
        # What no answer has shown yet; once each of them has been there, the template fits.
        self._missing = {key for key in named if key != "error"}
        self._held = False  # whether any answer had what is to be a success
        self._seen: dict[str, str] = {}  # of answers until then: what is where

    @classmethod
    def of(cls, pattern: Pattern) -> type[Dialect]:
        """See ``Dialect``."""
        reads = not {"prompt", "input_tokens"}.isdisjoint(pattern.request.blanks)
        return _KINDS[reads, pattern.response.wordy]

    @classmethod
    def discover(cls, get: Get, model: str | None) -> Known:
        """What a template does not say nobody knows: nothing is asked."""
        return Known(model or "")

    @property
    def accept(self) -> str:
        """See ``Dialect``."""
        return "text/event-stream" if self.streams and self.framing == "sse" else "*/*"

    def body(self, ask: Ask) -> bytes:
        """See ``Dialect``."""
        return b"" if self._body is None else self._body(ask)

    def head(self, ask: Ask) -> Head | None:
        """See ``Dialect``."""
        return self._head(ask) if self._by_request else None

    def _head(self, ask: Ask) -> Head:
        # UTF-8 in a header travels as the same bytes read as Latin-1.
        headers = ((name, filled(pieces, ask).decode("latin-1")) for name, pieces in self._headers)
        return Head(filled(self._path, ask).decode("ascii"), tuple(headers))

    def fingerprint(self, ask: Ask) -> int | None:
        """See ``Dialect``; of a request without a prompt it is that of its row."""
        if self.reads:
            return super().fingerprint(ask)
        if ask.row is None:
            return None
        return int.from_bytes(hashlib.blake2b(ask.row.encode(), digest_size=6).digest())

    def good(self, status: int) -> bool:
        """See ``Dialect``."""
        return status in self._status if self._status else super().good(status)

    def event(self, answer: Answer, data: bytes, stamp: int) -> None:
        """See ``Dialect``."""
        if answer.ended:
            return
        if data == self._done:
            answer.ended = True
            return
        value = _json(data) if self._find else _UNSEEN
        if isinstance(data, ErrorEvent):
            answer.error = answer.error or self._error(value) or words(data)
        elif value is _UNSEEN and not self._raw:
            if data.strip():  # an event without data is a sign of life
                answer.bad_events += 1
                self._see(data, value)
        elif self._take(answer, data, value):
            answer.stamps.append(stamp)
            answer.first_answer = answer.first_answer or stamp

    def whole(self, answer: Answer, body: bytes) -> None:
        """See ``Dialect``."""
        value = _json(body) if self._find or self._rule else _UNSEEN
        if value is _UNSEEN and (self._find or self._rule):
            raise ValueError(f"the body is not JSON: {words(body)}")
        if self._raw and self.streams and body.lstrip().startswith(b"<"):
            raise ValueError(f"the body is a page and no stream: {words(body)}")
        self._take(answer, body, value)
        self._check(answer, value)
        answer.ended = answer.error is None

    def error_text(self, body: bytes) -> str | None:
        """See ``Dialect``."""
        return self._error(_json(body)) or super().error_text(body)

    def found_nothing(self, answer: Answer) -> str | None:
        """See ``Dialect``."""
        if not self._missing:
            return None
        named = ", ".join(f"response.{key} ({self._paths[key]})" for key in self._paths if key in self._missing)
        what = "no event has" if self.streams else "the answer has not"
        seen = "\n".join([*self._seen.values()][:_LINES]) or "nothing"
        return f"{named} finds nothing: {what} that path, or no such value there. What came is\n{seen}"

    def _take(self, answer: Answer, data: bytes, value: Any) -> bool:
        """Take in what there is in an answer or in one event of it; tells whether that is text."""
        find = self._find
        if "error" in find and (error := self._error(value)) is not None:
            answer.error = answer.error or error
            return False
        text = clean(data.decode("utf-8", "replace")) if self._raw else self._text(value) if "text" in find else None
        if "input_tokens" in find or "output_tokens" in find:
            given, written = self._count("input_tokens", value), self._count("output_tokens", value)
            if given is not None or written is not None:
                before = answer.usage or Usage()
                answer.usage = Usage(
                    before.input_tokens if given is None else given,
                    before.output_tokens if written is None else written,
                )
        if "finish" in find and (finish := _scalar(self._found("finish", value))) is not None:
            self._missing.discard("finish")
            answer.finish_reason = finish
        self._see(data, value)
        if text:
            answer.texts.append(text)
        return bool(text)

    def _see(self, data: bytes, value: Any) -> None:
        """Keep what is where, as long as something has not been found."""
        if self._missing and len(self._seen) < _LINES:
            shape = f"text {words(data, 40)!r}, which is no JSON" if value is _UNSEEN else outline(value, _LINES)
            for line in shape.splitlines():
                self._seen.setdefault(line.partition(":")[0], line)

    def _found(self, key: str, value: Any) -> Any:
        """The first that is at a path; None where that is nothing, or there is no such path."""
        found = find(value) if (find := self._find.get(key)) is not None else None
        return found[0] if found else None

    def _text(self, value: Any) -> str:
        texts = [text for found in self._find["text"](value) if (text := _scalar(found)) is not None]
        if texts:
            self._missing.discard("text")
        return texts[0] if len(texts) == 1 else "".join(texts)

    def _count(self, key: str, value: Any) -> int | None:
        count = count_of(self._found(key, value))
        if count is not None:
            self._missing.discard(key)
        return count

    def _error(self, value: Any) -> str | None:
        """The words of an error, where the template says that they are, and there is one."""
        found = self._found("error", value)
        if not found:
            return None
        return clean(blanks.words(found))[:300]

    def _check(self, answer: Answer, value: Any) -> None:
        """See whether a whole answer is a success."""
        if self._holds is None or self._rule is None or answer.error is not None:
            return
        rule, found = self._rule, self._holds(value)
        wanted = "" if rule.equals is None else f", expected {rule.equals}"
        if not found and (rule.exists or rule.equals is not None):
            came = "" if self._held else f". What came is\n{outline(value, _LINES)}"
            answer.error = f"no success: {rule.at} is not there{wanted}{came}"
        elif rule.equals is not None and found[0] != _decode(rule.equals):
            answer.error = f"no success: {rule.at} is {clean(blanks.words(found[0]))[:100] or 'empty'}{wanted}"
        elif found and not rule.exists:
            answer.error = f"no success: {rule.at} is there"
        self._held = self._held or bool(found)


# What a template says of its requests and answers decides what may be asked of it, before there is one of it.
_KINDS: dict[tuple[bool, bool], type[Template]] = {
    (reads, generates): type("Template", (Template,), {"reads": reads, "generates": generates})
    for reads in (False, True)
    for generates in (False, True)
}
_NOTHING = Ask((), 0)


class _File(NamedTuple):
    name: str
    type: str
    data: bytes


def _body(request: RequestForm, fill: Blanks, seed: int) -> tuple[Callable[[Ask], bytes] | None, str | None]:
    """What writes a request's body, and the type of it; nothing of a request without one.

    Raises:
        UsageError: a file to send cannot be read.
    """
    kind: str | None = None
    if request.json is not None:
        pieces, kind = fill.json(_decode(request.json)), "application/json"
    elif request.form is not None:
        pieces, kind = _form(request.form, fill), "application/x-www-form-urlencoded"
    elif request.multipart is not None:
        boundary = hashlib.blake2b(repr(request.multipart).encode(), digest_size=16).hexdigest()
        pieces, kind = _multipart(request.multipart, boundary, fill, seed), f"multipart/form-data; boundary={boundary}"
    elif request.raw is not None:
        guessed = _guessed(request.raw.encode())
        kind = guessed if guessed != _ANY else "text/plain; charset=utf-8"
        pieces = fill.text(request.raw, blanks.plain)
    elif request.file is not None:
        files = _files(request.file)
        kinds = {file.type for file in files}
        pieces, kind = [_one_of([file.data for file in files], seed)], kinds.pop() if len(kinds) == 1 else _ANY
    else:
        return None, None
    if constant(pieces):
        whole = filled(pieces, _NOTHING)
        return (lambda _: whole), request.type or kind
    return (lambda ask: filled(pieces, ask)), request.type or kind


def _form(fields: Sequence[tuple[str, str]], fill: Blanks) -> list[Piece]:
    pieces: list[Piece] = []
    for index, (name, value) in enumerate(fields):
        pieces.append((b"&" if index else b"") + blanks.in_form(name) + b"=")
        pieces += fill.text(value, blanks.in_form, blanks.in_form)
    return pieces


def _multipart(
    fields: Sequence[tuple[str, str | Upload]], boundary: str, fill: Blanks, seed: int
) -> list[Piece]:  # fmt: skip
    pieces: list[Piece] = []
    for name, value in fields:
        head = f'--{boundary}\r\nContent-Disposition: form-data; name="{_in_quotes(name)}"'
        if isinstance(value, str):
            pieces += [f"{head}\r\n\r\n".encode(), *fill.text(value, blanks.plain)]
        else:
            parts = [
                f'{head}; filename="{_in_quotes(file.name)}"\r\nContent-Type: {file.type}\r\n\r\n'.encode() + file.data
                for file in _files(value)
            ]
            pieces.append(_one_of(parts, seed))
        pieces.append(b"\r\n")
    return [*pieces, f"--{boundary}--\r\n".encode()]


def _in_quotes(text: str) -> str:
    """A name within the quotes of a Content-Disposition, as the URL and HTML standards write it."""
    return text.replace('"', "%22").replace("\r", "%0D").replace("\n", "%0A")


def _one_of(parts: Sequence[bytes], seed: int) -> Piece:
    """One after the other, from a place on that the seed gives."""
    if len(parts) == 1:
        return parts[0]
    return lambda ask: parts[(seed + ask.number) % len(parts)]


@functools.lru_cache(64)  # read once, however many of us there are in a process
def _files(upload: Upload) -> list[_File]:
    """The files of an upload, by name.

    Raises:
        UsageError: there is none, one cannot be read, or they are more than a process should hold.
    """
    path = upload.path
    if os.path.isdir(path):
        found = [entry.path for entry in os.scandir(path) if entry.is_file() and not entry.name.startswith(".")]
    else:
        found = [path] if os.path.exists(path) else glob.glob(path, recursive=True)
    files: list[_File] = []
    size = 0
    for each in sorted(filter(os.path.isfile, found)):
        try:
            data = Path(each).read_bytes()
        except OSError as error:
            raise UsageError(f"request: cannot read {each}: {error.strerror}") from None
        if (size := size + len(data)) > _MOST_BYTES:
            raise UsageError(f"request: the files of {path} are more than {_MOST_BYTES >> 20} MiB: name fewer of them")
        files.append(
            _File(os.path.basename(each), upload.type or mimetypes.guess_type(each)[0] or _guessed(data), data)
        )
    if not files:
        raise UsageError(f"request: there is no file at {path}")
    return files


def _guessed(data: bytes) -> str:
    """The type of a body whose file's name does not say it."""
    return "application/json" if isinstance(_json(data), dict | list) else _ANY


def _json(data: bytes) -> Any:
    """The value, or ``_UNSEEN`` where it is no JSON."""
    try:
        return _decode(data)
    except (msgspec.DecodeError, RecursionError):
        try:
            return read_json(data)
        except ValueError:
            return _UNSEEN


def _scalar(value: Any) -> str | None:
    """Text out of a text, a number or a truth."""
    if value.__class__ is str:
        return value if value.isascii() else clean(value)
    return clean(blanks.words(value)) if isinstance(value, str | bool | int | float) else None
