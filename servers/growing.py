"""Decoders whose graph appends to its past and gives back a present that is longer: optimum-onnx and merged ones.

Rows that decode together share one past ``[rows, kv_heads, W, head_dim]`` a layer, in which each row has gaps where
it is shorter; the attention mask hides them, and position ids say where each row truly is. So what one step gives is
what the next one takes, without a copy. Only when the rows change are they packed anew.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from servers.model import Model


@dataclass(eq=False, slots=True)
class _Batch:
    """Rows with one past. ``caches``: OrtValues [rows, kv_heads, W, head_dim]; ``mask`` int64 [rows, W], 0 is a gap."""

    caches: list[Any]
    mask: NDArray[np.int64]


@dataclass(eq=False, slots=True)
class _Sequence:
    """What one slot holds: a row of a batch, and its prompt so far."""

    batch: _Batch
    row: int = 0
    prompt: list[int] = field(default_factory=list)


class GrowingModel(Model):
    """A decoder of the ``growing`` or the ``merged`` layout. The cache takes what the sequences need, not more."""

    def _allocate(self) -> None:
        self._sequences: list[_Sequence | None] = [None] * self.slots
        self._logits: NDArray[np.float32] = np.zeros((1, self.layout.vocab), np.float32)

    def prefill(self, slot: int, tokens: list[int]) -> int:
        sequence = self._sequences[slot]
        if sequence is None:
            sequence = self._sequences[slot] = _Sequence(self._nothing())
        batch, past = sequence.batch, int(self.lengths[slot])
        if self.layout.kind == "merged":
            # The branch with a cache was traced with one token, and may not know a causal mask for more of them. So
            # a prompt that comes in pieces is run again from its start, by the branch without.
            sequence.prompt += tokens
            tokens, past = sequence.prompt, 0
            batch = sequence.batch = self._nothing()
        ids = np.array([tokens], np.int64)
        positions = np.arange(past, past + len(tokens), dtype=np.int64)[None]
        (token,) = self._run(batch, ids, positions)
        self.lengths[slot] = past + len(tokens)
        self.tokens[slot] = token
        return token

    def decode(self, count: int) -> list[int]:
        batch = self._together(count)
        lengths = self.lengths[:count]
        chosen = self._run(batch, self.tokens[:count, None], lengths[:, None].astype(np.int64))
        lengths += 1
        self.tokens[:count] = chosen
        return chosen

    def logits(self, row: int) -> NDArray[np.float32]:
        row_logits: NDArray[np.float32] = self._logits[row]
        return row_logits

    def clear(self, slot: int, keep: int = 0) -> None:
        assert not keep, "a row of a batch cannot be cut short"
        self._sequences[slot] = None
        self.lengths[slot] = 0

    def move(self, source: int, target: int) -> None:
        self._sequences[target] = self._sequences[source]
        self._sequences[source] = None
        self.tokens[target] = self.tokens[source]
        self.lengths[target] = self.lengths[source]

    def _nothing(self) -> _Batch:
        empty = np.zeros((1, self.layout.kv_heads, 0, self.layout.head_dim), self._real)
        return _Batch([self._value(empty)] * (2 * self.layout.layers), np.zeros((1, 0), np.int64))

    def _together(self, count: int) -> _Batch:
        """The batch whose rows are slots 0 to ``count - 1`` in this order, packed now if there is none."""
        sequences = [sequence for sequence in self._sequences[:count] if sequence is not None]
        batch = sequences[0].batch
        if len(batch.mask) == count and all(s.batch is batch and s.row == row for row, s in enumerate(sequences)):
            return batch
        width = int(self.lengths[:count].max())
        mask = (np.arange(width) < self.lengths[:count, None]).astype(np.int64)
        # The columns of each row that are no gaps: the first ones of the new batch.
        held = [(s.batch, s.row, np.flatnonzero(s.batch.mask[s.row])) for s in sequences]
        caches = []
        for i in range(2 * self.layout.layers):
            packed = np.zeros((count, self.layout.kv_heads, width, self.layout.head_dim), self._real)
            arrays = {id(source): source.caches[i].numpy() for source, _, _ in held}
            for row, (source, at, columns) in enumerate(held):
                packed[row, :, : len(columns)] = arrays[id(source)][at][:, columns]
            caches.append(self._value(packed))
        batch = _Batch(caches, mask)
        for row, sequence in enumerate(sequences):
            sequence.batch, sequence.row = batch, row
        return batch

    def _run(self, batch: _Batch, ids: NDArray[np.int64], positions: NDArray[np.int64]) -> list[int]:
        """Run ``ids`` int64 [rows, S] at ``positions`` after the batch's past, which grows by them; the next tokens."""
        names = self.layout.cache_names
        mask = np.concatenate([batch.mask, np.ones(ids.shape, np.int64)], axis=1)
        io = self._session.io_binding()
        self._feed_exported(io, np.ascontiguousarray(ids), mask, positions, with_past=batch.mask.shape[1] > 0)
        for name, cache in zip(names, batch.caches, strict=True):
            io.bind_ortvalue_input(f"past_key_values.{name}", cache)
        io.bind_output("logits", "cpu")
        for name in names:
            io.bind_output(f"present.{name}", self.provider)
        self._session.run_with_iobinding(io)
        logits, *batch.caches = io.get_outputs()
        batch.mask = mask
        self._logits = logits.numpy()[:, -1].astype(np.float32)
        chosen: list[int] = self._logits.argmax(-1).tolist()
        return chosen

    def _value(self, array: NDArray[Any]) -> Any:
        import onnxruntime

        return onnxruntime.OrtValue.ortvalue_from_numpy(array, self.provider, 0)
