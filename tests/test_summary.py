import json
import math
import random
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadtest.caveats import caveats
from loadtest.level import Level, LevelEnd, LevelRun, WorkerHealth
from loadtest.records import OUTCOMES, Record, RequestError
from loadtest.result import LevelResult, not_reached
from loadtest.schedule import Load, Stage
from loadtest.summary import summarise
from loadtest.workload.lengths import Length
from loadtest.workload.model import Workload

CLOSED = Load("closed", concurrency=2)
OPEN = Load("constant", rate_per_s=10.0)


def level(**given: Any) -> Level:
    values = {
        "index": 0, "name": "c=2", "load": CLOSED, "batching": None,
        "workloads": (Workload(Length(8, 8), Length(4, 4)),),
        "duration_s": 10.0, "requests": None, "warmup_s": 1.0, "grace_s": 5.0,
    }  # fmt: skip
    return Level(**{**values, **given})


def counted(requests: int, **given: Any) -> Level:
    return level(duration_s=None, requests=requests, warmup_s=0.0, **given)


def run(sending_ended_ms: float = 10_000.0, end: LevelEnd = "completed", **given: Any) -> LevelRun:
    health = WorkerHealth(
        worker=0, cpu_share=0.25, loop_lag_p99_ms=0.5, loop_lag_max_ms=2.0, reads=100, coalesced_reads=5,
        connections_opened=2,
    )  # fmt: skip
    values = {
        "level": 0, "end": end, "sending_ended_ms": sending_ended_ms, "ended_ms": sending_ended_ms + 500.0,
        "workers": [health],
    }  # fmt: skip
    return LevelRun(**{**values, **given})


def answer(id: int, at: float, **given: Any) -> Record:
    """Sent 1 ms after ``at``, then tokens at 101, 111, 121 and 131 ms, done at 132 ms."""
    values = {
        "id": id, "level": 0, "worker": 0, "intended_ms": at, "outcome": "ok", "in_window": True,
        "asked_input_tokens": 8, "asked_output_tokens": 4, "sent_ms": at + 1, "first_byte_ms": at + 100,
        "first_token_ms": at + 101, "first_answer_ms": at + 101, "last_token_ms": at + 131, "done_ms": at + 132,
        "input_tokens": 8, "output_tokens": 4, "token_source": "usage", "events": 4, "finish_reason": "length",
        "itl_ms": [10.0, 10.0, 10.0],
    }  # fmt: skip
    return Record(**{**values, **given})


def failure(id: int, at: float, outcome: str = "http_error", **given: Any) -> Record:
    values = {
        "id": id, "level": 0, "worker": 0, "intended_ms": at, "outcome": outcome, "in_window": True,
        "asked_input_tokens": 8, "asked_output_tokens": 4, "sent_ms": at + 1, "done_ms": at + 5, "streamed": False,
        "error": RequestError(kind="http_status", message="overloaded", status=503),
    }  # fmt: skip
    return Record(**{**values, **given})


def busy(until: float = 10_000.0, slots: int = 2, first: int = 0) -> list[Record]:
    """A closed loop that keeps ``slots`` slots busy until ``until``."""
    records: list[Record] = []
    for slot in range(slots):
        at = slot * 0.25
        while at < until:
            records.append(answer(first + len(records), at))
            at += 132.0
    return records


# The window ---------------------------------------------------------------------------------------------------


def test_window_runs_from_warm_up_to_the_end_of_sending_and_requests_belong_by_intended_time() -> None:
    records = [answer(0, 999.9), answer(1, 1000.0), answer(2, 5000.0), answer(3, 9999.0)]
    figures = summarise(level(), records, run())
    assert figures.window.warmup_s == 1.0
    assert figures.window.measured_s == 9.0
    assert figures.window.drain_s == 0.5
    assert figures.counts.in_window == 3
    assert figures.latency.ttft_ms.ok.n == 3
    assert figures.rates.completed_per_s == pytest.approx(3 / 9)


def test_what_the_worker_thought_of_the_window_does_not_matter() -> None:
    records = [answer(0, 500.0, in_window=True), answer(1, 2000.0, in_window=False)]
    assert summarise(level(), records, run()).counts.in_window == 1


def test_sending_that_ended_early_ends_the_window() -> None:
    figures = summarise(level(), busy(4000.0), run(4000.0, "interrupted"))
    assert figures.status == "aborted"
    assert figures.window.measured_s == 3.0
    assert figures.rates.completed_per_s == pytest.approx(2 / 0.132, rel=0.03)


