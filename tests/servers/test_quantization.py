"""Eight bits a weight: nothing is off by more than half a step, and zeros stay zeros."""

import numpy as np

from servers.quantization import BLOCK, by_block, by_column

WEIGHT = np.random.default_rng(1).standard_normal((80, 24), dtype=np.float32) * np.linspace(0, 3, 24, dtype=np.float32)


def test_by_column_each_weight_is_within_half_a_step() -> None:
    values, scales = by_column(WEIGHT)
    assert (values.shape, scales.shape) == ((80, 24), (24,))
    assert (np.abs(values * scales - WEIGHT) <= scales / 2 + 1e-6).all()
    assert not values[:, 0].any(), "a column of zeros"


def test_by_block_each_weight_is_within_half_a_step_of_its_block() -> None:
    values, scales = by_block(WEIGHT)
    assert (values.shape, scales.shape) == ((24, 3, BLOCK), (24, 3)), "80 rows fill two and a half blocks"
    restored = (values.astype(np.float32) - 128) * scales[..., None]
    steps = np.repeat(scales, BLOCK, axis=1)[:, :80].T
    assert (np.abs(restored.reshape(24, -1)[:, :80].T - WEIGHT) <= steps / 2 + 1e-6).all()
    assert not restored.reshape(24, -1)[:, 80:].any(), "what fills the last block up"
