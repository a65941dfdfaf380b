"""One decoder in memory: its ONNX Runtime session, its key/value slots, and the runs over them.

All slots lie in one pool ``[layers, 2, slots, kv_heads, max_seq_len, head_dim]``. Past and present of a layer are
bound to the same memory, so a run extends the cache in place: a prefill binds one slot, a decode step the first n.
No cache is ever copied, except when a slot moves into a freed one.
"""

from collections import OrderedDict
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from servers.builder import Bundle
from servers.device import PROVIDERS, Device, check_session

PREFILL_CHUNK = 128  # most prompt tokens of one run; longer prompts let the others decode in between
_BINDINGS = 512  # a fresh binding costs 0.2 ms, a kept one a few KB


class Model:
    """A session and ``slots`` key/value slots. Not thread-safe: one thread runs it.

    ``tokens`` int64 [slots] is the last token of each slot, which the next decode step feeds; ``lengths`` int32
    [slots] is how many tokens its cache holds. Both may be read by the caller, and ``tokens`` written.

    Raises:
        FellBack: the session does not run on the device that was chosen.
        MemoryError: the slots do not fit.
    """

    def __init__(self, bundle: Bundle, device: Device, *, slots: int, max_seq_len: int, threads: int) -> None:
        import onnxruntime

        self.bundle = replace(bundle, graph=b"")  # the session has a copy of its own
        self.device = device
        self.slots = slots
        self.max_seq_len = max_seq_len
        self.threads = threads
        self._ort = onnxruntime
        self._cuda = device.provider == "cuda"
        self._session = _session(bundle.graph, device, threads)
        shape = bundle.shape
        self._real: Any = np.float16 if bundle.dtype == "fp16" else np.float32
        pool = (shape.layers, 2, slots, shape.kv_heads, max_seq_len, shape.head_dim)
        if self._cuda:
            # Zeros, not whatever was there: a masked NaN is still a NaN once it is multiplied by zero.
            self._pool = onnxruntime.OrtValue.ortvalue_from_numpy(np.zeros(pool, self._real), "cuda", 0)
            self._pool_address = self._pool.data_ptr()
            self._copy = _SlotCopier(bundle, device, max_seq_len)
        else:
            self._pool = np.zeros(pool, self._real)
            self._pool_address = self._pool.ctypes.data
        self._slot_bytes = int(np.prod(pool[3:])) * np.dtype(self._real).itemsize

        self.tokens: NDArray[np.int64] = np.zeros(slots, np.int64)
        self.lengths: NDArray[np.int32] = np.zeros(slots, np.int32)
        self._zeros = np.zeros(slots, np.int64)
        self._prompt = np.zeros(PREFILL_CHUNK, np.int64)
        self._prompt_last = np.zeros(1, np.int64)
        self._prompt_length = np.zeros(1, np.int32)
        self._total = np.zeros((), np.int32)
        self._next = np.zeros(slots, np.int64)
        self._logits = np.zeros((slots, shape.vocab), np.float32)
        self._bindings: OrderedDict[tuple[int, int, int], _Binding] = OrderedDict()
        self._last: _Binding | None = None

    def prefill(self, slot: int, tokens: list[int]) -> int:
        """Append prompt ``tokens`` (1 to ``PREFILL_CHUNK``) to ``slot``; the greedy token that follows them.

        The first piece of a prompt is preceded by ``clear(slot)``.
        """
        count = len(tokens)
        length = int(self.lengths[slot]) + count
        self._prompt[:count] = tokens
        self._prompt_last[0] = count - 1
        self._prompt_length[0] = length - 1
        self._total[...] = length
        self._run(slot, 1, count)
        self.lengths[slot] = length
        token = int(self._next[0])
        self.tokens[slot] = token
        return token

    def decode(self, count: int) -> list[int]:
        """One step of slots 0 to ``count - 1``: feeds their last tokens, returns their greedy next ones."""
        lengths = self.lengths[:count]
        self._total[...] = lengths.max() + 1
        self._run(0, count, 0)
        lengths += 1
        self.tokens[:count] = self._next[:count]
        next_tokens: list[int] = self._next[:count].tolist()
        return next_tokens

    def logits(self, row: int) -> NDArray[np.float32]:
        """The masked logits ``[vocab]`` of one row of the last run (row 0 after a prefill)."""
        if self._last is not None and self._last.logits is not None:  # they stayed on the device
            self._logits[: self._last.rows] = self._last.logits.numpy()
            self._last = None
        row_logits: NDArray[np.float32] = self._logits[row]
        return row_logits

    def clear(self, slot: int) -> None:
        """Make ``slot`` empty."""
        self.lengths[slot] = 0

    def move(self, source: int, target: int) -> None:
        """Put what ``source`` holds into ``target``, whose own content is lost."""
        length = int(self.lengths[source])
        if self._cuda:
            self._copy(self._addresses(source), self._addresses(target))
        else:
            self._pool[:, :, target, :, :length] = self._pool[:, :, source, :, :length]
        self.tokens[target] = self.tokens[source]
        self.lengths[target] = length

    def _addresses(self, slot: int) -> list[int]:
        """Memory addresses of one slot: key and value of layer 0, of layer 1, and so on."""
        stride = self.slots * self._slot_bytes
        return [self._pool_address + i * stride + slot * self._slot_bytes for i in range(2 * self.bundle.shape.layers)]

    def _run(self, slot: int, rows: int, chunk: int) -> None:
        key = (slot, rows, chunk)
        binding = self._bindings.get(key)
        if binding is None:
            binding = self._bindings[key] = self._bind(slot, rows, chunk)
            if len(self._bindings) > _BINDINGS:
                self._bindings.popitem(last=False)
        else:
            self._bindings.move_to_end(key)
        for value, host in binding.uploads:
            value.update_inplace(host)
        self._session.run_with_iobinding(binding.io)
        self._last = binding

    def _bind(self, slot: int, rows: int, chunk: int) -> "_Binding":
        """Bind a prefill of ``chunk`` tokens in ``slot``, or (0) a decode step of ``rows`` slots from ``slot`` on."""
        shape = self.bundle.shape
        io = self._session.io_binding()
        inputs: dict[str, NDArray[Any]]
        if chunk:
            inputs = {
                "input_ids": self._prompt[None, :chunk],
                "last_idx": self._prompt_last,
                "seqlens_k": self._prompt_length,
            }
        else:
            inputs = {
                "input_ids": self.tokens[:rows, None],
                "last_idx": self._zeros[:rows],
                "seqlens_k": self.lengths[:rows],
            }
        uploads = []
        for name, host in inputs.items():
            if self._cuda:
                # Binding a host array copies it once, at that moment; a value on the device can be refilled.
                value = self._ort.OrtValue.ortvalue_from_numpy(host, "cuda", 0)
                io.bind_ortvalue_input(name, value)
                uploads.append((value, host))
            else:
                _bind_host(io.bind_input, name, host)
        _bind_host(io.bind_input, "total_seq", self._total)  # the operator reads this one on the host everywhere
        _bind_host(io.bind_output, "next_token", self._next[:rows])
        logits = None
        if self._cuda:
            logits = self._ort.OrtValue.ortvalue_from_shape_and_type((rows, shape.vocab), np.float32, "cuda", 0)
            io.bind_ortvalue_output("logits", logits)
        else:
            _bind_host(io.bind_output, "logits", self._logits[:rows])
        cache = [rows, shape.kv_heads, self.max_seq_len, shape.head_dim]
        for i, address in enumerate(self._addresses(slot)):
            name = f"{i // 2}.{('key', 'value')[i % 2]}"
            for bind, prefix in ((io.bind_input, "past_key_values."), (io.bind_output, "present.")):
                bind(prefix + name, self.device.provider, 0, self._real, cache, address)
        return _Binding(io, rows, uploads, logits)