def test_count_bounded_level_is_measured_from_first_intended_to_last_done() -> None:
    figures = summarise(counted(2), [answer(0, 0.0), answer(1, 868.0)], run(868.0))
    assert figures.window.measured_s == 1.0
    assert figures.window.warmup_s == 0.0
    assert figures.counts.in_window == 2
    assert figures.throughput.output_tokens_per_s == pytest.approx(8.0)
    assert figures.throughput == figures.whole_run


def test_with_both_bounds_the_one_that_ended_it_counts() -> None:
    both = level(requests=2, warmup_s=0.0)
    assert summarise(both, [answer(0, 0.0), answer(1, 868.0)], run(868.0)).window.measured_s == 1.0
    assert summarise(both, [answer(0, 0.0)], run(10_000.0)).window.measured_s == 10.0


def test_killed_run_is_measured_up_to_what_was_recorded_and_not_as_long_as_was_planned() -> None:
    figures = summarise(level(), busy(4000.0), None)
    assert figures.status == "aborted"
    assert figures.window.measured_s == pytest.approx(3.0, rel=0.1)
    assert figures.rates.completed_per_s == pytest.approx(2 / 0.132, rel=0.05)
    assert summarise(level(), busy(10_000.0), None).window.measured_s == 9.0
    assert figures.client.workers is None
    assert figures.client.cpu_share is None
    assert figures.client.loop_lag_ms is None


def test_level_that_never_left_its_warm_up_has_no_rates() -> None:
    figures = summarise(level(), [answer(0, 0.0)], run(500.0, "interrupted"))
    assert figures.window.measured_s is None
    assert figures.rates.completed_per_s is None
    assert figures.throughput.output_tokens_per_s is None
    assert figures.concurrency.mean is None
    assert figures.whole_run.output_tokens_per_s == pytest.approx(4 / 0.132)
    assert caveats(figures) == ["c=2: no request was due in the window, so there is nothing to report; "
                                 "it ended before its warm-up did"]  # fmt: skip


# Latency ------------------------------------------------------------------------------------------------------


def test_every_formula_of_a_request() -> None:
    record = answer(0, 2000.0, sent_ms=2005.0, wait_ms=3.0, connect_ms=2.5, first_answer_ms=2111.0)
    latency = summarise(level(), [record], run()).latency
    assert latency.ttft_ms.ok.p50 == 101.0
    assert latency.ttfat_ms.ok.p50 == 111.0
    assert latency.e2e_ms.ok.p50 == 131.0  # the last token, not the end of the response
    assert latency.tpot_ms.ok.p50 == 10.0
    assert latency.itl_ms.ok.n == 3
    assert latency.lag_ms.ok.p50 == 5.0
    assert latency.own_lag_ms.ok.p50 == 2.0
    assert latency.connect_ms.ok.p50 == 2.5
    assert latency.service_ttft_ms.ok.p50 == 96.0
    assert latency.service_e2e_ms.ok.p50 == 126.0


def test_tpot_divides_by_tokens_and_not_by_events() -> None:
    bundled = answer(0, 2000.0, output_tokens=7, events=4)
    figures = summarise(level(), [bundled], run())
    assert figures.latency.tpot_ms.ok.p50 == 30.0 / 6
    assert figures.tokens_per_event == 7 / 4


@pytest.mark.parametrize(
    "given",
    [
        {"output_tokens": 1, "events": 1, "last_token_ms": 2101.0, "itl_ms": None},
        {"output_tokens": 4, "events": 1, "last_token_ms": 2101.0, "itl_ms": None},  # all in one event
        {"output_tokens": None, "token_source": None},
    ],
)
def test_tpot_that_is_undefined_is_excluded_and_counted_and_never_zero(given: dict[str, Any]) -> None:
    metric = summarise(level(), [answer(0, 2000.0, **given), answer(1, 3000.0)], run()).latency.tpot_ms
    assert metric.ok.n == 1
    assert metric.ok.min == 10.0
    assert metric.excluded == 1


def test_answer_that_was_not_streamed_has_no_ttft_and_ends_when_it_is_done() -> None:
    plain = answer(
        0, 2000.0, streamed=False, first_token_ms=None, first_answer_ms=None, last_token_ms=None, events=0, itl_ms=None
    )
    figures = summarise(level(), [plain, failure(1, 3000.0)], run())
    assert figures.latency.ttft_ms.ok.n == 0
    assert figures.latency.ttft_ms.excluded == 1
    assert figures.latency.ttft_ms.due is not None
    assert figures.latency.ttft_ms.due.n == 0  # nothing here is due a first token, the failure included
    assert figures.latency.e2e_ms.ok.p50 == 132.0
    assert figures.throughput.output_tokens_per_s == pytest.approx(4 / 9)
    assert figures.throughput.events_per_s is None


