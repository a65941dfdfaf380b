"""A target made ready, workers that send to it, a folder that takes what comes of it: here levels are played.

``run`` plays the levels of a scenario in one sitting, ``capacity`` those that its search asks for.
"""

import contextlib
import functools
import logging
import os
import random
import re
import secrets
import signal
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote, unquote

import msgspec

from loadtest import __version__, alert, calibration, consent, detect, host, plan, scenario, slo
from loadtest.credentials import Bearer
from loadtest.endpoints import blanks
from loadtest.endpoints.catalog import dialect, speak
from loadtest.endpoints.dialect import Settings
from loadtest.endpoints.site import Site, site
from loadtest.engine.crew import Crew, Interrupts, Renewed
from loadtest.engine.local import LocalEngine, check_budget, workers_for
from loadtest.engine.orders import Turn, Wiring
from loadtest.engine.recorder import lasting
from loadtest.errors import Aborted, LoadtestError, ResultError, TargetError, UsageError, WorkerLost
from loadtest.keeping import Keeper
from loadtest.level import Level, LevelRun
from loadtest.material import Material, material, skipped, sources
from loadtest.progress import Progress
from loadtest.records import JOURNAL, Mode, Record, cut, read
from loadtest.records import records as kept_records
from loadtest.redact import Redactor, of_user, secrets_of
from loadtest.rehearsal import Rehearsed, health, rehearse, waited
from loadtest.result import Conditions, Endpoint, Hardware, LevelResult, Manner, Result, ScenarioRef, Tool, load
from loadtest.scenario.model import Override, Resolved, Scenario
from loadtest.sizing import sized
from loadtest.slo import Slo, tightest_ms
from loadtest.statement import Axis
from loadtest.target import REACH_S, BundledServer, Facts, GivenURL, ServerOptions, Target
from loadtest.telemetry import trail
from loadtest.telemetry.sight import Telemetry, Wanted, Way
from loadtest.trace import HEADER
from loadtest.verdict import OnInconclusive, refusals, some
from loadtest.vigil import Checkpoints, Vigil
from loadtest.wire.exchange import TransportName
from loadtest.wire.origin import Origin, basic, is_loopback, parse, user_of
from loadtest.wire.origin import resolve as address_of
from loadtest.wire.proxy import Proxy, proxy_for
from loadtest.wire.tls import Tls

if TYPE_CHECKING:
    from loadtest.columns import Hashes
    from loadtest.judgement import Played
    from loadtest.rows import Rows

