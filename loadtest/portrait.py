"""What a probe has found of a target. Pure values."""

import msgspec


class Check(msgspec.Struct, frozen=True):
    """One thing that was tried. ``works`` of None: it could not be told, or does not apply."""

    name: str
    works: bool | None
    evidence: str


class Step(msgspec.Struct, frozen=True):
    """A stretch of one request's time, from ``from_ms`` to ``to_ms`` after its beginning."""

    name: str
    from_ms: float
    to_ms: float


class Raw(msgspec.Struct, frozen=True):
    """The bytes of one request and its response, as text, without secrets."""

    sent: str
    received: str


class Portrait(msgspec.Struct, frozen=True, kw_only=True):
    """A target as it showed itself in a few small requests.

    ``endpoint`` is the kind that it speaks and ``how`` what told it. ``reason`` says why it cannot be used as it was
    called; None: it can. ``curl`` sends the timed request again, with a variable in the key's place. ``section`` is
    YAML of a scenario. ``requests`` is how many POSTs it took.
    """

    url: str
    address: str
    endpoint: str
    how: str
    model: str
    models: list[str]
    checks: list[Check]
    waterfall: list[Step]
    adaptations: list[str]
    curl: str
    section: str
    requests: int
    reason: str | None = None
    raw: Raw | None = None