def test_streamed_answer_without_a_token_has_no_end_to_end_time() -> None:
    empty = answer(
        0, 2000.0, first_token_ms=None, first_answer_ms=None, last_token_ms=None, output_tokens=0, events=0, itl_ms=None
    )
    metric = summarise(level(), [empty], run()).latency.e2e_ms
    assert (metric.ok.n, metric.excluded) == (0, 1)


@pytest.mark.parametrize("outcome", [outcome for outcome in OUTCOMES if outcome != "ok"])
def test_every_kind_of_failure_sits_in_the_tail_and_nowhere_else(outcome: str) -> None:
    partial = failure(
        99, 2500.0, outcome, streamed=True, first_token_ms=2501.0, last_token_ms=2502.0, output_tokens=900, events=900
    )
    good = [answer(i, 2000.0 + i) for i in range(9)]
    with_failure, without = summarise(level(), [*good, partial], run()), summarise(level(), good, run())
    for name in ("ttft_ms", "ttfat_ms", "e2e_ms", "tpot_ms"):
        metric = getattr(with_failure.latency, name)
        assert metric.ok == getattr(without.latency, name).ok
        assert (metric.due.n, metric.due.failed) == (10, 1)
        assert metric.due.unbounded == ["p95", "p99", "p999"]
        assert metric.due.p90 == metric.ok.max
    assert with_failure.throughput == without.throughput
    assert with_failure.latency.itl_ms.due is None
    assert getattr(with_failure.counts, outcome) == 1


def test_level_of_failures_alone_is_unbounded_and_produced_nothing() -> None:
    figures = summarise(level(), [failure(i, 2000.0 + i) for i in range(3)], run())
    assert figures.latency.ttft_ms.due is not None
    assert figures.latency.ttft_ms.due.unbounded == ["p50", "p90", "p95", "p99", "p999"]
    assert figures.latency.ttft_ms.ok.n == 0
    assert figures.throughput.output_tokens_per_s == 0.0
    assert figures.rates.completed_per_s == 0.0
    assert figures.rates.offered_per_s == pytest.approx(3 / 9)


# Tokens -------------------------------------------------------------------------------------------------------


def test_tokens_count_where_they_arrived_and_not_where_the_request_belongs() -> None:
    early = answer(0, 885.0)  # in the warm-up; tokens at 986, 996, 1006, 1016
    late = answer(1, 9885.0)  # in the window; tokens at 9986, 9996, 10006, 10016
    figures = summarise(level(), [early, late], run())
    assert figures.counts.in_window == 1
    assert figures.throughput.output_tokens_per_s == pytest.approx(4 / 9)
    assert figures.throughput.events_per_s == pytest.approx(4 / 9)
    assert figures.throughput.total_tokens_per_s == pytest.approx((4 + 8) / 9)  # one first token fell in it


def test_tokens_past_the_cap_of_gaps_are_spread_up_to_the_last_one() -> None:
    # Of 6 events 2 gaps are kept: at 9901, 9911, 9921, then evenly up to 10161: 10001, 10081, 10161.
    capped = answer(
        0, 9800.0, events=6, output_tokens=12, itl_ms=[10.0, 10.0], last_token_ms=10_161.0, done_ms=10_162.0
    )
    figures = summarise(level(), [capped], run())
    assert figures.throughput.output_tokens_per_s == pytest.approx(3 * 2 / 9)
    assert figures.latency.itl_ms.ok.n == 2
    assert figures.latency.itl_ms.excluded == 1
    no_gaps = answer(0, 9800.0, events=4, itl_ms=None, last_token_ms=10_201.0, done_ms=10_201.0)
    assert summarise(level(), [no_gaps], run()).throughput.output_tokens_per_s == pytest.approx(1 / 9)


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(0, 11_000), st.integers(1, 12), st.integers(0, 14)), max_size=20))
def test_throughput_is_what_counting_every_event_gives(requests: list[tuple[float, int, int]]) -> None:
    records, inside = [], 0.0
    for number, (at, events, tokens) in enumerate(requests):
        gaps = [37.0 + number] * (events - 1)
        first = at + 50.0
        last = first + sum(gaps)
        records.append(
            answer(number, at, events=events, output_tokens=tokens, itl_ms=gaps, first_token_ms=first,
                   last_token_ms=last, done_ms=last)
        )  # fmt: skip
        times = np.cumsum([first, *gaps])
        inside += sum(1000.0 <= time <= 10_000.0 for time in times) * tokens / events
    figures = summarise(level(), records, run())
    assert figures.throughput.output_tokens_per_s == pytest.approx(inside / 9)


