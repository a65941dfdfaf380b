"""What limited a level: each rule on a level made for it, with its figures; and where nothing can be said, why."""

import msgspec
import pytest

from loadtest.explain import RULES, Explanation, Finding, explain
from loadtest.level import Level
from loadtest.reports.explain import text
from loadtest.result import LevelResult, Result, not_reached
from loadtest.schedule import Load
from loadtest.stats import Dist
from loadtest.telemetry.figures import Figure, Gpu, Server
from loadtest.workload.lengths import Length
from loadtest.workload.model import Workload
from tests.comparing import a_result

OPEN = Load("poisson", rate_per_s=10.0)


def figure(mean: float, most: float | None = None) -> Figure:
    return Figure(mean=mean, max=mean if most is None else most, series=[(0.0, mean)])


def server(**of: object) -> Server:
    """One that is busy and has no queue."""
    usual: dict[str, object] = {
        "kind": "vllm", "url": "http://x/metrics", "looks": 30, "running": figure(8.0), "waiting": figure(0.0),
        "queue_ms": figure(0.5), "kv_usage": figure(0.3), "prefill_share": figure(0.1), "preemptions": 0,
    }  # fmt: skip
    return Server(**{**usual, **of})  # type: ignore[arg-type]


def level(load: Load = Load("closed", concurrency=8), tokens_per_s: float = 800.0, **of: object) -> LevelResult:  # noqa: B008
    """A sound level of a second a request, a tenth of it until the first token."""
    planned = Level(
        index=0, name=str(load), load=load, batching=None, workloads=(Workload(Length(64, 64), Length(100, 100)),),
        duration_s=30.0, requests=None, warmup_s=3.0, grace_s=5.0,
    )  # fmt: skip
    empty = not_reached(planned)
    replace = msgspec.structs.replace

    def ms(name: str, mean: float) -> object:
        return replace(getattr(empty.latency, name), ok=Dist(n=200, mean=mean, p50=mean))

    times = {
        "e2e_ms": 1000.0, "service_e2e_ms": 1000.0, "ttft_ms": 100.0, "service_ttft_ms": 100.0, "tpot_ms": 9.1,
        "lag_ms": 0.2, "own_lag_ms": 0.2,
    }  # fmt: skip
    times |= {name: of.pop(name) for name in tuple(of) if name in times}  # type: ignore[misc]
    usual: dict[str, object] = {
        "status": "ok",
        "counts": replace(empty.counts, scheduled=220, sent=220, ok=220, in_window=216),
        "window": replace(empty.window, measured_s=27.0),
        "latency": replace(empty.latency, **{name: ms(name, mean) for name, mean in times.items()}),
        "throughput": replace(empty.throughput, output_tokens_per_s=tokens_per_s),
        "concurrency": replace(empty.concurrency, mean=8.0, peak=8),
        "rates": replace(empty.rates, completed_per_s=8.0),
        "server": server(),
    }
    return replace(empty, **{**usual, **of})


def explained(*levels: LevelResult) -> Explanation:
    return explain(a_result(list(levels)))


def findings(one: LevelResult, *others: LevelResult) -> dict[str, Finding]:
    return {finding.limit: finding for finding in explained(one, *others).levels[0].findings}


def first(one: LevelResult, *others: LevelResult) -> str:
    return explained(one, *others).levels[0].findings[0].limit


def test_a_client_that_was_late_comes_before_all_else() -> None:
    client = msgspec.structs.replace(level().client, valid=False, reasons=["the generator sent late"])
    one = level(client=client, server=server(waiting=figure(50.0)))
    assert first(one) == "client"
    assert "the generator sent late" in findings(one)["client"].words


def test_a_client_whose_core_is_full_is_named_beside_the_rest() -> None:
    one = level(client=msgspec.structs.replace(level().client, cpu_share=0.97))
    assert findings(one)["client"].evidence == {"cpu_share": 0.97}
    assert first(one) == "decode"


def test_a_cap_of_our_own_is_a_wait_before_the_server() -> None:
    one = level(lag_ms=600.0, own_lag_ms=0.2, e2e_ms=1600.0)
    found = findings(one)["before_server"]
    assert found.weight == pytest.approx(0.375, abs=0.001)
    assert "--max-in-flight" in found.words


