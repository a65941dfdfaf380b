"""Which proxy, if any, stands between us and a target: the one that was named, or the environment's."""

import urllib.request
from urllib.parse import urlsplit

import msgspec

from loadtest.errors import UsageError
from loadtest.wire.origin import Origin, basic, shown, user_of

_MEND = "write it like http://127.0.0.1:3128, or '' to go direct"


class Proxy(msgspec.Struct, frozen=True):
    """An HTTP proxy. ``authorization`` is the whole value of its Proxy-Authorization header."""

    host: str
    port: int
    authorization: str | None = None

    @property
    def url(self) -> str:
        """Its address without user name and password: safe to store and to print."""
        return f"http://[{self.host}]:{self.port}" if ":" in self.host else f"http://{self.host}:{self.port}"

    @property
    def headers(self) -> dict[str, str]:
        """What the proxy, and nobody else, is to be told."""
        return {} if self.authorization is None else {"Proxy-Authorization": self.authorization}


def proxy_for(origin: Origin, given: str | None) -> Proxy | None:
    """The proxy for an origin: ``given`` if it is not None (an empty one is "none"), else the environment's.

    Of the environment, ``HTTP_PROXY`` or ``HTTPS_PROXY`` as the scheme is, else ``ALL_PROXY`` (or the same in small
    letters), unless ``NO_PROXY`` names the host. Loopback and unix sockets never go through the environment's.

    Raises:
        UsageError: it is not the address of an HTTP proxy.
    """
    if given is not None:
        if given and origin.socket is not None:
            raise UsageError("--proxy: a unix socket is reached without a proxy")
        return _parse(given, "--proxy") if given else None
    if origin.loopback:
        return None
    known = urllib.request.getproxies_environment()
    scheme = origin.scheme if known.get(origin.scheme) else "all"
    if not known.get(scheme) or urllib.request.proxy_bypass(f"{origin.host}:{origin.port}"):
        return None
    return _parse(known[scheme], f"{scheme.upper()}_PROXY")


def _parse(url: str, source: str) -> Proxy:
    text = url if "://" in url else f"http://{url}"
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise UsageError(f"{source} {shown(url)!r}: {error}; {_MEND}") from None
    if parts.scheme != "http" or not host:
        raise UsageError(
            f"{source} {shown(url)!r}: not an http:// proxy (https:// and SOCKS proxies are not supported); {_MEND}"
        )
    user = user_of(url)
    return Proxy(host, port or 80, basic(user) if user else None)
