"""A few small requests that show what a target speaks and takes, and where the time of one of them goes."""

import json
import re
import shlex
import time
from collections.abc import Callable, Iterator, Mapping
from email.utils import parsedate_to_datetime

from msgspec.structs import replace

from loadtest import approach, scenario
from loadtest.detect import FOUND
from loadtest.endpoints.catalog import speak
from loadtest.engine.crew import asked_to_stop
from loadtest.engine.orders import Wiring
from loadtest.errors import TargetError
from loadtest.options import Options
from loadtest.portrait import Check, Portrait, Raw, Step
from loadtest.progress import Progress
from loadtest.redact import MARK
from loadtest.rehearsal import HEALTH, OUTPUT, Kind, Tried, tried, waited
from loadtest.scenario.pattern import HTTP
from loadtest.scenario.text import template
from loadtest.target import GivenURL, model_cards
from loadtest.wire.control import Reply
from loadtest.wire.origin import parse
from loadtest.wire.single import Single, Way
from loadtest.workload.lengths import Length
from loadtest.workload.model import Workload

_SHOWN = 200  # characters of what the target says
_CLOCK_S = 2.0  # a Date header has whole seconds, and was some time on its way
_OPENAI = ("chat", "completions")
_EXACT = {"ignore_eos": True}


def probe(options: Options, progress: Progress, *, raw: bool = False) -> Portrait:
    """Ask a target what it is and what it takes: by some GETs, and half a dozen requests of few tokens, one by one.

    ``raw`` keeps the bytes of the timed request.

    Raises:
        LoadtestError: it cannot be reached, or not be asked as the options say.
    """
    options = approach.detected(options, progress)
    resolved = scenario.seeded(options.source, options.overrides)

    def reached() -> approach.Reached:
        return approach.reached(options, resolved)

    say = approach.saying(options, progress)
    with asked_to_stop() as interrupts, interrupts.at_once():
        found = waited(reached, options.wait_ready_s, say) if options.wait_ready_s else reached()
        target, wiring = found.target, found.wiring
        posts = _Posts(wiring, resolved.scenario.workloads[0], progress)
        first = posts.ask("one request as a run sends it")
        replies = _Replies(target)
        checks = [*_of_target(replies), *_of_way(first.ended), *_of_requests(posts, first)]
    error, redact = first.reading.error, options.redact
    usable = error is None or any(check.name == "no stream" and check.works for check in checks)
    cards = model_cards(replies("/v1/models") or Reply(0, "", None))
    return Portrait(
        url=redact(wiring.url),
        address=wiring.address,
        endpoint=wiring.speech.kind,
        how=resolved.sources["endpoint"].removeprefix(FOUND),
        model=redact(wiring.speech.model),
        models=[redact(str(card["id"])) for card in cards],
        checks=[replace(check, evidence=redact(check.evidence)) for check in checks],
        waterfall=_waterfall(first),
        adaptations=[redact(change) for change in first.adaptations],
        curl=_curl(first.ended, wiring, redact),
        section=redact(_section(wiring, streams=first.reading.streamed or not posts.generates)),
        requests=posts.sent,
        reason=None if usable or error is None else redact(error.message),
        raw=Raw(_text(first.ended.sent, redact), _text(first.ended.received, redact)) if raw else None,
    )


