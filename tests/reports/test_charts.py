"""Charts show what was measured, of a few requests and of very many."""

import itertools
import json
from collections.abc import Sequence

import msgspec
import numpy as np
import pytest

from loadtest.columns import Columns
from loadtest.errors import ResultError
from loadtest.records import Record
from loadtest.reports.charts import COLORS, GROUNDS, OUTCOMES, Absent, Chart
from loadtest.reports.charts_levels import SHADES, WHITE_FROM, trials
from loadtest.reports.charts_requests import MOST_LEVELS, drawn, journal, some
from loadtest.reports.charts_spread import MOST_POINTS
from loadtest.reports.charts_time import SLOWEST
from loadtest.reports.html import charts
from loadtest.result import Capacity, LevelResult, Result, Searched, Trial, Usable
from loadtest.schedule import Load
from loadtest.telemetry.figures import Figure, Gpu, Server
from tests.comparing import a_level, a_result, played, requests
from tests.reports.pages import a_matrix, a_page_of, closed, lines, read


def by_name(found: Sequence[Chart | Absent]) -> dict[str, Chart]:
    return {chart.name: chart for chart in found if isinstance(chart, Chart)}


def luminance(color: str) -> float:
    parts = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize(
    ("color", "ground"), [*itertools.product(dict.fromkeys((*COLORS, *OUTCOMES.values())), GROUNDS)]
)
def test_every_colour_is_seen_on_white_and_on_black(color: str, ground: str) -> None:
    high, low = sorted((luminance(color), luminance(ground)), reverse=True)
    assert (high + 0.05) / (low + 0.05) >= 3


@pytest.mark.parametrize("share", [0.0, 0.2, 0.4, 0.6, WHITE_FROM, WHITE_FROM + 0.001, 0.9, 1.0])
def test_every_figure_of_a_heat_map_is_read_on_its_shade(share: float) -> None:
    parts = [(int(least[at : at + 2], 16), int(most[at : at + 2], 16)) for least, most in [SHADES] for at in (1, 3, 5)]
    shade = "#" + "".join(f"{round(least + (most - least) * share):02x}" for least, most in parts)
    ink = "#ffffff" if share > WHITE_FROM else "#000000"
    high, low = sorted((luminance(shade), luminance(ink)), reverse=True)
    assert (high + 0.05) / (low + 0.05) >= 4.5


def test_a_colour_is_of_one_level() -> None:
    assert len({*COLORS}) == len(COLORS) >= MOST_LEVELS


def test_a_journal_in_columns_is_what_its_records_are() -> None:
    level = a_level(Load("poisson", rate_per_s=20.0))
    records = requests(level, 1, failing=0.1)
    probe = msgspec.structs.replace(records[0], id=9999, probe=True)
    found = read(lines([*reversed(records), probe]))
    assert list(found) == [0]
    columns, expected = found[0].columns(), Columns.of(records)
    for name in ("intended", "sent", "first_token", "last_token", "done", "output_tokens", "events", "ok", "streamed"):
        np.testing.assert_array_equal(getattr(columns, name), getattr(expected, name), name)
    assert found[0].ids.tolist() == [record.id for record in records]


def test_what_was_being_written_is_left_out_and_what_is_damaged_is_told() -> None:
    written = lines(requests(a_level(), 1))
    assert len(read([*written, written[0][:-5]])[0].ids) == len(written)
    with pytest.raises(ResultError, match=r"there/records\.jsonl: line 2 is not a record"):
        journal([written[0], b"{}\n"], "there/records.jsonl")


def test_percentiles_are_those_of_the_result_and_lie_in_their_band() -> None:
    result, written = a_page_of(*closed(4, 16))
    chart = by_name(charts(result, read(written)))["percentiles"]
    for level in result.levels:
        rows = {row["percentile"]: row for row in chart.rows if row["level"] == level.name}
        due = level.latency.ttft_ms.met
        assert rows["p50"]["value"] == pytest.approx(due.p50, rel=1e-3)
        low, high = rows["p50"]["low"], rows["p50"]["high"]
        assert low <= rows["p50"]["value"] <= high
    # The last level fails 5 %: its curve ends before its p99, which lies among the failures.
    failing = [row["percentile"] for row in chart.rows if row["level"] == "c=16"]
    assert "p90" in failing
    assert "p99" not in failing


