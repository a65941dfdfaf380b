"""What is wrong between the keys of a scenario.

Reads the raw values, so that it is found beside the faults of single ones.
"""

from collections.abc import Iterator
from typing import Any

from loadtest.duration import duration, duration_text
from loadtest.endpoints.catalog import dialect, kinds
from loadtest.endpoints.dialect import ONE_A_REQUEST
from loadtest.scenario import form
from loadtest.scenario.document import Document, Fault, Keys, dotted

AXES: dict[str, str] = {
    "concurrency": "load",
    "rate": "load",
    "stages": "load",
    "trace": "load",
    "input_tokens": "workload",
    "output_tokens": "workload",
    "batch_size": "workload",
    "model": "",
    "scheduler": "server",
    "max_batch_size": "server",
}
"""The keys of a block, and the section that gives what a block does not; "" is the top of the file."""
LOADS = tuple(key for key, section in AXES.items() if section == "load")
"""The keys that say what a load is: one of them is given, and a block with one does not inherit another."""

_EXCLUDES = {
    ("concurrency", "rate"): "a rate is an open loop, a concurrency a closed one",
    ("concurrency", "stages"): "stages are an open loop, a concurrency a closed one",
    ("rate", "stages"): "stages have rates of their own",
    ("concurrency", "trace"): "a trace is an open loop, a concurrency a closed one",
    ("rate", "trace"): "a trace has times of its own",
    ("stages", "trace"): "a trace has times of its own",
}

Played = dict[Keys, Any]
"""The loads that are played, by where they stand."""


def clashes(document: Document) -> Iterator[Fault]:
    """Every fault between keys."""
    data = document.data
    load, blocks = mapping(data, "load"), blocks_of(data)
    for at, axes in [(("load",), load), *blocks]:
        first, *others = [key for key in LOADS if axes.get(key) is not None] or [""]
        for other in others:
            excluded, here = (*at, first), (*at, other)
            text = f"excludes {_where(document, excluded, here)}: {_EXCLUDES[first, other]}; keep one"
            yield _between(document, here, text)
        stages = axes.get("stages")
        for keys, text in _stage_faults(stages if isinstance(stages, list) else []):
            yield _between(document, (*at, "stages", *keys), text)

    played: Played = {}
    for at, axes in blocks or [(("load",), load)]:
        key = load_of(axes, load)
        played[(*at, key) if axes.get(key) is not None else ("load", key)] = axes.get(key) or load.get(key)
    for key, text in _load_faults(load, {str(at[-1]) for at in played}):
        yield _between(document, ("load", key), text)
    yield from _time_faults(document, load, played)
    yield from _slot_faults(document, mapping(data, "server"), [block for _, block in blocks])
    yield from _zip_faults(document, load, blocks)
    yield from _mix_faults(document, played)
    yield from _model_faults(document)
    yield from _batch_faults(document, played)
    for at, block in blocks:
        source: Keys | None = ("workload", "data") if mapping(data, "workload").get("data") is not None else None
        if load_of(block, load) == "trace":
            source = (*at, "trace") if block.get("trace") is not None else ("load", "trace")
        if source and block.get("input_tokens") is not None:
            yield _between(document, here := (*at, "input_tokens"), _lengths_known(document, source, here))
    traced = next(iter(played)) if all(at[-1] == "trace" for at in played) else None
    for at, asked in _workloads(data):
        for key, text in _workload_faults(document, at, asked, traced):
            yield _between(document, (*at, *key.split(".")), text)


def mapping(data: dict[str, Any], key: str) -> dict[str, Any]:
    """A section of the file; empty when it is not there or not a mapping."""
    section = data.get(key)
    return section if isinstance(section, dict) else {}


def blocks_of(data: dict[str, Any]) -> list[tuple[Keys, dict[str, Any]]]:
    """The blocks of levels in the file, each with the way to it."""
    return _items(data, "levels")


def load_of(*sections: dict[str, Any]) -> str:
    """Which of ``LOADS`` is played: that of the first of ``sections`` that gives one."""
    given = (key for section in sections for key in LOADS if section.get(key) is not None)
    return next(given, "concurrency")


