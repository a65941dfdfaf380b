"""Where requests go: a base URL, taken apart once."""

import ipaddress
import os
import re
import socket
import threading
from base64 import b64encode
from urllib.parse import quote, unquote, urlsplit

import msgspec

from loadtest.errors import TargetError, UsageError

# What may stand in a path as it is (RFC 3986); a blank or a letter beyond ASCII would break the request line.
_PATH_SIGNS = "/:@!$&'()*+,;=-._~%"
_UNIX = "unix:"
_USER = re.compile(r"^([A-Za-z][\w+.-]*://)?[^/?#]*@")


class Origin(msgspec.Struct, frozen=True):
    """A base URL taken apart. ``prefix`` is its path without a trailing slash and without the API's own part.

    ``socket`` is the path of a unix socket; host and port then only stand in the Host header.
    """

    scheme: str
    host: str
    port: int
    prefix: str
    query: str
    socket: str | None = None

    @property
    def authority(self) -> str:
        """``host:port`` as in a Host header; the port is left out when it is the scheme's own."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == {"http": 80, "https": 443}[self.scheme] else f"{host}:{self.port}"

    @property
    def loopback(self) -> bool:
        """Whether it is on this machine, as far as that is known without asking a resolver."""
        return self.socket is not None or is_loopback(self.host)

    @property
    def url(self) -> str:
        """The base URL without query, user name and password: safe to store and to print."""
        if self.socket is not None:
            return f"{_UNIX}{self.socket}" + (f":{self.prefix}" if self.prefix else "")
        return f"{self.scheme}://{self.authority}{self.prefix}"

    def path(self, api_path: str) -> str:
        """The request target for an API path such as ``/v1/models``."""
        target = (self.prefix.rstrip("/") + api_path if api_path else self.prefix) or "/"
        return target + (f"{'&' if '?' in target else '?'}{self.query}" if self.query else "")


def parse(url: str, api_paths: tuple[str, ...] | None = ()) -> Origin:
    """Take a base URL apart. It may end in ``/``, ``/v1``, or the whole path of one of ``api_paths``; of None it is
    no base, and its path stays as it is.

    ``unix:/run/server.sock`` is a server on a unix socket, ``unix:/run/server.sock:/prefix`` one below a path.

    Raises:
        UsageError: not an http(s) URL with a host, nor a unix socket.
    """
    if url.startswith(_UNIX):
        rest, _, query = url.removeprefix(_UNIX).partition("?")
        path, _, prefix = rest.partition(":")
        path = "/" + path.lstrip("/") if path.startswith("//") else path
        if not hasattr(socket, "AF_UNIX"):
            raise UsageError(f"URL {url!r}: this system's Python has no unix sockets; give an http(s) URL")
        if not path.strip("/"):
            raise UsageError(f"URL {url!r}: names no socket; write it like unix:/run/server.sock")
        query = quote(query, safe=_PATH_SIGNS + "?")
        return Origin("http", "localhost", 80, _prefix(prefix, api_paths), query, os.path.abspath(path))
    text = url if "://" in url else f"http://{url}"
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise UsageError(f"URL {shown(url)!r}: {error}; write it like http://127.0.0.1:8000") from None
    if parts.scheme not in ("http", "https") or not host:
        raise UsageError(f"URL {shown(url)!r}: not an http(s) address; write it like http://127.0.0.1:8000")
    if port == 0:
        raise UsageError(f"URL {shown(url)!r}: port 0 is no port; write it like http://127.0.0.1:8000")
    if not host.isascii():
        try:
            host = host.encode("idna").decode()
        except UnicodeError as error:
            raise UsageError(f"URL {shown(url)!r}: {host!r} is not a host name ({error})") from None
    return Origin(
        parts.scheme,
        host,
        port or (443 if parts.scheme == "https" else 80),
        _prefix(parts.path, api_paths),
        quote(parts.query, safe=_PATH_SIGNS + "?"),
    )


def is_loopback(host: str) -> bool:
    """Whether a host's name or address is always this machine's own."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
    return address.is_loopback or address.is_unspecified


def user_of(url: str) -> str | None:
    """``user:password`` as it stands in a URL, percent-coding and all; None if there is none."""
    return urlsplit(url if "://" in url else f"http://{url}").netloc.rpartition("@")[0] or None


def basic(user: str) -> str:
    """The value of an Authorization header for ``user:password`` as it stands in a URL (RFC 7617)."""
    name, _, password = user.partition(":")
    return "Basic " + b64encode(f"{unquote(name)}:{unquote(password)}".encode()).decode("ascii")


def shown(url: str) -> str:
    """A URL as it was typed, but for its user name and password."""
    return _USER.sub(r"\1[redacted]@", url)


def in_target(text: str) -> bytes:
    """A path, or a part of it or of a query, as it may stand in a request line: what may not is percent-coded."""
    return quote(text, safe=_PATH_SIGNS + "?").encode()


def _prefix(path: str, api_paths: tuple[str, ...] | None) -> str:
    if api_paths is None:
        return quote(path, safe=_PATH_SIGNS)
    prefix = quote(path.rstrip("/"), safe=_PATH_SIGNS)
    for known in (*api_paths, "/v1"):
        if prefix.endswith(known):
            return prefix[: -len(known)].rstrip("/")
    return prefix


def place(address: str, port: int) -> str:
    """An address in words: of a host, or of a unix socket."""
    return f"the socket {address}" if address.startswith("/") else f"{address} port {port}"


def resolve(origin: Origin, timeout_s: float) -> str:
    """The one address that all connections of a run go to (the resolver's first), so that a run measures one server.

    Of a unix socket it is the path.

    Raises:
        TargetError: the name does not resolve, or not within ``timeout_s``.
    """
    if origin.socket is not None:
        return origin.socket
    try:
        return str(ipaddress.ip_address(origin.host))
    except ValueError:
        pass  # a name, not an address: ask the resolver
    answer: list[str | OSError] = []

    def look_up() -> None:
        try:
            answer.append(str(socket.getaddrinfo(origin.host, origin.port, type=socket.SOCK_STREAM)[0][4][0]))
        except OSError as error:
            answer.append(error)

    # The system's resolver knows no time limit of ours, so it works in a thread that nobody need wait for.
    thread = threading.Thread(target=look_up, daemon=True)
    thread.start()
    thread.join(timeout_s)
    found = answer[0] if answer else OSError(f"no answer within {timeout_s:g} s")
    if isinstance(found, OSError):
        raise TargetError(
            f"cannot reach {origin.url}: the name {origin.host!r} does not resolve ({found.strerror or found}); "
            "check the URL"
        )
    return found
