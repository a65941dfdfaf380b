"""The result as a person reads it at a terminal: conditions, table, what was learned, what went wrong."""

import re
import textwrap
from collections.abc import Callable, Iterable, Sequence
from io import StringIO
from itertools import groupby, pairwise

from loadtest.errors import EXIT_INTERRUPTED
from loadtest.level import NONE
from loadtest.reports import verdict
from loadtest.reports.column import Column
from loadtest.reports.figures import (
    FEW,
    NOT_MEASURED,
    UNBOUNDED,
    failed,
    failure,
    figure,
    load,
    ok,
    percentile,
    plain,
    tokens,
)
from loadtest.reports.finding import finding
from loadtest.reports.parts import tables
from loadtest.result import Client, Counts, LevelResult, Part, Result, Spread, TokenLengths
from loadtest.schedule import Load
from loadtest.telemetry.figures import Figure

MARK = "!"
CUT = " …"
LINES_OF_AN_EXAMPLE = 3
# Of a matrix there are dozens, and each row of the table above them has its verdict.
MOST_REASONS = 6
# A terminal that does not know its size says 0, and there words would not fit anyway.
LEAST_WIDTH = 40
# A space at which no line is broken; textwrap knows only the ASCII ones. It never reaches the output.
GLUE = "\u00a0"
MOST_GLUED = 72  # characters of a part of a line: more would make it wider than a terminal


def table(result: Result, width: int, color: bool, folder: str | None = None) -> str:
    """The whole report as text in lines of at most ``width`` columns, ending in a newline.

    A column that says the same of every level is said once above the table instead. What does not fit then is left
    out in this order: ITL with its tokens an event, input tokens, output tokens, E2E p50, TPOT p99, E2E p99. Below the
    width that the rest needs, lines are longer rather than broken, and words (paths, URLs) never are.

    Without ``color`` there is no escape code. ``folder`` is where the result lies, as it is to be shown.
    """
    levels = result.levels
    page = Page(width, color)
    opening(page, result, "run", ": this is what it had measured until then.")
    if result.verdict.outcome is not None:
        page.paragraphs([verdict.headline(result)], style=verdict.STYLES[result.verdict.outcome])
        if slos := verdict.columns(result):
            page.table(slos, [])
        why = verdict.reasons(result)
        more = [f"and {len(why) - MOST_REASONS} more, in result.json"] if len(why) > MOST_REASONS else []
        page.paragraphs([*why[:MOST_REASONS], *more], style="yellow", hanging=2)
    page.paragraphs(verdict.audits(result), hanging=2)
    shown = page.table(level_columns(levels), _sections(levels)) if levels else []
    for beside in tables(result):
        shown += page.table(beside, [])
    page.paragraphs([*footnotes(shown), *_client(levels), *_server(levels)], style="dim")
    page.paragraphs([finding(result)], style="bold")
    page.paragraphs(marked(levels), style="yellow", hanging=2)
    page.paragraphs(errors(levels), style="red", hanging=2, most=LINES_OF_AN_EXAMPLE)
    page.paragraphs(warnings(result), style="yellow", hanging=2)
    page.paragraphs([f"changed: {plain(text)}" for text in result.adaptations], hanging=2)
    page.paragraphs([*conservation(levels), *([f"result: {folder}"] if folder else [])], style="dim")
    return page.text()