def test_unknown_token_counts_are_null_and_never_zero() -> None:
    records = [answer(i, 2000.0 + i, output_tokens=None, input_tokens=None, token_source=None) for i in range(3)]
    figures = summarise(level(), records, run())
    assert figures.throughput.output_tokens_per_s is None
    assert figures.throughput.total_tokens_per_s is None
    assert figures.throughput.events_per_s == pytest.approx(12 / 9)
    assert figures.workload.source == "unknown"
    assert figures.workload.output_tokens.observed.n == 0
    assert figures.tokens_per_event is None
    assert "3 of 3 answers had no token count" in caveats(figures)[0]


def test_mixed_sources_and_short_answers_are_visible() -> None:
    records = [
        answer(0, 2000.0, output_tokens=2, cached_input_tokens=5),
        answer(1, 3000.0, output_tokens=1, token_source="tokenizer", cached_input_tokens=2),
    ]
    figures = summarise(level(), records, run())
    assert figures.workload.source == "mixed"
    assert figures.workload.cached_input_tokens == 7
    assert figures.workload.output_tokens.requested == "4"
    assert figures.workload.output_tokens.asked.mean == 4.0
    assert figures.workload.output_tokens.observed.mean == 1.5
    assert figures.workload.input_tokens.observed.p99 == 8.0
    assert caveats(figures) == [
        "c=2: answers were shorter than asked: 1.5 tokens on average instead of 4.0",
        "c=2: warm prefix cache: 7 input tokens (44%) came from the server's cache, so TTFT is not a cold one",
    ]


# Counts -------------------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(st.lists(st.sampled_from(OUTCOMES), max_size=40))
def test_conservation_and_a_result_that_can_be_written(outcomes: list[str]) -> None:
    records = [
        answer(i, 500.0 * i) if outcome == "ok" else failure(i, 500.0 * i, outcome)
        for i, outcome in enumerate(outcomes)
    ]
    figures = summarise(level(load=OPEN), records, run())
    counts = figures.counts
    assert counts.scheduled == len(records) == counts.ok + counts.failed
    assert sum(group.count for group in figures.errors) == counts.failed
    assert sum(figures.finish_reasons.values()) == counts.ok
    text = json.dumps(msgspec.to_builtins(figures), allow_nan=False)
    assert msgspec.json.decode(text, type=LevelResult) == figures


def test_errors_are_grouped_by_kind_and_status_the_most_frequent_first() -> None:
    busy_ = RequestError(kind="http_status", message="slow down", status=429)
    records = [
        failure(0, 2000.0),
        failure(1, 2100.0, error=busy_),
        failure(2, 2200.0, error=msgspec.structs.replace(busy_, message="slow down, please")),
        failure(3, 2300.0, "never_sent", sent_ms=None, done_ms=None, error=None),
        answer(4, 2400.0, finish_reason=None, resent=True),
    ]
    figures = summarise(level(load=OPEN), records, run())
    assert [(e.kind, e.status, e.count, e.example) for e in figures.errors] == [
        ("http_status", 429, 2, "slow down"),
        ("http_status", 503, 1, "overloaded"),
        ("never_sent", None, 1, None),
    ]
    assert figures.finish_reasons == {"unknown": 1}
    assert figures.counts.resent == 1
    assert figures.counts.sent == 4


def test_requests_that_were_cut_off_are_one_group_that_shows_its_age() -> None:
    cut = RequestError(kind="cancelled", message="cut off: still unanswered 3 s after the sending had ended")
    records = [
        failure(0, 2000.0, "cancelled", done_ms=6500.0, error=cut),
        failure(1, 4000.0, "cancelled", done_ms=6500.0, error=msgspec.structs.replace(cut, status=200)),
    ]
    (group,) = summarise(level(), records, run()).errors
    assert (group.kind, group.status, group.count) == ("cancelled", None, 2)
    assert group.example == f"{cut.message} (the oldest 4.5 s after it was due)"


def test_concurrency_is_time_weighted_and_its_peak_exact() -> None:
    records = [
        answer(0, 0.0, sent_ms=0.0, done_ms=2000.0),
        answer(1, 2000.0, sent_ms=2000.0, done_ms=5500.0),  # follows at once: never two
        answer(2, 5000.0, sent_ms=5000.0, done_ms=6500.0),
        failure(3, 9000.0, "cancelled", sent_ms=9000.0, done_ms=None),  # still going on
        failure(4, 9100.0, "never_sent", sent_ms=None, done_ms=9100.0),
    ]
    figures = summarise(level(), records, run())
    assert figures.concurrency.peak == 2
    assert figures.concurrency.mean == pytest.approx((1.0 + 3.5 + 1.5 + 1.0) / 9)


