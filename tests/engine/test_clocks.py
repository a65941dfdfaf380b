from hypothesis import given
from hypothesis import strategies as st

from loadtest.engine.clocks import Offset, Trip, offset

DELAYS = st.integers(0, 50_000_000)
TRIPS = st.lists(st.tuples(st.integers(0, 10**12), DELAYS, DELAYS), min_size=1, max_size=40)


@given(st.integers(-(10**15), 10**15), TRIPS)
def test_the_true_offset_lies_within_the_error_whatever_the_delays(
    true: int, trips: list[tuple[int, int, int]]
) -> None:
    found = offset([Trip(at, at + there + true, at + there + back) for at, there, back in trips])
    assert abs(found.ns - true) <= found.error_ns
    shortest = min(there + back for _, there, back in trips)
    assert found.error_ns <= (shortest + 1) // 2, "no wider than the shortest trip alone"


def test_a_trip_that_was_slow_one_way_only_narrows_it_from_the_other_side() -> None:
    assert offset([Trip(0, 100 + 7, 1000)]) == Offset(-393, 500)
    assert offset([Trip(0, 100 + 7, 1000), Trip(2000, 2900 + 7, 3000)]) == Offset(7, 100)


def test_of_clocks_that_drift_apart_the_shortest_trip_is_believed() -> None:
    assert offset([Trip(0, 50, 100), Trip(1000, 5005, 1010)]) == Offset(4000, 5)