def test_a_timeline_has_every_request_and_every_failure() -> None:
    result, written = a_page_of(*closed(4, 16))
    found = by_name(charts(result, read(written)))
    for level in result.levels:
        rows = [row for row in found["timeline-arrivals"].rows if row["level"] == level.name]
        width = min(row["at"] for row in rows if row["at"])
        for what, count in (("became due", level.counts.scheduled), ("ended ok", level.counts.ok)):
            total = sum(row["per_s"] for row in rows if row["what"] == what) * width
            assert total == pytest.approx(count, rel=1e-3)
    assert sum(row["count"] for row in found["timeline-failures"].rows) == result.levels[-1].counts.failed
    assert found["timeline-failures"].levels == ["c=16"]
    held = [row["in_flight"] for row in found["timeline-in-flight"].rows if row["level"] == "c=4"]
    assert max(held) == 4
    assert held[0], "a closed loop is full from its start"
    assert held[-1] == 0
    end = max(row["at"] for row in found["timeline-in-flight"].rows if row["level"] == "c=4")
    ends = [row["at"] for row in found["timeline-arrivals"].rows if row["level"] == "c=4" and row["what"] == "ended ok"]
    assert ends[-1] == end, "the last part is drawn as wide as the others"


def test_the_slowest_requests_are_the_slowest_and_their_parts_add_up() -> None:
    result, written = a_page_of(*closed(4))
    records = [msgspec.json.decode(line, type=Record) for line in written]
    took = sorted(((one.done_ms or 0.0) - one.intended_ms for one in records), reverse=True)[:SLOWEST]
    rows = by_name(charts(result, read(written)))["slowest"].rows
    ends: dict[object, float] = {}
    for row in rows:
        ends[row["request"]] = max(ends.get(row["request"], 0.0), row["to"])
    assert list(ends.values()) == pytest.approx(took, rel=1e-4)


def test_of_many_requests_it_is_how_many_are_where() -> None:
    few, few_lines = a_page_of(*closed(8), count=MOST_POINTS)
    many, many_lines = a_page_of(*closed(8), count=20 * MOST_POINTS)
    points = by_name(charts(few, read(few_lines)))["prompt-length"].rows
    fields = by_name(charts(many, read(many_lines)))["prompt-length"].rows
    assert len(points) == MOST_POINTS
    assert len(fields) <= 40 * 28
    assert sum(row["count"] for row in fields) == 20 * MOST_POINTS
    assert all(row["to"] > row["from"] and row["until"] > row["value"] for row in fields)
    # Whatever the number of requests, a page has summaries of them.
    for chart in by_name(charts(many, read(many_lines))).values():
        assert len(chart.rows) <= 2000


def test_of_many_levels_some_are_drawn_the_first_and_the_last_among_them() -> None:
    result, written = a_page_of(*closed(*range(1, 61)), count=20)
    levels = drawn(result, read(written))
    chosen = some(levels)
    assert len(chosen) == MOST_LEVELS
    assert (chosen[0].name, chosen[-1].name) == ("c=1", "c=60")
    assert len({level.name for level in chosen}) == MOST_LEVELS
    assert len(by_name(charts(result, read(written)))["latency-throughput"].rows) == 60


def test_levels_of_one_name_are_told_apart() -> None:
    result, written = a_page_of(*closed(4, 4))
    assert [level.name for level in drawn(result, read(written))] == ["c=4", "c=4 #2"]


