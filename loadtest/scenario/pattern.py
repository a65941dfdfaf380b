"""The sections ``request`` and ``response`` of a scenario: what is wrong with them, and the values that they make."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from loadtest.endpoints import blanks
from loadtest.endpoints.pattern import BODIES, FOUND, Pattern, RequestForm, ResponseForm, Rule, Upload
from loadtest.errors import ScenarioError
from loadtest.scenario import form
from loadtest.scenario.document import Document, Fault, Keys, dotted

HTTP = "http"
_MOST_BYTES = 32 << 10  # of a body with blanks, which a scenario holds
_DOES_NOTHING = {
    "output_tokens": ("max_tokens",),
    "input_tokens": ("prompt", "input_tokens"),
    "corpus": ("prompt",),
    "prefix": ("prompt",),
}
"""What is said of a workload, and the blanks of which one has to be in the request for it to matter."""
_NOT_HERE = ("body", "conversation", "images", "inputs", "binary")


def pattern_faults(document: Document) -> Iterator[Fault]:
    """What is wrong between the keys of a template, and between it and the rest."""
    data = document.data
    if data.get("endpoint") != HTTP:
        for key in ("request", "response"):
            if data.get(key) is not None:
                yield _fault(document, (key,), f"is of the endpoint {HTTP}: write endpoint: {HTTP}, or remove it")
        return
    request, response = _mapping(data, "request"), _mapping(data, "response")
    found = set()
    for at, text in _texts(request, ("request",)):
        try:
            found.update(blanks.names(text))
        except ValueError as error:
            yield _fault(document, at, str(error))
    yield from _request_faults(document, request)
    yield from _response_faults(document, response)
    if data.get("stream") is not None:
        yield _fault(document, ("stream",), "does not apply: response.stream says it; remove it")
    yield from _workload_faults(document, found)


def _request_faults(document: Document, request: dict[str, Any]) -> Iterator[Fault]:
    given = [key for key in BODIES if request.get(key) is not None]
    for other in given[1:]:
        yield _fault(document, ("request", other), f"excludes {given[0]}: a request has one body; keep one")
    if request.get("type") is not None and not given:
        yield _fault(document, ("request", "type"), "applies to a body only: give one, or remove it")


def _response_faults(document: Document, response: dict[str, Any]) -> Iterator[Fault]:
    stream, success = response.get("stream") or "none", _mapping(response, "success")
    if stream == "none" and response.get("done") is not None:
        yield _fault(document, ("response", "done"), "applies to a stream only: say stream, or remove it")
    if stream in ("sse", "ndjson") and response.get("text") is None:
        text = "needs text: where in an event that is, such as $.text, or $ for the event itself"
        yield _fault(document, ("response", "stream"), text)
    for key in (*FOUND, "error"):
        if stream == "chunks" and response.get(key) is not None:
            text = "does not apply to chunks, which are text however it is cut: take lines, ndjson or sse"
            yield _fault(document, ("response", key), text)
    for key in ("path", "equals", "exists"):
        at = ("response", "success", key)
        if success.get(key) is None:
            continue
        if stream != "none":
            yield _fault(document, at, "does not apply to a stream, of which no event is the whole: take error or done")
        elif key != "path" and success.get("path") is None:
            yield _fault(document, at, "needs path: where in the answer")
    if success.get("equals") is not None and success.get("exists") is not None:
        yield _fault(document, ("response", "success", "exists"), "excludes equals; keep one")


def _workload_faults(document: Document, found: set[str]) -> Iterator[Fault]:
    """What is said of the workload and no request would show, or is missing for it."""
    data = document.data
    parts: list[tuple[Keys, dict[str, Any]]] = [(("workload",), _mapping(data, "workload"))]
    for key in ("mix", "levels"):
        listed = data.get(key)
        parts += [((key, n), item) for n, item in enumerate(listed if isinstance(listed, list) else ())]
    asked = [(at, part) for at, part in parts if isinstance(part, dict)]
    for at, part in asked:
        for key in _NOT_HERE:
            if part.get(key) is not None:
                yield _fault(document, (*at, key), "does not apply to a template: its request says all that is sent")
        for key, names in _DOES_NOTHING.items():
            if part.get(key) is not None and found.isdisjoint(names):
                blank = " or ".join(f"{{{{ {name} }}}}" for name in names)
                yield _fault(document, (*at, key), f"would do nothing: the request has no {blank}")
        if part.get("models") is not None and "model" not in found:
            yield _fault(document, (*at, "models"), "would do nothing: the request has no {{ model }}")
    workloads = [(at, part) for at, part in asked if at[0] == ("mix" if data.get("mix") else "workload")]
    columns = blanks.columns(sorted(found))
    for at, part in workloads:
        if part.get("data") is not None and not columns and "prompt" not in found:
            text = "would do nothing: the request has no {{ prompt }} and no {{ row.COLUMN }}"
            yield _fault(document, (*at, "data"), text)
    needs = [at for at, part in workloads if part.get("data") is None]
    if columns and needs:
        where = (
            "workload.data" if needs[0] == ("workload",) else f"data in each part of the mix, as in {dotted(needs[0])}"
        )
        yield from _at_blank(document, f"row.{columns[0]}", f"needs rows: give {where}")
    named = data.get("model") is not None or all(part.get("models") is not None for _, part in workloads)
    if "model" in found and not named:
        yield from _at_blank(document, "model", "needs a model: give one, or --model")


def _at_blank(document: Document, name: str, text: str) -> Iterator[Fault]:
    """A fault at the first place of a blank."""
    for at, value in _texts(_mapping(document.data, "request"), ("request",)):
        try:
            there = name in blanks.names(value)
        except ValueError:
            continue  # told of elsewhere
        if there:
            yield _fault(document, at, f"{{{{ {name} }}}} {text}")
            return


def _texts(value: Any, at: Keys) -> Iterator[tuple[Keys, str]]:
    """All texts in a value, and the keys of its mappings, with the way to each."""
    if isinstance(value, str):
        yield at, value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield (*at, key), key
            yield from _texts(inner, (*at, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _texts(inner, (*at, index))


def _mapping(data: dict[str, Any], key: str) -> dict[str, Any]:
    section = data.get(key)
    return section if isinstance(section, dict) else {}


def _fault(document: Document, at: Keys, text: str) -> Fault:
    """The fault at a value; where a flag gave it, at the first that was given within or around it."""
    around = [at[:depth] for depth in range(len(at), 0, -1)]
    within = [keys for keys in document.values if keys[: len(at)] == at]
    place = next(document.values[keys] for keys in (*around[:1], *within, *around[1:]) if keys in document.values)
    return Fault(place, dotted(at) if place.line else "", text)


def pattern(request: form.Request | None, response: form.Response | None) -> Pattern:
    """The values of valid sections."""
    sent, came = RequestForm(), ResponseForm()
    if request is not None:
        file = None if request.file is None else Upload(request.file, request.type)
        sent = RequestForm(
            request.method,
            request.path,
            tuple((request.headers or {}).items()),
            request.json_,
            None if request.form is None else tuple(request.form.items()),
            None if request.multipart is None else tuple(request.multipart.items()),
            request.raw,
            file,
            request.type,
        )
    if response is not None:
        success = response.success
        came = ResponseForm(
            response.stream or "none",
            response.done,
            tuple(success.status or ()) if success else (),
            _rule(success) if success and success.path else None,
            *(getattr(response, key) for key in (*FOUND, "error")),
        )
    return Pattern(sent, came)


def _rule(success: form.Success) -> Rule:
    assert success.path is not None
    return Rule(success.path, success.equals, True if success.exists is None else success.exists)


class Json(msgspec.Struct, frozen=True):
    """A value that is written as the JSON text it is."""

    text: str


def written(pattern: Pattern) -> tuple[dict[str, Any], dict[str, Any]]:
    """The sections of a pattern as a file gives them, without what is not said."""
    sent, came = pattern.request, pattern.response
    multipart = sent.multipart and {
        name: value if isinstance(value, str) else _given(file=value.path, type=value.type)
        for name, value in sent.multipart
    }
    request = _given(
        method=sent.method,
        path=sent.route,
        headers=dict(sent.headers) or None,
        json=None if sent.json is None else Json(sent.json),
        form=None if sent.form is None else dict(sent.form),
        multipart=multipart,
        raw=sent.raw,
        file=sent.file and sent.file.path,
        type=sent.type,
    )
    rule = came.success
    success = _given(
        status=[*came.status] or None,
        path=rule and rule.at,
        equals=None if rule is None or rule.equals is None else Json(rule.equals),
        exists=None if rule is None or rule.equals is not None else rule.exists,
    )
    paths = {key: getattr(came, key) for key in (*FOUND, "error")}
    return request, _given(stream=came.stream, done=came.done, success=success or None, **paths)


def _given(**values: Any) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


def body_of(text: str, origin: str) -> tuple[str, Any]:
    """The key of a request and its value that the text of ``--body`` means.

    Text that is a JSON object or list is ``json``, with its blanks in quotes or without; other text is ``raw``. ``@``
    and a path is that file: its text in the same way if it has blanks, else the file as it is.

    Raises:
        ScenarioError: there is no such file, or it has blanks and is too large for that.
    """
    if not text.startswith("@"):
        return _json_or_raw(text)
    path = Path(os.path.abspath(text[1:]))
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ScenarioError(f"{origin}: cannot read {path}: {error.strerror}") from None
    try:
        held = data.decode()
        has_blanks = bool(blanks.names(held))
    except UnicodeDecodeError:
        has_blanks = False
    except ValueError as error:
        raise ScenarioError(f"{origin}: {path}: {error}") from None
    if not has_blanks:
        return "file", str(path)
    if len(data) > _MOST_BYTES:
        raise ScenarioError(f"{origin}: {path} is larger than {_MOST_BYTES >> 10} KiB, the most of a body with blanks")
    return _json_or_raw(held)


def _json_or_raw(text: str) -> tuple[str, Any]:
    try:
        value = json.loads(blanks.quoted(text))
    except (ValueError, RecursionError):
        return "raw", text
    return ("json", value) if isinstance(value, dict | list) else ("raw", text)