class Page:
    """Paragraphs and one table, with a blank line between the parts."""

    def __init__(self, width: int, color: bool) -> None:
        # rich takes 50 ms to import, which only those who print a table should pay.
        from rich.console import Console  # noqa: PLC0415

        self._width = max(width, LEAST_WIDTH)
        self._file = StringIO()
        # Lines are broken here and not by rich, whose width is therefore out of reach; and whether there is colour
        # is the caller's to say, not the environment's.
        self._console = Console(
            file=self._file,
            width=10_000,
            force_terminal=color,
            color_system="standard" if color else None,
            legacy_windows=False,
            highlight=False,
            markup=False,
            emoji=False,
            _environ={},
        )

    def paragraphs(self, texts: Iterable[str], style: str = "", hanging: int = 0, most: int | None = None) -> None:
        """Each of ``texts`` wrapped on its own, no figure parted from its unit, cut after ``most`` lines."""
        lines: list[str] = []
        for text in texts:
            lines += textwrap.wrap(
                re.sub(r"(?<=\d) (?=ms\b|s\b|tok/s|output\b|requests\b)", GLUE, text),
                self._width,
                subsequent_indent=" " * hanging,
                break_long_words=False,
                break_on_hyphens=False,
                max_lines=most,
                placeholder=CUT,
            )
        if lines:
            for line in lines:
                self._console.print(line.replace(GLUE, " "), style=style, soft_wrap=True)
            self._console.print()

    def table(self, columns: Sequence[Column], sections: Sequence[int]) -> list[Column]:
        """Draw what fits of ``columns``, with a gap after the rows in ``sections``; return what was drawn."""
        from rich import box  # noqa: PLC0415
        from rich.table import Table  # noqa: PLC0415
        from rich.text import Text  # noqa: PLC0415

        fitting, gap = _fit(columns, self._width)
        drawn = Table(
            box=box.SIMPLE_HEAD,
            show_edge=False,
            pad_edge=False,
            padding=(0, gap - 1, 0, 0),
            header_style="bold",
            border_style="dim",
        )
        for column in fitting:
            drawn.add_column(
                Text(column.head),
                justify="left" if column.role != "figure" else "right",
                style="yellow" if column.role == "mark" else "",
                no_wrap=True,
                vertical="bottom",
            )
        for row, cells in enumerate(zip(*(column.cells for column in fitting), strict=True)):
            drawn.add_row(*map(Text, cells), end_section=row in sections)
        self._console.print(drawn)
        self._console.print()
        return fitting

    def text(self) -> str:
        """Everything so far, without the padding at the ends of lines and the blank line at the end."""
        return "\n".join(line.rstrip() for line in self._file.getvalue().rstrip("\n").split("\n")) + "\n"


def _fit(columns: Sequence[Column], width: int) -> tuple[list[Column], int]:
    """The columns that fit into ``width``, and the gap between them."""
    kept = list(columns)
    while True:
        for gap in (2, 1):
            if sum(column.width for column in kept) + gap * (len(kept) - 1) <= width:
                return kept, gap
        droppable = [column.drop for column in kept if column.drop is not None]
        if not droppable:
            return kept, 1
        kept = [column for column in kept if column.drop != min(droppable)]


# The table ----------------------------------------------------------------------------------------------------


def level_columns(levels: Sequence[LevelResult]) -> list[Column]:
    """Every column that says something, the unimportant ones with their turn to be dropped.

    Under the row of a level that is a mix, each of its workloads has one.
    """
    rows = [(level, part) for level in levels for part in (None, *level.workloads)]

    def setup(cell: Callable[[LevelResult], str]) -> list[str]:
        return ["" if part else cell(level) for level, part in rows]

    def cells(cell: Callable[[LevelResult | Part], str]) -> list[str]:
        return [cell(part or level) if level.status != "not_reached" else NOT_MEASURED for level, part in rows]

    def times(name: str, p: str) -> list[str]:
        return cells(lambda row: percentile(getattr(row.latency, name), p))

    columns = [
        Column("", setup(lambda level: MARK if _marks(level) else ""), "mark"),
        Column("batching", setup(lambda level: str(level.batching or "")), "setup"),
        Column("model", setup(lambda level: plain(level.model or "")), "setup"),
        Column("samples\na request", setup(lambda level: f"{level.batch_size:,}"), "setup"),
        Column("load", [f"  {plain(part.name)}" if part else load(level) for level, part in rows], "setup"),
        Column("input\ntokens", cells(lambda level: _observed(level.workload.input_tokens)), drop=1),
        Column("output\ntokens", cells(lambda level: _observed(level.workload.output_tokens)), drop=2),
        Column("requests\nok", cells(lambda level: f"{ok(level.latency.e2e_ms):,}")),
        Column("\nfailed", cells(lambda level: f"{failures:,}" if (failures := failed(level.latency.e2e_ms)) else "")),
        Column("\nreq/s", cells(lambda level: figure(level.rates.completed_per_s))),
        _throughput(levels, cells),
        Column("TTFT\np50 ms", times("ttft_ms", "p50")),
        Column("TTFT\np99 ms", times("ttft_ms", "p99")),
        Column("TPOT\np50 ms", times("tpot_ms", "p50")),
        Column("TPOT\np99 ms", times("tpot_ms", "p99"), drop=4),
        Column("ITL\np50 ms", times("itl_ms", "p50"), drop=0),
        Column("ITL\np99 ms", times("itl_ms", "p99"), drop=0),
        # A server that bundles tokens has few, long gaps: never the one without the other.
        Column("tokens\n/event", setup(_bundled), drop=0),
        Column("E2E\np50 ms", times("e2e_ms", "p50"), drop=3),
        Column("E2E\np99 ms", times("e2e_ms", "p99"), drop=5),
    ]
    said_above = {"batching", "model", "samples\na request", "input\ntokens", "output\ntokens"}
    return [
        column
        for column in columns
        if not set(column.cells) <= {"", NOT_MEASURED}
        and not (column.head in said_above and len(set(column.cells) - {NOT_MEASURED, ""}) == 1)
    ]


