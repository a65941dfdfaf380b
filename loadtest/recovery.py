"""A result folder read again: the result as written, or, where the run was cut short, computed from its journal."""

from collections import defaultdict
from pathlib import Path

import msgspec

from loadtest import plan, scenario
from loadtest.caveats import caveats
from loadtest.columns import prompts
from loadtest.records import JOURNAL, Record, read
from loadtest.repeats import repeats
from loadtest.result import LevelResult, Result, load
from loadtest.run import RESOLVED
from loadtest.summary import summarise


def recovered(folder: Path) -> Result:
    """The result in ``folder``. Levels whose requests are in the journal but not in the result are added to it.

    Raises:
        ResultError: it is no result folder, or damaged.
        ScenarioError: the run was cut short, and the scenario beside its journal is damaged.
    """
    result = load(folder)
    missing = [index for index, level in enumerate(result.levels) if level.status == "not_reached"]
    if result.complete or not missing or not (folder / JOURNAL).exists():
        return result
    by_level: dict[int, list[Record]] = defaultdict(list)
    for record in read(folder / JOURNAL)[0]:
        by_level[record.level].append(record)
    bundled = any(level.batching for level in result.levels)
    levels = plan.levels(scenario.load(str(folder / RESOLVED), {}).scenario, bundled=bundled)
    found: dict[int, LevelResult] = {}
    sent: set[int] = set()
    for index in sorted(by_level):
        if index in missing:
            found[index] = summarise(levels[index], by_level[index], None, sent)
        sent.update(prompts(by_level[index]))
    every = [found.get(index, level) for index, level in enumerate(result.levels)]
    sized = result.conditions.prompts_sized
    return msgspec.structs.replace(
        result,
        levels=every,
        repeats=repeats(every),
        warnings=[*result.warnings, *(text for level in found.values() for text in caveats(level, sized))],
    )
