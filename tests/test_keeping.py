import random
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from loadtest import keeping
from loadtest.engine.journal import Journal
from loadtest.errors import ResultError
from loadtest.keeping import Keeper
from loadtest.records import JOURNAL, Mode, Record, RequestError, files, part, records
from loadtest.rows import Rows
from tests.test_rows import made


class Writers:
    """Two workers that append to the journal of a folder."""

    def __init__(self, folder: Path, count: int = 2) -> None:
        self._folder = folder
        self.journals = [Journal(str(folder / JOURNAL)) for _ in range(count)]
        self._rng = random.Random(1)
        self.written: list[Record] = []

    def write(self, count: int) -> None:
        for _ in range(count):
            record = made(len(self.written), self._rng)
            self.written.append(record)
            lists = None if record.itl_ms is None else [*record.itl_ms]  # as a worker has them
            self._rng.choice(self.journals).write(msgspec.structs.replace(record, itl_ms=lists))

    def close(self) -> None:
        for journal in self.journals:
            journal.close()


Kept = Callable[[Mode], Keeper]


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kept:
    """Makes keepers to whom little is much, and who look whenever they are asked to."""
    monkeypatch.setattr(keeping, "PART_BYTES", 20_000)
    monkeypatch.setattr(keeping, "LARGE", 200)
    monkeypatch.setattr(keeping, "_LOOK_S", 0.0)
    monkeypatch.setattr(keeping, "_BATCH", 70)
    return lambda mode: Keeper(tmp_path, mode, seed=1)


def played(keeper: Keeper, writers: Writers, rounds: int, each: int) -> None:
    """A level, during which the workers turn as they are told to, each in its own time."""
    keeper.begin()
    turned = 0
    for _ in range(rounds):
        writers.write(each)
        if keeper.look(turned):
            writers.journals[0].turn()
            writers.write(each)
            assert not keeper.look(turned), "one of them still writes to the old file"
            writers.write(each)
            writers.journals[1].turn()
            turned = keeper.turned
    keeper.end()


def ids(found: "list[Record] | Rows") -> list[int]:
    return sorted(record.id for record in found)


def test_of_a_long_level_every_request_is_taken_in_and_left(kept: Kept, tmp_path: Path) -> None:
    keeper, writers = kept("all"), Writers(tmp_path)
    played(keeper, writers, 20, 20)
    assert isinstance(keeper.requests, Rows)
    assert ids(keeper.requests) == [*range(len(writers.written))]
    assert sorted(keeper.requests, key=lambda record: record.id) == writers.written
    keeper.requests.close()
    assert sorted(record.id for record in records(tmp_path)) == [*range(len(writers.written))]
    packed = [path for path in files(tmp_path) if path.name.endswith(".gz")]
    assert len(packed) == keeper.turned >= 5
    assert (tmp_path / JOURNAL).stat().st_size < 20_000
    begun = len(writers.written)
    keeper.begin()
    writers.write(30)
    keeper.end()
    assert ids(keeper.requests) == [*range(begun, begun + 30)], "of the next level there are only its own"
    writers.close()


def test_a_short_level_is_left_as_it_was_written(kept: Kept, tmp_path: Path) -> None:
    keeper, writers = kept("all"), Writers(tmp_path)
    keeper.begin()
    writers.write(20)
    assert not keeper.look(0)
    assert not keeper.requests, "nothing is read beside a level that may be over soon"
    keeper.end()
    writers.close()
    assert ids(keeper.requests) == [*range(20)]
    assert [path.name for path in files(tmp_path)] == [JOURNAL]


def test_a_journal_that_is_full_as_the_level_ends_is_packed_then(kept: Kept, tmp_path: Path) -> None:
    keeper, writers = kept("all"), Writers(tmp_path)
    keeper.begin()
    writers.write(250)
    writers.close()
    keeper.end()
    assert [path.name for path in files(tmp_path)] == ["records-00001.jsonl.gz"]
    assert ids(keeper.requests) == [*range(250)]
    assert isinstance(keeper.requests, Rows)
    keeper.requests.close()


