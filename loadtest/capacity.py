"""The search for capacity as it is played: scenario -> sitting -> the trials that it asks for -> bracket -> result."""

import logging
import math
import time
from collections.abc import Mapping, Sequence

import msgspec

from loadtest import plan, slo
from loadtest.approach import detected
from loadtest.caveats import caveats
from loadtest.engine.crew import Interrupts, asked_to_stop
from loadtest.errors import (
    EXIT_INTERRUPTED,
    Aborted,
    LoadtestError,
    TargetError,
    worst_exit_code,
)
from loadtest.host import usable_cores
from loadtest.level import Level
from loadtest.options import Options
from loadtest.progress import Progress
from loadtest.question import Question, as_then, scenario_of, search_in, space_of
from loadtest.result import (
    Audit,
    Capacity,
    LevelResult,
    RawPeak,
    Result,
    Trial,
    Verdict,
    VerdictName,
    write,
)
from loadtest.resume import mark
from loadtest.run import Outcome
from loadtest.scenario.model import Scenario
from loadtest.schedule import Load
from loadtest.search import MOST_LEVELS, Next, Space, following, found
from loadtest.sitting import Playing, Sitting, sit
from loadtest.slo import Slo
from loadtest.statement import Axis, statement
from loadtest.verdict import WORST_FIRST, exit_code, unpassed

# The chance that a trial passes at a load just beyond the capacity, at each of its two looks. It is the three of them
# that have to pass: bench/verdicts.py says how often a search then ends above the true capacity.
CHANCE = 0.35
# A trial is to have so many times the requests that independent ones would need to prove the SLO.
AMPLE = 5

log = logging.getLogger(__name__)


class _Search(msgspec.Struct, kw_only=True):
    """One search while it goes on: of one setting, by one tier."""

    setting: str
    tier: str
    slos: list[Slo]
    trials: list[Trial] = []
    ended: str = "goes on"


def capacity(options: Options, question: Question, progress: Progress) -> Outcome:
    """Search to the end, to the budget, an interruption, or an error; in each case the result so far is on disk.

    With ``options.resume`` the search in ``options.output`` goes on as it was asked then; of ``question`` only the
    budget counts.

    Raises:
        LoadtestError: it could not begin.
    """
    before = None
    if options.resume:
        before = search_in(options)
        options, question = as_then(options, question, before)
    options = detected(options, progress)
    axis, resolved = scenario_of(options, question)
    asked, space = resolved.scenario, space_of(axis, question)
    workers = options.workers
    if workers is None and options.cluster is None and space.searched.most is None:
        workers = max(1, usable_cores() - 1)
    options = msgspec.structs.replace(
        options, on_inconclusive="extend", alpha=2 * CHANCE, workers=workers, most=(axis, space.searched.most)
    )
    began = time.monotonic()
    with asked_to_stop() as interrupts, sit(options, resolved, interrupts, progress) as sitting:
        play = _Play(sitting, asked, axis, space, question, interrupts)
        if before is not None:
            play.go_on(before)
        write(play.so_far(), sitting.folder)
        error: LoadtestError | None = None
        try:
            if before is None:
                sitting.audit()
            for number, setting in enumerate(sitting.levels):
                left_s = question.budget_s - (time.monotonic() - began)
                play.search(setting, time.monotonic() + left_s / (len(sitting.levels) - number))
                if interrupts.count:
                    break
        except LoadtestError as stop:
            error = stop
        except KeyboardInterrupt:
            log.info("interrupted between two trials")
        progress.close()
        result = play.ended(error)
        write(result, sitting.folder)
    return Outcome(result, sitting.folder, error, interrupts.count > 1)


