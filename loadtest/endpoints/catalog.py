"""The dialects by name: those that come with the tool, and those of installed packages."""

import functools
import importlib
from importlib.metadata import EntryPoint, entry_points

from loadtest.endpoints.dialect import Dialect, Settings
from loadtest.endpoints.pattern import Pattern
from loadtest.errors import UsageError

GROUP = "loadtest.endpoints"
_UNSAID = Pattern()
_OWN = {
    "chat": "openai:Chat",
    "completions": "openai:Completions",
    "responses": "responses:Responses",
    "embeddings": "embeddings:Embeddings",
    "rerank": "rerank:Rerank",
    "anthropic": "anthropic:Anthropic",
    "ollama": "ollama:Ollama",
    "ollama-generate": "ollama:OllamaGenerate",
    "tgi": "tgi:TGI",
    "llamacpp": "llamacpp:LlamaCpp",
    "triton": "triton:Triton",
    "kserve": "kserve:KServe",
    "http": "template:Template",
}


@functools.cache
def _added() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=GROUP) if entry.name not in _OWN}


def kinds() -> tuple[str, ...]:
    """All that ``--endpoint`` takes."""
    return (*_OWN, *sorted(_added()))


@functools.cache
def dialect(kind: str, pattern: Pattern = _UNSAID) -> type[Dialect]:
    """The class of a kind, for an API that a scenario says this of.

    Raises:
        UsageError: there is none of that name, or an installed package's cannot be used.
    """
    if (place := _OWN.get(kind)) is not None:
        module, _, name = place.partition(":")
        found = getattr(importlib.import_module(f"loadtest.endpoints.{module}"), name)
    elif (entry := _added().get(kind)) is not None:
        try:
            found = entry.load()
        except Exception as error:  # noqa: BLE001  # whatever somebody else's module raises when it is imported
            raise UsageError(f"endpoint {kind}: {entry.value} cannot be loaded ({error!r}); mend its package") from None
    else:
        raise UsageError(f"endpoint {kind!r}: there is none; there are {', '.join(kinds())}")
    if not (isinstance(found, type) and issubclass(found, Dialect)):
        raise UsageError(f"endpoint {kind}: {found!r} is not a subclass of loadtest.endpoints.dialect.Dialect")
    return found.of(pattern)


def speak(settings: Settings) -> Dialect:
    """The dialect of a run."""
    return dialect(settings.kind, settings.pattern)(settings)


def endings() -> tuple[str, ...]:
    """What a URL may end in that is a path of an API and no part of its base; the longest first, as some end others."""
    return tuple(sorted({ending for kind in kinds() for ending in dialect(kind).endings}, key=len, reverse=True))
