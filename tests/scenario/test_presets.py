"""The scenarios that come with the tool, and the schema that editors check with."""

import json
import re
import tomllib
from pathlib import Path

import click
import jsonschema
import pytest
import yaml

from loadtest import plan
from loadtest.errors import ScenarioError
from loadtest.scenario import find, load, presets, schema
from loadtest.scenario.catalog import copy, folder
from servers.cli import serve

ROOT = Path(__file__).parents[2]
SMALL = [
    "burst", "chat", "concurrency-sweep", "long-prompt", "prompt-length-sweep", "quickstart", "ramp", "shared-prefix",
    "diurnal", "soak", "spike",
]  # fmt: skip
"""Those that the bundled demo model can play as they are; the others are made for large models."""
TASKS = [
    "agent", "classifier", "code-completion", "embeddings", "mixed-traffic", "mlperf-llama2-70b-interactive",
    "mlperf-llama2-70b-server", "mlperf-llama3.1-8b-interactive", "rag-8k", "reasoning", "summarise-batch",
]  # fmt: skip
NAMES = sorted([*SMALL, *TASKS])
SCHEMA = ROOT / "docs" / "scenario.schema.json"


def test_the_presets_are_found_by_name() -> None:
    assert [preset.name for preset in presets()] == NAMES
    assert find("chat").samefile(ROOT / "scenarios" / "chat.yaml")


@pytest.mark.parametrize("name", NAMES)
def test_a_preset_opens_with_the_question_it_answers(name: str) -> None:
    path = find(name)
    resolved = load(name, {})
    assert resolved.scenario.name == name
    assert resolved.scenario.question.endswith("?")
    assert path.read_text(encoding="utf-8").startswith(f"# {resolved.scenario.question}\n")
    assert resolved.scenario.question in (ROOT / "docs" / "scenarios.md").read_text(encoding="utf-8")
    assert resolved.sources["question"].startswith(f"{name}.yaml:")
    assert load(str(path), {}).scenario == resolved.scenario


@pytest.mark.parametrize("name", TASKS)
def test_a_task_names_the_limits_that_the_field_has_for_it(name: str) -> None:
    head = find(name).read_text(encoding="utf-8").partition("\nquestion:")[0]
    assert re.search(r"^# Limits( in the field)?(, for the chat)?: \w", head, re.MULTILINE)


@pytest.mark.parametrize("name", SMALL)
def test_a_preset_fits_the_context_of_the_bundled_model(name: str) -> None:
    for level in plan.levels(load(name, {}).scenario, bundled=True):
        for workload in level.workloads:
            assert workload.input_tokens is not None
            assert workload.output_tokens is not None
            prefix = workload.prefix.tokens if workload.prefix else 0
            assert prefix + workload.input_tokens.high + workload.output_tokens.high <= 1000


def test_the_quickstart_is_twelve_levels_and_short() -> None:
    scenario = load("quickstart", {}).scenario
    batches, policies = scenario.levels
    assert (batches.scheduler, batches.max_batch_size, batches.concurrency) == (["continuous"], [1, 4, 16], [1, 4, 16])
    assert (policies.scheduler, policies.max_batch_size) == (["dynamic", "static", "none"], [16])
    assert policies.concurrency == [16]
    levels = sum(
        len(block.scheduler) * len(block.max_batch_size) * len(block.concurrency or []) for block in scenario.levels
    )
    assert levels == 12
    assert scenario.duration_s is not None
    assert levels * scenario.duration_s < 45


def test_an_unknown_name_gets_the_list_and_the_nearest() -> None:
    with pytest.raises(ScenarioError) as caught:
        load("quickstrat", {})
    assert str(caught.value) == (
        f"no scenario 'quickstrat': did you mean 'quickstart'? The presets are {', '.join(NAMES)}; a file of your own "
        "is named by its path (./mine.yaml)"
    )
    with pytest.raises(ScenarioError, match="no scenario 'zzz': the presets are agent"):
        load("zzz", {})
    with pytest.raises(ScenarioError, match=r"^chat\.yaml: no such file; did you mean the preset 'chat'\?$"):
        load("chat.yaml", {})


def test_a_preset_outranks_a_file_of_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("chat", "mine"):
        Path(name).write_text("seed: 7")
    assert load("chat", {}).scenario.seed is None
    assert load("./chat", {}).scenario.seed == 7
    assert load("mine", {}).scenario.seed == 7


