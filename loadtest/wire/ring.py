"""The newest of many readings, in memory that is taken once: however long a run lasts, it holds no more."""

from array import array
from collections.abc import Iterator


class Ring:
    """Keeps the newest ``size`` numbers, in no order."""

    __slots__ = ("_count", "_values")

    def __init__(self, size: int) -> None:
        self._values = array("d", bytes(8 * size))
        self._count = 0

    def append(self, value: float) -> None:
        """Keep one more, in the place of the oldest if there is no other."""
        self._values[self._count % len(self._values)] = value
        self._count += 1

    def clear(self) -> None:
        """Forget all."""
        self._count = 0

    def __len__(self) -> int:
        return min(self._count, len(self._values))

    def __iter__(self) -> Iterator[float]:
        return iter(self._values[: len(self)])
