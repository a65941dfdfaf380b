"""Traces in the formats in which they are published, as small files made here."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from loadtest.errors import ScenarioError
from loadtest.workload import rows
from loadtest.workload.model import Row, Trace

AZURE_2023 = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
2023-11-16 18:15:51.2224670,879,55
"""
AZURE_2024 = """TIMESTAMP,ContextTokens,GeneratedTokens
2024-05-12 00:00:00.003092+00:00,2162,5
2024-05-12 00:00:00.017335+00:00,2399,6
2024-05-12 00:00:01+00:00,76,15
"""
BURST_1 = """Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45,ChatGPT,1087,230,1317,Conversation log
118,GPT-4,417,0,417,API log
"""
BURST_3 = """Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type
19440110.0,1722ac82,43,GPT-4,906,446,1352,Conversation log
19440161.0,d5983bf9,2,ChatGPT,36,29,65,Conversation log
19440170.5,,1,ChatGPT,10,20,30,API log
19440190.0,1722ac82,5,GPT-4,1400,30,1430,Conversation log
"""
MOONCAKE = """{"timestamp": 0, "input_length": 1200, "output_length": 500, "hash_ids": [46, 47, 48]}
{"timestamp": 3052, "input_length": 700, "output_length": 20, "hash_ids": [46, 2353]}
"""


def replayed(folder: Path, name: str, text: str, seed: int = 1, **keys: Any) -> tuple[rows.Rows, list[Row]]:
    (folder / name).write_text(text)
    ready = rows.prepare_trace(Trace(str(folder / name), **keys), folder, seed)
    reader = rows.Reader(ready)
    found = [reader.row(index) for index in range(len(reader))]
    assert [row.turns[0].at_s for row in found] == list(reader.times(0, 1))
    reader.close()
    return ready, found


def events(found: list[Row]) -> list[tuple[float | None, int | None, int | None]]:
    return [(turn.at_s, turn.input_tokens, turn.output_tokens) for row in found for turn in row.turns]


def simple(*times: float, **more: Any) -> str:
    return "\n".join(
        json.dumps({"timestamp": at, "input_tokens": n + 1, "output_tokens": 1} | more) for n, at in enumerate(times)
    )


def test_azure_2023_has_ticks_of_100_ns(tmp_path: Path) -> None:
    ready, found = replayed(tmp_path, "azure.csv", AZURE_2023)
    assert events(found) == [(0.0, 374, 44), (4.314579, 396, 109), (4.541877, 879, 55)]
    assert ready.span_s == pytest.approx(4.541877 * 1.5)  # three arrivals in two gaps


def test_azure_2024_has_a_time_zone(tmp_path: Path) -> None:
    _, found = replayed(tmp_path, "azure.csv", AZURE_2024)
    assert events(found) == [(0.0, 2162, 5), (0.014243, 2399, 6), (0.996908, 76, 15)]


def test_burstgpt_leaves_failed_requests_out(tmp_path: Path) -> None:
    ready, found = replayed(tmp_path, "burst.csv", BURST_1)
    assert events(found) == [(0.0, 472, 18), (40.0, 1087, 230)]
    assert ready.skipped == (("no Response tokens, of 1 or more", 1, 4),)


def test_burstgpt_keeps_sessions_as_turns_at_their_own_times(tmp_path: Path) -> None:
    ready, found = replayed(tmp_path, "burst.csv", BURST_3)
    assert [events([row]) for row in found] == [[(0.0, 906, 446), (80.0, 1400, 30)], [(51.0, 36, 29)], [(60.5, 10, 20)]]
    assert (ready.count, ready.turns) == (3, 4)


def test_mooncake_counts_milliseconds_and_shares_blocks(tmp_path: Path) -> None:
    _, found = replayed(tmp_path, "mooncake.jsonl", MOONCAKE)
    assert events(found) == [(0.0, 1200, 500), (3.052, 700, 20)]
    first, second = (row.turns[0].blocks for row in found)
    assert (len(first), len(second)) == (3, 2)
    assert first[0] == second[0]
    assert len({*first, *second}) == 4


