"""Llama-family models from GGUF files: their weights in loadtest's own graph, their tokenizer as ``tokenizer.json``.

Format: ggml's docs/gguf.md. llama.cpp stores the query and key rows of a head interleaved, for its own rotary
embedding; here they are put back into the order of the original model, two halves.
"""

import hashlib
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from servers import builder
from servers.decoder import Dtype, Shape, Weights, build
from servers.errors import StartError

_EXTRA = "pip install '.[gguf,models]'"
_INSTEAD = "export the original model with onnxruntime-genai's builder or optimum-onnx instead"
_CONTROL, _USER_DEFINED = 3, 4  # token types: never text; text that is always one token
# Pre-tokenizers by the names that llama.cpp gives them (src/llama-vocab.cpp); the regular expression is Llama 3's.
_DIGITS = {"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone"}
_PLAIN = {"gpt-2", "default", "phi-2", "mpt", "olmo", "jais"}
_LLAMA_3 = {"llama3", "llama-v3", "llama-bpe", "falcon3", "smaug-bpe"}
_LLAMA_3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)


def convert(path: Path, folder: Path, dtype: Dtype) -> None:
    """Write the model in the GGUF file ``path`` into ``folder``, new or empty, as ``loadtest serve`` reads it.

    Raises:
        StartError: it is no GGUF file or not of a kind that can be converted, a package is missing, or the folder
            cannot be written.
    """
    try:
        import gguf
        import tokenizers  # noqa: F401  (before the long part)
    except ImportError as error:
        raise StartError(f"reading GGUF files needs the package {error.name}: {_EXTRA}") from error
    try:
        reader = gguf.GGUFReader(path)
    except OSError as error:
        raise StartError(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, IndexError) as error:
        raise StartError(f"{path} is not a whole GGUF file: {error}") from error
    source = _Gguf(path, reader, gguf.quants.dequantize)
    shape = source.shape()
    vocabulary = source.vocabulary()
    weights = source.weights(shape)
    with path.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    facts = {
        "trained": True,
        "parameters": int(sum(weight.size for name, weight in weights.items() if name != "rope_factors")),
        "source": {"file": path.name, "sha256": sha256},
    }
    try:
        with builder.fresh(folder) as made:
            builder.save(made, build(shape, weights, dtype, trained=True), folder.name, shape, dtype, facts)
            vocabulary.write(made)
    except OSError as error:
        raise StartError(f"cannot write {folder}: {error.strerror or error}") from error