def _throughput(
    levels: Sequence[LevelResult], cells: Callable[[Callable[[LevelResult | Part], str]], list[str]]
) -> Column:
    """What came out a second: samples, or tokens, or events where nobody knows of tokens."""
    if any(level.throughput.samples_per_s is not None for level in levels):
        return Column("\nsamples/s", cells(lambda level: figure(level.throughput.samples_per_s)))
    if any(level.throughput.output_tokens_per_s is not None for level in levels):
        return Column("output\ntok/s", cells(lambda level: figure(level.throughput.output_tokens_per_s)))
    return Column("\nevents/s", cells(lambda level: figure(level.throughput.events_per_s)))


def _bundled(level: LevelResult) -> str:
    return figure(level.tokens_per_event if level.latency.itl_ms.ok.n else None)


def _sections(levels: Sequence[LevelResult]) -> list[int]:
    """Rows after which another batching begins; settings with one row each stay together."""
    sizes = [
        sum(1 + len(level.workloads) for level in group)
        for _, group in groupby(levels, key=lambda level: level.batching)
    ]
    ends: list[int] = []
    row = -1
    for size, following in pairwise(sizes):
        row += size
        if size > 1 or following > 1:
            ends.append(row)
    return ends


def _observed(lengths: TokenLengths) -> str:
    return tokens(lengths.observed.mean)


def footnotes(columns: Sequence[Column]) -> list[str]:
    """What the signs in the table mean, of those that are there."""
    figures = [column for column in columns if column.role == "figure"]
    cells = [cell for column in figures for cell in column.cells]
    notes: list[str] = []
    if any(cell.startswith(FEW) for cell in cells):
        notes.append(f"{FEW} p99 of fewer than 100 requests (see ok) is simply the slowest of them.")
    if any(column.head == "\nfailed" for column in figures):
        notes.append(
            "Percentiles have the failed requests inside, as slower than any other"
            + (f"; {UNBOUNDED} lies among them." if UNBOUNDED in cells else ".")
            + (" ITL is of the others alone." if any(column.head.startswith("ITL") for column in figures) else "")
        )
    return notes


def _client(levels: Sequence[LevelResult]) -> list[str]:
    """What the generator saw of itself, of each figure the worst level's: whether it could have been the limit."""
    seen = [level.client for level in levels if level.client.workers]
    if not seen:
        return []
    workers = max(client.workers or 0 for client in seen)
    cpu = max((client.cpu_share for client in seen if client.cpu_share is not None), default=None)
    coalesced = max(
        (client.coalesced_read_share for client in seen if client.coalesced_read_share is not None), default=None
    )
    parts = [
        f"client{' at its worst' if len(seen) > 1 else ''}: {workers} worker{'s' * (workers > 1)}",
        "" if cpu is None else f"the busiest {cpu:.0%} of a core" if workers > 1 else f"{cpu:.0%} of a core",
        _error_bar(seen),
        _lag("own lag", [client.send_lag_ms for client in seen]),
        _lag("loop lag", [client.loop_lag_ms for client in seen]),
        "" if coalesced is None else f"{coalesced:.1%} of reads held several events",
        _asked_and_held(levels),
        _asked_and_sent(levels),
    ]
    return [f"{GLUE}· ".join(part.replace(" ", GLUE) for part in parts if part)]


