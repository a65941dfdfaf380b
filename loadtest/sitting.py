"""A target made ready, workers that send to it, a folder that takes what comes of it: here levels are played.

``run`` plays the levels of a scenario in one sitting, ``capacity`` those that its search asks for.
"""

import contextlib
import functools
import logging
import secrets
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from loadtest import __version__, alert, calibration, detect, host, plan
from loadtest.approach import confirm, saying, see_requests, speech_of, target_of, variables_of, wiring_of, with_tokens
from loadtest.bundled import unused
from loadtest.credentials import Bearer
from loadtest.endpoints.catalog import speak
from loadtest.endpoints.site import site
from loadtest.engine.crew import Crew, Interrupts, Renewed
from loadtest.engine.local import LocalEngine, check_budget, workers_for
from loadtest.engine.orders import Turn, Wiring
from loadtest.errors import Aborted, LoadtestError, ResultError, TargetError, WorkerLost
from loadtest.folder import output_folder, write_scenario
from loadtest.keeping import Keeper
from loadtest.level import Level, LevelRun
from loadtest.material import Material, material, skipped, sources
from loadtest.options import Options
from loadtest.progress import Progress
from loadtest.records import Record, cut, lasting, read
from loadtest.records import records as kept_records
from loadtest.redact import Redactor
from loadtest.rehearsal import Rehearsed, health, rehearse, waited
from loadtest.result import Conditions, Endpoint, Hardware, LevelResult, Manner, Result, ScenarioRef, Tool, load
from loadtest.route import Route, authorized, headers_of, learn, route_of
from loadtest.scenario.model import Resolved, Scenario
from loadtest.slo import Slo, tightest_ms
from loadtest.target import Facts, GivenURL, Target
from loadtest.telemetry import trail
from loadtest.telemetry.sight import Telemetry, Way
from loadtest.verdict import objectives
from loadtest.vigil import Checkpoints, Vigil
from loadtest.wire.origin import parse

if TYPE_CHECKING:
    from loadtest.columns import Hashes
    from loadtest.judgement import Played
    from loadtest.rows import Rows

AUDIT = "audit.jsonl"
"""The journal of an audit. It is one of its own, so that its requests get into no figure of a level."""
_SOME = 50_000
log = logging.getLogger(__name__)


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
        wiring = authorized(self._wiring, self._bearer)

        def so_far(requests: Sequence[Record]) -> LevelResult:
            return watching.of(self._figures(level, requests, None), requests, None)

        checkpoints = Checkpoints(so_far, keep)
        vigil = Vigil(
            keeper,
            self._progress,
            self._asked.abort_on,
            checkpoints,
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
                checkpoints.end(lambda: not self._interrupts.count)
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
            authorized(self._wiring, self._bearer),
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

        If some had any request, that is said.

        Raises:
            ResultError: the journal is damaged or cannot be written.
        """
        from loadtest.columns import prompts

        if cut(self.folder, levels):
            said = f"going on after {len(levels)} level{'s' * (len(levels) != 1)}"
            self._progress.remark(f"{said}: what had begun is played again from its start, without the requests it had")
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
    route = route_of(options)
    before = load(options.output).run_id if options.output and options.resume else None
    run = before or secrets.token_hex(16)
    headers = headers_of(options, place, run)
    redact = options.redact
    variables = variables_of(asked)
    learn(redact, asked, headers, route, variables)
    with (
        output_folder(options.output, asked.name, resume=options.resume) as folder,
        _material(asked, bundled, interrupts, progress) as rows,
    ):
        levels = plan.levels(asked, bundled=bundled, rows=rows)
        slos = objectives(asked, levels)
        target = target_of(options, place, asked, levels, headers, folder, route.proxy)
        with (
            _engine(options, levels, interrupts, progress) as engine,
            contextlib.closing(target),
            options.bearer.renewing() if options.bearer else contextlib.nullcontext(),
        ):
            watched = Telemetry(
                options.wanted, place.origin if place else parse("127.0.0.1"), asked.endpoint,
                Way(headers, options.tls, route.proxy, options.proxy, options.bearer),
            )  # fmt: skip
            with interrupts.at_once():
                if place is not None:
                    confirm(options, place.origin, asked, levels, route, progress)
            progress.note("starting the bundled server" if bundled else "reaching the target")
            try:
                with interrupts.at_once():

                    def ready() -> tuple[Facts, Rehearsed]:
                        facts, path = target.open(), place.path if place else None
                        speech = speech_of(asked, facts, path, variables)
                        see_requests(speech, levels)
                        wiring = wiring_of(options, asked, facts, speech, headers, folder, route, None)
                        engine.see_reach(wiring)
                        return facts, _rehearsed(options, target, wiring, levels)

                    patience_s = None if bundled else options.wait_ready_s
                    facts, rehearsed = waited(ready, patience_s, saying(options, progress)) if patience_s else ready()
                    speech = rehearsed.speech
                    facts = with_tokens(target, facts, asked, speech, levels)
                    unseen = watched.find(place.around(asked.pattern) if place else parse(facts.url))
            except LoadtestError as error:  # with words of the target, which may repeat our key
                raise type(error)(redact(str(error))) from None
            log.info("target %s, model %s, %d worker(s)", redact(facts.url), facts.model, engine.size)
            warned = [*calibration.warning(levels, engine.size), *skipped(rows)]
            if options.url is not None:
                warned += detect.remarks(options.url, asked.endpoint, resolved.sources["endpoint"])
            warned += [*map(redact, [*rehearsed.notes, *unseen])]
            begun = _begun(options, resolved, facts, redact, route, warned)
            begun = msgspec.structs.replace(begun, adaptations=[*map(redact, rehearsed.adaptations)])
            told = msgspec.structs.replace(begun.conditions, telemetry=[*map(redact, watched.notes)])
            begun = msgspec.structs.replace(begun, run_id=run, conditions=told)
            wiring = wiring_of(
                options, asked, facts, speech, headers, folder, route, run if options.traceparent else None
            )
            if not options.resume:
                write_scenario(folder, resolved, redact)
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


def _rehearsed(options: Options, target: Target, wiring: Wiring, levels: Sequence[Level]) -> Rehearsed:
    """See that a target at a URL is ready, and takes what will be sent; the bundled server is and does."""
    if not isinstance(target, GivenURL):
        return Rehearsed(wiring.speech)
    if options.wait_ready_s:
        health(target.get)
    if not options.rehearse:
        return Rehearsed(wiring.speech)
    return rehearse(wiring, levels, waits=options.wait_ready_s is not None)


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


def _begun(
    options: Options, resolved: Resolved, facts: Facts, redact: Redactor, route: Route, warned: Sequence[str]
) -> Result:
    """The result as far as it is known before the first request."""
    asked = resolved.scenario
    assert asked.seed is not None
    notes = [*route.notes, *warned, *unused(asked, options.overrides, bundled=options.url is None)]
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
                proxy=route.proxy.url if route.proxy else None,
                transport=route.transport,
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
