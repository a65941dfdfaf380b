"""Models that others exported: what a folder of onnxruntime-genai, optimum-onnx or transformers.js says of its model.

Read are the graph (``model.onnx``, ``decoder_model_merged.onnx``, also under ``onnx/`` and with transformers.js's
suffix for a precision), ``config.json``, ``generation_config.json`` and ``genai_config.json`` for lengths and end
tokens, ``tokenizer.json`` for the text, and ``tokenizer_config.json`` or ``chat_template.jinja`` for chats.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from servers.bundle import Bundle, graph_sha256
from servers.errors import StartError
from servers.json_tokenizer import JsonTokenizer

_STEMS = ("model", "decoder_model_merged")
_SUBFOLDERS = ("", "onnx")
# transformers.js's names of precisions, the preferred first.
_SUFFIXES: dict[str, tuple[str, ...]] = {
    "fp32": ("",),
    "fp16": ("_fp16",),
    "int8": ("_int8", "_quantized", "_uint8"),
    "int4": ("_q4", "_q4f16", "_bnb4"),
}
_PREFERRED = {"cpu": ("fp32", "int8", "int4", "fp16"), "cuda": ("fp16", "fp32", "int4", "int8")}
_INTEGER_OPERATORS = {"MatMulInteger", "MatMulIntegerToFloat", "DynamicQuantizeMatMul", "QLinearMatMul"}


def read(path: Path, dtype: str, provider: str) -> Bundle:
    """The model in a folder, or the one whose graph is the file ``path``.

    Of several precisions the one that ``dtype`` names is taken, or for "auto" the one that suits ``provider`` best.

    Raises:
        StartError: no graph there, none of that precision, no tokenizer, or a file that cannot be read.
    """
    try:
        graph = find_graph(path, dtype, provider)
        folder = graph.folder
        config = _json(folder / "config.json")
        genai = _json(folder / "genai_config.json").get("model", {})
        return Bundle(
            name=graph.name,
            path=graph.path,
            sha256=graph.sha256,
            dtype=graph.dtype,
            max_seq_len=_max_seq_len(config, genai),
            tokenizer=tokenizer(folder),
            head_dim=_head_dim(config, genai),
            operators=graph.operators,
        )
    except OSError as error:
        raise StartError(f"cannot read the model in {path}: {error.filename}: {error.strerror or error}") from error


@dataclass(frozen=True)
class Graph:
    """The graph of an exported model: its file, the folder with everything else, and what its nodes say."""

    path: Path
    folder: Path
    sha256: str
    dtype: str
    operators: frozenset[str]

    @property
    def name(self) -> str:
        """What the model is called: its folder's name."""
        return self.folder.resolve().name


def find_graph(path: Path, dtype: str, provider: str) -> Graph:
    """The graph in a folder, or the file ``path``; see ``read``.

    Raises:
        StartError: none there, none of that precision, or it is no ONNX model.
        OSError: it cannot be read.
    """
    file, folder = _graph(path, dtype, provider)
    operators, precision = _look_into(file)
    if dtype not in ("auto", precision):
        raise StartError(f"--dtype {dtype}: {file} is {precision}; leave --dtype out, or export it in {dtype}")
    return Graph(file, folder, graph_sha256(file), precision, operators)


def longest_input(folder: Path) -> int | None:
    """The most tokens that an encoder takes, as its folder says.

    Raises:
        StartError: a file is not JSON.
    """
    by_sentences = _json(folder / "sentence_bert_config.json").get("max_seq_length")
    return by_sentences if isinstance(by_sentences, int) else _max_seq_len(_json(folder / "config.json"), {})


def pooling(folder: Path) -> str:
    """How the token vectors of an encoder become one, as sentence-transformers writes it: "cls" or "mean".

    Raises:
        StartError: a file is not JSON.
    """
    return "cls" if _json(folder / "1_Pooling" / "config.json").get("pooling_mode_cls_token") is True else "mean"


def tokenizer(folder: Path, *, generates: bool = True) -> JsonTokenizer:
    """The tokenizer of a model's folder, with its end tokens and its chat template.

    Raises:
        StartError: it is not there, cannot be read, or a package that reads it is not installed; or the model
            ``generates`` text, and nothing says which token ends an answer.
        OSError: a file cannot be read.
    """
    config = _json(folder / "tokenizer_config.json")
    ids = [
        document.get("eos_token_id")
        for document in (
            _json(folder / "generation_config.json"),
            _json(folder / "config.json"),
            _json(folder / "genai_config.json").get("model", {}),
        )
    ]
    made = JsonTokenizer(
        folder / "tokenizer.json",
        eos={each for one in ids for each in (one if isinstance(one, list) else [one]) if isinstance(each, int)},
        bos_token=_token(config.get("bos_token")),
        eos_token=_token(config.get("eos_token")),
        template=_template(folder, config.get("chat_template")) if generates else None,
    )
    if generates and not made.eos:
        raise StartError(
            f"nothing in {folder} says which token ends an answer; give eos_token_id in generation_config.json"
        )
    return made