class _Posts:
    """Requests of few tokens, as the run's; what was left out of the first is left out of the others."""

    def __init__(self, wiring: Wiring, workload: Workload, progress: Progress) -> None:
        self.sent = 0
        self.wiring = wiring
        self._workload = workload
        self._progress = progress
        # The name is looked up here, and the time of that is part of the first one's.
        self._way = Way(parse(wiring.url), None, wiring.tls, wiring.proxy)

    @property
    def generates(self) -> bool:
        """Whether the answers are text."""
        return speak(self.wiring.speech).generates

    def ask(
        self, what: str, *, stream: bool | None = None, body: Mapping[str, object] | None = None, number: int = 0,
        coding: bytes = b"identity",
    ) -> Tried:  # fmt: skip
        """Send one; the same ``number`` is the same prompt."""
        self._progress.note(f"asking: {what}")
        speech, workload = self.wiring.speech, self._workload
        if stream is not None:
            speech = replace(speech, stream=stream)
        if body is not None:
            own = json.loads(workload.body) if workload.body else {}
            workload = replace(workload, body=json.dumps({**own, **body}))
        if self.generates:
            workload = replace(workload, output_tokens=Length(OUTPUT, OUTPUT))
        gone = tried(replace(self.wiring, speech=speech), self._way, Kind(workload), number, coding=coding)
        self.sent += 1 + len(gone.adaptations)
        self.wiring = replace(self.wiring, speech=replace(self.wiring.speech, left_out=gone.speech.left_out))
        self._way = self._way._replace(address=self.wiring.address)
        return gone


class _Replies:
    """What the target answers to GETs, each asked once; None where it does not answer at all."""

    def __init__(self, target: GivenURL) -> None:
        self._target = target
        self._known: dict[str, Reply | None] = {}

    def __call__(self, path: str) -> Reply | None:
        if path not in self._known:
            try:
                self._known[path] = self._target.get(path)
            except TargetError:
                self._known[path] = None
        return self._known[path]


# What the target is ------------------------------------------------------------------------------------------


def _of_target(ask: _Replies) -> Iterator[Check]:
    listed = ask("/v1/models")
    cards = model_cards(listed) if listed else []
    names = ", ".join(str(card["id"]) for card in cards[:5]) + (", …" if len(cards) > 5 else "")
    told = f"/v1/models lists {len(cards)}: {names}" if cards else f"/v1/models answers {_status(listed)}"
    yield Check("model list", bool(cards) or None, told)
    healthy = next(((path, reply) for path in HEALTH if (reply := ask(path)) and reply.status != 404), None)
    if healthy is None:
        yield Check("health", None, f"none of {', '.join(HEALTH)} is there")
    else:
        yield Check("health", healthy[1].status < 400, f"{healthy[0]} answers {healthy[1].status}")
    version, described = ask("/version"), ask("/openapi.json")
    said = [value for reply in (listed, version, described) if reply and (value := reply.headers.get("server"))][:1]
    number = version.json.get("version") if version and isinstance(version.json, dict) else None
    said += [f"/version says {number}"] if isinstance(number, str) else []
    about = described.json if described and isinstance(described.json, dict) else {}
    info, paths = about.get("info"), about.get("paths")
    if isinstance(info, dict) and isinstance(paths, dict):
        said.append(f"{info.get('title', 'OpenAPI')} {info.get('version', '')}".strip())
        yield Check("OpenAPI", works=True, evidence=f"/openapi.json describes {len(paths)} paths")
    else:
        yield Check("OpenAPI", None, f"/openapi.json answers {_status(described)}")
    yield Check("software", bool(said) or None, "; ".join(said) or "it says nothing of itself")


def _status(reply: Reply | None) -> str:
    return "not" if reply is None else str(reply.status)


def _of_way(single: Single) -> Iterator[Check]:
    headers, now = single.headers, time.time()
    if single.exchange.failure is not None and not single.reads:
        return  # there was no response to tell anything
    kept = "close" not in headers.get("connection", "").lower() and not single.received.startswith(b"HTTP/1.0")
    words = f"Connection: {headers['connection']}" if "connection" in headers else "nothing is said of closing"
    version = single.received[:8].decode("latin-1")
    yield Check("keep-alive", kept, f"{version}, {words}")
    yield Check("TLS", bool(single.tls) or None, single.tls or "plain HTTP")
    try:
        told = parsedate_to_datetime(headers["date"]).timestamp()
    except (KeyError, ValueError, TypeError):
        yield Check("clock", None, "the response has no Date that can be read")
        return
    arrived = now - (time.perf_counter_ns() - single.reads[0][0]) / 1e9
    apart = told - arrived
    near = abs(apart) <= _CLOCK_S
    yield Check(
        "clock", near, f"its Date is {'within' if near else f'{apart:+.0f} s off ours, not within'} {_CLOCK_S:g} s"
    )


