"""A valid file made into a scenario: each value from the first place that gives it, and where that was."""

from typing import Any

import msgspec

from loadtest.endpoints.blanks import columns as columns_of
from loadtest.endpoints.catalog import dialect
from loadtest.endpoints.pattern import Pattern
from loadtest.scenario import form
from loadtest.scenario.check import place_of
from loadtest.scenario.checks import checks
from loadtest.scenario.clashes import AXES, LOADS
from loadtest.scenario.document import Keys, Place, dotted
from loadtest.scenario.model import AuditSettings, Block, Scenario, ServerSettings
from loadtest.scenario.pattern import HTTP, pattern, written
from loadtest.schedule import Stage
from loadtest.workload.model import (
    Conversation,
    Data,
    Images,
    Input,
    Prefix,
    Probe,
    Tensors,
    Trace,
    Weighted,
    Workload,
)


def build(name: str, file: form.File, values: dict[Keys, Place]) -> tuple[Scenario, dict[str, str]]:
    """The scenario of a valid file, and the source of each value by its dotted key."""
    return _Builder(file, values).scenario(name)


class _Builder:
    def __init__(self, file: form.File, values: dict[Keys, Place]) -> None:
        self._file = file
        self._values = values
        self._sources: dict[str, str] = {}
        self._pattern = pattern(file.request, file.response)
        spoken = dialect(file.endpoint or form.DEFAULTS["endpoint"], self._pattern)
        self._generates, self._reads = spoken.generates, spoken.reads
        self._writes = spoken.generates  # text, of which checks are
        if file.endpoint == HTTP:  # a length is asked for only where the request says it
            self._generates = "max_tokens" in self._pattern.request.blanks

    def scenario(self, name: str) -> tuple[Scenario, dict[str, str]]:
        file, one = self._file, self._one
        count = len(file.levels or [None])
        levels = [self._block(index, alone=count == 1) for index in range(count)]
        requests = one("load", "requests")
        timed = any(level.stages is None and level.trace is None for level in levels)
        duration = self._first(
            ("load", "duration"),
            ("load", "duration"),
            default=None if requests is not None or not timed else form.DEFAULTS["load.duration"],
        )
        gapped = any(level.concurrency is None and level.trace is None for level in levels)
        arrival = one("load", "arrival") if gapped else form.DEFAULTS["load.arrival"]
        max_in_flight = one("load", "max_in_flight")
        scenario = Scenario(
            name=self._first(("name",), ("name",), default=name),
            question=one("question"),
            endpoint=one("endpoint"),
            stream=self._streamed(),
            tokenizer=one("tokenizer"),
            seed=one("seed"),
            locked=one("locked"),
            workloads=self._workloads(),
            levels=levels,
            combine=one("load", "combine"),
            repeat=one("load", "repeat"),
            cooldown_s=one("load", "cooldown"),
            duration_s=duration,
            requests=requests,
            warmup_s=one("load", "warmup"),
            grace_s=one("load", "grace"),
            arrival=arrival,
            burstiness=one("load", "burstiness") if gapped and arrival == "gamma" else form.DEFAULTS["load.burstiness"],
            max_in_flight=max_in_flight,
            when_full=one("load", "when_full") if max_in_flight is not None else form.DEFAULTS["load.when_full"],
            max_rate_per_s=one("load", "max_rate"),
            abort_on=one("abort_on"),
            timeout_s=one("timeouts", "total"),
            connect_timeout_s=one("timeouts", "connect"),
            stall_timeout_s=one("timeouts", "stall"),
            server=ServerSettings(
                model=one("server", "model"),
                provider=one("server", "provider"),
                dtype=one("server", "dtype"),
                threads=one("server", "threads"),
                batch_timeout_ms=one("server", "batch_timeout_ms"),
                kv_slots=one("server", "kv_slots"),
                max_seq_len=one("server", "max_seq_len"),
            ),
            probe=self._probe(),
            slo=tuple(one("slo") or ()),
            warn=tuple(one("warn") or ()),
            pattern=self._pattern,
            checks=checks(one("checks"), generates=self._writes),
            audit=self._audit(),
        )
        return scenario, self._sources

    def _streamed(self) -> bool:
        """Whether answers are streamed; and the sources of what a template says."""
        if self._file.endpoint != HTTP:
            return bool(self._one("stream"))
        for name, values in zip(("request", "response"), written(self._pattern), strict=True):
            for key in values:
                given = (name, key) in self._values
                self._sources[f"{name}.{key}"] = self._values[name, key].source if given else "default"
        return self._pattern.response.stream != "none"

    def _given(self, at: Keys) -> Any:
        section: Any = self._file
        for key in at:
            if section is None:
                return None
            section = section[key] if isinstance(key, int) else getattr(section, key)
        return section

    def _first(self, to: Keys, *ways: Keys, default: Any = None) -> Any:
        """The value of the first way that was given, its source noted under ``to``."""
        for at in ways:
            if (value := self._given(at)) is not None:
                self._sources[dotted(to)] = place_of(self._values, at).source
                return value
        self._sources[dotted(to)] = "default"
        return default

    def _one(self, *at: str) -> Any:
        return self._first(at, at, default=form.DEFAULTS.get(dotted(at)))

    def _block(self, index: int, alone: bool) -> Block:
        file = self._file
        own = file.levels[index] if file.levels else None
        kind = next((key for of in (own, file.load) for key in LOADS if getattr(of, key, None) is not None), LOADS[0])

        def axis(key: str, *, default: bool = True) -> Any:
            inherited: Keys = tuple(filter(None, (AXES[key], key)))
            ours = ("levels", index, key)
            ways = (ours, inherited) if (kind, key) != ("trace", "input_tokens") else ()
            value = form.DEFAULTS.get(dotted(inherited)) if default else None
            return self._first(inherited if alone else ours, *ways, default=value)

        load = axis(kind)
        made = kind != "trace" and not self._given(("workload", "data"))  # else the lengths are in the file
        return Block(
            concurrency=load if kind == "concurrency" else None,
            rate_per_s=load if kind == "rate" else None,
            stages=tuple(map(_stage, load)) if kind == "stages" else None,
            trace=_trace(load) if kind == "trace" else None,
            input_tokens=None if file.mix else axis("input_tokens", default=made and self._reads),
            output_tokens=None if file.mix else axis("output_tokens", default=made and self._generates),
            model=axis("model"),
            batch_size=axis("batch_size"),
            scheduler=axis("scheduler"),
            max_batch_size=axis("max_batch_size"),
        )

    def _workloads(self) -> tuple[Workload, ...]:
        if not self._file.mix:
            return (self._workload("workload"),)
        return tuple(self._workload("mix", index) for index in range(len(self._file.mix)))

    def _workload(self, *at: str | int) -> Workload:
        """The workload there; of one that is alone the lengths are axes, and so those of the blocks."""

        def one(key: str) -> Any:
            return self._first((*at, key), (*at, key), default=form.DEFAULTS.get(f"{at[0]}.{key}", shared.get(key)))

        shared = {"correlation": form.DEFAULTS["workload.correlation"]}
        part = len(at) > 1
        data = one("data")
        if part and not data:  # the length of made text is never left open
            if self._reads:
                shared["input_tokens"] = form.DEFAULTS["workload.input_tokens"][0]
            if self._generates:
                shared["output_tokens"] = form.DEFAULTS["workload.output_tokens"][0]
        prefix, talk, models, images, body = map(one, ("prefix", "conversation", "models", "images", "body"))
        inputs, binary = map(one, ("inputs", "binary"))
        return Workload(
            input_tokens=one("input_tokens") if part else None,
            output_tokens=one("output_tokens") if part else None,
            name=one("name") if part else "main",
            weight=one("weight") if part else 1.0,
            correlation=one("correlation"),
            corpus=one("corpus"),
            prefix=Prefix(prefix.share, prefix.tokens, prefix.pool) if prefix else None,
            data=_data(data, self._pattern, self._reads) if data else None,
            conversation=_conversation(talk) if talk else None,
            models=tuple(Weighted(name, weight) for name, weight in (models or {}).items()),
            images=Images(_default("images", images, "count"), *images.size) if images else None,
            body=msgspec.json.encode(body).decode() if body else None,
            tensors=Tensors(tuple(map(_input, inputs or ())), binary),
            checks=checks(one("checks"), generates=self._writes) if part else (),
        )

    def _audit(self) -> AuditSettings | None:
        given = self._one("audit")
        if given is None:
            return None
        deterministic = self._writes if given.deterministic is None else given.deterministic
        return AuditSettings(deterministic, _default("audit", given, "cache"), _default("audit", given, "pairs"))

    def _probe(self) -> Probe | None:
        if self._file.probe_stream is None:
            self._one("probe_stream")
            return None
        rate, asked, answer = (self._one("probe_stream", key) for key in ("rate", "input_tokens", "output_tokens"))
        return Probe(rate, asked, answer)


