"""Wake the event loop at an instant. The loops' own timers count whole milliseconds; Linux's timerfd does not."""

import asyncio
import ctypes
import os
import struct
import sys
from collections.abc import Callable
from time import perf_counter_ns

_TFD_NONBLOCK = 0o4000
_TFD_CLOEXEC = 0o2000000
_TFD_TIMER_ABSTIME = 1
_CLOCK_MONOTONIC = 1  # the clock of perf_counter on Linux


class DeadlineTimer:
    """One pending deadline; arming replaces it. ``callback`` runs in the loop, at or just after the deadline."""

    def __init__(self, loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
        self._loop = loop
        self._callback = callback
        self._handle: asyncio.TimerHandle | None = None
        self._fd = -1
        if sys.platform == "linux":
            self._libc = ctypes.CDLL(None, use_errno=True)
            self._fd = self._libc.timerfd_create(_CLOCK_MONOTONIC, _TFD_NONBLOCK | _TFD_CLOEXEC)
            if self._fd >= 0:
                loop.add_reader(self._fd, self._expired)

    def arm(self, deadline_ns: int) -> None:
        """Fire at ``deadline_ns`` of ``perf_counter_ns``; at once if that has passed."""
        if self._fd < 0:
            if self._handle is not None:
                self._handle.cancel()
            self._handle = self._loop.call_later(max(0.0, (deadline_ns - perf_counter_ns()) / 1e9), self._callback)
            return
        seconds, nanoseconds = divmod(max(deadline_ns, 1), 1_000_000_000)
        setting = struct.pack("qqqq", 0, 0, seconds, nanoseconds)
        if self._libc.timerfd_settime(self._fd, _TFD_TIMER_ABSTIME, setting, None):
            raise OSError(ctypes.get_errno(), "timerfd_settime failed")

    def close(self) -> None:
        """Forget the deadline and free the timer."""
        if self._handle is not None:
            self._handle.cancel()
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1

    def _expired(self) -> None:
        try:
            os.read(self._fd, 8)
        except BlockingIOError:
            return  # re-armed for later after it had become readable
        self._callback()
