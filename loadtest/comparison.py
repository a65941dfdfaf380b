"""What comes of comparing two sides of runs: the values that reports show and ``--json`` writes."""

import difflib
import re
from typing import Annotated, Literal, NamedTuple

import msgspec
from msgspec import Meta

from loadtest.result import VerdictName

SCHEMA_VERSION = 1
TIMES = ("ttft", "ttfat", "e2e", "tpot")
RATES = ("requests_per_s", "output_tokens_per_s", "total_tokens_per_s", "events_per_s")
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
        ValueError: there is none; with the nearest, and what there is.
    """
    name = "".join(text.split())
    if found := re.fullmatch(r"(p[0-9.]+)\((\w+)\)", name):
        if found[1] in _PERCENTILES and found[2] in TIMES:
            return Measure(name, found[2], _PERCENTILES[found[1]])
    elif name in (*RATES, FAILURES):
        return Measure(name)
    known = [*RATES, FAILURES, *(f"{p}({time})" for time in TIMES for p in _PERCENTILES)]
    near = difflib.get_close_matches(name, known, 1)
    raise ValueError(
        f"no figure {text!r}{f'; did you mean {near[0]}?' if near else ''} There are {', '.join((*RATES, FAILURES))}, "
        f"and {', '.join(_PERCENTILES)} of {', '.join(TIMES)}, as p99(ttft)"
    )


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
