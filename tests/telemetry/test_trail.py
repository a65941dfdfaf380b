"""What was seen is left by a run that is killed, and makes the figures that the run would have made of it."""

import resource
from pathlib import Path

import msgspec
import pytest

from loadtest.errors import ResultError
from loadtest.telemetry import trail, watch
from loadtest.telemetry.trail import FILE_NAME, Look, Setting, Trail, read
from loadtest.telemetry.watch import Seen, remember

BEGUN = Setting(level=2, t0_ns=5_000_000_000, url="http://x/metrics", models={"0": "H100"})


def look(second: int, level: int = 2) -> Look:
    return Look(level, "server", second * 10**9, {"vllm": {"running": float(second)}})


def followed(folder: Path, *lines: Look | Setting) -> Trail:
    one = Trail(folder)
    one.begin()
    for line in lines:
        one.add(line)
    assert one.why is None
    return one


def test_each_look_is_there_as_soon_as_it_was_taken(tmp_path: Path) -> None:
    one = followed(tmp_path, look(4), BEGUN, look(5))
    found = read(tmp_path)
    assert found is not None
    assert found.setting == BEGUN
    assert found.looks == {"server": [(n * 10**9, {"vllm": {"running": n}}) for n in (4, 5)]}
    over = msgspec.structs.replace(BEGUN, over_ms=12.5)
    one.add(over)
    found = read(tmp_path)
    assert found is not None
    assert found.setting == over


def test_a_level_before_is_not_seen_in_the_next_one(tmp_path: Path) -> None:
    followed(tmp_path, look(1, level=1))
    followed(tmp_path, look(4, level=1), look(5), BEGUN)
    found = read(tmp_path)
    assert found is not None
    assert [at for at, _ in found.looks["server"]] == [5 * 10**9]


def test_what_is_read_is_thinned_out_as_what_the_run_had_in_mind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "_MOST", 8)
    had: list[tuple[int, Seen]] = []
    lines = [look(n) for n in range(30)]
    for line in lines:
        remember(had, line.at_ns, line.seen)
    followed(tmp_path, BEGUN, *lines)
    found = read(tmp_path)
    assert found is not None
    assert found.looks["server"] == had
    assert len(had) <= 8


def test_a_line_that_was_being_written_is_left_out(tmp_path: Path) -> None:
    followed(tmp_path, BEGUN, look(5))
    path = tmp_path / FILE_NAME
    path.write_bytes(path.read_bytes() + b'{"line":"look","le')
    found = read(tmp_path)
    assert found is not None
    assert len(found.looks["server"]) == 1


def test_nothing_was_seen_of_a_level_that_never_began(tmp_path: Path) -> None:
    assert read(tmp_path) is None
    followed(tmp_path, look(1))
    assert read(tmp_path) is None


def test_a_damaged_file_is_told_of_with_the_mend(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_text("nonsense\n", "utf-8")
    with pytest.raises(ResultError, match=r"telemetry.jsonl is damaged \(.*\); delete it"):
        read(tmp_path)


def test_a_folder_that_takes_nothing_is_a_remark_and_no_more(tmp_path: Path) -> None:
    one = Trail(tmp_path / "gone")
    one.begin()
    assert one.why is not None
    assert one.why.endswith("gone/telemetry.jsonl: No such file or directory")


def test_a_disk_that_takes_a_part_of_a_line_leaves_what_was_seen_before(tmp_path: Path) -> None:
    one = followed(tmp_path, BEGUN, look(5))
    path = tmp_path / FILE_NAME
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 10, hard))
    try:
        one.add(look(6))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    one.add(look(7))
    assert one.why is not None
    assert one.why.endswith("telemetry.jsonl: No space left on device")
    found = read(tmp_path)
    assert found is not None
    assert [at for at, _ in found.looks["server"]] == [5 * 10**9]


def test_what_is_all_in_the_result_goes(tmp_path: Path) -> None:
    followed(tmp_path, BEGUN)
    trail.forget(tmp_path)
    assert not (tmp_path / FILE_NAME).exists()
