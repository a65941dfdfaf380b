"""What an endpoint speaks, where nobody says: its URL tells, or else what it answers to a few GETs."""

import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from loadtest.endpoints.catalog import dialect, kinds, usable
from loadtest.errors import TargetError
from loadtest.target import model_cards
from loadtest.wire.control import Reply
from loadtest.wire.origin import parse

DEFAULT = "chat"
FOUND = "found: "
"""What the source of a kind begins with that nobody named."""
# Paths of the Open Inference Protocol name their model; Triton's texts are an extension of it.
_OF_MODEL = re.compile(r"/v2/models/[^/]+(?:/versions/[^/]+)?/(infer|generate|generate_stream)$")


class Found(NamedTuple):
    """A kind of endpoint, and what told it."""

    kind: str
    how: str


def by_url(url: str) -> Found | None:
    """The kind whose path the URL ends in; the longest such path decides.

    Raises:
        UsageError: it is no URL.
    """
    path = parse(url).prefix
    if named := _OF_MODEL.search(path):
        kind = "kserve" if named[1] == "infer" else "triton"
        return Found(kind, f"its URL ends in /{named[1]} of a model") if kind in kinds() else None
    known = [(ending, kind) for kind, each in usable().items() for ending in each.endings]
    # Gateways have paths of their own in the place of /v1.
    known += [(short, kind) for ending, kind in known if (short := ending.removeprefix("/v1")) != ending]
    fitting = [each for each in known if path.endswith(each[0])]
    if not fitting:
        return None
    ending, kind = max(fitting, key=lambda each: len(each[0]))
    return Found(kind, f"its URL ends in {ending}")


def by_asking(get: Callable[[str], Reply]) -> Found:
    """The kind that fits what the target answers; of a target that gives no sign it is chat.

    A model list is enough, as most servers speak chat completions beside what is their own.

    Raises:
        TargetError: it cannot be reached.
    """
    for path, sign in _SIGNS:
        try:
            reply = get(path)
        except TargetError:
            if path == _SIGNS[0][0]:
                raise
            continue  # no answer to a question of this kind is no sign, and no fault either
        found = sign(reply.json) if reply.status == 200 and isinstance(reply.json, dict) else None
        if found in kinds():
            return Found(found, f"{path} answers as such an endpoint does")
        if path == _SIGNS[0][0] and (model_cards(reply) or reply.status in (401, 403)):
            return Found(DEFAULT, f"{path} {'lists models' if reply.status == 200 else f'answers {reply.status}'}")
    return Found(DEFAULT, "no path that was asked gave a sign of another kind")


def remarks(url: str, kind: str, source: str) -> list[str]:
    """What the user should know of the kind of a run's endpoint; ``source`` is what named it, or how it was found."""
    if source.startswith(FOUND):
        how = source.removeprefix(FOUND)
        return [] if kind == DEFAULT else [f"asked as endpoint {kind}, since {how}; name another with --endpoint"]
    other = None if dialect(kind).exact_url else by_url(url)
    if other is None or other.kind == kind:
        return []
    return [f"asked as endpoint {kind} ({source}), though {other.how}, a path of {other.kind}"]


def _models(reply: dict[str, Any]) -> str | None:
    """Anthropic's list has pages, and says of each entry that it is a model."""
    cards = reply.get("data")
    first = cards[0] if isinstance(cards, list) and cards else None
    return "anthropic" if isinstance(first, dict) and first.get("type") == "model" and "has_more" in reply else None


def _info(reply: dict[str, Any]) -> str | None:
    """Hugging Face's servers of texts, and of embeddings."""
    if "model_id" not in reply:
        return None
    of = reply.get("model_type")
    if isinstance(of, dict):
        return "embeddings" if "embedding" in of else "rerank" if "reranker" in of else None
    return "tgi"


def _server(reply: dict[str, Any]) -> str | None:
    """The Open Inference Protocol's word on the server; Triton has models of text by an extension of it."""
    return "kserve" if "extensions" in reply and "name" in reply else None


def _described(reply: dict[str, Any]) -> str | None:
    """The first kind whose path an OpenAPI description has."""
    paths = reply.get("paths")
    return next(_of_paths(paths), None) if isinstance(paths, dict) else None


def _of_paths(paths: dict[str, Any]) -> Iterator[str]:
    for kind, spoken in usable().items():
        if any(path.endswith(ending) for ending in spoken.endings for path in paths):
            yield kind


# What is asked for, and the kind that an answer in JSON is a sign of.
_SIGNS: tuple[tuple[str, Callable[[dict[str, Any]], str | None]], ...] = (
    ("/v1/models", _models),
    ("/api/tags", lambda reply: "ollama" if isinstance(reply.get("models"), list) else None),
    ("/info", _info),
    ("/props", lambda reply: "llamacpp" if "default_generation_settings" in reply else None),
    ("/v2", _server),
    ("/openapi.json", _described),
)
