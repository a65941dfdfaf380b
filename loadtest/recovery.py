"""A result folder read again: the result as written, or, where the run was cut short, computed from its journal."""

from collections import defaultdict
from pathlib import Path

import msgspec

from loadtest import plan, scenario
from loadtest.caveats import caveats
from loadtest.records import JOURNAL, Record, read
from loadtest.result import Result, load
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
    found = {index: summarise(levels[index], by_level[index], None) for index in missing if by_level[index]}
    return msgspec.structs.replace(
        result,
        levels=[found.get(index, level) for index, level in enumerate(result.levels)],
        warnings=[*result.warnings, *(text for level in found.values() for text in caveats(level))],
    )