def test_blocks_beyond_the_prompt_are_no_blocks(tmp_path: Path) -> None:
    _, found = replayed(
        tmp_path, "m.jsonl", '{"timestamp": 0, "input_length": 512, "output_length": 1, "hash_ids": [1, 2]}'
    )
    assert len(found[0].turns[0].blocks) == 1


def test_a_simple_trace_has_seconds_or_times_of_day(tmp_path: Path) -> None:
    assert events(replayed(tmp_path, "s.jsonl", simple(1.5, 2))[1]) == [(0.0, 1, 1), (0.5, 2, 1)]
    lines = [
        {"timestamp": "2025-01-01T12:00:00+02:00", "input_tokens": 5, "output_tokens": 6, "session": 7},
        {"timestamp": "2025-01-01T10:00:01.25Z", "input_tokens": 5, "output_tokens": 6, "session": 7},
        {"timestamp": "2025-01-01T10:00:02", "input_tokens": 5, "output_tokens": 6},
    ]
    _, found = replayed(tmp_path, "s.jsonl", "\n".join(map(json.dumps, lines)))
    assert [[at for at, _, _ in events([row])] for row in found] == [[0.0, 1.25], [2.0]]


def test_arrivals_out_of_order_are_sorted_and_equal_ones_stay_as_they_are(tmp_path: Path) -> None:
    _, found = replayed(tmp_path, "s.jsonl", simple(3, 1, 2, 1, 1))
    assert events(found) == [(0.0, 2, 1), (0.0, 4, 1), (0.0, 5, 1), (1.0, 3, 1), (2.0, 1, 1)]


def test_speed_divides_all_times(tmp_path: Path) -> None:
    ready, found = replayed(tmp_path, "s.jsonl", simple(0, 1, 2, 3), speed=2.0)
    assert [at for at, _, _ in events(found)] == [0.0, 0.5, 1.0, 1.5]
    assert ready.span_s == 2.0


def test_a_window_is_cut_out_of_the_files_own_time(tmp_path: Path) -> None:
    # Out of order, so that where the file's time begins is known only at its end.
    ready, found = replayed(tmp_path, "s.jsonl", simple(130, 125, 100, 110, 119, 120), start_s=10, end_s=20)
    assert [at for at, _, _ in events(found)] == [0.0, 9.0]
    assert ready.span_s == 10
    ready, found = replayed(tmp_path, "s.jsonl", simple(100, 110, 119), start_s=5)
    assert [at for at, _, _ in events(found)] == [5.0, 14.0]
    assert ready.span_s == 14 + 9


def test_a_session_that_the_window_cuts_begins_within_it(tmp_path: Path) -> None:
    _, found = replayed(tmp_path, "s.jsonl", simple(0, 10, 20, 30, session="a"), start_s=5, end_s=25)
    assert [events([row]) for row in found] == [[(5.0, 2, 1), (15.0, 3, 1)]]


@pytest.mark.parametrize(
    ("scale", "least", "most"), [(0.3, 540, 660), (1, 2000, 2000), (2.5, 4900, 5100), (3, 6000, 6000)]
)
def test_scale_makes_that_many_times_as_many_arrivals_in_the_same_time(
    tmp_path: Path, scale: float, least: int, most: int
) -> None:
    text = simple(*(n * 0.25 for n in range(2000)))
    ready, found = replayed(tmp_path, "s.jsonl", text, scale=scale)
    times = [at for at, _, _ in events(found)]
    assert least <= ready.turns <= most
    assert ready.span_s == 500
    assert min(times) >= 0
    assert max(times) < 500
    assert times == sorted(times)
    assert sum(at < 250 for at in times) == pytest.approx(len(times) / 2, rel=0.1)  # type: ignore[operator]
    assert found == replayed(tmp_path, "s.jsonl", text, scale=scale)[1]
    if scale != int(scale):
        assert found != replayed(tmp_path, "s.jsonl", text, seed=2, scale=scale)[1]


def test_lengths_of_a_trace_can_be_scaled_and_none_falls_below_a_token(tmp_path: Path) -> None:
    _, found = replayed(tmp_path, "s.jsonl", simple(0, 1, 2), lengths=0.4)
    whole = replayed(tmp_path, "s.jsonl", simple(0, 1, 2))[1]
    asked = [tuple(max(1, round(0.4 * (tokens or 0))) for tokens in lengths) for _, *lengths in events(whole)]
    assert [tuple(lengths) for _, *lengths in events(found)] == asked


