"""An exchange's bytes read as an answer, and its outcome decided (docs/metrics.md, "Outcome of a request")."""

import email.utils
import math
import time

from loadtest.endpoints.answer import Answer
from loadtest.endpoints.dialect import Dialect
from loadtest.endpoints.framing import Cutter, cutter
from loadtest.records import Outcome, RequestError
from loadtest.wire import intermediary
from loadtest.wire.exchange import Exchange
from loadtest.wire.response import MOST_BYTES, Response, ResponseError

_ABORTED = frozenset({"abort", "error"})
_BODY_KEPT = 64 * 1024  # of an error's body, where only its words are of interest
_STREAM_STARTS = (b"data", b"event", b"id", b"retry", b":")  # a stream's first line: a field of it, or a comment
_LONGEST_START = max(map(len, _STREAM_STARTS))


class Reading:
    """Reads one exchange, in parts if need be: ``part`` any number of times, then ``finish`` once."""

    def __init__(self, dialect: Dialect) -> None:
        self.answer = Answer()
        self.first_byte = 0
        self.bytes_in = 0
        self.reads = 0
        self.streamed = False
        self.misfit = False  # what the user told the dialect of this API is not so
        self.outcome: Outcome = "ok"
        self.error: RequestError | None = None
        self._dialect = dialect
        self._response = Response()
        self._stream: Cutter | None = None
        self._opening = b""  # the first bytes, as long as they do not tell what the body is
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._fault: ResponseError | None = None
        self._last = 0

    @property
    def status(self) -> int:
        """The HTTP status; 0 until there is one."""
        return self._response.status

    @property
    def content_type(self) -> str:
        """The Content-Type, in lower case; "" where there is none."""
        return self._response.headers.get("content-type", "").lower()

    @property
    def body(self) -> bytes | None:
        """The body of an answer that came in one piece; None of a stream."""
        return None if self._stream is not None else b"".join(self._body)

    def part(self, exchange: Exchange) -> None:
        """Work off what the exchange has read so far."""
        reads = exchange.reads
        if not reads or self._fault is not None:
            exchange.reads = []
            return
        self.first_byte = self.first_byte or reads[0]  # type: ignore[assignment]  # reads alternates stamps and bytes
        self.bytes_in += sum(map(len, reads[1::2]))  # type: ignore[arg-type]
        self.reads += len(reads) // 2
        answer, event = self.answer, self._dialect.event
        try:
            for stamp, piece in self._response.feed(exchange):
                self._last = stamp
                if self._stream is None and not self._body and not (piece := self._choose(self._opening + piece)):
                    continue
                if self._stream is not None:
                    self._within(self.bytes_in)
                    for data in self._stream.feed(piece):
                        event(answer, data, stamp)
                else:
                    self._keep(piece)
        except ResponseError as error:
            self._fault = error

    def finish(self, exchange: Exchange) -> None:
        """Work off the rest and decide the outcome."""
        self.part(exchange)
        if self._opening:
            self._keep(self._opening)
        response, answer = self._response, self.answer
        whole = response.whole or (exchange.failure is None and response.head_seen and response.close_delimited)
        if self._stream is not None and whole:
            for data in self._stream.finish():
                self._dialect.event(answer, data, self._last)
            answer.ended = answer.ended or (self._dialect.ends_cleanly and answer.error is None)
        self.outcome, self.error = self._judge(exchange, whole)

    def _choose(self, first: bytes) -> bytes:
        """A stream, or one piece? Its first bytes say so, whatever its type; only where they do not, the type does.

        Returns the bytes to go on with: none, as long as there are too few to tell.
        """
        self._opening = b""
        if not self._dialect.good(self._response.status):
            return first
        if (framing := self._dialect.framing) != "sse":
            if self._dialect.streams and not first.lstrip().startswith(b"<"):
                self._stream, self.streamed = cutter(framing), True
            return first
        start = first.lstrip(b"\xef\xbb\xbf\r\n ")
        if len(start) < _LONGEST_START and any(known.startswith(start) for known in _STREAM_STARTS):
            self._opening = first
            return b""
        said_to_be = "text/event-stream" in self.content_type
        if start.startswith(_STREAM_STARTS) or (said_to_be and not start.startswith((b"{", b"[", b"<"))):
            self._stream, self.streamed = cutter("sse"), True
        return first

    def _keep(self, piece: bytes) -> None:
        if self._dialect.good(self._response.status) or self._body_bytes < _BODY_KEPT:
            self._body.append(piece)
            self._body_bytes += len(piece)
        self._within(self._body_bytes)

    def _within(self, count: int) -> None:
        if count > MOST_BYTES:  # without an end it would fill the memory until the timeout
            self._body.clear()
            raise ResponseError(f"the answer goes on beyond {MOST_BYTES >> 20} MiB; it was not read further")

    def _judge(self, exchange: Exchange, whole: bool) -> tuple[Outcome, RequestError | None]:
        response, answer, failure = self._response, self.answer, exchange.failure
        status = response.status
        good_status = self._dialect.good(status)
        body = b"".join(self._body)
        in_one = self._stream is None and (body or self._dialect.bodiless)
        if good_status and in_one and whole and answer.error is None:
            try:
                self._dialect.whole(answer, body)
            except ValueError as error:
                page = intermediary.spoke(status, response.headers, body)
                words = str(error) if page is None else f"{status} with {page}"
                return "stream_error", RequestError("not_a_stream", words, status)
        if answer.error is not None:
            kind = "sse_error" if self._stream is not None else "json_error"
            return "stream_error", RequestError(kind, answer.error, status)
        if failure is not None and not answer.ended:
            return _failed(failure.kind), RequestError(failure.kind, failure.message, status or None)
        if self._fault is not None:
            return "stream_error", RequestError("not_a_stream", str(self._fault), status or None)
        if not response.head_seen:
            return "transport_error", RequestError(
                "truncated",
                f"the connection closed inside the head of the response, after {self.bytes_in} bytes",
            )
        if 300 <= status < 400 and not good_status:
            target = response.headers.get("location", "(no Location header)")
            if intermediary.signing_in(target):
                mend = "to sign in there: the endpoint was not reached; give a key that it takes"
            else:
                mend = "redirects are not followed, give that URL"
            return "http_error", RequestError("redirect", f"{status} redirects to {target}; {mend}", status)
        if not good_status:
            return "http_error", self._http_error(body)
        if not whole and not answer.ended:
            return "transport_error", RequestError(
                "truncated",
                f"the connection closed before the body ended, after {self.bytes_in} bytes",
                status,
            )
        if self._stream is None and not in_one:
            return "stream_error", RequestError("empty_body", f"{status} with an empty body", status)
        if answer.finish_reason in _ABORTED:
            return "stream_error", RequestError(
                "server_abort",
                f"the server ended the answer with finish_reason {answer.finish_reason!r}",
                status,
            )
        sign = self._dialect.sign
        cut = not answer.ended and (bool(sign) or answer.finish_reason is None)
        blank = not (answer.texts or answer.usage or answer.finish_reason)  # then it is not the end that is missing
        if (not cut or blank) and (amiss := self._dialect.found_nothing(answer)) is not None:
            self.misfit = True
            return "stream_error", RequestError("not_a_stream", amiss, status)
        if cut:
            words = f"the stream ended without {sign or 'finish_reason or [DONE]'}: the answer may be cut short"
            return "stream_error", RequestError("no_terminal", words, status)
        return "ok", None

    def _http_error(self, body: bytes) -> RequestError:
        response = self._response
        words = self._dialect.error_text(body)
        if words is None:
            words = " ".join(body.decode("utf-8", "replace").split())[:300]
            if (found := intermediary.spoke(response.status, response.headers, body)) is not None:
                # The words of a page are in its title; the rest of it is for a browser.
                words = found if words.startswith("<") or not words else f"{words} ({found})"
        message = f"{response.status} {response.reason}".strip() + (f": {words}" if words else "")
        return RequestError("http_status", message, response.status, _retry_after(response.headers.get("retry-after")))


def _failed(kind: str) -> Outcome:
    if kind == "timeout":
        return "timed_out"
    if kind in ("dropped", "never_sent", "late"):
        return "never_sent"
    if kind == "not_a_stream":
        return "stream_error"
    return "cancelled" if kind == "cancelled" else "transport_error"


def _retry_after(value: str | None) -> float | None:
    """Seconds, from either form of the Retry-After header; None if it is absent or neither."""
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(value).timestamp() - time.time()
        except (ValueError, OverflowError):
            return None
    return max(0.0, seconds) if math.isfinite(seconds) else None