def test_open_loop_says_its_target_and_a_closed_one_has_none() -> None:
    assert summarise(level(load=OPEN), [], run()).rates.target_per_s == 10.0
    assert summarise(level(), [], run()).rates.target_per_s is None


def test_stages_are_asked_for_the_mean_of_their_rate_over_the_window() -> None:
    stages = (Stage(0.0, 10.0, 4.0), Stage(30.0, 30.0, 6.0))
    staged = Load("stages", stages=stages, arrival="constant")
    # From the end of warm-up at 1 s on: a ramp from 2.5/s to 10/s for 3 s, then 30/s for 6 s.
    asked = (6.25 * 3 + 30 * 6) / 9
    assert summarise(level(load=staged), [], run()).rates.target_per_s == pytest.approx(asked)
    early = summarise(level(load=staged), [], run(sending_ended_ms=4000.0, end="interrupted"))
    assert early.rates.target_per_s == pytest.approx(6.25)
    assert not_reached(level(load=staged)).rates.target_per_s == pytest.approx(20)


def test_order_of_the_journal_does_not_matter() -> None:
    records = busy(3000.0)
    mixed = random.Random(1).sample(records, len(records))
    assert summarise(level(), mixed, run(3000.0)) == summarise(level(), records, run(3000.0))


def test_not_reached_and_empty_levels_are_all_null() -> None:
    for figures in (not_reached(level()), summarise(level(), [], None), summarise(counted(5), [], None)):
        assert figures.counts.scheduled == 0
        assert figures.latency.e2e_ms.ok.p50 is None
        assert figures.client.valid
    assert not_reached(level()).status == "not_reached"
    assert caveats(not_reached(level())) == []


# The generator itself -----------------------------------------------------------------------------------------


def test_sound_level_is_valid_and_tells_what_the_client_saw_of_itself() -> None:
    client = summarise(level(), busy(), run()).client
    assert client.valid, client.reasons
    assert (client.workers, client.cpu_share, client.coalesced_read_share) == (1, 0.25, 0.05)
    assert client.loop_lag_ms is not None
    assert (client.loop_lag_ms.p99, client.loop_lag_ms.max) == (0.5, 2.0)
    assert client.send_lag_ms is not None
    assert client.send_lag_ms.max == pytest.approx(1.0)


def _reasons(level: Level, records: list[Record], run: LevelRun | None) -> list[str]:
    client = summarise(level, records, run).client
    assert client.valid == (not client.reasons)
    return client.reasons


def test_late_sends_make_the_level_invalid() -> None:
    late = [answer(i, 1000.0 + 80 * i, sent_ms=1000.0 + 80 * i + 25) for i in range(100)]
    (reason,) = _reasons(level(load=OPEN), late, run())
    assert reason == ("the generator sent late: own lag p99 25.0 ms, limit 10.1 ms; use more --workers or another host")
    waiting = [msgspec.structs.replace(record, wait_ms=24.0) for record in late]
    assert _reasons(level(load=OPEN), waiting, run()) == []


def test_lateness_is_judged_against_the_median_ttft_where_that_is_large() -> None:
    slow = [
        answer(i, 1000.0 + 80 * i, sent_ms=1000.0 + 80 * i + 25, first_token_ms=1500.0 + 80 * i,
               first_answer_ms=1500.0 + 80 * i, last_token_ms=1530.0 + 80 * i, done_ms=1531.0 + 80 * i)
        for i in range(100)
    ]  # fmt: skip
    assert _reasons(level(load=OPEN), slow, run()) == []  # 25 ms of 500


def test_schedule_that_was_not_held_makes_the_level_invalid() -> None:
    unsent = [failure(100 + i, 9900.0, "never_sent", sent_ms=None, done_ms=None, error=None) for i in range(3)]
    records = [answer(i, 1000.0 + 80 * i) for i in range(97)]
    (reason,) = _reasons(level(load=OPEN), records + unsent, run())
    assert reason.startswith("the schedule was not held: 97 of 100 due requests were sent (97.0%, limit 98%)")
    assert _reasons(level(load=OPEN), records + unsent[:1], run()) == []


