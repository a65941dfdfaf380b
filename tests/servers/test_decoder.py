"""The graph computes what the architecture says: against a plain float64 implementation of it."""

from typing import Any

import numpy as np
import pytest
from reference import reference

from servers import builder, decoder
from servers.device import load_cuda_libraries, open_session, why_no_cuda
from servers.errors import StartError
from servers.model import PREFILL_CHUNK, Model, load, read_layout
from servers.shared import SharedModel, _SlotCopier
from servers.tokenizer import EOS, GENERATED

# Of logits, whose standard deviation is about 1.5.
TOLERANCES: dict[decoder.Dtype, float] = {"fp32": 3e-5, "fp16": 0.1, "int8": 0.7}
# Small, so that the reference is quick: NumPy's float64 products are then too small for threads of their own.
SHAPE = decoder.Shape(layers=2, hidden=64, heads=4, kv_heads=2, inter=96, vocab=320, max_seq_len=256)
NO_CUDA = why_no_cuda()
# ONNX Runtime's CPU kernels run CUDA's float16 graph too, so its arithmetic is checked on every machine.
# So is the way over a device's memory, with a copy of everything in the host's memory as the device.
CUDA = pytest.mark.skipif(NO_CUDA is not None, reason=str(NO_CUDA))
DEVICES: list[Any] = [
    ("cpu", "fp32", ""),
    ("cpu", "fp16", ""),
    ("cpu", "int8", ""),
    ("cpu", "fp32", "staged"),
    ("cpu", "fp32", "captured"),
    pytest.param(("cuda", "fp16", ""), marks=CUDA),
    pytest.param(("cuda", "fp16", "captured"), marks=CUDA),
]


class Staged(SharedModel):
    """A model whose memory nobody reads or writes but by copies."""

    _staged = True  # type: ignore[assignment]

    def _on_device(self, array: Any) -> Any:
        return super()._on_device(array.copy())


class Checked:
    """The model and, beside it, what each of its slots should hold."""

    def __init__(self, bundle: builder.Built, model: Model) -> None:
        self.model = model
        self.shape = bundle.shape
        self.tolerance = TOLERANCES[bundle.dtype]
        self.weights = decoder.random_weights(bundle.shape, builder.SEED)
        self.sequences: list[list[int]] = [[] for _ in range(model.slots)]

    def check(self, slot: int, row: int, token: int) -> None:
        expected = reference(self.shape, self.weights, self.sequences[slot]) + decoder.logits_mask(self.shape)
        shown = list(GENERATED)
        assert np.abs(self.model.logits(row)[shown] - expected[shown]).max() < self.tolerance
        assert token in shown
        assert expected[token] >= expected.max() - 2 * self.tolerance
        self.sequences[slot].append(token)

    def prefill(self, slot: int, prompt: list[int], chunk: int = PREFILL_CHUNK) -> None:
        self.model.clear(slot)
        self.sequences[slot] = prompt.copy()
        for at in range(0, len(prompt), chunk):
            token = self.model.prefill(slot, prompt[at : at + chunk])
        self.check(slot, 0, token)

    def decode(self, count: int) -> None:
        for slot, token in enumerate(self.model.decode(count)):
            self.check(slot, slot, token)

    def move(self, source: int, target: int) -> None:
        self.model.move(source, target)
        self.sequences[target] = self.sequences[source].copy()


def prompt(length: int, seed: int) -> list[int]:
    ids: list[int] = np.random.default_rng(seed).integers(0, 261, length).tolist()
    return ids