_BUNDLED_SPEAKS = ("chat", "completions")
RESOLVED = "scenario.resolved.yaml"
AUDIT = "audit.jsonl"
"""The journal of an audit. It is one of its own, so that its requests get into no figure of a level."""
RUN_HEADER = "X-Loadtest-Run"
_SOME = 50_000
_PROMPT_S = 1.0  # a refusal that came within it may be met once more
_URL_USER = re.compile(r"(?:\w[\w+.-]*://)?([^/?#]*)@")
# RFC 9110, 5.1 and 5.5.
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
log = logging.getLogger(__name__)


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What a run is asked to do. ``url`` of None is the bundled server.

    ``transport`` of None is the fast one, unless there is a proxy; ``proxy`` of None is the environment's, "" is none.
    ``alpha`` is the chance of each error of a level's verdict; of None the usual. ``records`` says which requests are
    left in the folder. ``resume``: the output folder is one
    in which levels were played before, and ``source`` the scenario that lies in it. ``rehearse``: send a request before
    the clock; ``wait_ready_s``: wait so long until the target is ready. ``basic`` is a ``name:password``. ``confirm``
    answers whether as much may be sent as a question says; of None nobody is there to ask. ``most`` is what a search
    raises, and how far, ``wanted`` what to watch. ``redact`` knows all the secrets here, and learns what else comes up.
    """

    url: str | None
    source: str | None
    overrides: dict[str, Override]
    headers: tuple[tuple[str, str], ...] = ()
    api_key: str | None = None
    basic: str | None = None
    bearer: Bearer | None = None
    run_header: bool = True
    confirm: Callable[[str], bool] | None = None
    most: tuple[Axis, float | None] | None = None
    redact: Redactor = msgspec.field(default_factory=Redactor)
    transport: TransportName | None = None
    proxy: str | None = None
    tls: Tls = Tls()
    traceparent: bool = False
    labels: dict[str, str] = {}
    output: Path | None = None
    workers: int | None = None
    cluster: str | None = None
    strict: bool = False
    on_inconclusive: OnInconclusive = "report"
    alpha: float | None = None
    records: Mode = "all"
    resume: bool = False
    rehearse: bool = True
    wait_ready_s: float | None = None
    wanted: Wanted = Wanted()
    command: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        known = secrets_of(self.headers, self.api_key, (self.url or "").partition("?")[2])
        known += [self.tls.password or "", *of_user(self.basic or "")]
        for url in (self.wanted.metrics, self.wanted.dcgm):
            known += secrets_of((), None, (url or "").partition("?")[2])
        for url in (self.url, self.proxy, self.wanted.metrics, self.wanted.dcgm):
            if found := _URL_USER.match(url or ""):
                known += [*of_user(found[1]), *of_user(unquote(found[1]))]
        self.redact.learn(known)


class Playing(NamedTuple):
    """A level that was played: its figures, what they were made of, and why no further one should be played.

    ``went`` is None where the generator failed in it: all that is left of it is in the journal.
    """

    figures: LevelResult
    records: Sequence[Record]
    went: LevelRun | None
    error: LoadtestError | None


class Sitting:
    """A target and the workers that play levels against it, one after the other, into one folder.

    ``levels`` are those of the scenario, ``slos`` what they have to keep to, ``alerts`` what is to be remarked of them,
    and ``begun`` is the result as far as it was known before the first request. ``looks``: at how many points a level
    may get its verdict, of ``alpha``.
    """

    def __init__(
        self, levels: Sequence[Level], folder: Path, begun: Result, redact: Redactor, target: Target,
        engine: Crew, wiring: Wiring, asked: Scenario, interrupts: Interrupts, progress: Progress,
        slos: Sequence[Slo], looks: int, alpha: float | None, bearer: Bearer | None, telemetry: Telemetry,
        keeper: Keeper,
    ) -> None:  # fmt: skip
        self.levels = levels
        self._bearer = bearer
        self._telemetry = telemetry
        self.slos = slos
        self.alerts = [alert.parse(text) for text in asked.warn]
        self._looks = looks
        self._alpha = alpha
        self.folder = folder
        self.begun = begun
        self.redact = redact
        self._target = target
        self._engine = engine
        self._wiring = wiring
        self._asked = asked
        self._interrupts = interrupts
        self._progress = progress
        self._played = 0
        self._keeper = keeper
        self._sent: Collection[int] | Hashes = ()  # hashes of prompts
        self._rows: list[Rows] = []  # of levels that may still be judged

    def _renewed(self, wiring: Wiring, news: Callable[[], Turn | None] = lambda: None) -> Renewed:
        """What tells the workers of a newer token than the wiring's, and the ``news``."""
        told = wiring.bearer

        def newer() -> str | Turn | None:
            nonlocal told
            told, before = self._bearer.token if self._bearer else None, told
            return told if told != before else news()

        return newer

    def play(self, level: Level, count: int | None, keep: Callable[[LevelResult], None]) -> Playing:
        """Play ``level``, of ``count`` in all where that is known, to its end or an interruption, and judge it.

        While it goes on ``keep`` gets its figures so far each minute; those of a long one less often. What of its
        requests is to be left is in the journal. The records of earlier playings can then be read no more.

        Raises:
            LoadtestError: none of it could be played.
            KeyboardInterrupt: the user asked to stop before it began.
        """
        self.close()
        return self._play(level, count, keep)

    @property
    def extends(self) -> bool:
        """Whether a level that is inconclusive is played once more."""
        return self._looks > 1

    def close(self) -> None:
        """Give the disk back that long levels took for a while."""
        while self._rows:
            self._rows.pop().close()

    def _play(self, level: Level, count: int | None, keep: Callable[[LevelResult], None]) -> Playing:
        with self._interrupts.at_once():
            if self._played and (pause_s := self._asked.cooldown_s):
                self._progress.note(f"cooling down for {pause_s:g} s")
                time.sleep(pause_s)
            self._target.set_batching(level.batching)
        self._progress.level(level, count)
        log.info("level %d: %s", level.index + 1, level.name)
        keeper = self._keeper
        keeper.begin()
        went: LevelRun | None = None
        failure: LoadtestError | None = None
        wiring = _authorized(self._wiring, self._bearer)

        def so_far(requests: Sequence[Record]) -> LevelResult:
            return watching.of(self._figures(level, requests, None), requests, None)

        checkpoints = Checkpoints(so_far, keep)
        vigil = Vigil(
            keeper,
            self._progress,
            self._asked.abort_on,
            checkpoints,
            turns=self._engine.turns,
            stall_s=self._asked.stall_timeout_s,
        )
        with self._telemetry.watching(level.index, self.folder) as watching:
            try:
                went = self._engine.play(
                    level, wiring, self._interrupts, vigil.see, self._renewed(wiring, vigil.news), watching.begun
                )
            except LoadtestError as error:
                failure = error
            finally:
                checkpoints.end(wait=not self._interrupts.count)
        # numpy comes with it, and the run's first request need not wait for that
        from loadtest.columns import prompts
        from loadtest.judgement import Played

        missed = [*map(self.redact, watching.missing), *(f"{level.name}: {text}" for text in vigil.remarks)]
        if self._bearer is not None and self._bearer.failed is not None:
            missed.append(self._bearer.failed)
        if missed:
            self.begun = msgspec.structs.replace(self.begun, warnings=[*dict.fromkeys([*self.begun.warnings, *missed])])
        self._played += 1
        failure = failure or vigil.failure
        try:
            keeper.end()
        except ResultError as error:
            failure = failure or error
            if not keeper.whole:
                raise failure from None
        records = keeper.requests
        if not isinstance(records, list):
            self._rows.append(records)
        if failure is not None and not records:
            raise failure
        figures = watching.of(self._figures(level, records, went, judged=False), records, went)
        figures = self._judged([Played(level, figures, records, went)])
        self._has_sent(prompts(records))
        return Playing(figures, records, went, failure or (_ended_badly(level, went, records) if went else None))

    def _figures(
        self, level: Level, records: Sequence[Record], went: LevelRun | None, *, judged: bool = True
    ) -> LevelResult:  # fmt: skip
        from loadtest.judgement import Played
        from loadtest.summary import summarise

        figures = summarise(level, records, went, self._sent, tightest_ms(self.slos))
        if not judged:
            return figures
        return msgspec.structs.replace(self._judged([Played(level, figures, records, went)]), goes_on=True)

    def _has_sent(self, hashes: "Hashes") -> None:
        import numpy as np

        self._sent = np.union1d(hashes, np.array([*self._sent], dtype=np.int64)) if len(self._sent) else hashes

    def audit(self) -> None:
        """Play the pairs of requests that the scenario asks for, if it does: ``begun`` then has what they tell.

        All their records are in a journal of their own, and their prompts in no level of this run or another.

        Raises:
            LoadtestError: they could not be played, or another request would fare no better.
            KeyboardInterrupt: the user asked to stop before the first.
        """
        settings = self._asked.audit
        if settings is None:
            return
        from loadtest.audit import audits, pairs_of
        from loadtest.columns import prompts

        speech = self._wiring.speech
        level = pairs_of(
            self.levels[0], settings.pairs, None if "temperature" in speech.left_out else speak(speech).greedy
        )
        with self._interrupts.at_once():
            self._target.set_batching(level.batching)
        self._progress.note(f"audit: {settings.pairs} pairs of the same request")
        (self.folder / AUDIT).unlink(missing_ok=True)  # of an earlier sitting
        # Of a run with the same seed a cache may still have the prompts.
        assert self.begun.run_id is not None
        wiring = msgspec.structs.replace(
            _authorized(self._wiring, self._bearer),
            journal=str(self.folder / AUDIT),
            seed=int(self.begun.run_id, 16),
        )
        went = self._engine.play(level, wiring, self._interrupts, lambda *_: None, self._renewed(wiring))
        records, _ = read(self.folder / AUDIT)
        self._has_sent(prompts(records))
        self.begun = msgspec.structs.replace(self.begun, audits=audits(settings, records))
        if (error := _ended_badly(level, went, records)) is not None:
            raise error

    def extend(
        self, level: Level, first: Playing, index: int, keep: Callable[[LevelResult], None]
    ) -> tuple[LevelResult, Playing]:  # fmt: skip
        """Play ``level`` once more, as that of ``index``: the ``first`` figures judged by both, and the second playing.

        ``keep`` gets the figures of the second so far.

        Raises:
            LoadtestError: it could not be played.
            KeyboardInterrupt: the user asked to stop before it began.
        """
        longer = msgspec.structs.replace(level, index=index, name=f"{level.name} (more)")
        more = functools.partial(msgspec.structs.replace, slo=[], extends=level.name)
        second = self._play(longer, None, lambda figures: keep(more(figures)))
        from loadtest.judgement import Played

        both = [
            Played(level, first.figures, first.records, first.went),
            Played(longer, second.figures, second.records, second.went),
        ]
        return self._judged(both), second._replace(figures=more(second.figures))

    def _judged(self, played: "Sequence[Played]") -> LevelResult:
        from loadtest.evidence import ALPHA
        from loadtest.judgement import judge

        return judge(played, self.slos, self._looks, self._alpha or ALPHA)

    def go_on(self, levels: Collection[int]) -> None:
        """Go on after these levels, which an earlier sitting played into this folder; of others nothing is left.

        Raises:
            ResultError: the journal is damaged or cannot be written.
        """
        from loadtest.columns import prompts

        cut(self.folder, levels)
        found = kept_records(self.folder)
        while some := [*islice(found, _SOME)]:
            self._has_sent(prompts(some))
        self._keeper.skip()
        self._played = len(levels)

    def check(self) -> None:
        """Raise if the target is known to have died."""
        self._target.check()


