"""A Prometheus endpoint: where it is, how to get there, and its text. Blocking."""

from collections.abc import Sequence

import msgspec

from loadtest.errors import LoadtestError, UsageError
from loadtest.telemetry.watch import LOOK_S, Unseen
from loadtest.wire.control import ask
from loadtest.wire.origin import Origin, basic, parse, resolve, user_of
from loadtest.wire.proxy import Proxy, proxy_for
from loadtest.wire.tls import Tls

MOST_BYTES = 16 << 20
PATH = "/metrics"


class Place(msgspec.Struct, frozen=True):
    """An endpoint. ``headers`` say who we are; ``own``: it is the target's host, which may be told that."""

    origin: Origin
    path: str
    headers: tuple[tuple[str, str], ...]
    tls: Tls
    proxy: Proxy | None
    own: bool = True

    @property
    def url(self) -> str:
        """Without secrets: safe to store and to print."""
        return self.origin.url + self.path


def beside(
    target: Origin, headers: Sequence[tuple[str, str]], tls: Tls, proxy: Proxy | None, port: int | None = None
) -> Place:
    """The metrics of a target: below its base URL, or at another ``port`` of its host."""
    origin = target if port is None else Origin(target.scheme, target.host, port, "", "")
    return Place(origin, PATH, tuple(headers), tls, proxy)


def given(
    flag: str, url: str, target: Origin, headers: Sequence[tuple[str, str]], tls: Tls, proxy: str | None
) -> Place:
    """The endpoint at ``url``, as a flag names it; one without a path is that of /metrics.

    ``headers`` and the certificate are for the ``target``, and are shown to its own host alone.

    Raises:
        UsageError: it is not a URL.
    """
    try:
        origin = parse(url, None)
    except UsageError as error:
        raise UsageError(f"{flag}: {error}") from None
    own = target.host == origin.host and (target.scheme, origin.scheme) != ("https", "http")
    if not own:
        headers, tls = (), msgspec.structs.replace(tls, cert=None, key=None, password=None)
    if user := user_of(url):
        headers = [*(one for one in headers if one[0].lower() != "authorization"), ("Authorization", basic(user))]
    return Place(origin, "" if origin.prefix else PATH, tuple(headers), tls, proxy_for(origin, proxy), own)


def text(place: Place, newest: tuple[str, str] | None = None) -> str:
    """What it says; ``newest`` is the header of a token that has been renewed since the beginning.

    Raises:
        Unseen: nothing in time, or no answer that could hold metrics.
    """
    headers = dict([*place.headers, *([newest] if newest and place.own else [])])
    try:
        address = resolve(parse(place.proxy.url) if place.proxy else place.origin, LOOK_S)
        reply = ask(
            place.origin, address, "GET", place.origin.path(place.path), timeout_s=LOOK_S, headers=headers,
            tls=place.tls, proxy=place.proxy, most_bytes=MOST_BYTES,
        )  # fmt: skip
    except LoadtestError as error:
        raise Unseen(str(error)) from None
    if reply.status != 200:
        raise Unseen(f"{place.url} answered {reply.status}")
    return reply.text