def _items(data: dict[str, Any], key: str) -> list[tuple[Keys, dict[str, Any]]]:
    """The mappings in a list of the file, each with the way to it."""
    listed = data.get(key)
    numbered = enumerate(listed) if isinstance(listed, list) else ()
    return [((key, index), item) for index, item in numbered if isinstance(item, dict)]


def _workloads(data: dict[str, Any]) -> list[tuple[Keys, dict[str, Any]]]:
    """The workload, or the parts of the mix, each with the way to it."""
    return _items(data, "mix") or [(("workload",), mapping(data, "workload"))]


def _between(document: Document, at: Keys, text: str) -> Fault:
    """The fault at a value that is given."""
    place = document.values.get(at) or document.keys[at]
    return Fault(place, dotted(at) if place.line else "", text)


def _where(document: Document, at: Keys, seen_from: Keys) -> str:
    """The name of a value and where it stands."""
    place, here = document.values.get(at), document.values[seen_from]
    if place is None:
        return f"the default {at[-1]}"
    near = place.line and place.origin == here.origin
    return f"{at[-1]} ({f'line {place.line}' if near else place.source})"


def _load_faults(load: dict[str, Any], kinds: set[str]) -> Iterator[tuple[str, str]]:
    """The settings of a load that would do nothing, by key."""
    if load.get("arrival") is not None and not kinds & {"rate", "stages"}:
        yield "arrival", "applies to an open loop only: give a rate or stages, or remove it"
    if load.get("max_in_flight") is not None and kinds == {"concurrency"}:
        yield "max_in_flight", "applies to an open loop only: give a rate or stages, or remove it"
    if load.get("burstiness") is not None and load.get("arrival") != "gamma":
        yield "burstiness", "applies to the arrival 'gamma' only: ask for that, or remove it"
    if load.get("when_full") is not None and load.get("max_in_flight") is None:
        yield "when_full", "applies to max_in_flight only: give that, or remove it"


def _time_faults(document: Document, load: dict[str, Any], played: Played) -> Iterator[Fault]:
    """What is wrong between the duration, the warm-up and the loads which have durations of their own."""
    duration_at, warmup_at = ("load", "duration"), ("load", "warmup")
    lasting = {at: _total_s(value) if at[-1] == "stages" else None for at, value in played.items() if _lasts_itself(at)}
    if len(lasting) == len(played):
        if load.get("duration") is not None:
            at = next(iter(lasting))
            why = "these last as long as each of them says" if at[-1] == "stages" else "it lasts as long as its window"
            yield _between(document, duration_at, f"excludes {_where(document, at, duration_at)}: {why}; keep one")
    elif load.get("duration") is not None:
        lasting[duration_at] = _seconds(load["duration"])
    elif load.get("requests") is None:
        lasting[duration_at] = form.DEFAULTS["load.duration"]
    elif _seconds(load.get("warmup")):
        text = "needs a duration: a level bounded by requests alone is measured whole; remove one"
        yield _between(document, warmup_at, text)
    warmup = _seconds(load.get("warmup"))
    for at, lasts in lasting.items():
        if warmup and lasts is not None and warmup >= lasts:
            text = f"expected less than {_where(document, at, warmup_at)} of {duration_text(lasts)}"
            text += f", got {duration_text(warmup)}: nothing would be left to measure"
            yield _between(document, warmup_at, text)


def _lasts_itself(at: Keys) -> bool:
    return at[-1] in ("stages", "trace")


def _slot_faults(document: Document, server: dict[str, Any], blocks: list[dict[str, Any]]) -> Iterator[Fault]:
    """Too few slots for the largest batch."""
    slots = server.get("kv_slots")
    sizes = [axes.get("max_batch_size") or server.get("max_batch_size") for axes in blocks or [server]]
    largest = max(
        (
            size
            for given in sizes
            for size in (given if isinstance(given, list) else [given or form.DEFAULTS["server.max_batch_size"][0]])
            if isinstance(size, int)
        ),
        default=0,
    )
    if isinstance(slots, int) and slots < largest:
        text = f"expected at least the largest max_batch_size ({largest}), got {slots}"
        yield _between(document, ("server", "kv_slots"), text)


