"""What the run says to a worker and what the worker answers: frozen values, sent through a pipe."""

import msgspec

from loadtest.endpoints.dialect import Settings
from loadtest.level import Level, WorkerHealth
from loadtest.wire.exchange import TransportName
from loadtest.wire.proxy import Proxy
from loadtest.wire.tls import Tls
from loadtest.workload.tokens import Tokens


class Wiring(msgspec.Struct, frozen=True):
    """What stays the same for a whole run: where requests go, how they look, where records go.

    With a ``proxy``, ``address`` is the proxy's. ``bearer`` is the token among the ``headers`` that may be renewed.
    """

    url: str
    address: str
    speech: Settings
    tokens: Tokens
    headers: tuple[tuple[str, str], ...]
    secrets: tuple[str, ...]
    timeout_s: float
    connect_timeout_s: float
    stall_timeout_s: float
    journal: str
    seed: int
    max_in_flight: int | None = None  # of the whole run, as is the next
    max_rate_per_s: float | None = None
    drop_when_full: bool = False
    transport: TransportName = "fast"
    trace: str | None = None  # the run's id, if requests are to say which trace they belong to
    tls: Tls = Tls()
    proxy: Proxy | None = None
    bearer: str | None = None

    def __repr__(self) -> str:
        return "Wiring(…)"  # what a cluster logs of a task that failed holds no key


class Prepare(msgspec.Struct, frozen=True):
    """Make one level's slice ready: connections open, bodies made. Answered by Ready or Failed."""

    wiring: Wiring
    level: Level
    worker: int
    workers: int


class Start(msgspec.Struct, frozen=True):
    """Play the prepared slice from ``t0_ns`` (perf_counter_ns) on. Answered by Snapshots, then Done or Failed."""

    t0_ns: int


class Stop(msgspec.Struct, frozen=True):
    """Send nothing more; what is in flight may take ``grace_s`` more (never more than the level's own grace)."""

    grace_s: float


class Renew(msgspec.Struct, frozen=True):
    """Send what is sent from now on with this token in place of the wiring's ``bearer``."""

    bearer: str

    def __repr__(self) -> str:
        return "Renew(…)"


class Turn(msgspec.Struct, frozen=True):
    """Go on with the journal in a new file; the one so far has got another name. ``count`` turns make it, in all."""

    count: int


class Ready(msgspec.Struct, frozen=True):
    """The slice is prepared."""


class Snapshot(msgspec.Struct, frozen=True):
    """Counts since t0, for the eyes of the user only: the figures come from the journal.

    The times are counts of the buckets of ``histogram``. All are totals, so that one that goes missing is no loss.
    ``turned`` is the count of the last ``Turn`` that was obeyed, ``silent_s`` for how long the target has sent nothing
    at all though it owes an answer.
    """

    sending: bool
    in_flight: int
    ok: int
    failed: int
    output_tokens: int
    ttft: dict[int, int]
    e2e: dict[int, int]
    send_lag: dict[int, int]
    loop_lag: dict[int, int]
    turned: int = 0
    silent_s: float = 0.0


class Done(msgspec.Struct, frozen=True):
    """The slice has been played and every record of it is in the journal."""

    health: WorkerHealth
    scheduled: int
    sending_ended_ms: float
    ended_ms: float
    unusable: str | None  # set when the target refused everything: the server's own words


class Failed(msgspec.Struct, frozen=True):
    """The worker cannot go on. ``kind`` names a class of loadtest.errors."""

    kind: str
    message: str