def test_a_sample_has_all_that_failed_the_slowest_and_a_share(kept: Kept, tmp_path: Path) -> None:
    keeper, writers = kept("sampled"), Writers(tmp_path)
    played(keeper, writers, 120, 20)
    writers.close()
    assert ids(keeper.requests) == [*range(len(writers.written))], "figures are of all of them"
    assert isinstance(keeper.requests, Rows)
    keeper.requests.close()
    left = {record.id for record in records(tmp_path)}
    failed = {record.id for record in writers.written if record.outcome != "ok"}
    slow = sorted(
        (record for record in writers.written if record.outcome == "ok"),
        key=lambda record: (record.last_token_ms or 0) - record.intended_ms,
    )[-50:]
    assert failed <= left
    assert {record.id for record in slow} <= left
    others = len(left - failed) - keeping.SLOWEST
    assert 0 < others < len(writers.written) * 0.03
    (tmp_path / "again").mkdir()
    again, keeper = Writers(tmp_path / "again"), Keeper(tmp_path / "again", "sampled", seed=1)
    keeper.begin()
    again.write(len(writers.written))
    again.close()
    keeper.end()
    if isinstance(keeper.requests, Rows):
        keeper.requests.close()
    assert {record.id for record in records(tmp_path / "again")} == left, "the seed alone decides"


def test_of_none_nothing_is_left(kept: Kept, tmp_path: Path) -> None:
    keeper, writers = kept("none"), Writers(tmp_path)
    played(keeper, writers, 20, 20)
    writers.close()
    assert ids(keeper.requests) == [*range(len(writers.written))]
    assert isinstance(keeper.requests, Rows)
    keeper.requests.close()
    assert files(tmp_path) == []


def test_what_was_played_before_is_skipped_and_parts_are_numbered_on(kept: Kept, tmp_path: Path) -> None:
    part(tmp_path, 7).write_bytes(b"")
    before = Writers(tmp_path, 1)
    before.write(10)
    before.close()
    keeper, writers = kept("all"), Writers(tmp_path)
    keeper.skip()
    assert keeper.turned == 7
    keeper.begin()
    writers.write(5)
    keeper.end()
    writers.close()
    assert len(keeper.requests) == 5


def test_a_part_that_cannot_be_packed_is_one_clear_error_and_stays(
    kept: Kept, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper, writers = kept("all"), Writers(tmp_path)

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    keeper.begin()
    writers.write(100)
    assert keeper.look(0)
    for journal in writers.journals:
        journal.turn()
    writers.write(10)
    monkeypatch.setattr("gzip.open", full)
    with pytest.raises(ResultError, match="No space left on device; make room there"):
        keeper.look(1)
    keeper.end()
    writers.close()
    monkeypatch.undo()
    assert keeper.whole
    assert ids(keeper.requests) == [*range(110)]
    assert sorted(record.id for record in records(tmp_path)) == [*range(110)]


def test_failures_of_an_endless_kind_are_kept_of_a_sample(kept: Kept, tmp_path: Path) -> None:
    keeper = kept("sampled")
    journal = Journal(str(tmp_path / JOURNAL))
    keeper.begin()
    for number in range(100):
        journal.write(
            Record(
                id=number, level=0, worker=0, intended_ms=1.0, outcome="transport_error", in_window=True,
                asked_input_tokens=1, asked_output_tokens=1, error=RequestError("connect", "refused"),
            )
        )  # fmt: skip
    journal.close()
    keeper.end()
    assert len([*records(tmp_path)]) == 100


@pytest.mark.parametrize("refused", [1, 3])
def test_of_rows_that_a_full_disk_refused_for_a_while_none_counts_twice(
    refused: int, tmp_path: Path, kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    writers, keeper = Writers(tmp_path), kept("sampled")
    keeper.begin()
    writers.write(1000)
    append, calls = Rows.append, iter(range(100))

    def full(self: Rows, records: list[Record]) -> None:
        if next(calls) == refused:
            raise ResultError("No space left on device")
        append(self, records)

    monkeypatch.setattr(Rows, "append", full)
    with pytest.raises(ResultError, match="No space left"):
        keeper.look(0)
    writers.close()
    assert not keeper.whole
    keeper.end()
    assert keeper.whole
    assert sorted(record.id for record in keeper.requests) == [*range(1000)]
    assert isinstance(keeper.requests, Rows)
    keeper.requests.close()
