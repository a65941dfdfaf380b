"""The dialects by name: those that come with the tool, and those of installed packages."""

import functools
import importlib
import logging
from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from loadtest.endpoints.dialect import Dialect, Settings
from loadtest.endpoints.pattern import Pattern
from loadtest.errors import LoadtestError, UsageError

GROUP = "loadtest.endpoints"
_UNSAID = Pattern()
log = logging.getLogger(__name__)
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
    lacking = [*sorted(found.__abstractmethods__), *(() if hasattr(found, "path") else ("path",))]
    if lacking:
        raise UsageError(f"endpoint {kind}: {found.__name__} has no {' and '.join(lacking)}; write it")
    return found.of(pattern)


@functools.cache
def usable() -> dict[str, type[Dialect]]:
    """The classes by their kinds, without those of packages that cannot be used: whoever asks for another can do
    without them."""
    found: dict[str, type[Dialect]] = {}
    for kind in kinds():
        try:
            found[kind] = dialect(kind)
        except UsageError as error:
            log.warning("%s", error)
    return found


def speak(settings: Settings) -> Dialect:
    """The dialect of a run.

    Raises:
        UsageError: an installed package's fails; later, out of its functions, too.
    """
    found = dialect(settings.kind, settings.pattern)
    if settings.kind in _OWN:
        return found(settings)
    spoken: Dialect = _named(found, settings.kind)(settings)
    for name in ("body", "event", "whole", "head"):
        setattr(spoken, name, _named(getattr(spoken, name), settings.kind))
    return spoken


def _named(function: Callable[..., Any], kind: str) -> Callable[..., Any]:
    """A function of somebody else's package, whose faults are named as its own."""

    @functools.wraps(function)
    def named(*arguments: Any) -> Any:
        try:
            return function(*arguments)
        except LoadtestError:
            raise
        except Exception as error:
            if isinstance(error, ValueError) and function.__name__ == "whole":
                raise  # its way to say that a body is no answer
            raise UsageError(f"endpoint {kind}: {function.__qualname__} fails: {error!r}; mend its package") from error

    return named


def endings() -> tuple[str, ...]:
    """What a URL may end in that is a path of an API and no part of its base; the longest first, as some end others."""
    return tuple(sorted({ending for each in usable().values() for ending in each.endings}, key=len, reverse=True))