class _Binding:
    """A prepared run: its inputs to refill on the device, and its logits if they stay there."""

    __slots__ = ("io", "logits", "rows", "uploads")

    def __init__(self, io: Any, rows: int, uploads: list[tuple[Any, NDArray[Any]]], logits: Any) -> None:
        self.io = io
        self.rows = rows
        self.uploads = uploads
        self.logits = logits


class _SlotCopier:
    """Copies one slot to another on the device itself, as the Python API of ONNX Runtime can only through a graph."""

    def __init__(self, bundle: Bundle, device: Device, max_seq_len: int) -> None:
        from onnx import TensorProto, helper

        shape = bundle.shape
        self._provider = device.provider
        self._real: Any = np.float16 if bundle.dtype == "fp16" else np.float32
        self._dims = [shape.kv_heads, max_seq_len, shape.head_dim]
        self._count = 2 * shape.layers
        kind = TensorProto.FLOAT16 if bundle.dtype == "fp16" else TensorProto.FLOAT
        graph = helper.make_graph(
            [helper.make_node("Identity", [f"from{i}"], [f"to{i}"]) for i in range(self._count)],
            "copy",
            [helper.make_tensor_value_info(f"from{i}", kind, self._dims) for i in range(self._count)],
            [helper.make_tensor_value_info(f"to{i}", kind, self._dims) for i in range(self._count)],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
        self._session = _session(model.SerializeToString(), device, 1)

    def __call__(self, sources: list[int], targets: list[int]) -> None:
        """Copy from each source address to the target address of the same place in the list."""
        io = self._session.io_binding()
        for i, (source, target) in enumerate(zip(sources, targets, strict=True)):
            io.bind_input(f"from{i}", self._provider, 0, self._real, self._dims, source)
            io.bind_output(f"to{i}", self._provider, 0, self._real, self._dims, target)
        self._session.run_with_iobinding(io)


def _bind_host(bind: Any, name: str, array: NDArray[Any]) -> None:
    bind(name, "cpu", 0, array.dtype.type, list(array.shape), array.ctypes.data)


def _session(graph: bytes, device: Device, threads: int) -> Any:
    import onnxruntime

    onnxruntime.set_default_logger_severity(3)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    # A spinning worker takes the core that the client, or another server, needs (15.1 against 10.0 ms a step
    # beside one busy process).
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = onnxruntime.InferenceSession(graph, options, providers=[PROVIDERS[device.provider]])
    check_session(device.provider, session.get_providers())
    return session