# What it takes -----------------------------------------------------------------------------------------------


def _of_requests(posts: _Posts, first: Tried) -> Iterator[Check]:
    if not posts.generates:
        yield _answered("answer", first, lambda: f"whole after {_ms(first)} ms")
        return
    streams = first.reading.streamed
    if posts.wiring.speech.stream:
        yield replace(
            _answered("stream", first, lambda: _streamed(first)),
            works=first.reading.error is None and streams,
        )
    whole = posts.ask("the same without a stream", stream=False)
    yield replace(
        _answered("no stream", whole, lambda: _unstreamed(whole)),
        works=whole.reading.error is None and not whole.reading.streamed,
    )
    good = next((gone for gone in (first, whole) if gone.reading.error is None), None)
    if good is None:
        return  # nothing can be told of what is not answered
    yield from _of_usage(good, whole)
    if posts.wiring.speech.kind not in _OPENAI:
        return
    stream = None if first.reading.error is None else False
    yield from _of_fields(posts, first, stream)
    longer = posts.ask("ignore_eos", body=_EXACT, number=1, stream=stream)
    usage = longer.reading.answer.usage
    count = usage.output_tokens if usage else None
    told = f"{OUTPUT} tokens asked, {'an unknown number' if count is None else count} came"
    exact = _answered("ignore_eos", longer, lambda: f"taken; {told}")
    yield replace(exact, works=exact.works and (None if count is None else count == OUTPUT))
    packed = posts.ask("compression", number=2, stream=stream, coding=b"gzip")
    coding = packed.ended.headers.get("content-encoding")
    burst = coding and len({*packed.reading.answer.stamps}) <= 1 < len(packed.reading.answer.stamps)
    held = ", and holds the stream back for it" if burst else ""
    words = (
        f"it answers with {coding}{held} where that is offered; a run does not offer it" if coding else "none is used"
    )
    yield Check("compression", bool(coding) or None, words)


def _of_usage(good: Tried, again: Tried) -> Iterator[Check]:
    usage = good.reading.answer.usage
    if usage is None:
        yield Check("usage", works=False, evidence="no token counts; give --tokenizer to have them counted")
    else:
        counts = {"in": usage.input_tokens, "out": usage.output_tokens}
        told = ", ".join(f"{count} tokens {name}" for name, count in counts.items() if count is not None)
        yield Check("usage", bool(told), told or "without counts")
    after = again.reading.answer.usage
    cached = after.cached_input_tokens if after else None
    words = "not reported" if cached is None else f"reported: {cached} of the same prompt's when it came again"
    yield Check("cached tokens", None if cached is None else True, words)


def _of_fields(posts: _Posts, first: Tried, stream: bool | None) -> Iterator[Check]:
    """What of the fields that a run sends the server took, and the newer name of one."""
    refused = {change.split(" ", 1)[0].rstrip(":") for change in first.adaptations}

    def taken(field: str) -> Check:
        return Check(field, field not in refused, "refused, and left out" if field in refused else "taken")

    if posts.wiring.speech.stream and first.reading.error is None:
        yield taken("stream_options")
    if posts.wiring.speech.kind == "chat":
        yield taken("max_tokens")
        newer = posts.ask("max_completion_tokens", body={"max_completion_tokens": OUTPUT}, number=3, stream=stream)
        yield _answered("max_completion_tokens", newer, lambda: "taken")


def _answered(name: str, gone: Tried, told: Callable[[], str]) -> Check:
    error = gone.reading.error
    return Check(name, error is None, told() if error is None else error.message[:_SHOWN])


def _streamed(gone: Tried) -> str:
    answer = gone.reading.answer
    if not gone.reading.streamed:
        return "a stream was asked for, and the answer came in one piece"
    if not answer.stamps:
        return "a stream without an event of text"
    first_ms = (answer.stamps[0] - gone.ended.exchange.sent) / 1e6
    return f"{len(answer.stamps)} events, the first after {first_ms:.1f} ms"


