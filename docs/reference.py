"""Write ``scenario-reference.md`` beside this file: every key of a scenario, out of its JSON Schema.

python docs/reference.py
"""

import json
from pathlib import Path
from typing import Any

from loadtest import scenario

Schema = dict[str, Any]
PAGE = Path(__file__).with_name("scenario-reference.md")
_HEAD = """# Scenario reference

Every key of a scenario file, made from the [JSON Schema](scenario.schema.json) by `python docs/reference.py`. An editor
can check a file against the same (`loadtest schema > scenario.schema.json`). How the keys work together:
[Scenarios](scenarios.md). What is not called required may be left out, and `null` is the same as leaving it out.
"""
_WORDS = {"integer": "whole number", "number": "number", "string": "text", "boolean": "true or false"}


def page(schema: Schema) -> str:
    """The page of a schema: a section for the file, then one for each kind of value that has keys of its own."""
    sections = [_section("The file", schema)]
    sections += [_section(name, part) for name, part in sorted(schema["$defs"].items())]
    return "\n".join([_HEAD, *sections])


def _section(name: str, part: Schema) -> str:
    required = set(part.get("required", ()))
    rows = [_row(key, value, key in required) for key, value in part["properties"].items()]
    said = " ".join(part["description"].split())
    return "\n".join([f"## {name}", "", said, "", "| key | takes | is |", "| --- | --- | --- |", *rows, ""])


def _row(key: str, value: Schema, required: bool) -> str:
    said = " ".join(value["description"].split())
    if value.get("default") not in (None, ""):
        said += f" Default: {_code(value['default'])}."
    if "examples" in value:
        said += f" Such as {' or '.join(_code(each) for each in value['examples'])}."
    return f"| `{key}`{' (required)' if required else ''} | {_takes(value)} | {_cell(said)} |"


def _takes(value: Schema) -> str:
    """What may stand there, in words."""
    if "$ref" in value:
        name = value["$ref"].rsplit("/", 1)[1]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in value:
        found = [_takes(each) for each in value["anyOf"] if each.get("type") != "null"]
        return ", or ".join(dict.fromkeys(found))
    if "enum" in value:
        return ", ".join(_code(each) for each in value["enum"])
    if "const" in value:
        return _code(value["const"])
    kind = value.get("type")
    if kind == "array":
        return f"a list ({_takes(value['items'])})" if "items" in value else "a list"
    if kind == "object":
        keys = value.get("properties")
        return f"a mapping ({', '.join(f'`{key}`' for key in keys)})" if keys else "a mapping"
    if "ms|s|m|h" in value.get("pattern", ""):
        return "a duration"
    if isinstance(kind, list):
        return " or ".join(_WORDS.get(each, "a mapping") for each in kind)
    return "any value" if kind is None else _WORDS[kind] + _bounds(value)


def _bounds(value: Schema) -> str:
    low, above = value.get("minimum"), value.get("exclusiveMinimum")
    high, below = value.get("maximum"), value.get("exclusiveMaximum")
    least = f" from {low:,}" if low is not None else f" above {above:,}" if above is not None else ""
    most = f" to {high:,}" if high is not None else f" below {below:,}" if below is not None else ""
    return least + most


def _code(value: Any) -> str:
    """A value as YAML in one line takes it, which is also JSON."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return f"``{text}``" if "`" in text else f"`{text}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page(scenario.schema()), "utf-8")
