"""What is wrong with a scenario: every fault at once, each in words of the file."""

import difflib
import re

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from loadtest.scenario import form
from loadtest.scenario.checks import check_faults
from loadtest.scenario.clashes import clashes
from loadtest.scenario.document import Document, Fault, Keys, Place, dotted
from loadtest.scenario.pattern import pattern_faults

_SHOWN = 60
_MIX = "one workload stands under 'workload', several that are played together are the list 'mix'"


def check(document: Document) -> tuple[form.File | None, list[Fault]]:
    """The values of the document in their types, or None, and all its faults; a file without any is whole."""
    try:
        file, faults = form.File.model_validate(document.data, context=document.folder), []
    except ValidationError as error:
        file, faults = None, [_fault(found, document) for found in error.errors(include_url=False)]
    between = [*clashes(document), *pattern_faults(document), *check_faults(document)]
    return file, [*document.faults, *faults, *between]


def message(faults: list[Fault]) -> str:
    """All faults, those of the file in its order, then those of flags."""
    ordered = sorted(set(faults), key=lambda fault: (fault.place.line or 10**9, fault.place.column or 0, str(fault)))
    if len(ordered) == 1:
        return str(ordered[0])
    return "\n  ".join([f"the scenario has {len(ordered)} faults:", *map(str, ordered)])


def place_of(places: dict[Keys, Place], at: Keys) -> Place:
    """Where the value stands, or the innermost one around it that has a place."""
    while at not in places:
        at = at[:-1]
    return places[at]


def no_mapping(value: object) -> str:
    """The fault of a section that is something else."""
    return f"expected a mapping of keys to values, got {_shown(value)}"


def _fault(error: ErrorDetails, document: Document) -> Fault:
    at: Keys = error["loc"][:-1] if error["loc"][-1] == "[key]" else error["loc"]
    if error["type"] == "extra_forbidden":
        return Fault(document.keys[at], dotted(at), _unknown(at))
    place = place_of(document.values, at)
    if (isinstance(at[-1], int) and (len(at) > 2 or at[0] in ("model", "slo", "warn"))) or error["type"] == "missing":
        at = at[:-1]  # the place of an item says which it is; what is missing has none
    return Fault(place, dotted(at) if place.line else "", _expected(error))


def _unknown(at: Keys) -> str:
    key = str(at[-1])
    section = next((str(key) for key in reversed(at[:-1]) if key in form.SECTIONS), "")
    fields = form.SECTIONS.get(section, form.File).model_fields
    known = [field.alias or name for name, field in fields.items()]
    if key.endswith(")") and "(" not in key:
        return 'belongs to the value before it: between { } write "uniform(64, 192)" in quotes'
    spelt = key.lower().replace("-", "_")
    if section and spelt in form.File.model_fields and spelt not in known:
        return "unknown key here; it belongs at the top of the file"
    close = difflib.get_close_matches(spelt, known, n=1)
    if not section and spelt == "workloads":
        return f"unknown key; {_MIX}"
    if close:
        return f"unknown key; did you mean {close[0]!r}?"
    elsewhere = [name for name, model in form.SECTIONS.items() if spelt in model.model_fields]
    if elsewhere:
        return f"unknown key here; it belongs under {elsewhere[0]!r}"
    return f"unknown key; expected one of {', '.join(known)}"


def _expected(error: ErrorDetails) -> str:
    """What was expected and what was there, in words of the file rather than of the validator."""
    value = error["input"]
    context = error.get("ctx", {})
    got = f", got {_shown(value)}"
    match error["type"]:
        case "value_error":
            text = str(context["error"])
            return text + got if text.startswith("expected") else text
        case "int_type" | "int_from_float":
            return f"expected a whole number{got}"
        case "float_type" | "finite_number":
            return f"expected a number{got}"
        case "bool_type":
            return f"expected true or false{got}"
        case "string_type":
            return f"expected text{got}" + ("" if isinstance(value, dict | list) else ": put it in quotes")
        case "literal_error":
            choices = re.findall(r"'([^']*)'", context["expected"])
            close = difflib.get_close_matches(str(value).lower(), choices, n=1)
            return f"expected {context['expected']}{got}" + (f"; did you mean {close[0]!r}?" if close else "")
        case "greater_than_equal":
            return f"expected at least {_shown(context['ge'])}{got}"
        case "greater_than":
            return f"expected more than {_shown(context['gt'])}{got}"
        case "less_than_equal":
            return f"expected at most {_shown(context['le'])}{got}"
        case "less_than":
            return f"expected less than {_shown(context['lt'])}{got}"
        case "missing":
            return f"is missing {error['loc'][-1]!r}"
        case "model_type" if isinstance(value, str) and value.isprintable() and error["loc"][-1] in ("data", "trace"):
            return f"{no_mapping(value)}: write {{path: {value}}}"
        case "model_type" if isinstance(value, list) and error["loc"] == ("workload",):
            return f"{no_mapping(value)}; {_MIX}"
        case "model_type" | "dict_type":
            return no_mapping(value)
        case "list_type":
            return f"expected a list{got}"
        case "too_short" | "string_too_short":
            return "is empty: expected a value, or remove the key"
        case "too_long":
            return f"expected at most {context['max_length']} values, got {context['actual_length']}"
        case "string_too_long":
            return f"expected at most {context['max_length']} characters, got {len(value)}"
        case "string_pattern_mismatch" if error["loc"] == ("name",):
            return f"expected letters, digits, '.', '_' and '-', beginning with a letter or digit{got}"
        case "string_pattern_mismatch" | "string_unicode":
            return f"expected text without control characters{got}"
    return f"{error['msg']}{got}"


def _shown(value: object) -> str:
    match value:
        case None:
            return "nothing"
        case bool():
            return str(value).lower()
        case dict():
            return "a mapping"
        case list():
            return "a list"
        case float():
            return repr(value).removesuffix(".0")
    text = ascii(value) if isinstance(value, str) and not value.isprintable() else repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
