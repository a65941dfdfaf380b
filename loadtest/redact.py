"""Secrets taken out of everything that is stored or printed."""

import html
import json
import re
from base64 import b64decode, b64encode
from binascii import Error
from collections.abc import Iterable, Sequence
from urllib.parse import quote, quote_plus, unquote

MARK = "[redacted]"
_SECRET_NAME = re.compile(r"auth|key|token|secret|cookie|passw|session|credential|sig", re.IGNORECASE)
_URL_USER = re.compile(r"(?<=://)[^/@\s]+@")
_URL_QUERY = re.compile(r"(https?://[^\s?'\"]+)\?([^\s'\"]+)")
_VERSION = re.compile(r"api-version=[\w.-]+")  # without it the URL is another one, and it is nobody's secret
# A shorter one is in half of all words: it is taken out where it stands for itself.
_SHORT = 4
_SCHEMES = ("bearer", "basic", "token", "key", "apikey")
_CUT = 16  # so much of one, or half of it, is one that was cut off


class Redactor:
    """Replaces known secrets wherever they stand, and what in a URL may be one: its user name and its query.

    A secret is known in the forms that it takes within other text: JSON, a URL, HTML, a shell's quotes, Python's.
    """

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._known: dict[str, int] = {}  # and how much of each there has to be of it, at least
        self._pattern: re.Pattern[str] | None = None
        self._forms: set[str] = set()
        self.learn(secrets)

    @property
    def secrets(self) -> tuple[str, ...]:
        """What it knows, so that another process may know it too."""
        return tuple(self._known)

    def learn(self, secrets: Iterable[str], least: int = 0) -> None:
        """More secrets, such as a token that has just been renewed; ``least`` characters of one that are none yet."""
        self._known.update((secret, least) for secret in secrets if secret.strip())
        forms = {form: of for secret, of in self._known.items() for form in _forms(secret)}
        # By its beginning each one is found, and taken out as far as it goes.
        beginnings = sorted({form[: max(_begun(form), of)] for form, of in forms.items()}, key=len, reverse=True)
        patterns = [
            re.escape(each) if len(each) >= _SHORT else rf"(?<!\w){re.escape(each)}(?!\w)" for each in beginnings
        ]
        self._forms = {*forms}
        self._pattern = re.compile("|".join(patterns)) if patterns else None

    def __call__(self, text: str) -> str:
        """The text without secrets."""
        if self._pattern is not None and (found := self._pattern.search(text)) is not None:
            parts: list[str] = []
            at = 0
            while found is not None:
                parts += text[at : found.start()], MARK
                at = found.start() + max(_alike(text, found.start(), form) for form in self._forms)
                found = self._pattern.search(text, at)
            text = "".join([*parts, text[at:]])
        return _URL_QUERY.sub(_without_query, _URL_USER.sub(f"{MARK}@", text))


def _without_query(url: re.Match[str]) -> str:
    """The URL without what its query says, but for the version of an API."""
    versions = [part for part in url[2].split("&") if _VERSION.fullmatch(part)]
    others = [MARK] * (len(versions) <= url[2].count("&"))
    return f"{url[1]}?{'&'.join([*versions, *others])}"


def _begun(form: str) -> int:
    """How much of a secret tells that it stood there: words are cut off at some length, whatever they say."""
    return min(_CUT, max(_SHORT, (len(form) + 1) // 2))


def _alike(text: str, start: int, form: str) -> int:
    """How many characters of a form stand in the text from there on."""
    if text.startswith(form, start):
        return len(form)
    return next(n for n, sign in enumerate(form) if text[start + n : start + n + 1] != sign)


def _forms(secret: str) -> Iterable[str]:
    yield secret
    yield secret.replace("'", "'\"'\"'")  # as the command is stored, so that it could be typed again
    yield json.dumps(secret)[1:-1]
    yield json.dumps(secret, ensure_ascii=False)[1:-1]
    yield repr(secret)[1:-1]
    yield repr(secret.encode("utf-8", "surrogateescape"))[2:-1]
    yield repr(secret.encode("latin-1", "replace"))[2:-1]
    yield html.escape(secret)
    coded = secret.encode("utf-8", "surrogateescape")
    for form in (quote(coded, safe=""), quote(coded), quote_plus(coded)):
        yield form
        yield re.sub("%..", lambda found: found[0].lower(), form)


def secrets_of(headers: Sequence[tuple[str, str]], api_key: str | None, query: str) -> list[str]:
    """The values that must never be stored: the key, and those of headers and of a URL's query that carry one."""
    found = [api_key or ""]
    for name, _, value in (part.partition("=") for part in query.split("&")):
        if _SECRET_NAME.search(name):
            found += [value, unquote(value)]  # a server may repeat it as it understood it
    for name, value in headers:
        if _SECRET_NAME.search(name):
            scheme, _, rest = value.partition(" ")
            found += [rest if scheme.lower() in _SCHEMES else value, *_within(name, value)]
    return found


def of_user(user: str) -> list[str]:
    """The secrets of a ``name:password``: also as Basic authentication sends it."""
    name, _, password = user.partition(":")
    # In base64 what stands before it is part of it: of a name and a password only the whole is known.
    return [user, password, b64encode(user.encode("utf-8", "surrogateescape")).decode("ascii")] if password else [name]


def _within(name: str, value: str) -> list[str]:
    """Secrets inside the value of a header, as a server may repeat them."""
    scheme, _, rest = value.partition(" ")
    if scheme.lower() == "basic":
        try:
            return of_user(b64decode(rest.strip(), validate=True).decode("utf-8", "replace"))
        except Error:
            return []
    if name.lower() == "cookie":
        return [part.partition("=")[2].strip() for part in value.split(";")]
    return []
