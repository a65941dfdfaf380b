"""Decoders whose graph writes into the cache it is given: loadtest's own graphs, and onnxruntime-genai's.

All slots lie in one pool ``[layers, 2, slots, kv_heads, max_seq_len, head_dim]``. Past and present of a layer are
bound to the same memory, so a run extends the cache in place: a prefill binds one slot, a decode step the first n.
No cache is ever copied, except when a slot moves into a freed one.
"""

from collections import OrderedDict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from servers.device import Provider, open_session
from servers.layouts import Layout
from servers.model import Model

_BINDINGS = 512  # a fresh binding costs 0.2 ms, a kept one a few KB


class SharedModel(Model):
    """A decoder of the ``slots`` layout: it takes lengths, and chooses the greedy token itself."""

    def _allocate(self) -> None:
        import onnxruntime

        self._ort = onnxruntime
        layout, slots, max_seq_len = self.layout, self.slots, self.max_seq_len
        pool = (layout.layers, 2, slots, layout.kv_heads, max_seq_len, layout.head_dim)
        if self._staged:
            # Zeros, not whatever was there: a masked NaN is still a NaN once it is multiplied by zero.
            self._pool = self._on_device(np.zeros(pool, self._real))
            self._pool_address = self._pool.data_ptr()
            self._copy = _SlotCopier(layout, self.provider, max_seq_len)
        else:
            self._pool = np.zeros(pool, self._real)
            self._pool_address = self._pool.ctypes.data
        self._slot_bytes = int(np.prod(pool[3:])) * np.dtype(self._real).itemsize

        self._zeros = np.zeros(slots, np.int64)
        self._prompt = np.zeros(max_seq_len, np.int64)
        self._prompt_last = np.zeros(1, np.int64)
        self._prompt_length = np.zeros(1, np.int32)
        self._total = np.zeros((), np.int32)
        self._next = np.zeros(slots, np.int64)
        self._logits = np.zeros((slots, layout.vocab), np.float32)
        self._steps: dict[int, _Binding] = {}  # by rows; kept for ever, as a captured graph knows their addresses
        self._chunks: OrderedDict[tuple[int, int], _Binding] = OrderedDict()  # by slot and tokens
        self._last: _Binding | None = None

    @property
    def _staged(self) -> bool:
        """Whether the model's memory is not the host's, so that what it takes and gives must be copied."""
        return self.provider != "cpu"

    def prefill(self, slot: int, tokens: list[int]) -> int:
        count = len(tokens)
        length = int(self.lengths[slot]) + count
        self._prompt[:count] = tokens
        self._prompt_last[0] = count - 1
        self._prompt_length[0] = length - 1
        self._total[...] = length
        binding = self._chunks.get((slot, count))
        if binding is None:
            binding = self._chunks[slot, count] = self._bind(slot, 1, count)
            if len(self._chunks) > _BINDINGS:
                self._chunks.popitem(last=False)
        else:
            self._chunks.move_to_end((slot, count))
        self._run(binding)
        self.lengths[slot] = length
        token = int(self._next[0])
        self.tokens[slot] = token
        return token

    def decode(self, count: int) -> list[int]:
        lengths = self.lengths[:count]
        # A replayed step launches what was captured, so there it is the longest that may ever be. The rows' own
        # lengths, which decide what is attended to, are read on the device.
        self._total[...] = self.max_seq_len if self.cuda_graph else lengths.max() + 1
        binding = self._steps.get(count)
        if binding is None:
            binding = self._steps[count] = self._bind(0, count, 0)
        self._run(binding)
        lengths += 1
        self.tokens[:count] = self._next[:count]
        next_tokens: list[int] = self._next[:count].tolist()
        return next_tokens

    def logits(self, row: int) -> NDArray[np.float32]:
        if self._last is not None and self._last.logits is not None:  # they stayed on the device
            self._logits[: self._last.rows] = self._last.logits.numpy()
            self._last = None
        row_logits: NDArray[np.float32] = self._logits[row]
        return row_logits

    def clear(self, slot: int, keep: int = 0) -> None:
        self.lengths[slot] = keep

    def move(self, source: int, target: int) -> None:
        length = int(self.lengths[source])
        if self._staged:
            self._copy(self._addresses(source), self._addresses(target))
        else:
            self._pool[:, :, target, :, :length] = self._pool[:, :, source, :, :length]
        self.tokens[target] = self.tokens[source]
        self.lengths[target] = length

    def _addresses(self, slot: int) -> list[int]:
        """Memory addresses of one slot: key and value of layer 0, of layer 1, and so on."""
        stride = self.slots * self._slot_bytes
        return [self._pool_address + i * stride + slot * self._slot_bytes for i in range(2 * self.layout.layers)]

    def _run(self, binding: "_Binding") -> None:
        for value, host in binding.uploads:
            value.update_inplace(host)
        self._session.run_with_iobinding(binding.io, binding.options)
        if binding.chosen is not None:
            self._next[: binding.rows] = binding.chosen.numpy()
        self._last = binding

    def _bind(self, slot: int, rows: int, chunk: int) -> "_Binding":
        """A prefill of ``chunk`` tokens in ``slot``, or (0) a decode step of ``rows`` slots from ``slot`` on."""
        binding = self._bind_cache(slot, rows)
        if chunk:
            self._feed(binding, "input_ids", self._prompt[None, :chunk])
            self._feed(binding, "last_idx", self._prompt_last)
            self._feed(binding, "seqlens_k", self._prompt_length)
        else:
            self._feed(binding, "input_ids", self.tokens[:rows, None])
            self._feed(binding, "last_idx", self._zeros[:rows], changes=False)
            self._feed(binding, "seqlens_k", self.lengths[:rows])
        _bind_host(binding.io.bind_input, "total_seq", self._total)  # the operator reads it on the host everywhere
        if self._staged:
            binding.logits = self._on_device(self._logits[:rows])
            binding.io.bind_ortvalue_output("logits", binding.logits)
        else:
            _bind_host(binding.io.bind_output, "logits", self._logits[:rows])
        if self.cuda_graph:  # which cannot copy to the host
            binding.chosen = self._on_device(self._next[:rows])
            binding.io.bind_ortvalue_output("next_token", binding.chosen)
            binding.options = self._ort.RunOptions()
            binding.options.add_run_config_entry("gpu_graph_id", "-1" if chunk else str(rows))
        else:
            _bind_host(binding.io.bind_output, "next_token", self._next[:rows])
        return binding

    def _bind_cache(self, slot: int, rows: int) -> "_Binding":
        io = self._session.io_binding()
        cache = [rows, self.layout.kv_heads, self.max_seq_len, self.layout.head_dim]
        for name, address in zip(self.layout.cache_names, self._addresses(slot), strict=True):
            for bind, prefix in ((io.bind_input, "past_key_values."), (io.bind_output, "present.")):
                bind(prefix + name, self.provider, 0, self._real, cache, address)
        return _Binding(io, rows)

    def _feed(self, binding: "_Binding", name: str, host: NDArray[Any], *, changes: bool = True) -> None:
        """Bind an input to ``host``, whose content at each run counts."""
        if self._staged:
            # Binding a host array copies it once, at that moment; a value on the device can be refilled.
            value = self._on_device(host)
            binding.io.bind_ortvalue_input(name, value)
            if changes:
                binding.uploads.append((value, host))
        else:
            _bind_host(binding.io.bind_input, name, host)

    def _on_device(self, array: NDArray[Any]) -> Any:
        """An OrtValue beside the model, of the array's shape and content."""
        return self._ort.OrtValue.ortvalue_from_numpy(array, self.provider, 0)


