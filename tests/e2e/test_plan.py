"""plan explains what run would do, and touches no network; the library is explained and played."""

import json
import socket
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from click.testing import CliRunner, Result

from loadtest.cli import main
from loadtest.scenario import find, presets
from loadtest.scenario import schema as scenario_schema
from tests.conftest import Command

NAMES = [preset.name for preset in presets()]


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever opens a socket fails the test."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("plan opened a socket")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def cli(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments, catch_exceptions=False)


def planned(*arguments: str) -> dict[str, Any]:
    done = cli("plan", *arguments, "--json", "-")
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.usefixtures("no_network")
@pytest.mark.parametrize("name", NAMES)
def test_every_scenario_of_the_library_is_explained(name: str) -> None:
    done = cli("plan", "-s", str(find(name)), "--price-in", "0.5", "--price-out", "1.5")
    assert done.exit_code == 0, done.output
    question = next(preset.question for preset in presets() if preset.name == name)
    words = " ".join(done.stdout.split())
    for said in (f"{name}: {question}", "# default", f"{name}.yaml:", "levels against", "min to max", "Cost: "):
        assert said in words or said.replace("levels", "level") in words, said
    assert words.endswith("Nothing was sent.")


@pytest.mark.usefixtures("no_network")
def test_the_plan_as_json_has_each_value_with_its_source() -> None:
    found = planned("http://staging:8000", "-s", "chat", "-r", "5", "--seed", "3", "-d", "10s")
    assert found["target"] == "http://staging:8000"
    assert found["seed"] == 3
    values, sources = found["scenario"]["values"], found["scenario"]["sources"]
    jsonschema.Draft202012Validator(scenario_schema()).validate(values)
    assert (values["load"]["rate"], sources["load.rate"]) == (5, "--rate")
    assert sources["workload.input_tokens"].startswith("chat.yaml:")
    assert sources["timeouts.total"] == "default"
    (level,) = found["levels"]
    assert level["count"] == "exact"
    assert level["first_arrivals_s"] == sorted(level["first_arrivals_s"])
    assert found["estimate"]["sending_s"] == 10


@pytest.mark.usefixtures("no_network")
def test_a_secret_in_the_url_is_not_printed() -> None:
    done = cli("plan", "http://me:hunter2@staging:8000?key=hunter2", "-c", "1")
    assert done.exit_code == 0
    assert "hunter2" not in done.output


@pytest.mark.usefixtures("no_network")
def test_what_would_be_of_no_use_or_would_be_refused_is_said() -> None:
    assert "--threads" in cli("plan", "http://staging:8000", "-c", "1", "--threads", "2").stdout
    said = cli("plan", "http://staging:8000", "-c", "1000000", "-n", "1000000").stdout
    assert "warning: run would refuse this: --concurrency 1000000 asks for more connections" in said
    assert "run would refuse this: --model names a model of the endpoint at a URL" in cli("plan", "--model", "x").stdout
    assert "run would refuse this: endpoint embeddings: " in cli("plan", "-s", "embeddings").stdout


