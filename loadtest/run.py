"""One run on one screen: scenario -> sitting -> levels one after the other -> result."""

import logging
from collections.abc import Sequence
from pathlib import Path

import msgspec

from loadtest import scenario
from loadtest.alert import Alert
from loadtest.approach import detected
from loadtest.caveats import caveats
from loadtest.engine.crew import asked_to_stop
from loadtest.errors import EXIT_INTERRUPTED, Aborted, LoadtestError, TargetError, worst_exit_code
from loadtest.level import Level
from loadtest.options import Options
from loadtest.progress import Progress
from loadtest.repeats import repeats
from loadtest.result import LevelResult, Result, not_reached, write
from loadtest.resume import again, earlier
from loadtest.sitting import sit
from loadtest.slo import Slo
from loadtest.verdict import exit_code, overall, unjudged

log = logging.getLogger(__name__)


class Outcome(msgspec.Struct, frozen=True):
    """A finished run: its result, where it lies, and what went wrong, if anything did.

    ``at_once``: the user has asked twice to stop, and waits for nothing more.
    """

    result: Result
    folder: Path
    error: LoadtestError | None
    at_once: bool = False


def run(options: Options, progress: Progress) -> Outcome:
    """Play a run to its end, an interruption, or an error; in each case the result so far is on disk.

    Raises:
        LoadtestError: it could not begin.
    """
    before = None
    if options.resume:
        options, before = earlier(options)
    options = detected(options, progress)
    resolved = scenario.seeded(options.source, options.overrides)
    with asked_to_stop() as interrupts, sit(options, resolved, interrupts, progress) as sitting:
        levels, folder = sitting.levels, sitting.folder
        played, extensions = again(sitting, before) if before else ([], [])

        def so_far(now: LevelResult | None = None, more: LevelResult | None = None) -> Result:
            return _so_far(
                sitting.begun, [*played, *([now] if now else [])], [*extensions, *([more] if more else [])], levels,
                sitting.slos, sitting.alerts,
            )  # fmt: skip

        def keep(now: LevelResult) -> None:
            write(so_far(now), folder)

        def keep_more(now: LevelResult) -> None:
            write(so_far(more=now), folder)

        write(so_far(), folder)  # what is killed from here on can be recovered
        error: LoadtestError | None = None
        try:
            if not played:
                sitting.audit()
            for level in levels[len(played) :]:
                if interrupts.count:
                    break
                playing = sitting.play(level, len(levels), keep)
                played.append(playing.figures)
                write(so_far(), folder)
                sitting.check()
                if error := playing.error:
                    break
                if options.on_inconclusive == "extend" and _would_decide(playing.figures) and not interrupts.count:
                    played[-1], more = sitting.extend(level, playing, len(levels) + len(extensions), keep_more)
                    extensions.append(more.figures)
                    write(so_far(), folder)
                    sitting.check()
                    if error := more.error:
                        break
        except LoadtestError as stop:
            error = stop
        except KeyboardInterrupt:
            log.info("interrupted between two levels")
        progress.close()
        complete = len(played) == len(levels) and not interrupts.count and error is None
        result = so_far()
        verdict = overall(
            result.levels,
            complete=complete,
            strict=options.strict,
            inconclusive=options.on_inconclusive,
            audits=result.audits,
        )
        codes = [error.exit_code] if error else []
        if not isinstance(error, Aborted):  # which says it better
            tried = [level for level in result.levels if level.counts.scheduled > level.counts.never_sent]
            codes += [TargetError.exit_code for level in tried if not level.counts.ok]
        codes.append(exit_code(verdict))
        codes += [EXIT_INTERRUPTED] if interrupts.count else []
        result = msgspec.structs.replace(
            result,
            complete=complete,
            verdict=verdict,
            exit_code=worst_exit_code(codes),
            warnings=[*result.warnings, *([sitting.redact(str(error))] if error else [])],
        )
        write(result, folder)
    return Outcome(result, folder, error, interrupts.count > 1)


def _so_far(
    result: Result, played: Sequence[LevelResult], extensions: Sequence[LevelResult], levels: Sequence[Level],
    slos: Sequence[Slo], alerts: Sequence[Alert],
) -> Result:  # fmt: skip
    sized = result.conditions.prompts_sized
    found = [text for level in (*played, *extensions) for text in caveats(level, sized, alerts)]
    missing = [unjudged(not_reached(level), slos) for level in levels[len(played) :]]
    every = [*played, *missing, *extensions]
    return msgspec.structs.replace(
        result,
        warnings=[*result.warnings, *dict.fromkeys(found)],
        levels=every,
        repeats=repeats(every),
        verdict=overall(every, complete=False, audits=result.audits),
    )


def _would_decide(level: LevelResult) -> bool:
    """Whether more requests are likely to settle what is open."""
    return any(slo.more_requests is not None for slo in level.slo)
