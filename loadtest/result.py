"""The result of a run as it lies on disk: the structs of ``result.json``, written whole, read back with care.

Names, units and formulas are docs/metrics.md's. Strict JSON: null is "not measured", never NaN, 0 or −1.
Within one ``schema_version`` there are only additions, and a reader accepts keys it does not know.
"""

import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from loadtest import whole
from loadtest.errors import ResultError
from loadtest.level import Batching, Level
from loadtest.records import Mode
from loadtest.schedule import Load
from loadtest.slo import Unit
from loadtest.stats import Dist, Due
from loadtest.telemetry.figures import Gpu, Host, Server
from loadtest.workload import model

SCHEMA_VERSION = 1
FILE_NAME = "result.json"

Status = Literal["ok", "degraded", "overloaded", "aborted", "not_reached"]
Source = Literal["usage", "tokenizer", "unknown", "mixed"]
VerdictName = Literal["PASS", "FAIL", "INCONCLUSIVE", "INVALID"]


def _says(text: str) -> Meta:
    return Meta(description=text)


class Tool(msgspec.Struct, frozen=True, kw_only=True):
    """The program that measured."""

    name: str
    version: str


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked."""

    kind: Annotated[str, _says("dialect spoken, such as chat or completions")]
    url: Annotated[str, _says("base URL, secrets redacted")]
    model: str | None = None
    address: Annotated[str | None, _says("the one that all connections went to; the proxy's, where there is one")] = (
        None
    )
    proxy: Annotated[str | None, _says("URL of the proxy, secrets redacted; null: none")] = None
    transport: Annotated[str | None, _says("the client's HTTP: fast or aiohttp")] = None


class Hardware(msgspec.Struct, frozen=True, kw_only=True):
    """The machines, in words. The server's is null when nobody told us."""

    server: str | None = None
    client: str | None = None


class ScenarioRef(msgspec.Struct, frozen=True, kw_only=True):
    """The scenario that was played; its resolved text lies beside the result."""

    name: str
    sha256: Annotated[str, _says("of what is asked, without name, question and seed")]


class Conditions(msgspec.Struct, frozen=True, kw_only=True):
    """What the figures depend on. Two results are comparable only when these agree and neither says that it is not."""

    endpoint: Endpoint
    precision: Annotated[str | None, _says("number format of the model, such as fp16")] = None
    software: Annotated[dict[str, str], _says("name to version")] = {}
    hardware: Hardware
    scenario: ScenarioRef
    prompts_sized: Annotated[
        str | None, _says("how made prompts got their lengths, such as: by the tokenizer in ./llama-3, exactly")
    ] = None
    telemetry: Annotated[
        list[str], _says("what was watched while the levels were played, and why the server was not")
    ] = []
    not_comparable: Annotated[
        list[str], _says("why the figures are not those of the scenario as it stands; empty: they are")
    ] = []


class Lengths(msgspec.Struct, frozen=True, kw_only=True):
    """Mean, median and 99th percentile of lengths in tokens over ``n`` requests; null when n is 0."""

    n: int
    mean: float | None = None
    p50: float | None = None
    p99: float | None = None


class TokenLengths(msgspec.Struct, frozen=True, kw_only=True):
    """One direction of the workload: what was asked for and what was seen, over the window's ok requests."""

    requested: Annotated[str, _says("as the scenario has it: 128 or uniform(64, 192)")]
    asked: Annotated[Lengths, _says("what these requests asked for; without those of which nobody asked a length")]
    observed: Annotated[Lengths, _says("what they had; without those of which it is unknown")]
    observed_per_asked: Annotated[
        float | None, _says("total observed ÷ total asked, of the requests that have both; null: none has")
    ] = None


