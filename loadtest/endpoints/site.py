"""What a URL says of the API behind it, besides where that is: the form of its paths, its key's header, its model."""

import re
from urllib.parse import parse_qsl, unquote

import msgspec

from loadtest.endpoints.catalog import dialect, endings
from loadtest.endpoints.dialect import Get
from loadtest.endpoints.pattern import Pattern
from loadtest.target import Known
from loadtest.wire.origin import Origin, parse

# Source: Azure OpenAI's REST reference (endpoints, authentication, api-version).
_AZURE_HOSTS = (".openai.azure.com", ".cognitiveservices.azure.com", ".services.ai.azure.com")
_DEPLOYMENT = re.compile(r"/openai/deployments/([^/]+)$")
_VERSIONED = re.compile(r"/v\d")
# Source: the Open Inference Protocol; Triton's and KServe's paths begin with this.
_OPEN_INFERENCE = re.compile(r"/v2(?:/models(?:/([^/]+(?:/versions/[^/]+)?)(?:/[a-z_]+)?)?)?$")


class Site(msgspec.Struct, frozen=True):
    """An API of one kind at a URL.

    ``path`` takes the place of the dialect's own, which None is. ``key_header`` takes the API key as it is; of None it
    is sent as a bearer token. ``model`` is the one that the URL itself names.
    """

    kind: str
    origin: Origin
    path: str | None = None
    key_header: str | None = None
    model: str | None = None

    def discover(self, get: Get, model: str | None) -> Known:
        """What the target says of itself; see ``Dialect.discover``. Its paths are of the same form as the API's own.

        Raises:
            TargetError: it cannot be reached, or names no model and none was given.
        """
        bare = self.path is not None and not _VERSIONED.match(self.path)
        asked = (lambda path: get(path.removeprefix("/v1"))) if bare else get
        return dialect(self.kind).discover(asked, model or self.model)

    def around(self, pattern: Pattern) -> Origin:
        """Where what is no part of the API is looked for, such as its health: a URL of a request's own is no base."""
        whole = dialect(self.kind).exact_url and pattern.request.route is None
        return msgspec.structs.replace(self.origin, prefix="", query="") if whole else self.origin


def site(url: str, kind: str) -> Site:
    """The API of that kind at a URL: its base, or the whole URL of one of its paths.

    A whole URL whose path has no ``/v1`` is taken as it stands: gateways and clouds have prefixes of their own
    (``/v1beta/openai``, ``/serving-endpoints``). Nor has a deployment of Azure, ``/openai/deployments/NAME``.
    ``/v2/models/NAME``, also with a version and what follows, names the model where a dialect's paths begin with /v2.

    Raises:
        UsageError: it is no URL, or there is no such kind.
    """
    spoken, given, path = dialect(kind), parse(url).prefix, None
    if spoken.exact_url:
        return Site(kind, parse(url, None))
    short = [ending.removeprefix("/v1") for ending in spoken.endings if ending.startswith("/v1/")]
    if (found := next(filter(given.endswith, (*spoken.endings, *short)), None)) is not None:
        origin, path = parse(url, (found,)), found if found != spoken.path else None
    else:
        origin = parse(url, endings())
    named = _DEPLOYMENT.search(origin.prefix)
    if named and path is None:
        path = spoken.path.removeprefix("/v1")
    if spoken.path.startswith("/v2") and (whole := _OPEN_INFERENCE.search(given)):
        origin, path, named = msgspec.structs.replace(origin, prefix=given[: whole.start()]), None, whole
    azure = origin.host.endswith(_AZURE_HOSTS) or "api-version" in dict(parse_qsl(origin.query))
    return Site(
        kind,
        origin,
        path,
        spoken.key_header or ("api-key" if azure else None),
        unquote(named[1]) if named and named[1] else None,
    )
