"""A Llama-style decoder as an ONNX graph, made from a shape and a seed with ``onnx.helper`` alone.

Per layer: RMS norm, packed query/key/value projection, com.microsoft GroupQueryAttention (rotary positions, past and
present in one shared buffer), output projection, RMS norm, packed gate/up projection, SwiGLU, down projection. The
head is tied to the embedding unless the weights have a ``head`` of its own. In the bundled models, ids that the
tokenizer must not see are masked before ArgMax.

Inputs: ``input_ids`` int64 [B, S], ``last_idx`` int64 [B] (the position in S whose logits are wanted), ``seqlens_k``
int32 [B] (tokens in the cache after this run, less 1), ``total_seq`` int32 [] (the largest such count), and for each
layer ``past_key_values.N.key/value`` [B, kv_heads, M, head_dim]. Outputs: ``next_token`` int64 [B], ``logits``
float32 [B, vocab], ``present.N.key/value``. Operators: onnxruntime docs/ContribOperators.md.
"""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from servers.quantization import BLOCK, by_block, by_column
from servers.tokenizer import EOS, GENERATED

Dtype = Literal["fp32", "fp16", "int8"]
Weights = dict[str, NDArray[np.float32]]

_MASKED = -1e9
# Below the typical winner among the ids, so that an answer seldom ends by itself; see ``random_weights``.
_EOS_BIAS = -2.0
_OPSET, _IR_VERSION = 21, 10


@dataclass(frozen=True)
class Shape:
    """Sizes of a decoder.

    Raises:
        ValueError: heads that do not divide the hidden size, a head size that is no multiple of 16 (a limit of
            GroupQueryAttention with rotary positions), or key/value heads that do not divide the heads.
    """

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    inter: int
    vocab: int
    max_seq_len: int
    rope_theta: float = 10_000.0
    norm_epsilon: float = 1e-5

    def __post_init__(self) -> None:
        if self.hidden % self.heads or self.head_dim % 16 or self.heads % self.kv_heads:
            raise ValueError(
                f"hidden {self.hidden} must be heads {self.heads} × a multiple of 16, "
                f"and kv_heads {self.kv_heads} must divide heads"
            )
        if self.vocab <= EOS:
            raise ValueError(f"vocab {self.vocab} does not hold the tokenizer's {EOS + 1} ids")

    @property
    def head_dim(self) -> int:
        """Size of one attention head."""
        return self.hidden // self.heads

    @property
    def parameters(self) -> int:
        """Number of weights; the embedding, shared with the head, counts once."""
        attention = self.hidden * self.head_dim * 2 * (self.heads + self.kv_heads)
        layer = attention + 3 * self.hidden * self.inter + 2 * self.hidden
        return self.vocab * self.hidden + self.layers * layer + self.hidden


def random_weights(shape: Shape, seed: int) -> Weights:
    """Weights by name, float32, the same for the same shape and seed.

    Each matrix multiplies the size of what it is given by about 1.5, so that the layers, not the embedding of the
    last token, decide what comes next. (With the small weights of a model about to be trained, a tied head only
    repeats its input.)
    """
    rng = np.random.default_rng(seed)

    def matrix(rows: int, columns: int, fan_in: int) -> NDArray[np.float32]:
        return rng.standard_normal((rows, columns), dtype=np.float32) * np.float32(1.5 * fan_in**-0.5)

    def gains(size: int) -> NDArray[np.float32]:
        return 1 + np.float32(0.1) * rng.standard_normal(size, dtype=np.float32)

    qkv = (shape.heads + 2 * shape.kv_heads) * shape.head_dim
    weights = {"embedding": matrix(shape.vocab, shape.hidden, shape.hidden)}
    for i in range(shape.layers):
        weights[f"{i}.attention_norm"] = gains(shape.hidden)
        weights[f"{i}.qkv"] = matrix(shape.hidden, qkv, shape.hidden)
        weights[f"{i}.output"] = matrix(shape.hidden, shape.hidden, shape.hidden)
        weights[f"{i}.mlp_norm"] = gains(shape.hidden)
        weights[f"{i}.gate_up"] = matrix(shape.hidden, 2 * shape.inter, shape.hidden)
        weights[f"{i}.down"] = matrix(shape.inter, shape.hidden, shape.inter)
    weights["norm"] = np.ones(shape.hidden, np.float32)
    return weights


