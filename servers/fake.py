"""A server of known latencies: it answers when it was told to, and keeps an account of when it really did.

    python -m servers.fake --port 0 --ttft-ms 50 --itl-ms 20

For tests, and for ``loadtest calibrate``: what a client measures less what this server did is the client's own error.
There is no model; the words are made ready beforehand, and a token is a chunk that is written when it is due.

Plain sockets and one selector, rather than an event loop's transports: those put a write off to the end of the
loop's turn and their timers count whole milliseconds, so that neither the write nor its reading would be when it says.
"""

import gc
import heapq
import itertools
import json
import math
import os
import random
import select
import selectors
import signal
import socket
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from time import perf_counter_ns
from typing import Any, Literal, NoReturn
from urllib.parse import parse_qs

import click

from servers import canned, process
from servers.account import Account
from servers.canned import Asked, Kind, Refusal
from servers.errors import StartError
from servers.number import Number

HOST = "127.0.0.1"
Jitter = Literal["none", "exp", "lognormal"]

_METHODS = {
    **dict.fromkeys(canned.KINDS, b"POST"), b"/v1/models": b"GET", b"/health": b"GET", b"/truth": b"GET",
    b"/reset": b"POST",
}  # fmt: skip
_SIGMA = 0.5  # of the lognormal's logarithm
_TICK_S = 100e-6  # what is due within one is written together: a thousand streams then wake it 10,000 times a second
_WRITES_A_ROUND = 64  # about half a millisecond, after which requests are read
_EVENTS_A_WRITE = 256  # of a stream that is behind its time, so that one with no gaps keeps no other waiting


@dataclass(frozen=True)
class Settings:
    """What the server was told. Times in ms.

    The first token is due ``ttft_ms`` after the request has been read, each other ``itl_ms`` after the one before was
    due; both are multiplied by a draw of mean 1 for each token where there is jitter (lognormal: sigma 0.5). An answer
    that is not streamed is due when its last token would be.

    ``capacity_per_s``: requests first pass a single queue, each being served for ``1 / capacity_per_s``; TTFT counts
    from the end of that. Poisson arrivals make it an M/D/1 queue: mean wait ``ρ / (2·capacity·(1 − ρ))``.
    """

    ttft_ms: float = 50.0
    itl_ms: float = 20.0
    tokens: int = 64
    jitter: Jitter = "none"
    seed: int = 0
    error_every: int | None = None
    capacity_per_s: float | None = None


# The server -------------------------------------------------------------------------------------------------------


class _Answer:
    """A request being answered. ``due`` is when its next write is, ``last`` when its last one was; in ns.

    All of it goes into the ``account`` that was open when the request came.
    """

    __slots__ = ("account", "arrived", "asked", "connection", "due", "events", "id", "last", "written")

    def __init__(
        self, connection: "_Connection", account: Account, asked: Asked, id_: bytes, arrived: int, due: int
    ) -> None:
        self.connection = connection
        self.account = account
        self.asked = asked
        self.id = id_
        self.arrived = arrived
        self.due = due
        self.last = 0
        self.written = 0  # tokens
        self.events = canned.events(asked.kind, id_) if asked.stream else []


class _Connection:
    """One client. ``outbox`` is what its socket would not take yet."""

    __slots__ = ("answer", "closing", "inbox", "open", "outbox", "sock")

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.inbox = bytearray()
        self.outbox = b""
        self.answer: _Answer | None = None
        self.closing = False  # after what is being written
        self.open = True