def test_a_preset_is_copied_to_a_new_file_or_into_a_folder_and_never_over_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    original = find("chat").read_bytes()
    for destination, where in (
        (None, "chat.yaml"),
        (Path("mine.yaml"), "mine.yaml"),
        (Path("folder"), "folder/chat.yaml"),
    ):
        assert copy("chat", destination) == Path(where)
        assert Path(where).read_bytes() == original
    Path("mine.yaml").write_text("mine")
    with pytest.raises(ScenarioError, match=r"^mine\.yaml is there already, and is not overwritten"):
        copy("chat", Path("mine.yaml"))
    assert Path("mine.yaml").read_text() == "mine"
    with pytest.raises(ScenarioError, match=r"^cannot write nowhere/mine\.yaml: No such file or directory"):
        copy("chat", Path("nowhere/mine.yaml"))


def test_in_a_wheel_the_presets_lie_inside_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "loadtest"
    package.mkdir()
    assert folder(package) == tmp_path / "scenarios"
    (package / "scenarios").mkdir()
    assert folder(package) == package / "scenarios"
    monkeypatch.setattr("loadtest.__file__", str(package / "__init__.py"))
    assert presets() == []
    with pytest.raises(ScenarioError, match="this installation has no presets; install loadtest again"):
        find("chat")


def test_the_wheel_is_told_to_hold_the_presets() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert wheel["force-include"]["scenarios"] == f"loadtest/{folder(ROOT / 'loadtest').name}"


def test_the_published_schema_is_up_to_date() -> None:
    assert json.loads(SCHEMA.read_text(encoding="utf-8")) == schema(), (
        "write it again: python -c 'import json, loadtest.scenario as s; print(json.dumps(s.schema(), indent=2))' "
        "> docs/scenario.schema.json"
    )


def test_the_schema_describes_every_field_and_its_examples_and_defaults_are_valid() -> None:
    published = schema()
    validator = jsonschema.Draft202012Validator
    validator.check_schema(published)
    for form in (published, *published["$defs"].values()):
        assert form["additionalProperties"] is False
        for key, field in form["properties"].items():
            assert field["description"].endswith("."), key
            values = [*field.get("examples", []), *([field["default"]] if "default" in field else [])]
            for value in values:
                validator({"$defs": published["$defs"], **field}).validate(value)


@pytest.mark.parametrize("name", NAMES)
def test_the_schema_agrees_that_a_preset_is_good_before_and_after_it_is_resolved(name: str) -> None:
    validator = jsonschema.Draft202012Validator(schema())
    validator.validate(yaml.safe_load(find(name).read_text(encoding="utf-8")))
    validator.validate(yaml.safe_load(load(name, {}).text))


@pytest.mark.parametrize(
    "wrong",
    [
        {"endpont": "chat"},
        {"load": {"duration": 30}},
        {"server": {"scheduler": ["continous"]}},
        {"seed": -1},
        {"load": {"stages": [{"rate": 5}]}},
        {"load": {"stages": [{"rate": -5, "duration": "5s"}]}},
        {"load": {"rate": 5, "arrival": "gamma", "burstiness": 0}},
    ],
)
def test_the_schema_refuses_what_the_loader_refuses(wrong: dict[str, object], tmp_path: Path) -> None:
    assert not jsonschema.Draft202012Validator(schema()).is_valid(wrong)
    path = tmp_path / "wrong.yaml"
    path.write_text(json.dumps(wrong))
    with pytest.raises(ScenarioError):
        load(str(path), {})


@pytest.mark.parametrize("key", ["threads", "kv_slots", "max_batch_size", "max_seq_len", "batch_timeout_ms"])
def test_a_server_setting_that_the_bundled_server_would_refuse_is_a_fault_of_the_scenario(key: str) -> None:
    option = next(option for option in serve.params if option.name == key)
    assert isinstance(option.type, click.IntRange | click.FloatRange)
    kinds = schema()["$defs"]["Server"]["properties"][key]["anyOf"]
    number = next(kind for kind in kinds if kind["type"] in ("integer", "number"))
    assert number["minimum"] == option.type.min
    if option.type.max is not None:
        assert number["maximum"] == option.type.max
