"""What is said of a level because the user asked to be told."""

import msgspec
import pytest

from loadtest.alert import parse
from loadtest.caveats import caveats
from loadtest.records import Record
from loadtest.result import Generator
from loadtest.summary import summarise
from loadtest.telemetry.figures import Counted, Server
from tests.test_summary import OPEN, answer, failure, level, run


def slow(id_: int, at: float) -> Record:
    return answer(
        id_, at, first_token_ms=at + 500, first_answer_ms=at + 500, last_token_ms=at + 530, done_ms=at + 531
    )  # fmt: skip


FIGURES = summarise(level(load=OPEN), [*(answer(i, 2000.0 + 100 * i) for i in range(9)), slow(9, 4000.0)], run())
FAILING = summarise(
    level(load=OPEN), [*(answer(i, 2000.0 + 100 * i) for i in range(9)), failure(9, 4000.0)], run()
)  # fmt: skip


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("p99(ttft) > 3 * p50(ttft)", "p99(ttft) is 500 ms, and 3 * p50(ttft) is 303 ms"),
        ("p99(ttft) > 400ms", "p99(ttft) is 500 ms"),
        ("mean(ttft) > p50(ttft)", "mean(ttft) is 141 ms, and p50(ttft) is 101 ms"),
        ("error_rate <= 0%", "error_rate is 0%"),
        ("requests_per_s < 1000", "requests_per_s is"),
        ("goodput < 99%", "nothing to tell it by, as goodput was not measured"),
        ("p99(ttft) > 5 * p50(ttft)", None),
        ("p99(ttft, level='c=3') > 1ms", None),
        ("p99(ttft, level='c=2') > 1ms", "p99(ttft, level='c=2') is 500 ms"),
    ],
)
def test_a_warning_is_given_where_it_holds_with_both_figures(text: str, said: str | None) -> None:
    found = [line for line in caveats(FIGURES, alerts=[parse(text)]) if "warn" in line]
    assert len(found) == (said is not None)
    if said:
        assert found[0].startswith(f"c=2: warn {parse(text).text}: {said}")


def test_failures_are_inside() -> None:
    assert "c=2: warn error_rate > 5%: error_rate is 10%" in caveats(FAILING, alerts=[parse("error_rate > 5%")])
    for text in ("p99(e2e) > 1s", "mean(e2e) > 1s"):
        (line,) = caveats(FAILING, alerts=[parse(text)])
        assert line.endswith("is without end, as requests failed")


def server(**of: object) -> Server:
    return Server(kind="vllm", url="http://x/metrics", looks=9, **of)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        (server(generation_tokens=Counted(server=1500, client=1000)), "counted 50.0% more output tokens"),
        (server(generation_tokens=Counted(server=500, client=1000)), "counted 50.0% fewer output tokens"),
        (server(restarted=True), "counters went back"),
        (server(generation_tokens=Counted(server=1000, client=1000)), None),
        (server(generation_tokens=Counted(server=1000)), None),
        (None, None),
    ],
)
def test_the_servers_own_count_is_remarked_where_it_is_another(seen: Server | None, said: str | None) -> None:
    found = [line for line in caveats(msgspec.structs.replace(FIGURES, server=seen)) if "the server" in line]
    assert len(found) == (said is not None)
    if said:
        assert said in found[0]


def test_what_makes_a_level_invalid_is_not_said_twice() -> None:
    client = msgspec.structs.replace(FIGURES.client, valid=False, reasons=["the server's counts disagree"])
    seen = server(generation_tokens=Counted(server=500, client=1000))
    found = caveats(msgspec.structs.replace(FIGURES, server=seen, client=client))
    assert not any("output tokens" in line for line in found)


def test_a_clock_that_went_away_is_told_of() -> None:
    def said(drift_ms: float | None) -> list[str]:
        worker = Generator(
            worker=1, host="far", clock_offset_ms=5.0, clock_error_ms=0.1, start_late_ms=0.0, cpu_share=0.1,
            clock_drift_ms=drift_ms, clock_drift_error_ms=1.0,
        )  # fmt: skip
        steady = msgspec.structs.replace(worker, worker=0, clock_drift_ms=0.4)
        client = msgspec.structs.replace(FIGURES.client, cluster=[steady, worker])
        return [line for line in caveats(msgspec.structs.replace(FIGURES, client=client)) if "clock" in line]

    assert said(None) == said(99.0) == []
    (line,) = said(-180.0)
    assert "the clock of worker 1 on far went 180 ms away from ours" in line
    assert said(180.0) == [line]
