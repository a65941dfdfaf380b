"""The form of a scenario file: which keys there are and what each takes. The published JSON Schema comes from here."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from loadtest.duration import duration_text, durations_text
from loadtest.endpoints.pattern import Method, Stream
from loadtest.level import Scheduler
from loadtest.scenario.kinds import (
    MAX_LEVELS_PER_AXIS,
    MAX_TOKENS,
    MOST_PER_S,
    NAME,
    AbortRule,
    AuditFlag,
    Axis,
    Bounds,
    Corpus,
    Count,
    Duration,
    Durations,
    Endpoint,
    Files,
    FormPart,
    HeaderName,
    HeaderText,
    Json,
    JsonObject,
    JsonPath,
    JsonSchema,
    Length,
    LocalFile,
    LocalPath,
    Objective,
    OneOrMore,
    PerSecond,
    PositiveDuration,
    Range,
    Regex,
    Remark,
    Route,
    Scalar,
    ServerCount,
    Share,
    Size,
    Speed,
    Text,
    TokenBounds,
    Values,
    Weight,
    Window,
    Word,
)
from loadtest.scenario.model import Combine, Dtype, Provider, WhenFull
from loadtest.schedule import Arrival
from loadtest.workload.distribution import Distribution
from loadtest.workload.lengths import Length as Tokens
from loadtest.workload.model import DataFormat, Datatype, History, Order, TraceFormat

MAX_STAGES = 100
MAX_PARTS = 100
MAX_BATCH = 65_536
MAX_INPUTS = 100
MAX_SLOS = 100
MAX_CHECKS = 100

DEFAULTS: dict[str, Any] = {
    "question": "",
    "endpoint": "chat",
    "stream": True,
    "locked": False,
    "workload.input_tokens": [Tokens(128, 128)],
    "workload.output_tokens": [Tokens(128, 128)],
    "workload.correlation": 0.0,
    "mix.weight": 1.0,
    "data.order": "shuffle",
    "trace.speed": 1.0,
    "trace.scale": 1.0,
    "trace.lengths": 1.0,
    "conversation.think": Distribution("fixed", (0.0,)),
    "conversation.history": "real",
    "conversation.abandon": 0.0,
    "images.count": 1,
    "inputs.order": "shuffle",
    "checks.unknown": "fail",
    "audit.cache": True,
    "audit.pairs": 20,
    "probe_stream.input_tokens": Tokens(16, 16),
    "probe_stream.output_tokens": Tokens(1, 1),
    "load.repeat": 1,
    "load.cooldown": 0.0,
    "load.combine": "product",
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


Concurrency = Annotated[
    Axis[Annotated[int, Field(ge=1, le=1_000_000)]] | None,
    Field(
        description="Closed loop: requests in flight, each slot sending its next request when its last one has "
        "ended. One level for each value. Excludes rate, stages and trace.",
        examples=[16, [1, 4, 16]],
    ),
]
Rate = Annotated[
    Axis[PerSecond] | None,
    Field(
        description="Open loop: requests a second of the whole run, sent when they are due whatever the answers "
        "do. One level for each value. Excludes concurrency, stages and trace.",
        examples=[2.5, [2, 5, 10]],
    ),
]
StageRate = Annotated[float, Field(ge=0, le=MOST_PER_S, allow_inf_nan=False)] | None
InputTokens = Annotated[
    Axis[Length] | None,
    Field(
        description="Length of each prompt in tokens: a number, uniform(low, high) with both ends included, or another "
        "distribution. One level for each value of a list. Data and traces have lengths of their own.",
        examples=[128, "uniform(64, 192)", "lognormal(512, 300, max=4000)", [128, 512, 1024]],
    ),
]
BatchSize = Annotated[
    Axis[Annotated[int, Field(ge=1, le=MAX_BATCH)]] | None,
    Field(
        description="Samples that each request asks for at once, of an endpoint that makes no text (embeddings, "
        "rerank, tensors). One level for each value. Not given: one.",
        examples=[8, [1, 8, 32]],
    ),
]
OutputTokens = Annotated[
    Axis[Length] | None,
    Field(
        description="Length of answer asked for in tokens, in the forms of input_tokens. Takes the place of that of "
        "data or a trace.",
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


ModelAxis = Annotated[
    Axis[Word] | None,
    Field(
        description="Model to ask for; one level for each value of a list. Not given: the one that the target lists.",
        examples=["meta-llama/Llama-3.1-8B-Instruct", ["base", "fine-tuned"]],
    ),
]


class Section(BaseModel):
    """A mapping of a scenario file."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Stage(Section):
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
        "stages together. Excludes concurrency, rate and trace.",
        examples=[[{"rate": 5, "duration": "30s"}, {"from": 5, "to": 50, "duration": "60s"}]],
    ),
]


