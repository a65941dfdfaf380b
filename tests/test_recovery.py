from pathlib import Path

import msgspec

from loadtest import plan, scenario
from loadtest.engine.journal import Journal
from loadtest.records import JOURNAL, Record
from loadtest.recovery import recovered
from loadtest.result import Conditions, Endpoint, Hardware, Result, ScenarioRef, Tool, not_reached, write
from loadtest.run import RESOLVED
from loadtest.scenario import Override


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
