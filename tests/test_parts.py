"""What is said of the workloads of a mix, of turns, models and the probe stream, and of prompts that repeat."""

from typing import Any

import msgspec
import pytest

from loadtest.caveats import caveats
from loadtest.level import Level
from loadtest.records import Record
from loadtest.result import LevelResult
from loadtest.schedule import Load
from loadtest.summary import summarise
from loadtest.workload.lengths import Length
from loadtest.workload.model import Data, Probe, Rows, Workload
from tests.test_summary import OPEN, answer, failure, level, run

CHAT = Workload(Length(8, 8), Length(4, 4), name="chat", weight=3.0)
CODE = Workload(Length(80, 80), Length(2, 2), name="code", weight=1.0)
PROBE = Probe(2.0, Length(1, 1), Length(1, 1))


def mix(**given: Any) -> Level:
    return level(load=OPEN, workloads=(CHAT, CODE), **given)


def mixed() -> list[Record]:
    chat = [answer(i, 2000.0 + 500 * i) for i in range(6)]
    code = [
        answer(10 + i, at, workload=1, input_tokens=88, asked_input_tokens=80, first_token_ms=at + 200,
               first_answer_ms=at + 200, last_token_ms=at + 230, done_ms=at + 231)
        for i, at in enumerate((2100.0, 2600.0, 3100.0))
    ]  # fmt: skip
    return [*chat, *code, failure(20, 6000.0, workload=1)]


def test_workloads_of_a_mix_are_reported_apart_and_add_up_to_the_level() -> None:
    figures = summarise(mix(), mixed(), run())
    assert figures.client.valid, figures.client.reasons
    chat, code = figures.workloads
    assert (chat.name, chat.weight, code.name, code.weight) == ("chat", 3.0, "code", 1.0)
    assert (chat.counts.ok, code.counts.ok, code.counts.http_error, figures.counts.scheduled) == (6, 3, 1, 10)
    assert chat.latency.ttft_ms.ok.p50 == 101.0
    assert code.latency.ttft_ms.ok.p50 == 200.0
    assert code.latency.ttft_ms.due is not None
    assert code.latency.ttft_ms.due.failed == 1
    assert (chat.rates.target_per_s, code.rates.target_per_s) == (7.5, 2.5)
    assert (chat.workload.input_tokens.requested, code.workload.input_tokens.observed.mean) == ("8", 88.0)
    for name in ("output_tokens_per_s", "total_tokens_per_s", "events_per_s"):
        parts = [getattr(part.throughput, name) for part in figures.workloads]
        assert sum(parts) == pytest.approx(getattr(figures.throughput, name))
    assert summarise(level(), mixed()[:6], run()).workloads == []


def test_prompts_of_one_part_that_are_off_are_not_hidden_by_the_others() -> None:
    said = caveats(summarise(mix(), mixed(), run()), "by words, ± 5 %")
    assert "c=2: code: prompts were not as long as asked: 88.0 tokens on average instead of 80.0; " \
        "they were sized by words, ± 5 %" in said  # fmt: skip
    assert not any(text.startswith("c=2: chat") for text in said)


def test_lengths_that_nobody_asked_for_are_not_held_against_the_prompts() -> None:
    later = [answer(i, 2000.0 + 200 * i, asked_input_tokens=None, input_tokens=900) for i in range(3)]
    figures = summarise(level(load=OPEN), [answer(9, 5000.0), *later], run())
    assert figures.workload.input_tokens.asked.n == 1
    assert figures.workload.input_tokens.observed.n == 4
    assert figures.workload.input_tokens.observed_per_asked == 1.0
    assert caveats(figures) == []
    figures = summarise(level(load=OPEN), [answer(9, 5000.0, input_tokens=9), *later], run())
    assert caveats(figures) == [
        "c=2: prompts were not as long as asked: 112% of the tokens, of those requests that tell"
    ]


def test_models_are_reported_apart_where_several_are_asked() -> None:
    records = [
        *(answer(i, 2000.0 + 500 * i, model="base") for i in range(4)),
        answer(8, 5000.0, model="adapter", first_token_ms=5500.0, first_answer_ms=5500.0, last_token_ms=5530.0,
               done_ms=5531.0),
        failure(9, 6000.0, model="adapter"),
    ]  # fmt: skip
    adapter, base = summarise(level(load=OPEN), records, run()).models
    assert (adapter.model, adapter.counts.ok, adapter.counts.failed, adapter.ttft_ms.ok.p50) == ("adapter", 1, 1, 500.0)
    assert (base.model, base.counts.scheduled, base.e2e_ms.ok.p50) == ("base", 4, 131.0)
    assert summarise(level(load=OPEN), [answer(0, 2000.0)], run()).models == []


