"""Everything that can go wrong, one class for each way a run ends badly.

    LoadtestError
    ├── UsageError          2   a flag or an argument is wrong
    │   └── ScenarioError   2   a scenario file is wrong (all faults at once)
    ├── TargetError         1   the target is unreachable or unusable, or every request failed
    ├── ServerError         3   the bundled server could not start, or died
    ├── ResultError         1   the result folder cannot be written or read
    ├── WorkerLost         97   a load generator process died: the measurement is unsound
    ├── Aborted            99   the run was ended by its --abort-on rule
    └── Stopped             1   of runs in turn one ended so badly that no further one is played; or that run's own code

The exit codes are docs/metrics.md's. Each message says what was wrong, where, and the mend; the command adds where
docs/troubleshooting.md has more of its like.
"""

from typing import ClassVar

EXIT_OK = 0
EXIT_INVALID = 97
EXIT_INTERRUPTED = 130


class LoadtestError(Exception):
    """Base of the tree. ``str(error)`` is the whole message for a person."""

    exit_code: ClassVar[int] = 1
    topic: ClassVar[str] = "bug"
    """The anchor in docs/troubleshooting.md; of the base, which nobody raises, that of our own mistakes."""

    @property
    def pointer(self) -> str:
        """Where there is more of this, to be put behind the message; behind a list, on a line of its own."""
        gap = "\n" if "\n" in str(self) else " "
        return f"{gap}[docs: troubleshooting#{self.topic}]"


class UsageError(LoadtestError):
    """A flag, argument or combination of them that cannot be meant."""

    exit_code = 2
    topic = "usage"


class ScenarioError(UsageError):
    """A scenario file that cannot be used; the message lists every fault with file:line:column."""

    topic = "scenario"


class TargetError(LoadtestError):
    """The target did not answer, refused us, or failed every request."""

    exit_code = 1
    topic = "target"


class ServerError(LoadtestError):
    """The bundled server could not be started, or died while it was measured."""

    exit_code = 3
    topic = "bundled-server"


class ResultError(LoadtestError):
    """The output folder cannot be written, or a result in it cannot be read."""

    exit_code = 1
    topic = "result"


class WorkerLost(LoadtestError):
    """A load generator process ended before its level did."""

    exit_code = EXIT_INVALID
    topic = "worker-lost"


class Aborted(LoadtestError):
    """The target did so badly that the run's own rule ended it."""

    exit_code = 99
    topic = "aborted"


class Stopped(LoadtestError):
    """Of runs in turn one ended so badly that no further one is played; ``exit_code`` is that run's."""

    topic = "stopped"

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code  # type: ignore[misc]


def worst_exit_code(codes: list[int]) -> int:
    """The one exit code when several apply: 130 > 3 > 1 > 2 > 97 > 99 > 98 > 0 (docs/metrics.md)."""
    order = [130, 3, 1, 2, 97, 99, 98, 0]
    return min(codes, key=order.index, default=EXIT_OK)
