"""A scenario, complete: every value is there, whoever gave it."""

from typing import Literal, NamedTuple

import msgspec

from loadtest.endpoints.pattern import Pattern
from loadtest.level import Scheduler
from loadtest.schedule import Arrival, Stage
from loadtest.workload.lengths import Length
from loadtest.workload.model import Check, Probe, Trace, Workload

Combine = Literal["product", "zip"]
WhenFull = Literal["queue", "drop"]
Provider = Literal["auto", "cpu", "cuda"]
Dtype = Literal["auto", "fp32", "fp16", "int8"]


class Block(msgspec.Struct, frozen=True):
    """A set of levels: its axes combined. No axis is empty.

    Exactly one of ``concurrency`` (closed loop: requests in flight), ``rate_per_s`` (open loop: requests a second,
    of the whole run), ``stages`` (open loop: one level whose rate changes) and ``trace`` (open loop: one level of
    recorded arrivals) is given. Lengths of None are those of the scenario's workloads, of their data or of the trace.
    ``model`` of None is the target's own, ``batch_size`` of None one sample a request. ``scheduler``
    and ``max_batch_size`` are settings of the bundled server and mean nothing for another target.
    """

    concurrency: list[int] | None
    rate_per_s: list[float] | None
    input_tokens: list[Length] | None
    output_tokens: list[Length] | None
    scheduler: list[Scheduler]
    max_batch_size: list[int]
    stages: tuple[Stage, ...] | None = None
    trace: Trace | None = None
    model: list[str] | None = None
    batch_size: list[int] | None = None


class ServerSettings(msgspec.Struct, frozen=True):
    """How the bundled server is started; unused when the target is a URL.

    ``threads``, ``kv_slots`` and ``max_seq_len`` of None leave the choice to the server.
    """

    model: str = "demo"
    provider: Provider = "auto"
    dtype: Dtype = "auto"
    threads: int | None = None
    batch_timeout_ms: float = 50.0
    kv_slots: int | None = None
    max_seq_len: int | None = None


class AuditSettings(msgspec.Struct, frozen=True):
    """What is looked into before the first level, by so many ``pairs`` of the same request; see ``loadtest.audit``."""

    deterministic: bool
    cache: bool | Literal["declared"]
    pairs: int


class Scenario(msgspec.Struct, frozen=True):
    """What is asked of the target, and for how long.

    At least one of ``duration_s`` and ``requests`` is given; both: whichever ends first. Stages have a duration of
    their own instead of ``duration_s``. ``warmup_s``, ``grace_s`` and ``seed`` of None are derived by the plan.
    ``name`` is fit for a folder's name. ``arrival`` is that of the blocks with a rate or stages, ``burstiness`` the
    shape of its gaps where it is gamma. ``max_in_flight`` is the whole run's cap on the requests of an open loop; of
    None there is none. ``abort_on`` is the text of a rule that ``abort.parse`` reads.

    ``workloads`` are one, or the parts of a mix; the lengths of one that is alone are those of the blocks. The axes of
    a block are combined as ``combine`` says, and all levels played ``repeat`` times with a pause of ``cooldown_s``
    before each but the first. ``tokenizer`` is a local path; of None, tokens are counted as the target does. Paths are
    absolute. A ``locked`` scenario is played as it is, or its result says why it cannot be compared. ``slo`` are the
    texts of expressions that ``slo.parse`` reads, ``warn`` of those that ``alert.parse`` does. ``pattern``
    is what the endpoint http sends and takes. ``checks`` have to hold of every workload's answers, besides its own.
    ``audit`` of None: nothing is looked into.
    """

    name: str
    question: str
    endpoint: str
    stream: bool
    tokenizer: str | None
    seed: int | None
    locked: bool
    workloads: tuple[Workload, ...]
    levels: list[Block]
    combine: Combine
    repeat: int
    cooldown_s: float
    duration_s: float | None
    requests: int | None
    warmup_s: float | None
    grace_s: float | None
    arrival: Arrival
    burstiness: float
    max_in_flight: int | None
    when_full: WhenFull
    max_rate_per_s: float | None
    abort_on: str | None
    timeout_s: float
    connect_timeout_s: float
    stall_timeout_s: float
    server: ServerSettings
    probe: Probe | None = None
    slo: tuple[str, ...] = ()
    warn: tuple[str, ...] = ()
    pattern: Pattern = Pattern()
    checks: tuple[Check, ...] = ()
    audit: AuditSettings | None = None

    @property
    def model(self) -> str | None:
        """The first model asked for; None takes the one that the target lists."""
        return next((model for block in self.levels for model in block.model or ()), None)


class Override(msgspec.Struct, frozen=True):
    """A value that outranks the scenario file: the text as it was typed, and where (``--concurrency``)."""

    value: str
    origin: str


class Resolved(msgspec.Struct, frozen=True):
    """A scenario and where each of its values came from.

    ``sources`` maps the dotted key of the file format (``load.concurrency``, ``levels.0.scheduler``) to
    ``default``, ``file.yaml:12`` or the flag or variable. ``text`` is the complete scenario as YAML: it loads
    back to an equal ``scenario``. ``sha256`` is a digest of what is asked, whoever asked it: not of the name, the
    question, the seed, the folders of files, what the figures are held against (``slo``, ``warn``), or the ``audit``.
    ``not_comparable`` are reasons why a result of it is like no other's: it was scaled, or it is locked and was
    changed.
    """

    scenario: Scenario
    sources: dict[str, str]
    text: str
    sha256: str
    not_comparable: list[str] = []


class Preset(NamedTuple):
    """A scenario that comes with the tool."""

    name: str
    question: str
    path: str
