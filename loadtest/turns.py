"""Two targets played in turn, so that what changes with time on this host or on theirs changes for both."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from msgspec.structs import replace

from loadtest import scenario
from loadtest.errors import EXIT_INTERRUPTED, ServerError, Stopped, TargetError, UsageError
from loadtest.options import Options
from loadtest.progress import Progress
from loadtest.run import Outcome, run
from loadtest.scenario.model import Override

SIDES = ("base", "candidate")
# What is wrong with a target does not go away by playing on; a verdict on a run does not end the comparison.
_ENDS = (EXIT_INTERRUPTED, TargetError.exit_code, ServerError.exit_code)


def in_turn(base: Options, candidate: str, rounds: int, progress: Progress) -> tuple[list[Path], list[Path]]:
    """Play ``base`` and the same at the URL ``candidate`` once in each of ``rounds``; return the folders of their runs.

    The order is AB BA AB …, in which a steady drift cancels. Both sides of a round ask the same at the same times, and
    each round something else, which no cache has seen; unless the scenario is locked to a seed.

    Raises:
        LoadtestError: a run could not begin, or ended badly; what was played until then is kept.
    """
    resolved = scenario.seeded(base.source, base.overrides)
    seed = resolved.scenario.seed
    assert seed is not None
    locked = scenario.seeded(base.source, _seeded(base, seed).overrides).not_comparable != resolved.not_comparable
    folder = base.output or Path("results") / f"compare-{resolved.scenario.name}-{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"the output folder {folder} is not empty; name a new one with -o")
    for number, side in _order(rounds):
        progress.note(f"round {number} of {rounds}: the {side}")
        options = base if locked else _seeded(base, (seed + number - 1) % 2**31)
        options = replace(options, url=base.url if side == "base" else candidate, output=folder / side / str(number))
        _go_on(run(options, progress), f"round {number} of the {side}")
    ours, theirs = ([folder / side / str(number) for number in range(1, rounds + 1)] for side in SIDES)
    return ours, theirs


def _seeded(options: Options, seed: int) -> Options:
    return replace(options, overrides={**options.overrides, "seed": Override(str(seed), "compare --run")})


def _order(rounds: int) -> Iterator[tuple[int, str]]:
    """Each round with its two sides, the other one first in every second."""
    for number in range(1, rounds + 1):
        for side in SIDES if number % 2 else SIDES[::-1]:
            yield number, side


def _go_on(outcome: Outcome, which: str) -> None:
    """Raise if there is no sense in playing on."""
    code = outcome.result.exit_code
    if outcome.error is None and code not in _ENDS:
        return
    if outcome.error is not None:
        why = outcome.result.warnings[-1]  # the same without secrets
    else:
        why = "it was interrupted" if code == EXIT_INTERRUPTED else "every request of a level failed"
    raise Stopped(f"{which} ended the comparison: {why}. What was played is kept beside {outcome.folder}", code)
