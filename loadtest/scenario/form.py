"""The form of a scenario file: which keys there are and what each takes. The published JSON Schema comes from here."""

from collections.abc import Callable
from typing import Annotated, Any, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    PlainValidator,
    WithJsonSchema,
)
from pydantic_core import CoreSchema, core_schema

from loadtest import abort
from loadtest.duration import PATTERN, duration, duration_text
from loadtest.level import Scheduler
from loadtest.scenario.model import Dtype, Endpoint, Provider, WhenFull
from loadtest.schedule import Arrival
from loadtest.workload.lengths import Length as Tokens

MAX_LEVELS_PER_AXIS = 100
MAX_STAGES = 100
MAX_TOKENS = 10_000_000
MOST_PER_S = 1_000_000
NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}"

DEFAULTS: dict[str, Any] = {
    "question": "",
    "endpoint": "chat",
    "stream": True,
    "workload.input_tokens": [Tokens(128, 128)],
    "workload.output_tokens": [Tokens(128, 128)],
    "load.concurrency": [1],
    "load.arrival": "poisson",
    "load.burstiness": 1.0,
    "load.when_full": "queue",
    "load.duration": 30.0,
    "server.model": "demo",
    "server.provider": "auto",
    "server.dtype": "auto",
    "server.scheduler": ["continuous"],
    "server.max_batch_size": [16],
    "server.batch_timeout_ms": 50.0,
    "timeouts.total": 300.0,
    "timeouts.connect": 10.0,
    "timeouts.stall": 60.0,
}
"""What a key that nobody gave is worth, in the units of the structs. A key that is not here is None then."""


def positive_duration(value: object) -> float:
    """``duration``, and longer than nothing."""
    seconds = duration(value)
    if seconds == 0:
        raise ValueError("expected more than 0s")
    return seconds


def length(value: object) -> Tokens:
    """A length in tokens: ``128`` or ``uniform(64, 192)``.

    Raises:
        ValueError: another form, or longer than any model takes.
    """
    if isinstance(value, str) and value.count("(") != value.count(")"):  # YAML took its comma for a separator
        raise ValueError('expected a length: between { } or [ ] write "uniform(64, 192)" in quotes')
    if isinstance(value, str | int) and not isinstance(value, bool) and len(str(value)) <= 100:
        parsed = Tokens.parse(value)
        if parsed.high > MAX_TOKENS:
            raise ValueError(f"expected at most {MAX_TOKENS} tokens")
        return parsed
    raise ValueError("expected a number of tokens (128) or uniform(64, 192)")


def abort_on(value: object) -> str:
    """A rule of ``abort``, as it was written but on one line.

    Raises:
        ValueError: it is none.
    """
    if not isinstance(value, str):
        raise ValueError("expected a rule such as error_rate > 50% for 5s")
    abort.parse(value)
    return " ".join(value.split())


