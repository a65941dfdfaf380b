from pathlib import Path

import msgspec
import pytest

from loadtest import keeping, plan, scenario
from loadtest.engine.journal import Journal
from loadtest.folder import RESOLVED
from loadtest.level import Level
from loadtest.records import JOURNAL, Record
from loadtest.recovery import recovered
from loadtest.result import Conditions, Endpoint, Hardware, Result, ScenarioRef, Tool, load, not_reached, write
from loadtest.scenario import Override
from loadtest.workload.model import Data, Rows, Trace
from loadtest.workload.rows import prepare, prepare_trace
from tests.test_summary import answer


def test_levels_recovered_from_the_journal_are_warned_of_like_any_other(tmp_path: Path) -> None:
    resolved = scenario.load(None, {"concurrency": Override("1,2", "-c"), "output_tokens": Override("64", "-")})
    levels = plan.levels(resolved.scenario, bundled=False)
    (tmp_path / RESOLVED).write_text(resolved.text, "utf-8")
    conditions = Conditions(
        endpoint=Endpoint(kind="chat", url="http://127.0.0.1:8000"),
        hardware=Hardware(),
        scenario=ScenarioRef(name="flags", sha256=resolved.sha256),
    )
    begun = Result(
        tool=Tool(name="loadtest", version="0"), command="", started_at="2026-01-01T00:00:00Z", seed=1, complete=False,
        exit_code=0, conditions=conditions, warnings=["said before"], levels=[not_reached(level) for level in levels],
    )  # fmt: skip
    write(begun, tmp_path)
    short = Record(
        id=0, level=0, worker=0, intended_ms=5000.0, outcome="ok", in_window=True, asked_input_tokens=128,
        asked_output_tokens=64, sent_ms=5000.1, first_token_ms=5050.0, last_token_ms=5050.0, done_ms=5050.2,
        input_tokens=128, output_tokens=1, token_source="usage", events=1,
    )  # fmt: skip
    journal = Journal(str(tmp_path / JOURNAL))
    journal.write(short)
    journal.write(msgspec.structs.replace(short, id=1, intended_ms=6000.0, sent_ms=6000.1, first_token_ms=6050.0,
                                          last_token_ms=6050.0, done_ms=6050.2))  # fmt: skip
    journal.close()

    found = recovered(tmp_path)

    assert [level.status for level in found.levels] == ["aborted", "not_reached"]
    assert found.warnings == [
        "said before", "c=1: answers were shorter than asked: 1.0 tokens on average instead of 64.0",
    ]  # fmt: skip


def _begun(folder: Path, scenario_file: str, **files: str) -> list[Level]:
    """A run that has written its scenario and what it planned, and was then killed; returns the levels."""
    for name, text in files.items():
        (folder.parent / name.replace("_", ".")).write_text(text, "utf-8")
    source = folder.parent / "asked.yaml"
    source.write_text(scenario_file, "utf-8")
    resolved = scenario.load(str(source), {})
    asked = resolved.scenario
    rows: dict[Data | Trace, Rows] = {
        data: prepare(data, folder.parent, len, conversation=False) for one in asked.workloads if (data := one.data)
    }
    rows |= {trace: prepare_trace(trace, folder.parent, 1) for block in asked.levels if (trace := block.trace)}
    levels = plan.levels(asked, bundled=False, rows=rows)
    folder.mkdir()
    (folder / RESOLVED).write_text(resolved.text, "utf-8")
    conditions = Conditions(
        endpoint=Endpoint(kind="chat", url="http://127.0.0.1:8000"),
        hardware=Hardware(),
        scenario=ScenarioRef(name="asked", sha256=resolved.sha256),
    )
    write(
        Result(
            tool=Tool(name="loadtest", version="0"), command="", started_at="2026-01-01T00:00:00Z", seed=1,
            complete=False, exit_code=0, conditions=conditions, levels=[not_reached(level) for level in levels],
        ),
        folder,
    )  # fmt: skip
    return levels


