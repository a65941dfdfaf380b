"""The tensors of a request: drawn, one number, rows of a file, or texts; as bytes or as JSON, and made fast.

Types and their layout are those of the Open Inference Protocol (KServe v2) and its binary tensor data extension.
"""

import abc
import functools
import hashlib
import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from loadtest.errors import UsageError
from loadtest.workload.model import Ask, Datatype, Input, Order, Tensors
from loadtest.workload.rows import row_of

Array = NDArray[Any]
Part = bytes | memoryview

TEXT: Datatype = "BYTES"
_KINDS: dict[Datatype, str] = {
    "BOOL": "?", "UINT8": "u1", "UINT16": "<u2", "UINT32": "<u4", "UINT64": "<u8", "INT8": "i1", "INT16": "<i2",
    "INT32": "<i4", "INT64": "<i8", "FP16": "<f2", "FP32": "<f4", "FP64": "<f8",
    "BF16": "<u2",  # which numpy does not know: the upper half of an FP32
}  # fmt: skip
_FLOATS: tuple[Datatype, ...] = ("FP16", "BF16", "FP32", "FP64")
_FRESH = 64  # so many numbers of a sample are its own, and no two samples begin alike
_KEPT_BYTES = 64 << 20  # of the rows of a file that have been coded


class Port(msgspec.Struct, frozen=True):
    """An input or output as the server describes it; a dimension of -1 is open."""

    name: str
    datatype: Datatype
    shape: tuple[int, ...]

    @property
    def batched(self) -> bool:
        """Whether the first dimension counts samples."""
        return self.shape[:1] == (-1,)

    @property
    def sample(self) -> tuple[int, ...]:
        """The shape of one sample."""
        return self.shape[1:] if self.batched else self.shape


def size_of(datatype: str) -> int | None:
    """Bytes of one number, or None where that is not fixed or not known."""
    kind = _KINDS.get(datatype)  # type: ignore[call-overload]
    return None if kind is None else np.dtype(kind).itemsize


class Filling(abc.ABC):
    """What fills one input, request by request."""

    def __init__(self, port: Port, samples: int, *, binary: bool) -> None:
        self.port = port
        self.shape = (samples, *port.sample) if port.batched else port.shape
        self.binary = binary

    @abc.abstractmethod
    def data(self, ask: Ask) -> list[Part]:
        """The tensor of a request in parts: its bytes, or what is between the brackets of a flat JSON array."""

    @abc.abstractmethod
    def mark(self, ask: Ask) -> bytes:
        """What tells it from others; alike where the tensors are."""

    def listed(self, parts: Sequence[Part]) -> list[Part]:
        """Parts as they follow each other."""
        if self.binary:
            return [*parts]
        return [piece for part in parts for piece in (b",", part)][1:]

    def numbers(self, values: Array) -> bytes:
        """Numbers as they follow each other."""
        return values.tobytes() if self.binary else b",".join(_written(values))

    def texts(self, texts: Iterable[bytes]) -> bytes:
        """Texts as they follow each other."""
        if self.binary:
            return b"".join(len(text).to_bytes(4, "little") + text for text in texts)
        return b",".join(msgspec.json.encode(text.decode("utf-8", "replace")) for text in texts)