class _OneOrMore:
    """One value, or a list of them: an axis of the matrix."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        listed: Callable[[Any], Any] = lambda value: value if isinstance(value, list) else [value]  # noqa: E731
        return core_schema.no_info_before_validator_function(listed, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        array = handler(schema)
        return {"anyOf": [array["items"], array]}


Item = TypeVar("Item")
Axis = Annotated[list[Item], Field(min_length=1, max_length=MAX_LEVELS_PER_AXIS), _OneOrMore()]
Count = Annotated[int, Field(ge=1, le=10**9)]
# What the bundled server takes for --kv-slots, --max-batch-size and --threads.
ServerCount = Annotated[int, Field(ge=1, le=1024)]
_DURATION_SCHEMA = {"type": "string", "pattern": f"^{PATTERN}$"}
Duration = Annotated[float, PlainValidator(duration), WithJsonSchema(_DURATION_SCHEMA)]
PositiveDuration = Annotated[float, PlainValidator(positive_duration), WithJsonSchema(_DURATION_SCHEMA)]
Length = Annotated[
    Tokens,
    PlainValidator(length),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "minimum": 1, "maximum": MAX_TOKENS},
                {"type": "string", "pattern": r"^\s*(uniform\s*\(\s*[0-9]+\s*,\s*[0-9]+\s*\)|[0-9]+)\s*$"},
            ]
        }
    ),
]
AbortRule = Annotated[str, PlainValidator(abort_on), WithJsonSchema({"type": "string"})]
# no control characters: these texts are printed on terminals and stored in results
Text = Annotated[str, Field(max_length=1000, pattern=r"^[^\x00-\x09\x0b-\x1f\x7f-\x9f]*$")]
Word = Annotated[str, Field(min_length=1, max_length=1000, pattern=r"^[^\x00-\x1f\x7f-\x9f]*$")]

Concurrency = Annotated[
    Axis[Annotated[int, Field(ge=1, le=1_000_000)]] | None,
    Field(
        description="Closed loop: requests in flight, each slot sending its next request when its last one has "
        "ended. One level for each value. Excludes rate and stages.",
        examples=[16, [1, 4, 16]],
    ),
]
PerSecond = Annotated[float, Field(gt=0, le=MOST_PER_S, allow_inf_nan=False)]
Rate = Annotated[
    Axis[PerSecond] | None,
    Field(
        description="Open loop: requests a second of the whole run, sent when they are due whatever the answers "
        "do. One level for each value. Excludes concurrency and stages.",
        examples=[2.5, [2, 5, 10]],
    ),
]
StageRate = Annotated[float, Field(ge=0, le=MOST_PER_S, allow_inf_nan=False)] | None
InputTokens = Annotated[
    Axis[Length] | None,
    Field(
        description="Length of each prompt in tokens: a number, or uniform(low, high) with both ends included. "
        "One level for each value of a list.",
        examples=[128, "uniform(64, 192)", [128, 512, 1024]],
    ),
]
OutputTokens = Annotated[
    Axis[Length] | None,
    Field(
        description="Length of answer asked for in tokens, in the forms of input_tokens.",
        examples=[64, "uniform(16, 64)"],
    ),
]
SchedulerAxis = Annotated[
    Axis[Scheduler] | None,
    Field(
        description="How the bundled server groups requests: continuous (joins and leaves at every step), dynamic "
        "(waits batch_timeout_ms for company), static (waits for a full batch), none. One level for each value.",
        examples=["continuous", ["continuous", "dynamic", "static", "none"]],
    ),
]
MaxBatchSize = Annotated[
    Axis[ServerCount] | None,
    Field(
        description="Largest number of requests the bundled server decodes together. One level for each value.",
        examples=[16, [1, 4, 16]],
    ),
]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Stage(_Section):
    """A part of an open loop: a rate, or a straight line from one rate to another."""

    rate: StageRate = Field(None, description="Requests a second, all the while; 0 is a pause. Excludes from and to.")
    from_: StageRate = Field(None, alias="from", description="Requests a second at its beginning; needs to.")
    to: StageRate = Field(None, description="Requests a second at its end; needs from.")
    duration: PositiveDuration = Field(description="How long it lasts.", examples=["30s"])


Stages = Annotated[
    list[Stage] | None,
    Field(
        min_length=1,
        max_length=MAX_STAGES,
        description="Open loop: one level whose rate changes, as in a ramp, a step or a spike. It lasts as long as its "
        "stages together. Excludes concurrency and rate.",
        examples=[[{"rate": 5, "duration": "30s"}, {"from": 5, "to": 50, "duration": "60s"}]],
    ),
]


class Load(_Section):
    """How requests arrive, and for how long, at every level."""

    concurrency: Concurrency = None
    rate: Rate = None
    stages: Stages = None
    arrival: Arrival | None = Field(
        None,
        description="Gaps of an open loop: poisson (random, as from many users), constant, or gamma (random, with "
        "burstiness).",
    )
    burstiness: Annotated[float, Field(ge=0.01, le=1000, allow_inf_nan=False)] | None = Field(
        None,
        description="Of arrival gamma: the shape of the gaps. 1 is poisson, below 1 burstier, above 1 more even; the "
        "rate stays the same. The coefficient of variation of the gaps is 1/sqrt(burstiness).",
        examples=[0.5],
    )
    max_in_flight: Annotated[int, Field(ge=1, le=1_000_000)] | None = Field(
        None,
        description="Most requests of an open loop in flight at once, of the whole run. Not given: no cap.",
        examples=[100],
    )
    when_full: WhenFull | None = Field(
        None,
        description="What happens to a request that is due when max_in_flight are in flight: queue (it waits, and its "
        "latency counts from when it was due) or drop (it is never sent, and counts as failed).",
    )
    max_rate: PerSecond | None = Field(
        None,
        description="Ceiling on the requests a second that leave, of the whole run and of every load: protects a "
        "shared endpoint. What waits for it is late, and its latency counts from when it was due.",
        examples=[50],
    )
    requests: Count | None = Field(
        None,
        description="Requests of a level in all. Together with duration: whichever ends first.",
        examples=[200],
    )
    duration: PositiveDuration | None = Field(
        None,
        description="How long a level sends; of one with stages, they say. 30s when requests is not given either.",
        examples=["30s", "2m"],
    )
    warmup: Duration | None = Field(
        None,
        description="Part of the duration that is played but not measured. Not given: 10 % of the duration, at "
        "least 1s and at most 30s; nothing for a level bounded by requests alone.",
        examples=["3s"],
    )
    grace: Duration | None = Field(
        None,
        description="How long unfinished requests may take after the sending has ended, before they are cut off. "
        "Not given: the total timeout.",
        examples=["10s"],
    )


class Workload(_Section):
    """How long prompts and answers are."""

    input_tokens: InputTokens = None
    output_tokens: OutputTokens = None


class Server(_Section):
    """The bundled server; unused when the target is a URL."""

    model: Word | None = Field(
        None, description="A model of the bundled server (tiny, demo), or the path of a model folder."
    )
    provider: Provider | None = Field(
        None, description="Where it computes: cpu, cuda, or auto (cuda where it works, else cpu)."
    )
    dtype: Dtype | None = Field(
        None, description="Precision of the weights: fp32 or int8 (cpu), fp16 (cuda), or auto (fp32 or fp16)."
    )
    threads: ServerCount | None = Field(None, description="Threads that compute. Not given: one less than the cores.")
    scheduler: SchedulerAxis = None
    max_batch_size: MaxBatchSize = None
    batch_timeout_ms: Annotated[float, Field(ge=0, le=60_000, allow_inf_nan=False)] | None = Field(
        None, description="How long the dynamic scheduler waits for company, in milliseconds."
    )
    kv_slots: ServerCount | None = Field(
        None, description="Requests whose state the server holds at once; at least max_batch_size. Not given: that."
    )
    max_seq_len: Annotated[int, Field(ge=16, le=MAX_TOKENS)] | None = Field(
        None, description="Prompt and answer together, in tokens. Not given: the model's."
    )


class Block(_Section):
    """A set of levels: the product of its axes. An axis not given here is that of load, workload or server."""

    concurrency: Concurrency = None
    rate: Rate = None
    stages: Stages = None
    input_tokens: InputTokens = None
    output_tokens: OutputTokens = None
    scheduler: SchedulerAxis = None
    max_batch_size: MaxBatchSize = None


class Timeouts(_Section):
    """When a request is given up."""

    total: PositiveDuration | None = Field(None, description="The whole request.", examples=["300s"])
    connect: PositiveDuration | None = Field(None, description="Opening a connection.", examples=["10s"])
    stall: PositiveDuration | None = Field(None, description="Between two pieces of an answer.", examples=["60s"])


class File(_Section):
    """A scenario of loadtest: what is asked of an inference endpoint, and for how long. All keys are optional."""

    name: Annotated[str, Field(pattern=f"^{NAME}$")] | None = Field(
        None,
        description="Names the output folder: letters, digits, '.', '_' and '-'. Not given: the file's name.",
        examples=["chat-peak"],
    )
    question: Text | None = Field(
        None,
        description="The question that the scenario answers.",
        examples=["How many users at once before the first token takes more than 300 ms?"],
    )
    endpoint: Endpoint | None = Field(None, description="OpenAI dialect: chat or completions.")
    stream: bool | None = Field(None, description="Whether answers are streamed; without, there is no TTFT.")
    model: Word | None = Field(
        None,
        description="Model to ask for. Not given: the one that the target lists.",
        examples=["meta-llama/Llama-3.1-8B-Instruct"],
    )
    seed: Annotated[int, Field(ge=0, lt=10**18)] | None = Field(
        None, description="Fixes prompts, lengths and arrivals. Not given: random, and recorded in the result."
    )
    workload: Workload | None = Field(None, description="How long prompts and answers are.")
    load: Load | None = Field(None, description="How requests arrive, and for how long, at every level.")
    server: Server | None = Field(None, description="The bundled server; unused when the target is a URL.")
    levels: Annotated[list[Block], Field(min_length=1, max_length=MAX_LEVELS_PER_AXIS)] | None = Field(
        None,
        description="Sets of levels, played in this order, instead of the one product of all axes: each is the "
        "product of its own axes and, for those it does not give, of load, workload and server.",
    )
    timeouts: Timeouts | None = Field(None, description="When a request is given up.")
    abort_on: AbortRule | None = Field(
        None,
        description="When the run is to end before its time: METRIC OP VALUE for TIME, with the metric error_rate (of "
        "the requests that finished within the time) or in_flight; without a time it is 5s. Not given: never.",
        examples=["error_rate > 50% for 5s", "in_flight > 500 for 10s"],
    )


SECTIONS: dict[str, type[_Section]] = {
    "load": Load,
    "workload": Workload,
    "server": Server,
    "timeouts": Timeouts,
}


def json_schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of a scenario file."""
    schema = File.model_json_schema()
    _tidy(schema)
    definitions = schema["$defs"]
    for key, value in DEFAULTS.items():
        section, _, name = key.rpartition(".")
        properties = (definitions[SECTIONS[section].__name__] if section else schema)["properties"]
        properties[name]["default"] = _written(value, seconds=section == "timeouts" or name == "duration")
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "loadtest scenario"}
    return head | schema


def _written(value: Any, seconds: bool) -> Any:
    """A default as one would write it in a file."""
    match value:
        case [one]:
            return _written(one, seconds)
        case Tokens():
            return value.low if value.low == value.high else str(value)
        case float():
            return duration_text(value) if seconds else value
    return value


def _tidy(schema: Any) -> None:
    """Drop what pydantic adds and no reader needs: titles made from the keys, and defaults of null."""
    if isinstance(schema, dict):
        schema.pop("title", None)
        if schema.get("default", ...) is None:
            del schema["default"]
        for value in schema.values():
            _tidy(value)
    elif isinstance(schema, list):
        for value in schema:
            _tidy(value)
