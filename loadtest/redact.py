"""Secrets taken out of everything that is stored or printed."""

import re
from collections.abc import Iterable, Sequence
from urllib.parse import unquote

MARK = "[redacted]"
_SECRET_NAME = re.compile(r"auth|key|token|secret|cookie|passw|session|credential|sig", re.IGNORECASE)
_URL_USER = re.compile(r"(?<=://)[^/@\s]+@")
_URL_QUERY = re.compile(r"(https?://[^\s?'\"]+)\?[^\s'\"]+")


class Redactor:
    """Replaces known secrets wherever they stand, and what in a URL may be one: its user name and its query."""

    def __init__(self, secrets: Iterable[str]) -> None:
        # Also as they stand within the quotes of a shell: the command is stored as it could be typed again.
        forms = {form for secret in secrets if secret for form in (secret, secret.replace("'", "'\"'\"'"))}
        # The longest first, so that a secret inside another leaves no remainder.
        self._secrets = sorted(forms, key=len, reverse=True)

    def __call__(self, text: str) -> str:
        """The text without secrets."""
        for secret in self._secrets:
            text = text.replace(secret, MARK)
        return _URL_QUERY.sub(rf"\1?{MARK}", _URL_USER.sub(f"{MARK}@", text))


def secrets_of(headers: Sequence[tuple[str, str]], api_key: str | None, query: str) -> list[str]:
    """The values that must never be stored: the key, values of headers that carry one, and the URL's query."""
    found = [api_key or "", query if _SECRET_NAME.search(query) else ""]
    for name, _, value in (part.partition("=") for part in query.split("&")):
        if _SECRET_NAME.search(name):
            found += [value, unquote(value)]  # a server may repeat it as it understood it
    for name, value in headers:
        if _SECRET_NAME.search(name):
            found += [value, value.split(" ", 1)[-1]]
    return found
