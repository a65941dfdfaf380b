"""What watches the levels of a run: the server's metrics, its GPUs, this host; and what cannot be watched, and why."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from loadtest.credentials import Bearer
from loadtest.errors import UsageError
from loadtest.level import LevelRun
from loadtest.records import Record
from loadtest.result import LevelResult
from loadtest.telemetry import dcgm, here, names, tokens
from loadtest.telemetry.account import with_sight
from loadtest.telemetry.nvml import Nvml
from loadtest.telemetry.scrape import Place, beside, given, text
from loadtest.telemetry.trail import Eye, Look, Setting, Sighted, Trail
from loadtest.telemetry.watch import Seen, Unseen, Watch
from loadtest.wire.origin import Origin
from loadtest.wire.proxy import Proxy
from loadtest.wire.tls import Tls

OFF = "off"
_TRITON_PORT = 8002
_TRITON = ("triton", "kserve")
_CALLED: dict[Eye, str] = {"server": "the server's metrics", "gpus": "the GPUs", "host": "this host"}


class Wanted(msgspec.Struct, frozen=True):
    """What is to be watched: ``metrics`` of None are looked for, of "off" not; ``dcgm`` is an exporter's URL."""

    metrics: str | None = None
    gpu: bool = False
    dcgm: str | None = None


class Way(NamedTuple):
    """How the run gets to its target, as far as its metrics may be reached in the same way.

    ``proxy_given`` is the user's word on proxies, which holds for other hosts as well.
    """

    headers: Sequence[tuple[str, str]]
    tls: Tls
    proxy: Proxy | None
    proxy_given: str | None
    bearer: Bearer | None


class _Server:
    """The metrics at ``place``; of which kind they are shows in the first that are read."""

    def __init__(self, place: Place, bearer: Bearer | None) -> None:
        self.place = place
        self.kind: names.Kind | None = None
        self._bearer = bearer

    def look(self) -> Seen:
        found = text(self.place, None if self._bearer is None else self._bearer.header)
        try:
            self.kind = self.kind or names.kind_of(found)
            if self.kind is None:
                raise Unseen(f"{self.place.url} has no metrics of a server that is known here")
            return {self.kind: names.read(found, self.kind)}
        except ValueError as error:
            raise Unseen(f"{self.place.url}: {error}") from None


class _Dcgm:
    """The exporter at ``place``."""

    def __init__(self, place: Place, bearer: Bearer | None) -> None:
        self.place = place
        self.models: dict[str, str] = {}
        self._bearer = bearer

    def look(self) -> Seen:
        found = text(self.place, None if self._bearer is None else self._bearer.header)
        try:
            return dcgm.read(found, self.models)
        except ValueError as error:
            raise Unseen(f"{self.place.url}: {error}") from None


class Watching:
    """What is seen during one level. ``missing`` says what was not, and why."""

    def __init__(self, telemetry: "Telemetry", level: int, watches: dict[Eye, Watch], trail: Trail) -> None:
        self._telemetry = telemetry
        self._watches = watches
        self._trail = trail
        self._index = level
        self._t0_ns: int | None = None
        self.missing: list[str] = []

    def begun(self, t0_ns: int) -> None:
        """The level begins at this instant."""
        self._t0_ns = t0_ns
        self._trail.add(self._setting(t0_ns, None))

    def of(self, level: LevelResult, records: Sequence[Record], run: LevelRun | None) -> LevelResult:
        """``level`` with what has been seen of it; ``run`` of None: it goes on, or the generator failed in it."""
        if self._t0_ns is None:
            return level
        setting = self._setting(self._t0_ns, run.ended_ms if run else None)
        if run is not None:
            self._trail.add(setting)
        found = with_sight(level, records, self._sighted(setting))
        if run is not None and found.server is not None and tokens.short(found.server):
            self._watches["server"].again()  # it may count a moment later than it sends
            found = with_sight(level, records, self._sighted(setting))
        return found

    def _setting(self, t0_ns: int, over_ms: float | None) -> Setting:
        server, gpus = self._telemetry.server, self._telemetry.gpus
        return Setting(
            level=self._index,
            t0_ns=t0_ns,
            over_ms=over_ms,
            url=server.place.url if server else None,
            models=dict(gpus.models) if gpus else {},
        )

    def _sighted(self, setting: Setting) -> Sighted:
        return Sighted(setting, {eye: list(watch.looks) for eye, watch in self._watches.items()})


