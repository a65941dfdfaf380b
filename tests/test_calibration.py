"""What is concluded from a calibration, when a run is warned, and what becomes of the file."""

import logging
from pathlib import Path
from typing import Any

import msgspec
import pytest

from loadtest import calibration
from loadtest.calibration import Calibration, Row
from loadtest.errors import ResultError
from loadtest.level import Level
from loadtest.reports.calibration import table
from loadtest.schedule import Load, Stage
from loadtest.workload.lengths import Length
from loadtest.workload.model import Workload


def row(concurrency: int, itl_ms: float | None = 0.1, ttft_ms: float | None = 0.2, **given: Any) -> Row:
    values: dict[str, Any] = {
        "kind": "streams",
        "concurrency": concurrency,
        "requests": concurrency * 4,
        "events_per_s": concurrency * 48.0,
        "requests_per_s": concurrency * 1.0,
        "added_ttft_p50_ms": ttft_ms,
        "added_ttft_p99_ms": ttft_ms,
        "added_itl_p99_ms": itl_ms,
        "own_lag_p99_ms": 0.1,
        "loop_lag_p99_ms": 0.2,
        "cpu_share": 0.1,
        "server_late_p99_ms": 0.3,
        "server_cpu_share": 0.2,
        "others_cpu_share": 0.05,
    }
    return Row(**{**values, **given})


WHOLE = Row(kind="whole", concurrency=64, requests=1000, events_per_s=None, requests_per_s=30_000.0)


def calibrated(*rows: Row, **given: Any) -> Calibration:
    values: dict[str, Any] = {
        "measured_at": "2026-03-01T12:00:00Z",
        "machine": calibration.this_machine(),
        "software": calibration.this_software(),
        "quick": False,
        "ttft_ms": 50.0,
        "itl_ms": 20.0,
        "rows": [*rows],
    }
    return Calibration(**{**values, **given})


def level(load: Load) -> Level:
    return Level(0, str(load), load, None, (Workload(Length(8, 8), Length(8, 8)),), 5.0, None, 1.0, 5.0)


def closed(concurrency: int) -> Level:
    return level(Load("closed", concurrency=concurrency))


# What is concluded --------------------------------------------------------------------------------------------


def test_what_is_carried_is_the_most_streams_that_add_little() -> None:
    found = calibrated(row(1), row(64), row(256, itl_ms=1.2), row(1024, itl_ms=9.0))
    assert found.carried == row(64)
    assert found.broke_at == row(256, itl_ms=1.2)


def test_a_disturbed_row_below_one_that_held_is_no_limit() -> None:
    found = calibrated(row(1), row(64, itl_ms=1.2), row(256))
    assert found.carried == row(256)
    assert found.broke_at is None


@pytest.mark.parametrize(
    "bad",
    [
        row(64, itl_ms=1.01),
        row(64, ttft_ms=5.1),
        row(64, itl_ms=-3.0),  # the two accounts do not agree: nothing can be told from them
        row(64, itl_ms=None),
        row(64, reasons=["3 requests failed: reset"]),
    ],
)
def test_a_row_must_add_little_be_measured_and_be_sound(bad: Row) -> None:
    assert bad.excess > 1
    assert calibrated(row(1), bad).carried == row(1)


def test_the_finding_says_how_much_is_carried_and_which_side_was_the_limit() -> None:
    def at_256(**given: Any) -> str:
        return calibrated(row(1), row(64), row(256, itl_ms=3.1, ttft_ms=7.0, **given)).finding()

    start = (
        "One worker carries 64 streams (3,072 events/s) here before it adds more than 1 ms to ITL p99 or 5 ms to TTFT "
        "p99: with 256 it added 3.1 ms to ITL p99 and 7.0 ms to TTFT p99, and "
    )
    assert at_256(cpu_share=0.97) == start + "the client (CPU 97%, loop lag p99 0.2 ms) was the limit."
    assert at_256(server_late_p99_ms=4.0) == (
        start + "the known-latency server (CPU 20%, late p99 4.0 ms) was the limit, so the client may carry more."
    )
    assert "both were at their limit" in at_256(cpu_share=0.95, server_cpu_share=0.95)
    assert "neither client nor server was busy" in at_256()
    assert "other work took 60% of this machine's cores" in at_256(cpu_share=0.97, others_cpu_share=0.6)


def test_the_finding_at_the_ends_of_the_scale() -> None:
    assert calibrated(row(1), row(1024)).finding() == (
        "One worker carries at least 1,024 streams (49,152 events/s) here, the most tried, without adding more than "
        "1 ms to ITL p99 or 5 ms to TTFT p99."
    )
    assert calibrated(row(1, itl_ms=9.0)).finding().startswith("One worker carries no load here without adding more")
    assert "the figures did not count: 3 requests failed" in (
        calibrated(row(1), row(64, reasons=["3 requests failed: reset"])).finding()
    )
    assert calibrated().finding() == "Nothing was measured."


# The warning --------------------------------------------------------------------------------------------------


