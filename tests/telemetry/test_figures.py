"""What was seen of a level: over its window, on its clock, thinned out, and null where nobody told."""

import pytest

from loadtest.telemetry import figures
from loadtest.telemetry.figures import MOST_POINTS, Looks, Span


def looks(*seen: tuple[float, dict[str, float]]) -> Looks:
    return list(seen)


def test_mean_and_max_are_of_the_window_and_the_series_of_the_level() -> None:
    found = figures.server(
        "vllm", "", looks(*((1000.0 * at, {"waiting": waiting}) for at, waiting in enumerate([90, 1, 2, 3, 80]))),
        Span(1000.0, 3000.0, 3000.0),
    )  # fmt: skip
    assert found.waiting is not None
    assert (found.waiting.mean, found.waiting.max) == (2, 3)
    assert found.waiting.series == [(0.0, 90), (1000.0, 1), (2000.0, 2), (3000.0, 3), (4000.0, 80)]
    assert found.looks == 5


def test_a_level_too_short_to_be_looked_at_in_its_window_takes_what_there_is() -> None:
    found = figures.server(
        "vllm", "", looks((-5.0, {"running": 2.0}), (150.0, {"running": 4.0})), Span(50.0, 100.0, 100.0)
    )
    assert found.running is not None
    assert found.running.mean == 3


def test_a_rate_is_weighted_by_the_time_between_two_looks() -> None:
    seen = looks(*((at, {"generation_tokens": n}) for at, n in [(0.0, 0.0), (1000.0, 100.0), (4000.0, 100.0)]))
    found = figures.server("vllm", "", seen, Span(0.0, 4000.0, 4000.0))
    assert found.generation_tokens_per_s is not None
    assert found.generation_tokens_per_s.mean == 25
    assert found.generation_tokens_per_s.max == 100


def test_what_nobody_told_is_null() -> None:
    found = figures.server("vllm", "", looks((0.0, {"running": 1.0})), Span(0.0, 1000.0, 1000.0))
    assert found.waiting is None
    assert found.generation_tokens is None
    assert found.generation_tokens_per_s is None, "one look is no rate"
    assert found.preemptions is None


def test_counters_that_went_back_are_of_no_use() -> None:
    seen = looks(*((1000.0 * at, {"generation_tokens": n, "running": 1.0}) for at, n in enumerate([500.0, 20.0, 90.0])))
    found = figures.server("vllm", "", seen, Span(0.0, 3000.0, 3000.0))
    assert found.restarted
    assert found.generation_tokens is None
    assert found.running is not None
    assert found.generation_tokens_per_s is not None
    assert found.generation_tokens_per_s.mean == 70, "from where it was started anew, the rate is one again"


@pytest.mark.parametrize(("first_ms", "last_ms"), [(10.0, 5000.0), (-10.0, 3999.0)], ids=["the first", "the last"])
def test_a_counter_of_which_a_look_is_missing_is_not_that_of_the_level(first_ms: float, last_ms: float) -> None:
    seen = looks(*((at, {"generation_tokens": at, "energy_j": at}) for at in (first_ms, 2000.0, last_ms)))
    span = Span(0.0, 3000.0, 4000.0)
    found = figures.server("vllm", "", seen, span)
    assert found.generation_tokens is None
    assert found.generation_tokens_per_s is not None
    assert found.generation_tokens_per_s.mean == 1000
    assert figures.gpu("0", None, seen, (), span).energy_j is None


def test_a_long_level_is_thinned_out_evenly() -> None:
    found = figures.server("vllm", "", looks(*((1000.0 * n, {"running": n}) for n in range(5000))), Span(0.0, 5e6, 5e6))
    assert found.running is not None
    assert MOST_POINTS / 2 < len(found.running.series) <= MOST_POINTS
    assert found.running.max == 4999


def test_a_gpus_energy_is_that_of_the_level_and_its_throttling_a_share() -> None:
    seen = looks(
        (0.0, {"energy_j": 100.0, "power_w": 690.0, "power_limit_w": 700.0, "power_cap": 0.0, "thermal": 0.0}),
        (1000.0, {"energy_j": 800.0, "power_w": 700.0, "power_limit_w": 700.0, "power_cap": 1.0, "thermal": 0.0}),
    )
    found = figures.gpu("0", "NVIDIA H100", seen, ("power_cap", "thermal"), Span(0.0, 1000.0, 1000.0))
    assert found.energy_j == 700
    assert found.throttled == {"power_cap": 0.5}
    assert found.power_limit_w == 700
    assert found.power_w is not None
    assert found.power_w.mean == 695
    assert found.utilisation is None


def test_a_host_that_is_busy_throughout_is_so_to_one_and_no_further() -> None:
    found = figures.host(
        looks((0.0, {"busy_share_s": 0.0}), (1000.0, {"busy_share_s": 1.01})), Span(0.0, 1000.0, 1000.0)
    )
    assert found.cpu_share is not None
    assert found.cpu_share.max == 1
    assert found.tcp_sockets is None


@pytest.mark.parametrize("name", ["running", "kv_usage"])
def test_nothing_seen_makes_no_figure(name: str) -> None:
    assert getattr(figures.server("vllm", "", [], Span(0.0, 1.0, 1.0)), name) is None
