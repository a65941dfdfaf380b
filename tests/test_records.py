import gzip
from array import array
from collections.abc import Collection
from io import BytesIO
from pathlib import Path

import msgspec
import pytest

from loadtest.engine.journal import Journal
from loadtest.errors import ResultError
from loadtest.records import JOURNAL, Record, RequestError, cut, files, lines, part, read, records


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


def level_of(number: int, level: int) -> Record:
    return msgspec.structs.replace(record(number), level=level)


def written(path: Path, *found: Record) -> None:
    journal = Journal(str(path))
    for each in found:
        journal.write(each)
    journal.close()


def pack(path: Path) -> None:
    path.with_name(path.name + ".gz").write_bytes(gzip.compress(path.read_bytes()))
    path.unlink()


def test_parts_of_a_journal_are_read_one_after_the_other_packed_or_not(tmp_path: Path) -> None:
    assert [*records(tmp_path)] == []
    for number in range(3):
        written(part(tmp_path, number + 1), level_of(number, 0))
    written(tmp_path / JOURNAL, level_of(3, 0))
    pack(part(tmp_path, 1))
    twice = part(tmp_path, 2).read_bytes()
    pack(part(tmp_path, 2))
    part(tmp_path, 2).write_bytes(twice)  # packed, and then the process died
    assert [path.name for path in files(tmp_path)] == [
        "records-00001.jsonl.gz", "records-00002.jsonl.gz", "records-00003.jsonl", JOURNAL,
    ]  # fmt: skip
    assert [found.id for found in records(tmp_path)] == [0, 1, 2, 3]
    assert len([*lines(tmp_path)]) == 4


def test_a_part_that_is_damaged_is_named(tmp_path: Path) -> None:
    (tmp_path / "records-00001.jsonl.gz").write_bytes(gzip.compress(b"x" * 1000)[:-12])
    with pytest.raises(ResultError, match=r"records-00001\.jsonl\.gz is damaged"):
        list(lines(tmp_path))


def test_a_journal_is_cut_to_its_first_levels_and_goes_on_from_there(tmp_path: Path) -> None:
    written(tmp_path / JOURNAL, *(level_of(number, number // 2) for number in range(6)))
    with (tmp_path / JOURNAL).open("ab") as file:
        file.write(b'{"id":6,"lev')
    assert not cut(tmp_path, range(3))
    assert len(read(tmp_path / JOURNAL)[0]) == 6
    assert (tmp_path / JOURNAL).read_bytes().endswith(b"}\n")
    assert cut(tmp_path, range(2))
    assert [found.id for found in records(tmp_path)] == [0, 1, 2, 3]
    (tmp_path / "new").mkdir()
    cut(tmp_path / "new", {0})
    assert read(tmp_path / "new" / JOURNAL) == ([], 0)


@pytest.mark.parametrize("packed", [(), (1,), (1, 2), (1, 2, 3)], ids=str)
@pytest.mark.parametrize(
    ("levels", "left"),
    [((), []), ((0,), [0, 1, 2]), ((0, 5), [0, 1, 2, 3]), ((0, 1, 5), [0, 1, 2, 3, 4, 5, 6]), (range(9), [*range(8)])],
)
def test_a_journal_of_parts_is_cut_where_a_level_comes_that_is_not_kept(
    tmp_path: Path, levels: Collection[int], left: list[int], packed: tuple[int, ...]
) -> None:
    parts = [[0, 0], [0, 5], [1, 1, 1], [2]]  # the first level was extended by what is level 5
    number = 0
    for place, own in enumerate(parts, 1):
        made = [level_of(number + step, level) for step, level in enumerate(own)]
        number += len(own)
        written(part(tmp_path, place) if place < len(parts) else tmp_path / JOURNAL, *made)
        if place in packed:
            pack(part(tmp_path, place))
    cut(tmp_path, levels)
    assert [found.id for found in records(tmp_path)] == left
    written(tmp_path / JOURNAL, level_of(9, 1))
    assert [found.id for found in records(tmp_path)] == [*left, 9]


def test_a_line_whose_rest_comes_while_it_is_read_is_left_for_the_next_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path / JOURNAL, level_of(0, 0), level_of(1, 0))
    whole = (tmp_path / JOURNAL).read_bytes()
    first = whole.index(b"\n") + 1

    class Growing(BytesIO):
        """A file that ends within its second line, and goes on when it is read again."""

        def __next__(self) -> bytes:
            if self.tell() == first:
                return self.read(5)
            return super().__next__()

    monkeypatch.setattr(Path, "open", lambda *_: Growing(whole))
    found, offset = read(tmp_path / JOURNAL)
    assert [record.id for record in found] == [0]
    assert offset == first


def test_a_damaged_journal_is_not_cut(tmp_path: Path) -> None:
    (tmp_path / JOURNAL).write_bytes(b'{"level":0}\nnonsense\n{"level":1}\n')
    with pytest.raises(ResultError, match="byte 12"):
        cut(tmp_path, {0})
    assert (tmp_path / JOURNAL).stat().st_size == 33
