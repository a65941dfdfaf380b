"""Choosing a token on the host, for requests that ask for a temperature (greedy choice is made in the graph)."""

import numpy as np
from numpy.typing import NDArray


def greedy(logits: NDArray[np.float32], ids: NDArray[np.int64]) -> int:
    """The most likely of ``ids``, by one row of logits ``[vocab]``."""
    return int(ids[logits[ids].argmax()])


class Sampler:
    """Draws the tokens of one request from a stream of random numbers of its own.

    One number is used up for each token, whatever its logits are, so an answer depends on the seed and the prompt
    and not on the requests that happen to share its batch.
    """

    __slots__ = ("_rng", "_temperature", "_top_p")

    def __init__(self, temperature: float, top_p: float = 1.0, seed: int | None = None) -> None:
        self._temperature = temperature
        self._top_p = top_p
        self._rng = np.random.default_rng(None if seed is None else seed & (2**64 - 1))

    def choose(self, logits: NDArray[np.float32], ids: NDArray[np.int64]) -> int:
        """One of ``ids``, drawn by a row of logits ``[vocab]``.

        With top-p, from the fewest most likely ids whose probability reaches it (nucleus sampling, Holtzman et
        al. 2019).
        """
        behind = logits[ids].astype(np.float64) - logits[ids].max()
        with np.errstate(over="ignore"):  # at the smallest temperatures only the most likely is left
            weights = np.exp(behind / self._temperature)
        if self._top_p < 1:
            order = np.argsort(-weights, kind="stable")
            ids, weights = ids[order], weights[order]
            count = int(np.searchsorted(weights.cumsum(), self._top_p * weights.sum())) + 1
            ids, weights = ids[:count], weights[:count]
        steps = weights.cumsum()
        return int(ids[min(np.searchsorted(steps, self._rng.random() * steps[-1], "right"), len(ids) - 1)])
