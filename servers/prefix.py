"""What each slot's cache holds, so that a prompt which begins like another need not be run from its start.

Slots are contiguous, so a shared start is copied from the slot that holds it, or kept if it is the same slot. What an
ended request leaves behind stays until its slot is used again; before that it is copied to a free slot, if there is
one, in place of what was used longest ago.
"""

from collections.abc import Sequence

WORTHWHILE = 16  # tokens; copying fewer costs more than running them


class Prefixes:
    """The tokens in the cache of each slot. The engine tells it of every change."""

    def __init__(self, slots: int) -> None:
        self._held: list[list[int]] = [[] for _ in range(slots)]
        self._used = [0] * slots
        self._clock = 0

    def longest(self, prompt: list[int]) -> tuple[int, int]:
        """The slot that shares the longest start with ``prompt``, and its length: 0 if it is not worth a copy.

        The last token of a prompt is never counted: it must be run for the first token of the answer.
        """
        best, length = 0, 0
        for slot, held in enumerate(self._held):
            shared = _shared(held, prompt)
            if shared > length:
                best, length = slot, shared
        length = min(length, len(prompt) - 1)
        if length < WORTHWHILE:
            return 0, 0
        self._touch(best)
        return best, length

    def write(self, slot: int, tokens: list[int]) -> None:
        """``slot`` now holds ``tokens``."""
        self._held[slot] = tokens
        self._touch(slot)

    def fed(self, tokens: list[int]) -> None:
        """Slots 0 and on were each extended by one of ``tokens``."""
        for held, token in zip(self._held, tokens, strict=False):
            held.append(token)

    def copy(self, source: int, target: int) -> None:
        """``target`` now holds what ``source`` holds."""
        self._held[target] = self._held[source].copy()
        self._used[target] = self._used[source]

    def spare(self, slot: int, kept: int, free: Sequence[int]) -> int | None:
        """Where to put what ``slot`` holds before all but its first ``kept`` tokens are overwritten.

        None if there is no room among the ``free`` slots, too little would be lost, or another slot has it too.
        """
        held = self._held[slot]
        if not free or len(held) - kept < WORTHWHILE:
            return None
        if any(other[: len(held)] == held for i, other in enumerate(self._held) if i != slot):
            return None
        return min(free, key=self._used.__getitem__)

    def _touch(self, slot: int) -> None:
        self._clock += 1
        self._used[slot] = self._clock


def _shared(left: list[int], right: list[int]) -> int:
    """How many tokens both begin with. By halving, because lists compare in C."""
    low, high = 0, min(len(left), len(right))
    if left[:WORTHWHILE] != right[:WORTHWHILE]:
        return 0
    while low < high:
        middle = (low + high + 1) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
