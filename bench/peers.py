"""Other engines on the same weights, for ``bench/server.py``: CTranslate2 and llama.cpp."""

import ctypes
import itertools
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from servers import builder, decoder, tokenizer
from servers.device import Provider

Prompts = Sequence[list[int]]
_SEQUENCES, _CONTEXT = 32, 256  # of llama.cpp's cache: most requests at a time, and tokens of each


class Peer(Protocol):
    """An engine to compare with. Its module is imported when it is made, and may be absent, or not for the device
    (ImportError)."""

    name: str

    def __init__(self, bundle: builder.Built, provider: Provider, threads: int, folder: Path) -> None: ...

    def decode(self, prompts: Prompts, count: int) -> list[float]:
        """Seconds of each step in which all ``prompts`` together get one more token, of ``count`` tokens each."""

    def prefill(self, prompt: list[int]) -> float:
        """Seconds of one prompt and its first token."""

    def answer(self, prompt: list[int], count: int) -> list[int]:
        """The greedy answer, ``count`` tokens."""


class CTranslate2:
    """CTranslate2; in int8 it quantises the weights itself as it loads them."""

    name = "CTranslate2"

    def __init__(self, bundle: builder.Built, provider: Provider, threads: int, folder: Path) -> None:
        import ctranslate2

        if provider == "cuda" and not ctranslate2.get_cuda_device_count():
            raise ImportError("it finds no GPU")
        _write_ctranslate2(bundle.shape, folder)
        compute_type = {"fp32": "float32", "fp16": "float16", "int8": "int8"}[bundle.dtype]
        self._generator = ctranslate2.Generator(
            str(folder), device=provider, compute_type=compute_type, intra_threads=threads, inter_threads=1
        )
        if provider == "cuda":
            try:
                self.answer([tokenizer.BOS], 1)
            except RuntimeError as error:  # it loads its CUDA libraries when it first needs them
                raise ImportError(str(error)) from error

    def decode(self, prompts: Prompts, count: int) -> list[float]:
        steps: list[float] = []

        def stepped(result: Any) -> bool:
            if result.batch_id == 0:
                steps.append(time.perf_counter())
            return False

        self._generate(prompts, count, stepped)
        return [later - earlier for earlier, later in itertools.pairwise(steps)]

    def prefill(self, prompt: list[int]) -> float:
        begun = time.perf_counter()
        self._generate([prompt], 1)
        return time.perf_counter() - begun

    def answer(self, prompt: list[int], count: int) -> list[int]:
        tokens: list[int] = self._generate([prompt], count)[0].sequences_ids[0]
        return tokens

    def _generate(self, prompts: Prompts, count: int, callback: Any = None) -> list[Any]:
        results: list[Any] = self._generator.generate_batch(
            [[f"<{token}>" for token in prompt] for prompt in prompts],
            max_batch_size=len(prompts),
            min_length=count,
            max_length=count,
            sampling_topk=1,
            beam_size=1,
            include_prompt_in_result=False,
            callback=callback,
            end_token=f"<{tokenizer.EOS}>",
        )
        return results


class LlamaCpp:
    """llama.cpp by llama-cpp-python's plain bindings, one sequence a request, all of them in one batch."""

    name = "llama.cpp"

    def __init__(self, bundle: builder.Built, provider: Provider, threads: int, folder: Path) -> None:
        import llama_cpp

        if provider != "cpu":
            raise ImportError("it is compared on the CPU only")
        path = folder / "model.gguf"
        _write_gguf(bundle.shape, path)
        self._lib: Any = llama_cpp
        self._silence = llama_cpp.llama_log_callback(lambda level, text, data: None)
        llama_cpp.llama_log_set(self._silence, ctypes.c_void_p(0))
        options = llama_cpp.llama_model_default_params()
        options.n_gpu_layers = 0
        self._model = llama_cpp.llama_model_load_from_file(str(path).encode(), options)
        if not self._model:
            raise RuntimeError("llama.cpp does not load the model")
        context = llama_cpp.llama_context_default_params()
        context.n_seq_max = _SEQUENCES
        context.n_ctx = _SEQUENCES * _CONTEXT
        context.n_batch = context.n_ubatch = _SEQUENCES * _CONTEXT // 2
        context.n_threads = context.n_threads_batch = threads
        self._context = llama_cpp.llama_init_from_model(self._model, context)
        if not self._context:
            raise RuntimeError("llama.cpp makes no context")
        self._vocab = bundle.shape.vocab
        # No other id may win, so no other logits need to be looked at.
        self._mask = decoder.logits_mask(bundle.shape)[: tokenizer.SIZE]

    def decode(self, prompts: Prompts, count: int) -> list[float]:
        tokens = self._start(prompts)
        steps = []
        for i in range(1, count):
            begun = time.perf_counter()
            tokens = self._run([[token] for token in tokens], [len(prompt) + i - 1 for prompt in prompts])
            steps.append(time.perf_counter() - begun)
        return steps

    def prefill(self, prompt: list[int]) -> float:
        begun = time.perf_counter()
        self._start([prompt])
        return time.perf_counter() - begun

    def answer(self, prompt: list[int], count: int) -> list[int]:
        tokens = self._start([prompt])
        for i in range(1, count):
            tokens += self._run([tokens[-1:]], [len(prompt) + i - 1])
        return tokens

    def _start(self, prompts: Prompts) -> list[int]:
        self._lib.llama_memory_clear(self._lib.llama_get_memory(self._context), False)
        return self._run(prompts, [0] * len(prompts))

    def _run(self, pieces: Prompts, positions: Sequence[int]) -> list[int]:
        """Append each piece to its sequence, from its position on; the greedy next tokens."""
        size = sum(map(len, pieces))
        batch = self._lib.llama_batch_init(size, 0, 1)
        try:
            at = 0
            for sequence, (piece, position) in enumerate(zip(pieces, positions, strict=True)):
                for i, token in enumerate(piece):
                    batch.token[at], batch.pos[at] = token, position + i
                    batch.n_seq_id[at], batch.seq_id[at][0] = 1, sequence
                    batch.logits[at] = i == len(piece) - 1
                    at += 1
            batch.n_tokens = size
            failed = self._lib.llama_decode(self._context, batch)
            if failed:
                raise RuntimeError(f"llama.cpp failed: {failed}")
        finally:
            self._lib.llama_batch_free(batch)
        logits: NDArray[np.float32] = np.ctypeslib.as_array(
            self._lib.llama_get_logits(self._context), (len(pieces), self._vocab)
        )
        chosen: list[int] = (logits[:, : len(self._mask)] + self._mask).argmax(axis=1).tolist()
        return chosen