class BuilderModel(SharedModel):
    """A decoder of the ``shared`` layout: it takes a mask instead of lengths, and gives only logits.

    GroupQueryAttention reads no more of the mask than how many ones are in each row and how wide it is.
    """

    def prefill(self, slot: int, tokens: list[int]) -> int:
        past, count = int(self.lengths[slot]), len(tokens)
        self._prompt[:count] = tokens
        io = self._bind_cache(slot, 1).io
        positions = np.arange(past, past + count, dtype=np.int64)[None]
        (token,) = self._step(io, self._prompt[None, :count], np.ones((1, past + count), np.int64), positions)
        self.lengths[slot] = past + count
        self.tokens[slot] = token
        return token

    def decode(self, count: int) -> list[int]:
        lengths = self.lengths[:count]
        binding = self._steps.get(count)
        if binding is None:
            binding = self._steps[count] = self._bind_cache(0, count)
        mask = (np.arange(lengths.max() + 1) <= lengths[:, None]).astype(np.int64)
        chosen = self._step(binding.io, self.tokens[:count, None], mask, lengths[:, None].astype(np.int64))
        lengths += 1
        self.tokens[:count] = chosen
        return chosen

    def _step(
        self, io: Any, ids: NDArray[np.int64], mask: NDArray[np.int64], positions: NDArray[np.int64]
    ) -> list[int]:
        self._feed_exported(io, ids, mask, positions)
        io.bind_output("logits", "cpu")
        self._session.run_with_iobinding(io)
        rows = len(ids)
        logits = io.get_outputs()[-1].numpy()
        self._logits[:rows] = logits[:, -1]
        chosen: list[int] = self._logits[:rows].argmax(-1).tolist()
        return chosen


class _Binding:
    """A prepared run: its inputs to refill on the device, and its logits and the chosen tokens if they stay there."""

    __slots__ = ("chosen", "io", "logits", "options", "rows", "uploads")

    def __init__(self, io: Any, rows: int) -> None:
        self.io = io
        self.rows = rows
        self.uploads: list[tuple[Any, NDArray[Any]]] = []
        self.logits: Any = None
        self.chosen: Any = None
        self.options: Any = None


class _SlotCopier:
    """Copies one slot to another on the device itself, as the Python API of ONNX Runtime can only through a graph."""

    def __init__(self, layout: Layout, provider: Provider, max_seq_len: int) -> None:
        from onnx import TensorProto, helper

        self._provider = provider
        self._real: Any = np.float16 if layout.half else np.float32
        self._dims = [layout.kv_heads, max_seq_len, layout.head_dim]
        self._count = 2 * layout.layers
        kind = TensorProto.FLOAT16 if layout.half else TensorProto.FLOAT
        graph = helper.make_graph(
            [helper.make_node("Identity", [f"from{i}"], [f"to{i}"]) for i in range(self._count)],
            "copy",
            [helper.make_tensor_value_info(f"from{i}", kind, self._dims) for i in range(self._count)],
            [helper.make_tensor_value_info(f"to{i}", kind, self._dims) for i in range(self._count)],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
        self._session = open_session(model.SerializeToString(), provider, 1)

    def __call__(self, sources: list[int], targets: list[int]) -> None:
        """Copy from each source address to the target address of the same place in the list."""
        io = self._session.io_binding()
        for i, (source, target) in enumerate(zip(sources, targets, strict=True)):
            io.bind_input(f"from{i}", self._provider, 0, self._real, self._dims, source)
            io.bind_output(f"to{i}", self._provider, 0, self._real, self._dims, target)
        self._session.run_with_iobinding(io)


def _bind_host(bind: Any, name: str, array: NDArray[Any]) -> None:
    bind(name, "cpu", 0, array.dtype.type, list(array.shape), array.ctypes.data)