class Trace(Section):
    """Arrivals out of a local file, each with its lengths."""

    path: LocalFile = Field(description="The file, relative to the scenario's.", examples=["./azure.csv"])
    format: TraceFormat | None = Field(
        None,
        description="azure (CSV of the Azure LLM inference traces), mooncake (JSON Lines with hash ids), burstgpt "
        "(CSV) or jsonl (timestamp, input_tokens, output_tokens and perhaps session). Not given: found from the file.",
    )
    speed: Speed | None = Field(None, description="How many times as fast it is played.", examples=[2, "2x"])
    window: Window | None = Field(
        None,
        description="Start and end of the part that is played, in the trace's own time.",
        examples=[["10m", "20m"]],
    )
    scale: Weight | None = Field(
        None, description="How many times as many arrivals in the same time: some repeated, or left out at random."
    )
    lengths: Weight | None = Field(None, description="How many times as long prompts and answers are.", examples=[0.5])


TraceLoad = Annotated[
    Trace | None,
    Field(
        description="Open loop: one level of arrivals that were recorded, with their lengths. It lasts as long as they "
        "did. Excludes concurrency, rate and stages.",
    ),
]


class Load(Section):
    """How requests arrive, and for how long, at every level."""

    concurrency: Concurrency = None
    rate: Rate = None
    stages: Stages = None
    trace: TraceLoad = None
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
    cooldown: Duration | None = Field(None, description="Pause between two levels.", examples=["5s"])
    repeat: Annotated[int, Field(ge=1, le=100)] | None = Field(
        None,
        description="How often all levels are played; from the second time on in another order, drawn by the seed.",
        examples=[3],
    )
    combine: Combine | None = Field(
        None,
        description="How lists make levels: product (each value with each) or zip (the first of all, the second of "
        "all, and so on: lists of one length, or single values).",
    )


class Prefix(Section):
    """Shared starts of prompts, as system prompts are."""

    share: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] = Field(
        description="Part of the requests that begin with one.", examples=[0.8]
    )
    tokens: Annotated[int, Field(ge=1, le=MAX_TOKENS)] = Field(
        description="Length in tokens, in front of the prompt's own input_tokens.", examples=[1000]
    )
    pool: Annotated[int, Field(ge=1, le=1_000_000)] = Field(
        description="How many different ones there are.", examples=[20]
    )


class Columns(Section):
    """Which column, or key, of the data is what."""

    prompt: Word | None = Field(None, description="The text that is asked.")
    system: Word | None = Field(None, description="The system prompt in front of it.")
    messages: Word | None = Field(None, description="A list of messages with roles, instead of a prompt.")
    answer: Word | None = Field(None, description="The reference answer: the history of canned conversations.")
    input_tokens: Word | None = Field(None, description="The length of the prompt in tokens.")
    output_tokens: Word | None = Field(None, description="The length of answer to ask for.")
    session: Word | None = Field(None, description="Rows with the same value are the turns of one conversation.")


class Data(Section):
    """Prompts out of a local file."""

    path: LocalFile = Field(description="The file, relative to the scenario's.", examples=["./sharegpt.json"])
    format: DataFormat | None = Field(
        None,
        description="sharegpt, chat (messages with roles), openai-batch, jsonl, csv, parquet or text (a prompt a "
        "line). Not given: found from the file.",
    )
    columns: Columns | None = Field(
        None, description="Which column, or key, of the file is what, where it has names of its own."
    )
    order: Order | None = Field(
        None,
        description="shuffle (each row once in a seeded order, then again in another), file (as they stand), or random "
        "(drawn with replacement).",
    )
    input_tokens: Bounds | None = Field(
        None, description="Least and most tokens of a prompt; other rows are skipped.", examples=[[16, 4000]]
    )
    output_tokens: Bounds | None = Field(
        None, description="Least and most tokens of a reference answer; other rows are skipped.", examples=[[1, 1000]]
    )


