"""What a value of a scenario file may be: the readers of single values, as types that a form can name."""

import glob
import math
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from pydantic import (
    BeforeValidator,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    PlainValidator,
    ValidationInfo,
    WithJsonSchema,
)
from pydantic_core import CoreSchema, core_schema

from loadtest import abort, alert, slo
from loadtest.duration import PATTERN, duration, durations
from loadtest.endpoints.blanks import words
from loadtest.endpoints.catalog import kinds
from loadtest.endpoints.checks import validator
from loadtest.endpoints.jsonpath import compiled
from loadtest.endpoints.pattern import Upload
from loadtest.workload.distribution import Distribution
from loadtest.workload.lengths import Length as Tokens

MAX_LEVELS_PER_AXIS = 100
MAX_TOKENS = 10_000_000
MOST_PER_S = 1_000_000
MOST_PIXELS = 16_384
NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}"
UNICODE = "unicode"
"""The corpus of this name comes with the tool; a file of that name is ``./unicode``."""

_LONGEST = 10_000  # characters of a distribution: as many as a histogram may take


def endpoint(value: object) -> str:
    """The name of a dialect."""
    if value not in kinds():
        raise ValueError(f"expected {', '.join(map(repr, kinds()))}")
    return str(value)


def positive_duration(value: object) -> float:
    """``duration``, and longer than nothing."""
    seconds = duration(value)
    if seconds == 0:
        raise ValueError("expected more than 0s")
    return seconds


def length(value: object, info: ValidationInfo[Path | None]) -> Tokens:
    """A length in tokens: ``128``, ``uniform(64, 192)``, or a mapping that names a file of lengths.

    Raises:
        ValueError: another form, or longer than any model takes.
    """
    if isinstance(value, dict) and value.keys() == {"file"}:
        return _listed(local_file(value["file"], info))
    if isinstance(value, str) and value.count("(") != value.count(")"):  # YAML took its comma for a separator
        raise ValueError('expected a length: between { } or [ ] write "uniform(64, 192)" in quotes')
    if isinstance(value, str | int) and not isinstance(value, bool) and len(str(value)) <= _LONGEST:
        parsed = Tokens.parse(value)
        if parsed.high > MAX_TOKENS:
            raise ValueError(f"expected at most {MAX_TOKENS} tokens")
        return parsed
    raise ValueError("expected a number of tokens (128) or uniform(64, 192)")


def _listed(path: str) -> Tokens:
    """The lengths in a file: a number a line, or with a comma and its weight behind it; a heading may stand first.

    Raises:
        ValueError: it is no such file.
    """
    values: list[float] = []
    weights: list[float] = []
    try:
        with open(path, encoding="utf-8-sig") as file:
            for number, line in enumerate(file, start=1):
                value, _, weight = map(str.strip, line.partition(","))
                try:
                    pair = float(value), float(weight or 1)
                    values.append(pair[0])
                    weights.append(pair[1])
                except ValueError:
                    if line.strip() and number > 1:
                        raise ValueError(f"{path}:{number}: no length, nor a length and its weight") from None
    except UnicodeDecodeError:
        raise ValueError(f"{path}: is not UTF-8 text: save it as UTF-8") from None
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from None
    try:
        return Tokens.of_values(values, weights)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def abort_on(value: object) -> str:
    """A rule of ``abort``, as it was written but on one line.

    Raises:
        ValueError: it is none.
    """
    if not isinstance(value, str):
        raise ValueError("expected a rule such as error_rate > 50% for 5s")
    abort.parse(value)
    return " ".join(value.split())


def objective(value: object) -> str:
    """An expression of ``slo``, as it is written there.

    Raises:
        ValueError: it is none.
    """
    if not isinstance(value, str):
        raise ValueError("expected an expression such as p99(ttft) < 300ms")
    return slo.parse(value).text


def remark(value: object) -> str:
    """An expression of ``alert``, as it is written there.

    Raises:
        ValueError: it is none.
    """
    if not isinstance(value, str):
        raise ValueError("expected an expression such as p99(ttft) > 3 * p50(ttft)")
    return alert.parse(value).text


