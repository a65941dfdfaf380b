"""The small tables under the big one: turns, models, the probe stream, repeats."""

from collections.abc import Sequence

from loadtest.reports.column import Column
from loadtest.reports.figures import NOT_MEASURED, failed, figure, load, ok, percentile, tokens
from loadtest.result import Across, LevelResult, Metric, Result

TURNS_SHOWN = 8


def tables(result: Result) -> list[list[Column]]:
    """Those that have something to say, each as its columns."""
    levels = result.levels
    found = [_turns(levels), _models(levels), _probe(levels), _repeats(result)]
    return [
        [column for column in columns if not set(column.cells) <= {"", NOT_MEASURED}] for columns in found if columns
    ]


def _turns(levels: Sequence[LevelResult]) -> list[Column]:
    """The first turns of conversations; the later ones are in result.json."""
    rows = [(level, turn) for level in levels for turn in level.turns[:TURNS_SHOWN]]
    if not rows:
        return []
    more = " …" if any(len(level.turns) > TURNS_SHOWN for level in levels) else ""
    return [
        *_whose([level for level, _ in rows], levels),
        Column(f"turn{more}", [str(turn.turn) for _, turn in rows], "setup"),
        Column("input\ntokens", [tokens(turn.input_tokens.mean) for _, turn in rows], drop=1),
        Column("of these\ncached", [_cached(turn.cached_input_tokens, turn.input_tokens.mean, turn.input_tokens.n)
                                    for _, turn in rows], drop=0),
        *_times([(turn.ttft_ms, turn.e2e_ms) for _, turn in rows]),
    ]  # fmt: skip


def _cached(cached: int | None, mean: float | None, n: int) -> str:
    return NOT_MEASURED if cached is None or not mean else f"{cached / (mean * n):.0%}"


def _models(levels: Sequence[LevelResult]) -> list[Column]:
    rows = [(level, part) for level in levels for part in level.models]
    if not rows:
        return []
    return [
        *_whose([level for level, _ in rows], levels),
        Column("model", [part.model for _, part in rows], "setup"),
        *_times([(part.ttft_ms, part.e2e_ms) for _, part in rows]),
    ]


def _probe(levels: Sequence[LevelResult]) -> list[Column]:
    """What a small request suffers beside the load."""
    rows = [(level, level.probe) for level in levels if level.probe]
    if not rows:
        return []
    return [
        Column("probe stream beside", [load(level) for level, _ in rows], "setup"),
        *_times([(probe.latency.ttft_ms, probe.latency.e2e_ms) for _, probe in rows]),
    ]


def _repeats(result: Result) -> list[Column]:
    """Over the repeats of a level: the median, and between what it lies."""
    found = result.repeats
    if not found:
        return []
    return [
        Column("repeats: median (min–max)", [one.name for one in found], "setup"),
        Column("n", [f"{one.n}" if one.n == one.planned else f"{one.n} of {one.planned}" for one in found]),
        Column("req/s", [_across(one.requests_per_s) for one in found], drop=1),
        Column("output tok/s", [_across(one.output_tokens_per_s) for one in found]),
        Column("TTFT p50 ms", [_across(one.ttft_p50_ms) for one in found], drop=0),
        Column("TTFT p99 ms", [_across(one.ttft_p99_ms) for one in found]),
    ]


def _across(figures: Across | None) -> str:
    if figures is None:
        return NOT_MEASURED
    range_ = f" ({figure(figures.min)}–{figure(figures.max)})" if figures.min < figures.max else ""
    return f"{figure(figures.median)}{range_}"


def _whose(rows: Sequence[LevelResult], levels: Sequence[LevelResult]) -> list[Column]:
    """The level of each row, said once; nothing where there is only one."""
    if len(levels) == 1:
        return []
    said = [load(level) if index == 0 or rows[index - 1] is not level else "" for index, level in enumerate(rows)]
    return [Column("load", said, "setup")]


def _times(metrics: Sequence[tuple[Metric, Metric]]) -> list[Column]:
    """How many requests, and their TTFT and E2E."""
    return [
        Column("requests\nok", [f"{ok(e2e):,}" for _, e2e in metrics]),
        Column("\nfailed", [f"{failed(e2e):,}" if failed(e2e) else "" for _, e2e in metrics]),
        Column("TTFT\np50 ms", [percentile(ttft, "p50") for ttft, _ in metrics]),
        Column("TTFT\np99 ms", [percentile(ttft, "p99") for ttft, _ in metrics]),
        Column("E2E\np50 ms", [percentile(e2e, "p50") for _, e2e in metrics], drop=2),
        Column("E2E\np99 ms", [percentile(e2e, "p99") for _, e2e in metrics]),
    ]