@contextlib.contextmanager
def sit(options: Options, resolved: Resolved, interrupts: Interrupts, progress: Progress) -> Iterator[Sitting]:
    """Make all ready to play the scenario; the target is left, and the workers end, with the sitting.

    Raises:
        LoadtestError: it cannot be played.
    """
    asked, bundled = resolved.scenario, options.url is None
    place = site(options.url, asked.endpoint) if options.url else None
    way = _way(options)
    before = load(options.output).run_id if options.output and options.resume else None
    run = before or secrets.token_hex(16)
    headers = _headers(options, place, run)
    redact = options.redact
    variables = _variables(asked)
    _learn(redact, asked, headers, way, variables)
    with (
        _output_folder(options.output, asked.name, resume=options.resume) as folder,
        _material(asked, bundled, interrupts, progress) as rows,
    ):
        levels = plan.levels(asked, bundled=bundled, rows=rows)
        slos = objectives(asked, levels)
        target = _target(options, place, asked, levels, headers, folder, way.proxy)
        with (
            _engine(options, levels, interrupts, progress) as engine,
            contextlib.closing(target),
            options.bearer.renewing() if options.bearer else contextlib.nullcontext(),
        ):
            watched = Telemetry(
                options.wanted, place.origin if place else parse("127.0.0.1"), asked.endpoint,
                Way(headers, options.tls, way.proxy, options.proxy, options.bearer),
            )  # fmt: skip
            with interrupts.at_once():
                if place is not None:
                    _confirm(options, place.origin, asked, levels, way, progress)
            progress.note("starting the bundled server" if bundled else "reaching the target")
            try:
                with interrupts.at_once():

                    def ready() -> tuple[Facts, Rehearsed]:
                        facts, path = target.open(), place.path if place else None
                        speech = _speech(asked, facts, path, variables)
                        _see_requests(speech, levels)
                        wiring = _wiring(options, asked, facts, speech, headers, folder, way, None)
                        return facts, _rehearsed(options, target, wiring, levels)

                    patience_s = None if bundled else options.wait_ready_s
                    facts, rehearsed = waited(ready, patience_s, _saying(options, progress)) if patience_s else ready()
                    speech = rehearsed.speech
                    facts = _sized(target, facts, asked, speech, levels)
                    unseen = watched.find(place.around(asked.pattern) if place else parse(facts.url))
            except LoadtestError as error:  # with words of the target, which may repeat our key
                raise type(error)(redact(str(error))) from None
            log.info("target %s, model %s, %d worker(s)", redact(facts.url), facts.model, engine.size)
            warned = [*calibration.warning(levels, engine.size), *skipped(rows)]
            if options.url is not None:
                warned += detect.remarks(options.url, asked.endpoint, resolved.sources["endpoint"])
            warned += [*map(redact, [*rehearsed.notes, *unseen])]
            begun = _begun(options, resolved, facts, redact, way, warned)
            begun = msgspec.structs.replace(begun, adaptations=[*map(redact, rehearsed.adaptations)])
            told = msgspec.structs.replace(begun.conditions, telemetry=[*map(redact, watched.notes)])
            begun = msgspec.structs.replace(begun, run_id=run, conditions=told)
            wiring = _wiring(options, asked, facts, speech, headers, folder, way, run if options.traceparent else None)
            if not options.resume:
                _write_scenario(folder, resolved, redact)
            looks = 2 if options.on_inconclusive == "extend" else 1
            sitting = Sitting(
                levels,
                folder,
                begun,
                redact,
                target,
                engine,
                wiring,
                asked,
                interrupts,
                progress,
                slos,
                looks,
                options.alpha,
                options.bearer,
                watched,
                Keeper(folder, options.records, asked.seed or 0),
            )
            with contextlib.closing(sitting):
                yield sitting
            trail.forget(folder)