class Drawn(Filling):
    """Random numbers, evenly between two ends.

    Of a large tensor most are drawn once: each sample is ``_FRESH`` numbers of its own and then these, begun at a
    random place among them. So no two are alike, and one costs little more than to copy it.
    """

    def __init__(self, port: Port, given: Input, samples: int, place: int, *, binary: bool) -> None:
        super().__init__(port, samples, binary=binary)
        self._place = place
        self._low, self._high = _ends(port, given)
        count = math.prod(port.sample)
        self._fresh = min(count, _FRESH)
        self._many = samples if port.batched else 1
        rest = self._drawn(np.random.Generator(np.random.PCG64(place)), count - self._fresh)
        self._stops: Sequence[int]  # of each number in the rest
        if binary:
            self._rest = memoryview(rest.tobytes())
            self._stops = range(rest.itemsize, len(self._rest) + 1, rest.itemsize)
        else:
            each = _written(rest)
            self._rest = memoryview(b",".join(each))
            self._stops = [*itertools.accumulate((len(number) + 1 for number in each), initial=-1)][1:]

    def data(self, ask: Ask) -> list[Part]:
        """See ``Filling``."""
        rng = np.random.Generator(np.random.PCG64([ask.seed, self._place]))
        fresh, stops, rest, gap = self._fresh, self._stops, self._rest, 0 if self.binary else 1
        own = self._drawn(rng, fresh * self._many)
        if not stops:
            return [self.numbers(own)]
        parts: list[Part] = []
        for sample, last in enumerate(rng.integers(0, len(stops), self._many).tolist()):
            parts.append(self.numbers(own[sample * fresh : (sample + 1) * fresh]))
            if last < len(stops) - 1:
                parts.append(rest[stops[last] + gap :])
            parts.append(rest[: stops[last]])
        return self.listed(parts)

    def mark(self, ask: Ask) -> bytes:
        """See ``Filling``."""
        # Few numbers, as of a flag, may well come twice.
        return b"".join(self.data(ask)) if not self._stops else ask.seed.to_bytes(8, "little")

    def _drawn(self, rng: np.random.Generator, count: int) -> Array:
        kind, low, high = self.port.datatype, self._low, self._high
        if kind in _FLOATS:
            values = rng.random(count) * (high - low) + low
            if kind == "BF16":
                return _halved(values)
            return values.astype(_KINDS[kind])
        wide = np.uint64 if kind == "UINT64" else np.int64
        return rng.integers(int(low), int(high), count, dtype=wide, endpoint=True).astype(_KINDS[kind])


class Same(Filling):
    """One number throughout, the same in every request."""

    def __init__(self, port: Port, value: float, samples: int, *, binary: bool) -> None:
        super().__init__(port, samples, binary=binary)
        kind = port.datatype
        if kind == TEXT:
            raise UsageError(f"workload.inputs: {port.name} is text, and {value:g} a number: give a .npy file of texts")
        _fits(port, value, value)
        one = _halved(np.array([value])) if kind == "BF16" else np.array([value]).astype(_KINDS[kind])
        self._data = b"".join(self.listed([self.numbers(one)] * math.prod(self.shape)))

    def data(self, ask: Ask) -> list[Part]:
        """See ``Filling``."""
        return [self._data]

    def mark(self, ask: Ask) -> bytes:
        """See ``Filling``."""
        return b""