class DataRef(msgspec.Struct, frozen=True, kw_only=True):
    """A file that requests were taken from."""

    source: Annotated[str, _says("file name")]
    sha256: Annotated[str, _says("of the file")]
    rows: Annotated[int, _says("rows that could be played, the skipped ones left out")]
    order: Annotated[str | None, _says("file, shuffle or random; null: at the times of a trace")] = None


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked and answered, in tokens."""

    input_tokens: TokenLengths
    output_tokens: TokenLengths
    source: Annotated[Source, _says("where the token counts come from; mixed when requests differ in it")]
    repeated_prompts: Annotated[
        int | None,
        _says("requests of the level sent with a whole input that the run had sent before; null: not known"),
    ] = None
    cached_input_tokens: Annotated[
        int | None, _says("input tokens the server took from its cache, total of the window; null: not said")
    ] = None
    data: Annotated[list[DataRef], _says("files that requests were taken from; empty: all text was made")] = []


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """The level's three parts, in seconds."""

    warmup_s: Annotated[float, _says("played and not measured, before the window")]
    measured_s: Annotated[float | None, _says("length of the window; null when it is empty")]
    drain_s: Annotated[float | None, _says("from the end of sending until the last request had ended")]
    steady_from_s: Annotated[
        float | None,
        _says("from the level's start, when e2e had settled by MSER-5; the window stays. null: never, or too few"),
    ] = None


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """Every request of the level, warm-up included.

    Conservation: scheduled = ok + http_error + stream_error + transport_error + timed_out + cancelled
    + never_sent.
    """

    scheduled: int = 0
    sent: int = 0
    ok: int = 0
    http_error: int = 0
    stream_error: int = 0
    transport_error: int = 0
    timed_out: int = 0
    cancelled: int = 0
    never_sent: int = 0
    resent: Annotated[int, _says("sent once more, visibly; each is still one request")] = 0
    in_window: Annotated[int, _says("requests whose intended time lies in the window")] = 0

    @property
    def failed(self) -> int:
        """Requests that did not end ok, whatever the reason."""
        return (
            self.http_error
            + self.stream_error
            + self.transport_error
            + self.timed_out
            + self.cancelled
            + self.never_sent
        )


class Rates(msgspec.Struct, frozen=True, kw_only=True):
    """Requests per second over the window."""

    target_per_s: Annotated[
        float | None, _says("asked; null for a closed loop, and of sessions, whose rate is sessions.target_per_s")
    ] = None
    offered_per_s: Annotated[float | None, _says("sent ÷ window")] = None
    completed_per_s: Annotated[float | None, _says("ok ÷ window")] = None
    good_per_s: Annotated[float | None, _says("met every SLO ÷ window; null without an SLO")] = None


class Throughput(msgspec.Struct, frozen=True, kw_only=True):
    """What arrived per second, from ok requests only.

    Requests without a token count add nothing to the token figures; workload.source and the n of
    output_tokens.observed show whether there were any.
    """

    output_tokens_per_s: Annotated[float | None, _says("tokens whose event arrived inside the window ÷ window")] = None
    total_tokens_per_s: Annotated[
        float | None, _says("the same with the input tokens of requests whose first token fell in the window")
    ] = None
    samples_per_s: Annotated[
        float | None, _says("items answered within the window ÷ window; null: the endpoint makes text")
    ] = None
    events_per_s: Annotated[float | None, _says("stream events with output inside the window ÷ window")] = None


class Concurrency(msgspec.Struct, frozen=True, kw_only=True):
    """Requests in flight (sent and not done), or sessions going on, over the window."""

    mean: Annotated[float | None, _says("time-weighted")] = None
    peak: Annotated[int | None, _says("exact")] = None


class Metric(msgspec.Struct, frozen=True, kw_only=True):
    """One latency in milliseconds, over the window's requests (itl_ms: over their gaps)."""

    ok: Annotated[Dist, _says("good requests only: describes latency")]
    due: Annotated[
        Due | None,
        _says("every request due in the window, failures as +infinity; null where it has no meaning"),
    ] = None
    ci95: Annotated[
        dict[str, tuple[float, float]] | None, _says("95 % confidence interval of each percentile of ok")
    ] = None
    excluded: Annotated[int, _says("ok requests of the window for which it is undefined")] = 0

    @property
    def met(self) -> Dist | Due:
        """What users met: with the failures inside, where there are any."""
        return self.due if self.due and self.due.failed else self.ok


