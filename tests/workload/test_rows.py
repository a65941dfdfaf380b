"""The store of rows: what goes in comes out, from any place of it, and the order in which rows are played."""

import itertools
import json
import threading
import tracemalloc
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadtest.errors import ResultError, ScenarioError
from loadtest.workload import rows
from loadtest.workload.model import Data, Message, Order, Trace


def prepared(folder: Path, name: str, text: str | bytes, **keys: object) -> rows.Rows:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return rows.prepare(Data(str(path), **keys), folder, len, False)  # type: ignore[arg-type]


def prompts(ready: rows.Rows) -> list[str]:
    reader = rows.Reader(ready)
    found = [reader.row(index).turns[0].messages[-1].content for index in range(len(reader))]
    reader.close()
    return found


@settings(deadline=None)
@given(st.lists(st.text(min_size=1).filter(str.strip), min_size=1, max_size=30))
def test_every_row_is_read_back_as_it_was(tmp_path_factory: pytest.TempPathFactory, texts: list[str]) -> None:
    folder = tmp_path_factory.mktemp("rows")
    ready = prepared(folder, "x.jsonl", "\n".join(json.dumps({"prompt": text}) for text in texts))
    assert prompts(ready) == texts
    assert (ready.count, ready.turns, ready.skipped) == (len(texts), len(texts), ())