def test_copies_do_not_come_all_at_once_and_find_no_prompt_of_their_original(tmp_path: Path) -> None:
    line = {"timestamp": 0, "input_length": 1024, "output_length": 1, "hash_ids": [5, 6]}
    text = "\n".join(json.dumps(line | {"timestamp": n * 1000}) for n in range(50))
    _, found = replayed(tmp_path, "m.jsonl", text, scale=2)
    assert len({turn.at_s for row in found for turn in row.turns}) > 90
    assert {turn.blocks for row in found for turn in row.turns} == {(0, 1), (2, 3)}


def test_a_copy_of_a_session_moves_as_a_whole(tmp_path: Path) -> None:
    lines = [{"timestamp": at, "input_tokens": 1, "output_tokens": 1, "session": at % 2} for at in range(100)]
    _, found = replayed(tmp_path, "s.jsonl", "\n".join(map(json.dumps, lines)), scale=2)
    assert len(found) == 4
    for row in found:
        gaps = {round((b.at_s or 0) - (a.at_s or 0), 6) for a, b in zip(row.turns, row.turns[1:], strict=False)}
        assert gaps == {2.0}


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ({"timestamp": "noon"}, "no timestamp that can be read"),
        ({"timestamp": None}, "no timestamp that can be read"),
        ({"timestamp": 1e300}, "no timestamp that can be read"),
        ({"input_length": 0}, "no input_length, of 1 or more"),
        ({"input_length": -5}, "no input_length, of 1 or more"),
        ({"output_length": None}, "no output_length, of 1 or more"),
        ({"output_length": 2.5}, "no output_length, of 1 or more"),
        ({"hash_ids": 5}, "hash_ids that are no list of numbers"),
        ({"hash_ids": [[1]]}, "hash_ids that are no list of numbers"),
    ],
)
def test_an_arrival_that_cannot_be_played_is_counted_with_its_reason(
    tmp_path: Path, line: dict[str, Any], reason: str
) -> None:
    ready, _ = replayed(tmp_path, "m.jsonl", MOONCAKE + json.dumps(json.loads(MOONCAKE.splitlines()[0]) | line))
    assert ready.count == 2
    assert ready.skipped == ((reason, 1, 3),)


@pytest.mark.parametrize(
    ("name", "text", "keys", "message"),
    [
        ("t.csv", "", {}, "t.csv is empty"),
        ("t.csv", "when,n\n1,2\n", {}, "t.csv: its columns are when, n, not those of azure (TIMESTAMP, ContextTokens, "
         "GeneratedTokens) or burstgpt (Timestamp, Request tokens, Response tokens)"),
        ("t.csv", BURST_1, {"format": "azure"},
         "t.csv: its columns are Timestamp, Model, Request tokens, Response tokens, "
         "Total tokens, Log Type, not those of azure (TIMESTAMP, ContextTokens, GeneratedTokens)"),
        ("t.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n", {}, "t.csv: no row can be played: there is none"),
        ("t.jsonl", MOONCAKE, {"format": "jsonl"},
         "t.jsonl: no row can be played: no input_tokens, of 1 or more (2, first"),
        ("t.csv", AZURE_2023, {"start_s": 60, "end_s": 90},
         "t.csv: no arrival lies in the window, from 60 to 90 s: the file has 4.54188 s"),
        ("t.csv", AZURE_2023, {"scale": 0.001}, "t.csv: scale 0.001 leaves none of its 3 rows: raise it"),
    ],
)  # fmt: skip
def test_a_trace_that_cannot_be_played_is_one_clear_message(
    tmp_path: Path, name: str, text: str, keys: dict[str, Any], message: str
) -> None:
    with pytest.raises(ScenarioError) as caught:
        replayed(tmp_path, name, text, **keys)
    assert str(caught.value).replace(f"{tmp_path}{os.sep}", "").startswith(message)


def test_a_trace_of_one_arrival_lasts_a_second(tmp_path: Path) -> None:
    assert replayed(tmp_path, "s.jsonl", simple(77))[0].span_s == 1.0
