"""What a scenario becomes, and which of several values wins."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from loadtest.duration import duration, duration_text
from loadtest.scenario import Block, Override, Resolved, load
from loadtest.scenario.document import parse
from loadtest.scenario.form import DEFAULTS, SECTIONS, File
from loadtest.schedule import Stage
from loadtest.workload.distribution import Distribution
from loadtest.workload.lengths import Length
from loadtest.workload.model import (
    Conversation,
    Data,
    Images,
    Prefix,
    Probe,
    Trace,
    Weighted,
    Workload,
)

DOCS = Path(__file__).parents[2] / "docs"


def from_text(folder: Path, text: str, **flags: str) -> Resolved:
    path = folder / "mine.yaml"
    path.write_text(text)
    return load(str(path), {key: Override(value, "--" + key.replace("_", "-")) for key, value in flags.items()})


def from_flags(**flags: str) -> Resolved:
    return load(None, {key: Override(value, "--" + key.replace("_", "-")) for key, value in flags.items()})


def test_flags_alone_make_a_scenario() -> None:
    resolved = from_flags(concurrency="1,4", duration="1m", input_tokens="uniform(64, 192),512", model="7")
    scenario = resolved.scenario
    assert scenario.name == "flags"
    assert scenario.model == "7"
    assert scenario.duration_s == 60
    assert scenario.levels == [
        Block([1, 4], None, [Length(64, 192), Length(512, 512)], [Length(128, 128)], ["continuous"], [16], model=["7"])
    ]
    assert resolved.sources["load.concurrency"] == "--concurrency"
    assert resolved.sources["timeouts.total"] == "default"


def test_every_flag_arrives() -> None:
    flags = {
        "rate": "2,5.5", "arrival": "gamma", "burstiness": "0.5", "max_in_flight": "100:drop", "max_rate": "50",
        "abort_on": "error_rate > 50%  for 5s", "requests": "200", "duration": "500ms", "warmup": "0.1s", "grace": "0s",
        "input_tokens": "8", "output_tokens": "uniform( 1,2 )", "endpoint": "completions", "stream": "false",
        "model": "null", "seed": "3", "timeout": "2m", "connect_timeout": "1s", "stall_timeout": "2 s",
        "scheduler": "dynamic, none", "max_batch_size": "1,2", "batch_timeout_ms": "7", "provider": "cpu",
        "dtype": "fp32", "threads": "2", "serve_model": "./my model",
    }  # fmt: skip
    resolved = from_flags(**flags)
    scenario = resolved.scenario
    assert scenario.levels == [
        Block(None, [2, 5.5], [Length(8, 8)], [Length(1, 2)], ["dynamic", "none"], [1, 2], model=["null"])
    ]
    assert (scenario.arrival, scenario.burstiness) == ("gamma", 0.5)
    assert (scenario.max_in_flight, scenario.when_full, scenario.max_rate_per_s) == (100, "drop", 50)
    assert scenario.abort_on == "error_rate > 50% for 5s"
    assert (scenario.requests, scenario.duration_s) == (200, 0.5)
    assert (scenario.warmup_s, scenario.grace_s) == (0.1, 0)
    assert (scenario.endpoint, scenario.stream, scenario.model, scenario.seed) == ("completions", False, "null", 3)
    assert (scenario.timeout_s, scenario.connect_timeout_s, scenario.stall_timeout_s) == (120, 1, 2)
    server = scenario.server
    assert (server.batch_timeout_ms, server.provider, server.dtype) == (7, "cpu", "fp32")
    assert (server.threads, server.model) == (2, "./my model")
    origins = {source for source in resolved.sources.values() if source != "default"}
    assert origins == {"--" + flag.replace("_", "-") for flag in flags}


def test_default_then_file_then_flag(tmp_path: Path) -> None:
    text = "load:\n  duration: 10s\n  grace: 5s\n"
    resolved = from_text(tmp_path, text, grace="1s")
    scenario = resolved.scenario
    assert (scenario.timeout_s, scenario.duration_s, scenario.grace_s) == (300, 10, 1)
    path = str(tmp_path / "mine.yaml")
    assert resolved.sources["timeouts.total"] == "default"
    assert resolved.sources["load.duration"] == f"{path}:2"
    assert resolved.sources["load.grace"] == "--grace"


def test_thirty_seconds_unless_a_bound_is_given() -> None:
    assert from_flags().scenario.duration_s == 30
    assert from_flags(requests="10").scenario.duration_s is None
    both = from_flags(requests="10", duration="5s").scenario
    assert (both.requests, both.duration_s) == (10, 5)


BLOCKS = """\
workload: {input_tokens: 8}
load: {rate: 2, arrival: constant}
server: {scheduler: static}
levels:
  - {concurrency: [1, 2], input_tokens: [4, 5]}
  - {scheduler: [dynamic, none], max_batch_size: 4}