def told_by_url(url: str | None, source: str | None, overrides: dict[str, Override]) -> dict[str, Override]:
    """The overrides with the kind of endpoint that the URL tells, where neither a flag nor the scenario names one."""
    if url is None or scenario.names(source, overrides, "endpoint") or (found := detect.by_url(url)) is None:
        return overrides
    return {**overrides, "endpoint": _found(found)}


def detected(options: Options, progress: Progress) -> Options:
    """The options with the kind of endpoint that the target is, where neither a flag nor the scenario names one.

    Raises:
        TargetError: it cannot be reached, or is not ready in time.
    """
    url, overrides = options.url, told_by_url(options.url, options.source, options.overrides)
    if url is None or scenario.names(options.source, overrides, "endpoint"):
        return msgspec.structs.replace(options, overrides=overrides)
    scenario.load(options.source, overrides)  # one that is wrong is told of before the target is asked
    place = site(url, detect.DEFAULT)
    way, headers = _way(options), _headers(options, place)
    target = GivenURL(place.origin, place.kind, None, headers, place.discover, options.tls, way.proxy, options.bearer)
    progress.note("reaching the target")
    began, patience_s = time.monotonic(), options.wait_ready_s
    with asked_to_stop() as interrupts, interrupts.at_once():
        if patience_s:
            found = waited(lambda: detect.by_asking(target.get), patience_s, _saying(options, progress))
            patience_s = max(1.0, patience_s - (time.monotonic() - began))  # what is left of it is for the rest
        else:
            try:
                found = detect.by_asking(target.get)
            except TargetError:
                if time.monotonic() - began > _PROMPT_S:
                    raise
                # What cannot be meant is told first, and this once it is met again; but nobody waits for it twice.
                return msgspec.structs.replace(options, overrides=overrides)
    return msgspec.structs.replace(options, overrides={**overrides, "endpoint": _found(found)}, wait_ready_s=patience_s)