@pytest.mark.usefixtures("no_network")
def test_rows_of_data_are_counted_and_those_left_out_have_their_reasons(tmp_path: Path) -> None:
    rows = [{"prompt": "a short question", "output_tokens": 7}] * 9 + [{"output_tokens": 7}, {"prompt": ""}]
    (tmp_path / "mine.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "mine.yaml").write_text("workload: {data: {path: ./mine.jsonl}}\nload: {requests: 20}\n")
    found = planned("http://staging:8000", "-s", str(tmp_path / "mine.yaml"))
    (data,) = found["data"]
    assert data["kept"] == 9
    assert [(count, line) for _, count, line in data["skipped"]] in ([(1, 10), (1, 11)], [(2, 10)])
    (level,) = found["levels"]
    assert (level["requests"], level["input_tokens"], level["output_tokens"]) == (20, 20 * 3, 20 * 7)
    words = " ".join(cli("plan", "-s", str(tmp_path / "mine.yaml")).stdout.split())
    assert "mine.jsonl: 9 rows; 2 skipped: " in words


@pytest.mark.usefixtures("no_network")
def test_a_trace_is_planned_as_it_was_recorded(tmp_path: Path) -> None:
    arrivals = [0.0, 1.5, 2.25, 9.0]
    lines = [{"timestamp": at, "input_tokens": 100 + n, "output_tokens": 10} for n, at in enumerate(arrivals)]
    (tmp_path / "trace.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = planned("http://staging:8000", "--trace", str(tmp_path / "trace.jsonl"), "--speed", "2")
    (level,) = found["levels"]
    assert level["first_arrivals_s"] == [at / 2 for at in arrivals]
    assert (level["count"], level["requests"]) == ("exact", 4)
    assert (level["input_tokens"], level["output_tokens"]) == (100 + 101 + 102 + 103, 40)


@pytest.mark.usefixtures("no_network")
def test_a_plan_in_the_small_says_that_it_is_not_the_scenario() -> None:
    found = planned("http://staging:8000", "-s", "chat", "--scale", "0.1", "--repeat", "2", "--cooldown", "50s")
    assert any(warning.startswith("not comparable: ") for warning in found["warnings"])
    assert found["estimate"]["cooldown_s"] == pytest.approx((len(found["levels"]) - 1) * 5)
    assert [level["repeat"] for level in found["levels"]] == sorted(level["repeat"] for level in found["levels"])


def test_bad_input_is_one_message_and_exit_code_2() -> None:
    for arguments in (("-s", "nope"), ("-c", "0"), ("ftp://x", "-c", "1"), ("-c", "1", "--price-in", "-1")):
        done = cli("plan", *arguments)
        assert done.exit_code == 2, arguments
        assert "Traceback" not in done.output
        assert done.stdout == ""


def test_json_goes_to_a_file_beside_the_text(tmp_path: Path) -> None:
    done = cli("plan", "-c", "1", "-n", "3", "--json", str(tmp_path / "plan.json"))
    assert "Nothing was sent." in done.stdout
    assert json.loads((tmp_path / "plan.json").read_text("utf-8"))["levels"]


@pytest.mark.e2e
def test_run_plays_what_plan_has_shown(loadtest: Command, tiny: str, tmp_path: Path) -> None:
    flags = [
        "-r",
        "40",
        "-d",
        "2s",
        "--input-tokens",
        "uniform(20,60)",
        "--output-tokens",
        "uniform(1,4)",
        "--seed",
        "9",
    ]
    found = planned(tiny, *flags)["levels"][0]
    done = loadtest("run", tiny, *flags, "-o", "out")
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in (tmp_path / "out" / "records.jsonl").read_text("utf-8").splitlines()]
    assert len(lines) == found["requests"]
    assert sum(line["asked_input_tokens"] for line in lines) == pytest.approx(found["input_tokens"])
    assert sum(line["asked_output_tokens"] for line in lines) == pytest.approx(found["output_tokens"])
    first = sorted(line["intended_ms"] / 1000 for line in lines)[: len(found["first_arrivals_s"])]
    assert first == pytest.approx(found["first_arrivals_s"], abs=1e-3)


def test_scenarios_are_listed_for_programs_and_shown_as_they_are() -> None:
    lines = cli("scenarios").stdout.splitlines()
    assert lines == cli("scenarios", "list").stdout.splitlines()
    assert [line.split("\t")[0] for line in lines] == NAMES
    assert all(line.split("\t")[1].endswith("?") for line in lines)
    assert cli("scenarios", "show", "chat").stdout == find("chat").read_text("utf-8")
    assert "did you mean 'chat'" in cli("scenarios", "show", "chatt").output


def test_a_scenario_is_copied_once(tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    assert cli("scenarios", "copy", "chat", str(mine)).stdout == f"{mine}\n"
    again = cli("scenarios", "copy", "chat", str(mine))
    assert again.exit_code == 2
    assert "is not overwritten" in again.output


@pytest.mark.parametrize("of", ["scenario", "result"])
def test_the_schemas_are_printed_as_they_are_published(of: str) -> None:
    published = Path(__file__).parents[2] / "docs" / f"{of}.schema.json"
    assert json.loads(cli("schema", of).stdout) == json.loads(published.read_text("utf-8"))
