"""A plan as a person reads it at a terminal: what would be sent, when, and what it would take."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, groupby, pairwise

from loadtest.duration import span
from loadtest.forecast import SHOWN_ARRIVALS, Forecast, LevelForecast, Prices, Spread, WorkloadForecast
from loadtest.reports.column import Column
from loadtest.reports.console import GLUE, Page
from loadtest.reports.figures import NOT_MEASURED, figure, tokens

ABOUT = "≈"
AT_MOST = "≤"
_BARS = " ▁▂▃▄▅▆▇█"
_LEVELS_WITH_ARRIVALS = 12


def text(forecast: Forecast, resolved: str, width: int, color: bool) -> str:
    """The whole plan in lines of at most ``width`` columns, ending in a newline.

    ``resolved`` is the scenario with the source of each value, as YAML, and stands first as it is. What does not fit
    into a table is left out: asked lengths, tokens and cost of the levels; least, most, number and asked of lengths.
    """
    page = Page(width, color)
    page.paragraphs(_conditions(forecast))
    page.table(_levels(forecast), _sections(forecast.levels))
    page.paragraphs(_footnotes(forecast), style="dim")
    page.table(_lengths(forecast.workloads), [])
    page.paragraphs(_arrivals(forecast.levels), hanging=4)
    page.paragraphs(_data(forecast), hanging=4)
    page.paragraphs(_slos(forecast), hanging=4)
    page.paragraphs(_estimate(forecast), style="bold")
    page.paragraphs((f"warning: {warning}" for warning in forecast.warnings), style="yellow", hanging=2)
    page.paragraphs(["Nothing was sent."], style="dim")
    return f"{resolved}\n{page.text()}"


def _conditions(forecast: Forecast) -> list[str]:
    scenario, count = forecast.scenario, len(forecast.levels)
    against = "the bundled server" if forecast.target is None else forecast.target
    drawn = " (drawn for this plan; give it with --seed to play the same)"
    source = scenario.sources.get("seed", "")
    what = [
        f"{count} level{'s' if count != 1 else ''} against {against}",
        f"{forecast.workers} generator process{'es' if forecast.workers != 1 else ''}",
        f"seed {forecast.seed}{drawn if source.startswith('drawn') else ''}",
    ]
    title = f"{scenario.name}: {scenario.question}" if scenario.question else scenario.name
    return [title, " · ".join(part.replace(" ", GLUE) if len(part) < 40 else part for part in what)]


def _levels(forecast: Forecast) -> list[Column]:
    levels = forecast.levels

    def cells(cell: Callable[[LevelForecast], str]) -> list[str]:
        return [cell(level) for level in levels]

    columns = [
        Column("batching", cells(lambda level: str(level.batching or "")), "setup"),
        Column("load", cells(lambda level: str(level.load)), "setup"),
        Column("model", cells(lambda level: level.model or ""), "setup"),
        Column("input\nasked", cells(lambda level: level.input_asked), "setup", drop=0),
        Column("output\nasked", cells(lambda level: level.output_asked), "setup", drop=1),
        Column("repeat", cells(lambda level: str(level.repeat))),
        Column("sending", cells(_sending)),
        Column("sessions", cells(lambda level: "" if level.sessions is None else f"{level.sessions:,}")),
        Column("requests", cells(lambda level: _total(level, level.requests))),
        Column("probes", cells(lambda level: f"{level.probe_requests:,}" if level.probe_requests else "")),
        Column("input\ntokens", cells(lambda level: _total(level, level.input_tokens)), drop=2),
        Column("output\ntokens", cells(lambda level: _total(level, level.output_tokens)), drop=3),
        Column("cost", cells(lambda level: "" if level.cost is None else _cost(level.cost)), drop=4),
    ]
    # What is alike everywhere is said by the scenario above, or by the lengths below.
    once = {"batching", "model", "input\nasked", "output\nasked", "repeat"}
    return [
        column
        for column in columns
        if not set(column.cells) <= {"", NOT_MEASURED} and not (column.head in once and len(set(column.cells)) == 1)
    ]


def _sections(levels: Sequence[LevelForecast]) -> list[int]:
    """The last rows of each batching and each repeat; rows that stand alone in theirs are kept together."""
    groups = [len(list(rows)) for _, rows in groupby(levels, lambda level: (level.batching, level.repeat))]
    ends = accumulate(groups)
    return [end - 1 for end, (size, after) in zip(ends, pairwise(groups), strict=False) if size > 1 or after > 1]


def _sending(level: LevelForecast) -> str:
    if level.sending_s is None:
        return NOT_MEASURED
    return (AT_MOST if level.count == "at_most" else "") + span(level.sending_s)


def _total(level: LevelForecast, total: float | None) -> str:
    """A number of requests or tokens, and what kind of number it is."""
    if total is None:
        return NOT_MEASURED
    if level.count == "expected":
        return ABOUT + _about(total)
    return (AT_MOST if level.count == "at_most" else "") + f"{total:,.0f}"


def _about(number: float) -> str:
    """Whole, and no more of it than is known."""
    return f"{float(f'{number:.3g}'):,.0f}"


def _cost(cost: float) -> str:
    return f"{cost:,.2f}" if cost >= 1 or not cost else f"{cost:.2g}"


def _footnotes(forecast: Forecast) -> Iterator[str]:
    unknown = [level for level in forecast.levels if level.requests is None]
    if unknown:
        yield (
            "A closed loop that ends by time: how many requests it is depends on the answers. "
            + _each(unknown, forecast.estimate.prices)
        )
    counts = {level.count for level in forecast.levels}
    if "expected" in counts:
        yield f"{ABOUT} on average: the level is too long to be counted here."
    if "at_most" in counts:
        yield f"{AT_MOST} the level's time may end before all of them were due."
    if any(level.output_tokens for level in forecast.levels):
        yield "Output tokens: if every answer is as long as asked; a model may end it sooner."


def _each(levels: Sequence[LevelForecast], prices: Prices | None) -> str:
    """What one request of the levels is on average, and a thousand cost."""
    inputs = [level.mean_input_tokens for level in levels if level.mean_input_tokens is not None]
    outputs = [level.mean_output_tokens for level in levels if level.mean_output_tokens is not None]
    known = [f"{_range(of)} {name}" for name, of in (("input", inputs), ("output", outputs)) if of]
    if not known:
        return "Its lengths are known when it is played."
    words = f"One is {' and '.join(known)} tokens on average"
    if prices is None:
        return f"{words}."
    thousand = [1000 * prices.cost(level.mean_input_tokens or 0, level.mean_output_tokens or 0) for level in levels]
    low, high = _cost(min(thousand)), _cost(max(thousand))
    return f"{words}, and a thousand cost {low if low == high else f'{low}–{high}'}."


def _range(values: Iterable[float]) -> str:
    found = sorted(values)
    low, high = tokens(found[0]), tokens(found[-1])
    return low if low == high else f"{low}–{high}"


def _lengths(workloads: Sequence[WorkloadForecast]) -> list[Column]:
    """A row for each kind of length: what was asked, and what the plan has."""
    rows: list[tuple[str, str, str, Spread | None]] = []
    for workload in workloads:
        own = "input" if workload.sent_tokens is None else "input, new"
        rows.append((workload.name, own, workload.input_asked or "", workload.input_tokens))
        if workload.sent_tokens is not None:
            rows.append((workload.name, "input, sent", "with prefix, history and batch", workload.sent_tokens))
        if workload.output_asked is not None:
            rows.append((workload.name, "output", workload.output_asked, workload.output_tokens))
    several = len({workload.name for workload in workloads}) > 1

    def cells(cell: Callable[[Spread], str]) -> list[str]:
        return [NOT_MEASURED if spread is None else cell(spread) for *_, spread in rows]

    return [
        *([Column("workload", [name for name, *_ in rows], "setup")] if several else []),
        Column("tokens", [kind for _, kind, *_ in rows], "setup"),
        Column("asked", [asked for _, _, asked, _ in rows], "setup", drop=3),
        Column("min", cells(lambda spread: f"{spread.min:,}"), drop=0),
        Column("p50", cells(lambda spread: f"{spread.p50:,}")),
        Column("mean", cells(lambda spread: tokens(spread.mean))),
        Column("p99", cells(lambda spread: f"{spread.p99:,}")),
        Column("max", cells(lambda spread: f"{spread.max:,}"), drop=1),
        Column("of", cells(lambda spread: f"{spread.n:,}"), drop=2),
        Column("min to max", cells(bars), "setup"),
    ]


def bars(spread: Spread) -> str:
    """The histogram in one line: a bar for each part, the highest full, and none so low that it looks empty."""
    counts, parts, tokens_ = spread.histogram, len(spread.histogram), spread.max - spread.min + 1
    # Whole numbers do not part evenly: a part with one more of them is no denser.
    whole = [-(-(part + 1) * tokens_ // parts) - -(-part * tokens_ // parts) for part in range(parts)]
    dense = [count / of for count, of in zip(counts, whole, strict=True)]
    steps = len(_BARS) - 1
    return "".join(_BARS[max(1, round(each / max(dense) * steps)) if each else 0] for each in dense)


def _arrivals(levels: Sequence[LevelForecast]) -> list[str]:
    opened = [level for level in levels if level.first_arrivals_s]
    if not opened:
        return []
    lines = [
        f"{level.name}: {'  '.join(map(figure, level.first_arrivals_s))}"
        + (" …" if len(level.first_arrivals_s) == SHOWN_ARRIVALS else "")
        for level in opened[:_LEVELS_WITH_ARRIVALS]
    ]
    left = len(opened) - _LEVELS_WITH_ARRIVALS
    return ["First arrivals in s:", *lines, *([f"and of {left} levels more (--json has them)"] if left > 0 else [])]


def _data(forecast: Forecast) -> Iterator[str]:
    for data in forecast.data:
        skipped = sum(count for _, count, _ in data.skipped)
        reasons = ", ".join(f"{count:,} {reason} (first: line {line})" for reason, count, line in data.skipped)
        yield (
            f"{data.source}: {data.kept:,} rows"
            + (f" over {span(data.span_s)}" if data.span_s is not None else "")
            + (f"; {skipped:,} skipped: {reasons}" if skipped else "; none skipped")
        )


def _slos(forecast: Forecast) -> Iterator[str]:
    """What is judged, and whether enough requests are planned for that."""
    if forecast.slos:
        yield "Each level is judged by:"
    for slo in forecast.slos:
        if slo.floor is None:
            yield slo.expression
            continue
        needed = f"{slo.expression}: takes at least {slo.floor:,} requests, none of them late, and more where some are"
        planned = "" if slo.planned is None else f"; planned are about {slo.planned:,} ({slo.level})"
        few = slo.planned is not None and slo.planned < slo.floor
        yield needed + planned + (": too few to pass" if few else "")


def _estimate(forecast: Forecast) -> list[str]:
    total, several = forecast.estimate, len(forecast.levels) > 1
    known = total.levels - total.open_time
    time = f"It sends for {span(total.sending_s)}" if known else "How long it takes depends on the answers"
    if known and total.open_time:
        time += f" in {known} of {total.levels} levels; the others end with their requests"
    if total.cooldown_s:
        time += f", with {span(total.cooldown_s)} of cooldown between the levels"
    time += f". Unfinished requests may take up to {span(max(level.grace_s for level in forecast.levels))} more"
    time += " at the end of each level." if several else " at its end."
    if forecast.target is None:
        time += " Starting the bundled server comes first."
    lines = [time]
    if total.open_ended < total.levels:
        counts = {level.count for level in forecast.levels}
        parts = (total.requests, total.input_tokens, total.output_tokens)
        requests, inputs, outputs = (_about(part) if "expected" in counts else f"{part:,.0f}" for part in parts)
        sent = f"{requests} requests, {inputs} input and {outputs} output tokens"
        if total.open_ended:
            sent += f", in {total.levels - total.open_ended} of {total.levels} levels"
        how = "About " if "expected" in counts else "At most " if "at_most" in counts else ""
        lines.append(f"{how}{sent}.")
    if total.prices is not None:
        at = f"at {total.prices.input:g} and {total.prices.output:g} a million input and output tokens"
        if total.open_ended < total.levels and total.cost is not None:
            lines.append(f"Cost: {_cost(total.cost)}, {at}{' for these' if total.open_ended else ''}.")
        else:
            lines.append(f"Cost: by the answers, {at}; see above for a thousand requests.")
    return lines
