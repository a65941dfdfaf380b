"""Scenario files: YAML read, checked whole, and turned into frozen values."""

import random
from typing import Any

from loadtest.scenario.catalog import find, presets
from loadtest.scenario.model import Block, Override, Preset, Resolved, Scenario, ServerSettings

__all__ = [
    "Block",
    "Override",
    "Preset",
    "Resolved",
    "Scenario",
    "ServerSettings",
    "find",
    "load",
    "names",
    "presets",
    "schema",
    "seeded",
]


def load(source: str | None, overrides: dict[str, Override], *, played: bool = False) -> Resolved:
    """The scenario in ``source`` with ``overrides`` applied; precedence: default < file < override.

    ``source`` is a preset's name, a path, or None for flags alone. ``overrides`` are keyed by the flag's name with
    underscores (``max_batch_size``; ``stream`` for ``--no-stream``), their values are the text of the flag. ``scale``
    is no value of a file, but makes the whole scenario smaller. With ``played`` it is what a run has written of its own
    scenario: the files that it names need not be there any more.

    Raises:
        ScenarioError: the file, or an override, is wrong; every fault is in the message, each with its place.
    """
    # pydantic takes a tenth of a second to import: only those pay who load a scenario
    from loadtest.scenario.resolve import resolve  # noqa: PLC0415

    return resolve(source, overrides, played=played)


def seeded(source: str | None, overrides: dict[str, Override]) -> Resolved:
    """The scenario with a seed: where nobody gave one it is drawn now, so that it is recorded like a given one."""
    resolved = load(source, overrides)
    if resolved.scenario.seed is None:
        drawn = Override(str(random.SystemRandom().randrange(2**31)), "drawn at random")
        resolved = load(source, {**overrides, "seed": drawn})
    return resolved


def names(source: str | None, overrides: dict[str, Override], key: str) -> bool:
    """Whether the scenario in ``source``, or an override, says something of ``key``; it may be wrong all the same.

    Raises:
        ScenarioError: there is no such file, or it is no scenario.
    """
    from loadtest.scenario.resolve import names  # noqa: PLC0415

    return names(source, overrides, key)


def schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of a scenario file."""
    from loadtest.scenario.form import json_schema  # noqa: PLC0415

    return json_schema()
