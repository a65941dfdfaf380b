"""What a decoder must compute, written down plainly in NumPy and float64."""

import numpy as np
from numpy.typing import NDArray

from servers import decoder


def reference(shape: decoder.Shape, weights: decoder.Weights, ids: list[int]) -> NDArray[np.float64]:
    """Logits after the last of ``ids``, recomputed from the start, without the mask of the bundled models."""
    w = {name: value.astype(np.float64) for name, value in weights.items()}
    cosines, sines = (table[: len(ids), None] for table in decoder.rotary_tables(shape, weights.get("rope_factors")))

    def norm(x: NDArray[np.float64], gain: NDArray[np.float64]) -> NDArray[np.float64]:
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + shape.norm_epsilon) * gain

    def rotate(x: NDArray[np.float64]) -> NDArray[np.float64]:
        a, b = np.split(x, 2, axis=-1)
        return np.concatenate([a * cosines - b * sines, b * cosines + a * sines], axis=-1)

    x = w["embedding"][ids]
    count, queries, keys = len(ids), shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    causal = np.tril(np.ones((count, count), bool))
    for i in range(shape.layers):
        packed = norm(x, w[f"{i}.attention_norm"]) @ w[f"{i}.qkv"]
        q, k, v = np.split(packed, [queries, queries + keys], axis=-1)
        q = rotate(q.reshape(count, shape.heads, shape.head_dim))
        k = rotate(k.reshape(count, shape.kv_heads, shape.head_dim))
        v = v.reshape(count, shape.kv_heads, shape.head_dim)
        k, v = (np.repeat(part, shape.heads // shape.kv_heads, axis=1) for part in (k, v))
        scores = np.where(causal, np.einsum("shd,thd->hst", q, k) * shape.head_dim**-0.5, -np.inf)
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        scores /= scores.sum(-1, keepdims=True)
        x = x + np.einsum("hst,thd->shd", scores, v).reshape(count, queries) @ w[f"{i}.output"]
        gate, up = np.split(norm(x, w[f"{i}.mlp_norm"]) @ w[f"{i}.gate_up"], 2, axis=-1)
        x = x + (gate / (1 + np.exp(-gate)) * up) @ w[f"{i}.down"]
    return norm(x[-1], w["norm"]) @ w.get("head", w["embedding"]).T
