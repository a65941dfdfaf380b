"""Shows how a run goes, level after level: on stderr, and to programs that asked for it."""

import os
import time
from collections.abc import Mapping, Sequence
from typing import Protocol, TextIO

from msgspec.structs import replace

from loadtest.display import Lines, Screen
from loadtest.glance import Counted, Glance, glance
from loadtest.level import Level

_FEED_S = 1.0


class Feed(Protocol):
    """Where a program takes what is seen."""

    def begin(self) -> None:
        """A level begins."""

    def take(self, seen: Glance) -> None:
        """Once a second, and when a level has ended."""

    def close(self) -> None:
        """The run has ended; another one may begin."""


class Progress:
    """Shows how a run goes. ``quiet`` shows nothing, and the ``feeds`` are served all the same.

    ``keys``: at a terminal the key q is the first Ctrl-C. ``lines``: nothing is redrawn there either, as other lines
    come between. It runs in the process that sends nothing, and closing it, which may be done several times, leaves the
    terminal as it was.
    """

    def __init__(
        self, out: TextIO, *, quiet: bool, feeds: Sequence[Feed] = (), keys: bool = False, lines: bool = False,
        environment: Mapping[str, str] = os.environ,
    ) -> None:  # fmt: skip
        self._display: Screen | Lines | None = None
        if not quiet:
            terminal = out.isatty() and not lines and environment.get("TERM") != "dumb"
            self._display = Screen(out, environment, keys=keys) if terminal else Lines(out)
        self._feeds = feeds
        self._level: Level | None = None
        self._levels: int | None = None
        self._workers: Sequence[Counted] = ()
        self._began = self._shown = self._fed = self._counted = time.monotonic()

    def note(self, text: str) -> None:
        """Say something that is no level: what is being waited for."""
        self._end()
        if self._display is not None:
            self._display.note(text)

    def remark(self, text: str) -> None:
        """Say something of the level that goes on."""
        if self._display is not None:
            self._display.remark(text)

    def level(self, level: Level, count: int | None) -> None:
        """A level begins, of ``count`` in all; a search does not know of how many."""
        self._end()
        self._level, self._levels, self._workers = level, count, ()
        self._began = self._fed = time.monotonic()
        if isinstance(self._display, Screen):
            self._shown = self._began
        for each in (*self._feeds, self._display):
            if each is not None:
                each.begin()

    def counts(self, workers: Sequence[Counted]) -> None:
        """What the workers have counted; shown when it is time."""
        now = self._counted = time.monotonic()
        self._workers = workers
        if self._display is not None and now - self._shown >= self._display.period_s:
            self._shown = now
            self._display.show(self._seen(now))
        if self._feeds and now - self._fed >= _FEED_S:
            self._fed = now
            self._feed(self._seen(now))

    def close(self) -> None:
        """Leave a clean line for what comes next."""
        self._end()
        for each in (*self._feeds, self._display):
            if each is not None:
                each.close()

    def _end(self) -> None:
        """The level that was shown is over."""
        if self._level is not None and self._workers and self._feeds:
            self._feed(replace(self._seen(self._counted), state="ended"))
        self._level = None

    def _seen(self, now: float) -> Glance:
        assert self._level is not None
        return glance(self._level, self._levels, now - self._began, self._workers)

    def _feed(self, seen: Glance) -> None:
        for feed in self._feeds:
            feed.take(seen)