class Fake:
    """The server on a listening socket, in one thread, until its process ends."""

    def __init__(self, settings: Settings, listener: socket.socket) -> None:
        self._settings = settings
        self._listener = listener
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)
        self._account = Account()
        self._count_after_ns: int | None = None
        self._count_from_ns: int | None = None
        self._due: list[tuple[int, int, _Answer]] = []
        self._serial = itertools.count()
        self._requests = 0
        self._queue_free_ns = 0
        self._connections = 0
        self._ttft_ns = round(settings.ttft_ms * 1e6)
        self._itl_ns = round(settings.itl_ms * 1e6)
        self._service_ns = round(1e9 / settings.capacity_per_s) if settings.capacity_per_s else 0
        self._draw = _draws(settings)

    def serve(self) -> NoReturn:
        """Answer for ever.

        Raises:
            StartError: the process may open no further connection.
        """
        fired = False
        while True:
            ready = self._wait(fired)
            woken = perf_counter_ns()
            for key, events in ready:
                connection = key.data
                if connection is None:
                    self._accept()
                    continue
                if events & selectors.EVENT_WRITE:
                    self._flush(connection)
                if events & selectors.EVENT_READ and connection.open:
                    self._read(connection)
            fired = self._fire()
            self._account.round.add(perf_counter_ns() - woken)

    def _wait(self, fired: bool) -> list[tuple[selectors.SelectorKey, int]]:
        """Until a socket is ready or a write is due; after a write at least a tick, so that near ones go together."""
        timeout_s = None
        if self._due:
            timeout_s = max(_TICK_S if fired else 0.0, (self._due[0][0] - perf_counter_ns()) / 1e9)
        if sys.platform == "linux":
            # epoll counts whole milliseconds. select does not, and takes epoll's own descriptor for one.
            select.select([self._selector.fileno()], [], [], timeout_s)
            timeout_s = 0.0
        return self._selector.select(timeout_s)

    # -- connections

    def _accept(self) -> None:
        for _ in range(_WRITES_A_ROUND):
            try:
                sock, _address = self._listener.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:
                raise StartError(
                    f"no further connection can be opened beside {self._connections:,}: {error.strerror}; "
                    "raise the limit of open files (ulimit -n)"
                ) from None
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._connections += 1
            self._selector.register(sock, selectors.EVENT_READ, _Connection(sock))

    def _close(self, connection: _Connection) -> None:
        if connection.answer is not None:
            connection.answer.account.aborted += 1
        connection.answer = None
        connection.open = False
        self._connections -= 1
        self._selector.unregister(connection.sock)
        connection.sock.close()

    def _read(self, connection: _Connection) -> None:
        try:
            data = connection.sock.recv(canned.HEAD_LIMIT)
        except BlockingIOError:
            return
        except OSError:
            data = b""  # reset: gone, like one that said goodbye
        if not data or len(connection.inbox) > canned.HEAD_LIMIT + canned.BODY_LIMIT:
            self._close(connection)
            return
        connection.inbox += data
        self._take(connection)

    def _send(self, connection: _Connection, data: bytes) -> None:
        try:
            sent = connection.sock.send(data)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._close(connection)
            return
        if sent < len(data):
            connection.outbox = data[sent:]
            self._selector.modify(connection.sock, selectors.EVENT_READ | selectors.EVENT_WRITE, connection)
        elif connection.closing and connection.answer is None:
            self._close(connection)

    def _flush(self, connection: _Connection) -> None:
        data, connection.outbox = connection.outbox, b""
        self._selector.modify(connection.sock, selectors.EVENT_READ, connection)
        self._send(connection, data)
        if connection.open and not connection.outbox:
            if connection.answer is not None:
                self._schedule(connection.answer)
            else:
                self._take(connection)

    # -- requests

    def _take(self, connection: _Connection) -> None:
        """Answer the requests that have come in whole, one after the other."""
        while connection.open and connection.answer is None and not connection.closing and not connection.outbox:
            arrived = perf_counter_ns()
            try:
                request = canned.request(connection.inbox)
            except Refusal as refusal:
                connection.closing = True  # where the next request would begin is not known
                self._refuse(connection, refusal)
                return
            if request is None:
                return
            method, target, body, close = request
            connection.closing = close
            try:
                self._route(connection, method, target, body, arrived)
            except Refusal as refusal:
                self._refuse(connection, refusal)

    def _refuse(self, connection: _Connection, refusal: Refusal) -> None:
        self._account.refused += 1
        body = canned.error_body(str(refusal), "invalid_request_error")
        self._send(connection, canned.reply(refusal.status, body, close=connection.closing))

    def _route(self, connection: _Connection, method: bytes, target: bytes, body: bytes, arrived: int) -> None:
        path, _, query = target.partition(b"?")
        allowed = _METHODS.get(path)
        if allowed is None:
            raise Refusal(404, f"there is nothing at {path.decode('latin-1')}")
        if method != allowed:
            raise Refusal(405, f"{path.decode()} takes {allowed.decode()}, not {method.decode('latin-1')}")
        if (kind := canned.KINDS.get(path)) is not None:
            self._begin(connection, kind, body, arrived)
            return
        if path == b"/truth":
            answer = {"settings": asdict(self._settings), "connections": self._connections, **self._account.truth()}
        elif path == b"/reset":
            answer = self._reset(query.decode("latin-1"))
        elif path == b"/health":
            answer = {"status": "ok"}
        else:
            card = {"id": canned.MODEL, "object": "model", "created": canned.CREATED, "owned_by": "loadtest"}
            answer = {"object": "list", "data": [card]}
        self._send(connection, canned.reply(200, json.dumps(answer).encode(), close=connection.closing))

    def _reset(self, query: str) -> dict[str, Any]:
        """Begin a new account: of the requests from now on, or from ``after_ms`` after the next (past a warm-up)."""
        given = parse_qs(query, keep_blank_values=True)
        after = given.pop("after_ms", ["0"])[-1]
        try:
            after_ms = float(after)
        except ValueError:
            after_ms = math.nan
        if given or not 0 <= after_ms < math.inf:
            raise Refusal(400, "/reset takes after_ms, a number of ms, and nothing else")
        self._account = Account()
        self._count_after_ns = round(after_ms * 1e6) or None
        self._count_from_ns = None
        return {"after_ms": after_ms}

    def _begin(self, connection: _Connection, kind: Kind, body: bytes, arrived: int) -> None:
        asked = canned.asked(kind, body, self._settings.tokens)
        if self._count_after_ns is not None:
            self._count_from_ns, self._count_after_ns = arrived + self._count_after_ns, None
        elif self._count_from_ns is not None and arrived >= self._count_from_ns:
            self._account, self._count_from_ns = Account(), None
        account = self._account
        account.requests += 1
        account.first_request_ns = account.first_request_ns or arrived
        self._requests += 1
        if self._settings.error_every and self._requests % self._settings.error_every == 0:
            account.injected_errors += 1
            words = f"one request in {self._settings.error_every} fails, as asked"
            error = canned.error_body(words, "server_error", 503)
            self._send(connection, canned.reply(503, error, close=connection.closing))
            return
        begun = arrived
        if self._service_ns:
            begun = self._queue_free_ns = max(arrived, self._queue_free_ns) + self._service_ns
        due = begun + self._span(self._ttft_ns)
        if not asked.stream:
            due += sum(self._span(self._itl_ns) for _ in range(asked.tokens - 1))
        answer = connection.answer = _Answer(connection, account, asked, b"%012x" % self._requests, arrived, due)
        self._schedule(answer)

    def _span(self, ns: int) -> int:
        return round(ns * self._draw()) if self._draw else ns

    # -- answers

    def _schedule(self, answer: _Answer) -> None:
        heapq.heappush(self._due, (answer.due, next(self._serial), answer))

    def _fire(self) -> bool:
        """Write what is due, for a moment; tells whether there was anything."""
        due = self._due
        for number in range(_WRITES_A_ROUND):
            if not due or due[0][0] > perf_counter_ns():
                return number > 0
            answer = heapq.heappop(due)[2]
            if answer.connection.answer is not answer:
                continue  # its client has gone
            if answer.asked.stream:
                self._write_tokens(answer)
            else:
                self._write_whole(answer)
        return False  # there may be more: no pause

    def _write_tokens(self, answer: _Answer) -> None:
        """Everything of a stream that is due, in one write."""
        account, asked = answer.account, answer.asked
        now = perf_counter_ns()
        connection = answer.connection
        parts = [] if answer.written else [canned.opening(asked.kind, answer.id, close=connection.closing)]
        itl, late = account.itl.counts, account.late.counts
        begun = answer.written
        while answer.written < asked.tokens and answer.due <= now and answer.written - begun < _EVENTS_A_WRITE:
            late[(now - answer.due) // 1000] += 1
            if answer.written:
                itl[(now - answer.last) // 1000] += 1
            else:
                account.ttft.add(now - answer.arrived)
            answer.last = now
            parts.append(answer.events[answer.written % len(answer.events)])
            answer.written += 1
            answer.due += self._span(self._itl_ns)
        account.events += answer.written - begun
        if answer.written == asked.tokens:
            parts.append(canned.ending(asked, answer.id))
            self._done(answer, now)
            self._send(connection, b"".join(parts))
            if connection.inbox:
                self._take(connection)
            return
        self._send(connection, b"".join(parts))
        # A client that does not read holds up its own stream, not the memory of this process: _flush goes on.
        if connection.open and not connection.outbox:
            self._schedule(answer)

    def _write_whole(self, answer: _Answer) -> None:
        connection = answer.connection
        data = canned.reply(200, canned.whole(answer.asked, answer.id), close=connection.closing)
        now = perf_counter_ns()
        answer.account.late.add(now - answer.due)
        self._done(answer, now)
        self._send(connection, data)
        if connection.inbox:
            self._take(connection)

    def _done(self, answer: _Answer, now: int) -> None:
        answer.connection.answer = None
        answer.account.ok += 1
        answer.account.e2e.add(now - answer.arrived)


def _draws(settings: Settings) -> Callable[[], float] | None:
    """Draws of mean 1; None where nothing is drawn."""
    rng = random.Random(settings.seed)
    if settings.jitter == "exp":
        return lambda: rng.expovariate(1.0)
    if settings.jitter == "lognormal":
        return lambda: rng.lognormvariate(-_SIGMA * _SIGMA / 2, _SIGMA)
    return None


# The process ------------------------------------------------------------------------------------------------------


@click.command(context_settings={"show_default": True, "help_option_names": ["-h", "--help"]})
@click.option("--port", type=click.IntRange(0, 65_535), default=8001, help="Port on loopback; 0 takes a free one.")
@click.option("--ttft-ms", type=Number(0, 3_600_000), default=50.0, help="From a request to its first token.")
@click.option("--itl-ms", type=Number(0, 3_600_000), default=20.0, help="From a token to the next.")
@click.option(
    "--tokens",
    type=click.IntRange(1, canned.TOKENS_LIMIT),
    default=64,
    help="Of an answer whose request has no max_tokens.",
)
@click.option(
    "--jitter",
    type=click.Choice(("none", "exp", "lognormal")),
    default="none",
    help="What both times are multiplied by: a draw of mean 1 for each token.",
)
@click.option("--seed", type=int, default=0, help="Of the jitter.")
@click.option("--error-every", type=click.IntRange(1), metavar="N", help="Each Nth request gets a 503.")
@click.option(
    "--capacity",
    type=Number(0.001, 1_000_000),
    metavar="RATE",
    help="Requests a second of a single queue before it all: beyond that latency grows.",
)
@click.option("--exit-on-stdin-close", is_flag=True, hidden=True)
def main(
    port: int, ttft_ms: float, itl_ms: float, tokens: int, jitter: Jitter, seed: int, error_every: int | None,
    capacity: float | None, exit_on_stdin_close: bool,
) -> None:  # fmt: skip
    """Serve OpenAI's chat and text completions with latencies that are known.

    When it can be used it prints one line, "serving fake on URL (latencies)". GET /truth is its account of what it
    did for every request since POST /reset (with ?after_ms=1000: since one second after the first of them).
    """
    settings = Settings(ttft_ms, itl_ms, tokens, jitter, seed, error_every, capacity)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    process.raise_file_limit()
    try:
        listener = process.listen(HOST, port, backlog=4096)
        listener.setblocking(False)
        if exit_on_stdin_close:
            process.watch_stdin(lambda: os._exit(0))
        server = Fake(settings, listener)
        click.echo(
            f"serving {canned.MODEL} on http://{HOST}:{listener.getsockname()[1]} "
            f"(TTFT {ttft_ms:g} ms, ITL {itl_ms:g} ms, jitter {jitter})"
        )
        # A collection over everything that was imported would hold every stream up for tens of milliseconds.
        gc.collect()
        gc.freeze()
        gc.set_threshold(100_000, 20, 100)
        server.serve()
    except StartError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(0)


if __name__ == "__main__":
    main(prog_name="python -m servers.fake")