class Latency(msgspec.Struct, frozen=True, kw_only=True):
    """Every latency of the level; each formula is docs/metrics.md's."""

    ttft_ms: Annotated[Metric, _says("first_token − intended")]
    ttfat_ms: Annotated[Metric, _says("first_answer − intended (without reasoning)")]
    e2e_ms: Annotated[Metric, _says("last_token − intended; done − intended when not streamed")]
    tpot_ms: Annotated[Metric, _says("(last_token − first_token) ÷ (output tokens − 1)")]
    itl_ms: Annotated[Metric, _says("gaps between consecutive events with output, pooled over requests")]
    lag_ms: Annotated[Metric, _says("sent − intended")]
    own_lag_ms: Annotated[Metric, _says("the part of lag that is the generator's own lateness")]
    connect_ms: Annotated[Metric, _says("opening a connection, of the requests that had to")]
    service_ttft_ms: Annotated[Metric, _says("first_token − sent")]
    service_e2e_ms: Annotated[Metric, _says("last_token (done when not streamed) − sent")]


class ErrorGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Failed requests of the level that failed alike, the most frequent first."""

    kind: str
    status: Annotated[int | None, _says("HTTP status, where there was one")] = None
    count: int
    example: Annotated[str | None, _says("the first one's message")] = None


class Goodput(msgspec.Struct, frozen=True, kw_only=True):
    """Requests that met every per-request limit."""

    good: int
    share_of_scheduled: float
    per_s: float | None


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """99th percentile and largest value, in milliseconds."""

    p99: float
    max: float


class Generator(msgspec.Struct, frozen=True, kw_only=True):
    """A worker of a cluster."""

    worker: int
    host: str
    clock_offset_ms: Annotated[float, _says("its clock less that of the run, before the level")]
    clock_error_ms: Annotated[float, _says("how far that may be off, ±")]
    start_late_ms: Annotated[float, _says("it heard of the common start so long after it")]
    cpu_share: Annotated[float, _says("of one core, 0..1")]
    clock_drift_ms: Annotated[float | None, _says("by how much its offset had grown when the level ended")] = None
    clock_drift_error_ms: Annotated[float | None, _says("how far that may be off, ±")] = None


class Client(msgspec.Struct, frozen=True, kw_only=True):
    """What the generator saw of itself. Null where only the journal was left to compute from."""

    workers: Annotated[int | None, _says("generator processes")] = None
    cpu_share: Annotated[float | None, _says("of one core, 0..1, of the busiest worker")] = None
    loop_lag_ms: Annotated[Spread | None, _says("timers run late, of the worst worker")] = None
    send_lag_ms: Annotated[Spread | None, _says("own lag of every request sent in the window")] = None
    sent_share: Annotated[float | None, _says("of the window's due requests, those it did not fail to send")] = None
    held_concurrency: Annotated[
        float | None, _says("slots busy on average, of load.concurrency; null where it was not judged")
    ] = None
    error_bar_p50_ms: Annotated[float | None, _says("how long bytes waited for us, p50 of the worst worker")] = None
    error_bar_ms: Annotated[float | None, _says("the same, p99; null: not sampled")] = None
    coalesced_read_share: Annotated[float | None, _says("reads that completed more than one event")] = None
    start_skew_ms: Annotated[
        float | None, _says("from the start of the first worker to that of the last; null: one worker")
    ] = None
    cluster: Annotated[list[Generator], _says("the workers of a cluster; empty: they were on this host")] = []
    valid: Annotated[bool, _says("false when the client, not the server, was the limit")] = True
    reasons: Annotated[list[str], _says("why it is not valid, and the mend")] = []


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """One workload of a mix by itself, in the same window; the parts add up to the level."""

    name: str
    weight: Annotated[float, _says("how often it is asked, compared with the others")]
    counts: Counts
    workload: Workload
    rates: Rates
    throughput: Annotated[Throughput, _says("over the window")]
    latency: Latency


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """The same turn of all sessions of the level."""

    turn: Annotated[int, _says("from 1")]
    counts: Counts
    input_tokens: Annotated[Lengths, _says("observed, the history included, of the window's ok requests")]
    cached_input_tokens: Annotated[int | None, _says("of these, what came from the server's cache; null: not said")]
    ttft_ms: Metric
    e2e_ms: Metric


class ModelPart(msgspec.Struct, frozen=True, kw_only=True):
    """The requests of a level that asked one model, or adapter, of several."""

    model: str
    counts: Counts
    ttft_ms: Metric
    e2e_ms: Metric


class Sessions(msgspec.Struct, frozen=True, kw_only=True):
    """The conversations of a level, warm-up included.

    Conservation: started = completed + abandoned + failed + cut_short.
    """

    started: int
    completed: Annotated[int, _says("had all their turns, each ok")]
    abandoned: Annotated[int, _says("left by the user before, as the scenario has it")]
    failed: Annotated[int, _says("ended by a turn that failed")]
    cut_short: Annotated[int, _says("still going on when the sending ended")]
    mean_turns: Annotated[float, _says("turns that became due ÷ started")]
    target_per_s: Annotated[float | None, _says("asked; null for a closed loop and a trace")] = None
    started_per_s: Annotated[float | None, _says("sessions whose first turn was due in the window ÷ window")] = None
    concurrency: Annotated[Concurrency, _says("from the first turn sent to the last one done, thinking included")]


class ProbeResult(msgspec.Struct, frozen=True, kw_only=True):
    """The light stream beside the load, in the same window. It is in no other figure of the level."""

    rate_per_s: Annotated[float, _says("asked")]
    counts: Counts
    latency: Latency
    errors: list[ErrorGroup] = []


class SloResult(msgspec.Struct, frozen=True, kw_only=True):
    """One limit and how the level stood to it."""

    expression: str
    value: Annotated[float | None, _says("failures inside; null: not measured, or it falls among the failures")]
    ci: Annotated[
        tuple[float | None, float | None] | None,
        _says("95 % confidence interval; an end of null: beyond what was measured"),
    ]
    n: Annotated[int, _says("requests judged; of itl, gaps")]
    verdict: VerdictName
    reason: Annotated[str, _says("in words, with what would decide it")]
    unit: Annotated[Unit, _says("of value and ci")] = "ms"
    more_requests: Annotated[
        int | None, _says("about how many more would decide, if they are as these; null: it is decided, or none would")
    ] = None


class LevelResult(msgspec.Struct, frozen=True, kw_only=True):
    """One load × one workload × one batching setting."""

    name: str
    status: Annotated[
        Status,
        _says("aborted: ended before it was complete; degraded: a worker was lost; not_reached: never started"),
    ]
    load: Load
    batching: Annotated[Batching | None, _says("of the bundled server; null against a URL")]
    workload: Workload
    window: Window
    counts: Counts
    rates: Rates
    throughput: Annotated[Throughput, _says("over the window")]
    whole_run: Annotated[Throughput, _says("over the whole level, first intended to last done")]
    concurrency: Concurrency
    latency: Latency
    tokens_per_event: Annotated[float | None, _says("output tokens ÷ stream events, of ok requests")] = None
    single_burst: Annotated[
        int, _says("ok requests of the window whose output events, two or more, all arrived at once")
    ] = 0
    bad_events: Annotated[int, _says("stream events that could not be read and were skipped, of the level")] = 0
    finish_reasons: Annotated[dict[str, int], _says("of every ok request of the level")] = {}
    errors: list[ErrorGroup] = []
    goodput: Goodput | None = None
    client: Client
    server: Annotated[Server | None, _says("what it said of itself; null: conditions.telemetry says why")] = None
    gpus: Annotated[list[Gpu], _says("those that were watched; empty: none was")] = []
    energy_per_output_token_j: Annotated[
        float | None, _says("of all these, over the whole level; null: energy or tokens are not known")
    ] = None
    host: Annotated[Host | None, _says("the one that the client ran on")] = None
    slo: list[SloResult] = []
    model: Annotated[str | None, _says("asked in this level; null: the run's, conditions.endpoint.model")] = None
    batch_size: Annotated[int, Meta(ge=1, description="samples that each request asked for at once")] = 1
    repeat: Annotated[int, Meta(ge=1, description="which playing of the same level it is, from 1")] = 1
    workloads: Annotated[list[Part], _says("each workload of a mix; empty: there is one")] = []
    turns: Annotated[list[Turn], _says("of conversations; empty: there are none")] = []
    sessions: Annotated[Sessions | None, _says("null: there are no conversations")] = None
    models: Annotated[list[ModelPart], _says("where a workload asks several; empty: none does")] = []
    probe: Annotated[ProbeResult | None, _says("null: there is no probe stream")] = None
    began_at: Annotated[
        str | None, _says("0 of the times in its records, by the clock on the wall: RFC 3339, UTC; null: not known")
    ] = None
    goes_on: Annotated[bool, _says("figures so far of a level that was being played when they were written")] = False
    extends: Annotated[
        str | None, _says("name of the level that this one plays on, as it was inconclusive; its slo rests on both")
    ] = None


class Across(msgspec.Struct, frozen=True, kw_only=True):
    """One figure over the repeats of a level."""

    median: float
    min: float
    max: float


class Repeat(msgspec.Struct, frozen=True, kw_only=True):
    """A level that was played several times. A figure that one of its repeats does not have is null."""

    name: Annotated[str, _says("of the levels, without which repeat it is")]
    planned: Annotated[int, _says("how many times it was to be played")]
    n: Annotated[int, _says("of these, complete and valid; the figures are theirs")]
    output_tokens_per_s: Across | None = None
    requests_per_s: Across | None = None
    ttft_p50_ms: Annotated[Across | None, _says("failures inside; null where it falls among them")] = None
    ttft_p99_ms: Annotated[Across | None, _says("the same")] = None
    tpot_p50_ms: Annotated[Across | None, _says("the same")] = None
    e2e_p99_ms: Annotated[Across | None, _says("the same")] = None


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of the run; null when no SLO was asked."""

    outcome: VerdictName | None = None
    reasons: list[str] = []


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """One level of a search for capacity, as the SLOs of that search judge it."""

    load: float
    outcome: VerdictName
    resolved: Annotated[bool, _says("false: cut short, invalid, or too short to prove anything; it is no bound")]
    nearness: Annotated[
        float | None,
        _says("of the worst SLO, value ÷ limit or what stands for it: above 1 it is beyond; null: not measured"),
    ]
    levels: Annotated[list[int], _says("places in levels[]: a second one extended it, as the first was inconclusive")]