"""


def test_a_block_takes_from_the_sections_what_it_does_not_give(tmp_path: Path) -> None:
    resolved = from_text(tmp_path, BLOCKS)
    eight, default = [Length(8, 8)], [Length(128, 128)]
    assert resolved.scenario.levels == [
        Block([1, 2], None, [Length(4, 4), Length(5, 5)], default, ["static"], [16]),
        Block(None, [2], eight, default, ["dynamic", "none"], [4]),
    ]
    assert resolved.scenario.arrival == "constant"
    path = str(tmp_path / "mine.yaml")
    assert resolved.sources["levels.0.concurrency"] == f"{path}:5"
    assert resolved.sources["levels.1.rate"] == f"{path}:2"
    assert resolved.sources["levels.1.output_tokens"] == "default"
    assert "levels.0.rate" not in resolved.sources


def test_a_flag_replaces_an_axis_in_every_block(tmp_path: Path) -> None:
    levels = from_text(tmp_path, BLOCKS, concurrency="8", scheduler="continuous", input_tokens="3").scenario.levels
    assert [block.concurrency for block in levels] == [[8], [8]]
    assert [block.rate_per_s for block in levels] == [None, None]
    assert [block.scheduler for block in levels] == [["continuous"]] * 2
    assert [block.input_tokens for block in levels] == [[Length(3, 3)]] * 2
    assert [block.max_batch_size for block in levels] == [[16], [4]]
    levels = from_text(tmp_path, BLOCKS, rate="8", max_batch_size="2").scenario.levels
    assert [block.rate_per_s for block in levels] == [[8], [8]]
    assert [block.concurrency for block in levels] == [None, None]
    assert [block.max_batch_size for block in levels] == [[2], [2]]


STAGES = """\
load:
  stages: [{rate: 5, duration: 30s}, {from: 5, to: 50, duration: 60s}, {rate: 0, duration: 500ms}]
  arrival: gamma
  burstiness: 0.5
  max_in_flight: 100
  when_full: drop