def _saying(options: Options, progress: Progress) -> Callable[[str], None]:
    """Shows words of the target, which may repeat our key."""
    return lambda text: progress.note(options.redact(text))


def _found(found: detect.Found) -> Override:
    log.info("endpoint %s: %s", found.kind, found.how)
    return Override(found.kind, f"found: {found.how}")


class Reached(NamedTuple):
    """A target at a URL and how it is spoken to, for a few requests without workers and levels."""

    target: GivenURL
    wiring: Wiring


def reached(options: Options, resolved: Resolved) -> Reached:
    """Reach the target at the options' URL, and learn what has to be known to speak to it.

    Raises:
        LoadtestError: it cannot be reached, or the options cannot be meant.
    """
    assert options.url is not None
    asked, redact = resolved.scenario, options.redact
    place, way, variables = site(options.url, asked.endpoint), _way(options), _variables(asked)
    headers = _headers(options, place)
    _learn(redact, asked, headers, way, variables)
    target = _target(options, place, asked, (), headers, Path(), way.proxy)
    assert isinstance(target, GivenURL)
    try:
        facts = target.open()
    except LoadtestError as error:  # with words of the target, which may repeat our key
        raise type(error)(redact(str(error))) from None
    speech = _speech(asked, facts, place.path, variables)
    return Reached(target, _wiring(options, asked, facts, speech, headers, Path(), way, None))


def _learn(
    redact: Redactor, asked: Scenario, headers: Sequence[tuple[str, str]], way: "_Way",
    variables: Sequence[tuple[str, str]],
) -> None:  # fmt: skip
    """The secrets that come up besides the options' own: a proxy's, and a template's."""
    # What of a template has blanks is no secret: these are filled with variables, or with what is drawn.
    own = [header for header in asked.pattern.request.headers if "{{" not in header[1]]
    redact.learn(secrets_of([*headers, *own, *(way.proxy.headers.items() if way.proxy else ())], None, ""))
    redact.learn(value for _, value in variables)


def _rehearsed(options: Options, target: Target, wiring: Wiring, levels: Sequence[Level]) -> Rehearsed:
    """See that a target at a URL is ready, and takes what will be sent; the bundled server is and does."""
    if not isinstance(target, GivenURL):
        return Rehearsed(wiring.speech)
    if options.wait_ready_s:
        health(target.get)
    if not options.rehearse:
        return Rehearsed(wiring.speech)
    return rehearse(wiring, levels, waits=options.wait_ready_s is not None)


@contextlib.contextmanager
def asked_to_stop() -> Iterator[Interrupts]:
    """Ctrl-C and SIGTERM ask what goes on to stop, once to drain, twice at once; restored afterwards."""
    interrupts = Interrupts()

    def ask(_signal: int, _frame: object) -> None:
        interrupts.ask()

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield interrupts
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def resolve(source: str | None, overrides: dict[str, Override]) -> Resolved:
    """The scenario with a seed: where nobody gave one it is drawn now, so that it is recorded like a given one."""
    resolved = scenario.load(source, overrides)
    if resolved.scenario.seed is None:
        drawn = Override(str(random.SystemRandom().randrange(2**31)), "drawn at random")
        resolved = scenario.load(source, {**overrides, "seed": drawn})
    return resolved


def objectives(asked: Scenario, levels: Sequence[Level]) -> list[Slo]:
    """What the levels have to keep to.

    Raises:
        UsageError: no run of them could tell whether they do, or what is to be remarked of them.
    """
    slos = [slo.parse(text) for text in asked.slo]
    found = refusals(slos, levels, asked.endpoint, asked.pattern, stream=asked.stream)
    for each in map(alert.parse, asked.warn):
        if not any(each.is_of(level.name) for level in levels):
            found.append(f"warn {each.text}: no level has that name; they are {some(level.name for level in levels)}")
    if found:
        raise UsageError("\n  ".join(found))
    return slos


def _engine(options: Options, levels: Sequence[Level], interrupts: Interrupts, progress: Progress) -> Crew:
    """The workers that play the levels: processes of this host, or a cluster's.

    Raises:
        LoadtestError: they cannot.
    """
    if options.cluster is None:
        workers = options.workers or workers_for(levels)
        check_budget(levels, workers)
        return LocalEngine(workers)
    from loadtest.engine.cluster import ClusterEngine

    progress.note(f"reaching the cluster {options.cluster}")
    with interrupts.at_once():
        return ClusterEngine(options.cluster, options.workers)


