"""JSON paths: where something sits in an answer, such as ``$.choices[0].delta.content`` or ``outputs[*].text``.

The grammar, and all that is more than keys and single indices, is jsonpath-ng's. A plain way down is walked by hand: an
event of a stream is looked at with several paths, and the library takes 10 µs for each, this 0.3.
"""

import functools
from collections.abc import Callable
from typing import Any

Finder = Callable[[Any], list[Any]]


@functools.cache
def compiled(path: str) -> Finder:
    """What finds all values at a path in a decoded JSON value, in order; none where there is nothing.

    Raises:
        ValueError: it is no path.
    """
    from jsonpath_ng.exceptions import JSONPathError  # noqa: PLC0415  # slow to load, and most runs name no path
    from jsonpath_ng.parser import parse  # noqa: PLC0415

    try:
        parsed = parse(path)
    except JSONPathError as error:
        why = " ".join(str(error).split()).rstrip("!.")
        raise ValueError(f"expected a JSON path such as $.choices[0].text: {why}") from None
    steps = _steps(parsed)
    if steps is None:
        return lambda value: [found.value for found in parsed.find(value)]
    return functools.partial(_walk, steps)


def _steps(parsed: Any) -> tuple[str | int, ...] | None:
    """The keys and indices of a plain way down; None where the path is more than that."""
    import jsonpath_ng  # noqa: PLC0415

    match parsed:
        case jsonpath_ng.Root():
            return ()
        case jsonpath_ng.Fields(fields=(str(key),)) if key != "*":
            return (key,)
        case jsonpath_ng.Index(indices=(int(index),)):
            return (index,)
        case jsonpath_ng.Child(left=left, right=right):
            before, after = _steps(left), _steps(right)
            return None if before is None or after is None else (*before, *after)
    return None


def _walk(steps: tuple[str | int, ...], value: Any) -> list[Any]:
    try:
        for step in steps:
            if value.__class__ is not (dict if step.__class__ is str else list):
                return []
            value = value[step]  # type: ignore[index]  # the class says that it fits
    except LookupError:
        return []
    return [value]


def outline(value: Any, most: int = 10) -> str:
    """A sketch of a JSON value for a person: a line for each path in it and what is there, texts cut short."""
    lines: list[str] = []
    _sketch(value, "$", lines, most)
    return "\n".join(lines)


def _sketch(value: Any, at: str, lines: list[str], most: int) -> None:
    if len(lines) == most:
        lines[-1] = "…"
    if len(lines) >= most and lines[-1] == "…":
        return
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            _sketch(inner, f"{at}.{key}" if str(key).isidentifier() else f"{at}['{key}']", lines, most)
    elif isinstance(value, list) and value:
        _sketch(value[0], f"{at}[0]", lines, most)
        if len(value) > 1 and len(lines) < most:
            lines.append(f"{at}[…]: {len(value)} items in all")
    else:
        lines.append(f"{at}: {_kind(value)}")


def _kind(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case str():
            return f"text {value[:20] + '…' if len(value) > 20 else value!r}"
        case dict() | list():
            return "an empty mapping" if isinstance(value, dict) else "an empty list"
    return f"number {value}"
