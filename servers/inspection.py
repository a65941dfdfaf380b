"""What a model is and what it takes, without loading it: ``loadtest model inspect``."""

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from servers.builder import Built
from servers.bundle import Bundle, external_data
from servers.errors import StartError
from servers.layouts import Layout, detect

_RESERVE = 0.1  # of the machine's memory: the runtime, the server, the client beside it
_CONTEXTS = (512, 2048, 8192, 32_768, 131_072)


@dataclass(frozen=True)
class Inspection:
    """A model's sizes. Memory in bytes; ``memory`` is the machine's, None where it does not say.

    ``fits`` are pairs (context in tokens, slots of that context beside the weights).
    """

    bundle: Bundle
    layout: Layout
    parameters: int
    file_bytes: int
    memory: int | None
    fits: tuple[tuple[int, int], ...]

    def document(self) -> dict[str, Any]:
        """The same for machines."""
        bundle, layout = self.bundle, self.layout
        return {
            "name": bundle.name,
            "graph": str(bundle.path),
            "sha256": bundle.sha256,
            "layout": layout.kind,
            "dtype": bundle.dtype,
            "parameters": self.parameters,
            "file_bytes": self.file_bytes,
            "layers": layout.layers,
            "kv_heads": layout.kv_heads,
            "head_dim": layout.head_dim,
            "vocabulary": layout.vocab,
            "max_seq_len": bundle.max_seq_len,
            "eos_token_ids": sorted(bundle.tokenizer.eos),
            "kv_bytes_per_token": layout.kv_bytes_per_token,
            "memory_bytes": self.memory,
            "fits": [{"context": context, "slots": slots} for context, slots in self.fits],
        }

    def text(self) -> str:
        """The same for people, one fact a line."""
        bundle, layout = self.bundle, self.layout
        context = "not said; give --max-seq-len" if bundle.max_seq_len is None else f"{bundle.max_seq_len:,} tokens"
        lines = [
            ("model", f"{bundle.name} ({bundle.path}, sha256 {bundle.sha256[:12]}…)"),
            ("layout", f"{layout.kind}, {bundle.dtype}"),
            ("parameters", f"{self.parameters:,} in {_size(self.file_bytes)}"),
            ("context", context),
            ("vocabulary", f"{layout.vocab:,} tokens, an answer ends with {_list(sorted(bundle.tokenizer.eos))}"),
            (
                "KV cache",
                f"{layout.kv_bytes_per_token:,} bytes a token ({layout.layers} layers × {layout.kv_heads} heads × "
                f"{layout.head_dim}, {'fp16' if layout.half else 'fp32'})",
            ),
        ]
        if self.memory is not None:
            slots = ", ".join(f"{slots:,} × {context:,}" for context, slots in self.fits)
            lines.append(("fits", f"slots × context in this machine's {_size(self.memory)}: {slots or 'not even one'}"))
        return "".join(f"{name:12}{value}\n" for name, value in lines)


def inspect(bundle: Bundle) -> Inspection:
    """Look into a model's graph.

    Raises:
        StartError: this server cannot generate text with it.
    """
    import onnx

    graph = onnx.load(bundle.path, load_external_data=False).graph
    weights = {tensor.name for tensor in graph.initializer}
    try:
        layout = detect(
            [_Port.of(value) for value in graph.input if value.name not in weights],
            [_Port.of(value) for value in graph.output],
            bundle.operators,
            bundle.head_dim,
        )
    except StartError as error:
        raise StartError(f"{bundle.path}: {error}") from error
    beside = external_data(bundle.path)
    file_bytes = bundle.path.stat().st_size + (beside.stat().st_size if beside.exists() else 0)
    memory = _memory()
    return Inspection(
        bundle=bundle,
        layout=layout,
        parameters=bundle.parameters if isinstance(bundle, Built) else _parameters(graph),
        file_bytes=file_bytes,
        memory=memory,
        fits=() if memory is None else tuple(_fits(bundle, layout, int(memory * (1 - _RESERVE)) - file_bytes)),
    )


def _fits(bundle: Bundle, layout: Layout, room: int) -> Iterator[tuple[int, int]]:
    longest = bundle.max_seq_len or _CONTEXTS[-1]
    # A graph whose cache grows holds the old one and the new one while it runs.
    token = layout.kv_bytes_per_token * (2 if layout.kind in ("growing", "merged") else 1)
    for context in (*(c for c in _CONTEXTS if c < longest), longest):
        if slots := max(0, room) // (token * context):
            yield context, slots


def _parameters(graph: Any) -> int:
    """Weights in a graph; packed ones count for what they stand for; scales, gains, and tables of angles do not."""
    counts = {tensor.name: math.prod(tensor.dims) for tensor in graph.initializer if len(tensor.dims) > 1}
    for node in graph.node:
        if node.op_type == "GroupQueryAttention":
            for name in node.input[7:9]:
                counts.pop(name, None)
        elif node.op_type == "MatMulNBits":
            sizes = {attribute.name: attribute.i for attribute in node.attribute}
            counts[node.input[1]] = sizes["K"] * sizes["N"]
            for name in node.input[2:]:
                counts.pop(name, None)
    return sum(counts.values())


@dataclass(frozen=True)
class _Port:
    """An input or output of a graph, as a session would describe it (``onnxruntime.NodeArg``)."""

    name: str
    type: str
    shape: list[int | str | None]

    @staticmethod
    def of(value: Any) -> "_Port":
        tensor = value.type.tensor_type
        kinds = {1: "tensor(float)", 7: "tensor(int64)", 10: "tensor(float16)"}
        dims = [d.dim_value if d.HasField("dim_value") else d.dim_param or None for d in tensor.shape.dim]
        return _Port(value.name, kinds.get(tensor.elem_type, f"tensor type {tensor.elem_type}"), dims)


def _memory() -> int | None:
    """Bytes of memory in this machine, or None where Python cannot tell (Windows)."""
    if not hasattr(os, "sysconf"):
        return None
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit = Path("/sys/fs/cgroup/memory.max")  # a container's share
    if limit.exists() and (text := limit.read_text().strip()).isdigit():
        return min(memory, int(text))
    return memory


def _size(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"


def _list(ids: list[int]) -> str:
    return " or ".join(map(str, ids))
