import math
import random

import pytest

from loadtest.histogram import bucket, merged, quantile


def test_every_time_is_read_back_within_0_4_percent() -> None:
    draw = random.Random(1)
    for value in (math.exp(draw.uniform(math.log(0.001), math.log(1e7))) for _ in range(10_000)):
        assert quantile({bucket(value): 1}, 0.5) == pytest.approx(value, rel=0.004)


def test_percentiles_of_counts_merged_from_several_workers_are_those_of_all_their_times() -> None:
    draw = random.Random(2)
    times = [draw.lognormvariate(4, 1) for _ in range(5000)]
    counts = merged(merged({bucket(value): 1} for value in times[part::3]) for part in range(3))
    for share in (0.01, 0.5, 0.99, 1.0):
        exact = sorted(times)[math.ceil(share * len(times)) - 1]
        assert quantile(counts, share) == pytest.approx(exact, rel=0.004)


def test_no_times_have_no_percentile_and_a_lag_of_nothing_is_a_small_one() -> None:
    assert quantile({}, 0.5) is None
    assert quantile({bucket(0.0): 3, bucket(-1.0): 1}, 1.0) == pytest.approx(0.001, rel=0.004)