def test_a_matrix_has_a_cell_for_each_batching_and_load(matrix: Result) -> None:
    found = by_name(charts(matrix, {}))
    rows = found["matrix-throughput"].rows
    assert {(row["batching"], row["load"]) for row in rows} == {
        (str(level.batching), str(level.load)) for level in matrix.levels
    }
    assert len(found["matrix-latency"].rows) == 12
    twice = msgspec.structs.replace(matrix, levels=[*matrix.levels, *matrix.levels])
    again = by_name(charts(twice, {}))["matrix-throughput"]
    assert again.rows == rows
    assert again.about.endswith("Of several playings it is the median.")


def test_no_name_of_a_level_is_written_over_another() -> None:
    one = played(a_level(), requests(a_level(), 1))
    done = {1: 100.0, 2: 112.0, 3: 112.0, 64: 300.0}
    told = [
        msgspec.structs.replace(
            one,
            load=msgspec.structs.replace(one.load, concurrency=c),
            throughput=msgspec.structs.replace(one.throughput, output_tokens_per_s=tokens_per_s),
        )
        for c, tokens_per_s in done.items()
    ]
    chart = by_name(charts(a_result(told), {}))["latency-throughput"]
    rooms = {row["load"]: row.get("room") for row in chart.rows}
    named = [room for room in rooms.values() if room is not None]
    assert rooms["c=64"] == 0
    assert sorted(named)[0] < 400 < sorted(named)[-1], "on a telephone there is room for fewer"
    assert None in (rooms["c=2"], rooms["c=3"]), "of two at one point one has its name"


def test_a_line_joins_what_differs_in_its_load_alone() -> None:
    names = {"c=1 batch=8": 1, "c=4 batch=8": 4, "c=4 batch=8 #2": 4, "c=4 batch=8 #2 (more)": 4, "c=1 batch=32": 1}
    one = played(a_level(), requests(a_level(), 1))
    levels = [
        msgspec.structs.replace(
            one,
            name=name,
            load=msgspec.structs.replace(one.load, concurrency=c),
            extends=name.removesuffix(" (more)") if name.endswith(")") else None,
        )
        for name, c in names.items()
    ]
    chart = by_name(charts(a_result(levels), {}))["latency-throughput"]
    assert [row["line"] for row in chart.rows] == ["batch=8"] * 4 + ["batch=32"]


def test_what_is_not_to_be_taken_as_it_stands_beats_nothing() -> None:
    result, written = a_page_of(*closed(4, 8, 16))

    def best(*levels: LevelResult) -> list[object]:
        found = by_name(charts(msgspec.structs.replace(result, levels=[*levels]), read(written)))
        return [row["load"] for row in found["latency-throughput"].rows if row["best"]]

    first, *others = result.levels
    assert "c=4" in best(first, *others)
    late = msgspec.structs.replace(first, client=msgspec.structs.replace(first.client, valid=False))
    assert "c=4" not in best(late, *others)


def test_the_limit_is_where_the_slo_has_it() -> None:
    result, written = a_page_of(*closed(2, 4, 16))
    found = by_name(charts(result, read(written)))
    for name in ("latency-throughput", "percentiles"):
        assert '{"limit": 200.0, "slo": "p99(ttft) < 200ms"}' in json.dumps(found[name].spec)
    assert "1 without both figures" in found["latency-throughput"].about  # its p99 lies among its failures


def test_what_has_nothing_to_show_says_why(matrix: Result) -> None:
    absent = {one.title: one.why for one in charts(matrix, {}) if isinstance(one, Absent)}
    assert absent["Timeline"] == "there are no records of single requests"
    result, written = a_page_of(*closed(4), spread=False)
    absent = {one.title: one.why for one in charts(result, read(written)) if isinstance(one, Absent)}
    assert absent == {
        "Latency against throughput": "it takes two levels that have both figures",
        "TTFT against prompt length": "the prompts are all of one length, or their lengths are unknown",
        "Failures over time": "no request failed",
    }