def _graph(path: Path, dtype: str, provider: str) -> tuple[Path, Path]:
    """The graph's file, and the folder with everything else."""
    if path.suffix == ".onnx" and path.is_file():
        return path, path.parent.parent if path.parent.name == "onnx" else path.parent
    there = dict(_candidates(path))
    if not there:
        looked = f"it holds no {' or '.join(f'{stem}.onnx' for stem in _STEMS)}, at its top or under onnx/"
        raise StartError(
            f"no model in {path}: {looked if path.is_dir() else 'there is no such folder or .onnx file'}; give tiny or "
            "demo, a folder that `loadtest model build` or `loadtest model convert-gguf` wrote, or an export of "
            "optimum-onnx, onnxruntime-genai or transformers.js"
        )
    wanted = _PREFERRED[provider] if dtype == "auto" else (dtype,)
    for suffix in (suffix for each in wanted for suffix in _SUFFIXES[each]):
        if suffix in there:
            return there[suffix], path
    if "" in there and len(there) == 1:
        return there[""], path  # its name does not tell its precision: looked into below
    names = ", ".join(str(file.relative_to(path)) for file in there.values())
    raise StartError(f"--dtype {dtype}: no such graph in {path}; there are {names}")


def _candidates(folder: Path) -> Iterator[tuple[str, Path]]:
    """Suffix and file of each graph in a model's folder."""
    for suffix in (suffix for suffixes in _SUFFIXES.values() for suffix in suffixes):
        for file in (folder / sub / f"{stem}{suffix}.onnx" for sub in _SUBFOLDERS for stem in _STEMS):
            if file.is_file():
                yield suffix, file
                break


def _look_into(path: Path) -> tuple[frozenset[str], str]:
    """The operator types in a graph and the branches of its If nodes, and the precision of its weights."""
    import onnx
    from google.protobuf.message import DecodeError

    try:
        graph = onnx.load(path, load_external_data=False).graph
    except DecodeError as error:
        raise StartError(f"{path} is no ONNX model: {error}") from error
    nodes = list(_nodes(graph))
    operators = frozenset(node.op_type for node in nodes)
    bits = {
        attribute.i
        for node in nodes
        if node.op_type == "MatMulNBits"
        for attribute in node.attribute
        if attribute.name == "bits"
    }
    if bits:
        return operators, f"int{min(bits)}"
    if operators & _INTEGER_OPERATORS:
        return operators, "int8"
    half = any(tensor.data_type == onnx.TensorProto.FLOAT16 for tensor in graph.initializer)
    return operators, "fp16" if half else "fp32"


def _nodes(graph: Any) -> Iterator[Any]:
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _nodes(attribute.g)


def _max_seq_len(config: dict[str, Any], genai: dict[str, Any]) -> int | None:
    for document, names in (
        (genai, ("context_length",)),
        (config, ("max_position_embeddings", "n_positions", "max_seq_len", "n_ctx")),
        (config.get("text_config", {}), ("max_position_embeddings",)),
    ):
        for name in names:
            if isinstance(document.get(name), int):
                length: int = document[name]
                return length
    return None


def _head_dim(config: dict[str, Any], genai: dict[str, Any]) -> int | None:
    found = genai.get("decoder", {}).get("head_size") or config.get("head_dim")
    if found is None and {"hidden_size", "num_attention_heads"} <= config.keys():
        found = config["hidden_size"] // config["num_attention_heads"]
    return found if isinstance(found, int) else None


def _template(folder: Path, configured: Any) -> str | None:
    beside = folder / "chat_template.jinja"
    if beside.exists():
        return beside.read_text("utf-8")
    if isinstance(configured, list):  # several by name, such as one for tools
        configured = {each.get("name"): each.get("template") for each in configured}.get("default")
    return configured if isinstance(configured, str) else None


def _token(configured: Any) -> str | None:
    """A special token's text, which is written plainly or as an object."""
    text = configured.get("content") if isinstance(configured, dict) else configured
    return text if isinstance(text, str) else None


def _json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; empty where there is no such file."""
    try:
        document = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise StartError(f"{path} is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise StartError(f"{path} is not a JSON object")
    return document