def local_path(value: object, info: ValidationInfo[Path | None]) -> str:
    """The absolute path of what is there; ``info.context`` is the folder that a relative one starts from.

    With None there, it is one that was absolute and looked for once: what is there now does not matter.

    Raises:
        ValueError: nothing is there.
    """
    if not isinstance(value, str) or not value or not value.isprintable():
        raise ValueError("expected a path")
    if info.context is None:
        return value
    path = os.path.abspath(info.context / value)
    try:
        os.stat(path)
    except FileNotFoundError:
        raise ValueError(f"no such file: {path}") from None
    except OSError as error:
        raise ValueError(f"cannot be read: {path}: {error.strerror}") from None
    return path


def local_file(value: object, info: ValidationInfo[Path | None]) -> str:
    """``local_path``, and no folder."""
    path = local_path(value, info)
    if os.path.isdir(path):
        raise ValueError(f"is a folder: name a file in it: {path}")
    return path


def corpus(value: object, info: ValidationInfo[Path | None]) -> str:
    """A text file, or the mix of scripts that comes with the tool."""
    return UNICODE if value == UNICODE else local_file(value, info)


def files(value: object, info: ValidationInfo[Path | None]) -> str:
    """The absolute path of a file or a folder, or a pattern (``*``, ``**``) that some files have."""
    if not isinstance(value, str) or not glob.has_magic(value):
        return local_path(value, info)
    if info.context is None:
        return value
    path = os.path.abspath(info.context / value)
    if not glob.glob(path, recursive=True):
        raise ValueError(f"no such file: {path}")
    return path


def scalar_text(value: object) -> str:
    """Text, also of a number or a truth; in a template it may have blanks."""
    if not isinstance(value, str | int | float):
        raise ValueError("expected text or a number")
    return words(value)


def form_part(value: object, info: ValidationInfo[Path | None]) -> str | Upload:
    """A text of a multipart body, or a file: ``{file: ./cat.png, type: image/png}``."""
    if not isinstance(value, dict):
        return scalar_text(value)
    if "file" not in value or not value.keys() <= {"file", "type"} or not isinstance(value.get("type", ""), str):
        raise ValueError("expected text, or a file as {file: ./cat.png, type: image/png}")
    return Upload(files(value["file"], info), header_text(value["type"]) if "type" in value else None)


def header_text(value: object) -> str:
    """``scalar_text`` on one line."""
    text = scalar_text(value)
    if not text.isprintable():
        raise ValueError("expected text without control characters")
    return text


