"""Whether a level kept its SLOs: by the requests that were due, and no surer than they allow."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from loadtest.judgement import Played, judge
from loadtest.level import Level, LevelEnd
from loadtest.records import Record
from loadtest.result import LevelResult, SloResult
from loadtest.schedule import Load
from loadtest.slo import parse
from loadtest.summary import summarise
from loadtest.workload.lengths import Length
from loadtest.workload.model import Workload
from tests.test_summary import answer, failure, level, run

TEN = Load("constant", rate_per_s=10.0)


SILENT = {"first_token_ms": None, "first_answer_ms": None, "last_token_ms": None, "itl_ms": None, "events": 0}


def one_of(ttft_ms: Sequence[float], spacing_ms: float = 100.0, **given: Any) -> list[Record]:
    """Requests evenly apart, each with its TTFT and 30 ms of tokens after it; one of infinity failed."""
    found = []
    for id, (at, wait) in enumerate((index * spacing_ms, wait) for index, wait in enumerate(ttft_ms)):
        if np.isinf(wait):
            found.append(failure(id, at, **given))
        else:
            times = {"first_token_ms": at + wait, "last_token_ms": at + wait + 30, "done_ms": at + wait + 31}
            found.append(answer(id, at, first_answer_ms=at + wait, **{**times, **given}))
    return found


def open_level(n: int, spacing_ms: float = 100.0, **given: Any) -> Level:
    return level(load=TEN, duration_s=n * spacing_ms / 1000, warmup_s=0.0, **given)


def judged(
    records: list[Record], *texts: str, of: Level | None = None, end: LevelEnd = "completed", looks: int = 1
) -> LevelResult:
    of = of or open_level(len(records))
    return judge([playing(records, of, end)], [parse(text) for text in texts], looks)


def playing(records: list[Record], of: Level, end: LevelEnd = "completed") -> Played:
    went = run(sending_ended_ms=(of.duration_s or 0) * 1000, end=end)
    return Played(of, summarise(of, records, went), records, went)


def verdict(records: list[Record], text: str, **given: Any) -> SloResult:
    (found,) = judged(records, text, **given).slo
    return found


# Times --------------------------------------------------------------------------------------------------------


def test_enough_requests_in_time_pass_and_too_few_are_inconclusive() -> None:
    passed = verdict(one_of([50.0] * 600), "p99(ttft) < 300ms")
    assert (passed.verdict, passed.value, passed.n, passed.unit) == ("PASS", 50.0, 600, "ms")
    assert passed.reason == "0 of 600 due requests were late or failed, 6 are allowed"
    assert passed.more_requests is None
    few = verdict(one_of([50.0] * 100), "p99(ttft) < 300ms")
    assert few.verdict == "INCONCLUSIVE"
    assert few.more_requests is not None
    assert 200 < few.more_requests < 400
    assert "not enough to be sure; about" in few.reason
    assert "more requests (29 s at this rate) would decide" in few.reason


def test_many_late_ones_fail_and_nearly_enough_of_them_do_not() -> None:
    spread = np.random.default_rng(1)
    assert (
        verdict(one_of(spread.permutation([50.0] * 960 + [400.0] * 40).tolist()), "p99(ttft) < 300ms").verdict == "FAIL"
    )
    at_limit = verdict(one_of(spread.permutation([50.0] * 990 + [400.0] * 10).tolist()), "p99(ttft) < 300ms")
    assert at_limit.verdict == "INCONCLUSIVE"
    assert at_limit.ci is not None
    assert at_limit.ci[0] == 50.0
    assert at_limit.ci[1] == 400.0


def test_late_requests_in_one_cluster_prove_less_than_scattered_ones() -> None:
    scattered = [50.0] * 4000
    for index in range(0, 4000, 200):
        scattered[index] = 400.0
    cluster = [50.0] * 3980 + [400.0] * 20
    assert verdict(one_of(scattered), "p99(ttft) < 300ms").verdict == "PASS"
    together = verdict(one_of(cluster), "p99(ttft) < 300ms")
    assert together.verdict == "INCONCLUSIVE"
    assert "they come in clusters" in together.reason


def test_the_limit_itself_is_late_for_less_than_and_in_time_for_at_most() -> None:
    records = one_of([300.0] * 600)
    assert verdict(records, "p99(ttft) < 300ms").verdict == "FAIL"
    assert verdict(records, "p99(ttft) <= 300ms").verdict == "PASS"


def test_a_failed_request_is_later_than_any_other() -> None:
    records = one_of([50.0, *[float("inf")] * 3] * 100)
    found = verdict(records, "p50(ttft) < 10s")
    assert (found.verdict, found.value, found.n) == ("FAIL", None, 400)
    assert found.ci == (None, None)


def test_good_answers_without_the_time_cannot_make_a_pass() -> None:
    records = one_of([50.0] * 600)
    for record in (silent := records[::10]):
        records[record.id] = answer(record.id, record.intended_ms, **SILENT)
    for text in ("p99(ttft) < 300ms", "mean(ttft) < 300ms"):
        found = verdict(records, text)
        assert found.verdict == "INCONCLUSIVE"
        assert f"but {len(silent)} good answers had no ttft" in found.reason
    missed = verdict(records, "goodput(ttft < 300ms) >= 95%")
    assert missed.verdict == "FAIL"
    assert f"({len(silent)} of them good answers without a time that has a limit)" in missed.reason


@pytest.mark.parametrize("text", ["p99(ttft) < 1s", "p99(itl) < 1s", "mean(tpot) < 1s", "output_tokens_per_s > 1"])
def test_no_data_is_never_a_pass(text: str) -> None:
    bare = [answer(id, id * 100.0, **SILENT, output_tokens=None, token_source=None) for id in range(600)]
    found = verdict(bare, text)
    assert (found.verdict, found.value, found.n) == ("INCONCLUSIVE", None, 0)
    assert "nothing to judge by" in found.reason
    assert verdict([], text, of=open_level(10)).verdict == "INCONCLUSIVE"


def test_gaps_between_tokens_are_judged_one_by_one() -> None:
    steady = one_of([50.0] * 300)
    found = verdict(steady, "p99(itl) < 20ms")
    assert (found.verdict, found.n, found.value) == ("PASS", 900, 10.0)
    slow = one_of([50.0] * 300, itl_ms=[5.0, 0.0, 25.0])
    assert verdict(slow, "p99(itl) < 20ms").verdict == "FAIL"
    assert "gaps between tokens were longer" in verdict(slow, "p99(itl) < 20ms").reason


def test_gaps_that_stall_together_are_one_cluster_though_they_are_of_many_requests() -> None:
    # 32 streams at once, of 40 gaps each; all of them stall in the same instant, once in 60 rounds.
    records = []
    for index in range(1920):
        gaps = [10.0] * 40
        if index // 32 == 30:
            gaps[20] = 500.0
        at = (index // 32) * 1000.0 + index % 32
        ended = at + 50 + sum(gaps)
        records.append(
            answer(index, at, first_token_ms=at + 50, last_token_ms=ended, done_ms=ended, itl_ms=gaps, events=41,
                   output_tokens=41)
        )  # fmt: skip
    found = verdict(records, "p99.9(itl) < 100ms", of=open_level(600))
    assert found.verdict == "INCONCLUSIVE"
    assert "they come in clusters" in found.reason


def test_a_mean_is_judged_by_its_interval_and_has_no_end_where_requests_failed() -> None:
    times = np.random.default_rng(2).exponential(100.0, 2000)
    assert verdict(one_of(times.tolist()), "mean(ttft) < 150ms").verdict == "PASS"
    assert verdict(one_of(times.tolist()), "mean(ttft) < 80ms").verdict == "FAIL"
    near = verdict(one_of(times.tolist()), f"mean(ttft) < {times.mean() + 0.5:.1f}ms")
    assert near.verdict == "INCONCLUSIVE"
    assert near.more_requests is not None
    failed = verdict(one_of([50.0] * 500 + [float("inf")]), "mean(ttft) < 150ms")
    assert (failed.verdict, failed.value) == ("FAIL", None)
    assert "1 of 501 requests failed" in failed.reason


# Shares and rates ---------------------------------------------------------------------------------------------


def test_errors_are_a_share_of_all_that_were_due() -> None:
    records = one_of([50.0] * 990 + [float("inf")] * 10)
    found = verdict(records, "error_rate < 20%")
    assert (found.verdict, found.value, found.unit) == ("PASS", 0.01, "share")
    assert found.ci is not None
    assert found.ci[0] is not None
    assert found.ci[1] is not None
    assert 0 < found.ci[0] < 0.01 < found.ci[1] < 0.2
    assert verdict(one_of([50.0, float("inf")] * 100), "error_rate < 20%").verdict == "FAIL"
    assert verdict(one_of([50.0] * 20), "error_rate < 1%").verdict == "INCONCLUSIVE"


def test_goodput_is_the_share_that_met_every_limit() -> None:
    records = one_of([50.0, 50.0, 50.0, 400.0] * 200)
    figures = judged(records, "goodput(ttft < 300ms, tpot < 40ms) >= 50%", "goodput(ttft < 300ms) >= 99%")
    assert [slo.verdict for slo in figures.slo] == ["PASS", "FAIL"]
    assert figures.slo[0].value == 0.75
    assert figures.goodput is not None
    assert (figures.goodput.good, figures.goodput.share_of_scheduled) == (600, 0.75)
    assert figures.rates.good_per_s == figures.goodput.per_s == pytest.approx(7.5)


def test_goodput_without_limits_takes_those_of_the_other_slos() -> None:
    figures = judged(one_of([50.0, 400.0] * 200), "p99(ttft) < 300ms", "goodput >= 90%")
    assert [slo.value for slo in figures.slo] == [400.0, 0.5]


def test_a_limit_on_what_a_request_cannot_have_does_not_apply_and_one_on_what_was_not_measured_is_not_met() -> None:
    single = one_of([50.0] * 100, output_tokens=1, events=1, itl_ms=None)
    assert verdict(single, "goodput(tpot < 40ms) >= 50%").value == 1.0
    unknown = one_of([50.0] * 100, output_tokens=None)
    assert verdict(unknown, "goodput(tpot < 40ms) >= 50%").value == 0.0


def test_throughput_is_judged_by_its_interval() -> None:
    records = one_of([50.0] * 600)
    found = verdict(records, "output_tokens_per_s > 30")
    assert (found.verdict, found.unit) == ("PASS", "per_s")
    assert found.value == pytest.approx(40.0, rel=0.01)
    assert verdict(records, "output_tokens_per_s > 50").verdict == "FAIL"
    assert verdict(records, "total_tokens_per_s > 100").verdict == "PASS"
    assert verdict(records, "requests_per_s >= 9").value == pytest.approx(10.0)
    assert verdict(records, "events_per_s > 30").verdict == "PASS"


def test_throughput_whose_swings_reach_the_limit_is_inconclusive() -> None:
    at = np.sort(np.random.default_rng(3).uniform(0, 60_000, 600))
    records = [answer(id, float(when)) for id, when in enumerate(at)]
    found = verdict(records, "requests_per_s >= 9.9", of=open_level(600))
    assert found.verdict == "INCONCLUSIVE"
    assert found.more_requests is not None
    assert found.ci is not None


# Scope --------------------------------------------------------------------------------------------------------


def _turn(session: int, turn: int, at: float, wait: float) -> Record:
    return answer(
        2 * session + turn, at, workload=turn - 1, session=session, turn=turn, model="ab"[turn - 1],
        first_token_ms=at + wait, first_answer_ms=at + wait, last_token_ms=at + wait + 30, done_ms=at + wait + 31,
    )  # fmt: skip


def test_only_the_requests_of_its_scope_count() -> None:
    two = (Workload(Length(8, 8), Length(4, 4), name="chat"), Workload(Length(8, 8), Length(4, 4), name="code"))
    of = open_level(1200, 1000.0, workloads=two)
    records = [
        record
        for session in range(600)
        for turn, wait in ((1, 50.0), (2, 400.0))
        for record in [_turn(session, turn, session * 2000.0 + (turn - 1) * 100, wait)]
    ]
    texts = ["workload=chat", "workload=code", "turn=1", "turn=2", "model=a", "model=b", "turn=3"]
    figures = judged(records, *(f"p99(ttft, {scope}) < 300ms" for scope in texts), of=of)
    assert [slo.verdict for slo in figures.slo] == ["PASS", "FAIL"] * 3 + ["INCONCLUSIVE"]
    assert [slo.n for slo in figures.slo] == [600] * 6 + [0]
    assert "no request of turn=3 was due" in figures.slo[-1].reason


def test_an_slo_of_another_level_is_not_in_this_one() -> None:
    figures = judged(one_of([50.0] * 600), "p99(ttft, level='c=2') < 1s", "p99(ttft, level='c=9') < 1s")
    assert [slo.expression for slo in figures.slo] == ["p99(ttft, level='c=2') < 1s"]


# What makes a verdict something else --------------------------------------------------------------------------


def test_a_level_of_which_the_client_was_the_limit_is_invalid() -> None:
    records = one_of([50.0] * 600)
    late = [answer(r.id, r.intended_ms, sent_ms=r.intended_ms + 40, first_token_ms=r.first_token_ms) for r in records]
    found = verdict(late, "p99(ttft) < 300ms")
    assert found.verdict == "INVALID"
    assert "the generator sent late" in found.reason


def test_an_overloaded_level_keeps_no_limit_on_a_time() -> None:
    of = level(load=Load("constant", rate_per_s=50.0), duration_s=20.0, warmup_s=0.0)
    records = one_of(np.linspace(0, 9000, 1000).tolist(), 20.0)
    assert playing(records, of).figures.status == "overloaded"
    figures = judged(records, "p99(ttft) < 60s", "error_rate < 5%", of=of)
    assert [slo.verdict for slo in figures.slo] == ["FAIL", "PASS"]
    assert "the queue kept growing" in figures.slo[0].reason


def test_a_level_that_ended_early_does_not_pass() -> None:
    found = verdict(one_of([50.0] * 600), "p99(ttft) < 300ms", end="interrupted")
    assert found.verdict == "INCONCLUSIVE"
    assert "ended early" in found.reason
    assert verdict(one_of([500.0] * 600), "p99(ttft) < 300ms", end="interrupted").verdict == "FAIL"


def test_what_the_users_own_stop_cut_off_fails_no_limit() -> None:
    records = one_of([50.0] * 600)
    cut = [failure(600 + n, 59_000.0 + n, "cancelled") for n in range(300)]
    for text in ("error_rate < 10%", "error_rate(workload=chat) < 10%"):
        of = open_level(600, workloads=(Workload(Length(8, 8), Length(4, 4), name="chat"),))
        found = verdict([*records, *cut], text, of=of, end="interrupted")
        assert (found.verdict, found.value, found.n) == ("INCONCLUSIVE", 0.0, 600)
    assert verdict([*records, *cut], "error_rate < 10%", of=open_level(600)).value == pytest.approx(1 / 3)


def test_an_extension_adds_its_requests_and_each_look_costs_some_certainty() -> None:
    of, text = open_level(400), "p99(ttft) < 300ms"
    once = playing(one_of([50.0] * 400), of)
    assert judge([once], [parse(text)]).slo[0].verdict == "PASS"
    assert judge([once], [parse(text)], looks=2).slo[0].verdict == "INCONCLUSIVE"
    (both,) = judge([once, playing(one_of([50.0] * 400), of)], [parse(text)], looks=2).slo
    assert (both.verdict, both.n) == ("PASS", 800)
    late = [answer(r.id, r.intended_ms, sent_ms=r.intended_ms + 40) for r in once.records]
    assert judge([once, playing(late, of)], [parse(text)], looks=2).slo[0].verdict == "INVALID"


def test_every_percentile_has_an_interval_where_the_requests_allow_one() -> None:
    figures = judged(one_of(np.random.default_rng(4).exponential(100.0, 600).tolist()))
    assert figures.slo == []
    assert figures.goodput is None
    ci = figures.latency.ttft_ms.ci95
    assert ci is not None
    p90 = figures.latency.ttft_ms.ok.p90
    assert p90 is not None
    assert ci["p90"][0] < p90 < ci["p90"][1]
    assert "p999" not in ci