@pytest.mark.parametrize(
    "given",
    [
        {"error": RequestError(kind="dropped", message="100 requests were in flight")},
        {"error": RequestError(kind="never_sent", message="held back until the level had ended")},
        {"error": RequestError(kind="cancelled", message="cut off while its connection was being opened")},
        {"wait_ms": 50.0},
    ],
)
def test_what_the_users_cap_held_back_or_was_still_connecting_is_not_the_clients_fault(given: dict[str, Any]) -> None:
    held_back = [failure(100 + i, 9000.0, "never_sent", **{"sent_ms": None, "error": None, **given}) for i in range(50)]
    figures = summarise(level(load=OPEN), [*(answer(i, 1000.0 + 80 * i) for i in range(50)), *held_back], run())
    assert figures.client.valid, figures.client.reasons
    assert figures.client.sent_share == 1.0
    assert figures.counts.never_sent == 50
    assert figures.latency.e2e_ms.due is not None
    assert figures.latency.e2e_ms.due.failed == 50  # failed all the same


def test_bytes_that_waited_for_the_client_make_the_level_invalid() -> None:
    (one,) = run().workers
    read = [
        msgspec.structs.replace(one, error_bar_p50_ms=0.04, error_bar_p99_ms=0.4),
        msgspec.structs.replace(one, worker=1, error_bar_p50_ms=0.06, error_bar_p99_ms=5.5),
        msgspec.structs.replace(one, worker=2),  # had no sampled connection
    ]
    client = summarise(level(), busy(), run(workers=read)).client
    assert (client.error_bar_p50_ms, client.error_bar_ms) == (0.06, 5.5)
    (reason,) = client.reasons
    assert reason == (
        "the generator read late: bytes waited for it, error bar p99 5.5 ms, limit 5.0 ms; "
        "use more --workers, another host or fewer streams"
    )
    assert _reasons(level(), busy(), run(workers=[read[0], read[2]])) == []
    assert summarise(level(), busy(), run()).client.error_bar_ms is None


def test_host_without_a_free_port_makes_the_level_invalid() -> None:
    worker = msgspec.structs.replace(run().workers[0], no_free_port=7)
    (reason,) = _reasons(level(), busy(), run(workers=[worker]))
    assert reason.startswith("this host ran out of ports: 7 connections found none free, limit 0; use fewer streams, ")
    assert "net.ipv4.ip_local_port_range" in reason


def test_target_that_refuses_connections_does_not_make_the_client_the_limit() -> None:
    refused = RequestError(kind="connect", message="connection refused")
    records = [
        failure(i, 100.0 * i, "transport_error", sent_ms=None, done_ms=100.0 * i + 0.1, error=refused)
        for i in range(100)
    ]
    assert _reasons(level(), records, run()) == []
    assert _reasons(level(load=OPEN), records, run()) == []


def test_closed_loop_with_idle_slots_is_invalid() -> None:
    (reason,) = _reasons(level(), busy(slots=1), run())
    assert reason.startswith("the load was not held: 1.0 of 2 slots were busy on average (50%, limit 95%)")
    assert _reasons(level(), busy(slots=1), run(end="interrupted")) == []


def test_opening_connections_and_the_tail_of_a_count_bounded_level_do_not_count_as_idle() -> None:
    reconnecting = [
        msgspec.structs.replace(record, sent_ms=record.intended_ms + 31.0, wait_ms=30.5, connect_ms=30.0)
        for record in busy()
    ]
    assert _reasons(level(), reconnecting, run()) == []
    records = busy(2000.0)
    tail = answer(len(records), 2112.0, last_token_ms=9000.0, done_ms=9001.0, events=2, itl_ms=None)
    assert _reasons(counted(len(records) + 1), [*records, tail], run(2112.0)) == []
    burst = [answer(i, 0.0, sent_ms=1.0 + i / 8) for i in range(64)]
    assert _reasons(counted(64, load=Load("closed", concurrency=64)), burst, run(9.0)) == []


def test_lost_worker_degrades_and_invalidates() -> None:
    figures = summarise(level(), busy(), run(end="worker_lost", reason="generator process 1 ended"))
    assert figures.status == "degraded"
    assert figures.client.reasons[0].startswith("a generator process was lost (generator process 1 ended)")
    (reason,) = _reasons(counted(10, load=OPEN), [answer(0, 0.0)], run(0.0, "worker_lost", workers=[]))
    assert "9 of 10 requests have no record" in reason


def test_when_every_worker_was_lost_the_records_tell_how_long_it_lasted() -> None:
    lost = run(0.0, "worker_lost", workers=[], ended_ms=0.0)
    assert summarise(level(), busy(4000.0), lost).window.measured_s == pytest.approx(3.0, rel=0.1)