def _server(levels: Sequence[LevelResult]) -> list[str]:
    """What the server and its GPUs told of themselves, of each figure the worst level's."""
    seen = [level.server for level in levels if level.server]
    gpus = [gpu for level in levels for gpu in level.gpus]
    if not seen and not gpus:
        return []

    def most(figures: Iterable[Figure | None]) -> float | None:
        return max((figure.mean for figure in figures if figure), default=None)

    waiting, kv = most(server.waiting for server in seen), most(server.kv_usage for server in seen)
    busy, power = most(gpu.utilisation for gpu in gpus), most(gpu.power_w for gpu in gpus)
    preempted = sum(server.preemptions or 0 for server in seen)
    parts = [
        f"server{' at its worst' if len(levels) > 1 else ''}",
        "" if waiting is None else f"{waiting:,.1f} waiting",
        "" if kv is None else f"{kv:.0%} of its key/value cache in use",
        f"{preempted:,} preempted" if preempted else "",
        "" if busy is None else f"a GPU busy {busy:.0%} of the time",
        "" if power is None else f"{power:,.0f} W",
        "loadtest explain says what limited it",
    ]
    return [f"{GLUE}· ".join(part.replace(" ", GLUE) for part in parts if part).replace(f"{GLUE}· ", ": ", 1)]


def _error_bar(seen: Sequence[Client]) -> str:
    median = max((client.error_bar_p50_ms for client in seen if client.error_bar_p50_ms is not None), default=None)
    tail = max((client.error_bar_ms for client in seen if client.error_bar_ms is not None), default=None)
    return "" if median is None or tail is None else f"latency ± {_fine(median)} ms (p99 ± {_fine(tail)})"


def _lag(name: str, spreads: Iterable[Spread | None]) -> str:
    known = [spread for spread in spreads if spread is not None]
    if not known:
        return ""
    p99, most = max(spread.p99 for spread in known), max(spread.max for spread in known)
    return f"{name} p99 {_fine(p99)}, max {_fine(most)} ms"


def _fine(value_ms: float) -> str:
    """A time that is small beside those of the table: three digits of 0.03 ms would be noise."""
    return f"{value_ms:.2f}" if value_ms < 10 else figure(value_ms)


def _asked_and_held(levels: Sequence[LevelResult]) -> str:
    held = [
        (level.client.held_concurrency, level.load.concurrency)
        for level in levels
        if level.client.held_concurrency is not None and level.load.concurrency
    ]
    if not held:
        return ""
    busy, asked = min(held, key=lambda pair: pair[0] / pair[1])
    return f"{busy:,.1f} of {asked:,} slots held"


def _asked_and_sent(levels: Sequence[LevelResult]) -> str:
    """Of an open loop. The rates also differ by chance and by the user's own caps, which the client did not miss."""
    sent = []
    for level in levels:
        offered, asked, what = level.rates.offered_per_s, level.rates.target_per_s, ""
        if level.sessions is not None and asked is None:
            offered, asked, what = level.sessions.started_per_s, level.sessions.target_per_s, " sessions"
        if level.client.sent_share is not None and asked and offered is not None:
            sent.append((level.client.sent_share, offered / asked, offered, asked, what))
    if not sent:
        return ""
    share, _, offered, asked, what = min(sent)
    return f"{figure(offered)}{what}/s offered of {figure(asked)}/s asked, {1 - share:.1%} missed by the client"


# Around the table ---------------------------------------------------------------------------------------------


def opening(page: Page, result: Result, what: str, remains: str) -> None:
    """Under which conditions it was measured, why it may not be compared, and if it did not finish, what ``remains``.

    ``what`` it is: a run, or a search.
    """
    page.paragraphs(conditions(result))
    if why := result.conditions.not_comparable:
        page.paragraphs([f"not comparable: {plain('; '.join(why))}"], style="yellow", hanging=2)
    page.paragraphs(resumed(result))
    if not result.complete:
        how = "was interrupted" if result.exit_code == EXIT_INTERRUPTED else "did not finish"
        page.paragraphs([f"The {what} {how}{remains}"], style="yellow")