def _zip_faults(document: Document, load: dict[str, Any], blocks: list[tuple[Keys, dict[str, Any]]]) -> Iterator[Fault]:
    """Lists that cannot be taken side by side."""
    if load.get("combine") != "zip":
        return
    data = document.data
    for _, block in blocks or [((), {})]:
        kind = load_of(block, load)
        sections = {kind: load} | {key: mapping(data, at) if at else data for key, at in AXES.items() if at != "load"}
        given = {key: block.get(key) or section.get(key) for key, section in sections.items()}
        counts = {
            key: len(value)
            for key, value in given.items()
            if isinstance(value, list) and len(value) > 1 and key not in ("stages", "trace")
        }
        if len({*counts.values()}) > 1:
            unlike = ", ".join(f"{key} has {count}" for key, count in counts.items())
            text = f"zip takes lists of one length, or single values: {unlike}"
            yield _between(document, ("load", "combine"), text)
            return


def _mix_faults(document: Document, played: Played) -> Iterator[Fault]:
    """What a mix leaves no room for, and parts of one name."""
    data = document.data
    if data.get("mix") is None:
        return
    elsewhere: list[tuple[Keys, Any]] = [(("workload", key), value) for key, value in mapping(data, "workload").items()]
    for at, block in blocks_of(data):
        elsewhere += [((*at, key), block.get(key)) for key in ("input_tokens", "output_tokens")]
    for at, value in elsewhere:
        if value is not None:
            text = f"excludes {_where(document, ('mix',), at)}: each of its parts has its own; keep one"
            yield _between(document, at, text)
    for at in played:
        if at[-1] == "trace":
            yield _between(
                document, at, f"excludes {_where(document, ('mix',), at)}: a trace is one workload; keep one"
            )
    seen: dict[str, int] = {}
    for at, part in _items(data, "mix"):
        name = part.get("name")
        if isinstance(name, str) and seen.setdefault(name, int(at[1])) != at[1]:
            here = (*at, "name")
            text = f"is that of an earlier part, too: {_where(document, ('mix', seen[name], 'name'), here)}; rename one"
            yield _between(document, here, text)


def _model_faults(document: Document) -> Iterator[Fault]:
    """A model that nobody asks for, as every workload names its own."""
    data = document.data
    workloads = _workloads(data)
    if all(asked.get("models") is not None for _, asked in workloads):
        models = (*workloads[0][0], "models")
        for at in [("model",), *((*at, "model") for at, block in blocks_of(data) if block.get("model") is not None)]:
            if at in document.values and (len(at) > 1 or data.get("model") is not None):
                text = f"excludes {_where(document, models, at)}: these are asked instead; keep one"
                yield _between(document, at, text)


def _batch_faults(document: Document, played: Played) -> Iterator[Fault]:
    """Several samples a request, where the endpoint makes text or the load is one of single requests."""
    data = document.data
    endpoint = data.get("endpoint")  # of None it is found by asking
    places: list[tuple[Keys, dict[str, Any]]] = [(("workload",), mapping(data, "workload")), *blocks_of(data)]
    for at, section in places:
        here = (*at, "batch_size")
        if section.get("batch_size") is None:
            continue
        if endpoint in kinds() and not dialect(endpoint).batches:
            yield _between(document, here, f"does not apply: {endpoint} {ONE_A_REQUEST}")
        for other in played:
            if other[-1] == "trace":
                why = "its arrivals are single requests; keep one"
                yield _between(document, here, f"excludes {_where(document, other, here)}: {why}")


