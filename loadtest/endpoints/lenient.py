"""JSON as servers really write it, read with leniency; and the words of an error, whatever shape it has."""

import json
from typing import Any


def error_text(body: bytes) -> str | None:
    """The server's own words in an error body of any of the usual shapes, or None."""
    try:
        reply = read_json(body)
    except ValueError:
        return None
    if not isinstance(reply, dict):
        return None
    error = reply.get("error")
    for source in (error, reply):
        if isinstance(source, dict):
            for key in ("message", "detail", "error_description"):
                if source.get(key):
                    text = source[key]
                    return clean(text if isinstance(text, str) else json.dumps(text))
    return clean(error) if isinstance(error, str) and error else None


def error_in(data: bytes) -> str | None:
    """The words of an error object, or None if this is not one.

    ``{"error": …}`` is the usual shape; older vLLM and FastChat send the error flat, told by its object or its code.
    """
    try:
        reply = read_json(data)
    except ValueError:
        return None
    if not isinstance(reply, dict):
        return None
    flat = "choices" not in reply and (
        reply.get("object") == "error" or reply.get("type") == "error" or reply.get("error_code")
    )
    return error_text(data) or words(data) if reply.get("error") or flat else None


def read_json(data: bytes) -> Any:
    """JSON as servers write it: also with a byte order mark, NaN, lone surrogates, or what is not UTF-8 (as U+FFFD).

    Raises:
        ValueError: it is not JSON.
    """
    try:
        return json.loads(data.decode("utf-8-sig", "replace"))
    except RecursionError:
        raise ValueError("nested too deeply") from None


def clean(text: str) -> str:
    """Text that can be stored: a lone surrogate is no character."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def words(body: bytes, limit: int = 300) -> str:
    """A body for a person to read: one line, cut off."""
    text = " ".join(body.decode("utf-8", "replace").split())
    return (text[:limit] + "…" if len(text) > limit else text) or "(empty)"


def text_of(value: Any) -> str | None:
    """The value if it is text."""
    return clean(value) if isinstance(value, str) else None


def count_of(value: Any) -> int | None:
    """A token count, also one written as 5.0; None if it cannot be one."""
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 2**53 and value == int(value):
        return int(value)
    return None
