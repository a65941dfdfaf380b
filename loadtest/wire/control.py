"""Small questions to the target outside the measurement: its models, its health, its settings. Blocking, one at a time.

The standard library's client: nothing here is measured, and it costs no import that the first request would wait for.
"""

import contextlib
import http.client
import json
import socket
import ssl
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from loadtest import __version__
from loadtest.errors import TargetError, UsageError
from loadtest.wire.origin import Origin, place
from loadtest.wire.proxy import Proxy
from loadtest.wire.response import foreign
from loadtest.wire.tls import Tls, shared, tls_words

_MOST_BYTES = 4 << 20  # more than any list of models


class Reply(msgspec.Struct, frozen=True):
    """Status, body as text, and the body as JSON (None if it is not); headers by their names in lower case."""

    status: int
    text: str
    json: Any
    headers: dict[str, str] = {}


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def ask(
    origin: Origin, address: str, method: str, path: str, *, timeout_s: float,
    headers: Mapping[str, str] | None = None, body: object = None, tls: Tls | None = None, proxy: Proxy | None = None,
    most_bytes: int = _MOST_BYTES,
) -> Reply:  # fmt: skip
    """Ask one thing of the target. With a proxy, ``address`` is the proxy's.

    Raises:
        TargetError: it could not be reached, did not answer HTTP within ``timeout_s``, or more than ``most_bytes``.
        UsageError: a header is not one that HTTP can carry.
    """
    if proxy is not None:
        where = f"{origin.url} through the proxy {proxy.url} ({place(address, proxy.port)})"
    else:
        where = f"{origin.url} ({place(address, origin.port)})"
    if origin.socket is not None:
        connection: http.client.HTTPConnection = _UnixConnection(origin.socket, timeout_s)
    elif origin.scheme == "https":
        # Its host, not its address: the name is what the certificate must be for.
        connection = http.client.HTTPSConnection(
            address if proxy else origin.host, proxy.port if proxy else origin.port, timeout=timeout_s,
            context=shared(tls or Tls()),
        )  # fmt: skip
        if proxy is not None:
            connection.set_tunnel(origin.host, origin.port, proxy.headers)
    else:
        connection = http.client.HTTPConnection(address, proxy.port if proxy else origin.port, timeout=timeout_s)
    sent = {"Host": origin.authority, "User-Agent": f"loadtest/{__version__}", "Accept-Encoding": "identity"}
    for name, value in (headers or {}).items():
        sent = {known: old for known, old in sent.items() if known.lower() != name.lower()} | {name: value}
    if proxy is not None and origin.scheme == "http":
        path = f"http://{origin.authority}{path}"
        sent |= proxy.headers
    try:
        data = None if body is None else json.dumps(body)
        if data is not None:
            sent["Content-Type"] = "application/json"
        with _deadline(connection, timeout_s):
            connection.request(method, path, data, sent)
            response = connection.getresponse()
            read = response.read(most_bytes + 1)
            if len(read) > most_bytes:
                raise TargetError(f"{where} answers with more than {most_bytes >> 20} MiB; it was not read further")
            if response.length:  # what a bounded read does not raise by itself
                raise http.client.IncompleteRead(b"", response.length)
            text = read.decode("utf-8", "replace")
    except TimeoutError:
        raise TargetError(f"cannot reach {where}: no whole answer within {timeout_s:g} s; is it running?") from None
    except ssl.SSLError as error:
        raise TargetError(f"cannot reach {where}: TLS failed: {tls_words(error)}") from None
    except OSError as error:
        mend = f"is it running, and the {'path' if origin.socket else 'port'} right?"
        raise TargetError(f"cannot reach {where}: {error.strerror or error}; {mend}") from None
    except ValueError as error:  # http.client's way of refusing a header
        raise UsageError(f"a header cannot be sent as it is given: {error}") from None
    except http.client.BadStatusLine as error:
        line = str(error.args[0]).encode("latin-1", "replace")
        raise TargetError(f"{where} does not answer HTTP/1.1: {foreign(line)}") from None
    except http.client.HTTPException as error:
        raise TargetError(f"{where} does not answer HTTP/1.1 ({error or type(error).__name__})") from None
    finally:
        connection.close()
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError):
        parsed = None
    return Reply(response.status, text, parsed, {name.lower(): value for name, value in response.headers.items()})


@contextlib.contextmanager
def _deadline(connection: http.client.HTTPConnection, timeout_s: float) -> Iterator[None]:
    """TimeoutError after so long in all; the connection's own limit is for each read, and a server may drip."""
    late = threading.Event()

    def hang_up() -> None:
        late.set()
        if connection.sock is not None:
            with contextlib.suppress(OSError):  # it has ended by itself meanwhile
                connection.sock.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(timeout_s, hang_up)
    timer.daemon = True
    timer.start()
    try:
        yield
    except (OSError, http.client.HTTPException):
        if not late.is_set():
            raise
    finally:
        timer.cancel()
    if late.is_set():
        raise TimeoutError
