"""What other programs are told while a run goes on: a line of JSON a second, or what Prometheus scrapes."""

import os
import re
import select
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from http.server import ThreadingHTTPServer
from socket import AF_INET6
from typing import TYPE_CHECKING, Any

import msgspec

from loadtest.errors import UsageError
from loadtest.glance import Glance

if TYPE_CHECKING:
    from prometheus_client import Metric

_FORM = re.compile(r"(?:(?P<host>[^\[\]:]+|\[[0-9A-Fa-f:.]+\])?:)?(?P<port>[0-9]{1,5})")
_POLL_S = 0.1


class JsonLines:
    """Each glance as one line of JSON, with ``at``, the time of day (RFC 3339, UTC), in front.

    Unbuffered, and never waited for: a line that its reader has no room for is left out. ``warn`` is told once when
    nothing can be written any more; the run goes on.

    Raises:
        UsageError: the file cannot be written.
    """

    def __init__(self, path: str, warn: Callable[[str], None]) -> None:
        self._path = path
        self._warn = warn
        self._encode = msgspec.json.Encoder().encode
        try:
            self._out: int | None = (
                os.dup(sys.stdout.fileno())
                if path == "-"
                else os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_CLOEXEC", 0), 0o666)
            )
        except OSError as error:
            raise UsageError(f"--live-json {path}: {error.strerror}; name a file that can be written") from None

    def begin(self) -> None:
        """A level begins."""

    def take(self, seen: Glance) -> None:
        """Write it."""
        if self._out is None:
            return
        at = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        line = self._encode({"at": at, **msgspec.to_builtins(seen)}) + b"\n"
        try:
            if sys.platform == "win32" or select.select([], [self._out], [], 0)[1]:
                os.write(self._out, line)
        except OSError as error:
            self._warn(f"warning: --live-json {self._path}: {error.strerror}; no more is written there")
            os.close(self._out)
            self._out = None

    def close(self) -> None:
        """The run has ended; the next one's lines follow."""


class Exposition:
    """What Prometheus scrapes at ``http://HOST:PORT/metrics``, from the first level on.

    The port is taken at once, and answered by a thread only while levels are played: workers are forked before it
    is there. A scrape in between waits. Counters are those of all levels, and never go back.

    Raises:
        UsageError: there is no such address here, or the port is taken.
    """

    def __init__(self, address: str) -> None:
        from prometheus_client import CollectorRegistry, MetricsHandler  # noqa: PLC0415  # only for those who ask

        match = _FORM.fullmatch(address.strip())
        if match is None or not 0 < int(match["port"]) < 65536:
            raise UsageError(f"--prometheus {address}: expected [HOST]:PORT, such as :9464 or 0.0.0.0:9464")
        host = (match["host"] or "127.0.0.1").strip("[]")
        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        self._shown: tuple[_Totals, Glance | None] = _Totals(), None  # of levels that are over, and of this one
        self._thread: threading.Thread | None = None
        try:
            self._server = _server(host)((host, int(match["port"])), MetricsHandler.factory(registry))
        except OSError as error:
            raise UsageError(
                f"--prometheus {address}: cannot listen on {host} port {match['port']} ({error.strerror}); "
                "name another one"
            ) from None

    def begin(self) -> None:
        """A level begins: serve, if that is not yet so."""
        before, seen = self._shown
        if seen is not None:
            self._shown = before.plus(seen), None
        if self._thread is None:
            self._thread = threading.Thread(target=self._server.serve_forever, args=(_POLL_S,), daemon=True)
            self._thread.start()

    def take(self, seen: Glance) -> None:
        """Show this from now on."""
        self._shown = self._shown[0], seen

    def close(self) -> None:
        """Answer no more; the port is kept for the next run of this process."""
        if self._thread is not None:
            self._server.shutdown()
            self._thread.join()
            self._thread = None

    def collect(self) -> "Iterator[Metric]":
        """The metrics, called for each scrape by its own thread."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily  # noqa: PLC0415

        before, seen = self._shown
        total = before if seen is None else before.plus(seen)
        requests = CounterMetricFamily(
            "loadtest_requests", "Requests that have ended, of all levels.", labels=["outcome"]
        )
        requests.add_metric(["ok"], total.ok)
        requests.add_metric(["failed"], total.failed)
        yield requests
        yield CounterMetricFamily(
            "loadtest_output_tokens", "Tokens of answers, of all levels.", value=total.output_tokens
        )
        if seen is None:
            return
        info = GaugeMetricFamily("loadtest_level_info", "The level that is played.", labels=["level", "levels", "name"])
        info.add_metric([str(seen.level), str(seen.levels or ""), seen.name], 1)
        yield info
        yield GaugeMetricFamily("loadtest_in_flight", "Requests sent and not answered.", value=seen.in_flight)
        yield GaugeMetricFamily("loadtest_level_elapsed_seconds", "Since the level began.", value=seen.elapsed_s)
        for name, what, values in (
            ("ttft", "Time to first token", (seen.ttft_p50_ms, seen.ttft_p99_ms)),
            ("e2e", "Time to the last token", (seen.e2e_p50_ms, seen.e2e_p99_ms)),
            ("send_lag", "The client's own lateness in sending", (None, seen.send_lag_p99_ms)),
            ("loop_lag", "How late the client's event loop ran", (None, seen.loop_lag_p99_ms)),
        ):
            family = GaugeMetricFamily(
                f"loadtest_{name}_seconds", f"{what}, of this level so far.", labels=["quantile"]
            )
            for quantile, value in zip(("0.5", "0.99"), values, strict=True):
                if value is not None:
                    family.add_metric([quantile], value / 1000)
            if family.samples:
                yield family


class _Totals(msgspec.Struct, frozen=True):
    """What has been counted in levels that are over."""

    ok: int = 0
    failed: int = 0
    output_tokens: int = 0

    def plus(self, seen: Glance) -> "_Totals":
        return _Totals(self.ok + seen.ok, self.failed + seen.failed, self.output_tokens + seen.output_tokens)


def _server(host: str) -> Callable[..., ThreadingHTTPServer]:
    """The class of server that listens on such a host."""
    own: dict[str, Any] = {"daemon_threads": True}
    return type("Server", (ThreadingHTTPServer,), own | ({"address_family": AF_INET6} if ":" in host else {}))
