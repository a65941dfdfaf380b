"""How a level goes, shown to whoever watches stderr: a few lines redrawn at a terminal, one now and then elsewhere."""

import contextlib
import os
import select
import shutil
import signal
import sys
from collections import deque
from collections.abc import Mapping
from typing import TextIO

from loadtest.glance import Glance
from loadtest.reports.figures import figure, plain

# Above it a level is invalid (docs/metrics.md, "When the client was the limit"), so it stands out while it grows.
_LAG_MS = 10.0
_BARS = "▁▂▃▄▅▆▇█"
_BINS = 24
_BIN_S = 1.0
_RED, _YELLOW, _DIM = "31", "33", "2"


class Lines:
    """Where there is no terminal: a line every ten seconds, and no escape code."""

    period_s = 10.0

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def note(self, text: str) -> None:
        """Nothing: a log wants figures."""

    def remark(self, text: str) -> None:
        """Say something of what is shown."""
        _write(self._out, f"warning: {plain(text)}\n")

    def begin(self) -> None:
        """A level begins."""

    def show(self, seen: Glance) -> None:
        """Print it."""
        _write(self._out, " · ".join([_what(seen), _clock(seen), *_counts(seen), *_rates(seen), _times(seen)]) + "\n")

    def close(self) -> None:
        """Nothing is left to be cleared."""