def test_requests_that_the_server_does_not_know_of_are_before_it() -> None:
    one = level(server=server(running=figure(2.0)))
    found = findings(one)["before_server"]
    assert found.weight == 0.75
    assert found.evidence == {"in_flight": 8, "running": 2, "waiting": 0}


def test_one_request_on_its_way_is_no_queue_before_the_server() -> None:
    assert "before_server" not in findings(level(server=server(running=figure(7.2))))


def test_requests_that_wait_in_the_server_are_its_queue() -> None:
    one = level(server=server(running=figure(1.0), waiting=figure(7.0), queue_ms=figure(870.0), batch_size=figure(1.0)))
    assert first(one) == "server_queue"
    found = findings(one)["server_queue"]
    assert found.weight == 0.875
    assert "7.0 requests waited while 1.0 ran" in found.words
    assert found.evidence["queue_ms"] == 870


def test_a_server_that_tells_only_the_time_in_its_queue_has_one_all_the_same() -> None:
    one = level(server=server(running=None, waiting=None, prefill_share=None, queue_ms=figure(600.0)))
    assert first(one) == "server_queue"
    assert findings(one)["server_queue"].weight == 0.6


def test_a_full_cache_with_requests_waiting_for_it_is_a_limit_and_a_full_one_alone_is_not() -> None:
    full = figure(0.97, 0.999)
    assert "kv_cache" in findings(level(server=server(kv_usage=full, waiting=figure(8.0))))
    assert "kv_cache" not in findings(level(server=server(kv_usage=full)))


def test_requests_that_are_thrown_out_of_the_cache_outweigh_where_their_time_went() -> None:
    one = level(server=server(preemptions=260, kv_usage=figure(0.99, 1.0)))
    assert first(one) == "kv_cache"
    assert findings(one)["kv_cache"].evidence["preemptions"] == 260


def test_a_servers_time_in_prompts_is_prefill() -> None:
    assert first(level(server=server(prefill_share=figure(0.8)))) == "prefill"


def test_without_the_servers_word_prefill_is_what_is_left_of_ttft_without_its_queue() -> None:
    one = level(server=server(prefill_share=None, queue_ms=figure(100.0)), service_ttft_ms=800.0)
    found = findings(one)["prefill"]
    assert found.evidence["prefill_share"] == pytest.approx(700 / 900, abs=0.001)


def test_a_servers_time_in_answers_is_decode() -> None:
    one = level(server=server(batch_size=figure(7.6)))
    assert first(one) == "decode"
    assert (
        findings(one)["decode"].words
        == "90% of the server's time went into answers, 9.1 ms a token with 7.6 sharing a step"
    )


def test_decode_weighs_what_the_queue_leaves_of_a_requests_time() -> None:
    one = level(server=server(running=figure(4.0), waiting=figure(4.0)))
    assert findings(one)["decode"].weight == pytest.approx(0.45)


def test_a_gpu_whose_clock_is_held_down_is_named_with_its_power() -> None:
    gpu = Gpu(id="0", power_w=figure(698.0), power_limit_w=700.0, throttled={"power_cap": 0.95})
    one = level(gpus=[gpu, Gpu(id="1", throttled={"thermal": 0.05})])
    assert first(one) == "gpu_power"
    assert findings(one)["gpu_power"].words == (
        "the clock of GPU 0 was held down in 95% of the looks (power cap); it took 698 W of 700 W"
    )


def test_a_load_of_which_more_would_bring_more_was_limited_by_nothing() -> None:
    more = level(Load("closed", concurrency=32), tokens_per_s=2400.0)
    one = level()
    assert first(one, more) == "nothing"
    assert findings(one, more)["nothing"].evidence == {"throughput": 800, "throughput_of_more": 2400}
    assert first(more, one) == "decode", "of the largest nobody knows"


def test_a_larger_load_of_another_kind_says_nothing_of_this_one() -> None:
    other = level(Load("closed", concurrency=32), tokens_per_s=2400.0, model="another")
    assert "nothing" not in findings(level(), other)


