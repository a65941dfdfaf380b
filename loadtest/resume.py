"""Going on with a run that ended before its time: what was asked then, and the levels that need not be played again."""

from collections.abc import Sequence
from datetime import UTC, datetime

import msgspec

from loadtest.caveats import caveats
from loadtest.errors import ResultError, UsageError
from loadtest.folder import RESOLVED
from loadtest.level import Level
from loadtest.options import Options
from loadtest.redact import MARK
from loadtest.result import Audit, LevelResult, Manner, Result, load
from loadtest.sitting import Sitting

_FINISHED = ("ok", "overloaded")


def earlier(options: Options) -> tuple[Options, Result]:
    """What the run in the options' folder was asked to do, and its result so far.

    Of ``options`` only counts how to get to the target and to be let in: nothing of that is stored.

    Raises:
        ResultError: there is no run that could be gone on with.
        UsageError: it is to be another target, or the URL has to be given again.
    """
    assert options.output is not None
    before = load(options.output)
    if before.complete:
        raise ResultError(f"{options.output} holds a run that is complete: there is nothing to go on with")
    if before.manner is None:
        raise ResultError(f"{options.output} was made by a loadtest that could not be resumed; begin it anew")
    return as_asked(options, before, before.manner), before


def as_asked(options: Options, before: Result, manner: Manner) -> Options:
    """The options as they were when the run, or search, began.

    Raises:
        UsageError: it is to be another target, or the URL has to be given again.
    """
    assert options.output is not None
    url, given = manner.url, options.url
    secret = url is not None and MARK in url
    if url is not None and secret and given is None:
        raise UsageError(f"the URL was {url}, and what it held is not stored: give it again, after the folder")
    if given is not None and not secret and given != url:
        was = "the bundled server" if url is None else url
        raise UsageError(f"{given} is not the target of the run, {was}: leave it out, or begin a new run")
    return msgspec.structs.replace(
        options,
        url=given or url,
        source=str(options.output / RESOLVED),
        overrides={},
        labels={**before.labels, **options.labels},
        strict=manner.strict,
        on_inconclusive=manner.on_inconclusive,
        transport=manner.transport,
        workers=manner.workers,
        cluster=manner.cluster,
        traceparent=manner.traceparent,
        run_header=manner.run_header,
        records=before.records,
        resume=True,
    )


def again(sitting: Sitting, before: Result) -> tuple[list[LevelResult], list[LevelResult]]:
    """The levels that are kept, and those that extend one of them; the sitting goes on after them.

    What was interrupted, aborted or lost a worker is played again from its start, and nothing of it is left.

    Raises:
        ResultError: the scenario has changed, or the journal is damaged or cannot be written.
    """
    planned, extends = sitting.levels, sitting.extends
    played, extensions = _kept(before, planned, extends=extends)
    sitting.go_on({*range(len(played)), *range(len(planned), len(planned) + len(extensions))})
    mark(sitting, before, [*played, *extensions], before.audits if played else [])
    return played, extensions


def mark(sitting: Sitting, before: Result, kept: Sequence[LevelResult], audits: list[Audit]) -> None:
    """Have the result say that it was gone on with, what is no longer as it was then, and what it said before.

    But for what it said of levels that were not ``kept``; caveats are made anew of those that were.
    """
    begun, sized = sitting.begun, before.conditions.prompts_sized
    stale = {text for level in before.levels for text in caveats(level, sized, sitting.alerts)}
    gone = {level.name for level in before.levels} - {level.name for level in kept}
    of_gone = tuple(start for name in gone for start in (f"{name}: ", f"level {name}: ", f"level {name} was "))
    said = [text for text in before.warnings if text not in stale and not text.startswith(of_gone)]
    now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    sitting.begun = msgspec.structs.replace(
        begun,
        command=before.command,
        started_at=before.started_at,
        conditions=msgspec.structs.replace(begun.conditions, scenario=before.conditions.scenario),
        audits=audits,
        resumed=[*before.resumed, now],
        warnings=[*dict.fromkeys([*said, *begun.warnings, *_changed(before, begun)])],
    )


def _kept(before: Result, planned: Sequence[Level], *, extends: bool) -> tuple[list[LevelResult], list[LevelResult]]:
    played: list[LevelResult] = []
    extensions: list[LevelResult] = []
    further = list(before.levels[len(planned) :])
    for level, plan in zip(before.levels, planned, strict=False):
        if (level.name, level.repeat) != (plan.name, plan.repeat):
            raise ResultError(f"the scenario beside the result plans {plan.name}, and the result has {level.name}")
        if level.status not in _FINISHED or level.goes_on:
            break
        own = further.pop(0) if further and further[0].extends == level.name else None
        if own is None and extends and any(slo.more_requests is not None for slo in level.slo):
            break  # it was about to be extended
        if own is not None and (own.status not in _FINISHED or own.goes_on):
            break
        played.append(level)
        extensions += [own] if own else []
    return played, extensions


def _changed(before: Result, now: Result) -> list[str]:
    """What is no longer as it was, in words; figures of such levels are not those of one run."""
    old, new = before.conditions, now.conditions
    both: list[tuple[str, object, object]] = [
        ("loadtest", before.tool.version, now.tool.version),
        ("model", old.endpoint.model, new.endpoint.model),
        ("kind of endpoint", old.endpoint.kind, new.endpoint.kind),
        ("precision", old.precision, new.precision),
        ("the target's hardware", old.hardware.server, new.hardware.server),
        ("this host", old.hardware.client, new.hardware.client),
        *((name, old.software.get(name), new.software.get(name)) for name in sorted({*old.software, *new.software})),
    ]
    return [
        f"resumed under other conditions: {what} was {one or 'unknown'} and is {other or 'unknown'}"
        for what, one, other in both
        if one != other
    ]