@contextlib.contextmanager
def _material(asked: Scenario, bundled: bool, interrupts: Interrupts, progress: Progress) -> Iterator[Material]:
    """The scenario's files, made ready; the user may end that at once."""
    with contextlib.ExitStack() as stack:
        with interrupts.at_once():
            if sources(asked):
                progress.note("reading the scenario's files")
            rows = stack.enter_context(material(asked, bundled=bundled))
        yield rows


def _confirm(
    options: Options, origin: Origin, asked: Scenario, levels: Sequence[Level], way: "_Way", progress: Progress
) -> None:
    """See that as much may be sent as the plan will, where that is to be asked.

    Raises:
        UsageError: it may not.
    """
    found = consent.question(origin, levels, asked.max_rate_per_s, asked.max_in_flight, options.most)
    if found is None or (way.proxy is None and is_loopback(address_of(origin, REACH_S))):
        return
    progress.close()
    if options.confirm is None:
        raise UsageError(f"{found}. Say that this is meant with --yes (LOADTEST_YES=1)")
    if not options.confirm(found):
        raise UsageError("it was not confirmed, and nothing was sent")


def _authorized(wiring: Wiring, bearer: Bearer | None) -> Wiring:
    """The wiring with the newest token."""
    if bearer is None:
        return wiring
    name, value = bearer.header
    others = [header for header in wiring.headers if header[0] != name]
    return msgspec.structs.replace(wiring, headers=(*others, (name, value)), bearer=value.removeprefix("Bearer "))


def _headers(options: Options, place: Site | None, run: str | None = None) -> tuple[tuple[str, str], ...]:
    """What every request is to say besides: the user's headers, who we are, and of which ``run`` it is.

    Raises:
        UsageError: a header is none, or two say who we are.
    """
    for name, _ in options.headers:
        if name.lower() in ("content-length", "transfer-encoding"):
            raise UsageError(f"-H {name}: follows from the body, which loadtest writes; leave it out")
        if options.traceparent and name.lower() == HEADER:
            raise UsageError(f"-H {name} and --traceparent both say it; give one of them")
    ways: list[tuple[str, str, str]] = [("-H", *header) for header in options.headers]
    if options.api_key:
        bare = place.key_header if place else None
        key = (bare, options.api_key) if bare else ("Authorization", f"Bearer {options.api_key}")
        ways.append(("--api-key", *key))
    if options.basic is not None:
        if not options.basic.partition(":")[0] or ":" not in options.basic:
            raise UsageError("--basic: not of the form NAME:PASSWORD")
        ways.append(("--basic", "Authorization", basic(quote(options.basic, safe=":"))))
    if options.bearer is not None:
        ways.append(("--auth-command", "Authorization", ""))
    if user := user_of(options.url or ""):
        ways.append(("the user name in the URL", "Authorization", basic(user)))
    said: dict[str, list[str]] = {}
    for way, name, value in ways:
        said.setdefault(name.lower(), []).append(way)
        if len(who := dict.fromkeys(said[name.lower()])) > 1:
            raise UsageError(f"{' and '.join(who)} both say who we are, in the header {name}; give one of them")
        if not _HEADER_NAME.fullmatch(name) or not _HEADER_VALUE.fullmatch(value):
            raise UsageError(f"{way}: the header {name!r} holds a character that HTTP has no place for")
    found = [(name, value) for way, name, value in ways if way != "--auth-command"]
    if run is not None and options.run_header and not any(name.lower() == RUN_HEADER.lower() for name, _ in found):
        found.append((RUN_HEADER, run))
    return tuple(found)


class _Way(msgspec.Struct, frozen=True):
    """How requests get to the target, and what the user should know of that."""

    transport: TransportName
    proxy: Proxy | None
    notes: tuple[str, ...]


def _way(options: Options) -> _Way:
    """Decide it, once for the whole run.

    Raises:
        UsageError: a file is not what it should be, or the transport cannot go that way.
    """
    origin = parse(options.url) if options.url else None
    notes = []
    if options.tls != Tls():
        options.tls.context()  # a bad file is told now, and not by a worker
        if origin is None or origin.scheme != "https":
            notes.append("--cacert, --cert, --key and --insecure are for https:// and were not used")
    if options.proxy and origin is None:
        notes.append("--proxy is for a URL and was not used: the bundled server is on this host")
    if options.wait_ready_s and origin is None:
        notes.append("--wait-ready is for a URL and was not used: the bundled server is waited for anyway")
    proxy = proxy_for(origin, options.proxy) if origin else None
    if proxy is not None and options.transport == "fast":
        raise UsageError(
            f"--transport fast cannot go through the proxy {proxy.url}: leave it out, or go direct with --proxy ''"
        )
    if proxy is not None and options.transport is None:
        notes.append(f"requests go through the proxy {proxy.url}, and so by the aiohttp transport: no error bar")
    transport: TransportName = options.transport or ("aiohttp" if proxy else "fast")
    if transport == "aiohttp":
        import loadtest.wire.aiohttp_transport  # noqa: F401  # before the workers are forked, so that none loads it
    return _Way(transport, proxy, tuple(notes))


