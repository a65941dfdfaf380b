"""What an exchange brought, read and kept: the backlog of ended exchanges, each made into a record of the journal."""

import itertools
from collections import Counter, deque

from loadtest.endpoints.checks import Answered, Checks
from loadtest.endpoints.dialect import Dialect
from loadtest.endpoints.reading import Reading
from loadtest.engine.journal import Journal
from loadtest.engine.maker import Made
from loadtest.engine.orders import Prepare
from loadtest.histogram import bucket
from loadtest.records import Record, RequestError, TokenSource, lasting
from loadtest.redact import Redactor
from loadtest.wire.exchange import Exchange
from loadtest.workload import tokenizer

_GAPS_KEPT = 4096  # per-token gaps kept in a record
_REFUSALS = 10  # this many refusals and nothing else: the target is unusable as it was called


class Recorder:
    """Reads exchanges when asked to, not when they end, and counts what it has read."""

    def __init__(self, order: Prepare, dialect: Dialect) -> None:
        self.t0_ns = 0
        self.ok = self.failed = self.output_tokens = 0
        # Of buckets, for the snapshots.
        self.ttft: Counter[int] = Counter()
        self.e2e: Counter[int] = Counter()
        self.send_lag: Counter[int] = Counter()
        self.reads = self.coalesced_reads = 0
        self.unusable: str | None = None  # why every further request would fail too, in the target's words
        self._refusals: int | None = 0  # as long as there was nothing else
        self._level = order.level
        self._worker = order.worker
        self._dialect = dialect
        self._checks = [Checks(workload.checks) if workload.checks else None for workload in order.level.workloads]
        # Loaded before the clock: at the first answer that needs it, it would hold up the others for a second.
        path = order.wiring.tokens.path
        self._tokenizer = None if path is None or not dialect.generates else tokenizer.load(path)
        self._redact = Redactor(order.wiring.secrets)
        self._journal = Journal(order.wiring.journal)
        self._backlog: deque[Exchange] = deque()

    def __len__(self) -> int:
        """How many exchanges wait to be read."""
        return len(self._backlog)

    def add(self, exchange: Exchange) -> None:
        """An exchange has something to be read; it may do so several times before it ends."""
        if not exchange.queued:
            exchange.queued = True
            self._backlog.append(exchange)

    def read_next(self) -> Exchange | None:
        """Read the one that waits longest; when it has ended it is recorded, and returned.

        Raises:
            ResultError: the journal cannot be written.
        """
        exchange = self._backlog.popleft()
        exchange.queued = False
        return exchange if self._read(exchange) else None

    def read_now(self, exchange: Exchange) -> None:
        """Read and record one that has ended before those that wait.

        Raises:
            ResultError: the journal cannot be written.
        """
        if exchange.queued:  # with an earlier part of a long answer
            self._backlog.remove(exchange)
        self._read(exchange)

    def _read(self, exchange: Exchange) -> bool:
        """Read what there is; tells whether that was all of it."""
        reading = exchange.decoder
        if not isinstance(reading, Reading):
            exchange.decoder = reading = Reading(self._dialect)
        if not exchange.done:
            reading.part(exchange)
            return False
        reading.finish(exchange)
        made = exchange.tag
        assert isinstance(made, Made)
        output_tokens, source = self._output_tokens(reading)
        if reading.outcome == "ok" and (wrong := self._wrong(made, reading, output_tokens)) is not None:
            reading.outcome = "stream_error"
            reading.error = RequestError("check_failed", wrong, reading.status)
        record = self._record(exchange, made, reading, output_tokens, source)
        self._journal.write(record)
        self.reads += reading.reads
        stamps = reading.answer.stamps
        if len(set(stamps)) < len(stamps):
            self.coalesced_reads += sum(count > 1 for count in Counter(stamps).values())
        if record.probe:
            return True  # no part of the load: neither its counts nor its end are the level's
        if record.sent_ms is not None:
            self.send_lag[bucket(record.sent_ms - record.intended_ms - record.wait_ms)] += 1
        if record.outcome == "ok":
            self.ok += 1
            self._count_times(record)
            self._refusals = None  # it has worked once: from now on failures are findings
            self.output_tokens += record.output_tokens or 0
        else:
            self.failed += 1
            self._refused(record.error, misfit=reading.misfit)
        return True

    def _count_times(self, record: Record) -> None:
        last = record.last_token_ms if record.streamed else record.done_ms
        if record.streamed and record.first_token_ms is not None:
            self.ttft[bucket(record.first_token_ms - record.intended_ms)] += 1
        if last is not None:
            self.e2e[bucket(last - record.intended_ms)] += 1

    def learn(self, secret: str) -> None:
        """A secret that no record may hold."""
        self._redact.learn([secret])

    def turn(self) -> None:
        """Go on with the journal in a new file.

        Raises:
            ResultError: it cannot be made.
        """
        self._journal.turn()

    def close(self) -> None:
        """Close the journal."""
        self._journal.close()

    def ms(self, stamp: int) -> float:
        """A stamp in milliseconds from t0, to 0.0001."""
        return (stamp - self.t0_ns + 50) // 100 / 1e4  # as round(…, 4) does, at a fifth of the cost

    def _ms_or_none(self, stamp: int) -> float | None:
        return self.ms(stamp) if stamp else None

    def _refused(self, error: RequestError | None, *, misfit: bool) -> None:
        """Give up when the target has refused the first requests for a reason that the next would meet too.

        One answer is enough where it shows that the user's word of this API is a ``misfit``.
        """
        if self._refusals is None or error is None or not lasting(error):
            self._refusals = None
            return
        self._refusals += 1
        if self._refusals == _REFUSALS or misfit:
            self.unusable = error.message

    def _output_tokens(self, reading: Reading) -> tuple[int | None, TokenSource | None]:
        """How many an answer has, and who says so: the server, or the tokenizer that the user gave."""
        answer = reading.answer
        counted = answer.usage.output_tokens if answer.usage else None
        if counted is not None and (counted or not answer.texts):  # a count of nothing beside real text is no count
            return counted, "usage"
        if self._tokenizer is None or reading.outcome != "ok":
            return None, None
        return tokenizer.size(self._tokenizer, "".join(answer.texts)), "tokenizer"

    def _wrong(self, made: Made, reading: Reading, output_tokens: int | None) -> str | None:
        """What is not as it should be in an answer that is good otherwise."""
        answered = reading.answer.samples
        if answered is not None and 1 < (made.samples or 1) != answered:
            return f"the answer is of {answered} samples, not {made.samples}"
        checks = None if made.probe else self._checks[made.workload]
        return None if checks is None else checks.failed(Answered(reading, output_tokens, self._asked(made)))

    def _asked(self, made: Made) -> int | None:
        """The tokens of an answer that a request asked for."""
        return made.output_tokens if self._dialect.limits and self._dialect.generates else None

    def _record(
        self, exchange: Exchange, made: Made, reading: Reading, output_tokens: int | None, source: TokenSource | None
    ) -> Record:  # fmt: skip
        answer, usage = reading.answer, reading.answer.usage
        stamps = answer.stamps
        outcome, error = reading.outcome, reading.error
        if outcome == "cancelled" and not exchange.sent:
            outcome = "never_sent"
        input_tokens = usage.input_tokens if usage else None
        if input_tokens is None and self._tokenizer is not None and outcome == "ok":
            input_tokens = made.input_tokens  # as the tokenizer counted the prompt that was made
        if error is not None:
            error = RequestError(error.kind, self._redact(error.message), error.status, error.retry_after_s)
        intended = (exchange.intended - self.t0_ns) / 1e6
        return Record(
            id=made.id,
            level=self._level.index,
            worker=self._worker,
            intended_ms=round(intended, 4),
            outcome=outcome,
            in_window=intended >= self._level.warmup_s * 1e3,
            asked_input_tokens=made.input_tokens,
            asked_output_tokens=self._asked(made),
            sent_ms=self._ms_or_none(exchange.sent),
            wait_ms=round(exchange.wait_ns / 1e6, 4),
            connected_ms=self._ms_or_none(exchange.connected),
            connect_ms=round(exchange.connect_ns / 1e6, 4) if exchange.connect_ns else None,
            first_byte_ms=self._ms_or_none(reading.first_byte),
            first_token_ms=self._ms_or_none(stamps[0] if stamps else 0),
            first_answer_ms=self._ms_or_none(answer.first_answer if stamps else 0),
            last_token_ms=self._ms_or_none(stamps[-1] if stamps else 0),
            done_ms=self.ms(exchange.done),
            error=error,
            streamed=reading.streamed,
            input_tokens=input_tokens,
            cached_input_tokens=usage.cached_input_tokens if usage else None,
            output_tokens=output_tokens,
            token_source=source,
            events=len(stamps),
            finish_reason=answer.finish_reason and self._redact(answer.finish_reason),
            itl_ms=[(b - a + 50) // 100 / 1e4 for a, b in itertools.pairwise(stamps[: _GAPS_KEPT + 1])] or None,
            bytes_in=reading.bytes_in,
            bad_events=answer.bad_events,
            resent=exchange.resent,
            workload=made.workload,
            session=made.session,
            turn=made.turn,
            prompt_hash=made.prompt_hash,
            probe=made.probe,
            model=made.model,
            ends=made.ends,
            samples=made.samples,
            text=self._redact("".join(answer.texts)) if self._level.paired else None,
        )