def _workload_faults(
    document: Document, at: Keys, asked: dict[str, Any], traced: Keys | None
) -> Iterator[tuple[str, str]]:
    """What would do nothing or cannot be in a workload, by key. ``traced`` is a trace that alone is played."""
    endpoint = document.data.get("endpoint") or form.DEFAULTS["endpoint"]
    given = {key for key, value in asked.items() if value is not None and (key, value) != ("correlation", 0)}
    talk = mapping(asked, "conversation")
    source = (*at, "data") if "data" in given else traced

    def excludes(key: str, other: Keys, why: str) -> tuple[str, str]:
        return key, f"excludes {_where(document, other, (*at, *key.split('.')))}: {why}; keep one"

    if source and "input_tokens" in given:
        yield "input_tokens", _lengths_known(document, source, (*at, "input_tokens"))
    if source and "correlation" in given:
        yield excludes("correlation", source, "the lengths are those that are there")
    elif "correlation" in given and not (_vary(document, at, "input_tokens") and _vary(document, at, "output_tokens")):
        yield "correlation", "applies to two lengths that vary: give distributions, such as uniform(64, 192)"
    if traced and "data" in given:
        yield excludes("data", traced, "a trace says what is asked")
    elif "data" in given and "corpus" in given and not {"prefix", "conversation"} & given:
        yield excludes("corpus", (*at, "data"), "no text is made where it is read")
    if "conversation" in given:
        if isinstance(asked["conversation"], dict) and talk.get("turns") is None and not source:
            yield "conversation", "is missing 'turns': how many a session has, such as uniform(2, 6)"
        if source and talk.get("next_input") is not None:
            yield excludes("conversation.next_input", source, "prompts are as long as they are there")
        if traced and talk.get("think") is not None and _seconds(talk["think"]) != 0:
            yield excludes("conversation.think", traced, "its turns have times of their own")
    if endpoint not in kinds() or endpoint == "http":
        return  # a fault of its own, or what the template says decides
    spoken = dialect(endpoint)
    for key in sorted({"conversation", "images"} & given) if not spoken.converses else ():
        yield key, f"needs an endpoint of messages, such as chat: {endpoint} takes plain text"
    for key in sorted({"inputs", "binary"} & given) if spoken.reads and document.data.get("endpoint") else ():
        yield key, f"needs an endpoint of tensors, such as kserve: {endpoint} takes text"
    for key in sorted({"body", "prefix", "data"} & given) if not spoken.reads else ():
        yield key, f"does not apply: the endpoint {endpoint} takes tensors; give inputs"
    if not spoken.generates and "output_tokens" in given:
        yield "output_tokens", f"does not apply: the endpoint {endpoint} writes no answer"


def _lengths_known(document: Document, source: Keys, at: Keys) -> str:
    return f"excludes {_where(document, source, at)}: prompts are as long as they are there; keep one"


def _vary(document: Document, at: Keys, key: str) -> bool:
    """Whether a length of a workload is anywhere more than one number."""
    sections = [mapping(document.data, "workload"), *(block for _, block in blocks_of(document.data))]
    if at[0] == "mix":
        sections = [document.data["mix"][at[1]]]
    values = [section.get(key) for section in sections]
    each = [item for value in values for item in (value if isinstance(value, list) else [value])]
    return any(isinstance(value, str | dict) and not str(value).strip().isdigit() for value in each)


def _stage_faults(stages: list[Any]) -> Iterator[tuple[Keys, str]]:
    """What is wrong between the keys of stages, and where within the list."""
    known = {field.alias or name for name, field in form.Stage.model_fields.items()}
    for index, stage in enumerate(stages):
        if not isinstance(stage, dict) or not stage.keys() <= known:
            continue  # told of elsewhere, and perhaps it is the rate that is misspelt
        ends = [key for key in ("from", "to") if stage.get(key) is not None]
        if stage.get("rate") is not None and ends:
            yield (index, "rate"), "excludes from and to: a stage has one rate or goes from one to another; keep one"
        elif stage.get("rate") is None and not ends:
            yield (index,), "is missing its rate: write rate: 5, or from: 5, to: 50"
        elif stage.get("rate") is None and len(ends) == 1:
            missing = "to" if ends == ["from"] else "from"
            yield (index,), f"is missing {missing!r}: a stage goes from one rate to another"
    if stages and all(isinstance(stage, dict) and _is_pause(stage) for stage in stages):
        yield (), "are all of rate 0: nothing would be sent"


def _is_pause(stage: dict[str, Any]) -> bool:
    rates = [stage[key] for key in ("rate", "from", "to") if stage.get(key) is not None]
    return bool(rates) and all(rate == 0 for rate in rates)


def _total_s(stages: Any) -> float | None:
    """How long stages last together, or None where that is not known because one is wrong."""
    listed = stages if isinstance(stages, list) else [stages]
    each = [_seconds(stage.get("duration")) if isinstance(stage, dict) else None for stage in listed]
    return None if None in each else sum(filter(None, each))


def _seconds(value: object) -> float | None:
    """A duration, or None where there is none or validation reports it."""
    try:
        return duration(value)
    except ValueError:
        return None
