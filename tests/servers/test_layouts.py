"""Models that others exported, one of each layout: ragged rows are exact, and what cannot be served is refused."""

from pathlib import Path
from typing import Any

import exported
import numpy as np
import onnx
import pytest
import tokenizers
from exported import SHAPE, WEIGHTS
from onnx import TensorProto, helper
from reference import reference

from servers import catalog, device, model
from servers.errors import StartError
from servers.model import Model, load

LAYOUTS = {"builder": "shared", "optimum": "growing", "merged": "merged"}
EXPORT = r"export it with `optimum-cli export onnx --task text-generation-with-past` or onnxruntime-genai"
TOLERANCE = 3e-5  # of logits, whose standard deviation is about 1.5


class Checked:
    """A model and, beside it, what each of its slots should hold."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.sequences: list[list[int]] = [[] for _ in range(model.slots)]

    def check(self, slot: int, row: int, token: int) -> None:
        expected = reference(SHAPE, WEIGHTS, self.sequences[slot])
        assert np.abs(self.model.logits(row) - expected).max() < TOLERANCE
        assert token == self.model.logits(row).argmax()
        self.sequences[slot].append(token)

    def prefill(self, slot: int, length: int, chunk: int = 128) -> None:
        prompt = np.random.default_rng(length).integers(0, SHAPE.vocab, length).tolist()
        self.model.clear(slot)
        self.sequences[slot] = prompt.copy()
        for at in range(0, length, chunk):
            token = self.model.prefill(slot, prompt[at : at + chunk])
        self.check(slot, 0, token)

    def decode(self, count: int, steps: int = 1) -> None:
        for _ in range(steps):
            for slot, token in enumerate(self.model.decode(count)):
                self.check(slot, slot, token)

    def move(self, source: int, target: int) -> None:
        self.model.move(source, target)
        self.sequences[target] = self.sequences[source].copy()


def loaded(folder: Path, dtype: str = "auto") -> Model:
    bundle = catalog.find(str(folder), dtype, "cpu")
    assert bundle.max_seq_len == SHAPE.max_seq_len
    return load(bundle, "cpu", slots=5, max_seq_len=bundle.max_seq_len, threads=1)


@pytest.fixture(scope="module", params=LAYOUTS)
def checked(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Checked:
    model = loaded(exported.write(tmp_path_factory.mktemp(request.param), request.param))
    assert model.layout.kind == LAYOUTS[request.param]
    assert (model.layout.layers, model.layout.kv_heads, model.layout.head_dim) == (2, 2, 16)
    assert model.layout.kv_bytes_per_token == 2 * 2 * 2 * 16 * 4
    return Checked(model)


def test_a_whole_prompt(checked: Checked) -> None:
    checked.prefill(0, 33)
    checked.decode(1, steps=2)


def test_a_prompt_in_chunks(checked: Checked) -> None:
    checked.prefill(0, 50, chunk=16)
    checked.decode(1)


def test_ragged_rows_decode_together_and_slots_are_moved_and_reused(checked: Checked) -> None:
    for slot, length in enumerate((7, 33, 1, 90, 40)):
        checked.prefill(slot, length)
    checked.decode(5, steps=3)
    checked.move(4, 1)
    checked.decode(4, steps=2)
    checked.prefill(4, 20, chunk=8)  # beside rows that wait meanwhile
    checked.prefill(2, 3)  # shorter than what the slot held before
    checked.decode(5, steps=2)
    checked.decode(3, steps=2)  # the last ones have gone


def test_an_unfinished_prompt_may_move(checked: Checked) -> None:
    prompt = list(range(40))
    checked.prefill(0, 5)
    checked.prefill(1, 9)
    checked.model.clear(2)
    checked.model.prefill(2, prompt[:16])
    checked.decode(2)
    checked.move(1, 0)
    checked.model.move(2, 1)
    checked.sequences[1] = prompt.copy()
    checked.check(1, 0, checked.model.prefill(1, prompt[16:]))
    checked.decode(2, steps=2)


def test_a_web_models_folder_holds_several_precisions(tmp_path: Path) -> None:
    """As transformers.js wants it: onnx/model.onnx, model_quantized.onnx and so on."""
    exported.write(tmp_path, "optimum", "onnx/model.onnx")
    int8 = exported.graph("optimum")
    quantize(int8)
    (tmp_path / "onnx" / "model_quantized.onnx").write_bytes(int8.SerializeToString())
    assert catalog.find(str(tmp_path), "auto", "cpu").path.name == "model.onnx"
    chosen = catalog.find(str(tmp_path), "int8", "cpu")
    assert (chosen.path.name, chosen.dtype, chosen.name) == ("model_quantized.onnx", "int8", tmp_path.name)
    by_file = catalog.find(str(chosen.path), "auto", "cpu")
    assert (by_file.path, by_file.dtype, by_file.name) == (chosen.path, "int8", tmp_path.name)
    with pytest.raises(StartError, match=r"--dtype fp16: no such graph.*onnx/model\.onnx, onnx/model_quantized\.onnx"):
        catalog.find(str(tmp_path), "fp16", "cpu")
    Checked(loaded(tmp_path, "fp32")).prefill(0, 9)
    first = int(reference(SHAPE, WEIGHTS, [5, 6, 7]).argmax())
    assert loaded(tmp_path, "int8").prefill(0, [5, 6, 7]) == first


def quantize(model: onnx.ModelProto) -> None:
    """Weights of the first layer's query, key and value in eight bits, as onnxruntime.quantization leaves them."""
    (tensor,) = (t for t in model.graph.initializer if t.name == "0.qkv")
    weight = onnx.numpy_helper.to_array(tensor)
    scale = np.abs(weight).max() / 127
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.round(weight / scale).astype(np.int8), "q"))
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.float32(scale), "q.scale"))
    for node in model.graph.node:
        if "0.qkv" in node.input:
            node.CopyFrom(
                helper.make_node(
                    "DynamicQuantizeMatMul", [node.input[0], "q", "q.scale"], [*node.output], domain="com.microsoft"
                )
            )


