"""The plan as it is read at a terminal."""

from typing import Any

import msgspec
import pytest

from loadtest.duration import span
from loadtest.forecast import DataForecast, Forecast, LevelForecast, Prices, Source, Spread, forecast
from loadtest.level import Batching, Level
from loadtest.reports.plan import bars, text
from loadtest.schedule import Load
from loadtest.workload.lengths import Length
from loadtest.workload.model import Workload

WORKLOAD = Workload(Length.parse("lognormal(300, 200, max=2000)"), Length(8, 56))


def level(index: int, load: Load, **given: Any) -> Level:
    values: dict[str, Any] = {
        "index": index, "name": str(load), "load": load, "batching": None, "workloads": (WORKLOAD,),
        "duration_s": 60.0, "requests": None, "warmup_s": 6.0, "grace_s": 300.0,
    }  # fmt: skip
    return Level(**{**values, **given})


def of(*levels: Level, target: str | None = "http://staging:8000", prices: Prices | None = None) -> Forecast:
    source = Source(name="mine", question="Does it hold?", sha256="", values={}, sources={"seed": "drawn at random"})
    return forecast(
        source, levels, 7, target=target, workers=1, cooldown_s=5.0, prices=prices, warnings=["mind the gap"], count=len
    )


def shown(found: Forecast, width: int = 140) -> str:
    return text(found, "name: mine  # default\n", width, False)


def test_it_opens_with_the_resolved_scenario_and_ends_with_what_it_takes() -> None:
    said = shown(of(level(0, Load("poisson", rate_per_s=5.0)), level(1, Load("poisson", rate_per_s=10.0))))
    assert said.startswith("name: mine  # default\n\nmine: Does it hold?\n2 levels against http://staging:8000")
    assert "seed 7 (drawn for this plan; give it with --seed to play the same)" in said
    assert "It sends for 2 min, with 5 s of cooldown between the levels." in said
    assert "may take up to 5 min more at the end of each level." in said
    assert "warning: mind the gap" in said
    assert said.endswith("\nNothing was sent.\n")


def test_a_closed_loop_by_time_has_no_invented_total_but_what_a_thousand_cost() -> None:
    said = " ".join(shown(of(level(0, Load("closed", concurrency=4)), prices=Prices(1.0, 10.0))).split())
    assert "how many requests it is depends on the answers" in said
    assert "and a thousand cost 0.62." in said
    assert "Cost: by the answers" in said
    assert "requests," not in said


def test_the_bundled_server_is_named_and_its_batching_told_apart() -> None:
    levels = [
        level(n, Load("closed", concurrency=slots), batching=Batching("continuous", size, 50), requests=10)
        for n, (size, slots) in enumerate([(1, 1), (1, 4), (16, 1), (16, 4)])
    ]
    said = shown(of(*levels, target=None))
    assert "against the bundled server" in said
    assert "Starting the bundled server comes first." in said
    rows = [" ".join(line.split()) for line in said.splitlines()]
    first = rows.index(next(row for row in rows if row.startswith("continuous 1 c=1 ≤1 min ≤10 ")))
    assert rows[first + 1].startswith("continuous 1 c=4 ")
    assert rows[first + 2] == ""
    assert rows[first + 3].startswith("continuous 16 c=1 ")
    assert "At most 40 requests, " in said
    assert "≤ the level's time may end before all of them were due." in said


@pytest.mark.parametrize("width", [60, 80, 140])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    found = of(
        *(level(n, Load("poisson", rate_per_s=rate), requests=50) for n, rate in enumerate((1.0, 20.0, 3000.0))),
        level(3, Load("poisson", rate_per_s=50_000.0), duration_s=3600.0),
        prices=Prices(0.5, 1.5),
    )
    assert max(map(len, shown(found, width).splitlines())) <= width


def test_lengths_are_those_of_the_plan_with_a_bar_for_each_part() -> None:
    found = of(level(0, Load("poisson", rate_per_s=5.0)))
    lengths = found.workloads[0].input_tokens
    assert lengths is not None
    row = next(line for line in shown(found).splitlines() if line.startswith("input "))
    for figure in (lengths.min, lengths.p50, lengths.p99, lengths.max):
        assert f"{figure:,}" in row
    assert row.endswith(bars(lengths))


def test_data_say_how_many_rows_were_left_out_and_why() -> None:
    found = of(level(0, Load("poisson", rate_per_s=5.0)))
    data = DataForecast("main", "sharegpt.json", 1200, None, [("no prompt", 3, 17), ("too long", 2, 40)])
    said = shown(msgspec.structs.replace(found, data=[data]))
    assert "sharegpt.json: 1,200 rows; 5 skipped: 3 no prompt (first: line 17), 2 too long (first: line 40)" in said
    trace = DataForecast("main", "azure.csv", 1200, 3600.0, [])
    assert "azure.csv: 1,200 rows over 1 h; none skipped" in shown(msgspec.structs.replace(found, data=[trace]))


def test_many_open_loops_show_the_first_arrivals_of_some_and_say_so() -> None:
    found = of(*(level(n, Load("poisson", rate_per_s=1.0 + n), duration_s=5.0) for n in range(15)))
    said = shown(found)
    assert said.count(" …\n") == 12
    assert "and of 3 levels more (--json has them)" in said


def test_equal_parts_look_equal_though_whole_numbers_do_not_part_evenly() -> None:
    every = list(range(8, 57))  # 49 lengths in 16 parts
    counts = [sum((value - 8) * 16 // 49 == part for value in every) for part in range(16)]
    assert len(set(counts)) == 2
    assert bars(Spread(49, 8, 32, 32.0, 56, 56, counts)) == "█" * 16
    assert bars(Spread(3, 1, 1, 5.0, 9, 9, [100, 0, 1])) == "█ ▁"


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0 s"),
        (0.25, "250 ms"),
        (3.0, "3 s"),
        (2.5, "2.5 s"),
        (90, "1 min 30 s"),
        (3600, "1 h"),
        (7500, "2 h 5 min"),
    ],
)
def test_times_are_said_as_people_say_them(seconds: float, words: str) -> None:
    assert span(seconds) == words


def test_json_keeps_what_the_text_leaves_out() -> None:
    found = of(level(0, Load("poisson", rate_per_s=5.0)), prices=Prices(1.0, 1.0))
    again = msgspec.json.decode(msgspec.json.encode(found), type=Forecast)
    assert again == found
    assert isinstance(again.levels[0], LevelForecast)