@pytest.mark.parametrize(
    ("records", "says"),
    [
        ([answer(0, 2000.0), answer(0, 3000.0)], "1 requests are recorded twice"),
        ([answer(0, 2000.0, done_ms=None)], "no time of sending or of ending"),
        ([answer(0, 2000.0, first_token_ms=1990.0)], "1 requests have times that run backwards"),
        ([answer(0, 2000.0, last_token_ms=2140.0)], "1 requests have times that run backwards"),
    ],
)
def test_records_that_contradict_themselves_are_never_reported_as_sound(records: list[Record], says: str) -> None:
    (reason,) = _reasons(level(load=OPEN), records, run())
    assert says in reason
    assert "this is a bug in loadtest" in reason


def test_lost_record_of_a_complete_level_is_noticed() -> None:
    (reason,) = _reasons(counted(3, load=OPEN), [answer(0, 0.0), answer(1, 100.0)], run(200.0))
    assert "3 requests were scheduled and 2 recorded" in reason


def test_a_burst_among_many_streams_is_counted_and_not_warned_of() -> None:
    burst = answer(1000, 2500.0, itl_ms=[0.0] * 3, last_token_ms=2600.0, first_token_ms=2600.0)
    figures = summarise(level(), [*busy(), burst], run())
    assert figures.single_burst == 1
    assert not any("single-burst" in text for text in caveats(figures))


def test_a_busy_client_is_a_warning_and_not_a_verdict() -> None:
    busy_worker = msgspec.structs.replace(run().workers[0], cpu_share=0.97)
    figures = summarise(level(), busy(), run(workers=[busy_worker]))
    assert figures.client.valid
    assert caveats(figures) == [
        "c=2: the busiest generator process used 97% of its core; more --workers would be safer"
    ]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"bad_events": 2}, "4 stream events could not be read and were skipped"),
        ({"resent": True}, "2 requests were sent once more, because the server had closed the kept-alive connection"),
        (
            {"output_tokens": 12},
            "the server bundles tokens, 3.0 a stream event: ITL is between events, not between tokens",
        ),
        (
            {"cached_input_tokens": 4},
            "warm prefix cache: 8 input tokens (50%) came from the server's cache, so TTFT is not a cold one",
        ),
        (
            {"itl_ms": [0.0] * 3, "last_token_ms": 2101.0},
            "single-burst: 2 of 2 answers arrived all at once; TPOT and ITL are without them, for they have no speed",
        ),
        ({"input_tokens": 9}, "prompts were not as long as asked: 9.0 tokens on average instead of 8.0"),
        (
            {"first_token_ms": None, "first_answer_ms": None, "last_token_ms": None, "events": 0, "itl_ms": None},
            "TTFT not measured: 2 ok answers brought no token, or were not streamed",
        ),
    ],
)
def test_what_changes_the_meaning_of_a_figure_is_a_warning(given: dict[str, Any], says: str) -> None:
    figures = summarise(level(), [answer(i, 2000.0, **given) for i in range(2)], run(end="interrupted"))
    assert figures.client.valid, figures.client.reasons
    assert caveats(figures) == [f"c=2: {says}"]


def test_a_generator_that_stood_still_for_a_while_is_told_of() -> None:
    still = msgspec.structs.replace(run().workers[0], loop_lag_max_ms=4200.0)
    (warning,) = caveats(summarise(level(), busy(), run(workers=[still])))
    assert warning.startswith("c=2: a generator process stood still for 4.2 s at worst")


def test_reads_of_many_events_are_a_warning_and_a_sound_level_has_none() -> None:
    many = msgspec.structs.replace(run().workers[0], coalesced_reads=20)
    (warning,) = caveats(summarise(level(), busy(), run(workers=[many])))
    assert warning.startswith("c=2: 20% of reads held several events")
    assert caveats(summarise(level(), busy(), run())) == []
    plain = {"streamed": False, "first_token_ms": None, "first_answer_ms": None, "last_token_ms": None, "events": 0}
    unstreamed = [answer(0, 2000.0, itl_ms=None, **plain)]
    assert caveats(summarise(level(), unstreamed, run(end="interrupted"))) == []


def test_answer_in_one_burst_has_no_speed_and_others_keep_theirs() -> None:
    burst = answer(0, 2000.0, itl_ms=[0.0] * 3, first_token_ms=2131.0, first_answer_ms=2131.0)
    coalesced = answer(1, 3000.0, itl_ms=[0.0, 0.0, 30.0])
    figures = summarise(level(), [burst, coalesced], run())
    assert figures.single_burst == 1
    assert (figures.latency.tpot_ms.ok.n, figures.latency.tpot_ms.excluded) == (1, 1)
    assert figures.latency.tpot_ms.ok.min == 10.0
    assert (figures.latency.itl_ms.ok.n, figures.latency.itl_ms.excluded) == (3, 1)
    assert figures.latency.ttft_ms.ok.n == 2
    assert figures.throughput.output_tokens_per_s == pytest.approx(8 / 9)