def _target(
    options: Options, place: Site | None, asked: Scenario, levels: Sequence[Level],
    headers: Sequence[tuple[str, str]], folder: Path, proxy: Proxy | None,
) -> Target:  # fmt: skip
    if place is not None:
        spoken = (*dialect(asked.endpoint).headers, *headers)
        return GivenURL(
            place.origin, asked.endpoint, asked.model, spoken, place.discover, options.tls, proxy, options.bearer,
            place.around(asked.pattern),
        )  # fmt: skip
    return BundledServer(server_options(asked, levels), asked.endpoint, folder / "server.log")


def server_options(asked: Scenario, levels: Sequence[Level]) -> ServerOptions:
    """How the bundled server is started to play these levels.

    Raises:
        UsageError: it cannot do what is asked.
    """
    if asked.endpoint not in _BUNDLED_SPEAKS:
        raise UsageError(
            f"endpoint {asked.endpoint}: the bundled server speaks {' and '.join(_BUNDLED_SPEAKS)}; give the URL of "
            "one that speaks it"
        )
    if asked.model is not None:
        raise UsageError("--model names a model of the endpoint at a URL; the bundled server's is --serve-model")
    server = asked.server
    largest = max(level.batching.max_batch_size for level in levels if level.batching)
    slots = largest if server.kv_slots is None else server.kv_slots
    if slots < largest:
        raise UsageError(f"server.kv_slots: {slots} slots cannot hold the largest batch of the levels, {largest}")
    return ServerOptions(
        server.model, server.provider, server.dtype, server.threads, slots, server.max_seq_len, _beyond_text(asked)
    )


def _beyond_text(asked: Scenario) -> bool:
    """Whether requests may hold what a server of text alone refuses: tools, pictures, forms of answers."""
    return any(workload.images is not None or workload.body is not None for workload in asked.workloads)


def _wiring(
    options: Options, asked: Scenario, facts: Facts, speech: Settings, headers: tuple[tuple[str, str], ...],
    folder: Path, way: _Way, trace: str | None,
) -> Wiring:  # fmt: skip
    assert asked.seed is not None
    wiring = Wiring(
        url=facts.url,
        address=facts.address,
        speech=speech,
        tokens=facts.tokens,
        headers=headers,
        secrets=options.redact.secrets,
        timeout_s=asked.timeout_s,
        connect_timeout_s=asked.connect_timeout_s,
        stall_timeout_s=asked.stall_timeout_s,
        journal=str(folder / JOURNAL),
        seed=asked.seed,
        max_in_flight=asked.max_in_flight,
        max_rate_per_s=asked.max_rate_per_s,
        drop_when_full=asked.when_full == "drop",
        transport=way.transport,
        trace=trace,
        tls=options.tls,
        proxy=way.proxy,
    )
    return _authorized(wiring, options.bearer)


def _variables(asked: Scenario) -> tuple[tuple[str, str], ...]:
    """The environment variables that a template names, with their values.

    Raises:
        UsageError: one of them is not set.
    """
    names = blanks.variables(asked.pattern.request.blanks)
    for name in names:
        if name not in os.environ:
            raise UsageError(f"request: {{{{ env.{name} }}}}: the variable {name} is not set; export it before the run")
    return tuple((name, os.environ[name]) for name in names)


def _speech(asked: Scenario, facts: Facts, path: str | None, variables: tuple[tuple[str, str], ...]) -> Settings:
    """What the dialect has to know."""
    assert asked.seed is not None
    return Settings(
        asked.endpoint, facts.model, asked.stream, facts.owner, facts.told, path, pattern=asked.pattern,
        variables=variables, seed=asked.seed,
    )  # fmt: skip


def _see_requests(speech: Settings, levels: Sequence[Level]) -> None:
    """See that the requests of each level can be made.

    Raises:
        UsageError: the model takes something else.
    """
    spoken = speak(speech)
    for level in levels:
        for workload in level.workloads:
            spoken.check(workload.tensors, level.batch_size, texts=workload.input_tokens is not None)


def _sized(target: Target, facts: Facts, asked: Scenario, speech: Settings, levels: Sequence[Level]) -> Facts:
    """The facts with all that can be found out of the target's tokens, as far as prompts have to be made."""
    assert asked.seed is not None
    workloads = [workload for level in levels for workload in level.workloads]
    made = [workload.corpus for workload in workloads if workload.data is None or workload.prefix is not None]
    corpora = [*dict.fromkeys([*made, *(None for level in levels if level.probe)])]
    if not dialect(asked.endpoint, asked.pattern).counts:
        corpora = []
    tokens = sized(target, facts, speech, asked.tokenizer, corpora, asked.seed)
    return msgspec.structs.replace(facts, tokens=tokens)


