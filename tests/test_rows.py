import copy
import random
import tempfile
from array import array
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from operator import itemgetter
from pathlib import Path
from unittest import mock

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from loadtest.columns import Bounds, Columns, Requests, prompts
from loadtest.gaps import Gaps
from loadtest.judgement import Played, judge
from loadtest.level import Level, LevelRun, WorkerHealth
from loadtest.records import OUTCOMES, Record, RequestError
from loadtest.rows import Rows, blocks, floats, gaps
from loadtest.schedule import Load
from loadtest.selection import Selection
from loadtest.slo import parse
from loadtest.stats import distribution
from loadtest.summary import summarise
from loadtest.window import Window
from loadtest.workload.lengths import Length
from loadtest.workload.model import Workload

SLOS = (
    "p99(ttft) < 200ms", "p95(itl) < 100ms", "mean(itl) < 30ms", "error_rate < 20%", "mean(e2e) < 1s", "goodput > 80%",
    "output_tokens_per_s > 300",
)  # fmt: skip
LENGTHS = Length(8, 8), Length(4, 4)
LEVEL = Level(
    index=2, name="r=100", load=Load("constant", rate_per_s=100.0), batching=None,
    workloads=tuple(Workload(*LENGTHS, name, weight) for name, weight in (("a", 2.0), ("b", 1.0))),
    duration_s=10.0, requests=None, warmup_s=1.0, grace_s=5.0,
)  # fmt: skip
RUN = LevelRun(
    level=2, end="completed", sending_ended_ms=10_000.0, ended_ms=10_400.0, scheduled=1000,
    workers=[WorkerHealth(0, 0.1, 1.0, 2.0, 10, 1, 1)],
)  # fmt: skip


def made(number: int, rng: random.Random) -> Record:
    intended = number * 10.0
    sent = intended + round(rng.random() / 10, 4)
    outcome = OUTCOMES[number % len(OUTCOMES)] if number % 10 == 0 else "ok"
    if outcome == "never_sent":
        return Record(
            id=number, level=2, worker=1, intended_ms=intended, outcome=outcome, in_window=True, asked_input_tokens=8,
            asked_output_tokens=None, error=RequestError("never_sent", "held back"), workload=number % 2,
        )  # fmt: skip
    gaps = array("f", [rng.expovariate(0.05) for _ in range(3)])
    first = round(sent + 50 + rng.expovariate(0.1), 4)
    last = round(first + sum(gaps), 4)
    return Record(
        id=number, level=2, worker=number % 2, intended_ms=intended, outcome=outcome, in_window=True,
        asked_input_tokens=8, asked_output_tokens=4, sent_ms=sent, wait_ms=0.01, connected_ms=None, connect_ms=0.5,
        first_byte_ms=first, first_token_ms=first, first_answer_ms=first, last_token_ms=last, done_ms=last + 0.1,
        error=None if outcome == "ok" else RequestError(outcome, f"it failed, request {number}", 500, 1.5),
        input_tokens=8, output_tokens=4, token_source="usage", events=4, finish_reason=rng.choice(["stop", "length"]),
        itl_ms=gaps, bytes_in=900, workload=number % 2, prompt_hash=number % 900, model=rng.choice([None, "m"]),
    )  # fmt: skip


def stored(records: list[Record], folder: Path) -> Rows:
    found = Rows(folder)
    for begin in range(0, len(records), 333):
        found.append(records[begin : begin + 333])
    return found


@pytest.fixture
def both(tmp_path: Path) -> Iterator[tuple[list[Record], Rows]]:
    rng = random.Random(7)
    records = [made(number, rng) for number in range(1000)]
    rng.shuffle(records)
    rows = stored(records, tmp_path)
    yield records, rows
    rows.close()


def test_rows_are_the_records_they_were_made_of(both: tuple[list[Record], Rows]) -> None:
    records, rows = both
    assert len(rows) == 1000
    assert list(rows) == records
    assert rows[998] == records[998]
    assert rows[5:8] == records[5:8]
    chosen = np.arange(1000) % 7 == 3
    some = rows.only(chosen).only(np.arange(int(chosen.sum())) % 2 == 0)
    assert list(some) == records[3::14]
    assert some[1] == records[17]
    assert [*some.values("finish_reason")] == [record.finish_reason for record in records[3::14]]
    assert (some[-1], some[7:3:-2]) == (records[3::14][-1], records[3::14][7:3:-2])
    with pytest.raises(IndexError):
        some[len(some)]
    assert rows.tally("finish_reason") == Counter(record.finish_reason for record in records)
    assert [*rows.tally("outcome")] == [*dict.fromkeys(record.outcome for record in records)]
    assert rows.that("turn", lambda turn: turn is None).all()


def test_rows_of_many_blocks_are_read_as_they_were_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadtest.rows._BLOCK", 64)
    rng = random.Random(3)
    records = [made(number, rng) for number in range(1000)]
    rows = stored(records, tmp_path)
    until = copy.copy(rows)
    rows.append(records[:10])
    assert (list(rows), list(until)) == (records + records[:10], records)
    few = until.only(np.arange(1000) % 171 == 5)
    assert list(few) == records[5::171]
    np.testing.assert_array_equal(floats(few, "sent_ms"), floats(records[5::171], "sent_ms"))
    assert few.gap_counts().tolist() == [len(record.itl_ms or ()) for record in records[5::171]]
    assert np.concatenate([gaps(block) for block in blocks(few)]).tolist() == [
        gap for record in records[5::171] for gap in record.itl_ms or ()
    ]
    rows.close()


