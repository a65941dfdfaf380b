"""Whether what the user expects of an answer holds: a 200 with the wrong body is a failure.

Each check is made ready once and asked of every good answer, after it was read; docs/checks.md has what one costs.
"""

import functools
import json
import re
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import msgspec

from loadtest.endpoints import blanks
from loadtest.endpoints.jsonpath import compiled
from loadtest.endpoints.lenient import clean, read_json
from loadtest.endpoints.reading import Reading
from loadtest.workload.model import Check

_MOST = 200  # characters of what is said of a failed check
_SHOWN = 60  # of these, of what was found
_EXPECTED = 90  # and of what was expected
_EXTRA = "pip install '.[schema]'"
_LOOKED_AT = 2000  # of a body, or characters of a text, that tell whether it is a page
_PAGE = re.compile(r"\s*(?:<\?xml[^>]*>\s*|<!--.*?-->\s*)*<(?:!doctype\s+html|html|head|body)\b", re.I | re.S)
_decode = msgspec.json.Decoder().decode
_NO_JSON = object()


class Answered(NamedTuple):
    """An answer as checks see it: as it was read, and how many tokens it has and was asked to have, where known."""

    reading: Reading
    output_tokens: int | None
    asked_tokens: int | None


# What was found where something else was expected; None: the check holds.
_Finding = Callable[["_Looked"], str | None]


class Checks:
    """The checks of one workload.

    Raises:
        ValueError: one of them is none, or the package that it needs is not installed.
    """

    def __init__(self, checks: Iterable[Check]) -> None:
        self._ready = [(check.name or f"check {n}", *_made(check)) for n, check in enumerate(checks, start=1)]

    def failed(self, answer: Answered) -> str | None:
        """What is wrong with an answer by the first check that does not hold; None where all do."""
        looked = _Looked(answer)
        for name, expected, finding in self._ready:
            if (found := finding(looked)) is not None:
                return _cut(f"{name}: expected {_cut(expected, _EXPECTED)}, found {found}", _MOST)
        return None


class _Looked:
    """An answer, of which each part that several checks may look at is made once."""

    def __init__(self, answer: Answered) -> None:
        self.reading = answer.reading
        self.output_tokens = answer.output_tokens
        self.asked_tokens = answer.asked_tokens

    @functools.cached_property
    def text(self) -> str:
        return self.reading.answer.said

    @functools.cached_property
    def body(self) -> str | None:
        body = self.reading.body
        return None if body is None else body.decode("utf-8", "replace")

    def of(self, which: str) -> str | None:
        """The text or the body; None: it was a stream, and there is no body of one piece."""
        return self.text if which == "text" else self.body

    def value(self, which: str) -> Any:
        """The same read as JSON; ``_NO_JSON`` where it is none."""
        return self._text_value if which == "text" else self._body_value

    @functools.cached_property
    def _text_value(self) -> Any:
        return _json(self.text)

    @functools.cached_property
    def _body_value(self) -> Any:
        return _json(self.body)


def _made(check: Check) -> tuple[str, _Finding]:
    """What a check expects, in words, and what asks it of an answer."""
    if check.status:
        return _one_of("status", check.status), lambda seen: _unless(seen.reading.status, check.status)
    if check.finish_reason:
        reasons = check.finish_reason
        return _one_of("finish_reason", reasons), lambda seen: _unless(seen.reading.answer.finish_reason, reasons)
    if check.path is not None:
        return _at_path(check, check.path)
    if check.matches is not None:
        pattern = re.compile(check.matches)
        return f"{check.of} matching {check.matches}", lambda seen: _unmatched(seen.of(check.of), pattern)
    if check.lacks is not None:
        unwanted = re.compile(check.lacks)
        return f"{check.of} without {check.lacks}", lambda seen: _unwanted(seen.of(check.of), unwanted)
    if check.schema is not None:
        valid = validator(check.schema)
        return f"{check.of} by its JSON Schema", lambda seen: _invalid(seen, check.of, valid)
    if check.output_tokens is not None:
        return _of_length(check)
    if check.not_html:
        return "no HTML", _page
    raise ValueError("a check that says nothing")


def _one_of(what: str, values: Iterable[object]) -> str:
    return f"{what} {' or '.join(map(str, values))}"


def _unless(found: object, good: tuple[object, ...]) -> str | None:
    return None if found in good else "none" if found is None else _shown(found)