def test_a_merged_decoder_goes_by_its_own_name(tmp_path: Path) -> None:
    exported.write(tmp_path, "merged", "onnx/decoder_model_merged.onnx")
    Checked(loaded(tmp_path)).prefill(0, 9)


@pytest.mark.parametrize(
    ("inputs", "outputs", "text"),
    [
        (["input_ids", "block_table"], ["logits"], "paged.*onnxruntime-genai's builder"),
        (["input_ids", "attention_mask"], ["logits"], f"no key/value cache.*{EXPORT}"),
        (["input_ids", "attention_mask"], ["last_hidden_state"], f"no logits, but last_hidden_state.*embed.*{EXPORT}"),
        (["input_ids", "encoder_hidden_states"], ["logits"], f"encoder-decoder.*{EXPORT}"),
        (["pixels"], ["logits"], f"does not take input_ids, but pixels.*{EXPORT}"),
        (["inputs_embeds", "attention_mask"], ["logits"], f"input_ids.*{EXPORT}"),
    ],
)
def test_what_generates_no_text_is_refused(inputs: list[str], outputs: list[str], text: str, tmp_path: Path) -> None:
    real = TensorProto.FLOAT
    graph = helper.make_graph(
        [helper.make_node("Constant", [], [name], value_float=1.0) for name in outputs],
        "other",
        [exported.info(name, TensorProto.INT64, "B", "S") for name in inputs],
        [helper.make_tensor_value_info(name, real, []) for name in outputs],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
    exported.describe(tmp_path)
    refused(tmp_path, text)


def refused(folder: Path, text: str) -> None:
    with pytest.raises(StartError, match=text) as error:
        load(catalog.find(str(folder), "auto", "cpu"), "cpu", slots=1, max_seq_len=64, threads=1)
    assert str(folder) in str(error.value)


def test_a_graph_without_positions_is_refused(tmp_path: Path) -> None:
    model = exported.graph("optimum")
    positions = next(i for i in model.graph.input if i.name == "position_ids")
    model.graph.input.remove(positions)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.zeros((1, 1), np.int64), "position_ids"))
    write(tmp_path, model)
    refused(tmp_path, "position_ids.*optimum-onnx")


def test_a_graph_without_a_mask_is_refused(tmp_path: Path) -> None:
    model = exported.graph("optimum")
    model.graph.input.remove(next(i for i in model.graph.input if i.name == "attention_mask"))
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((1, 1), np.int64), "attention_mask"))
    write(tmp_path, model)
    refused(tmp_path, f"no attention_mask, so requests cannot be batched; {EXPORT}")