def _default(section: str, values: form.Section, key: str) -> Any:
    """What a section of its own says, or the default."""
    value = getattr(values, key)
    return form.DEFAULTS[f"{section}.{key}"] if value is None else value


def _stage(stage: form.Stage) -> Stage:
    """A valid stage of the file, with the rates at its two ends."""
    start, end = (stage.from_, stage.to) if stage.rate is None else (stage.rate, stage.rate)
    return Stage(start or 0.0, end or 0.0, stage.duration)


def _trace(trace: form.Trace) -> Trace:
    start_s, end_s = trace.window or (0.0, None)
    speed, scale, lengths = (_default("trace", trace, key) for key in ("speed", "scale", "lengths"))
    return Trace(trace.path, trace.format, speed, start_s, end_s, scale, lengths)


def _data(data: form.Data, pattern: Pattern, reads: bool) -> Data:
    columns = data.columns.model_dump(exclude_none=True) if data.columns else {}
    return Data(
        data.path,
        data.format,
        tuple(columns.items()),
        _default("data", data, "order"),
        *(data.input_tokens or (None, None)),
        *(data.output_tokens or (None, None)),
        columns_of(pattern.request.blanks),
        reads,
    )


def _input(given: form.Input) -> Input:
    shape = None if given.shape is None else tuple(given.shape)
    low, high = given.range or (None, None)
    return Input(given.name, given.dtype, shape, given.values, low, high, _default("inputs", given, "order"))


def _conversation(talk: form.Conversation) -> Conversation:
    think, history, abandon = (_default("conversation", talk, key) for key in ("think", "history", "abandon"))
    return Conversation(talk.turns, think, history, abandon, talk.next_input)
