from array import array
from pathlib import Path

import msgspec
import pytest

from loadtest.engine.journal import Journal
from loadtest.errors import ResultError
from loadtest.records import Record, RequestError, cut, read


def record(number: int) -> Record:
    return Record(
        id=number, level=0, worker=0, intended_ms=1.5, outcome="http_error", in_window=True, asked_input_tokens=8,
        asked_output_tokens=4, error=RequestError("http_status", "429 slow down – später", 429, 2.0), itl_ms=[1.0, 2.5],
    )  # fmt: skip


def read_back(number: int) -> Record:
    return msgspec.structs.replace(record(number), itl_ms=array("f", [1.0, 2.5]))


def test_what_was_written_is_read_back_the_same(tmp_path: Path) -> None:
    journal = Journal(str(tmp_path / "j"))
    for number in range(3):
        journal.write(record(number))
    journal.close()
    assert read(tmp_path / "j")[0] == [read_back(0), read_back(1), read_back(2)]


def test_reading_goes_on_where_it_left_off(tmp_path: Path) -> None:
    journal = Journal(str(tmp_path / "j"))
    journal.write(record(0))
    first, offset = read(tmp_path / "j")
    journal.write(record(1))
    second, _ = read(tmp_path / "j", offset)
    journal.close()
    assert (first, second) == ([read_back(0)], [read_back(1)])


def test_a_last_line_cut_by_a_crash_costs_only_itself(tmp_path: Path) -> None:
    journal = Journal(str(tmp_path / "j"))
    journal.write(record(0))
    journal.write(record(1))
    journal.close()
    whole = (tmp_path / "j").read_bytes()
    (tmp_path / "j").write_bytes(whole[:-10])
    assert read(tmp_path / "j")[0] == [read_back(0)]


def test_a_damaged_line_is_named_by_file_and_place(tmp_path: Path) -> None:
    (tmp_path / "j").write_bytes(b"{}\n")
    with pytest.raises(ResultError, match="j: the line at byte 0 is not a record"):
        read(tmp_path / "j")


def test_a_folder_that_cannot_be_written_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ResultError, match=r"cannot write .*no-such.*another folder with -o"):
        Journal(str(tmp_path / "no-such" / "j"))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_full_disk_is_one_clear_error() -> None:
    journal = Journal("/dev/full")
    with pytest.raises(ResultError, match="No space left"):
        journal.write(record(0))
    journal.close()


def test_a_journal_is_cut_to_its_first_levels_and_goes_on_from_there(tmp_path: Path) -> None:
    journal = Journal(str(tmp_path / "j"))
    for number in range(6):
        journal.write(msgspec.structs.replace(record(number), level=number // 2))
    journal.close()
    with (tmp_path / "j").open("ab") as file:
        file.write(b'{"id":6,"lev')
    cut(tmp_path / "j", 3)
    assert len(read(tmp_path / "j")[0]) == 6
    assert (tmp_path / "j").read_bytes().endswith(b"}\n")
    cut(tmp_path / "j", 2)
    assert [found.id for found in read(tmp_path / "j")[0]] == [0, 1, 2, 3]
    cut(tmp_path / "new", 1)
    assert read(tmp_path / "new") == ([], 0)


def test_a_damaged_journal_is_not_cut(tmp_path: Path) -> None:
    (tmp_path / "j").write_bytes(b'{"level":0}\nnonsense\n{"level":1}\n')
    with pytest.raises(ResultError, match="byte 12"):
        cut(tmp_path / "j", 1)
    assert (tmp_path / "j").stat().st_size == 33
