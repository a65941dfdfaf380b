"""Requests made ahead of need, so that sending one costs no more than sending it."""

import math
from collections import deque

from loadtest import __version__
from loadtest.endpoints.openai import OpenAI
from loadtest.engine.orders import Prepare, Wiring
from loadtest.plan import Request, request_count, requests
from loadtest.wire.origin import parse
from loadtest.workload.prompts import writer

_LEAST = 256
_MOST_BYTES = 64 << 20


class Supply:
    """The requests of one worker's slice in order, each with the bytes to send. ``left`` are those not taken yet."""

    def __init__(self, order: Prepare, dialect: OpenAI, slots: int) -> None:
        wiring, level = order.wiring, order.level
        count = request_count(level, order.worker, order.workers)
        self.left = math.inf if count is None else count
        self._requests = requests(level, wiring.seed, order.worker, order.workers)
        self._dialect = dialect
        self._head = _head(wiring, dialect)
        self._write = writer(wiring.tokens)
        self._ready: deque[tuple[Request, bytes]] = deque()
        self._ready_bytes = 0
        self._least = max(_LEAST, 2 * slots)

    @property
    def wants(self) -> bool:
        """Whether there is a next request that should be made now."""
        ready = len(self._ready)
        return ready < self._least and ready < self.left and self._ready_bytes < _MOST_BYTES

    @property
    def low(self) -> bool:
        """Whether it is time to make some more."""
        return len(self._ready) < min(self._least // 2, self.left)

    def make(self) -> None:
        """Make the next one."""
        request = next(self._requests)
        assert request.input_tokens is not None
        assert request.output_tokens is not None
        body = self._dialect.body(self._write(request.input_tokens, request.rng), request.output_tokens)
        payload = b"%bContent-Length: %d\r\n\r\n%b" % (self._head, len(body), body)
        self._ready.append((request, payload))
        self._ready_bytes += len(payload)

    def take(self) -> tuple[Request, bytes]:
        """The next request and its bytes; made on the spot if need be, and then its sender is late by that."""
        if not self._ready:
            self.make()
        request, payload = self._ready.popleft()
        self._ready_bytes -= len(payload)
        self.left -= 1
        return request, payload


def _head(wiring: Wiring, dialect: OpenAI) -> bytes:
    """The request's head up to Content-Length, the same for every request of a run."""
    origin = parse(wiring.url)
    lines = [
        f"POST {origin.path(dialect.path)} HTTP/1.1",
        f"Host: {origin.authority}",
        f"User-Agent: loadtest/{__version__}",
        f"Accept: {'text/event-stream' if dialect.streams else 'application/json'}",
        "Accept-Encoding: identity",
        "Content-Type: application/json",
    ]
    own = {line.split(":", 1)[0].lower(): index for index, line in enumerate(lines) if index}
    for name, value in wiring.headers:
        if (index := own.get(name.lower())) is not None:
            lines[index] = f"{name}: {value}"
        else:
            lines.append(f"{name}: {value}")
    return "".join(f"{line}\r\n" for line in lines).encode("latin-1")
