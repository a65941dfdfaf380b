"""A ring keeps the newest readings."""

from loadtest.wire.ring import Ring


def test_the_newest_are_kept_and_all_can_be_forgotten() -> None:
    ring = Ring(3)
    assert (len(ring), [*ring]) == (0, [])
    for value in (1, 2):
        ring.append(value)
    assert sorted(ring) == [1, 2]
    for value in (3, 4, 5):
        ring.append(value)
    assert (len(ring), sorted(ring)) == (3, [3, 4, 5])
    ring.clear()
    ring.append(9)
    assert [*ring] == [9]