def _write_ctranslate2(shape: decoder.Shape, folder: Path) -> None:
    """The preset's weights as a CTranslate2 model folder (ctranslate2.specs, no converter)."""
    from ctranslate2.specs import common_spec, transformer_spec

    weights = decoder.random_weights(shape, builder.SEED)
    spec = transformer_spec.TransformerDecoderModelSpec.from_config(
        shape.layers, shape.heads, pre_norm=True, activation=common_spec.Activation.SWISH, ffn_glu=True,
        rms_norm=True, rotary_dim=0, rotary_interleave=False, rotary_base=shape.rope_theta,
        num_heads_kv=shape.kv_heads, head_dim=shape.head_dim,
    )  # fmt: skip
    root = spec.decoder
    root.embeddings.weight = weights["embedding"]
    root.scale_embeddings = False
    root.layer_norm.gamma = weights["norm"]
    root.projection.weight = weights["embedding"]
    root.projection.bias = decoder.logits_mask(shape)
    for i, layer in enumerate(root.layer):
        gate, up = np.split(weights[f"{i}.gate_up"], 2, axis=1)
        layer.self_attention.layer_norm.gamma = weights[f"{i}.attention_norm"]
        for linear, weight in (
            (layer.self_attention.linear[0], weights[f"{i}.qkv"]),
            (layer.self_attention.linear[1], weights[f"{i}.output"]),
            (layer.ffn.linear_0, gate),
            (layer.ffn.linear_0_noact, up),
            (layer.ffn.linear_1, weights[f"{i}.down"]),
        ):
            linear.weight = np.ascontiguousarray(weight.T)
        layer.ffn.layer_norm.gamma = weights[f"{i}.mlp_norm"]
    spec.config.bos_token, spec.config.eos_token, spec.config.unk_token = (
        f"<{tokenizer.BOS}>",
        f"<{tokenizer.EOS}>",
        "<0>",
    )
    spec.config.layer_norm_epsilon = shape.norm_epsilon
    spec.register_vocabulary([f"<{token}>" for token in range(shape.vocab)])
    spec.validate()
    spec.save(str(folder))


def _write_gguf(shape: decoder.Shape, path: Path) -> None:
    """The preset's weights as a GGUF file without a vocabulary (ggml's docs/gguf.md)."""
    import gguf

    weights = decoder.random_weights(shape, builder.SEED)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(shape.layers)
    writer.add_context_length(shape.max_seq_len)
    writer.add_embedding_length(shape.hidden)
    writer.add_feed_forward_length(shape.inter)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_rope_dimension_count(shape.head_dim)
    writer.add_rope_freq_base(shape.rope_theta)
    writer.add_layer_norm_rms_eps(shape.norm_epsilon)
    writer.add_vocab_size(shape.vocab)
    writer.add_tokenizer_model("no_vocab")
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)

    def tensor(name: str, weight: NDArray[np.float32]) -> None:
        writer.add_tensor(f"{name}.weight", np.ascontiguousarray(weight, np.float32))

    def interleaved(weight: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
        """A head's rows as llama.cpp's rotary embedding wants them: of its two halves one each in turn."""
        return weight.reshape(heads, 2, shape.head_dim // 2, -1).swapaxes(1, 2).reshape(weight.shape)

    tensor("token_embd", weights["embedding"])
    tensor("output_norm", weights["norm"])
    sizes = np.cumsum([shape.heads, shape.kv_heads]) * shape.head_dim
    for i in range(shape.layers):
        q, k, v = np.split(weights[f"{i}.qkv"].T, sizes)
        gate, up = np.split(weights[f"{i}.gate_up"].T, 2)
        for name, weight in (
            ("attn_norm", weights[f"{i}.attention_norm"]),
            ("attn_q", interleaved(q, shape.heads)),
            ("attn_k", interleaved(k, shape.kv_heads)),
            ("attn_v", v),
            ("attn_output", weights[f"{i}.output"].T),
            ("ffn_norm", weights[f"{i}.mlp_norm"]),
            ("ffn_gate", gate),
            ("ffn_up", up),
            ("ffn_down", weights[f"{i}.down"].T),
        ):
            tensor(f"blk.{i}.{name}", weight)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