def _unstreamed(gone: Tried) -> str:
    return "the answer was streamed all the same" if gone.reading.streamed else f"whole after {_ms(gone)} ms"


def _ms(gone: Tried) -> str:
    return f"{(gone.ended.exchange.done - gone.ended.exchange.sent) / 1e6:.1f}"


# How it is shown ---------------------------------------------------------------------------------------------


def _waterfall(gone: Tried) -> list[Step]:
    single, exchange, stamps = gone.ended, gone.ended.exchange, gone.reading.answer.stamps
    ends = [
        ("look-up", single.resolved),
        ("connect", single.connected),
        ("tunnel", single.tunnelled),
        ("TLS", single.secured),
        ("send", exchange.sent),
        ("first byte", gone.reading.first_byte),
        ("first token", stamps[0] if stamps else 0),
        ("tokens", stamps[-1] if len(stamps) > 1 else 0),
        ("end", exchange.done),
    ]
    steps, before = [], single.began
    for name, end in ends:
        if end:  # 0 is a step that there was not
            steps.append(Step(name, (before - single.began) / 1e6, (end - single.began) / 1e6))
            before = end
    return steps


def _curl(single: Single, wiring: Wiring, redact: Callable[[str], str]) -> str:
    """The request for a shell, with a variable in the place of what must not be shown."""
    origin = parse(wiring.url)
    head, _, body = single.exchange.payload.partition(b"\r\n\r\n")
    line, *fields = head.decode("latin-1").split("\r\n")
    method, target, _ = line.split(" ")
    words = ["curl", "-sS", "-N", "-X", method]
    if origin.socket is not None:
        words += ["--unix-socket", origin.socket]
    if wiring.proxy is not None:
        words += ["-x", wiring.proxy.url]
    tls = wiring.tls
    for flag, value in (("--cacert", tls.ca), ("--cert", tls.cert), ("--key", tls.key)):
        words += [flag, value] if value is not None else []
    words += ["-k"] if tls.insecure else []
    lines = [shlex.join(words), _quoted(f"{origin.scheme}://{origin.authority}{target}", redact)]
    for name, _, value in (field.partition(": ") for field in fields):
        if name.lower() not in ("host", "content-length", "accept-encoding"):
            lines.append(_header(name, value, redact))
    if body:
        try:
            lines.append(f"--data-raw {_quoted(body.decode(), redact)}")
        except UnicodeDecodeError:
            lines.append("--data-binary @body.bin  # its bytes are no text: -v shows them")
    return " \\\n  ".join(lines)


def _header(name: str, value: str, redact: Callable[[str], str]) -> str:
    scheme, _, credentials = value.partition(" ")
    if name.lower() != "authorization" or not credentials:
        return f"-H {_quoted(f'{name}: {value}', redact)}"
    return '-u "$LOADTEST_BASIC"' if scheme == "Basic" else f'-H "{name}: {scheme} $LOADTEST_API_KEY"'


def _quoted(text: str, redact: Callable[[str], str]) -> str:
    shown = redact(text)
    if shown == text:
        return shlex.quote(text)
    return '"' + re.sub(r'([\\"$`])', r"\\\1", shown).replace(MARK, "$LOADTEST_API_KEY") + '"'


def _section(wiring: Wiring, *, streams: bool) -> str:
    """The part of a scenario that says what was found. JSON is YAML, and quotes whatever needs quotes."""
    speech = wiring.speech
    if speech.kind == HTTP:
        model = f"model: {json.dumps(speech.model)}\n" if speech.model else ""
        return f"endpoint: {HTTP}\n{model}{template(speech.pattern)}"
    lines = [f"endpoint: {json.dumps(speech.kind)}", f"model: {json.dumps(speech.model)}"]
    return "\n".join([*lines, *([] if streams else ["stream: false"])]) + "\n"


def _text(data: bytes, redact: Callable[[str], str]) -> str:
    return redact(data.decode("utf-8", "backslashreplace"))