def probed(*probes: Record, **given: Any) -> LevelResult:
    records = [answer(i, 2000.0 + 500 * i) for i in range(6)]
    return summarise(level(load=OPEN, probe=PROBE, **given), [*records, *probes], run(scheduled=6))


def test_probe_is_in_no_figure_of_the_level_but_its_own() -> None:
    beside = [answer(i, 3000.0 + 500 * i, probe=True, output_tokens=100, prompt_hash=7) for i in range(4)]
    lost = failure(4, 5500.0, "timed_out", probe=True, done_ms=9000.0)
    with_probe, without = probed(*beside, lost), probed()
    assert with_probe.client.valid, with_probe.client.reasons
    assert with_probe.probe is not None
    assert without.probe is not None
    assert (with_probe.probe.rate_per_s, with_probe.probe.counts.scheduled, with_probe.probe.counts.ok) == (2.0, 5, 4)
    assert with_probe.probe.latency.ttft_ms.ok.p50 == 101.0
    assert with_probe.probe.latency.e2e_ms.due is not None
    assert with_probe.probe.latency.e2e_ms.due.failed == 1
    assert msgspec.structs.replace(with_probe, probe=None) == msgspec.structs.replace(without, probe=None)
    assert without.probe.counts.scheduled == 0
    assert caveats(with_probe) == ["c=2: 1 of 5 requests of the probe stream failed, mostly http_status"]
    assert caveats(without) == []
    assert summarise(level(load=OPEN), [answer(0, 2000.0)], run()).probe is None


# Repeated prompts -----------------------------------------------------------------------------------------------


def test_prompts_sent_before_are_counted_within_the_level_and_over_the_run() -> None:
    def asked(*hashes: int | None, **given: Any) -> list[Record]:
        return [answer(i, 2000.0 + 100 * i, prompt_hash=prompt, **given) for i, prompt in enumerate(hashes)]

    def repeated(records: list[Record], before: set[int] = set()) -> int | None:  # noqa: B006 - never changed
        return summarise(level(load=OPEN), records, run(), before).workload.repeated_prompts

    assert repeated(asked(1, 2, 3)) == 0
    assert repeated(asked(1, 2, 1, 1)) == 2
    assert repeated(asked(1, 2, 3), {3, 4}) == 1
    assert repeated(asked(3, 3), {3}) == 2
    assert repeated(asked(None, None)) is None
    assert repeated([*asked(1), failure(9, 3000.0, "never_sent", sent_ms=None, prompt_hash=1)]) == 0
    figures = summarise(level(load=OPEN), asked(1, 2, 1, 1), run())
    assert caveats(figures) == [
        "c=2: 2 requests repeated a prompt that this run had sent before: a cache of the server's answers them faster; "
        "give it data of more rows, or longer prompts"
    ]


def test_repeats_that_the_data_ask_for_are_said_once_for_all_levels() -> None:
    rows = Rows("", "/data/chats.jsonl", 3, "f" * 64)
    random_ = Workload(None, None, data=Data("chats.jsonl", order="random"), rows=rows)
    said = set()
    for count in (3, 5):
        records = [answer(i, 2000.0 + 100 * i, prompt_hash=1) for i in range(count)]
        figures = summarise(level(load=OPEN, workloads=(random_,)), records, run())
        (data,) = figures.workload.data
        assert (data.source, data.rows, data.order, data.sha256) == ("chats.jsonl", 3, "random", "f" * 64)
        said |= set(caveats(figures))
    assert said == {
        "c=2: prompts repeat, as order: random of their data has it: a cache of the server's answers them faster"
    }


# Loads ----------------------------------------------------------------------------------------------------------


def test_target_of_a_trace_is_what_became_due_in_the_window() -> None:
    traced = level(load=Load("trace", events=6, span_s=10.0))
    records = [answer(i, at) for i, at in enumerate([500.0, 2000.0, 2100.0, 9000.0])]
    assert summarise(traced, records, run()).rates.target_per_s == pytest.approx(3 / 9)
    assert summarise(traced, records, run(400.0, "interrupted")).rates.target_per_s is None
