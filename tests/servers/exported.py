"""Folders as other tools export them, with small random models in them: made with onnx.helper, without torch."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from servers import decoder

SHAPE = decoder.Shape(layers=2, hidden=64, heads=4, kv_heads=2, inter=96, vocab=320, max_seq_len=256)
WEIGHTS = decoder.random_weights(SHAPE, 7)
TEMPLATE = (
    "{%- if messages[0]['role'] == 'assistant' %}{{ raise_exception('the user must speak first') }}{% endif -%}"
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + eos_token }}\n"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


class Nodes:
    """Nodes in the making, with names of their own."""

    def __init__(self, prefix: str = "") -> None:
        self.prefix = prefix
        self.made: list[Any] = []

    def __call__(self, op: str, *inputs: str, out: str = "", **attributes: Any) -> str:
        out = out or f"{self.prefix}n{len(self.made)}"
        self.made.append(helper.make_node(op, [*inputs], [out], **attributes))
        return out

    def const(self, value: Any, kind: type = np.int64) -> str:
        return self("Constant", value=numpy_helper.from_array(np.array(value, kind)))


def graph(layout: str, *, positions: bool = True) -> Any:
    """A model whose layout is builder, optimum or merged, with the weights of this module."""
    ours = decoder.build(SHAPE, WEIGHTS, "fp32")
    cache = [f"{i}.{kind}" for i in range(SHAPE.layers) for kind in ("key", "value")]
    inputs = [info("input_ids", TensorProto.INT64, "B", "S"), info("attention_mask", TensorProto.INT64, "B", "T")]
    if positions and layout != "builder":
        inputs.append(info("position_ids", TensorProto.INT64, "B", "S"))
    if layout == "merged":
        inputs.append(info("use_cache_branch", TensorProto.BOOL, 1))
    depth: Any = "D" if layout == "builder" else SHAPE.head_dim
    inputs += [info(f"past_key_values.{n}", TensorProto.FLOAT, "B", SHAPE.kv_heads, "P", depth) for n in cache]
    outputs = [info("logits", TensorProto.FLOAT, "B", "S", SHAPE.vocab)]
    outputs += [info(f"present.{n}", TensorProto.FLOAT, "B", SHAPE.kv_heads, "T", depth) for n in cache]
    tensors = [t for t in ours.graph.initializer if t.name not in ("mask", "one")]
    if layout == "merged":
        # As it was exported: the branch with a cache was traced with one token, and has no causal mask.
        with_past = body(ours, "then.", past=True, causal=False)
        without = body(ours, "else.", past=False, causal=True)
        branches = {}
        for name, made in (("then_branch", with_past), ("else_branch", without)):
            names = [made.prefix + output.name for output in outputs]
            branches[name] = helper.make_graph(
                made.made, name, [], [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in names]
            )
        nodes = [helper.make_node("If", ["use_cache_branch"], [output.name for output in outputs], **branches)]
    elif layout == "optimum":
        nodes = body(ours, "", past=True, causal=True).made
    else:
        nodes = builder_body(ours).made
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(
        helper.make_graph(nodes, layout, inputs, outputs, tensors), opset_imports=opsets, ir_version=10
    )


def info(name: str, kind: int, *dims: str | int) -> Any:
    return helper.make_tensor_value_info(name, kind, list(dims))


def builder_body(ours: Any) -> Nodes:
    """Like onnxruntime-genai's builder: lengths from the mask, logits of every position."""
    new = Nodes()
    one = new.const([1])
    ones = new("ReduceSum", "attention_mask", one, keepdims=0)
    new("Cast", new("Sub", ones, one), out="seqlens_k", to=TensorProto.INT32)
    width = new("Gather", new("Shape", "attention_mask"), new.const(1))
    new("Cast", width, out="total_seq", to=TensorProto.INT32)
    new.made += [node for node in ours.graph.node if not is_tail(node)]
    new("MatMul", f"{SHAPE.layers}.normed", new("Transpose", "embedding", perm=[1, 0]), out="logits")
    return new


def is_tail(node: Any) -> bool:
    return bool({"last", "last_hidden", "logits", "next_token"} & {*node.output})


