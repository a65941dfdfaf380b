"""A journal that is collected while it is written: nothing is lost or doubled, and the disk holds little of it."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadtest.engine.journal import Journal
from loadtest.engine.outbox import Outbox

MOST = 100  # bytes in a call; a file is full with 400


class Written:
    """A journal and its outbox; the writer turns when ``turn`` is called, which it was asked for before."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "w.jsonl"
        self.asked = 0
        self.outbox = Outbox(self.path, self._ask)
        self.all = b""
        self.collected = b""
        self.more = False
        self._journal = Journal(str(self.path))

    def _ask(self) -> None:
        self.asked += 1

    def write(self, lines: int) -> None:
        for _ in range(lines):
            line = b"%d\n" % len(self.all)
            self._journal.append(line)
            self.all += line

    def turn(self) -> None:
        if self.asked:
            self.asked -= 1
            self._journal.turn()

    def take(self) -> None:
        lines, self.more = self.outbox.take(len(self.collected), MOST)
        self.collected += lines

    def on_disk(self) -> int:
        return sum(path.stat().st_size for path in self.path.parent.iterdir())

    def close(self) -> None:
        self._journal.close()


STEPS = st.lists(st.one_of(st.integers(1, 60), st.just("turn"), st.just("take")), max_size=60)


@settings(max_examples=200, deadline=None)
@given(steps=STEPS)
def test_whatever_the_order_all_is_collected_once_and_what_was_not_is_on_the_disk(
    tmp_path_factory: pytest.TempPathFactory, steps: list[int | str]
) -> None:
    written = Written(tmp_path_factory.mktemp("outbox"))
    for step in steps:
        if isinstance(step, int):
            written.write(step)
        else:
            getattr(written, step)()
        assert written.all.startswith(written.collected)
        assert written.on_disk() >= len(written.all) - len(written.collected), "a client that dies has lost nothing"
        assert written.asked <= 1
    written.take()
    while written.more:  # whether or not the writer turns any more
        written.take()
    assert written.collected == written.all
    written.close()
    written.outbox.remove()
    assert not written.on_disk()


def test_hours_leave_no_more_on_the_disk_than_a_few_calls(tmp_path: Path) -> None:
    written = Written(tmp_path)
    for _ in range(200):
        written.write(10)
        written.take()
        written.turn()
        assert written.on_disk() < 8 * MOST
    assert len(written.all) > 80 * MOST
    written.close()


def test_a_line_longer_than_a_call_comes_whole(tmp_path: Path) -> None:
    written = Written(tmp_path)
    written.all = b"x" * (3 * MOST) + b"\n"
    written._journal.append(written.all + b"y")  # the next is being written
    written.take()
    assert written.collected == written.all
    written.take()
    assert written.collected == written.all
    assert not written.more
    written.close()


def test_a_line_that_a_full_disk_tore_is_not_asked_for_without_end(tmp_path: Path) -> None:
    written = Written(tmp_path)
    written.write(200)
    written.take()
    assert written.asked
    written._journal.append(b"torn")
    written.turn()
    while written.more:
        written.take()
    assert written.collected == written.all
    written.close()


def test_before_the_first_record_and_after_the_level_there_is_nothing(tmp_path: Path) -> None:
    outbox = Outbox(tmp_path / "none.jsonl", lambda: None)
    assert outbox.take(0, MOST) == (b"", False)
    outbox.remove()
    assert outbox.take(0, MOST) == (b"", False)