def test_a_cache_of_another_type_is_refused(tmp_path: Path) -> None:
    model = exported.graph("optimum")
    del model.graph.node[:]
    for value in (*model.graph.input, *model.graph.output):
        if "." in value.name:
            value.type.tensor_type.elem_type = TensorProto.DOUBLE
    for output in model.graph.output:
        empty = np.zeros((1, 1, 1, 16), np.float32 if output.name == "logits" else np.float64)
        constant = helper.make_node("Constant", [], [output.name], value=onnx.numpy_helper.from_array(empty))
        model.graph.node.append(constant)
    write(tmp_path, model)
    refused(tmp_path, rf"cache is tensor\(double\); this server keeps it in float or float16; {EXPORT}")


@pytest.mark.parametrize(("bits", "dtype"), [(4, "int4"), (8, "int8")])
def test_weights_in_blocks_are_known_by_their_bits(bits: int, dtype: str, tmp_path: Path) -> None:
    model = exported.graph("optimum")
    node = next(node for node in model.graph.node if node.op_type == "MatMul")
    node.op_type, node.domain = "MatMulNBits", "com.microsoft"
    node.attribute.append(helper.make_attribute("bits", bits))
    write(tmp_path, model)
    assert catalog.find(str(tmp_path), "auto", "cpu").dtype == dtype
    with pytest.raises(StartError, match=f"--dtype fp32: .*model.onnx is {dtype}; leave --dtype out, or export it"):
        catalog.find(str(tmp_path), "fp32", "cpu")


def test_unknown_inputs_are_named(tmp_path: Path) -> None:
    model = exported.graph("optimum")
    model.graph.input.append(exported.info("past_conv.0", TensorProto.FLOAT, "B", 4))
    write(tmp_path, model)
    refused(tmp_path, r"cannot feed: past_conv\.0")


def test_an_incomplete_cache_is_named(tmp_path: Path) -> None:
    model = exported.graph("optimum")
    model.graph.output.remove(next(o for o in model.graph.output if o.name == "present.1.value"))
    write(tmp_path, model)
    refused(tmp_path, r"no present\.1\.value")


def test_a_cache_of_another_form_is_refused(tmp_path: Path) -> None:
    model = exported.graph("optimum")
    cache = next(i for i in model.graph.input if i.name == "past_key_values.0.key")
    model.graph.input.remove(cache)
    model.graph.input.insert(1, exported.info(cache.name, TensorProto.FLOAT, "B", "P", 16))
    del model.graph.node[:]
    model.graph.node.extend(
        helper.make_node(
            "Constant", [], [output.name], value=onnx.numpy_helper.from_array(np.zeros((1, 1, 1, 16), "f"))
        )
        for output in model.graph.output
    )
    write(tmp_path, model)
    refused(tmp_path, r"no cache of \[batch, heads, tokens, head size\]")


def test_a_head_size_that_nothing_gives_is_asked_for(tmp_path: Path) -> None:
    exported.write(tmp_path, "builder")
    (tmp_path / "genai_config.json").write_text('{"model": {"eos_token_id": 0}}')
    refused(tmp_path, "the head size")


def test_another_models_tokenizer_is_refused(tmp_path: Path) -> None:
    exported.write(tmp_path, "optimum")
    tokenizer = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    tokenizer.add_tokens([f"more{i}" for i in range(100)])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    refused(tmp_path, "knows 320 tokens, and its tokenizer 4")


def test_a_layout_whose_steps_change_their_shape_cannot_be_captured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exported.write(tmp_path, "builder")
    monkeypatch.setattr(model, "open_session", lambda path, *_, **__: device.open_session(path, "cpu", 1))
    with pytest.raises(
        StartError, match=r"--cuda-graph: the inputs of .* change their shape .*shared layout.*leave it"
    ):
        load(catalog.find(str(tmp_path), "auto", "cuda"), "cuda", slots=1, max_seq_len=64, threads=1, cuda_graph=True)


def test_a_file_that_is_no_model_is_refused(tmp_path: Path) -> None:
    exported.write(tmp_path, "optimum")
    (tmp_path / "model.onnx").write_bytes(b"<html>")
    refused(tmp_path, "no ONNX model")


def test_a_broken_graph_is_one_clear_error(tmp_path: Path) -> None:
    model = exported.graph("optimum")
    model.graph.node[3].op_type = "NoSuchOperator"
    write(tmp_path, model)
    refused(tmp_path, "cannot load.*NoSuchOperator")


def write(folder: Path, model: Any) -> None:
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    exported.describe(folder)
