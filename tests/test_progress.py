import io
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import pytest

from loadtest import progress
from loadtest.glance import Glance
from loadtest.histogram import bucket
from loadtest.level import Level
from loadtest.progress import Progress
from loadtest.schedule import Load
from loadtest.workload.lengths import Length
from loadtest.workload.model import Workload


class Counts(NamedTuple):
    sending: bool = True
    in_flight: int = 3
    ok: int = 20
    failed: int = 1
    output_tokens: int = 400
    ttft: Mapping[int, int] = {bucket(100.0): 19, bucket(900.0): 1}
    e2e: Mapping[int, int] = {bucket(2000.0): 20}
    send_lag: Mapping[int, int] = {bucket(0.1): 20}
    loop_lag: Mapping[int, int] = {bucket(0.2): 20}


class Terminal(io.StringIO):
    encoding = "utf-8"  # type: ignore[assignment]

    def isatty(self) -> bool:
        return True


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


class Kept:
    """A feed that keeps what it is told."""

    def __init__(self) -> None:
        self.taken: list[Glance] = []

    def begin(self) -> None: ...
    def close(self) -> None: ...

    def take(self, seen: Glance) -> None:
        self.taken.append(seen)


LEVEL = Level(
    0, "c=4", Load("closed", concurrency=4), None, (Workload(Length(8, 8), Length(4, 4)),), 30.0, None, 3.0, 10.0
)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(progress, "time", clock)
    return clock


USUAL = Counts()


def play(out: io.StringIO, clock: Clock, seconds: float, counts: Counts = USUAL, **given: Any) -> str:
    shown = Progress(out, **{"quiet": False, "environment": {}, **given})
    shown.note("starting the bundled server")
    shown.level(LEVEL, 2)
    for _ in range(round(seconds * 8)):
        clock.now += 0.125
        shown.counts([counts, counts])
    shown.close()
    return out.getvalue()


def screens(text: str) -> list[list[str]]:
    """What was drawn each time, line by line, without the commands to the terminal."""
    return [
        [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in drawn.split("\n")]
        for drawn in re.split(r"(?:\x1b\[[0-9]+A)?\r\x1b\[J", text)
    ]


def test_without_a_terminal_there_is_a_line_every_ten_seconds_and_no_escape_code(clock: Clock) -> None:
    text = play(io.StringIO(), clock, 31)
    assert len(text.splitlines()) == 3
    assert "\r" not in text
    assert "\x1b" not in text
    assert text.splitlines()[0] == (
        "level 1/2 c=4 · 10/30 s, 20 s left · 6 in flight · 40 ok · 2 failed · 4.00 req/s · 80.0 tok/s"
        " · TTFT p50 100 ms, p99 902 ms"
    )


def test_a_terminal_that_cannot_move_its_cursor_gets_lines(clock: Clock) -> None:
    assert "\x1b" not in play(Terminal(), clock, 11, environment={"TERM": "dumb"})


def test_where_a_log_goes_to_the_terminal_too_nothing_is_redrawn(clock: Clock) -> None:
    assert "\x1b" not in play(Terminal(), clock, 11, lines=True)


def test_at_a_terminal_three_lines_are_redrawn_at_most_twice_a_second_and_are_gone_in_the_end(clock: Clock) -> None:
    text = play(Terminal(), clock, 10)
    drawn = screens(text)
    assert 15 <= len([lines for lines in drawn if len(lines) == 3]) <= 20
    assert drawn[-2] == [
        "level 1/2 c=4 · 10/30 s, 20 s left",
        "  6 in flight · 40 ok · 2 failed · 4.00 req/s █▁▁▁▁▁▁▁▁▁ · 80.0 tok/s",
        "  TTFT p50 100 ms, p99 902 ms · client lag p99 sends 0.0999, loop 0.200 ms",
    ]
    assert text.endswith("\x1b[2A\r\x1b[J"), "up to the first of the three, and all of it cleared"


def test_no_line_is_wider_than_the_terminal_even_after_it_was_made_narrower(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    out = Terminal()
    shown = Progress(out, quiet=False, environment={})
    shown.level(LEVEL, 2)
    clock.now += 1
    shown.counts([Counts()])
    assert all(len(line) < 40 for lines in screens(out.getvalue()) for line in lines)
    monkeypatch.setenv("COLUMNS", "20")
    clock.now += 1
    shown.counts([Counts()])
    assert "\x1b[5A\r" in out.getvalue(), "each of the three lines had come to be two"


def test_no_color_is_obeyed(clock: Clock) -> None:
    assert "\x1b[31m · 2 failed\x1b[0m" in play(Terminal(), clock, 2)
    assert not re.search(r"\x1b\[[0-9;]*m", play(Terminal(), clock, 2, environment={"NO_COLOR": "1"}))


def test_a_client_that_is_late_stands_out(clock: Clock) -> None:
    late = Counts(send_lag={bucket(30.0): 20})
    assert "\x1b[33m · client lag p99 sends 30.1" in play(Terminal(), clock, 2, late)


def test_where_nothing_is_streamed_the_whole_time_is_shown(clock: Clock) -> None:
    assert "E2E p50 2,000 ms" in play(io.StringIO(), clock, 11, Counts(ttft={}))
    assert "no answer yet" in play(io.StringIO(), clock, 11, Counts(ttft={}, e2e={}))


def test_what_still_drains_says_so(clock: Clock) -> None:
    assert "30/30 s, 0 s left, draining" in play(io.StringIO(), clock, 41, Counts(sending=False))


def test_a_search_does_not_say_of_how_many(clock: Clock) -> None:
    out = io.StringIO()
    shown = Progress(out, quiet=False, environment={})
    shown.level(LEVEL, None)
    clock.now += 11
    shown.counts([USUAL])
    assert out.getvalue().startswith(f"level {LEVEL.index + 1} {LEVEL.name} · ")


def test_quiet_is_quiet_and_the_feeds_are_not(clock: Clock) -> None:
    kept = Kept()
    assert play(Terminal(), clock, 30, quiet=True) == ""
    assert play(io.StringIO(), clock, 30, quiet=True, feeds=[kept]) == ""
    assert [seen.state for seen in kept.taken] == ["sending"] * 30 + ["ended"]
    assert kept.taken[-1].elapsed_s == 30.0
