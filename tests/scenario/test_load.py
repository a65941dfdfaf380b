"""What a scenario becomes, and which of several values wins."""

import hashlib
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from loadtest.scenario import Block, Override, Resolved, load
from loadtest.scenario.document import parse
from loadtest.scenario.form import DEFAULTS, SECTIONS, File, duration, duration_text
from loadtest.scenario.form import Block as BlockForm
from loadtest.workload.lengths import Length

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
        Block([1, 4], None, [Length(64, 192), Length(512, 512)], [Length(128, 128)], ["continuous"], [16])
    ]
    assert resolved.sources["load.concurrency"] == "--concurrency"
    assert resolved.sources["timeouts.total"] == "default"


def test_every_flag_arrives() -> None:
    flags = {
        "rate": "2,5.5", "arrival": "constant", "requests": "200", "duration": "500ms", "warmup": "0.1s", "grace": "0s",
        "input_tokens": "8", "output_tokens": "uniform( 1,2 )", "endpoint": "completions", "stream": "false",
        "model": "null", "seed": "3", "timeout": "2m", "connect_timeout": "1s", "stall_timeout": "2 s",
        "scheduler": "dynamic, none", "max_batch_size": "1,2", "batch_timeout_ms": "7", "provider": "cpu",
        "dtype": "fp32", "threads": "2", "serve_model": "./my model",
    }  # fmt: skip
    resolved = from_flags(**flags)
    scenario = resolved.scenario
    assert scenario.levels == [Block(None, [2, 5.5], [Length(8, 8)], [Length(1, 2)], ["dynamic", "none"], [1, 2])]
    assert (scenario.arrival, scenario.requests, scenario.duration_s) == ("constant", 200, 0.5)
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


def test_a_flag_mends_the_value_it_replaces(tmp_path: Path) -> None:
    assert from_text(tmp_path, "load: {concurrency: [1, x]}", concurrency="2").scenario.levels[0].concurrency == [2]


def test_nothing_behind_a_key_is_the_key_left_out(tmp_path: Path) -> None:
    bare = "load:\n  concurrency:\n  rate: null\nlevels:\nseed: ~\n"
    assert from_text(tmp_path, bare).scenario.levels == from_flags().scenario.levels


@pytest.mark.parametrize(("file", "name"), [("a b.yaml", "a-b"), (".hidden.yaml", "hidden"), ("ü.yml", "scenario")])
def test_a_scenario_without_a_name_has_that_of_its_file(tmp_path: Path, file: str, name: str) -> None:
    (tmp_path / file).write_text("seed: 1")
    assert load(str(tmp_path / file), {}).scenario.name == name


def test_the_digest_is_that_of_the_text() -> None:
    resolved = from_flags(seed="1")
    assert resolved.sha256 == hashlib.sha256(resolved.text.encode()).hexdigest()
    assert from_flags(seed="1") == resolved
    assert from_flags(seed="2").sha256 != resolved.sha256


TOKENS = st.tuples(st.integers(1, 10**7), st.integers(1, 10**7)).map(lambda pair: str(Length(*sorted(pair))))
NUMBERS = st.floats(1e-3, 6e5).map(repr)
TIMES = st.integers(1, 600_000_000).map(lambda us: duration_text(us / 1e6))


def axis(items: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.lists(items, min_size=1, max_size=3).map(",".join)


COUNTS = st.integers(1, 4096).map(str)
POLICIES = st.sampled_from(["continuous", "dynamic", "static", "none"])
FLAGS = st.fixed_dictionaries(
    {},
    optional={
        "input_tokens": axis(TOKENS), "output_tokens": axis(TOKENS), "scheduler": axis(POLICIES),
        "max_batch_size": axis(COUNTS), "requests": COUNTS, "duration": TIMES, "grace": TIMES, "timeout": TIMES,
        "connect_timeout": TIMES, "stall_timeout": TIMES, "batch_timeout_ms": NUMBERS, "threads": COUNTS,
        "seed": st.integers(0, 10**18 - 1).map(str), "stream": st.sampled_from(["true", "false"]),
        "model": st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), min_size=1, max_size=30),
        "serve_model": st.text("aé #:'\"\\{}[]-?!&*%@`,|>\u2028\ufeff😀0n~", min_size=1, max_size=9),
    },
)  # fmt: skip
LOADS: st.SearchStrategy[dict[str, str]] = st.one_of(
    st.just({}),
    st.fixed_dictionaries({"concurrency": axis(COUNTS)}),
    st.fixed_dictionaries({"rate": axis(NUMBERS)}, optional={"arrival": st.sampled_from(["constant", "poisson"])}),
)
FILES = st.sampled_from(
    [
        None,
        BLOCKS,
        'question: "a\\n\\n # b: \\"c\\"\\t"\nname: "1"'.replace("\\t", ""),
        "question: |\n  two\n\n  lines\n",
    ]
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
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
    text = from_text(tmp_path, "load: {rate: 2}", seed="3").text
    for section, form in SECTIONS.items():
        for key in form.model_fields.keys() - {"concurrency"}:
            assert re.search(rf"(?ms)^{section}:\n(  .*\n)*?  {key}: .*  # ", text), f"{section}.{key}"
    assert re.search(r"(?m)^seed: 3 +# --seed$", text)
    assert re.search(r"(?m)^  rate: 2 +# .*mine\.yaml:1$", text)


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
    whole, blocks = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    scenario = from_text(tmp_path, whole).scenario
    block = scenario.levels[0]
    assert len(block.rate_per_s or []) * len(block.input_tokens) * len(block.max_batch_size) == 12
    forms: list[type[BaseModel]] = [File, BlockForm, *SECTIONS.values()]
    for form in forms:
        for key in form.model_fields:
            assert re.search(rf"\b{key}:", page), f"{key} is not in the page"
    assert len(from_text(tmp_path, blocks).scenario.levels) == 2
    for key in DEFAULTS.keys() - {"question"}:
        assert f"`{key}`" in page, f"the default of {key} is not in the page"
