"""What comes of comparing two sides of runs: the values that reports show and ``--json`` writes."""

import difflib
import re
from collections.abc import Sequence
from typing import Annotated, Literal, NamedTuple

import msgspec
from msgspec import Meta

from loadtest.errors import UsageError
from loadtest.result import VerdictName

SCHEMA_VERSION = 1
TIMES = ("ttft", "ttfat", "e2e", "tpot")
RATES = ("requests_per_s", "output_tokens_per_s", "total_tokens_per_s", "samples_per_s", "events_per_s")
FAILURES = "error_rate"
DEFAULT = (
    "requests_per_s", "output_tokens_per_s", "p50(ttft)", "p99(ttft)", "p50(tpot)", "p99(tpot)", "p50(e2e)", "p99(e2e)",
    FAILURES,
)  # fmt: skip
_PERCENTILES = {"p50": "p50", "p90": "p90", "p95": "p95", "p99": "p99", "p99.9": "p999"}
Unit = Literal["ms", "per_s", "share"]


def _says(text: str) -> Meta:
    return Meta(description=text)


class Measure(NamedTuple):
    """A figure that can be compared: its name and, if it is one of a time, which time and which percentile."""

    name: str
    time: str | None = None
    percentile: str | None = None

    @property
    def unit(self) -> Unit:
        """The one that it is told in."""
        return "ms" if self.time else "share" if self.name == FAILURES else "per_s"


def measure(text: str) -> Measure:
    """The figure of that name: a rate, error_rate, or a percentile such as p99(ttft).

    Raises:
        UsageError: there is none; with the nearest, and what there is.
    """
    name = "".join(text.split())
    if found := re.fullmatch(r"(p[0-9.]+)\((\w+)\)", name):
        if found[1] in _PERCENTILES and found[2] in TIMES:
            return Measure(name, found[2], _PERCENTILES[found[1]])
    elif name in (*RATES, FAILURES):
        return Measure(name)
    known = [*RATES, FAILURES, *(f"{p}({time})" for time in TIMES for p in _PERCENTILES)]
    near = difflib.get_close_matches(name, known, 1)
    meant = f"; did you mean {near[0]}?" if near else "."
    raise UsageError(
        f"--metric {text}: there is no such figure{meant} There are {', '.join((*RATES, FAILURES))}, and "
        f"{', '.join(_PERCENTILES)} of {', '.join(TIMES)}, as p99(ttft)"
    )


def share(text: str) -> float:
    """A share written as 5% or 0.05: at least 0 and below 1.

    Raises:
        UsageError: it is none.
    """
    found = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*(%?)\s*", text, re.ASCII)
    value = float(found[1]) / (100 if found[2] else 1) if found else 1.0
    if value >= 1:
        raise UsageError(f"--tolerance {text}: expected a share below 100%, such as 5% or 0.05")
    return value


def sides(named: Sequence[str]) -> tuple[list[str], list[str]]:
    """What stands before and after the word vs, which can be left out between two.

    Raises:
        UsageError: there are not two sides, or one is told twice.
    """
    words = [*named]
    if len(words) == 2 and "vs" not in words:
        words.insert(1, "vs")
    if words.count("vs") != 1 or words[0] == "vs" or words[-1] == "vs":
        raise UsageError("name two sides: BASE CANDIDATE or, of several runs each, BASE… vs CANDIDATE…")
    cut = words.index("vs")
    found = words[:cut], words[cut + 1 :]
    for side in found:
        if len({*side}) < len(side):
            raise UsageError(f"the same run twice on one side, {' '.join(side)}: it is no surer for that")
    return found


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One figure of a level on both sides."""

    metric: str
    unit: Annotated[Unit, _says("of base and candidate")]
    base: Annotated[float | None, _says("null: not measured, or among the failures")]
    candidate: Annotated[float | None, _says("the same")]
    change: Annotated[float | None, _says("candidate ÷ base − 1; of a share, candidate − base; null: not known")] = None
    ci95: Annotated[
        tuple[float | None, float | None] | None, _says("of change; an end of null: beyond what was measured")
    ] = None
    detectable: Annotated[
        float | None, _says("the least worsening, as change, that would have been found four times in five; null: none")
    ] = None
    by: Annotated[
        Literal["runs", "requests"] | None, _says("what ci95 rests on: how runs differ, or the requests in them")
    ] = None
    verdict: Annotated[VerdictName | None, _says("FAIL is a regression; null: it is told and not judged")] = None
    reason: str = ""


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """One level on both sides."""

    name: str
    base_runs: Annotated[int, _says("playings of it that have requests in their window")]
    candidate_runs: Annotated[int, _says("the same")]
    changes: list[Change]


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of ``loadtest compare``."""

    schema_version: int = SCHEMA_VERSION
    base: Annotated[list[str], _says("folders of its runs")]
    candidate: Annotated[list[str], _says("the same")]
    tolerance: Annotated[float, _says("share of a figure by which it may get worse")]
    unlike: Annotated[list[str], _says("conditions that differ, so that it was refused unless asked for all the same")]
    notes: Annotated[list[str], _says("what else differs, and what could not be compared")]
    levels: list[Compared]
    outcome: Annotated[VerdictName, _says("FAIL: a regression; PASS: none, for certain")]
    exit_code: int