class Rows(Filling):
    """Samples out of a file of arrays, one a row."""

    def __init__(self, port: Port, path: str, samples: int, order: Order, seed: int, *, binary: bool) -> None:
        super().__init__(port, samples, binary=binary)
        self._array = _read(path, port)
        if not binary and self._array.dtype.kind == "f" and not np.isfinite(self._array).all():
            raise UsageError(f"{path}: holds NaN or infinity, which JSON has not: set binary: true, or leave them out")
        self._order: Order = order
        self._seed = seed
        self._many = samples if port.batched else 1
        size = max(1, self._array[:1].nbytes)
        self._coded = functools.lru_cache(max(1, _KEPT_BYTES // size))(self._row)

    def data(self, ask: Ask) -> list[Part]:
        """See ``Filling``."""
        return self.listed([self._coded(row) for row in self._chosen(ask)])

    def mark(self, ask: Ask) -> bytes:
        """See ``Filling``."""
        return b",".join(b"%d" % row for row in self._chosen(ask))

    def _chosen(self, ask: Ask) -> list[int]:
        first, count = ask.number * self._many, len(self._array)
        return [row_of(count, self._order, self._seed, 0, first + place) for place in range(self._many)]

    def _row(self, number: int) -> bytes:
        values = self._array[number]
        if self.port.datatype == TEXT:
            return self.texts(map(_bytes, values.ravel()))
        return self.numbers(values)


class Texts(Filling):
    """The texts of the request, one for each sample."""

    def __init__(self, port: Port, samples: int, *, binary: bool) -> None:
        super().__init__(port, samples, binary=binary)
        if math.prod(port.sample) != 1:
            raise UsageError(
                f"workload.inputs: {port.name} takes {math.prod(port.sample)} texts a sample ({list(port.shape)}); "
                "give them as values: a .npy file"
            )

    def data(self, ask: Ask) -> list[Part]:
        """See ``Filling``."""
        return [self.texts(message.content.encode() for message in ask.messages)]

    def mark(self, ask: Ask) -> bytes:
        """See ``Filling``."""
        return "\0".join(message.content for message in ask.messages).encode()


def fillings(ports: Sequence[Port], tensors: Tensors, samples: int, seed: int, *, binary: bool) -> list[Filling]:
    """What fills the inputs of a model, in its order; ``ports`` are the server's word, none where it says nothing.

    Raises:
        UsageError: they do not go together, or more has to be said.
    """
    named = {given.name: given for given in tensors.inputs}
    if len(named) < len(tensors.inputs):
        raise UsageError("workload.inputs: two of them have one name; keep one")
    known = {port.name: port for port in ports}
    if ports and (unknown := [name for name in named if name not in known]):
        raise UsageError(f"workload.inputs: the model has no input {unknown[0]!r}; there are {', '.join(known)}")
    if not ports and not named:
        raise UsageError("the server does not say what the model takes: give it under workload.inputs")
    found = []
    for place, name in enumerate(known or named):
        given = named.get(name, Input(name))
        port = _port(known.get(name), given, samples)
        found.append(_filling(port, given, samples, seed, place, binary=binary))
    return found


def see_texts(fillings: Sequence[Filling], *, asked: bool) -> None:
    """See that a length of text is ``asked`` for if texts are made, and only then.

    Raises:
        UsageError: it is not so.
    """
    made = next((each.port.name for each in fillings if isinstance(each, Texts)), None)
    if made is not None and not asked:
        raise UsageError(f"the input {made} is text: say how long, with --input-tokens 128 or so")
    if made is None and asked:
        raise UsageError("workload.input_tokens: none of the model's inputs is a text that is made; leave it out")


def fingerprint(fillings: Sequence[Filling], ask: Ask) -> int:
    """48 bits that tell one request's tensors from another's."""
    whole = b"\0".join(each.mark(ask) for each in fillings)
    return int.from_bytes(hashlib.blake2b(whole, digest_size=6).digest())


def _port(told: Port | None, given: Input, samples: int) -> Port:
    """An input with no dimension left open but the batch's."""
    name, datatype, shape = given.name, given.dtype, given.shape
    if told is not None:
        datatype = told.datatype if datatype is None else datatype
        shape = told.shape if shape is None else shape
    if datatype is None or shape is None:
        raise UsageError(f"workload.inputs: the server does not describe {name!r}: give its dtype and its shape")
    if told is not None and datatype != told.datatype:
        raise UsageError(f"workload.inputs: {name} is of dtype {told.datatype} as the server says, not {datatype}")
    if told is not None and not _alike(told.shape, shape):
        raise UsageError(
            f"workload.inputs: {name} is of shape {list(told.shape)} as the server says, not {list(shape)}"
        )
    if -1 in shape[1:]:
        mend = ", ".join(map(str, (shape[0], *(16 if size == -1 else size for size in shape[1:]))))
        raise UsageError(
            f"workload.inputs: {name} is of shape {list(shape)}: say how large, as in {{name: {name}, shape: [{mend}]}}"
        )
    if samples > 1 and shape[:1] != (-1,):
        raise UsageError(
            f"workload.batch_size: {name} is of shape {list(shape)}, without a first dimension that is open (-1): it "
            "takes one sample a request"
        )
    return Port(name, datatype, shape)


def _alike(told: Sequence[int], given: Sequence[int]) -> bool:
    return len(told) == len(given) and all(size in (-1, own) for size, own in zip(told, given, strict=True))


def _filling(port: Port, given: Input, samples: int, seed: int, place: int, *, binary: bool) -> Filling:
    if isinstance(given.values, str):
        return Rows(port, given.values, samples, given.order, seed, binary=binary)
    if port.datatype == "BF16" and not binary:
        raise UsageError(f"workload.inputs: {port.name} is BF16, which JSON cannot say: set binary: true")
    if given.values is not None:
        return Same(port, given.values, samples, binary=binary)
    if port.datatype == TEXT:
        return Texts(port, samples, binary=binary)
    return Drawn(port, given, samples, place, binary=binary)


def _ends(port: Port, given: Input) -> tuple[float, float]:
    """Least and most of what is drawn."""
    if given.low is not None and given.high is not None:
        _fits(port, given.low, given.high)
        return given.low, given.high
    if port.datatype in _FLOATS:
        return 0.0, 1.0
    return 0.0, {"UINT8": 255.0, "BOOL": 1.0}.get(port.datatype, 99.0)


def _fits(port: Port, low: float, high: float) -> None:
    """See that the type has such numbers."""
    kind, whole = np.dtype(_KINDS[port.datatype]), port.datatype not in _FLOATS
    least: float = 0
    most: float = 1
    if not whole:
        limits = np.finfo("<f4" if port.datatype == "BF16" else kind)
        least, most = float(limits.min), float(limits.max)
    elif kind.kind != "b":
        least, most = int(np.iinfo(kind).min), int(np.iinfo(kind).max)
    if not least <= low <= high <= most or (whole and (low % 1 or high % 1)):
        what = f"{low:g}" if low == high else f"[{low:g}, {high:g}]"
        of = "whole numbers" if whole else "numbers"
        raise UsageError(
            f"workload.inputs: {port.name} is {port.datatype}, {of} from {least:g} to {most:g}, not {what}"
        )


def _written(values: Array) -> list[bytes]:
    """Each number in JSON, as short as tells it from others of its type."""
    if values.dtype.kind == "f":
        found: list[bytes] = values.ravel().astype("S32").tolist()
        return found
    return msgspec.json.encode(values.ravel().tolist())[1:-1].split(b",") if values.size else []


def _halved(values: Array) -> Array:
    """As BF16: the upper half of an FP32."""
    return (values.astype("<f4").view("<u4") >> 16).astype("<u2")


def _read(path: str, port: Port) -> Array:
    """The array of a file, (rows, *sample), as it is sent.

    Raises:
        UsageError: the file cannot be read, has no such array, or that is of another type or shape.
    """
    try:
        found: Any = np.load(path, mmap_mode="r", allow_pickle=False)
        if not isinstance(found, np.ndarray):
            with found as arrays:
                if port.name not in arrays.files:
                    raise UsageError(
                        f"{path}: holds no array {port.name!r}, as the input is called; it has "
                        f"{', '.join(arrays.files)}"
                    )
                found = arrays[port.name]
    except (OSError, ValueError, EOFError) as error:
        words = str(error).partition("\n")[0] or "it ends too soon"
        raise UsageError(f"{path}: is no file of arrays that can be read ({words}); write it with numpy.save") from None
    kind, wanted = found.dtype.kind, _KINDS.get(port.datatype)
    if port.datatype == "BF16":
        raise UsageError(f"{path}: {port.name} is BF16, which numpy has no files of; leave values out to have it drawn")
    if (wanted is None and kind not in "SU") or (wanted is not None and found.dtype != np.dtype(wanted)):
        mend = "texts" if wanted is None else f"numpy.{np.dtype(wanted).name}"
        raise UsageError(f"{path}: holds {found.dtype.name}, and {port.name} is {port.datatype}: save it as {mend}")
    if found.shape[1:] != port.sample or not len(found):
        raise UsageError(
            f"{path}: is of shape {list(found.shape)}; each row is to be a sample of {port.name}: [rows, "
            f"{', '.join(map(str, port.sample))}]".replace(", ]", "]")
        )
    rows: Array = found
    return rows


def _bytes(text: Any) -> bytes:
    return text.encode() if isinstance(text, str) else bytes(text)