def test_without_a_stream_it_is_the_whole_answer_that_is_drawn() -> None:
    level = a_level()
    records = [
        msgspec.structs.replace(
            record, streamed=False, first_token_ms=None, first_answer_ms=None, last_token_ms=None, itl_ms=None, events=0
        )
        for record in requests(level, 1)
    ]
    found = by_name(charts(a_result([played(level, records)]), read(lines(records))))
    assert found["percentiles"].title == "Percentiles of E2E"
    assert found["timeline-times"].title == "E2E over time"
    assert {row["part"] for row in found["slowest"].rows} == {"until it was sent", "until it ended"}


def test_records_that_are_not_those_of_the_figures_are_not_drawn() -> None:
    result, written = a_page_of(*closed(4))
    (level,) = drawn(result, read(written[:-1]))
    assert level.window is None


def test_the_servers_queue_and_its_gpus_have_panels_on_the_clock_of_the_requests() -> None:
    result, written = a_page_of(*closed(4, 16))
    assert not {"timeline-queue", "timeline-cache", "timeline-gpu"} & set(by_name(charts(result, read(written))))
    series = [(-20.0, 0.0), (500.0, 3.0), (1500.0, 7.0), (1e6, 0.0)]
    told = Server(
        kind="vllm", url="http://x/metrics", looks=3, waiting=Figure(mean=5, max=7, series=series),
        kv_usage=Figure(mean=0.5, max=0.5, series=[(500.0, 0.5)]),
    )  # fmt: skip
    busy = Figure(mean=0.9, max=0.9, series=[(500.0, 0.9)])
    gpus = [Gpu(id="0", utilisation=busy), Gpu(id="1", utilisation=busy)]
    first, *others = result.levels
    watched = msgspec.structs.replace(first, server=told, gpus=gpus)
    found = by_name(charts(msgspec.structs.replace(result, levels=[watched, *others]), read(written)))
    assert [(row["level"], row["at"], row["what"], row["value"]) for row in found["timeline-queue"].rows] == [
        ("c=4", 0.5, "waiting", 3), ("c=4", 1.5, "waiting", 7),
    ]  # fmt: skip
    assert found["timeline-queue"].levels == ["c=4"], "of the others nothing is known"
    assert [row["value"] for row in found["timeline-cache"].rows] == [50]
    assert found["timeline-cache"].spec["encoding"]["y"]["scale"] == {"domain": [0, 100]}, "half is seen to be half"
    assert {row["what"] for row in found["timeline-gpu"].rows} == {"busy", "busy 1"}
    assert "timeline-power" not in found


def test_a_trial_without_a_figure_is_drawn_all_the_same() -> None:
    of = Capacity(
        axis="rate", setting="", tier="", slo=["p99(ttft) < 200ms"], raw_peak=None, cliff=False, ended="so",
        trials=[
            Trial(load=4.0, outcome="PASS", resolved=True, nearness=0.5, levels=[0]),
            Trial(load=5.0, outcome="INVALID", resolved=False, nearness=None, levels=[1]),
        ],
        searched=Searched(start=4, least=1, most=None, trials=3), bracket=(None, None), statement="",
        usable=Usable(reserve=0.0, replicas=1, lost=0, value=None),
    )  # fmt: skip
    chart = trials([of])
    assert isinstance(chart, Chart)
    filters = [layer["transform"][0]["filter"] for layer in chart.spec["layer"] if "transform" in layer]
    assert filters == ["isValid(datum.nearness)", "!isValid(datum.nearness)"]
    assert "Strokes on the axis" in chart.about
    assert "Pale" not in chart.about


def test_a_figure_that_is_but_the_slowest_request_is_marked_in_the_heat_map(matrix: Result) -> None:
    by = by_name(charts(matrix, {}))
    assert all(row["shown"].startswith("~") for row in by["matrix-latency"].rows)
    assert "simply the slowest" in by["matrix-latency"].about
    assert not [row for row in by["matrix-throughput"].rows if "~" in row["shown"]]
    of_enough = by_name(charts(a_matrix(), {}))["matrix-latency"]
    assert not [row for row in of_enough.rows if "~" in row["shown"]]
    assert "slowest" not in of_enough.about
