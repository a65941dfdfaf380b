"""One decoder in memory, whatever its layout: what the engine drives, and how it is loaded."""

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from servers.bundle import Bundle
from servers.device import Provider, open_session
from servers.errors import StartError
from servers.layouts import Layout, detect

PREFILL_CHUNK = 128  # prompt tokens of one run, unless told otherwise; longer prompts let the others decode in between


class Model(ABC):
    """A session and ``slots`` key/value slots. Not thread-safe: one thread runs it.

    ``tokens`` int64 [slots] is the last token of each slot, which the next decode step feeds; ``lengths`` int32
    [slots] is how many tokens its cache holds. Both may be read by the caller, and ``tokens`` written.
    """

    def __init__(
        self,
        bundle: Bundle,
        session: Any,
        layout: Layout,
        provider: Provider,
        slots: int,
        max_seq_len: int,
        threads: int,
        *,
        cuda_graph: bool = False,
    ) -> None:
        self.bundle = bundle
        self.layout = layout
        self.provider = provider
        self.slots = slots
        self.max_seq_len = max_seq_len
        self.threads = threads
        self.cuda_graph = cuda_graph
        self.tokens: NDArray[np.int64] = np.zeros(slots, np.int64)
        self.lengths: NDArray[np.int32] = np.zeros(slots, np.int32)
        self._session = session
        self._real: Any = np.float16 if layout.half else np.float32
        self._allocate()

    @abstractmethod
    def _allocate(self) -> None:
        """Make the caches, and whatever else the kind of model keeps; once, when it is made."""

    @abstractmethod
    def prefill(self, slot: int, tokens: list[int]) -> int:
        """Append prompt ``tokens`` (at least one) to ``slot``; the greedy token that follows them.

        The first piece of a prompt is preceded by ``clear(slot)``.
        """

    @abstractmethod
    def decode(self, count: int) -> list[int]:
        """One step of slots 0 to ``count - 1``: feeds their last tokens, returns their greedy next ones."""

    @abstractmethod
    def logits(self, row: int) -> NDArray[np.float32]:
        """The logits ``[vocab]`` of one row of the last run (row 0 after a prefill)."""

    @abstractmethod
    def clear(self, slot: int, keep: int = 0) -> None:
        """Make ``slot`` empty, but for its first ``keep`` tokens (0, where slots have no memory of their own)."""

    @abstractmethod
    def move(self, source: int, target: int) -> None:
        """Put what ``source`` holds into ``target``, whose own content is lost."""

    def _feed_exported(
        self,
        io: Any,
        ids: NDArray[np.int64],
        mask: NDArray[np.int64],
        positions: NDArray[np.int64],
        *,
        with_past: bool = True,
    ) -> None:
        """Bind the inputs of an exported graph, each where it has it; only the last position's logits are wanted."""
        feeds: dict[str, NDArray[Any]] = {
            "input_ids": ids,
            "attention_mask": mask,
            "position_ids": positions,
            "use_cache_branch": np.array([with_past]),
            "num_logits_to_keep": np.array(1, np.int64),
        }
        for name, value in feeds.items():
            if name in self.layout.inputs:
                io.bind_cpu_input(name, value)


def load(
    bundle: Bundle, provider: Provider, *, slots: int, max_seq_len: int, threads: int, cuda_graph: bool = False
) -> Model:
    """The model of ``bundle`` on ``provider``, with a cache of ``slots`` sequences of ``max_seq_len`` tokens.

    ``cuda_graph``: decode steps are captured once for each number of rows, and replayed.

    Raises:
        FellBack: the session does not run on the device that was chosen.
        StartError: ONNX Runtime cannot load the graph, its layout cannot be served, or not with ``cuda_graph``.
        MemoryError: the slots do not fit.
    """
    from servers.growing import GrowingModel
    from servers.shared import BuilderModel, SharedModel

    if cuda_graph and provider != "cuda":
        raise StartError("--cuda-graph needs CUDA, and the model runs on the CPU; leave it out")
    session = open_session(bundle.path, provider, threads, cuda_graph=cuda_graph)
    layout = read_layout(bundle, session)
    if cuda_graph and layout.kind != "slots":
        raise StartError(
            f"--cuda-graph: the inputs of {bundle.name} change their shape with each step ({layout.kind} layout); "
            "leave it out, or serve a model that `loadtest model` wrote"
        )
    kinds: dict[str, type[Model]] = {"slots": SharedModel, "shared": BuilderModel}
    kind = kinds.get(layout.kind, GrowingModel)
    return kind(bundle, session, layout, provider, slots, max_seq_len, threads, cuda_graph=cuda_graph)


def read_layout(bundle: Bundle, session: Any) -> Layout:
    """The layout of a bundle's session.

    Raises:
        StartError: it cannot be served.
    """
    try:
        layout = detect(session.get_inputs(), session.get_outputs(), bundle.operators, bundle.head_dim)
    except StartError as error:
        raise StartError(f"{bundle.path}: {error}") from error
    if bundle.tokenizer.size > layout.vocab:
        raise StartError(
            f"{bundle.path} knows {layout.vocab} tokens, and its tokenizer {bundle.tokenizer.size}: "
            "they are not of the same model"
        )
    return layout
