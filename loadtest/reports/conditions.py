"""What the figures of a run hold for, name by name, of one run and of several beside each other. Pure."""

from collections.abc import Sequence

from loadtest.likeness import Run
from loadtest.reports.console import alike, asked
from loadtest.reports.figures import NOT_MEASURED, plain
from loadtest.result import Result

# What is of a run alone.
_OWN = ("run", "started")


def conditions(result: Result) -> list[tuple[str, str]]:
    """What the figures hold for, a name and a text each; what nobody told is said to be unknown."""
    told = result.conditions
    models = dict.fromkeys(level.model for level in result.levels if level.model)
    said: list[tuple[str, str | None]] = [
        ("endpoint", f"{told.endpoint.kind} at {told.endpoint.url}"),
        ("address", told.endpoint.address),
        ("proxy", told.endpoint.proxy),
        ("transport", told.endpoint.transport),
        ("model", ", ".join(models) or told.endpoint.model or "unknown"),
        ("precision", told.precision or "unknown: tell it with --label precision=…"),
        ("server hardware", told.hardware.server or "unknown: tell it with --label hardware=…"),
        ("client hardware", told.hardware.client),
        ("software", ", ".join(f"{name} {version}" for name, version in told.software.items())),
        ("scenario", f"{told.scenario.name}, sha256 {told.scenario.sha256}"),
        *alike(result.levels).items(),
        *asked(result.levels).items(),
        ("prompts", told.prompts_sized),
        ("watched", "; ".join(told.telemetry)),
        ("seed", str(result.seed)),
        ("started", result.started_at),
        ("command", result.command),
        ("run", result.run_id),
        ("loadtest", result.tool.version),
        *((f"label {name}", text) for name, text in result.labels.items()),
    ]
    return [(name, plain(text)) for name, text in said if text]


def common(runs: Sequence[Run]) -> list[tuple[str, str]]:
    """The conditions that all of ``runs`` have alike, a name and a text each."""
    return [(name, texts[0]) for name, texts in _beside(runs).items() if len({*texts}) == 1]


def differing(runs: Sequence[Run]) -> list[tuple[str, list[str]]]:
    """Those that they do not, a name and the text of each run; what only others have is not told."""
    return [(name, texts) for name, texts in _beside(runs).items() if len({*texts}) > 1]


def _beside(runs: Sequence[Run]) -> dict[str, list[str]]:
    told = [dict(conditions(run.result)) for run in runs]
    names = dict.fromkeys(name for one in told for name in one if name not in _OWN)
    return {name: [one.get(name, NOT_MEASURED) for one in told] for name in names}