class Conversation(Section):
    """Sessions of several turns, whose history grows."""

    turns: Length | None = Field(
        None,
        description="Turns of a session: a number or a distribution. Not given: those of the data or the trace.",
        examples=["uniform(2, 6)"],
    )
    think: Durations | None = Field(
        None,
        description="Time between an answer and the next turn: a time, or a distribution of times.",
        examples=["5s", "exponential(5s)"],
    )
    history: History | None = Field(
        None, description="What earlier answers say: real (what the model answered) or canned (prepared text)."
    )
    abandon: Share | None = Field(None, description="Chance after each turn that the user leaves.", examples=[0.1])
    next_input: Length | None = Field(
        None,
        description="Length of what the user says from the second turn on. Not given: as input_tokens.",
        examples=["uniform(8, 64)"],
    )


class Images(Section):
    """Pictures in each request, different in every one."""

    count: Annotated[int, Field(ge=1, le=100)] | None = Field(None, description="How many.")
    size: Size = Field(description="Width and height in pixels.", examples=["512x512"])


class Input(Section):
    """One input tensor of a model of tensors."""

    name: Word = Field(description="As the model calls it.", examples=["pixels"])
    dtype: Datatype | None = Field(
        None, description="Its type, in the protocol's words. Not given: as the server says.", examples=["FP32"]
    )
    shape: Annotated[list[Annotated[int, Field(ge=-1, le=2**31)]], Field(max_length=32)] | None = Field(
        None,
        description="Its shape, with a first dimension of -1 for the batch. Not given: as the server says, if it "
        "leaves no other dimension open.",
        examples=[[-1, 3, 224, 224]],
    )
    values: Values | None = Field(
        None,
        description="random (drawn anew for every request), zeros, one number for all of it, or a .npy or .npz file "
        "whose rows are the samples. Not given: random.",
        examples=["random", 0, "./images.npy"],
    )
    range: Range | None = Field(
        None,
        description="Least and most of what is drawn. Not given: 0 to 1, of UINT8 0 to 255, of other whole numbers 0 "
        "to 99.",
        examples=[[0, 30521]],
    )
    order: Order | None = Field(
        None, description="How the rows of a file are taken: shuffle, file, or random, as of data."
    )


class Asked(Section):
    """What is said of the requests of a workload, whichever way its lengths are given."""

    correlation: Annotated[float, Field(ge=-1, le=1, allow_inf_nan=False)] | None = Field(
        None, description="Of the lengths of prompt and answer, from -1 to 1.", examples=[0.5]
    )
    corpus: Corpus | None = Field(
        None,
        description="Text that prompts are made from: a UTF-8 file, or 'unicode' for a mix of scripts. Not given: the "
        "English text that comes with the tool.",
        examples=["./book.txt", "unicode"],
    )
    prefix: Prefix | None = Field(None, description="Shared starts of prompts, as system prompts are.")
    data: Data | None = Field(None, description="Prompts out of a local file instead of made ones.")
    conversation: Conversation | None = Field(
        None, description="Sessions of several turns. A rate is then one of sessions, and a concurrency one of users."
    )
    models: Annotated[dict[Word, Weight], Field(min_length=1, max_length=MAX_PARTS)] | None = Field(
        None,
        description="Names of models or LoRA adapters, and how often each is asked compared with the others.",
        examples=[{"base": 0.7, "adapter-a": 0.3}],
    )
    images: Images | None = Field(None, description="Pictures in each request; of the endpoint chat.")
    body: JsonObject | None = Field(
        None,
        description="Further keys of every request's body, such as tools, response_format or temperature.",
        examples=[{"temperature": 0.7}],
    )
    inputs: Annotated[list[Input], Field(min_length=1, max_length=MAX_INPUTS)] | None = Field(
        None, description="Input tensors; of the endpoint kserve. Those that are not named here are drawn at random."
    )
    binary: bool | None = Field(
        None,
        description="Whether tensors are sent and asked for as bytes behind the JSON; of the endpoint kserve. Not "
        "given: if the server says that it can.",
    )


