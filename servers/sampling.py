"""Choosing a token on the host, for requests that ask for a temperature (greedy choice is made in the graph), and
what the model thought of it."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


def greedy(logits: NDArray[np.float32], ids: NDArray[np.int64]) -> int:
    """The most likely of ``ids``, by one row of logits ``[vocab]``."""
    return int(ids[logits[ids].argmax()])


class Scores(NamedTuple):
    """A chosen token with the logarithm of its probability, and the most likely ids with theirs, best first."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]


def scores(logits: NDArray[np.float32], token: int, top: int) -> Scores:
    """The log-probabilities of ``token`` and of the ``top`` most likely ids, by a row of logits ``[vocab]``.

    They are the model's own: neither temperature nor top-p, top-k or min-p has touched them.
    """
    wide = logits.astype(np.float64)
    wide -= wide.max()
    wide -= np.log(np.exp(wide).sum())
    best = np.argsort(-wide, kind="stable")[:top]
    return Scores(token, float(wide[token]), tuple((int(i), float(wide[i])) for i in best))


class Sampler:
    """Draws the tokens of one answer from a stream of random numbers of its own.

    One number is used up for each token, whatever its logits are, so an answer depends on the seed, the prompt and
    its place among the answers to one request (``choice``), and not on the requests that happen to share its batch.
    """

    __slots__ = ("_min_p", "_rng", "_temperature", "_top_k", "_top_p")

    def __init__(
        self,
        temperature: float,
        top_p: float = 1.0,
        seed: int | None = None,
        *,
        top_k: int = 0,
        min_p: float = 0.0,
        choice: int = 0,
    ) -> None:
        self._temperature = temperature
        self._top_p = top_p
        self._top_k = top_k
        self._min_p = min_p
        if seed is None:
            self._rng = np.random.default_rng()
        else:
            seed &= 2**64 - 1
            self._rng = np.random.default_rng((seed, choice) if choice else seed)

    def choose(self, logits: NDArray[np.float32], ids: NDArray[np.int64]) -> int:
        """One of ``ids``, drawn by a row of logits ``[vocab]`` divided by the temperature.

        From the ``top_k`` most likely (0: all); of these the fewest whose probability reaches ``top_p`` (nucleus
        sampling, Holtzman et al. 2019); of these the ones at least ``min_p`` times as likely as the best.
        """
        behind = logits[ids].astype(np.float64) - logits[ids].max()
        with np.errstate(over="ignore"):  # at the smallest temperatures only the most likely is left
            weights = np.exp(behind / self._temperature)
        if self._top_p < 1 or self._top_k or self._min_p:
            order = np.argsort(-weights, kind="stable")
            if self._top_k:
                order = order[: self._top_k]
            ids, weights = ids[order], weights[order]
            count = len(weights)
            if self._top_p < 1:
                count = int(np.searchsorted(weights.cumsum(), self._top_p * weights.sum())) + 1
            if self._min_p:
                count = min(count, int(np.searchsorted(-weights, -self._min_p * weights[0], "right")))
            ids, weights = ids[:count], weights[:count]
        steps = weights.cumsum()
        return int(ids[min(np.searchsorted(steps, self._rng.random() * steps[-1], "right"), len(ids) - 1)])
