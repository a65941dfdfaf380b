"""Small questions to the target outside the measurement: its models, its health, its settings. Blocking, one at a time.

The standard library's client: nothing here is measured, and it costs no import that the first request would wait for.
"""

import http.client
import json
import ssl
from collections.abc import Mapping
from typing import Any

import msgspec

from loadtest.errors import TargetError, UsageError
from loadtest.wire.exchange import tls_words
from loadtest.wire.origin import Origin
from loadtest.wire.response import foreign


class Reply(msgspec.Struct, frozen=True):
    """Status, body as text, and the body as JSON (None if it is not)."""

    status: int
    text: str
    json: Any


def ask(
    origin: Origin, address: str, method: str, path: str, *, timeout_s: float,
    headers: Mapping[str, str] | None = None, body: object = None,
) -> Reply:  # fmt: skip
    """Ask one thing of the target.

    Raises:
        TargetError: it could not be reached, or did not answer HTTP within ``timeout_s``.
        UsageError: a header is not one that HTTP can carry.
    """
    where = f"{origin.url} ({address} port {origin.port})"
    if origin.scheme == "https":
        connection: http.client.HTTPConnection = http.client.HTTPSConnection(
            origin.host, origin.port, timeout=timeout_s, context=ssl.create_default_context()
        )
    else:
        connection = http.client.HTTPConnection(address, origin.port, timeout=timeout_s)
    sent = {"Host": origin.authority, "Accept-Encoding": "identity", **(headers or {})}
    try:
        data = None if body is None else json.dumps(body)
        if data is not None:
            sent["Content-Type"] = "application/json"
        connection.request(method, path, data, sent)
        response = connection.getresponse()
        text = response.read().decode("utf-8", "replace")
    except TimeoutError:
        raise TargetError(f"cannot reach {where}: no answer within {timeout_s:g} s; is it running?") from None
    except ssl.SSLError as error:
        raise TargetError(f"cannot reach {where}: TLS failed: {tls_words(error)}") from None
    except OSError as error:
        raise TargetError(
            f"cannot reach {where}: {error.strerror or error}; is it running, and the port right?"
        ) from None
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
    return Reply(response.status, text, parsed)
