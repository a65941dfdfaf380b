"""The route to a target: by which transport and proxy requests get there, and who they say they are."""

import re
from collections.abc import Sequence
from urllib.parse import quote

import msgspec

from loadtest.credentials import Bearer
from loadtest.endpoints.site import Site
from loadtest.engine.orders import Wiring
from loadtest.errors import UsageError
from loadtest.options import Options
from loadtest.redact import Redactor, secrets_of
from loadtest.scenario.model import Scenario
from loadtest.trace import HEADER
from loadtest.wire.exchange import TransportName
from loadtest.wire.origin import basic, parse, user_of
from loadtest.wire.proxy import Proxy, proxy_for
from loadtest.wire.tls import Tls

RUN_HEADER = "X-Loadtest-Run"
# RFC 9110, 5.1 and 5.5.
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")


class Route(msgspec.Struct, frozen=True):
    """How requests get to the target, and what the user should know of that."""

    transport: TransportName
    proxy: Proxy | None
    notes: tuple[str, ...]


def route_of(options: Options) -> Route:
    """Decide it, once for the whole run.

    Raises:
        UsageError: a file is not what it should be, or the transport cannot go that way.
    """
    origin = parse(options.url) if options.url else None
    notes = []
    if options.tls != Tls():
        options.tls.context()  # a bad file is told now, and not by a worker
        if origin is None or origin.scheme != "https":
            notes.append("--cacert, --cert, --key and --insecure are for https:// and were not used")
    if options.proxy and origin is None:
        notes.append("--proxy is for a URL and was not used: the bundled server is on this host")
    if options.wait_ready_s and origin is None:
        notes.append("--wait-ready is for a URL and was not used: the bundled server is waited for anyway")
    proxy = proxy_for(origin, options.proxy) if origin else None
    if proxy is not None and options.transport == "fast":
        raise UsageError(
            f"--transport fast cannot go through the proxy {proxy.url}: leave it out, or go direct with --proxy ''"
        )
    if proxy is not None and options.transport is None:
        notes.append(f"requests go through the proxy {proxy.url}, and so by the aiohttp transport: no error bar")
    transport: TransportName = options.transport or ("aiohttp" if proxy else "fast")
    if transport == "aiohttp":
        import loadtest.wire.aiohttp_transport  # noqa: F401, PLC0415  # before workers fork: none loads it
    return Route(transport, proxy, tuple(notes))


def headers_of(options: Options, place: Site | None, run: str | None = None) -> tuple[tuple[str, str], ...]:
    """What every request is to say besides: the user's headers, who we are, and of which ``run`` it is.

    Raises:
        UsageError: a header is none, or two say who we are.
    """
    for name, _ in options.headers:
        if name.lower() in ("content-length", "transfer-encoding"):
            raise UsageError(f"-H {name}: follows from the body, which loadtest writes; leave it out")
        if options.traceparent and name.lower() == HEADER:
            raise UsageError(f"-H {name} and --traceparent both say it; give one of them")
    ways: list[tuple[str, str, str]] = [("-H", *header) for header in options.headers]
    if options.api_key:
        bare = place.key_header if place else None
        key = (bare, options.api_key) if bare else ("Authorization", f"Bearer {options.api_key}")
        ways.append(("--api-key", *key))
    if options.basic is not None:
        if not options.basic.partition(":")[0] or ":" not in options.basic:
            raise UsageError("--basic: not of the form NAME:PASSWORD")
        ways.append(("--basic", "Authorization", basic(quote(options.basic, safe=":"))))
    if options.bearer is not None:
        ways.append(("--auth-command", "Authorization", ""))
    if user := user_of(options.url or ""):
        ways.append(("the user name in the URL", "Authorization", basic(user)))
    said: dict[str, list[str]] = {}
    for way, name, value in ways:
        said.setdefault(name.lower(), []).append(way)
        if len(who := dict.fromkeys(said[name.lower()])) > 1:
            raise UsageError(f"{' and '.join(who)} both say who we are, in the header {name}; give one of them")
        if not _HEADER_NAME.fullmatch(name) or not _HEADER_VALUE.fullmatch(value):
            raise UsageError(f"{way}: the header {name!r} holds a character that HTTP has no place for")
    found = [(name, value) for way, name, value in ways if way != "--auth-command"]
    if run is not None and options.run_header and not any(name.lower() == RUN_HEADER.lower() for name, _ in found):
        found.append((RUN_HEADER, run))
    return tuple(found)


def learn(
    redact: Redactor, asked: Scenario, headers: Sequence[tuple[str, str]], route: Route,
    variables: Sequence[tuple[str, str]],
) -> None:  # fmt: skip
    """The secrets that come up besides the options' own: a proxy's, and a template's."""
    # What of a template has blanks is no secret: these are filled with variables, or with what is drawn.
    own = [header for header in asked.pattern.request.headers if "{{" not in header[1]]
    redact.learn(secrets_of([*headers, *own, *(route.proxy.headers.items() if route.proxy else ())], None, ""))
    redact.learn(value for _, value in variables)


def authorized(wiring: Wiring, bearer: Bearer | None) -> Wiring:
    """The wiring with the newest token."""
    if bearer is None:
        return wiring
    name, value = bearer.header
    others = [header for header in wiring.headers if header[0] != name]
    return msgspec.structs.replace(wiring, headers=(*others, (name, value)), bearer=value.removeprefix("Bearer "))