class RawPeak(msgspec.Struct, frozen=True, kw_only=True):
    """The highest throughput at any load tried, whatever the latency."""

    output_tokens_per_s: Annotated[float | None, _says("null: tokens are unknown, and it is that of answers")]
    requests_per_s: Annotated[float | None, _says("answers; null where they were more than kept coming, as of a queue")]
    load: float


class Usable(msgspec.Struct, frozen=True, kw_only=True):
    """What of the capacity may be planned with: passed × (1 − reserve) × (replicas − lost)."""

    reserve: float
    replicas: int
    lost: int
    value: Annotated[float | None, _says("null: no load passed")]


class Searched(msgspec.Struct, frozen=True, kw_only=True):
    """Where a search looked, and what it took for a load to pass."""

    start: Annotated[float, _says("load of the first trial")]
    least: float
    most: Annotated[float | None, _says("null: without end")]
    trials: Annotated[int, _says("that had to pass at a load, each of them")]


class Capacity(msgspec.Struct, frozen=True, kw_only=True):
    """What one search found."""

    axis: Literal["rate", "concurrency"]
    setting: Annotated[str, _says("batching, model and lengths, where there are several; empty: there is one")]
    tier: Annotated[str, _says("name of this set of SLOs, where there are several; empty: there is one")]
    slo: list[str]
    searched: Searched
    bracket: Annotated[
        tuple[float | None, float | None],
        _says("highest load that passed in enough trials, and the lowest that did not; null: none"),
    ]
    trials: list[Trial]
    raw_peak: RawPeak | None
    usable: Usable
    cliff: Annotated[bool, _says("far within the limits at the one end of the bracket and far beyond at the other")]
    ended: Annotated[str, _says("why the search went no further")]
    statement: Annotated[str, _says("the whole of it in words, with every condition")]


