"""What is asked of the target: the values that a scenario, a level and a generator process pass on. All frozen."""

from typing import Literal

import msgspec

from loadtest.workload.distribution import Distribution
from loadtest.workload.lengths import Length

DataFormat = Literal["sharegpt", "chat", "openai-batch", "jsonl", "csv", "parquet", "text"]
TraceFormat = Literal["azure", "mooncake", "burstgpt", "jsonl"]
Order = Literal["file", "shuffle", "random"]
History = Literal["real", "canned"]
Datatype = Literal[
    "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "BF16", "FP32", "FP64",
    "BYTES",
]  # fmt: skip
"""Types of tensors by the names of the Open Inference Protocol; BYTES is text."""
BLOCK_TOKENS = 512  # what one of a trace's hash ids stands for
OUTPUT_TOKENS = 256  # the most of an answer whose length neither the scenario nor the data say


class Prefix(msgspec.Struct, frozen=True):
    """Shared starts of prompts, as system prompts are: ``share`` of the requests begin with one of ``pool`` texts.

    The text is ``tokens`` long and comes in front of the prompt's own ``input_tokens``.
    """

    share: float
    tokens: int
    pool: int


class Images(msgspec.Struct, frozen=True):
    """Pictures in each request: PNG of that size, different in every request, as data URLs."""

    count: int
    width: int
    height: int


class Input(msgspec.Struct, frozen=True):
    """One input tensor. ``dtype`` and ``shape`` of None are as the server says; a first dimension of -1 is the batch.

    ``values`` is one number for all of it, or the path of a .npy or .npz file whose rows are the samples, taken in
    ``order``; of None they are drawn anew for every request, between ``low`` and ``high``.
    """

    name: str
    dtype: Datatype | None = None
    shape: tuple[int, ...] | None = None
    values: float | str | None = None
    low: float | None = None
    high: float | None = None
    order: Order = "shuffle"


class Tensors(msgspec.Struct, frozen=True):
    """What goes into a model of tensors; inputs that are not named are drawn. ``binary`` of None: if the server can."""

    inputs: tuple[Input, ...] = ()
    binary: bool | None = None


class Weighted(msgspec.Struct, frozen=True):
    """A model (or LoRA adapter) by name, and how often it is asked compared with the others."""

    name: str
    weight: float


class Data(msgspec.Struct, frozen=True):
    """Prompts out of a local file. ``format`` of None is found from the file; ``columns`` maps our names to its own.

    ``order``: ``file`` plays the rows as they stand, again and again; ``shuffle`` without replacement in a seeded
    order; ``random`` with replacement. Rows outside ``min_input..max_input`` or ``min_output..max_output`` tokens are
    skipped. ``kept`` are columns whose values go with the request, whatever they are; without ``texts`` those are all
    of it, and a row needs no prompt.
    """

    path: str
    format: DataFormat | None = None
    columns: tuple[tuple[str, str], ...] = ()
    order: Order = "shuffle"
    min_input: int | None = None
    max_input: int | None = None
    min_output: int | None = None
    max_output: int | None = None
    kept: tuple[str, ...] = ()
    texts: bool = True


class Trace(msgspec.Struct, frozen=True):
    """Arrivals out of a local file, each with its lengths.

    ``speed`` divides all times. ``start_s`` and ``end_s`` cut a window out of the file's own time, which then begins at
    0. ``scale`` repeats or leaves out arrivals at random so that there are that many times as many in the same time.
    ``lengths`` is how many times as long prompts and answers are.
    """

    path: str
    format: TraceFormat | None = None
    speed: float = 1.0
    start_s: float = 0.0
    end_s: float | None = None
    scale: float = 1.0
    lengths: float = 1.0


class Rows(msgspec.Struct, frozen=True):
    """A data file or a trace made ready for random access (``loadtest.workload.rows``); ``path`` is the prepared file.

    ``count`` rows hold ``turns`` requests. ``skipped`` says why how many rows were left out, with the first line of
    each (for Parquet the row). ``span_s`` is a trace's length, and ``shares`` whether it says itself what its prompts
    share. The lengths are those observed, None where unknown.
    """

    path: str
    source: str
    count: int
    sha256: str
    skipped: tuple[tuple[str, int, int], ...] = ()  # reason, how many, line of the first
    span_s: float | None = None
    shares: bool = False
    turns: int = 0
    input_tokens: Length | None = None
    output_tokens: Length | None = None