# Flags of the bundled server, by the names that the command line gives their overrides.
_BUNDLED = ("scheduler", "max_batch_size", "batch_timeout_ms", "serve_model", "provider", "dtype", "threads")
_TEXT_ALONE = "the bundled server takes text alone: it leaves out the tools, pictures and forms of answers of requests"


def unused(asked: Scenario, overrides: dict[str, Override], *, bundled: bool) -> list[str]:
    """What was asked and does nothing: of the bundled server more than text, of a URL what only that server has."""
    if bundled:
        return [_TEXT_ALONE] if _beyond_text(asked) else []
    given = [overrides[name].origin for name in _BUNDLED if name in overrides]
    flags = [origin for origin in given if origin.startswith("-")]  # a variable may be meant for other runs
    if flags:
        return [f"set for the bundled server, and so not used here: {', '.join(flags)}"]
    if any(len(block.scheduler) * len(block.max_batch_size) > 1 for block in asked.levels):
        return ["the scenario's batching levels are settings of the bundled server and were left out"]
    return []


def _begun(
    options: Options, resolved: Resolved, facts: Facts, redact: Redactor, way: _Way, warned: Sequence[str]
) -> Result:
    """The result as far as it is known before the first request."""
    asked = resolved.scenario
    assert asked.seed is not None
    notes = [*way.notes, *warned, *unused(asked, options.overrides, bundled=options.url is None)]
    tokens = facts.tokens
    if tokens.kind == "words" and tokens.how and not tokens.fits:
        notes.append(redact(f"prompts were sized {tokens.how}"))
    return Result(
        tool=Tool(name="loadtest", version=__version__),
        command=redact(" ".join(options.command)),
        started_at=datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        seed=asked.seed,
        complete=False,
        exit_code=0,
        records=options.records,
        manner=Manner(
            url=options.url and redact(options.url),
            on_inconclusive=options.on_inconclusive,
            strict=options.strict,
            transport=options.transport,
            workers=options.workers,
            cluster=options.cluster and redact(options.cluster),
            traceparent=options.traceparent,
            run_header=options.run_header,
        ),
        conditions=Conditions(
            endpoint=Endpoint(
                kind=asked.endpoint,
                url=redact(facts.url),
                model=redact(facts.model),
                address=facts.address,
                proxy=way.proxy.url if way.proxy else None,
                transport=way.transport,
            ),
            precision=options.labels.get("precision") or facts.precision,
            software={**host.software(), **facts.software},
            hardware=Hardware(server=options.labels.get("hardware") or facts.hardware, client=host.description()),
            scenario=ScenarioRef(name=asked.name, sha256=resolved.sha256),
            not_comparable=resolved.not_comparable,
            prompts_sized=redact(facts.tokens.how) or None,
        ),
        warnings=notes,
        labels={key: redact(text) for key, text in options.labels.items()},
        levels=[],
    )


def _ended_badly(level: Level, went: LevelRun, records: Sequence[Record]) -> LoadtestError | None:
    """The reason to play no further level, if there is one."""
    if went.end == "aborted":
        return Aborted(f"level {level.name} was ended by --abort-on: {went.reason}")
    if went.end == "worker_lost":
        return WorkerLost(f"level {level.name}: {went.reason}; its figures are unsound")
    refused = [record.error for record in records if record.error is not None and lasting(record.error)]
    if went.end == "unusable" or (records and len(refused) == len(records)):
        words = went.reason if went.end == "unusable" else refused[0].message
        return TargetError(f"the target refused every request: {words}")
    return None


@contextlib.contextmanager
def _output_folder(asked: Path | None, name: str, *, resume: bool) -> Iterator[Path]:
    """A new folder for the result; taken away again if the run could not begin and left nothing in it."""
    folder = asked or _new_folder(f"{name}-{datetime.now(UTC):%Y%m%dT%H%M%SZ}")
    try:
        if not resume and folder.is_dir() and any(folder.iterdir()):
            raise UsageError(f"the output folder {folder} is not empty; name a new one with -o")
        existed = folder.is_dir()
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ResultError(f"cannot make the output folder {folder}: {error.strerror}; name another with -o") from None
    try:
        yield folder
    except BaseException:
        if not existed and not (folder / RESOLVED).exists():
            (folder / "server.log").unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # something else has come to lie in it: leave it
                folder.rmdir()
        raise


def _new_folder(name: str) -> Path:
    """A folder under results/ that is not there yet: two runs may begin within a second."""
    names = (name, *(f"{name}-{number}" for number in range(2, 100)))
    return next(folder for name in names if not (folder := Path("results") / name).exists())


def _write_scenario(folder: Path, resolved: Resolved, redact: Redactor) -> None:
    try:
        (folder / RESOLVED).write_text(redact(resolved.text), "utf-8")
    except OSError as error:
        raise ResultError(f"cannot write {folder / RESOLVED}: {error.strerror}; name another folder with -o") from None
