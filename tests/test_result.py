import json
import math
from pathlib import Path

import jsonschema
import msgspec
import pytest

from loadtest import result
from loadtest.errors import ResultError
from loadtest.level import Level
from loadtest.result import Conditions, Endpoint, Hardware, Result, ScenarioRef, Tool, not_reached
from loadtest.schedule import Load
from loadtest.workload.lengths import Length
from loadtest.workload.model import Workload

PUBLISHED = Path(__file__).parent.parent / "docs" / "result.schema.json"


@pytest.fixture
def one() -> Result:
    level = Level(
        index=0, name="c=1", load=Load("closed", concurrency=1), batching=None,
        workloads=(Workload(Length(8, 8), Length(1, 4)),),
        duration_s=1.0, requests=None, warmup_s=0.0, grace_s=1.0,
    )  # fmt: skip
    return Result(
        tool=Tool(name="loadtest", version="0.1.0"),
        command="loadtest run http://localhost:8000",
        started_at="2025-01-31T12:00:00Z",
        seed=7,
        complete=True,
        exit_code=0,
        conditions=Conditions(
            endpoint=Endpoint(kind="chat", url="http://localhost:8000"),
            hardware=Hardware(client="a laptop"),
            scenario=ScenarioRef(name="chat", sha256="0" * 64),
        ),
        levels=[not_reached(level)],
    )


def test_what_is_written_is_read_back_equal(one: Result, tmp_path: Path) -> None:
    assert result.write(one, tmp_path) == tmp_path / "result.json"
    assert result.load(tmp_path) == one


def test_written_file_is_strict_pretty_json_that_the_schema_accepts(one: Result, tmp_path: Path) -> None:
    text = result.write(one, tmp_path).read_text()
    assert text.startswith('{\n  "schema_version": 1,\n')
    assert text.endswith("}\n")
    jsonschema.Draft202012Validator(json.loads(PUBLISHED.read_text())).validate(json.loads(text))


def test_every_key_of_the_contract_is_there(one: Result, tmp_path: Path) -> None:
    data = json.loads(result.write(one, tmp_path).read_text())
    assert set(data) == {
        "schema_version", "tool", "command", "started_at", "seed", "run_id", "complete", "exit_code", "conditions",
        "records", "manner", "resumed", "warnings", "adaptations", "labels", "audits", "levels", "repeats", "verdict",
        "capacity", "capacities",
    }  # fmt: skip
    (level,) = data["levels"]
    assert set(level) == {
        "name", "status", "load", "batching", "workload", "window", "counts", "rates", "throughput", "whole_run",
        "concurrency", "latency", "tokens_per_event", "single_burst", "bad_events", "finish_reasons", "errors",
        "goodput", "client", "server", "slo", "model", "batch_size", "repeat", "workloads", "turns",
        "sessions", "models", "probe", "began_at", "goes_on", "extends", "gpus", "energy_per_output_token_j", "host",
    }  # fmt: skip
    assert set(level["latency"]) == {
        "ttft_ms", "ttfat_ms", "e2e_ms", "tpot_ms", "itl_ms", "lag_ms", "own_lag_ms", "connect_ms", "service_ttft_ms",
        "service_e2e_ms",
    }  # fmt: skip
    assert set(level["latency"]["ttft_ms"]) == {"ok", "due", "ci95", "excluded"}
    assert level["client"]["error_bar_ms"] is None
    assert level["slo"] == []
    assert data["verdict"] == {"outcome": None, "reasons": []}


def test_published_schema_is_up_to_date() -> None:
    text = json.dumps(result.schema(), indent=2, ensure_ascii=False) + "\n"
    assert PUBLISHED.read_text(encoding="utf-8") == text, (
        "write it again: python -c 'import json; from loadtest.result import schema; "
        "print(json.dumps(schema(), indent=2, ensure_ascii=False))' > docs/result.schema.json"
    )
    jsonschema.Draft202012Validator.check_schema(result.schema())


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
def test_a_figure_that_is_no_number_is_an_error_and_not_null(one: Result, tmp_path: Path, wrong: float) -> None:
    rates = msgspec.structs.replace(one.levels[0].rates, offered_per_s=wrong)
    bad = msgspec.structs.replace(one, levels=[msgspec.structs.replace(one.levels[0], rates=rates)])
    with pytest.raises(ResultError, match=r"levels\[0\]\.rates\.offered_per_s is not a finite number"):
        result.write(bad, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_writing_replaces_the_old_result_and_leaves_nothing_beside_it(one: Result, tmp_path: Path) -> None:
    result.write(msgspec.structs.replace(one, complete=False), tmp_path)
    result.write(one, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["result.json"]
    assert result.load(tmp_path).complete


def test_a_failed_write_keeps_the_old_result(one: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result.write(one, tmp_path)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("loadtest.whole.os.fsync", full)
    with pytest.raises(ResultError, match="No space left on device; make room there or choose another folder with -o"):
        result.write(msgspec.structs.replace(one, seed=8), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["result.json"]
    assert result.load(tmp_path).seed == 7


def test_a_folder_that_is_gone_is_a_clear_error(one: Result, tmp_path: Path) -> None:
    with pytest.raises(ResultError, match=r"cannot write .*nowhere.*No such file"):
        result.write(one, tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"", "is damaged"),
        (b'{"schema_version": 1, "tool"', "is damaged"),
        (b"\xff\xfe{}", "is damaged"),
        (b'{"a": "\xff"}', "is damaged"),
        (b"[" * 100_000, "is damaged"),
        (b"[]", "was not written by loadtest"),
        (b"{}", "was not written by loadtest"),
        (b'{"schema_version": "1"}', "was not written by loadtest"),
        (b'{"schema_version": true}', "was not written by loadtest"),
        (b'{"schema_version": 2}', "reads up to 1; use the version that wrote it"),
        (b'{"schema_version": 1}', "is not a whole result: .*missing required field `tool`"),
    ],
)
def test_what_is_no_result_of_ours_is_said_in_one_line(tmp_path: Path, text: bytes, says: str) -> None:
    (tmp_path / "result.json").write_bytes(text)
    with pytest.raises(ResultError, match=says) as caught:
        result.load(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_damaged_figure_is_named(one: Result, tmp_path: Path) -> None:
    path = result.write(one, tmp_path)
    path.write_text(path.read_text().replace('"scheduled": 0', '"scheduled": "none"'))
    with pytest.raises(ResultError, match=r"\$\.levels\[0\]\.counts\.scheduled"):
        result.load(tmp_path)


def test_keys_of_a_later_version_are_accepted(one: Result, tmp_path: Path) -> None:
    path = result.write(one, tmp_path)
    path.write_text(path.read_text().replace('"schema_version": 1,', '"schema_version": 1, "moon_phase": "full",'))
    assert result.load(tmp_path) == one


def test_a_folder_without_a_result_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ResultError, match=r"is not a result folder: it holds no result\.json"):
        result.load(tmp_path)
    with pytest.raises(ResultError, match="is not a result folder"):
        result.load(tmp_path / "nowhere")
    (tmp_path / "file").touch()
    with pytest.raises(ResultError, match="is not a result folder"):
        result.load(tmp_path / "file")
    (tmp_path / "result.json").mkdir()
    with pytest.raises(ResultError, match=r"cannot read .*Is a directory"):
        result.load(tmp_path)