def _at_path(check: Check, path: str) -> tuple[str, _Finding]:
    find = compiled(path)
    good = [_decode(text) for text in check.among]
    if good:
        expected = f"{path} {' or '.join(check.among)}"
    else:
        expected = f"{path} {'to be there' if check.exists else 'not to be there'}"

    def finding(seen: _Looked) -> str | None:
        if (value := seen.value(check.of)) is _NO_JSON:
            return _not_json(seen, check.of)
        found = find(value)
        if good:
            if not found:
                return "nothing there"
            return next((_value(each) for each in found if not any(_same(each, one) for one in good)), None)
        if bool(found) == check.exists:
            return None
        return "nothing there" if not found else _value(found[0])

    return expected, finding


def _same(found: Any, expected: Any) -> bool:
    """Whether two JSON values are equal: true is not 1."""
    if isinstance(found, bool) or isinstance(expected, bool):
        return found is expected
    if isinstance(found, list) and isinstance(expected, list):
        return len(found) == len(expected) and all(map(_same, found, expected))
    if isinstance(found, dict) and isinstance(expected, dict):
        return found.keys() == expected.keys() and all(_same(found[key], expected[key]) for key in found)
    return bool(found == expected)


def _unmatched(text: str | None, pattern: re.Pattern[str]) -> str | None:
    return None if text is not None and pattern.search(text) else _shown(text)


def _unwanted(text: str | None, unwanted: re.Pattern[str]) -> str | None:
    found = None if text is None else unwanted.search(text)
    return None if found is None else _shown(found[0])


def _invalid(seen: _Looked, of: str, valid: Any) -> str | None:
    if (value := seen.value(of)) is _NO_JSON:
        return _not_json(seen, of)
    if valid.is_valid(value):
        return None
    fault = next(valid.iter_errors(value))
    at = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in fault.instance_path)
    return _cut(f"${at}: {clean(fault.message)}", _MOST)


def _of_length(check: Check) -> tuple[str, _Finding]:
    wanted = check.output_tokens
    least, most = wanted if isinstance(wanted, tuple) else (None, None)
    if wanted == "asked":
        expected = "as many output tokens as were asked for"
    elif least == most:
        expected = f"{least} output tokens"
    else:
        bounds = (f"at least {least}" if least is not None else "", f"at most {most}" if most is not None else "")
        expected = f"{' and '.join(filter(None, bounds))} output tokens"

    def finding(seen: _Looked) -> str | None:
        count, low, high = seen.output_tokens, least, most
        if wanted == "asked":
            low = high = seen.asked_tokens
        if count is None or (wanted == "asked" and low is None):
            return None if check.unknown == "pass" else "a count that is not known"
        if (low is None or count >= low) and (high is None or count <= high):
            return None
        return f"{count} instead of {low}" if wanted == "asked" else str(count)

    return expected, finding


def _page(seen: _Looked) -> str | None:
    body = seen.reading.body
    start = (seen.text if body is None else body[:_LOOKED_AT].decode("utf-8", "replace"))[:_LOOKED_AT]
    if _PAGE.match(start) or seen.reading.content_type.startswith("text/html"):
        return _shown(start)
    return None


def _json(text: str | None) -> Any:
    if text is None:
        return _NO_JSON
    try:
        return _decode(text)
    except (msgspec.DecodeError, RecursionError):
        try:
            return read_json(text.encode("utf-8", "replace"))
        except ValueError:
            return _NO_JSON


def _not_json(seen: _Looked, of: str) -> str:
    text = seen.of(of)
    return "a stream, which has no body of one piece" if text is None else f"{of} that is not JSON: {_shown(text)}"


def _shown(value: object) -> str:
    """What was found, on one line."""
    if value is None:
        return "nothing"
    if isinstance(value, str):
        return repr(_cut(clean(value), _SHOWN)) if value else "no text"
    return _cut(clean(blanks.words(value)), _SHOWN)


def _value(value: object) -> str:
    """A JSON value that was found."""
    return "null" if value is None else _shown(value)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


@functools.lru_cache(64)
def validator(schema: str) -> Any:
    """What tells whether a value is as a JSON Schema has it, of the draft that it names, else of 2020-12.

    Raises:
        ValueError: it is none, refers to what is not in it, or the package that reads it is not installed.
    """
    try:
        import jsonschema_rs  # noqa: PLC0415  # large, and of an extra
    except ImportError:
        raise ValueError(f"a JSON Schema needs the package jsonschema-rs: {_EXTRA}") from None

    def refuse(uri: str) -> Any:
        raise ValueError(f"{uri} is not within it, and nothing is fetched")

    try:
        return jsonschema_rs.validator_for(json.loads(schema), retriever=refuse)
    except ValueError as error:  # jsonschema_rs.ValidationError is one
        why = " ".join(str(error).partition("\n")[0].split())
        raise ValueError(f"expected a JSON Schema: {why}") from None