class Check(Section):
    """Something that has to hold of every good answer; one that does not makes it a failed one.

    One of status, path, matches, lacks, schema, output_tokens, finish_reason and not_html says what.
    """

    name: Word | None = Field(None, description="What failures call it. Not given: its number.", examples=["label"])
    status: Annotated[list[Annotated[int, Field(ge=200, le=599)]], Field(min_length=1), OneOrMore()] | None = Field(
        None, description="One HTTP status, or several.", examples=[200, [200, 201]]
    )
    path: JsonPath | None = Field(
        None,
        description="Something in JSON: that is there, or is what equals, in or exists say.",
        examples=["$.label", "$.choices[0].index"],
    )
    equals: Json | None = Field(None, description="What is at the path, each time.", examples=["spam", 0])
    in_: Annotated[list[Json], Field(min_length=1)] | None = Field(
        None, alias="in", description="Values of which one is at the path.", examples=[["spam", "ham"]]
    )
    exists: bool | None = Field(None, description="Whether something is at the path.")
    matches: Regex | None = Field(
        None, description="A regular expression (Python's re) that is found.", examples=["(?i)^(yes|no)\\b"]
    )
    lacks: Regex | None = Field(None, description="One that is not found.", examples=["As an AI"])
    schema_: JsonSchema | None = Field(
        None,
        alias="schema",
        description="A JSON Schema, or the path of a file with one, relative to the scenario's.",
        examples=[{"type": "object", "required": ["label"]}],
    )
    of: Literal["text", "body"] | None = Field(
        None,
        description="Where path, matches, lacks and schema look: the answer's text without its reasoning, or the body "
        "as it came, of answers that are not streamed. Not given: the text, of endpoints that write one, else the "
        "body.",
    )
    output_tokens: TokenBounds | None = Field(
        None,
        description="Tokens of the answer: a number, [least, most], or asked, for as many as the request asked for.",
        examples=[[1, None], "asked"],
    )
    unknown: Literal["fail", "pass"] | None = Field(
        None, description="What a count of output_tokens is that nobody knows. Not given: fail."
    )
    finish_reason: Annotated[list[Word], Field(min_length=1), OneOrMore()] | None = Field(
        None, description="One reason for the answer's end, or several, as the server says it.", examples=["stop"]
    )
    not_html: Literal[True] | None = Field(None, description="That it is no page for a browser.")


Checked = Annotated[
    list[Check] | None,
    Field(
        min_length=1,
        max_length=MAX_CHECKS,
        description="What has to hold of every good answer; one of which something does not is a failed one, of kind "
        "check_failed.",
        examples=[[{"matches": "^[0-9]+$"}, {"output_tokens": "asked"}]],
    ),
]


class Workload(Asked):
    """What is asked."""

    input_tokens: InputTokens = None
    output_tokens: OutputTokens = None
    batch_size: BatchSize = None


class Part(Asked):
    """One workload of a mix."""

    name: Annotated[str, Field(pattern=f"^{NAME}$")] = Field(
        description="Names it in the report: letters, digits, '.', '_' and '-'.", examples=["chat"]
    )
    weight: Weight | None = Field(None, description="How many of the requests are of it, compared with the others.")
    input_tokens: Length | None = Field(
        None, description="Length of each prompt in tokens, in the forms of workload.input_tokens.", examples=[200]
    )
    output_tokens: Length | None = Field(
        None, description="Length of answer asked for in tokens, in the same forms.", examples=[100]
    )
    checks: Checked = None


class ProbeStream(Section):
    """A light stream of small requests beside the load."""

    rate: PerSecond = Field(description="Requests a second.", examples=[0.5])
    input_tokens: Length | None = Field(None, description="Length of each prompt in tokens.")
    output_tokens: Length | None = Field(None, description="Length of answer asked for in tokens.")


class Server(Section):
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


class Block(Section):
    """A set of levels: its axes combined. An axis not given here is that of load, workload, server or the file."""

    concurrency: Concurrency = None
    rate: Rate = None
    stages: Stages = None
    trace: TraceLoad = None
    input_tokens: InputTokens = None
    output_tokens: OutputTokens = None
    batch_size: BatchSize = None
    model: ModelAxis = None
    scheduler: SchedulerAxis = None
    max_batch_size: MaxBatchSize = None