class _Play:
    """Plays the trials of all searches into one result."""

    def __init__(
        self, sitting: Sitting, asked: Scenario, axis: Axis, space: Space, question: Question, interrupts: Interrupts
    ) -> None:
        self._sitting = sitting
        self._asked = asked
        self._axis = axis
        self._space = space
        self._question = question
        self._interrupts = interrupts
        self._levels: list[LevelResult] = []
        self._searches = {
            (setting.index, tier): _Search(setting=_setting(setting, sitting.levels), tier=tier, slos=slos)
            for setting in sitting.levels
            for tier, slos in _tiers(question, sitting.slos).items()
        }

    def go_on(self, before: Result) -> None:
        """Take over the trials that ended; one that was cut short is played again."""
        earlier = {(each.setting, each.tier): each for each in before.searches}
        for search in self._searches.values():
            if each := earlier.get((search.setting, search.tier)):
                search.trials = [*each.trials]
        count = max(
            (index + 1 for each in earlier.values() for trial in each.trials for index in trial.levels), default=0
        )
        self._levels = before.levels[:count]
        self._sitting.go_on(range(count))
        mark(self._sitting, before, self._levels, before.audits)

    def search(self, setting: Level, until: float) -> None:
        """Search at one setting, by all tiers, until all have their brackets or it is ``until`` (monotonic seconds).

        Raises:
            LoadtestError: no further trial can be played.
            KeyboardInterrupt: the user asked to stop between two trials.
        """
        own = [search for (index, _), search in self._searches.items() if index == setting.index]
        while not self._interrupts.count:
            ahead = [(search, following(search.trials, self._space, self._sitting.begun.seed)) for search in own]
            for search, after in ahead:
                if after is None:
                    search.ended = _ended(search.trials)
            wanted = next((after for _, after in ahead if after is not None), None)
            if wanted is None:
                return
            level = self._trial(setting, wanted, own)
            if time.monotonic() + _lasts_s(level) > until:
                for search, after in ahead:
                    if after is not None:
                        search.ended = "ended with its time (--budget); loadtest resume goes on with it"
                return
            self._play(level, wanted, own)

    def _play(self, level: Level, wanted: Next, own: Sequence[_Search]) -> None:
        sitting, first = self._sitting, len(self._levels)
        playing = sitting.play(level, None, self._keep)
        figures, playings = playing.figures, [playing]
        self._levels.append(figures)
        whole = not wanted.look or figures.counts.in_window >= self._needed()
        sitting.check()
        if (
            any(_open(search, figures) for search in own)
            and whole
            and playing.error is None
            and not self._interrupts.count
        ):
            figures, more = sitting.extend(level, playing, first + 1, self._keep)
            playings.append(more)
            self._levels[first:] = [figures, more.figures]
            sitting.check()
        error = next((each.error for each in playings if each.error is not None), None)
        if not self._interrupts.count and (error is None or isinstance(error, Aborted)):
            levels = [*range(first, len(self._levels))]
            for search in own:
                search.trials.append(_judged(search, wanted, figures, levels, playings, whole=whole))
        write(self.so_far(), sitting.folder)
        if error is not None and not isinstance(error, Aborted):
            raise error

    def _keep(self, now: LevelResult) -> None:
        """Write down the figures so far of a level that goes on."""
        result = self.so_far()
        write(msgspec.structs.replace(result, levels=[*result.levels, now]), self._sitting.folder)

    def _trial(self, setting: Level, wanted: Next, own: Sequence[_Search]) -> Level:
        rate = wanted.load
        made = Load("closed", concurrency=round(wanted.load))
        if self._axis == "rate":
            gamma = self._asked.burstiness if self._asked.arrival == "gamma" else None
            made = Load(self._asked.arrival, rate_per_s=wanted.load, burstiness=gamma)
        else:
            lower = [trial for search in own for trial in search.trials if trial.load <= wanted.load]
            nearest = max(lower, key=lambda trial: trial.load, default=None)
            rate = (nearest and self._levels[nearest.levels[0]].rates.completed_per_s) or math.inf
        at_least_s = 0.0 if wanted.look else math.ceil(self._needed() / rate)
        warmup_s = plan.trial(self._asked, setting, 0, made, at_least_s, 1).warmup_s
        number = 1 + sum(trial.load == wanted.load for trial in own[0].trials)
        return plan.trial(self._asked, setting, len(self._levels), made, at_least_s + warmup_s, number)

    def _needed(self) -> int:
        from loadtest.evidence import sample_floor

        quantiles = [_quantile(each) for each in self._sitting.slos]
        return AMPLE * max(sample_floor(p, CHANCE) for p in [0.5, *quantiles])

    def so_far(self) -> Result:
        """The result with what is known of each search."""
        begun = self._sitting.begun
        each = [self._capacity(search) for search in self._searches.values()]
        ends = {index for one in each for trial in one.trials if trial.load in one.bracket for index in trial.levels}
        rests_on = [self._levels[index] for index in sorted(ends)]
        said = [
            text for level in rests_on for text in caveats(level, begun.conditions.prompts_sized, self._sitting.alerts)
        ]
        first = [one for one in each if one.tier == each[0].tier]
        best = max(first, key=lambda one: -math.inf if one.bracket[0] is None else one.bracket[0])
        return msgspec.structs.replace(
            begun,
            warnings=[*begun.warnings, *dict.fromkeys(said)],
            levels=self._levels,
            capacity=best,
            capacities=each if len(each) > 1 else [],
            verdict=_verdict(each, begun.audits, complete=False),
        )

    def ended(self, error: LoadtestError | None) -> Result:
        """The whole result."""
        stopped = "was interrupted" if self._interrupts.count else "ended early"
        for search in self._searches.values():
            if search.ended == "goes on":
                search.ended = stopped
        result = self.so_far()
        complete = error is None and not self._interrupts.count
        verdict = _verdict(result.searches, result.audits, complete=complete)
        codes = [exit_code(verdict)]
        tried = [level for level in self._levels if level.counts.scheduled > level.counts.never_sent]
        if tried and not any(level.counts.ok for level in tried):  # a window may be without any arrival
            codes.append(TargetError.exit_code)
        codes += [error.exit_code] if error else []
        codes += [EXIT_INTERRUPTED] if self._interrupts.count else []
        return msgspec.structs.replace(
            result,
            complete=complete,
            verdict=verdict,
            exit_code=worst_exit_code(codes),
            warnings=[*result.warnings, *([self._sitting.redact(str(error))] if error else [])],
        )

    def _capacity(self, search: _Search) -> Capacity:
        bracket = found(search.trials, self._space)
        asked = self._question.usable
        value = None
        if bracket.passed is not None:
            value = float(f"{bracket.passed * (1 - asked.reserve) * (asked.replicas - asked.lost):.4g}")
        known = Capacity(
            axis=self._axis,
            setting=search.setting,
            tier=search.tier,
            slo=[each.text for each in search.slos],
            searched=self._space.searched,
            bracket=(bracket.passed, bracket.not_passed),
            trials=search.trials,
            raw_peak=_raw_peak(search.trials, self._levels),
            usable=msgspec.structs.replace(asked, value=value),
            cliff=bracket.cliff,
            ended=search.ended,
            statement="",
        )
        begun = self._sitting.begun
        words = statement(known, self._levels, begun.conditions, begun.seed)
        return msgspec.structs.replace(known, statement=words)


