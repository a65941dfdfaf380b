"""Weights in eight bits, in the two forms that ONNX Runtime multiplies fast on a CPU.

``by_column``  one scale a column, for DynamicQuantizeMatMul, which also rounds what it multiplies to eight bits, with
               one scale for the whole tensor. The fastest, and coarse: a row with one large value blurs all others.
``by_block``   one scale for each 32 weights of a column (as in GGUF's Q8_0), for MatMulNBits. Close to float32, and
               slower than the other from a few rows on.
"""

import numpy as np
from numpy.typing import NDArray

BLOCK = 32
_ZERO_POINT = 128  # MatMulNBits's own where it is given none


def by_column(weight: NDArray[np.float32]) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Quantise ``[in, out]``: int8 of the same shape and scales ``[out]``; symmetric."""
    scales = _scales(weight, axis=0)
    return np.rint(weight / scales).astype(np.int8), scales


def by_block(weight: NDArray[np.float32]) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """Quantise ``[in, out]``: uint8 ``[out, blocks, BLOCK]`` and scales ``[out, blocks]``; symmetric around 128.

    The last block is filled up with zeros.
    """
    size, columns = weight.shape
    blocks = -(-size // BLOCK)
    padded = np.zeros((columns, blocks * BLOCK), np.float32)
    padded[:, :size] = weight.T
    grouped = padded.reshape(columns, blocks, BLOCK)
    scales = _scales(grouped, axis=2)
    return (np.rint(grouped / scales[..., None]) + _ZERO_POINT).astype(np.uint8), scales


def _scales(weight: NDArray[np.float32], axis: int) -> NDArray[np.float32]:
    largest: NDArray[np.float32] = np.abs(weight).max(axis)
    return np.where(largest > 0, largest / np.float32(127), np.float32(1))