class Request(Section):
    """What is sent to an endpoint http. Texts may have blanks: {{ prompt }}, {{ input_tokens }}, {{ max_tokens }},
    {{ model }}, {{ uuid }}, {{ row.COLUMN }} of the data, {{ env.NAME }}."""

    method: Method | None = Field(None, description="Not given: POST with a body, GET without.")
    path: Route | None = Field(
        None,
        description="Below the URL of the run, with a query perhaps. Not given: that URL is the request's own.",
        examples=["/v1/classify", "/search?q={{ prompt }}"],
    )
    headers: dict[HeaderName, HeaderText] | None = Field(
        None, description="Further headers; those of -H stand above them.", examples=[{"X-Tenant": "{{ row.tenant }}"}]
    )
    json_: Json | None = Field(
        None,
        alias="json",
        description="A JSON body. A text that is one blank becomes its value: a number stays a number.",
        examples=[{"text": "{{ prompt }}", "limit": "{{ max_tokens }}"}],
    )
    form: dict[Word, Scalar] | None = Field(None, description="A URL-encoded body.", examples=[{"q": "{{ prompt }}"}])
    multipart: dict[Word, FormPart] | None = Field(
        None,
        description="A multipart/form-data body: texts, and files to upload; of a folder or pattern each request takes "
        "the next.",
        examples=[{"image": {"file": "./images", "type": "image/png"}, "top_k": 5}],
    )
    raw: str | None = Field(None, description="A body of text, sent as it is but for its blanks.")
    file: Files | None = Field(
        None, description="A body that is a file, as it is; or one of a folder or a pattern.", examples=["./query.bin"]
    )
    type: Word | None = Field(None, description="The Content-Type. Not given: that of the body's form.")


class Success(Section):
    """What makes an answer of an endpoint http a good one."""

    status: Annotated[list[Annotated[int, Field(ge=200, le=599)]], Field(min_length=1), OneOrMore()] | None = Field(
        None, description="One status, or several. Not given: 200 to 299.", examples=[[200, 201]]
    )
    path: JsonPath | None = Field(None, description="Something in the answer.", examples=["$.status"])
    equals: Json | None = Field(None, description="What it has to be.", examples=["done"])
    exists: bool | None = Field(None, description="Whether it has to be there. Not given: that, or equals.")


class Response(Section):
    """What comes back from an endpoint http: JSON paths, in each event of a stream or in the whole answer.

    One that finds nothing in the first answer ends the run, with what came instead.
    """

    stream: Stream | None = Field(
        None,
        description="How the answer comes: none (whole), sse, ndjson (a JSON value a line), lines, or chunks (each "
        "read of the socket). Not given: none.",
    )
    done: Annotated[str, Field(min_length=1)] | None = Field(
        None, description="The event that ends a stream. Not given: the end of the body.", examples=["[DONE]"]
    )
    success: Success | None = Field(None, description="What makes it a good answer. Not given: its status.")
    text: JsonPath | None = Field(
        None,
        description="The text; $ is an event as it is. Not given: of lines and chunks that; of others there is none, "
        "and so no TTFT, and requests count as samples.",
        examples=["$.choices[0].delta.content"],
    )
    input_tokens: JsonPath | None = Field(None, description="Tokens of the prompt.", examples=["$.usage.input"])
    output_tokens: JsonPath | None = Field(
        None, description="Tokens of the answer so far. Not given: unknown, and events are counted."
    )
    finish: JsonPath | None = Field(None, description="Why the answer ended.", examples=["$.finish_reason"])
    error: JsonPath | None = Field(
        None, description="An error: the answer is none if something other than null, false or empty is there."
    )


class Audit(Section):
    """What is looked into before the first level, by pairs of the same request, one after the other."""

    deterministic: bool | None = Field(
        None,
        description="Whether the same request brings the same text. Not given: true, of an endpoint that writes text.",
    )
    cache: bool | Literal["declared"] | None = Field(
        None,
        description="Whether the second of a pair is more than 10 % faster, which makes the run INVALID; declared: it "
        "may be, and by how much is reported.",
    )
    pairs: Annotated[int, Field(ge=20, le=10_000)] | None = Field(None, description="How many pairs.", examples=[50])


class Timeouts(Section):
    """When a request is given up."""

    total: PositiveDuration | None = Field(None, description="The whole request.", examples=["300s"])
    connect: PositiveDuration | None = Field(None, description="Opening a connection.", examples=["10s"])
    stall: PositiveDuration | None = Field(None, description="Between two pieces of an answer.", examples=["60s"])


