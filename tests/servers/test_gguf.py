"""GGUF files: the converted model computes what the original weights say, and its tokenizer reads as the original."""

import sys
from pathlib import Path
from typing import Any

import exported
import gguf as ggml
import numpy as np
import pytest
from exported import SHAPE, TEXT, WEIGHTS
from reference import reference

from servers import builder, gguf
from servers.errors import StartError
from servers.model import load
from servers.tokenizer import TextStream

HEAD = np.random.default_rng(5).standard_normal((SHAPE.vocab, SHAPE.hidden), dtype=np.float32) * np.float32(0.2)
FACTORS = np.linspace(1, 8, SHAPE.head_dim // 2, dtype=np.float32)
TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"


def interleaved(weight: Any, heads: int) -> Any:
    """As llama.cpp's converter stores query and key (LlamaModel.permute)."""
    return weight.reshape(heads, 2, SHAPE.head_dim // 2, -1).swapaxes(1, 2).reshape(weight.shape)


def write(
    path: Path,
    *,
    kind: str = "gpt2",
    pre: str = "smollm",
    extra: bool = False,
    scaling: str = "",
    bias: bool = False,
    leave_out: str = "",
    **changes: Any,
) -> Path:
    """A GGUF file of the small model; ``extra`` adds a head of its own and rotary factors; fields can be changed."""
    writer = ggml.GGUFWriter(path, changes.pop("architecture", "llama"))
    sizes = {
        "block_count": SHAPE.layers, "embedding_length": SHAPE.hidden, "attention.head_count": SHAPE.heads,
        "attention.head_count_kv": SHAPE.kv_heads, "feed_forward_length": SHAPE.inter, "context_length": 256,
    }  # fmt: skip
    for name, value in {**sizes, **changes}.items():
        writer.add_uint32(f"llama.{name}", value)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", SHAPE.norm_epsilon)
    tokens, types = vocabulary(writer, kind)
    writer.add_tokenizer_model(kind)
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_eos_token_id(tokens.index("<|im_end|>"))
    writer.add_bos_token_id(tokens.index("<|im_start|>"))
    writer.add_chat_template(TEMPLATE)
    queries, keys = SHAPE.heads * SHAPE.head_dim, SHAPE.kv_heads * SHAPE.head_dim
    if scaling:
        writer.add_string("llama.rope.scaling.type", scaling)

    def add(name: str, weight: Any) -> None:
        if name != leave_out:
            writer.add_tensor(name, weight)

    if bias:
        add("blk.0.attn_q.bias", np.zeros(queries, np.float32))
    add("token_embd.weight", WEIGHTS["embedding"])
    add("output_norm.weight", WEIGHTS["norm"])
    if extra:
        add("output.weight", HEAD)
        add("rope_freqs.weight", FACTORS)
    for i in range(SHAPE.layers):
        q, k, v = np.split(WEIGHTS[f"{i}.qkv"].T, [queries, queries + keys])
        gate, up = np.split(WEIGHTS[f"{i}.gate_up"].T, 2)
        add(f"blk.{i}.attn_q.weight", interleaved(q, SHAPE.heads))
        add(f"blk.{i}.attn_k.weight", interleaved(k, SHAPE.kv_heads))
        for name, weight in (
            ("attn_v", v), ("attn_output", WEIGHTS[f"{i}.output"].T), ("ffn_gate", gate), ("ffn_up", up),
            ("ffn_down", WEIGHTS[f"{i}.down"].T), ("attn_norm", WEIGHTS[f"{i}.attention_norm"]),
            ("ffn_norm", WEIGHTS[f"{i}.mlp_norm"]),
        ):  # fmt: skip
            add(f"blk.{i}.{name}.weight", np.ascontiguousarray(weight))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def vocabulary(writer: Any, kind: str) -> tuple[list[str], list[int]]:
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    if kind == "llama":
        pieces = ["▁", *"abcdehlnorst.", "▁t", "he", "▁the", "th", "re", "▁there"]
        tokens = ["<unk>", *special, *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
        tokens += [f"<unused{i}>" for i in range(SHAPE.vocab - len(tokens))]
        writer.add_token_scores([-float(i) for i in range(len(tokens))])
        return tokens, [2, 3, 3, 3] + [6] * 256 + [1] * len(pieces) + [5] * (SHAPE.vocab - 260 - len(pieces))
    import json

    model = json.loads(bpe().to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    writer.add_token_merges([merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]])
    return tokens, [3 if token in special else 1 for token in tokens]


def bpe() -> Any:
    import tempfile

    from tokenizers import Tokenizer

    with tempfile.TemporaryDirectory() as folder:
        exported.describe(Path(folder))
        return Tokenizer.from_file(f"{folder}/tokenizer.json")


@pytest.mark.parametrize("extra", [False, True])
@pytest.mark.parametrize(("dtype", "tolerance"), [("fp32", 3e-5), ("int8", 0.6), ("fp16", 0.1)])
def test_a_converted_model_computes_what_the_original_says(
    dtype: Any, tolerance: float, extra: bool, tmp_path: Path
) -> None:
    gguf.convert(write(tmp_path / "small.gguf", extra=extra), tmp_path / "out", dtype)
    bundle = builder.read(tmp_path / "out")
    assert (bundle.name, bundle.dtype, bundle.max_seq_len) == ("out", dtype, 256)
    assert bundle.parameters == SHAPE.parameters + (HEAD.size if extra else 0)
    model = load(bundle, "cpu", slots=2, max_seq_len=64, threads=1)
    weights = {**WEIGHTS, "head": HEAD, "rope_factors": FACTORS} if extra else WEIGHTS
    ids = [5, 99, 310, 7, 250, 42, 8]
    token = model.prefill(0, ids)
    expected = reference(SHAPE, weights, ids)
    assert np.abs(model.logits(0) - expected).max() < tolerance
    assert expected[token] >= expected.max() - 2 * tolerance
    model.decode(1)
    assert np.abs(model.logits(0) - reference(SHAPE, weights, [*ids, token])).max() < tolerance


def test_a_byte_level_tokenizer_reads_as_the_original(tmp_path: Path) -> None:
    gguf.convert(write(tmp_path / "small.gguf"), tmp_path / "out", "fp32")
    tokenizer = builder.read(tmp_path / "out").tokenizer
    assert tokenizer.encode(TEXT) == bpe().encode(TEXT).ids
    assert len(tokenizer.encode("2026")) == 4, "SmolLM's digits are tokens of their own"
    assert tokenizer.eos == {2}
    assert tokenizer.encode_chat([("user", "hi")]) == tokenizer.encode("user: hi\n")


def test_llama_3s_tokenizer_begins_with_its_bos(tmp_path: Path) -> None:
    gguf.convert(write(tmp_path / "small.gguf", pre="llama-bpe"), tmp_path / "out", "fp32")
    tokenizer = builder.read(tmp_path / "out").tokenizer
    assert tokenizer.encode("the 東京")[0] == 1
    assert said(tokenizer, tokenizer.encode("the 東京  \n x")) == "the 東京  \n x"


def test_a_sentencepiece_tokenizer_joins_the_best_scored_pairs(tmp_path: Path) -> None:
    gguf.convert(write(tmp_path / "small.gguf", kind="llama", pre="default"), tmp_path / "out", "fp32")
    tokenizer = builder.read(tmp_path / "out").tokenizer
    ids = tokenizer.encode("the there é")
    tokens = {token: tokenizer.encode(text)[-1] for token, text in (("▁the", "the"), ("▁there", "there"))}
    bos, byte, space = 2, 4, 260  # where they are among the tokens
    assert ids == [bos, tokens["▁the"], tokens["▁there"], space, byte + 0xC3, byte + 0xA9]
    assert said(tokenizer, ids) == "the there é"


def said(tokenizer: Any, ids: list[int]) -> str:
    stream = TextStream((), tokenizer)
    return "".join([stream.push(token) for token in ids]) + stream.finish()


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"architecture": "qwen2"}, "architecture is qwen2"),
        ({"expert_count": 8}, "mixture of experts"),
        ({"attention.key_length": 32}, "key_length is 32"),
        ({"attention.head_count": 3}, "multiple of 16"),
        ({"pre": "tekken"}, r"tokenizer \(gpt2, tekken\)"),
        ({"scaling": "yarn"}, "rotary scaling is yarn"),
        ({"bias": True}, "attention has biases"),
        ({"leave_out": "output_norm.weight"}, "no tensor output_norm.weight"),
    ],
)
def test_what_cannot_be_converted_is_refused_with_what_to_do(
    changes: dict[str, Any], text: str, tmp_path: Path
) -> None:
    path = write(tmp_path / "small.gguf", **changes)
    with pytest.raises(StartError, match=f"{text}.*instead"):
        gguf.convert(path, tmp_path / "out", "int8")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("size", [0, 60, 2000, 60_000])
def test_a_file_that_is_no_whole_gguf_is_refused(size: int, tmp_path: Path) -> None:
    whole = write(tmp_path / "small.gguf").read_bytes()
    (tmp_path / "x.gguf").write_bytes(whole[:size])
    with pytest.raises(StartError, match="not a whole GGUF file"):
        gguf.convert(tmp_path / "x.gguf", tmp_path / "out", "int8")


def test_a_missing_package_is_named_with_its_pip_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(StartError, match=r"package gguf: pip install '.\[gguf,models\]'"):
        gguf.convert(tmp_path / "x.gguf", tmp_path / "out", "int8")
