"""Models without a cache: any graph of tensors, and encoders that turn texts into vectors."""

from collections.abc import Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from servers import pretrained
from servers.batcher import Tensors
from servers.device import Provider, open_session
from servers.errors import StartError
from servers.json_tokenizer import JsonTokenizer

# ONNX Runtime's names of types, NumPy's, and those of the Open Inference Protocol.
TYPES: dict[str, tuple[type[Any], str]] = {
    "tensor(bool)": (np.bool_, "BOOL"),
    "tensor(uint8)": (np.uint8, "UINT8"),
    "tensor(uint16)": (np.uint16, "UINT16"),
    "tensor(uint32)": (np.uint32, "UINT32"),
    "tensor(uint64)": (np.uint64, "UINT64"),
    "tensor(int8)": (np.int8, "INT8"),
    "tensor(int16)": (np.int16, "INT16"),
    "tensor(int32)": (np.int32, "INT32"),
    "tensor(int64)": (np.int64, "INT64"),
    "tensor(float16)": (np.float16, "FP16"),
    "tensor(float)": (np.float32, "FP32"),
    "tensor(double)": (np.float64, "FP64"),
}


@dataclass(frozen=True)
class Port:
    """An input or an output: its name, NumPy type, protocol name of that type, and shape, −1 where any size will do."""

    name: str
    kind: type[Any]
    datatype: str
    shape: tuple[int, ...]

    @staticmethod
    def of(node: Any, path: Path) -> "Port":
        """From ONNX Runtime's ``NodeArg``.

        Raises:
            StartError: it is no tensor of numbers.
        """
        if node.type not in TYPES:
            raise StartError(f"{path}: {node.name} is {node.type}, and only tensors of numbers can be served")
        return Port(node.name, *TYPES[node.type], tuple(size if isinstance(size, int) else -1 for size in node.shape))


class TensorModel:
    """A graph of tensors. Rows of several requests are run together along the first axis, if it may have any size.

    Raises:
        StartError: there is no graph, ONNX Runtime does not load it, or an input or output is no tensor of numbers.
    """

    def __init__(self, path: Path, dtype: str, provider: Provider, threads: int) -> None:
        try:
            self.graph = pretrained.find_graph(path, dtype, provider)
        except OSError as error:
            raise StartError(f"cannot read the model in {path}: {error.filename}: {error.strerror or error}") from error
        self.provider = provider
        self.threads = threads
        self._session = open_session(self.graph.path, provider, threads)
        file = self.graph.path
        self.inputs = {node.name: Port.of(node, file) for node in self._session.get_inputs()}
        self.outputs = {node.name: Port.of(node, file) for node in self._session.get_outputs()}
        self.batchable = all(port.shape[:1] == (-1,) for port in (*self.inputs.values(), *self.outputs.values()))

    def key(self, feeds: Tensors) -> Hashable:
        """Rows of the same shapes can run together."""
        return tuple((name, feeds[name].shape[1:]) for name in sorted(feeds)) if self.batchable else None

    def run(self, feeds: list[Tensors]) -> list[Tensors]:
        """Run rows [1, …] together, or one request as it is where the graph does not batch."""
        if len(feeds) == 1:
            return [self._outputs(feeds[0])]
        together = self._outputs({name: np.concatenate([each[name] for each in feeds]) for name in feeds[0]})
        if any(len(value) != len(feeds) for value in together.values()):
            raise ValueError("the first axis of an output is not that of the inputs")
        return [{name: value[i : i + 1] for name, value in together.items()} for i in range(len(feeds))]

    def _outputs(self, feeds: Tensors) -> Tensors:
        names = list(self.outputs)
        return dict(zip(names, self._session.run(names, feeds), strict=True))


Pooling = Literal["auto", "mean", "cls"]
_SENTENCE, _TOKENS = "sentence_embedding", ("last_hidden_state", "token_embeddings")
_ENCODER_INPUTS = {"input_ids", "attention_mask", "token_type_ids"}


class EmbeddingModel(TensorModel):
    """An encoder: rows are token ids [1, S], results one vector [1, hidden] of length 1 each.

    It takes the graph's ``sentence_embedding`` if there is one, else it pools ``last_hidden_state``: the mean of all
    tokens, or the first one ("cls"); "auto" as the folder's ``1_Pooling/config.json`` says, else the mean.

    Raises:
        StartError: as ``TensorModel``; or it is no encoder of text, has no tokenizer, or nothing says how long its
            texts may be.
    """

    def __init__(
        self, path: Path, dtype: str, provider: Provider, threads: int, pooling: Pooling, max_seq_len: int | None
    ) -> None:
        super().__init__(path, dtype, provider, threads)
        file, folder = self.graph.path, self.graph.folder
        unknown = sorted(self.inputs.keys() - _ENCODER_INPUTS)
        if unknown or not {"input_ids", "attention_mask"} <= self.inputs.keys():
            raise StartError(
                f"{file}: an encoder of text takes input_ids and attention_mask, this one {', '.join(self.inputs)}; "
                "serve it with --task infer, or export it with `optimum-cli export onnx --task feature-extraction`"
            )
        found = next((name for name in (_SENTENCE, *_TOKENS) if name in self.outputs), None)
        if found is None:
            raise StartError(
                f"{file}: no {_SENTENCE} and no {_TOKENS[0]} among its outputs ({', '.join(self.outputs)}); export it "
                "with `optimum-cli export onnx --task feature-extraction`"
            )
        self.tokenizer: JsonTokenizer = pretrained.tokenizer(folder, generates=False)
        longest = pretrained.longest_input(folder)
        if max_seq_len is not None and longest is not None and max_seq_len > longest:
            raise StartError(f"--max-seq-len {max_seq_len}: the {self.graph.name} model reaches {longest} tokens")
        length = max_seq_len or longest
        if length is None:
            raise StartError(f"{folder} does not say how long a text the model takes; give --max-seq-len")
        self.max_seq_len = length
        self._output = found
        self._pooling = pretrained.pooling(folder) if pooling == "auto" else pooling

    def key(self, feeds: Tensors) -> Hashable:
        """Texts of any length run together: shorter ones are filled up and masked."""
        return "text" if self.batchable else None

    def run(self, feeds: list[Tensors]) -> list[Tensors]:
        rows = [each["input_ids"][0] for each in feeds]
        width = max(len(row) for row in rows)
        ids, mask = np.zeros((2, len(rows), width), np.int64)
        for i, row in enumerate(rows):
            ids[i, : len(row)] = row
            mask[i, : len(row)] = 1
        given = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        outputs = self._outputs({name: given[name].astype(port.kind) for name, port in self.inputs.items()})
        vectors = self._pooled(outputs[self._output].astype(np.float32), mask)
        vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        return [{"embedding": vectors[i : i + 1]} for i in range(len(rows))]

    def _pooled(self, values: NDArray[np.float32], mask: NDArray[np.int64]) -> NDArray[np.float32]:
        if values.ndim == 2:  # the graph has pooled them itself
            return values
        if self._pooling == "cls":
            return values[:, 0]
        weights = mask[:, :, None].astype(np.float32)
        pooled: NDArray[np.float32] = (values * weights).sum(1) / weights.sum(1)
        return pooled