def _tiers(question: Question, slos: Sequence[Slo]) -> Mapping[str, list[Slo]]:
    if not question.tiers:
        return {"": [*slos]}
    return {name: [slo.parse(text) for text in texts] for name, texts in question.tiers.items()}


def _setting(level: Level, every: Sequence[Level]) -> str:
    return level.name.replace(str(level.load), "").strip() if len(every) > 1 or level.batching else ""


# Trials -------------------------------------------------------------------------------------------------------


def _judged(
    search: _Search, wanted: Next, figures: LevelResult, levels: list[int], playings: Sequence[Playing], *, whole: bool
) -> Trial:  # fmt: skip
    """The trial as the SLOs of the search judge it."""
    texts = {each.text: each for each in search.slos}
    own = [each for each in figures.slo if each.expression in texts]
    outcome: VerdictName = next(name for name in WORST_FIRST if any(each.verdict == name for each in own))
    nearness = max(_nearness(texts[each.expression], each.value) for each in own)
    if outcome != "INVALID" and any(isinstance(playing.error, Aborted) for playing in playings):
        return Trial(load=wanted.load, outcome="FAIL", resolved=True, nearness=None, levels=levels)
    return Trial(
        load=wanted.load,
        outcome=outcome,
        resolved=outcome in ("PASS", "FAIL") or (outcome == "INCONCLUSIVE" and whole),
        nearness=nearness if math.isfinite(nearness) and outcome != "INVALID" else None,
        levels=levels,
    )