class Audit(msgspec.Struct, frozen=True, kw_only=True):
    """What pairs of the same request, one after the other before the first level, tell of the target."""

    kind: Annotated[
        Literal["deterministic", "cache"],
        _says("deterministic: the same request, the same text; cache: the second of a pair is no faster"),
    ]
    outcome: Annotated[VerdictName, _says("INVALID: there is a cache that nobody declared")]
    value: Annotated[
        float | None, _says("deterministic: share of pairs that differ; cache: how much less time the second took")
    ]
    ci: Annotated[tuple[float, float] | None, _says("95 % confidence interval of value; null: too few pairs")]
    n: Annotated[int, _says("pairs of which both requests were answered")]
    words: str


class Manner(msgspec.Struct, frozen=True, kw_only=True):
    """How a run was asked to be played and judged, besides its scenario; nothing of it is secret."""

    url: Annotated[str | None, _says("as it was given, secrets redacted; null: the bundled server's")] = None
    on_inconclusive: Literal["report", "fail", "extend"]
    strict: bool
    transport: Annotated[Literal["fast", "aiohttp"] | None, _says("asked for; null: as the way has it")] = None
    workers: Annotated[int | None, _says("asked for; null: as the load needs")]
    cluster: Annotated[str | None, _says("whose workers played; null: this host's")] = None
    traceparent: bool
    run_header: bool


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one run of loadtest."""

    schema_version: Annotated[int, Meta(ge=1)] = SCHEMA_VERSION
    tool: Tool
    command: Annotated[str, _says("as typed, secrets redacted")]
    started_at: Annotated[str, _says("RFC 3339, UTC")]
    seed: int
    run_id: Annotated[str | None, _says("random, 32 hex digits; ids of traces are made from it")] = None
    complete: Annotated[bool, _says("false when the run was interrupted or is still going on")]
    exit_code: int
    conditions: Conditions
    records: Annotated[Mode, _says("which requests are in the journal")] = "all"
    manner: Annotated[Manner | None, _says("what else it takes to go on with the run; null: it is not known")] = None
    resumed: Annotated[list[str], _says("when the run was gone on with after an end before its time, UTC")] = []
    warnings: list[str] = []
    adaptations: Annotated[list[str], _says("changes made to requests so that the server took them")] = []
    labels: Annotated[dict[str, str], _says("what the user told us with --label")] = {}
    audits: Annotated[list[Audit], _says("of the target, before the levels; empty: none was asked for")] = []
    levels: list[LevelResult]
    repeats: Annotated[list[Repeat], _says("over the levels played several times; empty: there are none")] = []
    verdict: Verdict = Verdict()
    capacity: Annotated[
        Capacity | None, _says("the highest load that kept the SLOs; of several searches the first tier's highest")
    ] = None
    capacities: Annotated[list[Capacity], _says("each search, where there are several; empty: there was one")] = []

    @property
    def searches(self) -> list[Capacity]:
        """Each search for capacity; none of a run."""
        return self.capacities or ([self.capacity] if self.capacity else [])


def data_of(workloads: Iterable[model.Workload]) -> list[DataRef]:
    """The files that the requests of ``workloads`` are taken from."""
    return [
        DataRef(
            source=Path(one.rows.source).name,
            sha256=one.rows.sha256,
            rows=one.rows.count,
            order=one.data.order if one.data else None,
        )
        for one in workloads
        if one.rows
    ]


def not_reached(level: Level) -> LevelResult:
    """The result of a level that never started: everything zero, null or empty."""
    nothing, none_due = Metric(ok=Dist(n=0)), Metric(ok=Dist(n=0), due=Due(n=0, failed=0))

    def lengths(asked: str) -> TokenLengths:
        return TokenLengths(requested=asked, asked=Lengths(n=0), observed=Lengths(n=0))

    return LevelResult(
        name=level.name,
        status="not_reached",
        load=level.load,
        batching=level.batching,
        model=level.model,
        batch_size=level.batch_size,
        repeat=level.repeat,
        workload=Workload(
            input_tokens=lengths(level.input_tokens),
            output_tokens=lengths(level.output_tokens),
            source="unknown",
            data=data_of(level.workloads),
        ),
        window=Window(warmup_s=level.warmup_s, measured_s=None, drain_s=None),
        counts=Counts(),
        rates=Rates(
            target_per_s=None if level.of_sessions or level.load.kind == "trace" else level.load.mean_rate_per_s()
        ),
        throughput=Throughput(),
        whole_run=Throughput(),
        concurrency=Concurrency(),
        latency=Latency(
            ttft_ms=none_due,
            ttfat_ms=none_due,
            e2e_ms=none_due,
            tpot_ms=none_due,
            itl_ms=nothing,
            lag_ms=nothing,
            own_lag_ms=nothing,
            connect_ms=nothing,
            service_ttft_ms=nothing,
            service_e2e_ms=nothing,
        ),
        client=Client(),
    )


def write(result: Result, folder: Path) -> Path:
    """Write ``folder/result.json`` whole or not at all, and return its path. The folder must exist.

    Raises:
        ResultError: a figure is not finite, or the file cannot be written.
    """
    path = folder / FILE_NAME
    # msgspec writes NaN and infinity as null, which would turn a wrong figure into "not measured".
    for where in _not_finite(msgspec.to_builtins(result), ""):
        raise ResultError(f"{path}: {where} is not a finite number, which is a bug in loadtest; nothing was written")
    text = msgspec.json.format(msgspec.json.encode(result), indent=2) + b"\n"
    try:
        whole.write(path, text)
    except OSError as error:
        raise ResultError(
            f"cannot write {path}: {error.strerror}; make room there or choose another folder with -o"
        ) from error
    return path


def load(folder: Path) -> Result:
    """Read the result in ``folder``. Keys it does not know are ignored.

    Raises:
        ResultError: there is none, it cannot be read, it is not a result, or a newer version wrote it.
    """
    path = folder / FILE_NAME
    try:
        text = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ResultError(f"{folder} is not a result folder: it holds no {FILE_NAME}") from error
    except OSError as error:
        raise ResultError(f"cannot read {path}: {error.strerror}") from error
    try:
        head = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ResultError(f"{path} is damaged: {error}; the journal beside it may still be whole") from error
    version = head.get("schema_version") if isinstance(head, dict) else None
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise ResultError(f"{path} was not written by loadtest: it has no schema_version")
    if version > SCHEMA_VERSION:
        raise ResultError(
            f"{path} has schema_version {version} and this loadtest reads up to {SCHEMA_VERSION}; "
            "use the version that wrote it, or a newer one"
        )
    try:
        return msgspec.convert(head, Result)
    except msgspec.ValidationError as error:
        raise ResultError(f"{path} is not a whole result: {error}") from error


def schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of ``result.json``; docs/result.schema.json is its dump."""
    (root,), definitions = msgspec.json.schema_components([Result], ref_template="#/$defs/{name}")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "result.json of loadtest",
        **root,
        "$defs": dict(sorted(definitions.items())),
    }


def _not_finite(value: object, where: str) -> Iterator[str]:
    """Paths of the numbers within ``value`` that JSON cannot say."""
    if isinstance(value, float):
        if not math.isfinite(value):
            yield where.removeprefix(".")
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from _not_finite(inner, f"{where}.{key}")
    elif isinstance(value, list | tuple):
        for index, inner in enumerate(value):
            yield from _not_finite(inner, f"{where}[{index}]")
