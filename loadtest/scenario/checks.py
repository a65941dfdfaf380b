"""The section ``checks`` of a scenario or of a part of a mix: what is wrong with it, and the values that it makes."""

from collections.abc import Iterator, Sequence
from typing import Any

from loadtest.endpoints.catalog import dialect, kinds
from loadtest.scenario import form
from loadtest.scenario.clashes import mapping
from loadtest.scenario.document import Document, Fault, Keys, dotted
from loadtest.scenario.pattern import HTTP, Json
from loadtest.workload.model import Check

_KINDS = ("status", "path", "matches", "lacks", "schema", "output_tokens", "finish_reason", "not_html")
_AT_PATH = ("equals", "in", "exists")
_LOOKS = ("path", "matches", "lacks", "schema")
_WRITTEN = ("output_tokens", "finish_reason")  # of an answer that is written token by token


def check_faults(document: Document) -> Iterator[Fault]:
    """What is wrong between the keys of a check, and between it and the endpoint."""
    data = document.data
    audit, endpoint = data.get("audit"), data.get("endpoint")
    if isinstance(audit, dict) and audit.get("deterministic") and endpoint in kinds() and not _writes(data, endpoint):
        here = ("audit", "deterministic")
        text = f"does not apply: the endpoint {endpoint} writes no text that could be the same; remove it"
        yield Fault(document.values[here], dotted(here), text)
    mix = data.get("mix")
    sections: list[tuple[Keys, Any]] = [((), data)]
    sections += [(("mix", n), part) for n, part in enumerate(mix if isinstance(mix, list) else ())]
    for at, section in sections:
        listed = section.get("checks") if isinstance(section, dict) else None
        for number, check in enumerate(listed if isinstance(listed, list) else ()):
            if isinstance(check, dict):
                for key, text in (*_within(check), *_against(data, check)):
                    here = (*at, "checks", number, *((key,) if key else ()))
                    yield Fault(document.values[here], dotted(here), text)


def _within(check: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """What is wrong between the keys of one check, by key."""
    given = {key for key, value in check.items() if value is not None}
    said = [key for key in _KINDS if key in given]
    if not said and given <= {"name", "unknown", "of", *_AT_PATH}:
        yield "", f"says nothing to hold: give one of {', '.join(_KINDS)}"
    for other in said[1:]:
        yield other, f"excludes {said[0]}: write it as a check of its own"
    which = [key for key in _AT_PATH if key in given]
    for key in which if "path" not in given else which[1:]:
        yield key, f"excludes {which[0]}; keep one" if "path" in given else "needs path: where in the answer"
    if "of" in given and not given & {*_LOOKS}:
        yield "of", f"applies to {', '.join(_LOOKS)} only: remove it"
    if "unknown" in given and "output_tokens" not in given:
        yield "unknown", "applies to output_tokens only: remove it"


def _against(data: dict[str, Any], check: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """What no answer of the endpoint could have, by key."""
    endpoint = data.get("endpoint")  # of None it is found by asking
    if endpoint not in kinds():
        return
    streams, generates = data.get("stream") is not False, _writes(data, endpoint)
    if endpoint == HTTP:
        streams = mapping(data, "response").get("stream") not in (None, "none")
    of = check.get("of")
    if of == "body" and streams and (generates or endpoint == HTTP):
        yield "of", "does not apply: answers are streamed, and have no body of one piece; take text, or do not stream"
    if of == "text" and not generates:
        yield "of", "does not apply: the endpoint writes no text; take body"
    for key in _WRITTEN if not generates and endpoint != HTTP else ():
        if check.get(key) is not None:
            yield key, f"does not apply: the endpoint {endpoint} writes no answer token by token"


def _writes(data: dict[str, Any], endpoint: str) -> bool:
    """Whether answers are texts."""
    response = mapping(data, "response")
    if endpoint == HTTP:
        return response.get("text") is not None or response.get("stream") in ("lines", "chunks")
    return dialect(endpoint).generates


def checks(given: Sequence[form.Check] | None, *, generates: bool) -> tuple[Check, ...]:
    """The values of valid sections; ``generates``: the endpoint writes text."""
    return tuple(_made(each, "text" if generates else "body") for each in given or ())


def _made(given: form.Check, of: Any) -> Check:
    return Check(
        name=given.name,
        status=tuple(given.status or ()),
        finish_reason=tuple(given.finish_reason or ()),
        path=given.path,
        among=tuple(given.in_ or ()) if given.equals is None else (given.equals,),
        exists=given.exists is not False,
        matches=given.matches,
        lacks=given.lacks,
        schema=given.schema_,
        of=given.of or of,
        output_tokens=given.output_tokens,
        unknown=given.unknown or form.DEFAULTS["checks.unknown"],
        not_html=bool(given.not_html),
    )


def written(made: Sequence[Check]) -> list[dict[str, Any]] | None:
    """Checks as a file gives them, without what is not said; None where there are none."""
    return [_written(check) for check in made] or None


def _written(check: Check) -> dict[str, Any]:
    looks = any(getattr(check, key) is not None for key in _LOOKS)
    tokens = check.output_tokens
    values: dict[str, Any] = {
        "name": check.name,
        "status": [*check.status] or None,
        "path": check.path,
        "in": [*map(Json, check.among)] or None,
        "exists": False if not check.exists else None,
        "matches": check.matches,
        "lacks": check.lacks,
        "schema": None if check.schema is None else Json(check.schema),
        "of": check.of if looks else None,
        "output_tokens": [*tokens] if isinstance(tokens, tuple) else tokens,
        "unknown": check.unknown if tokens is not None else None,
        "finish_reason": [*check.finish_reason] or None,
        "not_html": check.not_html or None,
    }
    return {key: value for key, value in values.items() if value is not None}