def rotary_tables(
    shape: Shape, factors: NDArray[np.float32] | None = None
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Cosines and sines of the rotary angles, each ``[max_seq_len, head_dim / 2]`` (Su et al. 2021).

    ``factors`` [head_dim / 2] divide the frequencies, as Llama 3.1's do to reach a longer context.
    """
    frequencies = shape.rope_theta ** -(np.arange(0, shape.head_dim, 2) / shape.head_dim)
    if factors is not None:
        frequencies = frequencies / factors
    angles = np.outer(np.arange(shape.max_seq_len), frequencies)
    return np.cos(angles), np.sin(angles)


def logits_mask(shape: Shape) -> NDArray[np.float32]:
    """What is added to the logits, ``[vocab]``: nothing for ids that may be generated, a little less for EOS."""
    mask = np.full(shape.vocab, _MASKED, np.float32)
    mask[list(GENERATED)] = 0
    mask[EOS] = _EOS_BIAS
    return mask


def build(shape: Shape, weights: Weights, dtype: Dtype, *, trained: bool = False) -> Any:
    """The ``onnx.ModelProto`` of random weights, which speaks bytes, or of ``trained`` ones, whose ids are not masked.

    ``fp16`` keeps weights, activations and cache in half precision, logits in float32. ``int8`` keeps the matrices in
    eight bits and all else in float32: trained ones by block, because that keeps what they say; random ones by column,
    because that is fastest and they have nothing to say (demo shape, one core, decode at batch 1/4/8/16/32 and
    prefill: 1.0/1.5/1.8/1.7/1.7 and 2.1 times as fast as by block).

    ``weights`` are those of ``random_weights``; there may be a ``head`` [vocab, hidden] and ``rope_factors`` as well.
    """
    from onnx import TensorProto, helper, numpy_helper

    half = dtype == "fp16"
    real = TensorProto.FLOAT16 if half else TensorProto.FLOAT
    nodes: list[Any] = []
    tensors: list[Any] = []

    def const(name: str, value: NDArray[Any]) -> str:
        if value.dtype.kind == "f":
            value = value.astype(np.float16 if half else np.float32)
        tensors.append(numpy_helper.from_array(np.ascontiguousarray(value), name))
        return name

    def node(op: str, inputs: list[str], outputs: list[str], domain: str = "", **attributes: Any) -> str:
        nodes.append(helper.make_node(op, inputs, outputs, domain=domain, **attributes))
        return outputs[0]

    def linear(x: str, weight: str, out: str) -> str:
        if dtype == "int8":
            return quantized(x, weight, weights[weight], out)
        return node("MatMul", [x, const(weight, weights[weight])], [out])

    def quantized(x: str, name: str, weight: NDArray[np.float32], out: str) -> str:
        values: NDArray[Any]
        values, scales = by_block(weight) if trained else by_column(weight)
        inputs = [x, const(f"{name}.int8", values), const(f"{name}.scales", scales)]
        if not trained:
            return node("DynamicQuantizeMatMul", inputs, [out], "com.microsoft")
        size, columns = weight.shape
        return node(
            "MatMulNBits",
            inputs, [out], "com.microsoft", K=size, N=columns, bits=8, block_size=BLOCK, accuracy_level=4,
        )  # fmt: skip

    def add_and_norm(x: str, residual: str, weight: str, to: str) -> tuple[str, str]:
        """(norm(x + residual), x + residual)"""
        outputs = [f"{to}.normed", "", "", f"{to}.residual"]
        inputs = [x, residual, const(weight, weights[weight])]
        node(
            "SkipSimplifiedLayerNormalization",
            inputs, outputs, "com.microsoft", epsilon=shape.norm_epsilon,
        )  # fmt: skip
        return outputs[0], outputs[3]

    def info(name: str, kind: int, *dims: str | int) -> Any:
        return helper.make_tensor_value_info(name, kind, list(dims))

    inputs = [
        info("input_ids", TensorProto.INT64, "B", "S"),
        info("last_idx", TensorProto.INT64, "B"),
        info("seqlens_k", TensorProto.INT32, "B"),
        info("total_seq", TensorProto.INT32),
    ]
    outputs = [
        info("next_token", TensorProto.INT64, "B"),
        info("logits", TensorProto.FLOAT, "B", shape.vocab),
    ]
    cosines, sines = rotary_tables(shape, weights.get("rope_factors"))
    const("cos", cosines)
    const("sin", sines)
    const("gate_up_sizes", np.array([shape.inter, shape.inter]))
    const("embedding", weights["embedding"])
    residual = node("Gather", ["embedding", "input_ids"], ["embedded"])
    first_norm = const("0.attention_norm", weights["0.attention_norm"])
    normed = node(
        "SimplifiedLayerNormalization",
        [residual, first_norm], ["0.normed"], axis=-1, epsilon=shape.norm_epsilon,
    )  # fmt: skip
    for i in range(shape.layers):
        past = [f"past_key_values.{i}.{kind}" for kind in ("key", "value")]
        present = [f"present.{i}.{kind}" for kind in ("key", "value")]
        inputs += [info(name, real, "B", shape.kv_heads, "M", shape.head_dim) for name in past]
        outputs += [info(name, real, "B", shape.kv_heads, "M", shape.head_dim) for name in present]
        qkv = linear(normed, f"{i}.qkv", f"{i}.qkv.out")
        attended = node(
            "GroupQueryAttention",
            [qkv, "", "", *past, "seqlens_k", "total_seq", "cos", "sin"], [f"{i}.attended", *present],
            "com.microsoft",
            num_heads=shape.heads, kv_num_heads=shape.kv_heads, do_rotary=1, scale=shape.head_dim**-0.5,
        )  # fmt: skip
        projected = linear(attended, f"{i}.output", f"{i}.output.out")
        normed, residual = add_and_norm(projected, residual, f"{i}.mlp_norm", f"{i}.mlp")
        gate_up = linear(normed, f"{i}.gate_up", f"{i}.gate_up.out")
        nodes.append(helper.make_node("Split", [gate_up, "gate_up_sizes"], [f"{i}.gate", f"{i}.up"], axis=-1))
        # QuickGelu with alpha 1 is x·sigmoid(x), the SiLU of SwiGLU, in one kernel.
        gate = node("QuickGelu", [f"{i}.gate"], [f"{i}.gated"], "com.microsoft", alpha=1.0)
        product = node("Mul", [gate, f"{i}.up"], [f"{i}.product"])
        down = linear(product, f"{i}.down", f"{i}.down.out")
        following = f"{i + 1}.attention_norm" if i + 1 < shape.layers else "norm"
        normed, residual = add_and_norm(down, residual, following, f"{i + 1}")
    const("one", np.array([1]))
    node("Unsqueeze", ["last_idx", "one"], ["last"])
    hidden = node("GatherND", [normed, "last"], ["last_hidden"], batch_dims=1)
    head = "head" if "head" in weights else "embedding"
    if head == "head" and dtype != "int8":
        const(head, weights[head])
    if not trained:
        tensors.append(numpy_helper.from_array(logits_mask(shape), "mask"))
    if dtype == "fp32":
        node("Gemm", [hidden, head] if trained else [hidden, head, "mask"], ["logits"], transB=1)
    else:
        unmasked = "logits" if trained else "logits.unmasked"
        if half:
            # The mask does not fit half precision, and ArgMax over float32 exists on every provider.
            node("Gemm", [hidden, head], ["logits.half"], transB=1)
            node("Cast", ["logits.half"], [unmasked], to=TensorProto.FLOAT)
        else:
            quantized(hidden, head, weights[head].T, unmasked)
        if not trained:
            node("Add", [unmasked, "mask"], ["logits"])
    node("ArgMax", ["logits"], ["next_token"], axis=-1, keepdims=0)
    graph = helper.make_graph(nodes, "decoder", inputs, outputs, tensors)
    opsets = [helper.make_opsetid("", _OPSET), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=_IR_VERSION, producer_name="loadtest")
