import io
from typing import NamedTuple

import pytest

from loadtest import progress
from loadtest.level import Level
from loadtest.progress import Progress
from loadtest.schedule import Load
from loadtest.workload.lengths import Length
from loadtest.workload.model import Workload


class Counts(NamedTuple):
    in_flight: int = 3
    ok: int = 20
    failed: int = 1
    output_tokens: int = 400


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


LEVEL = Level(
    0, "c=4", Load("closed", concurrency=4), None, (Workload(Length(8, 8), Length(4, 4)),), 30.0, None, 3.0, 10.0
)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(progress, "time", clock)
    return clock


def play(out: io.StringIO, clock: Clock, seconds: float, *, quiet: bool = False) -> str:
    shown = Progress(out, quiet=quiet)
    shown.note("starting the bundled server")
    shown.level(LEVEL, 2)
    for _ in range(round(seconds * 8)):
        clock.now += 0.125
        shown.counts([Counts(), Counts()])
    shown.close()
    return out.getvalue()


def test_without_a_terminal_there_is_a_line_every_ten_seconds_and_no_escape_code(clock: Clock) -> None:
    text = play(io.StringIO(), clock, 31)
    assert len(text.splitlines()) == 3
    assert "\r" not in text
    assert "\x1b" not in text
    assert text.splitlines()[0] == "level 1/2 c=4 · 10/30 s · 6 in flight · 40 ok · 2 failed · 4.0 req/s · 80 tok/s"
    assert "draining" in text.splitlines()[-1] or "30/30" in text.splitlines()[-1]


def test_at_a_terminal_one_line_is_rewritten_at_most_twice_a_second_and_cleared_at_the_end(clock: Clock) -> None:
    text = play(Terminal(), clock, 10)
    assert "\n" not in text
    assert 15 <= text.count("level 1/2") <= 20
    assert text.endswith("\r\x1b[K")


def test_quiet_is_quiet(clock: Clock) -> None:
    assert play(Terminal(), clock, 30, quiet=True) == ""
    assert play(io.StringIO(), clock, 30, quiet=True) == ""