def resumed(result: Result) -> list[str]:
    """That it was not played in one go, and when it went on; nothing where it was."""
    if not result.resumed:
        return []
    return [f"Begun {result.started_at}, ended before its time, and resumed {', '.join(result.resumed)}."]


def conditions(result: Result) -> list[str]:
    """What the figures hold for, three lines of it."""
    told, levels = result.conditions, result.levels
    software = {result.tool.name: result.tool.version, **told.software}
    what = [
        told.scenario.name,
        _same(level.model or told.endpoint.model or "" for level in levels),
        told.precision,
        f"{told.endpoint.kind} at {told.endpoint.url}",
        *alike(levels).values(),
    ]
    how = [*asked(levels).values(), f"seed {result.seed}"]
    where = [
        told.hardware.server and f"server: {told.hardware.server}",
        told.hardware.client and f"client: {told.hardware.client}",
        *(f"{name} {version}" for name, version in software.items()),
        # These two are what the conditions say already.
        *(f"{name}: {text}" for name, text in result.labels.items() if name not in {"hardware", "precision"}),
    ]
    lines = ([_glued(plain(part)) for part in line if part] for line in (what, how, where))
    return [f"{GLUE}· ".join(line) for line in lines if line]


def alike(levels: Sequence[LevelResult]) -> dict[str, str]:
    """What of the setting has no column in the table, as all ``levels`` have it in common."""
    found = {
        "batching": _same(str(level.batching or "") for level in levels),
        "samples": _same(f"{level.batch_size} samples a request" if level.batch_size > 1 else "" for level in levels),
    }
    return {name: text for name, text in found.items() if text}


def asked(levels: Sequence[LevelResult]) -> dict[str, str]:
    """What was played, and how it arrived, for how long: a text for each name that there is something to say of."""
    found = {
        "workload": _workload(levels),
        "data": _data(levels),
        "arrivals": _arrival(levels),
        "batch timeout": _batch_timeout(levels),
        "window": _windows(levels),
    }
    return {name: text for name, text in found.items() if text}


def _workload(levels: Sequence[LevelResult]) -> str:
    """The lengths asked for, and what was observed where that is something else."""
    lengths = {"input": [level.workload.input_tokens for level in levels]}
    if any(level.throughput.samples_per_s is None for level in levels):
        lengths["output"] = [level.workload.output_tokens for level in levels]
    said = [f"{_lengths(each)} {name}" for name, each in lengths.items() if {one.requested for one in each} - {NONE}]
    return f"{' and '.join(said)} tokens" if said else ""


def _lengths(lengths: Sequence[TokenLengths]) -> str:
    asked = list(dict.fromkeys(length.requested.replace("data", "the data's") for length in lengths))
    if len(asked) > 1:
        return ", ".join(asked)  # the table has a column of what was observed
    means = [length.observed.mean for length in lengths if length.observed.mean is not None]
    if not means:
        return asked[0]
    seen = "–".join(dict.fromkeys((tokens(min(means)), tokens(max(means)))))
    return asked[0] if seen == asked[0] else f"{asked[0]} (observed mean {seen})"


def _batch_timeout(levels: Sequence[LevelResult]) -> str:
    """How long the policies that wait for a batch wait."""
    waits = [
        f"{level.batching.timeout_ms:g} ms"
        for level in levels
        if level.batching and level.batching.scheduler in {"dynamic", "static"}
    ]
    return f"batch timeout {_few(waits)}" if waits else ""


def _data(levels: Sequence[LevelResult]) -> str:
    found = _few(
        f"{plain(data.source)} ({data.rows:,} rows{f', {data.order}' if data.order else ''})"
        for level in levels
        for data in level.workload.data
    )
    return f"data: {found}" if found else ""


def _arrival(levels: Sequence[LevelResult]) -> str:
    return _few(_process(level.load) + (" of sessions" if level.sessions else "") for level in levels)


def _process(load: Load) -> str:
    names = {
        "trace": "arrivals of a trace",
        "closed": "closed loop",
        "constant": "constant arrivals",
        "poisson": "Poisson arrivals",
        "gamma": f"gamma arrivals of burstiness {load.burstiness or 1:g}",
    }
    return names[load.process] + (" in stages" if load.kind == "stages" else "")