def test_a_target_that_counts_more_tokens_than_there_can_be_ends_no_long_level(tmp_path: Path) -> None:
    said = dict.fromkeys(("input_tokens", "cached_input_tokens", "output_tokens"), 2**53)
    records = [msgspec.structs.replace(made(1, random.Random(1)), **said)]
    rows = stored(records, tmp_path)
    assert list(rows) == records
    assert floats(rows, "output_tokens").tolist() == [2.0**53]
    rows.close()


def test_figures_and_verdicts_of_rows_are_those_of_the_records(both: tuple[list[Record], Rows]) -> None:
    records, rows = both
    slos = [parse(text) for text in SLOS]
    before = prompts(records[:10])
    found = []
    for each in (records, rows):
        figures = summarise(LEVEL, each, RUN, before, 200.0)
        assert figures.client.valid, figures.client.reasons
        found.append(judge([Played(LEVEL, figures, each, RUN)], slos))
    assert msgspec.to_builtins(found[0]) == msgspec.to_builtins(found[1])
    assert found[0].workload.repeated_prompts is not None
    assert prompts(rows).tolist() == prompts(records).tolist()


def test_rows_are_read_as_they_were_while_others_come_in(tmp_path: Path) -> None:
    rng = random.Random(1)
    records = [made(number, rng) for number in range(1000)]
    rows = stored(records, tmp_path)
    with ThreadPoolExecutor(2) as threads:
        read = [threads.submit(list, copy.copy(rows)) for _ in range(8)]
        for begin in range(0, 1000, 20):
            rows.append(records[begin : begin + 20])
        assert all(each.result() == records for each in read)
    assert list(rows) == records * 2
    rows.close()


@given(st.integers(0, 10**9), st.sampled_from([17, 100, 4096]), st.booleans())
@settings(max_examples=15, deadline=None)
def test_figures_do_not_depend_on_where_requests_are_kept_and_how_many_are_looked_at_together(
    seed: int, most: int, conversing: bool
) -> None:
    rng = random.Random(seed)
    records = [made(number, rng) for number in range(rng.randrange(2, 600))]
    if conversing:
        records = [
            msgspec.structs.replace(
                record, session=number // 3, turn=number % 3 + 1, ends="completed" if number % 3 == 2 else None
            )
            for number, record in enumerate(records)
        ]
    rng.shuffle(records)
    run = msgspec.structs.replace(RUN, scheduled=len(records))
    slos, found = [parse(text) for text in SLOS], []
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch("loadtest.gaps._MOST", most),
        mock.patch("loadtest.rows._BLOCK", most),
    ):
        rows = stored(records, Path(folder))
        for each in (records, rows):
            found.append(judge([Played(LEVEL, summarise(LEVEL, each, run), each, run)], slos))
        rows.close()
    found.append(judge([Played(LEVEL, summarise(LEVEL, records, run), records, run)], slos))
    assert msgspec.json.encode(found[0]) == msgspec.json.encode(found[1]) == msgspec.json.encode(found[2])


def test_gaps_in_order_are_all_of_them_sorted_however_few_are_sorted_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loadtest.gaps._MOST", 50)
    monkeypatch.setattr("loadtest.rows._BLOCK", 16)
    rng = random.Random(5)
    records = [made(number, rng) for number in range(1000)]
    rows = stored(records, tmp_path)
    good = [record for record in records if record.outcome == "ok"]
    expected = []
    for record in sorted(good, key=lambda record: record.intended_ms):
        at = record.first_token_ms or 0.0
        for gap in record.itl_ms or ():
            at += round(gap, 4)
            expected.append((round(at, 4), round(gap, 4)))
    for requests in (records, rows):
        columns = Columns.of(requests)
        window = Window(Requests(requests, columns), columns.ok, Bounds(0.0, 10_000.0, 10_000.0))
        found = [*Gaps([window, window]).by_request()]
        assert len(found) > 20
        assert np.concatenate(found).tolist() == [gap for _, gap in expected] * 2
        by_time = np.concatenate([*Gaps([window]).by_time()]).tolist()
        assert by_time == [gap for _, gap in sorted(expected, key=itemgetter(0))]
    rows.close()


def test_figures_of_rows_that_contradict_them_are_found_out(both: tuple[list[Record], Rows]) -> None:
    _, rows = both
    fewer = msgspec.structs.replace(RUN, scheduled=999)
    assert "999 requests became due and 1000 are recorded" in " ".join(summarise(LEVEL, rows, fewer).client.reasons)


def test_messages_that_differ_in_every_request_do_not_fill_the_memory(tmp_path: Path) -> None:
    rows = Rows(tmp_path)
    failed = [
        Record(
            id=number, level=0, worker=0, intended_ms=1.0, outcome="http_error", in_window=True, asked_input_tokens=1,
            asked_output_tokens=1, error=RequestError("http_status", f"request {number} refused", 503 + number % 2),
        )
        for number in range(5000)
    ]  # fmt: skip
    rows.append(failed)
    kept = [error for error in rows.values("error") if error is not None]
    assert [error.status for error in kept] == [record.error.status for record in failed if record.error]
    assert len({error.message for error in kept}) < 2500
    rows.close()


@pytest.mark.parametrize("values", [[], [3.0], [20.0] * 1000, "random", "zeros among"])
def test_percentiles_by_selection_are_those_by_sorting(values: list[float] | str) -> None:
    rng = np.random.default_rng(3)
    if isinstance(values, str):
        samples = rng.exponential(20.0, 100_003).astype(np.float32)
        if values == "zeros among":
            samples[::3] = 0.0
    else:
        samples = np.array(values, dtype=np.float32)

    def blocks() -> Iterator[NDArray[np.float32]]:
        return iter(np.array_split(samples, 7))

    assert Selection(blocks).distribution() == distribution(samples.astype(np.float64))
