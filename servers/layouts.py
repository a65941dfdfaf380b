"""How an ONNX decoder wants its key/value cache, read off its session's inputs and outputs.

``slots``    loadtest's own graphs: ``seqlens_k`` and ``last_idx``, past and present in one buffer.
``shared``   graphs with GroupQueryAttention (onnxruntime-genai's builder, many transformers.js models):
             ``attention_mask`` and perhaps ``position_ids``, past and present in one buffer.
``growing``  graphs that append to their past (optimum-onnx with past): ``attention_mask`` and ``position_ids``,
             present is one step longer than past.
``merged``   the same, with a second branch for prompts, chosen by ``use_cache_branch``.

What cannot be served is refused with what to export instead.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Literal

from servers.errors import StartError

Kind = Literal["slots", "shared", "growing", "merged"]
EXPORT = (
    "export it with `optimum-cli export onnx --task text-generation-with-past` or onnxruntime-genai's model builder"
)

_PAST = re.compile(r"past_key_values\.(\d+)\.(key|value)")
_CACHE_TYPES = {"tensor(float)": False, "tensor(float16)": True}
_KNOWN = {
    "input_ids", "attention_mask", "position_ids", "use_cache_branch", "num_logits_to_keep", "last_idx", "seqlens_k",
    "total_seq",
}  # fmt: skip


@dataclass(frozen=True)
class Layout:
    """What a decoder's session takes and gives.

    ``half``: the cache is float16. ``inputs``: the names of all inputs. ``vocab`` is the size of a row of logits.
    """

    kind: Kind
    layers: int
    kv_heads: int
    head_dim: int
    vocab: int
    half: bool
    inputs: frozenset[str]

    @property
    def cache_names(self) -> list[str]:
        """Names of the cache's tensors without their prefix: key and value of layer 0, of layer 1, and so on."""
        return [f"{i}.{kind}" for i in range(self.layers) for kind in ("key", "value")]

    @property
    def kv_bytes_per_token(self) -> int:
        """Memory that one token of one sequence takes in the cache."""
        return 2 * self.layers * self.kv_heads * self.head_dim * (2 if self.half else 4)


def detect(inputs: list[Any], outputs: list[Any], operators: Collection[str], head_dim: int | None) -> Layout:
    """The layout of a session with these ``inputs`` and ``outputs`` (``onnxruntime.NodeArg``: name, type, shape).

    ``operators`` are the operator types of its graph; ``head_dim`` is what the folder says of it, for graphs in which
    that size is symbolic.

    Raises:
        StartError: this server cannot generate text with it.
    """
    names = frozenset(node.name for node in inputs)
    by_name = {node.name: node for node in outputs}
    _refuse_other_tasks(names, by_name)
    past = [node for node in inputs if _PAST.fullmatch(node.name)]
    unknown = sorted(names - _KNOWN - {node.name for node in past})
    if unknown:
        raise StartError(f"the graph has inputs that this server cannot feed: {', '.join(unknown)}; {EXPORT}")
    layers = len(past) // 2
    expected = {f"{i}.{kind}" for i in range(layers) for kind in ("key", "value")}
    lacking = [f"past_key_values.{n}" for n in expected if f"past_key_values.{n}" not in names]
    lacking += [f"present.{n}" for n in expected if f"present.{n}" not in by_name]
    if lacking:
        raise StartError(f"the graph's key/value cache is incomplete: no {', '.join(sorted(lacking))}; {EXPORT}")
    kind = _kind(names, operators)
    cache = past[0]
    if cache.type not in _CACHE_TYPES:
        raise StartError(f"the key/value cache is {cache.type}; this server keeps it in float or float16; {EXPORT}")
    if len(cache.shape) != 4:
        raise StartError(f"{cache.name} is no cache of [batch, heads, tokens, head size], but {cache.shape}; {EXPORT}")
    kv_heads, depth = cache.shape[1], cache.shape[3]
    if not isinstance(depth, int):
        depth = head_dim
    vocab = by_name["logits"].shape[-1]
    for value, what in ((kv_heads, "key/value heads"), (depth, "the head size"), (vocab, "the vocabulary")):
        if not isinstance(value, int):
            raise StartError(f"neither the graph nor its config.json gives the size of {what}; {EXPORT}")
    return Layout(kind, layers, kv_heads, depth, vocab, _CACHE_TYPES[cache.type], names)


def _kind(names: frozenset[str], operators: Collection[str]) -> Kind:
    if {"seqlens_k", "last_idx"} <= names:
        return "slots"
    if "attention_mask" not in names:
        raise StartError(f"the graph has no attention_mask, so requests cannot be batched; {EXPORT}")
    if "GroupQueryAttention" in operators:
        return "shared"
    if "position_ids" not in names:
        raise StartError(
            "the graph has no position_ids, so requests of different length cannot be batched exactly; "
            "export it again with optimum-onnx, which adds them"
        )
    return "merged" if "use_cache_branch" in names else "growing"


def _refuse_other_tasks(names: frozenset[str], outputs: dict[str, Any]) -> None:
    """Refuse what is no decoder with a cache of its own in one piece a layer.

    Raises:
        StartError: always with what to export instead.
    """
    if "block_table" in names:
        raise StartError(
            "the graph has a paged key/value cache (PagedAttention), which this server does not manage; build it "
            "without: onnxruntime-genai's builder does so by default"
        )
    if "encoder_hidden_states" in names:
        raise StartError(f"the graph is the decoder of an encoder-decoder model, not a language model; {EXPORT}")
    if "logits" not in outputs:
        raise StartError(
            f"the graph generates no text: it has no logits, but {', '.join(outputs)}; serve it with --task embed or "
            f"--task infer, or, for text generation, {EXPORT}"
        )
    if "input_ids" not in names:
        raise StartError(f"the graph does not take input_ids, but {', '.join(sorted(names))}; {EXPORT}")
    if not any(_PAST.fullmatch(name) for name in names):
        raise StartError(
            "the graph has no key/value cache (past_key_values.N.key): every token would run the whole text again; "
            + EXPORT
        )