class _Gguf:
    """A GGUF file by its fields and tensors."""

    def __init__(self, path: Path, reader: Any, dequantize: Any) -> None:
        self._path = path
        self._fields = reader.fields
        self._tensors = {tensor.name: tensor for tensor in reader.tensors}
        self._dequantize = dequantize

    def shape(self) -> Shape:
        """The sizes of the decoder.

        Raises:
            StartError: it is not a Llama, or one that the graph cannot express.
        """
        architecture = self._field("general.architecture")
        if architecture != "llama":
            raise self._refusal(f"its architecture is {architecture}, and only llama can be converted")
        if self._field("llama.expert_count", 0):
            raise self._refusal("it is a mixture of experts, which cannot be converted")
        scaling = self._field("llama.rope.scaling.type", "none")
        if scaling != "none":
            raise self._refusal(f"its rotary scaling is {scaling}, which cannot be converted")
        heads = self._field("llama.attention.head_count")
        sizes = {
            "layers": self._field("llama.block_count"),
            "hidden": self._field("llama.embedding_length"),
            "heads": heads,
            "kv_heads": self._field("llama.attention.head_count_kv", heads),
            "inter": self._field("llama.feed_forward_length"),
            "vocab": int(self._tensor("token_embd.weight").shape[1]),
            "max_seq_len": self._field("llama.context_length"),
        }
        try:
            shape = Shape(
                **sizes,
                rope_theta=self._field("llama.rope.freq_base", 10_000.0),
                norm_epsilon=self._field("llama.attention.layer_norm_rms_epsilon"),
            )
        except (ValueError, TypeError) as error:
            raise self._refusal(str(error)) from error
        for name in ("llama.attention.key_length", "llama.rope.dimension_count"):
            if self._field(name, shape.head_dim) != shape.head_dim:
                raise self._refusal(f"{name} is {self._field(name)}, not hidden / heads = {shape.head_dim}")
        return shape

    def weights(self, shape: Shape) -> Weights:
        """The weights in float32, by the names of ``decoder.random_weights``."""

        def get(name: str) -> NDArray[np.float32]:
            tensor = self._tensor(name)
            values: NDArray[np.float32] = self._dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
            return values

        def halves(weight: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
            return weight.reshape(heads, shape.head_dim // 2, 2, -1).swapaxes(1, 2).reshape(weight.shape)

        weights = {"embedding": get("token_embd.weight"), "norm": get("output_norm.weight")}
        if "output.weight" in self._tensors:
            weights["head"] = get("output.weight")
        if "rope_freqs.weight" in self._tensors:
            weights["rope_factors"] = get("rope_freqs.weight")
        for i in range(shape.layers):
            block = f"blk.{i}."
            if f"{block}attn_q.bias" in self._tensors:
                raise self._refusal("its attention has biases, which cannot be converted")
            q = halves(get(f"{block}attn_q.weight"), shape.heads)
            k = halves(get(f"{block}attn_k.weight"), shape.kv_heads)
            weights[f"{i}.qkv"] = np.concatenate([q, k, get(f"{block}attn_v.weight")]).T
            weights[f"{i}.output"] = get(f"{block}attn_output.weight").T
            gate_up = [get(f"{block}ffn_{part}.weight") for part in ("gate", "up")]
            weights[f"{i}.gate_up"] = np.concatenate(gate_up).T
            weights[f"{i}.down"] = get(f"{block}ffn_down.weight").T
            weights[f"{i}.attention_norm"] = get(f"{block}attn_norm.weight")
            weights[f"{i}.mlp_norm"] = get(f"{block}ffn_norm.weight")
        return weights

    def vocabulary(self) -> "_Vocabulary":
        """The tokenizer's parts.

        Raises:
            StartError: it is of a kind that cannot be converted.
        """
        key = "tokenizer.ggml."
        kind, pre = self._field(f"{key}model"), self._field(f"{key}pre", "default")
        if kind not in ("gpt2", "llama") or (kind == "gpt2" and pre not in _DIGITS | _PLAIN | _LLAMA_3):
            raise self._refusal(f"its tokenizer ({kind}, {pre}) cannot be converted")
        tokens: list[str] = self._field(f"{key}tokens")
        ends = [self._field(f"{key}{name}_token_id", None) for name in ("eos", "eot", "eom")]
        return _Vocabulary(
            kind=kind,
            pre=pre,
            tokens=tokens,
            types=self._field(f"{key}token_type", [1] * len(tokens)),
            scores=self._field(f"{key}scores", []),
            merges=self._field(f"{key}merges", []),
            bos=self._field(f"{key}bos_token_id", None),
            eos=[end for end in ends if end is not None],
            add_bos=self._field(f"{key}add_bos_token", kind == "llama" or pre in _LLAMA_3),
            add_space=self._field(f"{key}add_space_prefix", True),
            template=self._field("tokenizer.chat_template", None),
        )

    def _field(self, name: str, *default: Any) -> Any:
        if name in self._fields:
            return self._fields[name].contents()
        if not default:
            raise self._refusal(f"it has no field {name}")
        return default[0]

    def _tensor(self, name: str) -> Any:
        if name not in self._tensors:
            raise self._refusal(f"it has no tensor {name}")
        return self._tensors[name]

    def _refusal(self, reason: str) -> StartError:
        return StartError(f"{self._path}: {reason}; {_INSTEAD}")


@dataclass(frozen=True)
class _Vocabulary:
    """A GGUF file's tokenizer; ``kind`` is gpt2 (byte-level BPE) or llama (SentencePiece BPE)."""

    kind: str
    pre: str
    tokens: list[str]
    types: list[int]
    scores: list[float]
    merges: list[str]
    bos: int | None
    eos: list[int]
    add_bos: bool
    add_space: bool
    template: str | None

    def write(self, folder: Path) -> None:
        """Write tokenizer.json, tokenizer_config.json and generation_config.json."""
        self._tokenizer().save(str(folder / "tokenizer.json"))
        named = {"bos_token": self.bos, "eos_token": self.eos[0] if self.eos else None}
        config = {name: None if index is None else self.tokens[index] for name, index in named.items()}
        if self.template is not None:
            config["chat_template"] = self.template
        (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", "utf-8")
        (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": self.eos}, indent=2) + "\n")

    def _tokenizer(self) -> Any:
        from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

        vocabulary = {token: index for index, token in enumerate(self.tokens)}
        if self.kind == "gpt2":
            merges = [(left, right) for left, _, right in (merge.partition(" ") for merge in self.merges)]
            tokenizer = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=self.pre in _LLAMA_3))
            first: list[Any] = []
            if self.pre in _DIGITS:
                first = [pre_tokenizers.Digits(individual_digits=True)]
            elif self.pre in _LLAMA_3:
                from tokenizers import Regex

                first = [pre_tokenizers.Split(Regex(_LLAMA_3_SPLIT), "isolated")]
            level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=self.pre not in _LLAMA_3)
            tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*first, level])
            tokenizer.decoder = decoders.ByteLevel()
        else:
            unknown = next((t for t, kind in zip(self.tokens, self.types, strict=True) if kind == 2), None)
            model = models.BPE(
                vocabulary, self._merges_of_scores(vocabulary), unk_token=unknown, fuse_unk=True, byte_fallback=True
            )
            tokenizer = Tokenizer(model)
            prepend = [normalizers.Prepend("▁")] if self.add_space else []
            tokenizer.normalizer = normalizers.Sequence([*prepend, normalizers.Replace(" ", "▁")])
            strip = [decoders.Strip(" ", 1, 0)] if self.add_space else []
            tokenizer.decoder = decoders.Sequence(
                [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
            )
        for token, kind in zip(self.tokens, self.types, strict=True):
            if kind == _CONTROL:
                tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False)])
            elif kind == _USER_DEFINED:
                tokenizer.add_tokens([AddedToken(token, normalized=False)])
        if self.add_bos and self.bos is not None:
            bos = self.tokens[self.bos]
            tokenizer.post_processor = processors.TemplateProcessing(
                single=f"{bos} $A", special_tokens=[(bos, self.bos)]
            )
        return tokenizer

    def _merges_of_scores(self, vocabulary: dict[str, int]) -> list[tuple[str, str]]:
        """SentencePiece joins the pair whose whole has the best score; the same as a list of merges, best first."""
        found = []
        for token, score in zip(self.tokens, self.scores, strict=True):
            for at in range(1, len(token)):
                left, right = token[:at], token[at:]
                if left in vocabulary and right in vocabulary and math.isfinite(score):
                    found.append((-score, vocabulary[left], vocabulary[right], left, right))
        return [(left, right) for *_, left, right in sorted(found)]