def header_name(value: object) -> str:
    """The name of a header (RFC 9110, token) that does not follow from the rest of a request."""
    if not isinstance(value, str) or not re.fullmatch(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", value, re.ASCII):
        raise ValueError("expected the name of a header, such as X-Tenant")
    if value.lower() in ("content-length", "transfer-encoding"):
        raise ValueError("follows from the body, which loadtest writes: leave it out")
    return value


def route(value: object) -> str:
    """A path below the URL of the run."""
    if not isinstance(value, str) or not value.startswith("/") or not value.isprintable() or "#" in value:
        raise ValueError("expected a path that begins with /, such as /v1/classify")
    return value


def json_text(value: object) -> str:
    """JSON text of a value of YAML."""
    if _infinite(value):
        raise ValueError("holds a number that JSON has not")
    return msgspec.json.encode(value).decode()


def json_path(value: object) -> str:
    """A path that ``jsonpath`` reads."""
    if not isinstance(value, str):
        raise ValueError("expected a JSON path such as $.choices[0].text")
    compiled(value)
    return value


def regex(value: object) -> str:
    """A regular expression of Python's ``re``."""
    if not isinstance(value, str) or not value:
        raise ValueError("expected a regular expression, such as ^[0-9]+$")
    try:
        re.compile(value)
    except re.error as error:
        raise ValueError(f"expected a regular expression: {error}") from None
    return value


def json_schema(value: object, info: ValidationInfo[Path | None]) -> str:
    """The text of a JSON Schema that is written there, or in the file that is named.

    Raises:
        ValueError: it is none, or no such file can be read.
    """
    text = json_text(value)
    if isinstance(value, str):
        path = Path(local_file(value, info))
        try:
            text = json_text(msgspec.json.decode(path.read_bytes()))
        except OSError as error:
            raise ValueError(f"cannot be read: {path}: {error.strerror}") from None
        except (msgspec.DecodeError, RecursionError) as error:
            raise ValueError(f"{path}: is not JSON: {error}") from None
    validator(text)
    return text


def token_bounds(value: object) -> tuple[int | None, int | None] | Literal["asked"]:
    """How many tokens an answer has to have: one number, ``[least, most]``, or as many as were asked for."""
    if value == "asked":
        return "asked"
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value, value
    try:
        return bounds(value)
    except ValueError as error:
        raise ValueError(f"{error}; or a number, or asked") from None


def audit(value: object) -> object:
    """The mapping of an audit that a flag names: ``deterministic,cache`` or ``cache:declared``."""
    if not isinstance(value, str):
        return value
    names = [name.strip() for name in value.split(",")]
    if not {*names} <= {"deterministic", "cache", "cache:declared"} or {"cache", "cache:declared"} <= {*names}:
        raise ValueError("expected deterministic, cache, or cache:declared, with a comma between two")
    cache = "declared" if "cache:declared" in names else "cache" in names
    return {"deterministic": "deterministic" in names, "cache": cache}


def bounds(value: object) -> tuple[int | None, int | None]:
    """``[least, most]`` in tokens, each a whole number or null."""
    match value:
        case [None, None] | [bool(), _] | [_, bool()]:
            pass
        case [int() | None as least, int() | None as most]:
            if (least or 1) < 1 or (most or 1) < 1:
                raise ValueError("expected 1 token or more")
            if least is not None and most is not None and least > most:
                raise ValueError("the least comes first, then the most")
            return least, most
    raise ValueError("expected [least, most] tokens, such as [16, 4000] or [null, 4000]")


def values(value: object, info: ValidationInfo[Path | None]) -> float | str | None:
    """What fills a tensor: one number, or the path of a file of arrays; None is drawn.

    Raises:
        ValueError: it is none of them, or there is no such file.
    """
    if value == "random":
        return None
    if value == "zeros":
        return 0.0
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    if not isinstance(value, str) or not value.endswith((".npy", ".npz")):
        raise ValueError("expected random, zeros, a number, or the path of a .npy or .npz file")
    return local_file(value, info)


def span(value: object) -> tuple[float, float]:
    """``[least, most]`` of numbers that are drawn."""
    match value:
        case [bool(), _] | [_, bool()]:
            pass
        case [int() | float() as least, int() | float() as most] if -math.inf < least <= most < math.inf:
            return float(least), float(most)
    raise ValueError("expected [least, most], such as [0, 255]")


def window(value: object) -> tuple[float, float | None]:
    """``[start, end]`` of a trace's own time in seconds; an end of null is the trace's."""
    if not isinstance(value, list) or len(value) != 2:
        raise ValueError("expected [start, end], such as [10m, 20m] or [10m, null]")
    start, end = duration(value[0]), None if value[1] is None else duration(value[1])
    if end is not None and end <= start:
        raise ValueError("it ends before it starts")
    return start, end


def speed(value: object) -> float:
    """How many times as fast: ``2`` or ``2x``."""
    text = str(value).strip().removesuffix("x")
    if isinstance(value, bool) or not re.fullmatch(r"[0-9]+(\.[0-9]+)?([eE][-+]?[0-9]+)?", text, re.ASCII):
        raise ValueError("expected how many times as fast, such as 2 or 2x")
    factor = float(text)
    if not 0 < factor < math.inf:
        raise ValueError("expected more than 0")
    return factor


def size(value: object) -> tuple[int, int]:
    """Width and height in pixels: ``512x512``."""
    match = re.fullmatch(r"\s*([0-9]{1,5})\s*x\s*([0-9]{1,5})\s*", str(value), re.ASCII)
    if match is None:
        raise ValueError("expected width and height in pixels, such as 512x512")
    width, height = int(match[1]), int(match[2])
    if not 1 <= min(width, height) <= max(width, height) <= MOST_PIXELS:
        raise ValueError(f"expected 1 to {MOST_PIXELS} pixels each way")
    return width, height


def json_object(value: object) -> dict[str, Any]:
    """What can be put into a request's body.

    Raises:
        ValueError: no mapping, or a key in it that the tool gives itself.
    """
    if not isinstance(value, dict):
        raise ValueError("expected a mapping of keys to values")
    own = {"model": "'model' or 'models'", "stream": "'stream'", "messages": "'workload'", "prompt": "'workload'"}
    for key in own.keys() & value.keys():
        raise ValueError(f"{key} is not given here: {own[key]} says it")
    if _infinite(value):
        raise ValueError("holds a number that JSON has not")
    return value


def _infinite(value: object) -> bool:
    if isinstance(value, dict | list):
        return any(map(_infinite, value.values() if isinstance(value, dict) else value))
    return isinstance(value, float) and not math.isfinite(value)


class OneOrMore:
    """One value, or a list of them: an axis of the matrix."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        listed: Callable[[Any], Any] = lambda value: value if isinstance(value, list) else [value]  # noqa: E731
        return core_schema.no_info_before_validator_function(listed, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        array = handler(schema)
        return {"anyOf": [array["items"], array]}


Item = TypeVar("Item")
Axis = Annotated[list[Item], Field(min_length=1, max_length=MAX_LEVELS_PER_AXIS), OneOrMore()]
Count = Annotated[int, Field(ge=1, le=10**9)]
# What the bundled server takes for --kv-slots, --max-batch-size and --threads.
ServerCount = Annotated[int, Field(ge=1, le=1024)]
_DURATION_SCHEMA = {"type": "string", "pattern": f"^{PATTERN}$"}
Duration = Annotated[float, PlainValidator(duration), WithJsonSchema(_DURATION_SCHEMA)]
PositiveDuration = Annotated[float, PlainValidator(positive_duration), WithJsonSchema(_DURATION_SCHEMA)]
Durations = Annotated[Distribution, PlainValidator(durations), WithJsonSchema({"type": "string"})]
_LENGTH_SCHEMA = {
    "anyOf": [
        {"type": "integer", "minimum": 1, "maximum": MAX_TOKENS},
        {"type": "string", "pattern": r"^\s*([a-z]+\s*\(.*\)|[0-9]+)\s*$"},
        {
            "type": "object",
            "properties": {"file": {"type": "string"}},
            "required": ["file"],
            "additionalProperties": False,
        },
    ]
}
Length = Annotated[Tokens, PlainValidator(length), WithJsonSchema(_LENGTH_SCHEMA)]
Objective = Annotated[str, PlainValidator(objective), WithJsonSchema({"type": "string"})]
Remark = Annotated[str, PlainValidator(remark), WithJsonSchema({"type": "string"})]
AbortRule = Annotated[str, PlainValidator(abort_on), WithJsonSchema({"type": "string"})]
# no control characters: these texts are printed on terminals and stored in results
Text = Annotated[str, Field(max_length=1000, pattern=r"^[^\x00-\x09\x0b-\x1f\x7f-\x9f]*$")]
Word = Annotated[str, Field(min_length=1, max_length=1000, pattern=r"^[^\x00-\x1f\x7f-\x9f]*$")]
PerSecond = Annotated[float, Field(gt=0, le=MOST_PER_S, allow_inf_nan=False)]
Weight = Annotated[float, Field(gt=0, le=10**9, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
_PATH_SCHEMA = {"type": "string", "minLength": 1}
LocalPath = Annotated[str, PlainValidator(local_path), WithJsonSchema(_PATH_SCHEMA)]
LocalFile = Annotated[str, PlainValidator(local_file), WithJsonSchema(_PATH_SCHEMA)]
Corpus = Annotated[str, PlainValidator(corpus), WithJsonSchema(_PATH_SCHEMA)]
_COUNT_OR_NULL = {"anyOf": [{"type": "integer", "minimum": 1}, {"type": "null"}]}
Bounds = Annotated[
    tuple[int | None, int | None],
    PlainValidator(bounds),
    WithJsonSchema({"type": "array", "items": _COUNT_OR_NULL, "minItems": 2, "maxItems": 2}),
]
Values = Annotated[
    float | str | None,
    PlainValidator(values),
    WithJsonSchema({"anyOf": [{"type": "number"}, {"type": "string", "pattern": r"^(random|zeros|.+\.np[yz])$"}]}),
]
Range = Annotated[
    tuple[float, float],
    PlainValidator(span),
    WithJsonSchema({"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 2}),
]
_TIME_OR_NULL = {"anyOf": [_DURATION_SCHEMA, {"type": "null"}]}
Window = Annotated[
    tuple[float, float | None],
    PlainValidator(window),
    WithJsonSchema({"type": "array", "prefixItems": [_DURATION_SCHEMA, _TIME_OR_NULL], "minItems": 2, "maxItems": 2}),
]
_SPEED_SCHEMA = {
    "anyOf": [{"type": "number", "exclusiveMinimum": 0}, {"type": "string", "pattern": r"^\s*[0-9.eE+-]+x?\s*$"}]
}
Speed = Annotated[float, PlainValidator(speed), WithJsonSchema(_SPEED_SCHEMA)]
Size = Annotated[
    tuple[int, int],
    PlainValidator(size),
    WithJsonSchema({"type": "string", "pattern": r"^\s*[0-9]{1,5}\s*x\s*[0-9]{1,5}\s*$"}),
]
Files = Annotated[str, PlainValidator(files), WithJsonSchema(_PATH_SCHEMA)]
_SCALAR_SCHEMA = {"type": ["string", "number", "boolean"]}
Scalar = Annotated[str, PlainValidator(scalar_text), WithJsonSchema(_SCALAR_SCHEMA)]
FormPart = Annotated[
    str | Upload,
    PlainValidator(form_part),
    WithJsonSchema(
        {
            "anyOf": [
                _SCALAR_SCHEMA,
                {
                    "type": "object",
                    "properties": {"file": _PATH_SCHEMA, "type": {"type": "string"}},
                    "required": ["file"],
                    "additionalProperties": False,
                },
            ]
        }
    ),
]
HeaderText = Annotated[str, PlainValidator(header_text), WithJsonSchema(_SCALAR_SCHEMA)]
HeaderName = Annotated[str, PlainValidator(header_name), WithJsonSchema({"type": "string"})]
Route = Annotated[str, PlainValidator(route), WithJsonSchema({"type": "string", "pattern": "^/"})]
Json = Annotated[str, PlainValidator(json_text), WithJsonSchema({})]
JsonPath = Annotated[str, PlainValidator(json_path), WithJsonSchema({"type": "string", "minLength": 1})]
Endpoint = Annotated[str, PlainValidator(endpoint), WithJsonSchema({"type": "string"})]
JsonObject = Annotated[dict[str, Any], PlainValidator(json_object), WithJsonSchema({"type": "object"})]
Regex = Annotated[str, PlainValidator(regex), WithJsonSchema({"type": "string", "minLength": 1, "format": "regex"})]
JsonSchema = Annotated[str, PlainValidator(json_schema), WithJsonSchema({"type": ["object", "boolean", "string"]})]
_BOUNDS_SCHEMA = {"type": "array", "items": _COUNT_OR_NULL, "minItems": 2, "maxItems": 2}
TokenBounds = Annotated[
    tuple[int | None, int | None] | Literal["asked"],
    PlainValidator(token_bounds),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 0}, {"const": "asked"}, _BOUNDS_SCHEMA]}),
]
AuditFlag = BeforeValidator(audit)
