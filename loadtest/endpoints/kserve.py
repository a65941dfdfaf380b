"""KServe v2, the Open Inference Protocol: tensors in, tensors out, in JSON or as bytes behind it.

Source: https://kserve.github.io/website/docs/concepts/architecture/data-plane/v2-protocol, and for tensors as bytes the
binary tensor data extension as Triton describes it (docs/protocol/extension_binary_data.md of its server).
"""

import functools
import itertools
import json
import math
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from urllib.parse import quote

import msgspec

from loadtest.endpoints.answer import Answer
from loadtest.endpoints.dialect import Dialect, Get, Head, Settings
from loadtest.endpoints.lenient import error_in, words
from loadtest.errors import TargetError, UsageError
from loadtest.target import Known, model_cards
from loadtest.workload.model import Ask, Tensors

if TYPE_CHECKING:
    from loadtest.workload.tensors import Filling

T = TypeVar("T")

_EXTENSION = "binary_tensor_data"
_LENGTH = "Inference-Header-Content-Length"
_DIGITS = 12  # of a size in the header, which has one length for all requests so


class _Parameters(msgspec.Struct, gc=False):
    binary_data_size: int | None = None


class _Output(msgspec.Struct, gc=False):
    name: str
    shape: list[int]
    datatype: str = ""
    parameters: _Parameters | None = None
    data: msgspec.Raw = msgspec.Raw(b"")


class _Reply(msgspec.Struct, gc=False):
    outputs: list[_Output] | None = None
    error: Any = None


class _Described(msgspec.Struct):
    name: str
    shape: list[int] = []


class _Told(msgspec.Struct):
    """What the server says of the model: ``Settings.told``."""

    inputs: Any = []
    outputs: Any = []
    binary: bool = False


class _Form(NamedTuple):
    """Requests of one kind: what fills them, and the JSON around it, cut where a size or the numbers go."""

    fillings: "list[Filling]"
    cuts: list[bytes]
    binary: bool

    @property
    def header_bytes(self) -> int:
        """The length of the JSON in front of the bytes."""
        return sum(map(len, self.cuts)) + _DIGITS * len(self.fillings)


_decode = msgspec.json.Decoder(_Reply).decode
_lenient = json.JSONDecoder(parse_constant=lambda _: None)


class KServe(Dialect):
    """Inference by ``/v2/models/NAME/infer``; a model may be named with its version, ``NAME/versions/2``."""

    path = "/v2/models/{model}/infer"
    content_type = None  # of each request's own head
    generates = False
    batches = True
    reads = False
    counts = False

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._told = msgspec.json.decode(settings.told, type=_Told)
        self._forms = functools.lru_cache(64)(self._form)
        # Names of the outputs, and whether their first dimension counts samples.
        self._outputs = {port.name: port.shape[:1] == [-1] for port in _converted(self._told.outputs, list[_Described])}
        self._fixed_path = settings.path
        self.path = self._path(settings.model)

    def body(self, ask: Ask) -> bytes:
        """See ``Dialect``."""
        form = self._form_of(ask)
        parts = [filling.data(ask) for filling in form.fillings]
        body: list[bytes | memoryview] = [form.cuts[0]]
        for data, cut in zip(parts, form.cuts[1:], strict=True):
            body += [b"%-*d" % (_DIGITS, sum(map(len, data)))] if form.binary else data
            body.append(cut)
        if form.binary:
            body += itertools.chain.from_iterable(parts)
        return b"".join(body)

    def head(self, ask: Ask) -> Head:
        """See ``Dialect``."""
        form = self._form_of(ask)
        path = self.path if ask.model is None else self._path(ask.model)
        if not form.binary:
            return Head(path, (("Content-Type", "application/json"),))
        return Head(path, (("Content-Type", "application/octet-stream"), (_LENGTH, str(form.header_bytes))))

    def check(self, tensors: Tensors, samples: int, *, texts: bool) -> None:
        """See ``Dialect``."""
        from loadtest.workload.tensors import see_texts  # noqa: PLC0415

        see_texts(self._forms(tensors, samples).fillings, asked=texts)

    def fingerprint(self, ask: Ask) -> int:
        """See ``Dialect``."""
        from loadtest.workload.tensors import fingerprint  # noqa: PLC0415

        return fingerprint(self._form_of(ask).fillings, ask)

    def event(self, answer: Answer, data: bytes, stamp: int) -> None:
        """See ``Dialect``; nothing of it is streamed."""
        self.whole(answer, data)

    def whole(self, answer: Answer, body: bytes) -> None:
        """See ``Dialect``. An output must have the numbers of its shape, and every one that the model has be there."""
        reply, tail = _parted(body)
        if reply.error:
            answer.error = error_in(body) or words(body)
            return
        if not reply.outputs:
            raise ValueError(f"the body holds no outputs: {words(body)}")
        left = len(tail)
        for output in reply.outputs:
            size = output.parameters.binary_data_size if output.parameters else None
            left -= size or 0
            _see(output, size, tail[len(tail) - left - (size or 0) : len(tail) - left] if size else b"")
        if left:
            raise ValueError(f"{len(tail)} bytes follow the JSON of the answer, and its outputs are {len(tail) - left}")
        there = {output.name for output in reply.outputs}
        if missing := [name for name in self._outputs if name not in there]:
            raise ValueError(f"the output {missing[0]!r} is missing; there are {', '.join(sorted(there))}")
        firsts = {output.shape[0] for output in reply.outputs if output.shape and self._outputs.get(output.name, True)}
        answer.samples = firsts.pop() if len(firsts) == 1 else None
        answer.ended = True

    @classmethod
    def discover(cls, get: Get, model: str | None) -> Known:
        """See ``Dialect``. What the model takes, and whether the server takes bytes."""
        model = model or _listed(get)
        path = f"/v2/models/{quote(model, safe='/')}"
        reply = get(path)
        if reply.status != 200 or not isinstance(reply.json, dict):
            raise TargetError(f"{path} does not describe a model: {reply.status} {words(reply.text.encode())}")
        server = get("/v2").json
        extensions = server.get("extensions") if isinstance(server, dict) else None
        told = {
            "inputs": reply.json.get("inputs") or [],  # of some servers null
            "outputs": reply.json.get("outputs") or [],
            "binary": isinstance(extensions, list) and _EXTENSION in extensions,
        }
        return Known(model, told=msgspec.json.encode(told).decode())

    def _path(self, model: str) -> str:
        return self._fixed_path or f"/v2/models/{quote(model, safe='/')}/infer"

    def _form_of(self, ask: Ask) -> _Form:
        return self._forms(ask.tensors, ask.samples)

    def _form(self, tensors: Tensors, samples: int) -> _Form:
        # numpy takes its time to load, and few runs need it
        from loadtest.workload.tensors import Port, fillings  # noqa: PLC0415

        binary = self._told.binary if tensors.binary is None else tensors.binary
        ports = _converted(self._told.inputs, list[Port])
        filled = fillings(ports, tensors, samples, self.settings.seed, binary=binary)
        head: dict[str, Any] = {"inputs": [_input(each) for each in filled]}
        if binary and self._outputs:
            head["outputs"] = [{"name": name, "parameters": {"binary_data": True}} for name in self._outputs]
        elif binary:
            head["parameters"] = {"binary_data_output": True}
        return _Form(filled, msgspec.json.encode(head).split(b'"@"'), binary)


