"""The bundled server as a scenario wants it, and what of a scenario does nothing with it, or without it."""

from collections.abc import Sequence

from loadtest.errors import UsageError
from loadtest.level import Level
from loadtest.scenario.model import Override, Scenario
from loadtest.target import ServerOptions

_BUNDLED_SPEAKS = ("chat", "completions")
# Flags of the bundled server, by the names that the command line gives their overrides.
_BUNDLED = ("scheduler", "max_batch_size", "batch_timeout_ms", "serve_model", "provider", "dtype", "threads")
_TEXT_ALONE = "the bundled server takes text alone: it leaves out the tools, pictures and forms of answers of requests"


def server_options(asked: Scenario, levels: Sequence[Level]) -> ServerOptions:
    """How the bundled server is started to play these levels.

    Raises:
        UsageError: it cannot do what is asked.
    """
    if asked.endpoint not in _BUNDLED_SPEAKS:
        raise UsageError(
            f"endpoint {asked.endpoint}: the bundled server speaks {' and '.join(_BUNDLED_SPEAKS)}; give the URL of "
            "one that speaks it"
        )
    if asked.model is not None:
        raise UsageError("--model names a model of the endpoint at a URL; the bundled server's is --serve-model")
    server = asked.server
    largest = max(level.batching.max_batch_size for level in levels if level.batching)
    slots = largest if server.kv_slots is None else server.kv_slots
    if slots < largest:
        raise UsageError(f"server.kv_slots: {slots} slots cannot hold the largest batch of the levels, {largest}")
    return ServerOptions(
        server.model, server.provider, server.dtype, server.threads, slots, server.max_seq_len, _beyond_text(asked)
    )


def unused(asked: Scenario, overrides: dict[str, Override], *, bundled: bool) -> list[str]:
    """What was asked and does nothing: of the bundled server more than text, of a URL what only that server has."""
    if bundled:
        return [_TEXT_ALONE] if _beyond_text(asked) else []
    given = [overrides[name].origin for name in _BUNDLED if name in overrides]
    flags = [origin for origin in given if origin.startswith("-")]  # a variable may be meant for other runs
    if flags:
        return [f"set for the bundled server, and so not used here: {', '.join(flags)}"]
    if any(len(block.scheduler) * len(block.max_batch_size) > 1 for block in asked.levels):
        return ["the scenario's batching levels are settings of the bundled server and were left out"]
    return []


def _beyond_text(asked: Scenario) -> bool:
    """Whether requests may hold what a server of text alone refuses: tools, pictures, forms of answers."""
    return any(workload.images is not None or workload.body is not None for workload in asked.workloads)
