"""Nobody's shared machine is loaded by a slip: much, to a machine that is not this one, is asked before."""

import re

import pytest

from loadtest.consent import question
from loadtest.level import Level
from loadtest.schedule import Load, Stage
from loadtest.wire.origin import parse
from loadtest.workload.lengths import Length
from loadtest.workload.model import Probe, Workload

FAR = parse("http://staging:8000/v1")


def level(
    load: Load, duration_s: float | None = 60.0, requests: int | None = None, probe: Probe | None = None
) -> Level:
    workload = Workload(Length(20, 20), Length(8, 8))
    return Level(0, "", load, None, (workload,), duration_s, requests, 0.0, 5.0, probe=probe)


def rate(per_s: float) -> Load:
    return Load("poisson", rate_per_s=per_s)


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:1", "http://[::1]:1", "http://localhost", "http://a.localhost", "unix:/s"]
)
def test_this_machine_is_never_asked_about(url: str) -> None:
    assert question(parse(url), [level(rate(1e6))], None, None) is None


@pytest.mark.parametrize(
    ("levels", "expected"),
    [
        ([level(rate(50))], None),
        ([level(Load("closed", concurrency=64))], None),
        ([level(rate(51))], "^staging:8000 is not this machine.* up to 51 requests a second, about 3,060 "),
        ([level(rate(49), probe=Probe(2.0, Length(4, 4), Length(4, 4)))], "up to 51 requests a second"),
        ([level(Load("closed", concurrency=65))], "up to 65 at once, as many as it answers in 1 min"),
        ([level(Load("closed", concurrency=65), None, 500)], "up to 65 at once, about 500 requests in all"),
        ([level(rate(1)), level(rate(200), 10, 700)], "200 requests a second, about 760 requests"),
        ([level(Load("stages", stages=(Stage(0, 90, 10),), arrival="poisson"))], "up to 90 requests a second"),
        ([level(Load("trace", events=900, span_s=9.0), 9.0)], "up to 100 requests a second, about 900 requests"),
    ],
)  # fmt: skip
def test_it_is_asked_by_the_plan_and_says_what_would_come(levels: list[Level], expected: str | None) -> None:
    said = question(FAR, levels, None, None)
    assert said is None if expected is None else said is not None and re.search(expected, said), said


def test_a_ceiling_counts_as_what_it_is() -> None:
    assert question(FAR, [level(rate(1000))], 50.0, None) is None
    assert "never more than 8 at once" in (question(FAR, [level(rate(1000))], None, 8) or "")


def test_a_search_is_asked_by_how_far_it_may_go() -> None:
    levels = [level(rate(1))]
    assert question(FAR, levels, None, None, ("rate", 50.0)) is None
    assert question(FAR, levels, None, None, ("concurrency", 64.0)) is None
    assert "whatever rate it bears (--max" in (question(FAR, levels, None, None, ("rate", None)) or "")
    assert "whatever concurrency" in (question(FAR, levels, None, None, ("concurrency", None)) or "")
    assert "up to 80 at once" in (question(FAR, levels, None, None, ("concurrency", 80.0)) or "")
    assert question(FAR, levels, 20.0, None, ("rate", None)) is None
