"""One record a request, and the journal they are kept in.

The journal (``records.jsonl``) is JSON Lines: every finished request is one line, appended by the worker that
played it with a single unbuffered write, so that a crash loses nothing that was acknowledged. It is the only place
where requests are kept: figures, reports and interrupted runs are all computed from it.
"""

from typing import Literal

import msgspec

Outcome = Literal["ok", "http_error", "stream_error", "transport_error", "timed_out", "cancelled", "never_sent"]
OUTCOMES: tuple[Outcome, ...] = (
    "ok", "http_error", "stream_error", "transport_error", "timed_out", "cancelled", "never_sent",
)  # fmt: skip
TokenSource = Literal["usage", "tokenizer"]


class RequestError(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why a request failed. ``kind`` is finer than the outcome (docs/metrics.md); ``message`` is never empty."""

    kind: str
    message: str
    status: int | None = None
    retry_after_s: float | None = None


class Record(msgspec.Struct, frozen=True, omit_defaults=True):
    """One request. Times are milliseconds from the level's t0 on one monotonic clock; None is "not measured".

    A failed request keeps the times and tokens it got as far as it got; summaries leave them out of every
    latency and throughput figure. ``wait_ms`` is the part of ``sent − intended`` spent behind an in-flight cap or
    opening a connection (``connect_ms``); the rest is the generator's own lateness.
    """

    id: int
    level: int
    worker: int
    intended_ms: float
    outcome: Outcome
    in_window: bool
    asked_input_tokens: int
    asked_output_tokens: int
    sent_ms: float | None = None
    wait_ms: float = 0.0
    connected_ms: float | None = None
    connect_ms: float | None = None
    first_byte_ms: float | None = None
    first_token_ms: float | None = None
    first_answer_ms: float | None = None
    last_token_ms: float | None = None
    done_ms: float | None = None
    error: RequestError | None = None
    streamed: bool = True
    input_tokens: int | None = None
    cached_input_tokens: int | None = None
    output_tokens: int | None = None
    token_source: TokenSource | None = None
    events: int = 0
    finish_reason: str | None = None
    itl_ms: list[float] | None = None
    bytes_in: int = 0
    bad_events: int = 0
    resent: bool = False