"""
MIXED = """\
load: {stages: [{from: 0, to: 4, duration: 1m}], duration: 20s, arrival: constant}
levels: [{}, {rate: [1, 2]}, {concurrency: 3}, {stages: [{rate: 0.25, duration: 40s}]}]
abort_on: 'in_flight > 500 for 10s'
"""


def test_stages_are_one_load_that_has_its_own_duration(tmp_path: Path) -> None:
    resolved = from_text(tmp_path, STAGES)
    (block,) = resolved.scenario.levels
    assert block.stages == (Stage(5, 5, 30), Stage(5, 50, 60), Stage(0, 0, 0.5))
    assert (block.concurrency, block.rate_per_s, resolved.scenario.duration_s) == (None, None, None)
    assert (resolved.scenario.arrival, resolved.scenario.burstiness) == ("gamma", 0.5)
    assert (resolved.scenario.max_in_flight, resolved.scenario.when_full) == (100, "drop")
    assert resolved.sources["load.stages"] == f"{tmp_path / 'mine.yaml'}:2"
    assert (
        "  stages: [{rate: 5, duration: 30s}, {from: 5, to: 50, duration: 60s}, {rate: 0, duration: 0.5s}]  # "
        in resolved.text
    )


def test_blocks_may_differ_in_the_kind_of_load(tmp_path: Path) -> None:
    scenario = from_text(tmp_path, MIXED).scenario
    loads = [(block.concurrency, block.rate_per_s, block.stages) for block in scenario.levels]
    assert loads == [
        (None, None, (Stage(0, 4, 60),)),
        (None, [1, 2], None),
        ([3], None, None),
        (None, None, (Stage(0.25, 0.25, 40),)),
    ]
    assert (scenario.duration_s, scenario.abort_on) == (20, "in_flight > 500 for 10s")


def test_a_flag_for_the_load_replaces_stages_too(tmp_path: Path) -> None:
    rate = from_text(tmp_path, STAGES, rate="7", duration="10s").scenario
    assert [(block.stages, block.rate_per_s) for block in rate.levels] == [(None, [7])]
    assert (rate.arrival, rate.burstiness, rate.max_in_flight, rate.duration_s) == ("gamma", 0.5, 100, 10)
    closed = from_text(tmp_path, STAGES, concurrency="7").scenario
    assert [(block.stages, block.concurrency) for block in closed.levels] == [(None, [7])]
    assert (closed.max_in_flight, closed.burstiness, closed.duration_s) == (None, 1, 30)


def test_a_flag_for_one_setting_of_an_open_loop_leaves_the_others(tmp_path: Path) -> None:
    assert from_text(tmp_path, STAGES, arrival="constant").scenario.burstiness == 1
    assert from_text(tmp_path, STAGES, arrival="gamma").scenario.burstiness == 0.5
    assert from_text(tmp_path, STAGES, burstiness="2").scenario.burstiness == 2
    capped = from_text(tmp_path, STAGES, max_in_flight="7").scenario
    assert (capped.max_in_flight, capped.when_full) == (7, "drop")
    capped = from_text(tmp_path, STAGES, max_in_flight="7:queue").scenario
    assert (capped.max_in_flight, capped.when_full) == (7, "queue")


def test_a_flag_mends_the_value_it_replaces(tmp_path: Path) -> None:
    assert from_text(tmp_path, "load: {concurrency: [1, x]}", concurrency="2").scenario.levels[0].concurrency == [2]


def test_nothing_behind_a_key_is_the_key_left_out(tmp_path: Path) -> None:
    bare = "load:\n  concurrency:\n  rate: null\nlevels:\nseed: ~\n"
    assert from_text(tmp_path, bare).scenario.levels == from_flags().scenario.levels


@pytest.mark.parametrize(("file", "name"), [("a b.yaml", "a-b"), (".hidden.yaml", "hidden"), ("ü.yml", "scenario")])
def test_a_scenario_without_a_name_has_that_of_its_file(tmp_path: Path, file: str, name: str) -> None:
    (tmp_path / file).write_text("seed: 1")
    assert load(str(tmp_path / file), {}).scenario.name == name


def test_the_digest_is_that_of_what_is_asked_whoever_asks_it(tmp_path: Path) -> None:
    flags = from_flags(rate="2", input_tokens="8", seed="1")
    file = from_text(tmp_path, "name: other\nquestion: Why?\nworkload: {input_tokens: 8}\nload: {rate: 2}\nseed: 2")
    assert flags.sha256 == file.sha256 == from_text(tmp_path, flags.text).sha256
    assert from_flags(rate="2", input_tokens="9", seed="1").sha256 != flags.sha256


def test_the_digest_knows_files_by_name_and_not_by_folder(tmp_path: Path) -> None:
    found = set()
    for folder in (tmp_path / "a", tmp_path / "b"):
        folder.mkdir()
        (folder / "rows.jsonl").write_text("{}")
        (folder / "other.jsonl").write_text("{}")
        found |= {from_text(folder, f"workload: {{data: {{path: {name}.jsonl}}}}").sha256 for name in ("rows", "other")}
    assert len(found) == 2


TOKENS = st.tuples(st.integers(1, 10**7), st.integers(1, 10**7)).map(lambda pair: str(Length(min(pair), max(pair))))
NUMBERS = st.floats(1e-3, 6e4).map(repr)
TIMES = st.integers(1, 600_000_000).map(lambda us: duration_text(us / 1e6))


def axis(items: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.lists(items, min_size=1, max_size=3).map(",".join)


COUNTS = st.integers(1, 4096).map(str)
SIZES = st.integers(1, 1024).map(str)
POLICIES = st.sampled_from(["continuous", "dynamic", "static", "none"])
FLAGS = st.fixed_dictionaries(
    {},
    optional={
        "input_tokens": axis(TOKENS), "output_tokens": axis(TOKENS), "scheduler": axis(POLICIES),
        "max_batch_size": axis(SIZES), "requests": COUNTS, "duration": TIMES, "grace": TIMES, "timeout": TIMES,
        "connect_timeout": TIMES, "stall_timeout": TIMES, "batch_timeout_ms": NUMBERS, "threads": SIZES,
        "seed": st.integers(0, 10**18 - 1).map(str), "stream": st.sampled_from(["true", "false"]),
        "model": st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), min_size=1).map(
            lambda text: text.replace(",", ";")
        ),
        "max_rate": NUMBERS, "abort_on": st.sampled_from(["error_rate > 50% for 5s", "in_flight>=7"]),
        "serve_model": st.text("aé #:'\"\\{}[]-?!&*%@`,|>\u2028\ufeff😀0n~", min_size=1, max_size=9),
    },
)  # fmt: skip
LOADS: st.SearchStrategy[dict[str, str]] = st.one_of(
    st.just({}),
    st.fixed_dictionaries({"concurrency": axis(COUNTS)}),
    st.fixed_dictionaries(
        {"rate": axis(NUMBERS)},
        optional={
            "arrival": st.sampled_from(["constant", "poisson", "gamma"]),
            "max_in_flight": st.tuples(COUNTS, st.sampled_from(["", ":drop", ":queue"])).map("".join),
        },
    ),
    st.fixed_dictionaries(
        {"rate": axis(NUMBERS), "arrival": st.just("gamma"), "burstiness": st.floats(0.01, 1000).map(repr)}
    ),
)
FILES = st.sampled_from(
    [
        None,
        BLOCKS,
        MIXED,
        "workload: {conversation: {turns: 'uniform(2, 6)', think: 'mix(0.5*700ms, 0.5*exponential(1.25s, max=1m))'}, "
        "prefix: {share: 0.25, tokens: 9, pool: 2}, body: {x: [1, {y: null}]}}\n"
        "probe_stream: {rate: 1}\nload: {repeat: 2, cooldown: 1m}",
        'question: "a\\n\\n # b: \\"c\\"\\t"\nname: "1"'.replace("\\t", ""),
        "question: |\n  two\n\n  lines\n",
    ]
)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(file=FILES, flags=FLAGS, loads=LOADS)
def test_the_resolved_text_is_the_scenario(
    tmp_path: Path, file: str | None, flags: dict[str, str], loads: dict[str, str]
) -> None:
    flags = flags | loads
    resolved = from_flags(**flags) if file is None else from_text(tmp_path, file, **flags)
    kept = tmp_path / "scenario.resolved.yaml"
    kept.write_text(resolved.text, encoding="utf-8")
    again = load(str(kept), {})
    assert again.scenario == resolved.scenario
    assert again.sources.keys() == resolved.sources.keys()
    assert parse(again.text, "").data == parse(resolved.text, "").data


def test_the_resolved_text_names_every_key_and_its_source(tmp_path: Path) -> None:
    load = "load: {rate: 2, arrival: gamma, max_in_flight: 3}"
    text = from_text(tmp_path, load, seed="3", probe_rate="1").text
    for section in ("workload", "load", "server", "timeouts", "probe_stream"):
        (rows,) = re.findall(rf"(?m)^{section}:\n((?:  .*\n)*)", text)
        for key in SECTIONS[section].model_fields.keys() - {"concurrency", "stages", "trace"}:
            assert re.search(rf"(?m)^  {key}: .*  # ", rows), f"{section}.{key}"
    assert re.search(r"(?m)^seed: 3 +# --seed$", text)
    assert re.search(r"(?m)^  rate: 2 +# .*mine\.yaml:1$", text)


RATES = st.integers(0, 10**6).map(float) | st.floats(1e-9, 1e6)


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.tuples(RATES, RATES, TIMES), min_size=1, max_size=5).filter(lambda stages: any(a for a, _, _ in stages))
)
def test_stages_survive_being_written(tmp_path: Path, stages: list[tuple[float, float, str]]) -> None:
    written = ", ".join(f"{{from: {low!r}, to: {high!r}, duration: {time}}}" for low, high, time in stages)
    resolved = from_text(tmp_path, f"load: {{stages: [{written}]}}")
    assert resolved.scenario.levels[0].stages == tuple(Stage(low, high, duration(time)) for low, high, time in stages)
    assert from_text(tmp_path, resolved.text).scenario == resolved.scenario


@given(st.integers(0, 604_800_000_000))
def test_a_duration_survives_being_written(us: int) -> None:
    seconds = round(us / 1e6, 6)
    assert duration(duration_text(seconds)) == seconds


@pytest.mark.parametrize(("text", "seconds"), [("500ms", 0.5), ("1.5 s", 1.5), (" 2m ", 120), ("1h", 3600), ("0s", 0)])
def test_a_duration_has_a_unit(text: str, seconds: float) -> None:
    assert duration(text) == seconds


def test_the_structs_cost_neither_yaml_nor_pydantic() -> None:
    code = "import sys, loadtest.scenario as s; s.find('chat'); assert not {'yaml', 'pydantic'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_documentation_is_true(tmp_path: Path) -> None:
    page = (DOCS / "scenarios.md").read_text(encoding="utf-8")
    for file in ("sharegpt.json", "azure.csv"):
        (tmp_path / file).touch()
    examples = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    whole, data, mix, stages, trace, blocks = [from_text(tmp_path, example).scenario for example in examples]
    block = whole.levels[0]
    assert len(block.rate_per_s or []) * len(block.input_tokens or []) * len(block.max_batch_size) == 12
    forms: list[type[BaseModel]] = [File, *SECTIONS.values()]
    for form in forms:
        for name, field in form.model_fields.items():
            key = field.alias or name
            assert re.search(rf"\b{key}\b", page), f"{key} is not in the page"
    assert data.workloads[0].data is not None
    assert [workload.name for workload in mix.workloads] == ["chat", "agent", "pictures"]
    assert [stage.to_per_s for stage in stages.levels[0].stages or ()] == [5, 50, 200]
    assert trace.levels[0].trace is not None
    assert len(blocks.levels) == 2
    for key in DEFAULTS.keys() - {"question"}:
        assert f"`{key}`" in page, f"the default of {key} is not in the page"
    for form in re.findall(r"`((?:uniform|normal|lognormal|exponential|zipf|quantiles|mix)\(.*?\))`", page):
        assert Length.parse(form).low >= 1


MIX = """\
model: [a, b]
mix:
  - name: chat
    weight: 0.7
    input_tokens: uniform(100, 200)
    output_tokens: "lognormal(100, 50)"
    correlation: 0.5
    prefix: {share: 0.8, tokens: 1000, pool: 20}
  - name: pictures
    images: {size: 512x256}
    body: {tools: [{type: "1e5", x: [1, 2.5, true, null, "é\\u2028#\\x7f"]}], "on": {}}
    models: {base: 0.7, "null": 1}
  - name: talk
    conversation: {turns: "uniform(2, 6)", think: "mix(0.5*exponential(5s), 0.5*1m)", next_input: 8}
  - {name: file, data: {path: ./rows.jsonl, columns: {prompt: question}, input_tokens: [16, null]}, output_tokens: 7}