@pytest.fixture(scope="module", params=DEVICES, ids="-".join)
def checked(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Checked:
    provider, dtype, way = request.param
    if provider == "cuda":
        load_cuda_libraries()
    folder = tmp_path_factory.mktemp("small")
    builder.write(folder, "small", SHAPE, dtype)
    bundle = builder.read(folder)
    if way and provider == "cpu":
        session = open_session(bundle.path, "cpu", 1)
        layout = read_layout(bundle, session)
        return Checked(bundle, Staged(bundle, session, layout, "cpu", 5, 256, 1, cuda_graph=way == "captured"))
    cuda_graph = way == "captured"
    return Checked(bundle, load(bundle, provider, slots=5, max_seq_len=256, threads=1, cuda_graph=cuda_graph))


def test_a_whole_prompt(checked: Checked) -> None:
    checked.prefill(0, prompt(33, 1))


def test_a_prompt_in_chunks(checked: Checked) -> None:
    checked.prefill(3, prompt(50, 2), chunk=16)


def test_a_single_token_prompt(checked: Checked) -> None:
    checked.prefill(0, prompt(1, 3))


def test_ragged_rows_decode_together_and_slots_are_moved_and_reused(checked: Checked) -> None:
    for slot, length in enumerate((7, 33, 1, 90, 40)):
        checked.prefill(slot, prompt(length, 10 + slot))
    for _ in range(3):
        checked.decode(5)
    checked.move(4, 1)
    for _ in range(2):
        checked.decode(4)
    checked.prefill(4, prompt(20, 20), chunk=8)  # beside rows that wait meanwhile
    checked.prefill(2, prompt(3, 21))  # shorter than what the slot held before
    for _ in range(2):
        checked.decode(5)


def test_greedy_choice_never_leaves_what_the_tokenizer_can_show(checked: Checked) -> None:
    for seed in range(3):
        checked.prefill(0, prompt(9, 30 + seed))
        for _ in range(5):
            checked.decode(1)
    assert set(checked.sequences[0][9:]) <= set(GENERATED)


def test_answers_vary_and_seldom_end_by_themselves(bundle: builder.Built) -> None:
    model = load(bundle, "cpu", slots=1, max_seq_len=256, threads=1)
    ended = 0
    for seed in range(20):
        model.clear(0)
        answer = [model.prefill(0, prompt(40, seed)), *(model.decode(1)[0] for _ in range(63))]
        ended += EOS in answer
        assert len(set(answer)) > 5, "the model repeats itself"
    assert ended <= 4


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "int8"])
def test_the_graph_is_valid(dtype: decoder.Dtype) -> None:
    import onnx

    model = decoder.build(SHAPE, decoder.random_weights(SHAPE, 1), dtype)
    # ONNX Runtime knows RMSNormalization of opset 23 by this name since before it was one.
    model.opset_import[0].version = 23
    for node in model.graph.node:
        if node.op_type == "SimplifiedLayerNormalization":
            node.op_type = "RMSNormalization"
    onnx.checker.check_model(model, full_check=True)


def test_a_step_is_captured_once_for_each_number_of_rows_and_a_prompt_never(bundle: builder.Built) -> None:
    session = open_session(bundle.path, "cpu", 1)
    model = Staged(bundle, session, read_layout(bundle, session), "cpu", 3, 64, 1, cuda_graph=True)
    seen: list[tuple[str, int]] = []

    class Watched:
        def run_with_iobinding(self, io: Any, options: Any) -> None:
            seen.append((options.get_run_config_entry("gpu_graph_id"), id(io)))
            session.run_with_iobinding(io, options)

        io_binding = session.io_binding

    model._session = Watched()
    for slot in range(3):
        model.prefill(slot, prompt(5 + slot, slot))
    for count in (3, 2, 3, 1, 2):
        model.decode(count)
    assert [graph for graph, _ in seen] == ["-1", "-1", "-1", "3", "2", "3", "1", "2"]
    steps = seen[3:]
    assert len(set(steps)) == 3, "the addresses that were captured must be those of every later step"


def test_capturing_is_refused_where_it_cannot_be(bundle: builder.Built) -> None:
    with pytest.raises(StartError, match="--cuda-graph needs CUDA, and the model runs on the CPU; leave it out"):
        load(bundle, "cpu", slots=1, max_seq_len=64, threads=1, cuda_graph=True)


def test_slots_are_copied_on_the_device_by_a_graph(bundle: builder.Built) -> None:
    """The way a slot moves on CUDA, here on the CPU's memory."""
    layout = load(bundle, "cpu", slots=1, max_seq_len=64, threads=1).layout
    slots = np.random.default_rng(1).standard_normal(
        (2 * layout.layers, 2, layout.kv_heads, 64, layout.head_dim), dtype=np.float32
    )
    addresses = [[slots[i, slot].ctypes.data for i in range(2 * layout.layers)] for slot in (0, 1)]
    wanted = slots[:, 1].copy()
    _SlotCopier(layout, "cpu", 64)(addresses[1], addresses[0])
    assert (slots[:, 0] == wanted).all()
    assert (slots[:, 1] == wanted).all()


def test_the_same_seed_gives_the_same_weights() -> None:
    shape = builder.PRESETS["tiny"]
    first, second, other = (decoder.random_weights(shape, seed) for seed in (1, 1, 2))
    assert all((first[name] == second[name]).all() for name in first)
    assert (first["0.qkv"] != other["0.qkv"]).any()
    assert sum(weight.size for weight in first.values()) == shape.parameters


@pytest.mark.parametrize(
    ("change", "text"),
    [({"heads": 3}, "multiple of 16"), ({"kv_heads": 3}, "divide heads"), ({"vocab": 256}, "vocab 256")],
)
def test_impossible_shapes_are_refused(change: dict[str, int], text: str) -> None:
    sizes = {"layers": 1, "hidden": 64, "heads": 4, "kv_heads": 2, "inter": 64, "vocab": 512, "max_seq_len": 64}
    with pytest.raises(ValueError, match=text):
        decoder.Shape(**{**sizes, **change})
