"""What one generator process carries on this machine: kept between runs, and held against what a run asks for."""

import logging
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from loadtest import whole
from loadtest.errors import ResultError
from loadtest.host import cache_folder, processor, software, usable_cores
from loadtest.level import Level

SCHEMA_VERSION = 1
# What a client may add before its figures say more about itself than about the server.
ADDED_ITL_LIMIT_MS = 1.0
ADDED_TTFT_LIMIT_MS = 5.0
BUSY_CPU_SHARE = 0.90
QUIET_CPU_SHARE = 0.20

Kind = Literal["streams", "burst", "whole"]
log = logging.getLogger(__name__)


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One load of the calibration. What is added is the client's figure less the server's own; null: not measured.

    ``streams``: ``concurrency`` streams of known TTFT and ITL. ``burst``: answers of many events without a gap.
    ``whole``: answers in one piece. The rates of the last two are until the last answer had been read and recorded.
    """

    kind: Kind
    concurrency: int
    requests: int
    events_per_s: float | None
    requests_per_s: float | None
    added_ttft_p50_ms: float | None = None
    added_ttft_p99_ms: float | None = None
    added_itl_p99_ms: float | None = None
    own_lag_p99_ms: float | None = None
    loop_lag_p99_ms: float | None = None
    cpu_share: float | None = None
    server_late_p99_ms: float | None = None
    server_cpu_share: float | None = None
    others_cpu_share: float | None = None  # of all cores of this machine, taken by other work
    reasons: list[str] = []  # why the row's figures do not count, if they do not

    @property
    def excess(self) -> float:
        """How far what was added is of what may be, the worse of the two; above 1 it is too much.

        Less than nothing counts alike: the two accounts then do not agree, so that little can be told from them.
        """
        if self.reasons or self.added_itl_p99_ms is None or self.added_ttft_p99_ms is None:
            return float("inf")
        return max(abs(self.added_itl_p99_ms) / ADDED_ITL_LIMIT_MS, abs(self.added_ttft_p99_ms) / ADDED_TTFT_LIMIT_MS)

    @property
    def disturbed(self) -> bool:
        """Whether other work on this machine took so much of it that the row says little about the client."""
        return (self.others_cpu_share or 0.0) > QUIET_CPU_SHARE

    @property
    def client_busy(self) -> bool:
        """Whether the generator process had its hands full."""
        return (self.cpu_share or 0.0) >= BUSY_CPU_SHARE or (self.loop_lag_p99_ms or 0.0) > ADDED_ITL_LIMIT_MS

    @property
    def server_busy(self) -> bool:
        """Whether the known-latency server had."""
        return (self.server_cpu_share or 0.0) >= BUSY_CPU_SHARE or (self.server_late_p99_ms or 0.0) > ADDED_ITL_LIMIT_MS


class Calibration(msgspec.Struct, frozen=True, kw_only=True):
    """What one generator process carries on one machine. The rows of streams ascend."""

    schema_version: int = SCHEMA_VERSION
    measured_at: str  # RFC 3339, UTC
    machine: str
    software: dict[str, str]
    quick: bool
    ttft_ms: float  # of the known-latency server
    itl_ms: float
    rows: list[Row]
    notes: list[str] = []

    @property
    def carried(self) -> Row | None:
        """The most streams with which no more than the limits was added; None if there were none.

        A row with fewer streams that was beyond them does not count against it: that was other work, no limit.
        """
        return next((row for row in reversed(self._streams()) if row.excess <= 1), None)

    @property
    def broke_at(self) -> Row | None:
        """The fewest streams beyond those carried, with which too much was added; None if more was not tried."""
        carried = self.carried
        return next((row for row in self._streams() if carried is None or row.concurrency > carried.concurrency), None)

    @property
    def requests_per_s(self) -> float | None:
        """The most requests a second that were read and recorded."""
        return max((row.requests_per_s or 0.0 for row in self.rows if row.kind == "whole"), default=0.0) or None

    def exceeded(self, levels: Sequence[Level], workers: int) -> list[str]:
        """Where a run of ``levels`` on ``workers`` processes asks for more of each than was measured to be carried."""
        found = []
        most, rate = self.carried, self.requests_per_s
        when = f"(loadtest calibrate, {self.measured_at[:10]})"
        asked = max(levels, key=lambda level: level.load.concurrency or 0, default=None)
        if asked and most and (streams := -(-(asked.load.concurrency or 0) // workers)) > most.concurrency:
            beyond = self.broke_at
            what = (
                f"beyond that it added {_added(beyond)}"
                if beyond is not None and beyond.excess < float("inf")
                else "what more would add to the latencies is not known"
            )
            found.append(
                f"level {asked.name}: {streams:,} streams for each generator process, and this machine was found to "
                f"carry {most.concurrency:,} {when}; {what}. Use more --workers or another host"
            )
        fastest = max(levels, key=lambda level: level.load.peak_per_s or 0.0, default=None)
        if fastest and rate and (each := (fastest.load.peak_per_s or 0.0) / workers) > rate:
            found.append(
                f"level {fastest.name}: {each:,.0f} requests a second for each generator process, and this machine was "
                f"found to carry {rate:,.0f} {when}. Use more --workers or another host"
            )
        return found

    def finding(self) -> str:
        """What was learned, in a sentence or two."""
        most, beyond = self.carried, self.broke_at
        limits = f"{ADDED_ITL_LIMIT_MS:g} ms to ITL p99 or {ADDED_TTFT_LIMIT_MS:g} ms to TTFT p99"
        if most is not None and beyond is None:
            return (
                f"One worker carries at least {_streams(most)} here, the most tried, without adding more than {limits}."
            )
        if beyond is None:
            return "Nothing was measured."
        if beyond.reasons:
            why = f"with {beyond.concurrency:,} the figures did not count: {beyond.reasons[0]}"
        else:
            why = f"with {beyond.concurrency:,} it added {_added(beyond)}, and {_limit(beyond)}"
        if most is None:
            return f"One worker carries no load here without adding more than {limits}: {why}."
        return f"One worker carries {_streams(most)} here before it adds more than {limits}: {why}."

    def document(self) -> dict[str, Any]:
        """Everything above as JSON's values."""
        carried = self.carried
        derived = {"carried_streams": carried.concurrency if carried else None, "finding": self.finding()}
        return {**msgspec.to_builtins(self), **derived}

    def _streams(self) -> list[Row]:
        return [row for row in self.rows if row.kind == "streams"]


