"""Distributions of numbers, written as text: ``lognormal(512, 300, max=4000)``.

Everything is drawn through the quantile function: one uniform number gives one value. So two quantities can be
correlated, and the same seed always gives the same values.
"""

import ast
import bisect
import functools
import itertools
import math
from collections.abc import Sequence
from decimal import Decimal
from statistics import NormalDist

import msgspec

FORMS = (
    "a number, uniform(low, high), normal(mean, sd), lognormal(mean, sd), exponential(mean), zipf(exponent, most), "
    "quantiles(p0=…, p50=…, p100=…) or mix(weight*distribution, …)"
)
_ARGUMENTS = {
    "uniform": ("low", "high"),
    "normal": ("mean", "sd"),
    "lognormal": ("mean", "sd"),
    "exponential": ("mean",),
    "zipf": ("exponent", "most"),
}
_NORMAL = NormalDist()
_LEAST_SHARE, _MOST_SHARE = 2.0**-53, 1 - 2.0**-53
_MEAN_POINTS = 4096


class Distribution(msgspec.Struct, frozen=True):
    """One distribution over numbers ≥ 0; ``least`` and ``most`` clip what is drawn.

    ``kind`` and ``numbers``: fixed (value); uniform (low, high); normal and lognormal (mean, standard deviation, both
    of the values themselves); exponential (mean); zipf (exponent, largest rank: rank k has weight k^-exponent);
    quantiles (percent, value, percent, value, …: straight lines between them); mix (the weight of each of ``parts``,
    which stand in the order of their medians).
    """

    kind: str
    numbers: tuple[float, ...]
    parts: tuple["Distribution", ...] = ()
    least: float | None = None
    most: float | None = None

    @classmethod
    def parse(cls, text: str) -> "Distribution":
        """Read one of ``FORMS``.

        Raises:
            ValueError: it is none of them; the message says what is wrong, and leaves out the text.
        """
        try:
            tree = ast.parse(text.strip(), mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            raise ValueError(f"write {FORMS}") from None
        return _read(tree)

    def at(self, share: float) -> float:
        """The value below which ``share`` (0..1) of the values lie; of a mix whose parts overlap only nearly.

        A uniform share gives a value of the distribution, of any kind.
        """
        return self._clipped(self._at(min(max(share, _LEAST_SHARE), _MOST_SHARE)))

    @property
    def mean(self) -> float:
        """Expected value, clipping included: by the quantiles at 4,096 points, which is exact for a fixed one."""
        return _mean(self)

    @property
    def low(self) -> float:
        """The smallest value there can be."""
        return self._clipped(min(part.low for part in self.parts) if self.parts else self._at(_LEAST_SHARE))

    @property
    def high(self) -> float:
        """The largest value there can be; infinite where nothing bounds it."""
        if self.parts:
            return self._clipped(max(part.high for part in self.parts))
        endless = self.kind in ("normal", "lognormal", "exponential")
        return self._clipped(math.inf if endless else self._at(_MOST_SHARE))

    def scaled(self, factor: float) -> "Distribution":
        """That of ``factor`` times each value; of zipf the largest rank is that many times as large instead."""
        numbers = self.numbers
        match self.kind:
            case "zipf":
                numbers = (numbers[0], max(1.0, float(round(numbers[1] * factor))))
            case "quantiles":
                numbers = tuple(number * factor if place % 2 else number for place, number in enumerate(numbers))
            case "mix":
                pass  # the weights
            case _:
                numbers = tuple(number * factor for number in numbers)
        parts = tuple(part.scaled(factor) for part in self.parts)
        bounds = [None if bound is None else bound * factor for bound in (self.least, self.most)]
        return Distribution(self.kind, numbers, parts, *bounds)

    def _clipped(self, value: float) -> float:
        value = max(value, self.least or 0.0)
        return value if self.most is None else min(value, self.most)

    def _at(self, share: float) -> float:
        numbers = self.numbers
        match self.kind:
            case "fixed":
                return numbers[0]
            case "uniform":
                return numbers[0] + (numbers[1] - numbers[0]) * share
            case "normal":
                return numbers[0] + numbers[1] * _NORMAL.inv_cdf(share)
            case "lognormal":
                # Of the logarithm: variance ln(1 + sd²/mean²), mean ln(mean) − variance/2.
                variance = math.log1p((numbers[1] / numbers[0]) ** 2)
                return numbers[0] * math.exp(math.sqrt(variance) * _NORMAL.inv_cdf(share) - variance / 2)
            case "exponential":
                return -numbers[0] * math.log1p(-share)
            case "zipf":
                ends = _zipf_ends(numbers[0], int(numbers[1]))
                return min(bisect.bisect_right(ends, share) + 1, len(ends))
            case "quantiles":
                return _between(numbers[::2], numbers[1::2], share * 100)
        # A mixture: which part, and where within it, both by the same number.
        ends = _ends(numbers)
        index = min(bisect.bisect_right(ends, share), len(self.parts) - 1)
        start = ends[index - 1] if index else 0.0
        return self.parts[index].at((share - start) / (ends[index] - start))

    def __str__(self) -> str:
        match self.kind:
            case "fixed":
                return _written(self.numbers[0])
            case "quantiles":
                pairs = zip(self.numbers[::2], self.numbers[1::2], strict=True)
                inner = [f"p{_decimal(percent).replace('.', '_')}={_written(value)}" for percent, value in pairs]
            case "mix":
                inner = [f"{_written(weight)}*{part}" for weight, part in zip(self.numbers, self.parts, strict=True)]
            case _:
                inner = [*map(_written, self.numbers)]
        bounds = {"min": self.least, "max": self.most}
        inner += [f"{key}={_written(bound)}" for key, bound in bounds.items() if bound is not None]
        return f"{self.kind}({', '.join(inner)})"


def _read(tree: ast.expr) -> Distribution:
    if isinstance(tree, ast.Constant):
        return Distribution("fixed", (_number(tree),))
    if not isinstance(tree, ast.Call) or not isinstance(tree.func, ast.Name):
        raise ValueError(f"write {FORMS}")
    kind = tree.func.id
    words = {word.arg or "**": _number(word.value) for word in tree.keywords}
    least, most = words.pop("min", None), words.pop("max", None)
    if least is not None and most is not None and least > most:
        raise ValueError("its min is above its max")
    numbers: tuple[float, ...]
    parts: tuple[Distribution, ...] = ()
    if kind == "quantiles":
        if tree.args:
            raise ValueError("write its quantiles as p50=…")
        numbers, words = _quantiles(words), {}
    elif kind == "mix":
        numbers, parts = _parts(tree.args)
    elif kind in _ARGUMENTS:
        numbers = tuple(_number(argument) for argument in tree.args)
        if len(numbers) != len(_ARGUMENTS[kind]):
            raise ValueError(f"write {kind}({', '.join(_ARGUMENTS[kind])})")
        _check(kind, numbers)
    else:
        raise ValueError(f"there is no distribution {kind!r}: write {FORMS}")
    if words:
        raise ValueError(f"{kind} takes min= and max=, not {next(iter(words))}=")
    return Distribution(kind, numbers, parts, least, most)


def _number(tree: ast.expr) -> float:
    value = tree.value if isinstance(tree, ast.Constant) else None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{ast.unparse(tree)} is not a number of 0 or more")
    return float(value)


def _quantiles(words: dict[str, float]) -> tuple[float, ...]:
    pairs = []
    for word, value in words.items():
        try:
            percent = float(word.removeprefix("p").replace("_", "."))
        except ValueError:
            percent = -1.0
        if not word.startswith("p") or not 0 <= percent <= 100:
            raise ValueError(f"{word} is no quantile; write p0 to p100, p99_9 for 99.9")
        pairs.append((percent, value))
    pairs.sort()
    percents, values = [percent for percent, _ in pairs], [value for _, value in pairs]
    if percents[:1] != [0] or percents[-1] != 100 or len({*percents}) < len(percents) or values != sorted(values):
        raise ValueError("quantiles begin with p0, end with p100, and never fall")
    return tuple(itertools.chain.from_iterable(pairs))


def _parts(arguments: Sequence[ast.expr]) -> tuple[tuple[float, ...], tuple[Distribution, ...]]:
    found = []
    for argument in arguments:
        if not isinstance(argument, ast.BinOp) or not isinstance(argument.op, ast.Mult):
            raise ValueError("write each part of the mix as weight*distribution")
        found.append((_number(argument.left), _read(argument.right)))
    if not found or min(weight for weight, _ in found) <= 0:
        raise ValueError("a mix has parts, and each a weight above 0")
    found.sort(key=lambda part: part[1].at(0.5))
    weights, parts = zip(*found, strict=True)
    return weights, parts


def _check(kind: str, numbers: Sequence[float]) -> None:
    if kind == "uniform" and numbers[0] > numbers[1]:
        raise ValueError("its range is empty")
    if kind in ("lognormal", "exponential") and numbers[0] <= 0:
        raise ValueError("its mean must be above 0")
    if kind == "zipf" and not (0 < numbers[0] <= 100 and 1 <= numbers[1] <= 1_000_000):
        raise ValueError("zipf takes an exponent above 0 and a largest rank of 1 to 1000000")


def _between(percents: Sequence[float], values: Sequence[float], percent: float) -> float:
    index = min(max(bisect.bisect_right(percents, percent), 1), len(percents) - 1)
    left, right = percents[index - 1], percents[index]
    part = (percent - left) / (right - left)
    return values[index - 1] + (values[index] - values[index - 1]) * part


@functools.lru_cache(64)
def _ends(weights: tuple[float, ...]) -> list[float]:
    return _accumulated(weights)


@functools.lru_cache(8)
def _zipf_ends(exponent: float, most: int) -> list[float]:
    return _accumulated([rank**-exponent for rank in range(1, most + 1)])


def _accumulated(weights: Sequence[float]) -> list[float]:
    """Where the share of each weight ends; the last at 1."""
    total = math.fsum(weights)
    return [end / total for end in itertools.accumulate(weights)]


@functools.lru_cache(64)
def _mean(distribution: Distribution) -> float:
    if distribution.kind == "fixed":
        return distribution.at(0.5)
    return math.fsum(distribution.at((point + 0.5) / _MEAN_POINTS) for point in range(_MEAN_POINTS)) / _MEAN_POINTS


def _written(number: float) -> str:
    return repr(number).removesuffix(".0")


def _decimal(number: float) -> str:
    """Without an exponent, which a name cannot have."""
    return f"{Decimal(_written(number)):f}"