load: {rate: [1, 2], combine: zip, repeat: 3, cooldown: 5s}
probe_stream: {rate: 0.5}
locked: true
tokenizer: .
"""


def test_a_mix_is_written_and_read_back(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").touch()
    resolved = from_text(tmp_path, MIX)
    chat, pictures, talk, file = resolved.scenario.workloads
    assert chat == Workload(
        Length(100, 200), Length.parse("lognormal(100, 50)"), "chat", 0.7, 0.5, prefix=Prefix(0.8, 1000, 20)
    )
    assert (pictures.images, pictures.models) == (Images(1, 512, 256), (Weighted("base", 0.7), Weighted("null", 1)))
    assert json.loads(pictures.body or "") == {
        "tools": [{"type": "1e5", "x": [1, 2.5, True, None, "é\u2028#\x7f"]}], "on": {},
    }  # fmt: skip
    think = Distribution.parse("mix(0.5*exponential(5), 0.5*60)")
    assert talk.conversation == Conversation(Length(2, 6), think, next_input=Length(8, 8))
    assert file.data == Data(str(tmp_path / "rows.jsonl"), columns=(("prompt", "question"),), min_input=16)
    assert (file.input_tokens, file.output_tokens) == (None, Length(7, 7))
    assert resolved.scenario.probe == Probe(0.5, Length(16, 16), Length(1, 1))
    assert resolved.scenario.levels[0].model == ["a", "b"]
    assert (resolved.scenario.levels[0].input_tokens, resolved.scenario.levels[0].output_tokens) == (None, None)
    assert resolved.sources["mix.0.weight"] == f"{tmp_path / 'mine.yaml'}:4"
    assert resolved.sources["mix.1.weight"] == "default"
    (tmp_path / "elsewhere").mkdir()
    assert from_text(tmp_path / "elsewhere", resolved.text).scenario == resolved.scenario


def test_a_trace_has_its_lengths_and_an_answer_may_have_another(tmp_path: Path) -> None:
    trace = "load: {trace: {path: mine.yaml, speed: 2x, window: [10m, null], scale: 3}}"
    (block,) = from_text(tmp_path, trace).scenario.levels
    assert block.trace == Trace(str(tmp_path / "mine.yaml"), speed=2, start_s=600, scale=3)
    assert (block.input_tokens, block.output_tokens) == (None, None)
    (block,) = from_text(tmp_path, trace, output_tokens="9").scenario.levels
    assert (block.input_tokens, block.output_tokens) == (None, [Length(9, 9)])


def test_a_trace_beside_other_loads_leaves_them_their_lengths(tmp_path: Path) -> None:
    text = "workload: {input_tokens: 5, output_tokens: 6}\nlevels: [{trace: {path: mine.yaml}}, {concurrency: 2}]"
    resolved = from_text(tmp_path, text)
    trace, closed = resolved.scenario.levels
    assert (trace.input_tokens, closed.input_tokens) == (None, [Length(5, 5)])
    assert from_text(tmp_path, resolved.text).scenario.levels[1] == closed


def test_flags_for_files_take_the_place_of_lengths_and_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.csv").touch()
    made = "workload: {input_tokens: 5, output_tokens: 6}\nload: {concurrency: 3, duration: 10s}"
    data = from_text(tmp_path, made, data="rows.csv").scenario
    assert data.workloads[0].data == Data(str(tmp_path / "rows.csv"))
    assert (data.levels[0].input_tokens, data.levels[0].concurrency, data.duration_s) == (None, [3], 10)
    trace = from_text(tmp_path, made, trace="rows.csv", speed="3x").scenario
    assert trace.levels[0].trace == Trace(str(tmp_path / "rows.csv"), speed=3)
    assert (trace.levels[0].concurrency, trace.levels[0].output_tokens, trace.duration_s) == (None, None, None)
    closed = from_text(tmp_path, "load: {trace: {path: rows.csv}}", concurrency="2").scenario
    assert (closed.levels[0].trace, closed.levels[0].concurrency) == (None, [2])


def test_lengths_out_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "lengths.csv").write_text("tokens,weight\n10,3\n\n20, 1\n")
    (block,) = from_text(tmp_path, "workload: {input_tokens: {file: lengths.csv}}").scenario.levels
    assert block.input_tokens == [Length.of_values([10, 20], [3, 1])]
    assert from_text(tmp_path, from_text(tmp_path, "workload: {input_tokens: {file: lengths.csv}}").text).scenario


def test_the_parts_of_an_axis_may_hold_commas_in_parentheses() -> None:
    (block,) = from_flags(input_tokens="mix(0.5*uniform(1, 2), 0.5*exponential(9)), 7", model="a, b").scenario.levels
    assert block.input_tokens == [Length.parse("mix(0.5*uniform(1, 2), 0.5*exponential(9))"), Length(7, 7)]
    assert block.model == ["a", "b"]