def _streams(row: Row) -> str:
    rate = f" ({row.events_per_s:,.0f} events/s)" if row.events_per_s else ""
    return f"{row.concurrency:,} stream{'s' if row.concurrency > 1 else ''}{rate}"


def _added(row: Row) -> str:
    return f"{row.added_itl_p99_ms:.1f} ms to ITL p99 and {row.added_ttft_p99_ms:.1f} ms to TTFT p99"


def _limit(row: Row) -> str:
    """Which of the two was the limit, as far as their own readings tell."""
    client = f"the client (CPU {row.cpu_share or 0:.0%}, loop lag p99 {row.loop_lag_p99_ms or 0:.1f} ms)"
    server = (
        f"the known-latency server (CPU {row.server_cpu_share or 0:.0%}, late p99 {row.server_late_p99_ms or 0:.1f} ms)"
    )
    if row.disturbed:
        return f"other work took {row.others_cpu_share:.0%} of this machine's cores: measure again when it is quiet"
    if row.client_busy and row.server_busy:
        return f"both were at their limit, {client} and {server}"
    if row.client_busy:
        return f"{client} was the limit"
    if row.server_busy:
        return f"{server} was the limit, so the client may carry more"
    return "neither client nor server was busy: something else held them up"


def warning(levels: Sequence[Level], workers: int) -> list[str]:
    """What to tell the user before a run, by the calibration of this machine; nothing if there is none."""
    known = load()
    return known.exceeded(levels, workers) if known else []


def this_machine() -> str:
    """What a calibration holds for: the processor and the cores that this process may use."""
    return f"{processor()}, {usable_cores()} usable cores, {platform.system()} {platform.machine()}"


def this_software() -> dict[str, str]:
    """The versions that a calibration holds for; of Python the minor one."""
    return {**software(), "python": ".".join(platform.python_version_tuple()[:2])}


# The file -----------------------------------------------------------------------------------------------------


def path() -> Path:
    """Where the calibration is kept: ``$XDG_CACHE_HOME/loadtest/calibration.json``, by default under ``~/.cache``."""
    return cache_folder() / "calibration.json"


def save(calibration: Calibration) -> Path:
    """Keep ``calibration`` for later runs, whole or not at all, and return where.

    Raises:
        ResultError: not even the smallest load was carried, or the file cannot be written.
    """
    if calibration.carried is None:
        raise ResultError("not saved: no load was carried within the limits; let the machine be quiet and try again")
    file = path()
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        whole.write(file, msgspec.json.format(msgspec.json.encode(calibration), indent=2) + b"\n")
    except OSError as error:
        mend = "mend that, or set XDG_CACHE_HOME to a folder that can be written"
        raise ResultError(f"cannot write {file}: {error.strerror}; {mend}") from None
    return file


def load() -> Calibration | None:
    """The calibration of this machine and these versions; None if there is none."""
    file = path()
    try:
        found = msgspec.json.decode(file.read_bytes(), type=Calibration)
    except FileNotFoundError:
        return None
    except OSError as error:
        log.warning("cannot read %s: %s", file, error.strerror)
        return None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        log.warning("%s is no calibration (%s); make it again with: loadtest calibrate --save", file, error)
        return None
    if found.schema_version != SCHEMA_VERSION or found.machine != this_machine() or found.software != this_software():
        log.info("%s is of %s with %s and does not hold here", file, found.machine, found.software)
        return None
    return found