def test_an_open_loop_that_keeps_up_without_a_wait_is_below_the_capacity() -> None:
    one = level(OPEN)
    assert first(one) == "nothing", "where its requests spend their time is no limit"
    assert findings(one)["nothing"].evidence == {"completed_per_s": 8, "due_per_s": 8, "waiting": 0}
    assert "nothing" not in findings(level(OPEN, server=server(waiting=figure(3.0))))
    behind = msgspec.structs.replace(one.rates, completed_per_s=7.0)
    assert "nothing" not in findings(level(OPEN, rates=behind))
    assert first(level(OPEN, lag_ms=9000.0, e2e_ms=10_000.0)) == "before_server"


def test_a_schedule_that_drew_few_arrivals_is_held_to_those_that_came() -> None:
    rates = msgspec.structs.replace(level().rates, target_per_s=10.0)
    assert first(level(OPEN, rates=rates)) == "nothing"


def test_a_little_more_from_a_larger_load_is_said_beside_where_the_time_went() -> None:
    one, more = level(), level(Load("closed", concurrency=32), tokens_per_s=900.0)
    assert first(one, more) == "decode"
    assert findings(one, more)["nothing"].weight == 0.5
    assert "nothing" not in findings(one, level(Load("closed", concurrency=32), tokens_per_s=860.0))


def test_a_request_spends_its_time_in_one_place() -> None:
    behind_a_gateway = level(server=server(running=figure(2.0)))
    assert first(behind_a_gateway) == "before_server"
    assert findings(behind_a_gateway)["decode"].weight == pytest.approx(0.9 * 2 / 8)
    behind_a_cap = level(lag_ms=9000.0, own_lag_ms=0.2, e2e_ms=10_000.0)
    assert list(findings(behind_a_cap)) == ["before_server"]


@pytest.mark.parametrize(
    ("of", "words"),
    [
        ({"server": None}, "the server's metrics were not seen"),
        (
            {"server": server(running=None, waiting=None, queue_ms=None, prefill_share=None)},
            "does not tell how many requests are waiting or running",
        ),
    ],
)
def test_what_cannot_be_told_says_what_was_missing(of: dict[str, object], words: str) -> None:
    found = findings(level(**of))
    assert list(found) == ["cannot_tell"]
    assert words in found["cannot_tell"].words


def test_no_rule_says_anything_of_a_level_without_figures() -> None:
    bare = msgspec.structs.replace(level(), latency=not_reached_latency(), server=None)
    assert [rule(bare, [bare]) for rule in RULES] == [None] * len(RULES)


def not_reached_latency() -> object:
    return msgspec.structs.replace(level().latency, **dict.fromkeys(level().latency.__struct_fields__, empty_metric()))


def empty_metric() -> object:
    return msgspec.structs.replace(level().latency.itl_ms, ok=Dist(n=0))


def test_the_heaviest_comes_first_and_over_all_levels_what_came_first_most_often() -> None:
    queued = server(running=figure(1.0), waiting=figure(7.0))
    names = ["a", "b", "c"]
    levels = [
        msgspec.structs.replace(level(server=queued), name="a"),
        msgspec.structs.replace(level(server=queued), name="b"),
        msgspec.structs.replace(level(), name="c"),
    ]
    found = explained(*levels)
    assert [one.level for one in found.levels] == names
    for one in found.levels:
        weights = [finding.weight for finding in one.findings]
        assert weights == sorted(weights, reverse=True)
    assert [(one.limit, one.levels) for one in found.matrix] == [("server_queue", ["a", "b"]), ("decode", ["c"])]


def shown(result: Result) -> str:
    return text(explain(result), result, 100, color=False)


def test_a_person_reads_the_limit_its_weight_and_the_evidence_of_each_level() -> None:
    one = level(server=server(running=figure(1.0), waiting=figure(7.0)))
    said = shown(a_result([one, msgspec.structs.replace(level(), name="the other")]))
    assert "c=8: the server's queue" in said
    assert " 88% the server's queue: 7.0 requests waited while 1.0 ran" in said
    assert "What came first, over all levels" in said
    assert all(len(line) <= 100 for line in said.splitlines())


def test_a_run_without_a_level_has_nothing_to_explain() -> None:
    empty = msgspec.structs.replace(level(), counts=msgspec.structs.replace(level().counts, in_window=0))
    assert explain(a_result([empty])).levels == []
    assert "Nothing can be explained" in shown(a_result([empty]))