def body(ours: Any, prefix: str, *, past: bool, causal: bool) -> Nodes:
    """Like optimum-onnx: attention in plain operators, present is past and what is new, one after the other."""
    new = Nodes(prefix)
    axis1, axes12 = new.const([1]), new.const([1, 2])
    cos = new("Unsqueeze", new("Gather", "cos", "position_ids"), axis1)  # [B, 1, S, D/2]
    sin = new("Unsqueeze", new("Gather", "sin", "position_ids"), axis1)
    width = new("Gather", new("Shape", "attention_mask"), new.const(1))
    count = new("Gather", new("Shape", "input_ids"), new.const(1))
    zero, one = new.const(0), new.const(1)
    seen = new("Unsqueeze", new("Cast", "attention_mask", to=TensorProto.BOOL), axes12)
    if causal:
        rows = new("Unsqueeze", new("Range", new("Sub", width, count), width, one), axis1)
        seen = new("And", seen, new("LessOrEqual", new("Range", zero, width, one), rows))
    bias = new("Where", seen, new.const(0, np.float32), new.const(-1e30, np.float32))
    sizes = [n * SHAPE.head_dim for n in (SHAPE.heads, SHAPE.kv_heads, SHAPE.kv_heads)]

    def heads(x: str, number: int) -> str:
        shaped = new("Reshape", x, new.const([0, 0, number, SHAPE.head_dim]))
        return new("Transpose", shaped, perm=[0, 2, 1, 3])

    def rotate(x: str) -> str:
        half = SHAPE.head_dim // 2
        a = new("Slice", x, new.const([0]), new.const([half]), new.const([3]))
        b = new("Slice", x, new.const([half]), new.const([2 * half]), new.const([3]))
        first = new("Sub", new("Mul", a, cos), new("Mul", b, sin))
        second = new("Add", new("Mul", b, cos), new("Mul", a, sin))
        return new("Concat", first, second, axis=3)

    for node in ours.graph.node:
        if is_tail(node):
            continue
        if node.op_type != "GroupQueryAttention":
            copy = type(node)()
            copy.CopyFrom(node)
            for names in (copy.input, copy.output):
                names[:] = [name and (name if name in shared(ours) else prefix + name) for name in names]
            new.made.append(copy)
            continue
        i = node.output[0].split(".")[0]
        split = [f"{prefix}{i}.{part}" for part in "qkv"]
        new.made.append(helper.make_node("Split", [prefix + node.input[0], new.const(sizes)], split, axis=2))
        q = rotate(heads(split[0], SHAPE.heads))
        present = []
        for kind, value in (
            ("key", rotate(heads(split[1], SHAPE.kv_heads))),
            ("value", heads(split[2], SHAPE.kv_heads)),
        ):
            parts = [f"past_key_values.{i}.{kind}", value] if past else [value]
            name = new("Concat", *parts, axis=2, out=f"{prefix}present.{i}.{kind}")
            repeats = np.repeat(np.arange(SHAPE.kv_heads), SHAPE.heads // SHAPE.kv_heads)
            present.append(new("Gather", name, new.const(repeats), axis=1))
        scores = new("MatMul", q, new("Transpose", present[0], perm=[0, 1, 3, 2]))
        scores = new("Add", new("Mul", scores, new.const(SHAPE.head_dim**-0.5, np.float32)), bias)
        mixed = new("Transpose", new("MatMul", new("Softmax", scores, axis=-1), present[1]), perm=[0, 2, 1, 3])
        new("Reshape", mixed, new.const([0, 0, SHAPE.hidden]), out=prefix + node.output[0])
    final = f"{prefix}{SHAPE.layers}.normed"
    new("MatMul", final, new("Transpose", "embedding", perm=[1, 0]), out=f"{prefix}logits")
    return new


def shared(ours: Any) -> set[str]:
    return {tensor.name for tensor in ours.graph.initializer} | {"input_ids"}


def write(folder: Path, layout: str, file: str = "model.onnx", **options: Any) -> Path:
    """A folder with a model and its tokenizer; returns it."""
    (folder / file).parent.mkdir(parents=True, exist_ok=True)
    (folder / file).write_bytes(graph(layout, **options).SerializeToString())
    describe(folder, genai=layout == "builder")
    return folder


def describe(folder: Path, *, genai: bool = False) -> None:
    """The files beside the graph: sizes, end tokens, tokenizer, chat template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=SHAPE.vocab, special_tokens=special, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )  # fmt: skip
    tokenizer.train_from_iterator([TEXT] * 4, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"bos_token": None, "eos_token": "<|im_end|>", "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    if genai:
        model = {
            "context_length": SHAPE.max_seq_len,
            "eos_token_id": [0, 2],
            "decoder": {"head_size": SHAPE.head_dim, "filename": "model.onnx"},
        }
        (folder / "genai_config.json").write_text(json.dumps({"model": model}))
    else:
        sizes = {"hidden_size": SHAPE.hidden, "num_attention_heads": SHAPE.heads, "max_position_embeddings": 256}
        (folder / "config.json").write_text(json.dumps({"model_type": "llama", **sizes}))
        (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 0}))


TEXT = (
    "Load testing an inference endpoint is asking it for many answers at once and writing down when each token came. "
    "A figure that cannot be defended is worth nothing: déjà vu, naïve, 東京, 🙂. the the that then there them "
)