class Screen:
    """At a terminal: three lines that stay where they are, and are gone in the end.

    ``keys``: whether the key q asks to drain, as the first Ctrl-C does. No line wraps, and the cursor is never hidden:
    a process that is killed leaves nothing worse than its last lines.
    """

    period_s = 0.5

    def __init__(self, out: TextIO, environment: Mapping[str, str], *, keys: bool) -> None:
        self._out = out
        self._color = not environment.get("NO_COLOR")
        self._bars = _encodes(out, _BARS)
        self._keys = Keys() if keys else None
        self._drawn: list[int] = []  # how wide each line is that is there now
        self._pulse = Pulse()

    def note(self, text: str) -> None:
        """Say what is waited for."""
        self._draw([[(plain(text), "")]])

    def remark(self, text: str) -> None:
        """Say something of what is shown, above it and to stay."""
        self._draw([])
        _write(self._out, f"warning: {plain(text)}\n")

    def begin(self) -> None:
        """A level begins."""
        self._pulse = Pulse()
        if self._keys is not None:
            self._keys.listen()

    def show(self, seen: Glance) -> None:
        """Draw it over what was there, and see to the keys."""
        bars = self._pulse.beat(seen.elapsed_s, seen.ok)
        late = max(seen.send_lag_p99_ms or 0.0, seen.loop_lag_p99_ms or 0.0) > _LAG_MS
        in_flight, ok, *failed = _counts(seen)
        requests, *tokens = _rates(seen)
        hint = "   q: drain and report" if self._keys is not None and self._keys.heard is False else ""
        self._draw(
            [
                [(f"{_what(seen)} · {_clock(seen)}", ""), (hint, _DIM)],
                [
                    (f"  {in_flight} · {ok}", ""),
                    *((f" · {text}", _RED) for text in failed),
                    (f" · {requests}", ""),
                    (f" {bars}" if self._bars else "", _DIM),
                    *((f" · {text}", "") for text in tokens),
                ],
                [(f"  {_times(seen)}", ""), (_lag(seen), _YELLOW if late else "")],
            ]
        )
        if self._keys is not None:
            self._keys.obey()

    def close(self) -> None:
        """Clear the lines and give the keys back."""
        if self._keys is not None:
            self._keys.close()
        if self._drawn:
            self._draw([])

    def _draw(self, lines: list[list[tuple[str, str]]]) -> None:
        """Each line is pieces of text with their colours."""
        columns = _columns(self._out)
        # A terminal made narrower since has wrapped what was drawn.
        up = sum(max(1, -(-width // columns)) for width in self._drawn) - 1
        text = [f"\x1b[{up}A" if up > 0 else "", "\r\x1b[J"]
        widths = []
        for number, pieces in enumerate(lines):
            left = columns - 1
            text.append("\n" if number else "")
            for piece, color in pieces:
                cut = _cut(piece, left)
                left -= _width(cut)
                text.append(f"\x1b[{color}m{cut}\x1b[0m" if color and self._color and cut else cut)
            widths.append(columns - 1 - left)
        if _write(self._out, "".join(text)):
            self._drawn = widths


class Pulse:
    """The answers of each of the last seconds, as bars."""

    def __init__(self) -> None:
        self._bins: deque[float] = deque(maxlen=_BINS)
        self._at_s = 0.0
        self._ok = 0

    def beat(self, at_s: float, ok: int) -> str:
        """``ok`` answers were there ``at_s`` after the level's start; returns the bars up to now."""
        past_s = at_s - self._at_s
        if past_s >= _BIN_S:
            self._bins.append((ok - self._ok) / past_s)
            self._at_s, self._ok = at_s, ok
        most = max(self._bins, default=0.0)
        return "".join(_BARS[round(rate / most * (len(_BARS) - 1)) if most else 0] for rate in self._bins)


class Keys:
    """Single keys of the terminal on stdin. Nothing is read while it belongs to another job.

    ``heard``: whether q was pressed; None where there are no keys.
    """

    def __init__(self) -> None:
        self.heard: bool | None = None
        self._before: list[object] | None = None

    def listen(self) -> None:
        """Take keys without Enter from now on, and do not echo them. Ctrl-C and Ctrl-Z stay what they are."""
        if self._before is not None or not self._ours():
            return
        import termios  # noqa: PLC0415  # not on Windows

        stdin = sys.stdin.fileno()
        self._before = termios.tcgetattr(stdin)
        changed = termios.tcgetattr(stdin)
        changed[3] &= ~(termios.ICANON | termios.ECHO)
        termios.tcsetattr(stdin, termios.TCSADRAIN, changed)
        self.heard = False

    def obey(self) -> None:
        """See whether q was pressed; the first one is a Ctrl-C."""
        while self._before is not None and self._ours() and select.select([sys.stdin], [], [], 0)[0]:
            typed = os.read(sys.stdin.fileno(), 64)
            if not typed:
                return
            if b"q" in typed.lower() and not self.heard:
                self.heard = True
                signal.raise_signal(signal.SIGINT)

    def close(self) -> None:
        """Set the terminal as it was before."""
        if self._before is not None and self._ours():
            import termios  # noqa: PLC0415

            with contextlib.suppress(termios.error):  # a terminal that has gone has no settings
                termios.tcsetattr(sys.stdin.fileno(), termios.TCSADRAIN, self._before)  # type: ignore[arg-type]
        self._before = self.heard = None

    @staticmethod
    def _ours() -> bool:
        """Whether stdin is a terminal, and this the job in its foreground: another one would be stopped for asking."""
        if sys.platform == "win32":
            return False
        try:
            return os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
        except (OSError, ValueError, AttributeError):
            return False


# Words --------------------------------------------------------------------------------------------------------


def _what(seen: Glance) -> str:
    of = "" if seen.levels is None else f"/{seen.levels}"
    return f"level {seen.level}{of} {plain(seen.name)}"


def _clock(seen: Glance) -> str:
    if seen.duration_s is None:
        clock = f"{seen.elapsed_s:.0f} s, {seen.ok + seen.failed:,} of {seen.requests:,}"
    else:
        elapsed = min(seen.elapsed_s, seen.duration_s)
        clock = f"{elapsed:.0f}/{seen.duration_s:g} s, {seen.duration_s - elapsed:.0f} s left"
    return f"{clock}, draining" if seen.state == "draining" else clock


def _counts(seen: Glance) -> list[str]:
    return [f"{seen.in_flight:,} in flight", f"{seen.ok:,} ok", *([f"{seen.failed:,} failed"] if seen.failed else [])]


def _rates(seen: Glance) -> list[str]:
    tokens = [f"{figure(seen.output_tokens_per_s)} tok/s"] if seen.output_tokens else []
    return [f"{figure(seen.requests_per_s)} req/s", *tokens]


def _times(seen: Glance) -> str:
    """TTFT, or E2E where nothing is streamed."""
    for name, p50, p99 in (("TTFT", seen.ttft_p50_ms, seen.ttft_p99_ms), ("E2E", seen.e2e_p50_ms, seen.e2e_p99_ms)):
        if p50 is not None:
            return f"{name} p50 {figure(p50)} ms, p99 {figure(p99)} ms"
    return "no answer yet"


def _lag(seen: Glance) -> str:
    named = (("sends", seen.send_lag_p99_ms), ("loop", seen.loop_lag_p99_ms))
    parts = [f"{name} {figure(value)}" for name, value in named if value is not None]
    return f" · client lag p99 {', '.join(parts)} ms" if parts else ""


def _columns(out: TextIO) -> int:
    """How wide the terminal is now; stdout may be another one, or none."""
    with contextlib.suppress(OSError, ValueError):
        if columns := os.get_terminal_size(out.fileno()).columns:
            return columns
    return shutil.get_terminal_size().columns or 80


def _width(text: str) -> int:
    from rich.cells import cell_len  # noqa: PLC0415  # for terminals only

    return cell_len(text)


def _cut(text: str, width: int) -> str:
    from rich.cells import set_cell_size  # noqa: PLC0415

    return text if _width(text) <= width else set_cell_size(text, max(0, width))


def _encodes(out: TextIO, text: str) -> bool:
    try:
        text.encode(out.encoding or "ascii")
    except UnicodeEncodeError:
        return False
    return True


def _write(out: TextIO, text: str) -> bool:
    """Write, unless that would wait: a terminal that was stopped with Ctrl-S must not stop the run.

    Tells whether it was written; a stream that is gone takes nothing.
    """
    try:
        if sys.platform != "win32":
            with contextlib.suppress(OSError):  # it has no descriptor, and does not wait
                if not select.select([], [out.fileno()], [], 0)[1]:
                    return False
        out.write(text)
        out.flush()
    except (OSError, ValueError):
        return False
    return True
