"""What a run is asked to do, and how it is to get to its target: the options of everything that plays or asks."""

import re
from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote

import msgspec

from loadtest.credentials import Bearer
from loadtest.records import Mode
from loadtest.redact import Redactor, of_user, secrets_of
from loadtest.scenario.model import Override
from loadtest.statement import Axis
from loadtest.telemetry.sight import Wanted
from loadtest.verdict import OnInconclusive
from loadtest.wire.exchange import TransportName
from loadtest.wire.tls import Tls

_URL_USER = re.compile(r"(?:\w[\w+.-]*://)?([^/?#]*)@")


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What a run is asked to do. ``url`` of None is the bundled server.

    ``transport`` of None is the fast one, unless there is a proxy; ``proxy`` of None is the environment's, "" is none.
    ``alpha`` is the chance of each error of a level's verdict; of None the usual. ``records`` says which requests are
    left in the folder. ``resume``: the output folder is one in which levels were played before, and ``source`` the
    scenario that lies in it. ``rehearse``: send a request before the clock; ``wait_ready_s``: wait so long until the
    target is ready. ``basic`` is a ``name:password``. ``confirm`` answers whether as much may be sent as a question
    says; of None nobody is there to ask. ``most`` is what a search raises, and how far, ``wanted`` what to watch.
    ``redact`` knows all the secrets here, and learns what else comes up.
    """

    url: str | None
    source: str | None
    overrides: dict[str, Override]
    headers: tuple[tuple[str, str], ...] = ()
    api_key: str | None = None
    basic: str | None = None
    bearer: Bearer | None = None
    run_header: bool = True
    confirm: Callable[[str], bool] | None = None
    most: tuple[Axis, float | None] | None = None
    redact: Redactor = msgspec.field(default_factory=Redactor)
    transport: TransportName | None = None
    proxy: str | None = None
    tls: Tls = Tls()
    traceparent: bool = False
    labels: dict[str, str] = {}
    output: Path | None = None
    workers: int | None = None
    cluster: str | None = None
    strict: bool = False
    on_inconclusive: OnInconclusive = "report"
    alpha: float | None = None
    records: Mode = "all"
    resume: bool = False
    rehearse: bool = True
    wait_ready_s: float | None = None
    wanted: Wanted = Wanted()
    command: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        known = secrets_of(self.headers, self.api_key, (self.url or "").partition("?")[2])
        known += [self.tls.password or "", *of_user(self.basic or "")]
        for url in (self.wanted.metrics, self.wanted.dcgm):
            known += secrets_of((), None, (url or "").partition("?")[2])
        for url in (self.url, self.proxy, self.wanted.metrics, self.wanted.dcgm):
            if found := _URL_USER.match(url or ""):
                known += [*of_user(found[1]), *of_user(unquote(found[1]))]
        self.redact.learn(known)
