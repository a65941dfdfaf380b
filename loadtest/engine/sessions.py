"""Sessions in progress: each turn is due when the one before it has been answered, and thought about.

Turns of a trace are due at its own times, and where the answer before is late, wait for it. A failed turn ends its
session: its user has gone, and what she would have asked next never becomes due.
"""

import asyncio
import heapq
import itertools
from collections.abc import Callable
from time import perf_counter_ns

from loadtest.endpoints.reading import Reading
from loadtest.engine.maker import Letters, Made, Unit
from loadtest.engine.timer import DeadlineTimer
from loadtest.wire.exchange import Exchange, Failure
from loadtest.workload.model import Message

# Sends a turn, which was due at an instant and has waited so many nanoseconds for the answer before it.
Send = Callable[[Made, int, int], None]


class _Session:
    """The turns still to come, the next one last, and what has been said."""

    def __init__(self, unit: Unit) -> None:
        self.turns = list(reversed(unit))
        self.history: list[Message] = []


class Sessions:
    """Plays the later turns of the sessions that have begun. ``len``: how many have turns to come."""

    def __init__(self, letters: Letters, send: Send) -> None:
        self._letters = letters
        self._send = send
        self._open: dict[int, _Session] = {}
        self._thinking: list[tuple[int, int, int, Made]] = []  # a heap: when to send, number, when it was due
        self._numbers = itertools.count()
        self._t0 = 0
        self._timer: DeadlineTimer | None = None

    def __len__(self) -> int:
        return len(self._open)

    def start(self, t0_ns: int) -> None:
        """The level begins."""
        self._t0 = t0_ns
        self._timer = DeadlineTimer(asyncio.get_running_loop(), self._send_due)

    def begin(self, unit: Unit) -> Made:
        """A session begins: its first turn, to be sent now."""
        session = _Session(unit)
        made = self._next(session)
        if session.turns and made.session is not None:
            self._open[made.session] = session
        return made

    def until_next_ns(self, exchange: Exchange) -> int | None:
        """How long after the end of an exchange the session's next turn is due; None where it was the last."""
        session = self._session(exchange)
        return None if session is None else self._due(session.turns[-1], exchange) - exchange.done

    def answered(self, exchange: Exchange) -> bool:
        """A turn that is not the last has ended and been read. Tells whether the session goes on."""
        session, made, reading = self._session(exchange), exchange.tag, exchange.decoder
        if session is None:
            return False  # the sending has ended
        assert isinstance(made, Made)
        assert made.session is not None
        assert isinstance(reading, Reading)
        if reading.outcome != "ok":
            del self._open[made.session]
            return False
        if made.ask is not None:
            answer = reading.answer.said if made.answer is None else made.answer
            session.history += [*made.ask.messages, Message("assistant", answer)]
        due = self._due(session.turns[-1], exchange)
        # Written now, while its user thinks.
        heapq.heappush(self._thinking, (max(due, exchange.done), next(self._numbers), due, self._next(session)))
        self._send_due()
        return True

    def end(self, at_ns: int) -> list[tuple[Made, int, Failure]]:
        """Nothing more is due after ``at_ns``. What was due until then and has not been sent, when, and why."""
        late = Failure("late", "the generator was so late that the sending ended first")
        held = Failure("never_sent", "the answer to the turn before it had not come when the level ended")
        unsent = [(made, due, late) for when, _, due, made in self._thinking if when <= at_ns]
        for session in self._open.values():
            for made in reversed(session.turns):
                if made.at_s is not None and self._at(made.at_s) <= at_ns:
                    unsent.append((made, self._at(made.at_s), held))
        self._thinking.clear()
        self._open.clear()
        if self._timer is not None:
            self._timer.close()
            self._timer = None
        return unsent

    def _session(self, exchange: Exchange) -> _Session | None:
        made = exchange.tag
        assert isinstance(made, Made)
        return None if made.session is None else self._open.get(made.session)

    def _due(self, made: Made, exchange: Exchange) -> int:
        return exchange.done + round(made.think_s * 1e9) if made.at_s is None else self._at(made.at_s)

    def _at(self, at_s: float) -> int:
        return self._t0 + round(at_s * 1e9)

    def _next(self, session: _Session) -> Made:
        made = session.turns.pop()
        return made if made.ask is None else self._letters.turn(made, session.history)

    def _send_due(self) -> None:
        """Send the turns that are due, and wake for the next."""
        while self._thinking and self._thinking[0][0] <= perf_counter_ns():
            when, _, due, made = heapq.heappop(self._thinking)
            assert made.session is not None
            if not self._open[made.session].turns:
                del self._open[made.session]
            self._send(made, due, when - due)
        if self._thinking and self._timer is not None:
            self._timer.arm(self._thinking[0][0])
