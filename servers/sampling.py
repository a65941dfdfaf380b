"""Choosing a token on the host, for requests that ask for a temperature (greedy choice is made in the graph)."""

import numpy as np
from numpy.typing import NDArray

from servers.tokenizer import EOS, GENERATED

_IDS = np.array(GENERATED)
_IDS_NO_EOS = _IDS[_IDS != EOS]


def greedy(logits: NDArray[np.float32], *, eos: bool) -> int:
    """The most likely id of one row ``[vocab]``; never EOS unless ``eos``."""
    ids = _IDS if eos else _IDS_NO_EOS
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

    def choose(self, logits: NDArray[np.float32], *, eos: bool) -> int:
        """One id drawn from a row of logits ``[vocab]``; never EOS unless ``eos``.

        With top-p, from the fewest most likely ids whose probability reaches it (nucleus sampling, Holtzman et
        al. 2019).
        """
        ids = _IDS if eos else _IDS_NO_EOS
        scaled = logits[ids].astype(np.float64) / self._temperature
        weights = np.exp(scaled - scaled.max())
        if self._top_p < 1:
            order = np.argsort(-weights, kind="stable")
            ids, weights = ids[order], weights[order]
            count = int(np.searchsorted(weights.cumsum(), self._top_p * weights.sum())) + 1
            ids, weights = ids[:count], weights[:count]
        steps = weights.cumsum()
        return int(ids[min(np.searchsorted(steps, self._rng.random() * steps[-1], "right"), len(ids) - 1)])