def _windows(levels: Sequence[LevelResult]) -> str:
    measured = [level.window.measured_s for level in levels if level.window.measured_s is not None]
    if not measured:
        return ""
    low, high = figure(min(measured)), figure(max(measured))
    warmup = max(level.window.warmup_s for level in levels)
    length = low if low == high else f"{low}–{high}"
    return f"{length} s measured a level" + (f" after {warmup:g} s of warm-up" if warmup else "")


def _few(values: Iterable[str]) -> str:
    """The distinct ones of ``values`` in their order."""
    return ", ".join(dict.fromkeys(values))


def _same(values: Iterable[str]) -> str:
    """What all of ``values`` are, or nothing when they differ."""
    distinct = set(values)
    return distinct.pop() if len(distinct) == 1 else ""


def _glued(text: str) -> str:
    """A part of a line, kept whole unless it is long."""
    return text.replace(" ", GLUE) if len(text) <= MOST_GLUED else text


def _marks(level: LevelResult) -> list[str]:
    """Why a level's figures are not to be taken as they stand."""
    meaning = {
        "not_reached": "not reached",
        "aborted": "ended early, before it was complete",
        "degraded": "played with fewer generator processes than planned",
        "overloaded": "overloaded: the queue kept growing",
    }
    reasons = [meaning[level.status]] if level.status in meaning else []
    return reasons + [f"invalid, {reason}" for reason in level.client.reasons]


def marked(levels: Sequence[LevelResult]) -> list[str]:
    """A line for each reason a row is marked, with the levels that have it."""
    reasons: dict[str, list[str]] = {}
    for level in levels:
        for reason in _marks(level):
            reasons.setdefault(reason, []).append(level.name)
    return [f"{MARK} {plain(', '.join(names))}: {plain(reason)}" for reason, names in reasons.items()]


def warnings(result: Result) -> list[str]:
    """The warnings, one line for what several levels have in common."""
    names = [level.name for level in result.levels]
    alike: dict[str, list[str]] = {}
    for warning in result.warnings:
        name = next((name for name in names if warning.startswith(f"{name}: ")), None)
        whose = alike.setdefault(warning if name is None else warning.removeprefix(f"{name}: "), [])
        if name is not None:
            whose.append(name)
    return [f"warning: {plain(': '.join(filter(None, [', '.join(names), text])))}" for text, names in alike.items()]


def errors(levels: Sequence[LevelResult]) -> list[str]:
    """How requests failed over the whole run, the most frequent first."""
    counts: dict[tuple[str, int | None], int] = {}
    examples: dict[tuple[str, int | None], str] = {}
    for level in levels:
        for error in level.errors:
            key = (error.kind, error.status)
            counts[key] = counts.get(key, 0) + error.count
            if error.example is not None:
                examples.setdefault(key, error.example)
    lines = []
    for (kind, status), count in sorted(counts.items(), key=lambda item: -item[1]):
        example = examples.get((kind, status))
        lines.append(f"{count:,} × {failure(kind, status)}" + (f", such as: {plain(example)}" if example else ""))
    return lines


def conservation(levels: Sequence[LevelResult]) -> list[str]:
    """That every request scheduled is accounted for; or where it is not."""
    broken = [level.name for level in levels if level.counts.scheduled != level.counts.ok + level.counts.failed]
    if broken:
        return [f"{MARK} requests are unaccounted for in {', '.join(broken)}: do not use these figures"]
    names = [name for name in Counts.__struct_fields__ if name not in {"scheduled", "sent", "resent", "in_window"}]
    totals = {name: sum(getattr(level.counts, name) for level in levels) for name in names}
    scheduled = sum(level.counts.scheduled for level in levels)
    parts = " + ".join(f"{count:,} {failure(name)}" for name, count in totals.items() if count or name == "ok")
    resent = sum(level.counts.resent for level in levels)
    again = f"; {resent:,} sent once more after a closed connection" if resent else ""
    probes = [level.probe.counts for level in levels if level.probe]
    asked, kept = sum(counts.scheduled for counts in probes), sum(counts.ok for counts in probes)
    beside = f"; beside them {asked:,} of the probe stream, {kept:,} ok" if probes else ""
    return [f"requests: {scheduled:,} scheduled = {parts}, warm-up included{again}{beside}"]
