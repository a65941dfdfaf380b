"""A result folder read again: the result as written, or, where the run was cut short, computed from its journal."""

from collections.abc import Iterable, Sequence
from itertools import groupby, islice
from operator import attrgetter
from pathlib import Path

import msgspec
import numpy as np

from loadtest import alert, plan, scenario
from loadtest import rows as kept
from loadtest.caveats import caveats
from loadtest.columns import prompts
from loadtest.folder import RESOLVED
from loadtest.judgement import Played, judge
from loadtest.keeping import together
from loadtest.level import Level
from loadtest.records import Record, files, records
from loadtest.repeats import repeats
from loadtest.result import DataRef, LevelResult, Result, load
from loadtest.scenario.model import Scenario
from loadtest.slo import parse, tightest_ms
from loadtest.summary import summarise
from loadtest.telemetry import trail
from loadtest.telemetry.account import with_sight
from loadtest.verdict import overall
from loadtest.workload.model import Rows, Workload

_BATCH = 20_000


def recovered(folder: Path) -> Result:
    """The result in ``folder``. Levels whose requests are in the journal but not in the result are added to it.

    Raises:
        ResultError: it is no result folder, or damaged.
        ScenarioError: the run was cut short, and the scenario beside its journal is damaged.
    """
    result = load(folder)
    missing = [index for index, level in enumerate(result.levels) if level.status == "not_reached" or level.goes_on]
    if result.complete or not missing or result.records != "all" or not files(folder):
        return result
    asked = scenario.load(str(folder / RESOLVED), {}, played=True).scenario
    levels, slos = _levels(asked, result), [parse(text) for text in asked.slo]
    alerts = [alert.parse(text) for text in asked.warn]
    found: dict[int, LevelResult] = {}
    sent, sighted = prompts([]), trail.read(folder)
    for index, requests in sorted(requests_of(folder, folder).items()):
        if index in missing and index < len(levels):  # of what a run plays beyond its plan, the figures so far stay
            figures = summarise(levels[index], requests, None, sent, tightest_ms(slos))
            if sighted is not None and sighted.setting.level == index:
                figures = with_sight(figures, requests, sighted)
            found[index] = judge([Played(levels[index], figures, requests, None)], slos)
        sent = np.union1d(sent, prompts(requests))
        if not isinstance(requests, list):
            requests.close()
    every = [found.get(index, level) for index, level in enumerate(result.levels)]
    sized = result.conditions.prompts_sized
    return msgspec.structs.replace(
        result,
        levels=every,
        repeats=repeats(every),
        verdict=overall(every, complete=False, audits=result.audits),
        warnings=[*result.warnings, *(text for level in found.values() for text in caveats(level, sized, alerts))],
    )


def requests_of(folder: Path, into: Path) -> dict[int, list[Record] | kept.Rows]:
    """Those of each level that the journal in ``folder`` has; of a long one rows ``into`` a folder, to be closed.

    Raises:
        ResultError: it is damaged, or the rows cannot be written.
    """
    found: dict[int, list[Record] | kept.Rows] = {}
    every = records(folder)
    while some := [*islice(every, _BATCH)]:
        for level, own in groupby(some, attrgetter("level")):
            found[level] = together(found.get(level, []), [*own], into)
    return found


def _levels(asked: Scenario, result: Result) -> list[Level]:
    """The levels as they were planned; what was made ready of data files and traces is gone, but for its account."""
    sources = dict.fromkeys(
        [*(block.trace for block in asked.levels), *(workload.data for workload in asked.workloads)]
    )
    rows = {source: Rows(str(number), source.path, 0, "") for number, source in enumerate(sources) if source}
    levels = plan.levels(asked, bundled=any(level.batching for level in result.levels), rows=rows)
    return [
        msgspec.structs.replace(
            level,
            name=planned.name,
            load=planned.load,
            duration_s=level.duration_s if planned.load.duration_s is None else planned.load.duration_s,
            warmup_s=planned.window.warmup_s,
            workloads=_with_rows(level.workloads, planned.workload.data),
        )
        for level, planned in zip(levels, result.levels, strict=False)  # extensions come after those that were planned
    ]


def _with_rows(workloads: Sequence[Workload], data: Iterable[DataRef]) -> tuple[Workload, ...]:
    refs = iter(data)
    return tuple(
        msgspec.structs.replace(workload, rows=Rows("", ref.source, ref.rows, ref.sha256))
        if workload.rows and (ref := next(refs, None))
        else workload
        for workload in workloads
    )