def test_threads_read_rows_of_one_reader_without_mixing_them_up(tmp_path: Path) -> None:
    ready = prepared(tmp_path, "x.txt", "\n".join(str(number) * 50 for number in range(200)))
    reader = rows.Reader(ready)
    wrong: list[int] = []

    def read(start: int) -> None:
        for index in range(start, 200, 4):
            if reader.row(index).turns[0].messages != (Message("user", str(index) * 50),):
                wrong.append(index)

    threads = [threading.Thread(target=read, args=(start,)) for start in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    reader.close()
    assert not wrong


def test_the_same_file_is_told_by_its_hash_and_another_is_not(tmp_path: Path) -> None:
    one, same, other = (prepared(tmp_path, f"{n}.txt", text) for n, text in enumerate(("a\nb", "a\nb", "a\nc")))
    assert one.sha256 == same.sha256 != other.sha256


def test_a_large_array_is_never_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "large.json"
    with path.open("w") as file:
        file.write("[\n")
        for number in range(6000):
            turns = [{"from": "human", "value": f"{number} " + "x" * 3000}, {"from": "gpt", "value": "y" * 3000}]
            file.write(("," if number else "") + json.dumps({"id": number, "conversations": turns}, indent=1) + "\n")
        file.write("]\n")
    assert path.stat().st_size > 30e6
    tracemalloc.start()
    ready = rows.prepare(Data(str(path)), tmp_path, len, False)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert ready.count == 6000
    assert peak < 12e6


def test_the_lengths_seen_are_those_of_all_parts_of_the_file(tmp_path: Path) -> None:
    lines = [json.dumps({"prompt": "x" * size, "answer": "y" * 7}) for size in range(1, 5001)]
    ready = prepared(tmp_path, "x.jsonl", "\n".join(lines))
    assert ready.input_tokens is not None
    assert ready.output_tokens is not None
    assert abs(ready.input_tokens.mean - 2500) < 100
    assert ready.input_tokens.at(0.5) == pytest.approx(2500, rel=0.05)
    assert str(ready.output_tokens) == "7"
    assert prepared(tmp_path, "y.txt", "no answers here").output_tokens is None


@pytest.mark.parametrize("order", ["file", "shuffle"])
@settings(deadline=None)
@given(count=st.integers(1, 300), seed=st.integers(0, 9), level=st.integers(0, 3))
def test_no_row_comes_again_before_each_was_played(order: Order, count: int, seed: int, level: int) -> None:
    for epoch in range(2):
        numbers = range(epoch * count, (epoch + 1) * count)
        assert {rows.row_of(count, order, seed, level, number) for number in numbers} == set(range(count))


def test_file_order_is_that_of_the_file() -> None:
    assert [rows.row_of(3, "file", 1, 0, number) for number in range(7)] == [0, 1, 2, 0, 1, 2, 0]


def test_each_time_through_each_level_and_each_seed_has_an_order_of_its_own() -> None:
    def order(seed: int, level: int, epoch: int) -> tuple[int, ...]:
        return tuple(rows.row_of(50, "shuffle", seed, level, epoch * 50 + place) for place in range(50))

    orders = [order(seed, level, epoch) for seed in range(3) for level in range(3) for epoch in range(3)]
    assert len(set(orders)) == 27
    assert orders == [order(seed, level, epoch) for seed in range(3) for level in range(3) for epoch in range(3)]


@pytest.mark.parametrize("order", ["shuffle", "random"])
@pytest.mark.parametrize("count", [2, 3, 10, 17])
def test_every_row_is_as_likely_as_any_other_at_every_place(order: Order, count: int) -> None:
    # Chi-square with count − 1 degrees of freedom: mean count − 1, variance twice that; six deviations are no chance.
    tries = 2000
    for place in {0, count // 2, count - 1}:
        seen = Counter(rows.row_of(count, order, seed, 0, place) for seed in range(tries))
        chi2 = sum((seen[row] - tries / count) ** 2 / (tries / count) for row in range(count))
        assert chi2 < count - 1 + 6 * (2 * (count - 1)) ** 0.5


def test_neighbours_in_the_file_are_no_neighbours_when_shuffled() -> None:
    order = [rows.row_of(10_000, "shuffle", 1, 0, number) for number in range(10_000)]
    apart = sum(abs(one - other) for one, other in itertools.pairwise(order)) / len(order)
    assert apart == pytest.approx(len(order) / 3, rel=0.05)


def test_with_replacement_rows_repeat() -> None:
    played = [rows.row_of(1000, "random", 1, 0, number) for number in range(1000)]
    assert 580 < len(set(played)) < 690  # 1 − 1/e of them


def test_what_was_left_out_is_told_in_one_sentence(tmp_path: Path) -> None:
    ready = prepared(tmp_path, "x.jsonl", '{"prompt": "a"}\nnot json\n{"prompt": ""}\n{"prompt": " "}\n')
    assert ready.skipped == (("not JSON", 1, 2), ("empty prompt", 2, 3))
    assert (
        rows.left_out(ready)
        == "x.jsonl: 3 rows left out: empty prompt (2, first in line 3), not JSON (1, first in line 2)"
    )
    assert rows.left_out(prepared(tmp_path, "y.txt", "fine")) is None


def test_without_a_row_to_play_the_reasons_are_the_message(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=r"x\.jsonl: no row can be played: empty prompt \(2, first in line 1\)"):
        prepared(tmp_path, "x.jsonl", '{"prompt": ""}\n{"prompt": null}\n')
    with pytest.raises(ScenarioError, match=r"x\.csv: no row can be played: there is none"):
        prepared(tmp_path, "x.csv", "prompt,answer\n")


def test_a_folder_that_cannot_be_written_is_one_message(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text("a prompt")
    with pytest.raises(ResultError, match=r"cannot write to .*nowhere"):
        rows.prepare(Data(str(tmp_path / "x.txt")), tmp_path / "nowhere", len, False)


@pytest.mark.parametrize("workers", [1, 2, 8])
def test_workers_share_out_the_times_of_a_trace(tmp_path: Path, workers: int) -> None:
    path = tmp_path / "x.jsonl"
    lines = [json.dumps({"timestamp": n * 0.5, "input_tokens": 1, "output_tokens": 1}) for n in range(2500)]
    path.write_text("\n".join(lines))
    reader = rows.Reader(rows.prepare_trace(Trace(str(path)), tmp_path, 1))
    for worker in range(workers):
        assert list(reader.times(worker, workers)) == [n * 0.5 for n in range(worker, 2500, workers)]
    assert [reader.row(n).turns[0].at_s for n in (0, 1, 2499)] == [0, 0.5, 1249.5]
    reader.close()
