"""A request of each kind before the clock, as the run would send it: what the server would refuse is found out now.

What METRICS.md allows to be left out of requests is left out; what every request would be refused for ends the run.
"""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeVar

from msgspec.structs import replace

from loadtest.endpoints.dialect import Settings
from loadtest.endpoints.reading import Reading
from loadtest.engine.maker import Letters
from loadtest.engine.orders import Wiring
from loadtest.errors import TargetError
from loadtest.level import Level
from loadtest.records import lasting
from loadtest.schedule import stream
from loadtest.wire.control import Reply
from loadtest.wire.origin import parse
from loadtest.wire.single import Limits, Single, Way, single
from loadtest.workload.compose import Composer
from loadtest.workload.model import Workload
from loadtest.workload.request import Request

HEALTH = ("/health", "/v2/health/ready", "/ready", "/healthz", "/ping")
_MOST = 8  # kinds of request; a run of more is not worth waiting for all of them
_INPUT = 64  # tokens
OUTPUT = 16  # some servers take no limit below it
_PATIENCE_S = 30.0  # a slow answer is a finding of the run, and no reason to hold it up
_PAUSE_S = 1.0
_OF_THIS_ONE = frozenset({400, 413, 422})  # a refusal that another prompt may not meet

T = TypeVar("T")
log = logging.getLogger(__name__)


class Rehearsed(NamedTuple):
    """What came of it: how the run speaks now, what was changed for that, and what else the user should know."""

    speech: Settings
    adaptations: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


class Kind(NamedTuple):
    """What requests are alike in, but for their lengths: the workload, the model that it names itself, the level's
    model, and how many samples they have."""

    workload: Workload
    named: str | None = None
    model: str | None = None
    samples: int = 1


class Tried(NamedTuple):
    """One request that was sent for its own sake: as it went, as it was read, and how it was spoken."""

    ended: Single
    reading: Reading
    speech: Settings
    adaptations: tuple[str, ...]


def rehearse(wiring: Wiring, levels: Sequence[Level], *, waits: bool = False) -> Rehearsed:
    """Ask one request for each model and workload: with few tokens, and none of the prompts that the run will send.

    Of data it is the last row. A busy server is noted and no more, unless the user ``waits`` for a first success.

    Raises:
        TargetError: every request of the run would be refused; or the target is not ready, if that is waited for.
    """
    found = Rehearsed(wiring.speech)
    way = Way(parse(wiring.url), wiring.address, wiring.tls, wiring.proxy)
    for number, kind in enumerate(_kinds(levels)):
        gone = tried(replace(wiring, speech=found.speech), way, kind, number)
        found = found._replace(speech=gone.speech, adaptations=(*found.adaptations, *gone.adaptations))
        error = gone.reading.error
        if error is None:
            continue
        if lasting(error) and error.status not in _OF_THIS_ONE:
            raise TargetError(f"the target refuses what the run would send: {error.message}")
        if waits:
            raise TargetError(error.message)
        note = f"a request before the clock failed, and the run was played all the same: {error.message}"
        found = found._replace(notes=(*found.notes, note))
    return found


def _kinds(levels: Sequence[Level]) -> Iterator[Kind]:
    """Those of the levels, as far as they are to be rehearsed; of levels that differ in samples alone the first's."""
    seen: set[tuple[str | None, str, str | None]] = set()
    for level in levels:
        for workload in level.workloads:
            for named in tuple(each.name for each in workload.models) or (None,):
                key = (level.model, workload.name, named)
                if key not in seen and len(seen) < _MOST:
                    seen.add(key)
                    yield Kind(workload, named, level.model, level.batch_size)


def tried(wiring: Wiring, way: Way, kind: Kind, number: int, *, coding: bytes = b"identity") -> Tried:
    """One request, sent again without what the server named as long as it may be left out, each once.

    ``number`` tells its prompt from those of others; ``coding`` is how the answer may be compressed.
    """
    limits = Limits(
        min(wiring.timeout_s, _PATIENCE_S), wiring.connect_timeout_s, min(wiring.stall_timeout_s, _PATIENCE_S)
    )
    adaptations: tuple[str, ...] = ()
    while True:
        letters = Letters(wiring, kind.model, 0)
        payload = _payload(letters, wiring, kind, number)
        payload = payload.replace(b"Accept-Encoding: identity\r\n", b"Accept-Encoding: %b\r\n" % coding, 1)
        ended = single(way, payload, limits)
        reading = Reading(letters.dialect)
        reading.finish(ended.exchange)
        error, speech = reading.error, wiring.speech
        left_out = letters.dialect.adaptation(error.message) if error is not None and error.status == 400 else None
        if error is None or left_out is None or left_out in speech.left_out:
            return Tried(ended, reading, speech, adaptations)
        wiring = replace(wiring, speech=replace(speech, left_out=(*speech.left_out, left_out)))
        change = f"{left_out}: one request before the clock was sent again, since the server said {error.message!r}"
        adaptations = (*adaptations, change)


def _payload(letters: Letters, wiring: Wiring, kind: Kind, number: int) -> bytes:
    """The bytes of a request that the run will not send: its random stream is its own."""
    rng, workload = stream(wiring.seed, "rehearsal", number), kind.workload
    rows = workload.rows if workload.data is not None else None  # a trace has no texts, and long prompts
    last = [max(0, rows.count - 1 - place) for place in range(kind.samples)] if rows else [None]
    asked, answer = workload.input_tokens, workload.output_tokens
    request = Request(
        0,
        None if rows else min(asked.sample(rng) if asked else _INPUT, _INPUT),
        min(answer.sample(rng) if answer else OUTPUT, OUTPUT),
        rng,
        row=last[0],
        model=kind.named,
        samples=kind.samples,
        others=tuple(row for row in last[1:] if row is not None),
    )
    alone = replace(workload, rows=rows, prefix=None, conversation=None)
    composer = Composer((alone,), wiring.tokens, rng.getrandbits(53))
    try:
        return letters.write(composer.compose(request).ask, request.id)
    finally:
        composer.close()


def health(get: Callable[[str], Reply]) -> None:
    """See what the target itself says of being ready, at the first of the usual paths that it has.

    Raises:
        TargetError: it says that it is not.
    """
    for path in HEALTH:
        reply = get(path)
        if reply.status >= 500 or reply.status == 429:
            words = " ".join(reply.text.split())[:200]
            raise TargetError(f"{path} says {reply.status}{f': {words}' if words else ''}")
        if reply.status < 300:
            return


def waited(attempt: Callable[[], T], within_s: float, say: Callable[[str], None]) -> T:
    """What ``attempt`` returns, tried again each second while it raises TargetError.

    Raises:
        TargetError: it did so for ``within_s`` seconds; with the last words.
    """
    until, words = time.monotonic() + within_s, ""
    while True:
        try:
            return attempt()
        except TargetError as error:
            left_s = until - time.monotonic()
            if left_s <= 0:
                raise TargetError(f"not ready in the time of --wait-ready: {error}") from None
            if words != str(error):
                words = str(error)
                log.info("waiting for the target: %s", words)
            say(f"waiting for the target, {left_s:.0f} s left: {error}")
            time.sleep(min(_PAUSE_S, left_s))
