"""Levels that were played several times: what their figures have in common. Pure."""

from collections.abc import Callable, Sequence
from statistics import median

from loadtest.result import Across, LevelResult, Repeat
from loadtest.stats import significant


def repeats(levels: Sequence[LevelResult]) -> list[Repeat]:
    """One for each level that is played several times, in the order of their first playing."""
    groups: dict[str, list[LevelResult]] = {}
    for level in levels:
        groups.setdefault(setting(level), []).append(level)
    return [_repeat(name, group) for name, group in groups.items() if len(group) > 1]


def setting(level: LevelResult) -> str:
    """The name of the level without which repeat of it this is."""
    name, bracket, tail = level.name.rpartition(" (")
    return name if bracket and tail.startswith(f"{level.repeat}/") else level.name


def sound(level: LevelResult) -> bool:
    """Whether the level was complete and valid, with a request in its window."""
    return level.client.valid and level.status in ("ok", "overloaded") and level.counts.in_window > 0


def _repeat(name: str, group: Sequence[LevelResult]) -> Repeat:
    found = [level for level in group if sound(level)]

    def across(figure: Callable[[LevelResult], float | None]) -> Across | None:
        values = [value for level in found if (value := figure(level)) is not None]
        if not values or len(values) < len(found):
            return None
        return Across(median=significant(median(values)), min=min(values), max=max(values))

    return Repeat(
        name=name,
        planned=len(group),
        n=len(found),
        output_tokens_per_s=across(lambda level: level.throughput.output_tokens_per_s),
        requests_per_s=across(lambda level: level.rates.completed_per_s),
        ttft_p50_ms=across(lambda level: level.latency.ttft_ms.met.p50),
        ttft_p99_ms=across(lambda level: level.latency.ttft_ms.met.p99),
        tpot_p50_ms=across(lambda level: level.latency.tpot_ms.met.p50),
        e2e_p99_ms=across(lambda level: level.latency.e2e_ms.met.p99),
    )