class Conversation(msgspec.Struct, frozen=True):
    """Sessions of several turns; the history grows with what the model answered (``real``) or with made text.

    ``turns`` of None are those of the data or trace. ``think_s`` passes between an answer and the next turn. After each
    turn the user leaves with the chance ``abandon``. ``next_input`` is the length of later turns; None: as the first.
    """

    turns: Length | None
    think_s: Distribution
    history: History = "real"
    abandon: float = 0.0
    next_input: Length | None = None


class Check(msgspec.Struct, frozen=True):
    """Something that has to hold of an answer; one of these says it.

    ``status`` are the statuses, ``finish_reason`` the reasons that are good. What is at the JSON ``path`` is one of
    ``among`` (JSON texts), or without them is there or not (``exists``). ``matches`` and ``lacks`` are regular
    expressions, ``schema`` is the text of a JSON Schema. ``output_tokens`` are the least and the most of an answer, or
    as many as were asked for; ``unknown`` says what a count is that nobody knows. ``of``: where a path, a regular
    expression or a schema looks.
    """

    name: str | None = None
    status: tuple[int, ...] = ()
    finish_reason: tuple[str, ...] = ()
    path: str | None = None
    among: tuple[str, ...] = ()
    exists: bool = True
    matches: str | None = None
    lacks: str | None = None
    schema: str | None = None
    of: Literal["text", "body"] = "text"
    output_tokens: tuple[int | None, int | None] | Literal["asked"] | None = None
    unknown: Literal["fail", "pass"] = "fail"
    not_html: bool = False


class Workload(msgspec.Struct, frozen=True):
    """One kind of request. Lengths of None are those of the data or trace; ``rows`` is there once that is prepared.

    ``correlation`` is that of input and output lengths (of the normal scores: a Gaussian copula). ``corpus`` is a text
    file that prompts are made from; None is the text that comes with the tool, ``unicode`` its mix of scripts. ``body``
    is a JSON object whose keys are put into every request's body (tools, response_format, …). ``checks`` have to hold
    of every answer.
    """

    input_tokens: Length | None
    output_tokens: Length | None
    name: str = "main"
    weight: float = 1.0
    correlation: float = 0.0
    corpus: str | None = None
    prefix: Prefix | None = None
    data: Data | None = None
    conversation: Conversation | None = None
    models: tuple[Weighted, ...] = ()
    images: Images | None = None
    body: str | None = None
    rows: Rows | None = None
    tensors: Tensors = Tensors()
    checks: tuple[Check, ...] = ()


class Probe(msgspec.Struct, frozen=True):
    """A light stream of small requests beside the load, to see what they suffer under it."""

    rate_per_s: float
    input_tokens: Length
    output_tokens: Length


class Message(msgspec.Struct, frozen=True):
    """One message of a prompt."""

    role: str
    content: str


class Turn(msgspec.Struct, frozen=True, array_like=True):
    """One request of a row.

    Of data: ``messages`` are those that come in front of it (the system's, and the user's), the earlier turns of the
    row left out; ``answer`` is the one that was recorded. ``input_tokens`` is the length of these messages and
    ``output_tokens`` that of the answer; each None where neither the file says it nor a filter had it counted.
    Of a trace: no messages, both lengths (the input's is of the whole prompt, history included), ``at_s`` from the
    trace's start, and ``blocks``: a number for each ``BLOCK_TOKENS`` of the prompt; equal numbers are equal text.
    """

    messages: tuple[Message, ...] = ()
    answer: str | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    at_s: float | None = None
    blocks: tuple[int, ...] = ()


class Row(msgspec.Struct, frozen=True, array_like=True):
    """One row of data or one session of a trace: its turns in order, at least one.

    ``body`` is a JSON object: what a batch file asks beside messages and length (temperature, tools, …). ``cells`` is
    one too: the columns that are kept.
    """

    turns: tuple[Turn, ...]
    body: str | None = None
    cells: str | None = None


class Ask(msgspec.Struct, frozen=True):
    """What one request asks, in no dialect yet. ``images`` are data URLs that go with the last message.

    ``input_tokens`` is the length that the prompt was made to have, None where that is not known; ``seed`` is a number
    of the request's own, for whatever else a dialect has to draw. ``samples`` is how many items it holds, ``number``
    its place in the level, and ``tensors`` what a dialect of tensors makes them of. ``row`` is a JSON object of the
    columns of the data that are kept.
    """

    messages: tuple[Message, ...]
    max_tokens: int
    model: str | None = None
    images: tuple[str, ...] = ()
    body: str | None = None
    input_tokens: int | None = None
    seed: int = 0
    samples: int = 1
    number: int = 0
    tensors: Tensors = Tensors()
    row: str | None = None