class Telemetry:
    """The eyes of a run.

    Raises:
        UsageError: a URL is none, or this host's GPUs are asked for and cannot be read, or are not the target's.
    """

    def __init__(self, wanted: Wanted, target: Origin, endpoint: str, way: Way) -> None:
        self._wanted = wanted
        self._target = target
        self._endpoint = endpoint
        self._way = way
        self.server: _Server | None = None
        self.gpus: Nvml | _Dcgm | None = None
        self.notes: list[str] = []
        """What is watched, a line each, and why something is not."""
        if wanted.gpu and wanted.dcgm is not None:
            raise UsageError("--gpu and --dcgm both name the GPUs; give one of them")
        if wanted.gpu:
            if not target.loopback:
                raise UsageError(
                    f"--gpu reads the GPUs of this host, and {target.host} is another; give --dcgm URL, the address of "
                    "its DCGM exporter"
                )
            self.gpus = Nvml()
        elif wanted.dcgm is not None:
            self.gpus = _Dcgm(self._given("--dcgm", wanted.dcgm), way.bearer)
        if wanted.metrics not in (None, OFF):
            self.server = _Server(self._given("--metrics", wanted.metrics or ""), way.bearer)

    def _given(self, flag: str, url: str) -> Place:
        return given(flag, url, self._target, self._way.headers, self._way.tls, self._way.proxy_given)

    def find(self, target: Origin) -> list[str]:
        """Look for the metrics of the target, which has been made ready; returns what the user should know.

        Where nobody asked for them, that there are none is a note and no warning.
        """
        way, warnings = self._way, []
        if self.server is not None:
            if (why := _tried(self.server.look)) is not None:
                warnings.append(f"--metrics: {why}")
                if self.server.kind is None:
                    self.notes.append(f"server: not seen, {why}")
        elif self._wanted.metrics == OFF:
            self.notes.append("server: not asked (--metrics off)")
        else:
            places = [beside(target, way.headers, way.tls, way.proxy)]
            if self._endpoint in _TRITON and target.socket is None:
                places.append(beside(target, way.headers, way.tls, way.proxy, _TRITON_PORT))
            reasons = []
            for place in places:
                server = _Server(place, way.bearer)
                if (why := _tried(server.look)) is None:
                    self.server = server
                    break
                reasons.append(why)
            else:
                self.notes.append(f"server: not seen, {'; '.join(reasons)}")
        if self.server is not None and self.server.kind is not None:
            self.notes.append(f"server: {self.server.kind}, {self.server.place.url}")
        if isinstance(self.gpus, _Dcgm):
            if (why := _tried(self.gpus.look)) is not None:
                warnings.append(f"--dcgm: {why}")
            self.notes.append(f"GPUs: {self.gpus.place.url}")
        elif self.gpus is not None:
            self.notes.append(f"GPUs: {', '.join(dict.fromkeys(self.gpus.models.values()))}, by their driver")
        return warnings

    @contextlib.contextmanager
    def watching(self, level: int, folder: Path) -> Iterator[Watching]:
        """Watch, as long as the ``level`` of this index is played; what is seen is written down in ``folder``."""
        looks: dict[Eye, Callable[[], Seen]] = {"host": here.look}
        if self.server is not None:
            looks["server"] = self.server.look
        if self.gpus is not None:
            looks["gpus"] = self.gpus.look
        trail = Trail(folder)

        def keep(eye: Eye) -> Callable[[int, Seen], None]:
            return lambda at_ns, seen: trail.add(Look(level, eye, at_ns, seen))

        watches = {eye: Watch(look, keep(eye)) for eye, look in looks.items()}
        found = Watching(self, level, watches, trail)
        trail.begin()
        for watch in watches.values():
            watch.begin()
        try:
            yield found
        finally:
            for eye, watch in watches.items():
                watch.end()
                if watch.why is not None and eye != "host":
                    missing = "missing at times" if watch.looks else "not seen"
                    found.missing.append(f"{_CALLED[eye]} were {missing}: {watch.why}")
            if trail.why is not None:
                found.missing.append(trail.why)


def _tried(look: Callable[[], Seen]) -> str | None:
    """Why one look finds nothing; None if it does."""
    try:
        look()
    except Unseen as error:
        return str(error)
    return None