def _write(folder: Path, *records: Record) -> None:
    journal = Journal(str(folder / JOURNAL))
    for record in records:
        journal.write(record)
    journal.close()


@pytest.mark.parametrize("large", [keeping.LARGE, 3], ids=["as records", "as rows"])
def test_mix_with_sessions_data_a_probe_and_repeats_is_recovered_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, large: int
) -> None:
    monkeypatch.setattr(keeping, "LARGE", large)
    folder = tmp_path / "result"
    levels = _begun(
        folder,
        """
        mix:
          - {name: chat, weight: 3, data: {path: ./chats.jsonl}, output_tokens: 4}
          - {name: talk, weight: 1, input_tokens: 8, output_tokens: 4, conversation: {turns: 2, think: 1s}}
        load: {rate: 10, repeat: 2, duration: 10s, warmup: 1s}
        probe_stream: {rate: 1, input_tokens: 1, output_tokens: 1}
        seed: 1
        """,
        chats_jsonl='{"prompt": "one"}\n{"prompt": "two"}\n',
    )
    for level in levels:
        _write(
            folder,
            answer(0, 2000.0, level=level.index, asked_input_tokens=None, prompt_hash=1),
            answer(1, 3000.0, level=level.index, workload=1, session=1, turn=1),
            answer(2, 4200.0, level=level.index, workload=1, session=1, turn=2, ends="completed"),
            answer(0, 5000.0, level=level.index, probe=True),
        )
    found = recovered(folder)
    first, second = found.levels
    assert [level.name for level in found.levels] == [level.name for level in levels]
    assert first.client.valid, first.client.reasons
    assert [part.name for part in first.workloads] == ["chat", "talk"]
    assert [(data.source, data.rows) for data in first.workload.data] == [("chats.jsonl", 2)]
    assert [(data.source, data.rows) for data in first.workloads[0].workload.data] == [("chats.jsonl", 2)]
    assert first.sessions is not None
    assert first.sessions.completed == 1
    assert first.probe is not None
    assert first.probe.counts.ok == 1
    assert (first.workload.repeated_prompts, second.workload.repeated_prompts) == (0, 1)
    (repeat,) = found.repeats
    assert (repeat.planned, repeat.n) == (2, 0)  # neither was complete


def test_trace_is_recovered_with_its_own_span(tmp_path: Path) -> None:
    folder = tmp_path / "result"
    lines = "".join(f'{{"timestamp": {at}, "input_tokens": 8, "output_tokens": 4}}\n' for at in range(8))
    (level,) = _begun(folder, "load: {trace: {path: ./t.jsonl, format: jsonl}, warmup: 1s}\nseed: 1\n", t_jsonl=lines)
    _write(folder, *(answer(at, 1000.0 * at) for at in range(4)))
    (tmp_path / "t.jsonl").rename(tmp_path / "elsewhere.jsonl")  # no reason to lose the figures
    (found,) = recovered(folder).levels
    assert found.load == level.load
    assert (found.load.events, found.load.span_s) == (8, level.duration_s)
    assert found.window.measured_s == pytest.approx(2.132)
    assert [(data.source, data.order) for data in found.workload.data] == [("t.jsonl", None)]
    assert found.client.valid, found.client.reasons


def test_a_second_playing_that_was_cut_short_has_the_figures_that_were_written_last(tmp_path: Path) -> None:
    folder = tmp_path / "result"
    (level,) = _begun(folder, "load: {rate: 10, duration: 10s, warmup: 1s}\nseed: 1\n")
    before = load(folder)
    first = msgspec.structs.replace(before.levels[0], status="ok")
    more = msgspec.structs.replace(
        before.levels[0], name=f"{level.name} (more)", status="aborted", goes_on=True, extends=level.name
    )
    write(msgspec.structs.replace(before, levels=[first, more]), folder)
    _write(folder, answer(0, 2000.0), answer(0, 2000.0, level=1))
    assert recovered(folder).levels == [first, more]