def _converted(described: Any, kind: type[T]) -> T:
    """Inputs or outputs as the metadata of a model list them.

    Raises:
        UsageError: they are of another form.
    """
    try:
        return msgspec.convert(described, kind)
    except msgspec.ValidationError as error:
        raise UsageError(f"the server describes the model in words that are not the protocol's: {error}") from None


def _listed(get: Get) -> str:
    """The first model of a server that lists them: the protocol has no way to, and some servers one of their own."""
    reply = get("/v2/models").json
    names = reply.get("models") if isinstance(reply, dict) else None
    named = [name for name in names if isinstance(name, str)] if isinstance(names, list) else []
    named += [str(card["id"]) for card in model_cards(get("/v1/models"))]
    if not named:
        raise TargetError("the server lists no models: name one with --model, or in the URL: /v2/models/NAME")
    return named[0]


def _input(filling: "Filling") -> dict[str, Any]:
    """An input in the JSON of a request; "@" stands where the size of its bytes, or its numbers go."""
    port = {"name": filling.port.name, "datatype": filling.port.datatype, "shape": filling.shape}
    return {**port, "parameters": {"binary_data_size": "@"}} if filling.binary else {**port, "data": ["@"]}


def _parted(body: bytes) -> tuple[_Reply, bytes]:
    """The JSON of an answer, and the bytes behind it.

    Raises:
        ValueError: it is no answer of the protocol.
    """
    try:
        return _decode(body), b""
    except msgspec.ValidationError as error:
        raise ValueError(f"the body is no answer of this protocol ({error}): {words(body)}") from None
    except (msgspec.DecodeError, RecursionError):
        pass
    try:  # bytes follow, or it has NaN, which JSON has not: Python reads both
        found, end = _lenient.raw_decode(body.decode("latin-1"))
        try:
            return _decode(body[:end]), body[end:]
        except msgspec.DecodeError:
            return _decode(json.dumps(found).encode()), body[end:].lstrip()
    except (ValueError, RecursionError):
        raise ValueError(f"the body is no answer of this protocol: {words(body)}") from None


def _see(output: _Output, size: int | None, tail: bytes) -> None:
    """See that an output has as many numbers, or texts, as its shape says."""
    from loadtest.workload.tensors import size_of  # noqa: PLC0415

    wanted = math.prod(output.shape)
    if size is None:
        there: float = _count(bytes(output.data))
    elif output.datatype == "BYTES":
        there = _texts(tail)
    else:
        there = len(tail) / (size_of(output.datatype) or max(1, len(tail)) / max(1, wanted))
    if wanted != there or (size is not None and size != len(tail)):
        raise ValueError(f"the output {output.name!r} is of shape {output.shape} and has {there:g} values")


def _count(data: bytes) -> int:
    """How many values are in a JSON array, nested or not."""
    if b'"' in data:
        return _leaves(msgspec.json.decode(data))
    return data.count(b",") + 1 if data.strip(b"[] \t\r\n") else 0


def _leaves(value: Any) -> int:
    return sum(map(_leaves, value)) if isinstance(value, list) else 1


def _texts(data: bytes) -> float:
    """How many texts, each behind its length; the part of one that is cut off counts as half."""
    count, at = 0, 0
    while at < len(data):
        at += 4 + int.from_bytes(data[at : at + 4], "little")
        count += 1
    return count if at == len(data) else count - 0.5