class File(Section):
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
    endpoint: Endpoint | None = Field(
        None, description="What the endpoint speaks. Not given: found by asking it.", examples=["chat"]
    )
    stream: bool | None = Field(None, description="Whether answers are streamed; without, there is no TTFT.")
    model: ModelAxis = None
    request: Request | None = Field(None, description="What is sent; of the endpoint http.")
    response: Response | None = Field(None, description="What comes back; of the endpoint http.")
    tokenizer: LocalPath | None = Field(
        None,
        description="A local folder with a tokenizer.json, or that file: prompts then have exactly the tokens asked "
        "for. Not given: found out by asking the endpoint.",
        examples=["./llama-3"],
    )
    locked: bool | None = Field(
        None,
        description="Whether a result is marked as not comparable when anything was overridden by flags or variables.",
    )
    seed: Annotated[int, Field(ge=0, lt=10**18)] | None = Field(
        None, description="Fixes prompts, lengths and arrivals. Not given: random, and recorded in the result."
    )
    workload: Workload | None = Field(None, description="What is asked.")
    mix: Annotated[list[Part], Field(min_length=1, max_length=MAX_PARTS)] | None = Field(
        None, description="Several workloads at once, each with its share of the requests, instead of one workload."
    )
    load: Load | None = Field(None, description="How requests arrive, and for how long, at every level.")
    checks: Checked = None
    audit: Annotated[Audit | None, AuditFlag] = Field(
        None, description="What is looked into before the first level; {} is all of it. Not given: nothing."
    )
    probe_stream: ProbeStream | None = Field(
        None,
        description="A light stream of small requests beside the load, to see what they suffer under it. It is in no "
        "other figure.",
    )
    server: Server | None = Field(None, description="The bundled server; unused when the target is a URL.")
    levels: Annotated[list[Block], Field(min_length=1, max_length=MAX_LEVELS_PER_AXIS)] | None = Field(
        None,
        description="Sets of levels, played in this order, instead of the one product of all axes: each is the "
        "product (or zip) of its own axes and, for those it does not give, of load, workload, server and model.",
    )
    timeouts: Timeouts | None = Field(None, description="When a request is given up.")
    abort_on: AbortRule | None = Field(
        None,
        description="When the run is to end before its time: METRIC OP VALUE for TIME, with the metric error_rate (of "
        "the requests that finished within the time) or in_flight; without a time it is 5s. Not given: never.",
        examples=["error_rate > 50% for 5s", "in_flight > 500 for 10s"],
    )
    slo: Annotated[list[Objective], Field(min_length=1, max_length=MAX_SLOS)] | None = Field(
        None,
        description="What every level has to keep to, for a verdict and an exit code: METRIC OP LIMIT, of a percentile "
        "or mean of a time, error_rate, goodput, or something per second. Not given: there is no verdict.",
        examples=[["p99(ttft) < 300ms", "error_rate < 0.1%"], ["goodput(ttft < 300ms, tpot < 40ms) >= 99%"]],
    )
    warn: Annotated[list[Remark], Field(min_length=1, max_length=MAX_SLOS), OneOrMore()] | None = Field(
        None,
        description="What the result is to warn of, of any level, without failing the run: FIGURE OP FIGURE or FIGURE "
        "OP LIMIT, the figures being those of slo and perhaps a number of times it. One, or a list.",
        examples=["p99(ttft) > 3 * p50(ttft)", ["error_rate > 0.5%", "p99(itl) > 5 * p50(itl)"]],
    )


SECTIONS: dict[str, type[Section]] = {
    "load": Load,
    "workload": Workload,
    "server": Server,
    "timeouts": Timeouts,
    "probe_stream": ProbeStream,
    "mix": Part,
    "levels": Block,
    "stages": Stage,
    "trace": Trace,
    "prefix": Prefix,
    "data": Data,
    "columns": Columns,
    "conversation": Conversation,
    "images": Images,
    "inputs": Input,
    "request": Request,
    "response": Response,
    "success": Success,
    "checks": Check,
    "audit": Audit,
}
"""The form of each mapping, or of each item of a list, by the key that it stands behind."""


def json_schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of a scenario file."""
    schema = File.model_json_schema()
    _tidy(schema)
    definitions = schema["$defs"]
    for key, value in DEFAULTS.items():
        section, _, name = key.rpartition(".")
        properties = (definitions[SECTIONS[section].__name__] if section else schema)["properties"]
        properties[name]["default"] = _written(value, seconds=section == "timeouts" or name in ("duration", "cooldown"))
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "loadtest scenario"}
    return head | schema


def _written(value: Any, seconds: bool) -> Any:
    """A default as one would write it in a file."""
    match value:
        case [one]:
            return _written(one, seconds)
        case Tokens():
            return value.low if value.low == value.high else str(value)
        case Distribution():
            return durations_text(value)
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