def test_more_streams_for_each_worker_than_were_carried_is_a_warning_that_says_what_to_do() -> None:
    found = calibrated(row(1), row(256), row(512, itl_ms=2.5, ttft_ms=6.0))
    assert found.exceeded([closed(16), closed(256)], workers=1) == []
    assert found.exceeded([closed(16), closed(512)], workers=2) == []
    assert found.exceeded([closed(16), closed(1000), closed(32)], workers=2) == [
        "level c=1000: 500 streams for each generator process, and this machine was found to carry 256 "
        "(loadtest calibrate, 2026-03-01); beyond that it added 2.5 ms to ITL p99 and 6.0 ms to TTFT p99. "
        "Use more --workers or another host"
    ]


def test_beyond_the_largest_row_nothing_is_known_and_that_is_said() -> None:
    (text,) = calibrated(row(1), row(1024)).exceeded([closed(2000)], workers=1)
    assert "what more would add to the latencies is not known" in text


def test_more_requests_a_second_than_were_carried_is_a_warning_too() -> None:
    found = calibrated(row(1), WHOLE)
    stages = Load("stages", stages=(Stage(0.0, 50_000.0, 10.0),))
    assert found.exceeded([level(Load("constant", rate_per_s=20_000.0))], workers=1) == []
    (text,) = found.exceeded([level(stages)], workers=1)
    assert "50,000 requests a second for each generator process" in text
    assert "found to carry 30,000" in text
    assert found.exceeded([level(stages)], workers=2) == []


def test_a_run_without_levels_or_a_calibration_without_rows_warns_of_nothing() -> None:
    assert calibrated(row(1)).exceeded([], workers=1) == []
    assert calibrated().exceeded([closed(5000)], workers=1) == []


# The file -----------------------------------------------------------------------------------------------------


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "loadtest" / "calibration.json"


def test_what_was_saved_is_found_again_and_warns(cache: Path) -> None:
    assert calibration.load() is None
    assert calibration.warning([closed(5000)], 1) == []
    found = calibrated(row(1), row(64), WHOLE)
    assert calibration.save(found) == cache
    assert calibration.load() == found
    assert [file.name for file in cache.parent.iterdir()] == ["calibration.json"]
    (text,) = calibration.warning([closed(5000)], 2)
    assert text.startswith("level c=5000: 2,500 streams for each generator process")


@pytest.mark.parametrize(
    "changed", [{"machine": "another"}, {"software": {"loadtest": "0.0.1"}}, {"schema_version": 9}]
)
def test_a_calibration_of_another_machine_or_version_does_not_hold(cache: Path, changed: dict[str, Any]) -> None:
    calibration.save(msgspec.structs.replace(calibrated(row(1)), **changed))
    assert calibration.load() is None


def test_a_damaged_file_is_told_of_with_the_mend_and_ends_no_run(cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache.parent.mkdir()
    cache.write_bytes(b'{"rows": [')
    with caplog.at_level(logging.WARNING):
        assert calibration.warning([closed(1)], 1) == []
    assert str(cache) in caplog.text
    assert "loadtest calibrate --save" in caplog.text


def test_nothing_carried_is_not_saved_over_what_was(cache: Path) -> None:
    calibration.save(calibrated(row(1)))
    with pytest.raises(ResultError, match="not saved: no load was carried"):
        calibration.save(calibrated(row(1, itl_ms=9.0)))
    assert calibration.load() == calibrated(row(1))


def test_a_cache_that_cannot_be_written_names_itself_and_the_mend(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(ResultError, match=r"cannot write .*calibration\.json: .*XDG_CACHE_HOME"):
        calibration.save(calibrated(row(1)))


def test_a_full_disk_keeps_the_old_calibration_and_leaves_nothing_beside_it(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calibration.save(calibrated(row(1)))

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("loadtest.whole.os.fsync", full)
    with pytest.raises(ResultError, match="No space left on device"):
        calibration.save(calibrated(row(1), row(64)))
    assert [path.name for path in cache.parent.iterdir()] == ["calibration.json"]
    assert calibration.load() == calibrated(row(1))


def test_the_json_has_the_conclusions_beside_the_rows() -> None:
    document = calibrated(row(1), row(64, itl_ms=2.0)).document()
    assert document["carried_streams"] == 1
    assert document["finding"].startswith("One worker carries 1 stream")
    assert document["rows"][1]["added_itl_p99_ms"] == 2.0
    assert calibrated(row(1, itl_ms=2.0)).document()["carried_streams"] is None


# The table ----------------------------------------------------------------------------------------------------


def test_the_table_marks_what_was_too_much_and_ends_with_the_finding() -> None:
    burst = msgspec.structs.replace(WHOLE, kind="burst", events_per_s=400_000.0)
    found = calibrated(row(1), row(64, itl_ms=2.0), burst, WHOLE, notes=["other work took much"])
    text = table(found, 140, color=False)
    lines = text.splitlines()
    assert calibration.this_machine() in " ".join(lines[:3])
    assert any(line.startswith("!  64 streams") for line in lines)
    assert any(line.startswith("   1 stream ") for line in lines)
    assert any("burst, 64 at once" in line and "400,000" in line for line in lines)
    assert any("whole, 64 at once" in line and "30,000" in line for line in lines)
    assert "One worker carries 1 stream" in text
    assert "note: other work took much" in text
    assert "\x1b" not in text
    assert max(map(len, lines)) <= 140