def _open(search: _Search, figures: LevelResult) -> bool:
    """Whether more requests could make a PASS of it."""
    texts = {each.text for each in search.slos}
    verdicts = {each.verdict for each in figures.slo if each.expression in texts}
    return "INCONCLUSIVE" in verdicts and not verdicts & {"FAIL", "INVALID"}


def _nearness(slo: Slo, value: float | None) -> float:
    """Value ÷ limit of what is to be low, and the same of what is missing where it is to be high."""
    if value is None:
        return math.inf
    if slo.metric == "goodput":
        return float(f"{(1 - value) / (1 - slo.limit):.4g}")
    if slo.op.startswith(">"):
        return float(f"{slo.limit / value:.4g}") if value else math.inf
    return float(f"{value / slo.limit:.4g}")


def _quantile(slo: Slo) -> float:
    """The share of requests that have to be good."""
    if slo.quantile is not None:
        return slo.quantile
    return {"error_rate": 1 - slo.limit, "goodput": slo.limit}.get(slo.metric, 0.5)


def _lasts_s(level: Level) -> float:
    """How long a trial sends, as far as that is known before."""
    rate = level.load.mean_rate_per_s()
    ends = [level.duration_s, level.requests / rate if level.requests and rate else None]
    return min((end for end in ends if end is not None), default=0.0)


def _ended(trials: Sequence[Trial]) -> str:
    if sum(len(trial.levels) for trial in trials) >= MOST_LEVELS:
        return f"ended after {MOST_LEVELS} levels, the most it may play"
    return "came to its end"


def _raw_peak(trials: Sequence[Trial], levels: Sequence[LevelResult]) -> RawPeak | None:
    """Of a queue that grew, those who were answered after the sending are among the answers, and they are no rate."""
    peaks = [
        RawPeak(
            output_tokens_per_s=levels[index].throughput.output_tokens_per_s,
            requests_per_s=levels[index].rates.completed_per_s if levels[index].status == "ok" else None,
            load=trial.load,
        )
        for trial in trials
        for index in trial.levels
    ]
    known = [peak for peak in peaks if (peak.output_tokens_per_s, peak.requests_per_s) != (None, None)]
    return max(known, key=lambda peak: (peak.output_tokens_per_s or 0.0, peak.requests_per_s or 0.0), default=None)


# The result ---------------------------------------------------------------------------------------------------


def _verdict(each: Sequence[Capacity], audits: Sequence[Audit] = (), *, complete: bool) -> Verdict:
    """PASS where each search found a load that passed; else the worst of why not, or of what ``audits`` came to.

    What is not complete is no PASS.
    """
    found = [(_why(one), f"{_name(one)}{one.statement.partition('; raw peak')[0]}") for one in each]
    found += unpassed(audits)
    if not complete:
        found.append(("INCONCLUSIVE", "the search did not finish"))
    outcome = next(name for name in WORST_FIRST if any(why == name for why, _ in found))
    return Verdict(outcome=outcome, reasons=[text for why, text in found if why == outcome and why != "PASS"])


def _why(one: Capacity) -> VerdictName:
    if one.bracket[0] is not None:
        return "PASS"
    outcomes = [trial.outcome for trial in one.trials if trial.resolved and trial.load == one.searched.least]
    if len(outcomes) >= one.searched.trials and {*outcomes} == {"FAIL"}:
        return "FAIL"
    if one.trials and all(trial.outcome == "INVALID" for trial in one.trials):
        return "INVALID"
    return "INCONCLUSIVE"


def _name(one: Capacity) -> str:
    names = " ".join(filter(None, (one.setting, one.tier)))
    return f"{names}: " if names else ""