@settings(deadline=None)
@given(st.lists(st.floats(0, 9_000), min_size=1, max_size=30), st.floats(1, 900))
def test_no_figure_has_the_noise_of_arithmetic_in_it(starts: list[float], wait: float) -> None:
    records = [
        answer(i, at, sent_ms=at + 0.1, first_token_ms=at + wait, first_answer_ms=at + wait,
               last_token_ms=at + wait + 30.0, done_ms=at + wait + 31.0)
        for i, at in enumerate(starts)
    ]  # fmt: skip
    figures = summarise(level(), records, run())
    for number in _floats(msgspec.to_builtins(figures)):
        assert number == float(f"{number:.7g}") or number == round(number, 4) or number == round(number, 7)
    for name in figures.latency.__struct_fields__:
        dist = getattr(figures.latency, name).ok
        assert dist.n == 0 or dist.min <= dist.p50 <= dist.p999 <= dist.max


def _floats(value: Any) -> list[float]:
    if isinstance(value, dict):
        return [number for inner in value.values() for number in _floats(inner)]
    if isinstance(value, list):
        return [number for inner in value for number in _floats(inner)]
    return [value] if isinstance(value, float) else []


def test_large_level_is_finite_and_consistent() -> None:
    records = [answer(i, 10_000.0 * i / 20_000) for i in range(20_000)]
    figures = summarise(level(load=Load("poisson", rate_per_s=2000.0)), records, run())
    assert figures.latency.itl_ms.ok.n == 3 * figures.counts.in_window
    assert figures.throughput.output_tokens_per_s == pytest.approx(8000.0, rel=0.01)
    assert math.isfinite(figures.concurrency.mean or math.nan)


def queue(rate_per_s: float, served_per_s: float, seconds: float = 30.0) -> list[Record]:
    """A single server of constant speed, first come, first served, under constant arrivals."""
    records, free = [], 0.0
    for number in range(int(rate_per_s * seconds)):
        at = 1000 * number / rate_per_s
        free = max(free, at) + 1000 / served_per_s
        records.append(
            answer(number, at, first_token_ms=free, first_answer_ms=free, last_token_ms=free, done_ms=free, itl_ms=None)
        )
    return records


@pytest.mark.parametrize(
    ("served_per_s", "status"), [(200.0, "ok"), (51.0, "ok"), (40.0, "overloaded"), (25.0, "overloaded")]
)
def test_a_growing_queue_is_called_overloaded(served_per_s: float, status: str) -> None:
    asked = level(load=Load("constant", rate_per_s=50.0), duration_s=30.0)
    assert summarise(asked, queue(50.0, served_per_s), run(30_000.0)).status == status


def test_a_closed_loop_and_a_handful_of_requests_are_not_called_overloaded() -> None:
    assert summarise(level(duration_s=30.0), queue(50.0, 25.0), run(30_000.0)).status == "ok"
    few = level(load=Load("constant", rate_per_s=1.0), duration_s=8.0)
    assert summarise(few, queue(1.0, 0.8, 8.0), run(8_000.0)).status == "ok"


def test_chance_does_not_overload_a_busy_target() -> None:
    rng = random.Random(5)
    called = 0
    for _ in range(100):  # M/M/1 at 85 %
        at = free = 0.0
        records = []
        for number in range(1500):
            at += rng.expovariate(50.0) * 1000
            free = max(free, at) + rng.expovariate(50.0 / 0.85) * 1000
            records.append(
                answer(
                    number, at, first_token_ms=free, first_answer_ms=free, last_token_ms=free, done_ms=free, itl_ms=None
                )
            )
        asked = level(load=Load("poisson", rate_per_s=50.0), duration_s=at / 1000)
        called += summarise(asked, records, run(at)).status == "overloaded"
    assert called == 0


def test_when_latencies_settled_is_told_and_moves_no_window() -> None:
    asked = level(load=Load("constant", rate_per_s=50.0), duration_s=30.0)
    records = []
    for one in queue(50.0, 200.0):
        done = (one.done_ms or 0.0) + (400.0 if one.intended_ms < 3000 else 0.0)
        records.append(msgspec.structs.replace(one, last_token_ms=done, done_ms=done))
    settled = summarise(asked, records, run(30_000.0)).window
    assert settled.steady_from_s == 3.0
    assert settled.warmup_s == asked.warmup_s
    assert summarise(asked, records[:20], run(30_000.0)).window.steady_from_s is None
