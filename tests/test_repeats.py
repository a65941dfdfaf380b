import msgspec

from loadtest.level import LevelEnd
from loadtest.repeats import repeats, setting
from loadtest.result import LevelResult, not_reached
from loadtest.summary import summarise
from tests.test_summary import OPEN, answer, failure, level, run


def played(
    repeat: int, ttft_ms: float, name: str = "10/s", failing: bool = False, end: LevelEnd = "completed"
) -> LevelResult:
    records = [
        answer(i, at, first_token_ms=at + ttft_ms, first_answer_ms=at + ttft_ms, last_token_ms=at + ttft_ms + 30,
               done_ms=at + ttft_ms + 31)
        for i, at in enumerate(2000.0 + 100 * i for i in range(10 * repeat))
    ]  # fmt: skip
    lost = [failure(1000, 3000.0)] if failing else []
    asked = level(load=OPEN, name=f"{name} ({repeat}/3)", repeat=repeat)
    return summarise(asked, [*records, *lost], run(end=end))


def test_repeats_are_brought_together_whatever_their_order() -> None:
    levels = [played(2, 120.0), played(1, 101.0), played(3, 110.0), played(1, 50.0, "20/s")]
    (one,) = repeats(levels)
    assert (one.name, one.planned, one.n) == ("10/s", 3, 3)
    assert one.ttft_p99_ms is not None
    assert (one.ttft_p99_ms.median, one.ttft_p99_ms.min, one.ttft_p99_ms.max) == (110.0, 101.0, 120.0)
    assert one.output_tokens_per_s is not None
    assert one.output_tokens_per_s.min == min(level.throughput.output_tokens_per_s or 0.0 for level in levels[:3])
    assert one.requests_per_s is not None
    assert one.requests_per_s.median == levels[0].rates.completed_per_s


def test_only_complete_and_valid_repeats_are_counted() -> None:
    unreached = not_reached(level(load=OPEN, name="10/s (3/3)", repeat=3))
    (one,) = repeats([played(1, 101.0), played(2, 120.0, end="interrupted"), unreached])
    assert (one.planned, one.n) == (3, 1)
    assert one.ttft_p50_ms is not None
    assert one.ttft_p50_ms.max == 101.0
    (none,) = repeats([unreached, unreached])
    assert (none.n, none.ttft_p50_ms) == (0, None)


def test_percentile_among_the_failures_of_one_repeat_has_no_range() -> None:
    (one,) = repeats([played(1, 101.0), played(2, 120.0), played(3, 110.0, failing=True)])
    assert one.ttft_p99_ms is None
    assert one.ttft_p50_ms is not None


def test_levels_played_once_have_no_repeats() -> None:
    one = msgspec.structs.replace(played(1, 101.0), name="10/s in=uniform (64, 128)")
    assert repeats([one]) == []
    assert setting(one) == one.name
