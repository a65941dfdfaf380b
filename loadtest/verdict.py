"""What the verdicts on levels make of a run, and what no run could give a verdict on. Pure."""

from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from loadtest.alert import parse as parse_alert
from loadtest.endpoints.catalog import dialect
from loadtest.endpoints.pattern import Pattern
from loadtest.errors import UsageError
from loadtest.level import Level
from loadtest.result import Audit, LevelResult, SloResult, Verdict, VerdictName
from loadtest.scenario.model import Scenario
from loadtest.slo import STREAMED, Slo, limits_of, parse

EXIT_CODES: dict[VerdictName | None, int] = {None: 0, "PASS": 0, "INVALID": 97, "INCONCLUSIVE": 98, "FAIL": 99}
# docs/metrics.md, "Several apply".
WORST_FIRST: tuple[VerdictName, ...] = ("INVALID", "FAIL", "INCONCLUSIVE", "PASS")

OnInconclusive = Literal["report", "fail", "extend"]
_UNSAID = Pattern()


def objectives(asked: Scenario, levels: Sequence[Level]) -> list[Slo]:
    """What the levels have to keep to.

    Raises:
        UsageError: no run of them could tell whether they do, or what is to be remarked of them.
    """
    slos = [parse(text) for text in asked.slo]
    found = refusals(slos, levels, asked.endpoint, asked.pattern, stream=asked.stream)
    for each in map(parse_alert, asked.warn):
        if not any(each.is_of(level.name) for level in levels):
            found.append(f"warn {each.text}: no level has that name; they are {some(level.name for level in levels)}")
    if found:
        raise UsageError("\n  ".join(found))
    return slos


def refusals(
    slos: Sequence[Slo], levels: Sequence[Level], endpoint: str, pattern: Pattern = _UNSAID, *, stream: bool
) -> list[str]:
    """Why some of ``slos`` could not be judged in these levels, whatever comes of them; each with the mend."""
    generates = dialect(endpoint, pattern).generates
    return [
        f"slo {slo.text}: {why}" for slo in slos for why in _refusals(slo, slos, levels, endpoint, stream, generates)
    ]


def _refusals(
    slo: Slo, slos: Sequence[Slo], levels: Sequence[Level], endpoint: str, stream: bool, generates: bool
) -> Iterable[str]:
    limits = slo.limits or limits_of(slos)
    if slo.metric == "goodput" and not limits:
        yield "goodput needs limits: write goodput(ttft < 300ms, tpot < 40ms)"
    for metric in dict.fromkeys([slo.metric, *(limit.metric for limit in slo.limits)]):
        if metric in STREAMED and not generates:
            yield f"{metric}: {endpoint} writes no tokens; take e2e"
        elif metric in STREAMED and not stream:
            yield f"{metric}: answers that are not streamed have none; stream them, or take e2e"
        elif metric == "samples_per_s" and generates:
            yield f"{metric}: {endpoint} answers with tokens and not with samples; take requests_per_s"
    meant = [level for level in levels if slo.scope.is_of(level.name)]
    if not meant:
        yield f"no level has that name; they are {some(level.name for level in levels)}"
    elif slo.scope.workload is not None:
        names = [workload.name for level in meant for workload in level.workloads]
        if slo.scope.workload not in names:
            yield f"no workload has that name; they are {some(names)}"
    if meant and slo.scope.model is not None:
        asked = {level.model for level in meant} | {m.name for lv in meant for w in lv.workloads for m in w.models}
        if slo.scope.model not in asked:
            yield f"no level asks that model by name; they ask {some(filter(None, asked)) or 'the one that is listed'}"
    if meant and slo.scope.turn is not None:
        if not any(level.of_sessions or level.load.kind == "trace" for level in meant):
            yield "there are no turns: the scenario has no conversation"
        elif (most := _most_turns(meant)) is not None and slo.scope.turn > most:
            yield f"no conversation has more than {most} turns"


def _most_turns(levels: Iterable[Level]) -> int | None:
    """The most that a conversation may have; None where data or a trace say it."""
    turns = [w.conversation.turns for level in levels for w in level.workloads if w.conversation is not None]
    return max((each.high for each in turns if each), default=None) if all(turns) else None


def some(names: Iterable[str]) -> str:
    """The first five of them."""
    first, *others = [*dict.fromkeys(names)] or [""]
    return ", ".join([first, *others[:4]]) + (f" and {len(others) - 4} more" if len(others) > 4 else "")


def unjudged(figures: LevelResult, slos: Iterable[Slo]) -> LevelResult:
    """The figures of a level that was not reached, which keeps no SLO."""
    found = [
        SloResult(
            expression=slo.text, unit=slo.unit, value=None, ci=None, n=0, verdict="INCONCLUSIVE",
            reason="the level was not played",
        )
        for slo in slos
        if slo.scope.is_of(figures.name)
    ]  # fmt: skip
    return msgspec.structs.replace(figures, slo=found)


def overall(
    levels: Sequence[LevelResult],
    *,
    complete: bool = True,
    strict: bool = False,
    inconclusive: OnInconclusive = "report",
    audits: Iterable[Audit] = (),
) -> Verdict:
    """The worst verdict over all levels, with the reasons of those that are so bad; None where nothing was asked.

    ``audits`` that came to something else than a PASS count as much; one that did is no answer to an SLO. What is not
    ``complete`` is no PASS. ``strict``: a level of which the client was the limit makes it INVALID even if no SLO rests
    on it. ``inconclusive`` of fail: what is not decided is a FAIL.
    """
    found = [(slo.verdict, f"{level.name}: {slo.expression}: {slo.reason}") for level in levels for slo in level.slo]
    if found and not complete:
        found.append(("INCONCLUSIVE", "the run did not finish"))
    found += unpassed(audits)
    if strict:
        found += [("INVALID", f"{lv.name}: {why}") for lv in levels if not lv.slo for why in lv.client.reasons]
    outcome = next((name for name in WORST_FIRST if any(verdict == name for verdict, _ in found)), None)
    reasons = [why for verdict, why in found if verdict == outcome] if outcome != "PASS" else []
    if outcome == "INCONCLUSIVE" and inconclusive == "fail":
        outcome, reasons = "FAIL", [f"{why} (--on-inconclusive fail)" for why in reasons]
    return Verdict(outcome=outcome, reasons=reasons)


def unpassed(audits: Iterable[Audit]) -> list[tuple[VerdictName, str]]:
    """What audits came to, where that is no PASS, and why."""
    return [(each.outcome, f"audit {each.kind}: {each.words}") for each in audits if each.outcome != "PASS"]


def exit_code(verdict: Verdict) -> int:
    """docs/metrics.md, "Verdict"."""
    return EXIT_CODES[verdict.outcome]
