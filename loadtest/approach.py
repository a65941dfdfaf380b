"""Getting to a target: what it is, what it takes to speak to it, and whether as much may be sent there."""

import logging
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from loadtest import consent, detect, scenario
from loadtest.bundled import server_options
from loadtest.endpoints import blanks
from loadtest.endpoints.catalog import dialect, speak
from loadtest.endpoints.dialect import Settings
from loadtest.endpoints.site import Site, site
from loadtest.engine.crew import asked_to_stop
from loadtest.engine.orders import Wiring
from loadtest.errors import LoadtestError, TargetError, UsageError
from loadtest.level import Level
from loadtest.options import Options
from loadtest.progress import Progress
from loadtest.records import JOURNAL
from loadtest.rehearsal import waited
from loadtest.route import Route, authorized, headers_of, learn, route_of
from loadtest.scenario.model import Override, Resolved, Scenario
from loadtest.sizing import sized
from loadtest.target import REACH_S, BundledServer, Facts, GivenURL, Target
from loadtest.wire.origin import Origin, is_loopback
from loadtest.wire.origin import resolve as address_of
from loadtest.wire.proxy import Proxy

log = logging.getLogger(__name__)
_PROMPT_S = 1.0  # a refusal that came within it may be met once more


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
    route, headers = route_of(options), headers_of(options, place)
    target = GivenURL(place.origin, place.kind, None, headers, place.discover, options.tls, route.proxy, options.bearer)
    progress.note("reaching the target")
    began, patience_s = time.monotonic(), options.wait_ready_s
    with asked_to_stop() as interrupts, interrupts.at_once():
        if patience_s:
            found = waited(lambda: detect.by_asking(target.get), patience_s, saying(options, progress))
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


def saying(options: Options, progress: Progress) -> Callable[[str], None]:
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
    place, route, variables = site(options.url, asked.endpoint), route_of(options), variables_of(asked)
    headers = headers_of(options, place)
    learn(redact, asked, headers, route, variables)
    target = target_of(options, place, asked, (), headers, Path(), route.proxy)
    assert isinstance(target, GivenURL)
    try:
        facts = target.open()
    except LoadtestError as error:  # with words of the target, which may repeat our key
        raise type(error)(redact(str(error))) from None
    speech = speech_of(asked, facts, place.path, variables)
    return Reached(target, wiring_of(options, asked, facts, speech, headers, Path(), route, None))


def confirm(
    options: Options, origin: Origin, asked: Scenario, levels: Sequence[Level], route: Route, progress: Progress
) -> None:
    """See that as much may be sent as the plan will, where that is to be asked.

    Raises:
        UsageError: it may not.
    """
    found = consent.question(origin, levels, asked.max_rate_per_s, asked.max_in_flight, options.most)
    if found is None or (route.proxy is None and is_loopback(address_of(origin, REACH_S))):
        return
    progress.close()
    if options.confirm is None:
        raise UsageError(f"{found}. Say that this is meant with --yes (LOADTEST_YES=1)")
    if not options.confirm(found):
        raise UsageError("it was not confirmed, and nothing was sent")


def target_of(
    options: Options, place: Site | None, asked: Scenario, levels: Sequence[Level],
    headers: Sequence[tuple[str, str]], folder: Path, proxy: Proxy | None,
) -> Target:  # fmt: skip
    """What is under test: the one at the URL, or the bundled server, whose log comes to lie in ``folder``."""
    if place is not None:
        spoken = (*dialect(asked.endpoint).headers, *headers)
        return GivenURL(
            place.origin, asked.endpoint, asked.model, spoken, place.discover, options.tls, proxy, options.bearer,
            place.around(asked.pattern),
        )  # fmt: skip
    return BundledServer(server_options(asked, levels), asked.endpoint, folder / "server.log")


def wiring_of(
    options: Options, asked: Scenario, facts: Facts, speech: Settings, headers: tuple[tuple[str, str], ...],
    folder: Path, route: Route, trace: str | None,
) -> Wiring:  # fmt: skip
    """All that a worker has to know to send to the target of these ``facts``."""
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
        transport=route.transport,
        trace=trace,
        tls=options.tls,
        proxy=route.proxy,
    )
    return authorized(wiring, options.bearer)


def variables_of(asked: Scenario) -> tuple[tuple[str, str], ...]:
    """The environment variables that a template names, with their values.

    Raises:
        UsageError: one of them is not set.
    """
    names = blanks.variables(asked.pattern.request.blanks)
    for name in names:
        if name not in os.environ:
            raise UsageError(f"request: {{{{ env.{name} }}}}: the variable {name} is not set; export it before the run")
    return tuple((name, os.environ[name]) for name in names)


def speech_of(asked: Scenario, facts: Facts, path: str | None, variables: tuple[tuple[str, str], ...]) -> Settings:
    """What the dialect has to know."""
    assert asked.seed is not None
    return Settings(
        asked.endpoint, facts.model, asked.stream, facts.owner, facts.told, path, pattern=asked.pattern,
        variables=variables, seed=asked.seed,
    )  # fmt: skip


def see_requests(speech: Settings, levels: Sequence[Level]) -> None:
    """See that the requests of each level can be made.

    Raises:
        UsageError: the model takes something else.
    """
    spoken = speak(speech)
    for level in levels:
        for workload in level.workloads:
            spoken.check(workload.tensors, level.batch_size, texts=workload.input_tokens is not None)


def with_tokens(target: Target, facts: Facts, asked: Scenario, speech: Settings, levels: Sequence[Level]) -> Facts:
    """The facts with all that can be found out of the target's tokens, as far as prompts have to be made."""
    assert asked.seed is not None
    workloads = [workload for level in levels for workload in level.workloads]
    made = [workload.corpus for workload in workloads if workload.data is None or workload.prefix is not None]
    corpora = [*dict.fromkeys([*made, *(None for level in levels if level.probe)])]
    if not dialect(asked.endpoint, asked.pattern).counts:
        corpora = []
    tokens = sized(target, facts, speech, asked.tokenizer, corpora, asked.seed)
    return msgspec.structs.replace(facts, tokens=tokens)
