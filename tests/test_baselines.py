"""Runs read from their folders, and kept under a name."""

from pathlib import Path

import msgspec
import pytest

from loadtest.baselines import find, place, run_folders, runs, save
from loadtest.compare import compare
from loadtest.errors import ResultError, UsageError
from loadtest.folder import RESOLVED
from loadtest.records import JOURNAL
from loadtest.result import FILE_NAME, write
from loadtest.rows import Rows
from tests.comparing import a_run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """That of a run."""
    made = tmp_path / "before"
    made.mkdir()
    run = a_run("before", 1)
    write(run.result, made)
    (made / JOURNAL).write_bytes(b"".join(msgspec.json.encode(record) + b"\n" for record in run.records[0]))
    (made / RESOLVED).write_text("name: chat\nload: {concurrency: [1, 4]}\nlevels: [{scheduler: none}]\nslo: []\n")
    (made / "report.html").write_text("large")
    return made


def test_a_run_is_read_with_its_records_and_the_values_of_its_scenario(folder: Path) -> None:
    with runs([folder]) as found:
        (run,) = found
    assert run.name == str(folder)
    assert run.result == a_run("before", 1).result
    assert len(run.records[0]) == 400
    assert run.values == {
        "name": "chat", "load.concurrency": "[1, 4]", "levels.0.scheduler": "none", "slo": "[]",
    }  # fmt: skip


def test_a_run_without_records_or_scenario_is_read_without(folder: Path) -> None:
    (folder / JOURNAL).unlink()
    (folder / RESOLVED).write_text("\0: [")
    with runs([folder]) as found:
        (run,) = found
    assert run.records == run.values == {}


def test_a_folder_of_runs_stands_for_all_of_them(folder: Path) -> None:
    other = folder.parent / "later"
    other.mkdir()
    write(a_run("later", 2).result, other)
    assert run_folders(folder.parent) == [folder, other]
    with runs([folder.parent, folder]) as found:
        assert len(found) == 3


def test_a_long_level_is_compared_as_a_short_one_is(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with runs([folder]) as base, runs([folder]) as candidate:
        short = compare(base, candidate, 0.05)
    monkeypatch.setattr("loadtest.keeping.LARGE", 10)
    with runs([folder]) as base, runs([folder]) as candidate:
        assert isinstance(base[0].records[0], Rows)
        assert compare(base, candidate, 0.05) == short
    assert short.levels[0].changes[0].ci95 is not None


def test_what_is_no_run_is_told(tmp_path: Path) -> None:
    with pytest.raises(ResultError, match="holds no result: name a folder that run has made"), runs([tmp_path]):
        pass
    with pytest.raises(ResultError, match="missing is not there"), runs([tmp_path / "missing"]):
        pass


def test_a_baseline_is_kept_and_replaced_whole(folder: Path, tmp_path: Path) -> None:
    kept = place(tmp_path / "baselines", "main")
    assert save([folder], kept) == kept
    assert sorted(path.name for path in (kept / "1").iterdir()) == sorted([FILE_NAME, JOURNAL, RESOLVED])
    save([folder, folder], kept)
    assert [path.name for path in run_folders(kept)] == ["1", "2"]
    save([kept], kept)  # what is kept may be what was
    assert len(run_folders(kept)) == 2
    assert [path.name for path in (tmp_path / "baselines").iterdir()] == ["main"]


def test_a_baseline_that_cannot_be_written_leaves_the_earlier_one(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = place(tmp_path / "baselines", "main")
    save([folder], kept)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("shutil.copy2", full)
    with pytest.raises(ResultError, match=r"cannot keep a baseline in .*: No space left on device"):
        save([folder], kept)
    assert run_folders(kept) == [kept / "1"]
    assert [path.name for path in kept.parent.iterdir()] == ["main"]


def test_a_baseline_is_found_by_its_name_before_a_folder_is(folder: Path, tmp_path: Path) -> None:
    directory = tmp_path / "baselines"
    with pytest.raises(UsageError, match=r"no baseline main in .*: there is none yet; --save-baseline makes one"):
        find(Path("main"), directory)
    save([folder], place(directory, "main"))
    assert find(Path("main"), directory) == directory / "main"
    assert find(folder, directory) == folder
    assert find(Path("main"), None) == Path("main")
    with pytest.raises(UsageError, match=r"no baseline mian in .*: it holds main"):
        find(Path("mian"), directory)


@pytest.mark.parametrize("name", ["", ".", "..", ".hidden", "a/b", "a\\b"])
def test_names_that_lead_elsewhere_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="give a plain name"):
        place(tmp_path, name)
