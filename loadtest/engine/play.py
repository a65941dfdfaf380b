"""One worker's slice of one level, from the first connection to the last record."""

import asyncio
import math
from collections.abc import Callable
from time import perf_counter_ns

from loadtest.engine import ahead
from loadtest.engine.bystander import Bystander
from loadtest.engine.gate import Gate
from loadtest.engine.health import SelfWatch
from loadtest.engine.maker import Letters, Made, Maker, Unit
from loadtest.engine.orders import Done, Prepare, Snapshot
from loadtest.engine.recorder import Recorder
from loadtest.engine.sessions import Sessions
from loadtest.engine.supply import Supply
from loadtest.engine.timer import DeadlineTimer
from loadtest.errors import LoadtestError
from loadtest.plan import due_times, slots
from loadtest.schedule import share
from loadtest.wire.exchange import Exchange, Failure, Transport

_SLICE_NS = 250_000  # of decoding or preparing at a time, between which waiting bytes are read
_QUIET_NS = 200_000  # no read for so long: nothing is coming just now
_PATIENCE_NS = 4_000_000  # as long as bytes keep coming, a slice waits for quiet at most this long
_GAP_S = 0.001
_SOON_NS = 10_000_000  # an answer after which nothing is due for longer waits its turn to be read
_BACKLOG = 1500  # with more exchanges than this to decode it waits no more; with twice as many, all else does
_SLOT_STEP_NS = 15_000  # closed-loop slots open one after the other: nobody can send a thousand requests in an instant
_OPEN_AHEAD = 256  # most connections opened ahead for an open loop
_CONNECT_PAUSE_S = 0.1


class Play:
    """Plays a slice. ``prepare``, then ``run`` once; ``stop`` at any time between."""

    def __init__(self, order: Prepare, transport: Transport, tell: Callable[[object], None]) -> None:
        wiring, level = order.wiring, order.level
        self._wiring = wiring
        self._level = level
        self._transport = transport
        self._tell = tell
        letters = Letters(wiring, level.model, level.index)
        self._closed = level.load.kind == "closed"
        self._slots = slots(level, order.worker, order.workers)
        self._supply = (
            ahead.Ahead(order, self._slots, self._begin)
            if ahead.pays(level, wiring.tokens)
            else Supply(Maker(order), self._slots, self._begin)
        )
        self._sessions = Sessions(letters, self._turn)
        self._bystander = Bystander(order, self._probe) if level.probe is not None and order.worker == 0 else None
        self._recorder = Recorder(order, letters.dialect)
        self._due = iter(()) if self._closed else due_times(level, wiring.seed, order.worker, order.workers)
        self._next_due_ns = 0
        self._t0 = 0
        self._issuing = True
        self._in_flight: dict[Exchange, None] = {}
        # A closed loop has a cap already: its slots.
        cap = None if self._closed else wiring.max_in_flight
        rate = wiring.max_rate_per_s
        self._gate = Gate(
            None if cap is None else share(cap, order.worker, order.workers),
            None if rate is None else _ceiling(rate, order.worker, order.workers),
            drop=wiring.drop_when_full,
            send=self._send,
            refuse=lambda exchange: self._never_send(exchange, Failure("dropped", f"{cap} requests were in flight")),
        )
        self._working = False
        self._waiting_since = 0  # the next slice
        self._slots_open = 0
        self._timer: DeadlineTimer | None = None
        self._cut_handle: asyncio.TimerHandle | None = None
        self._sending_ended = 0
        self._last_done = 0
        self._scheduled = 0
        self._turned = 0
        self._finished: asyncio.Future[None] | None = None
        self._self_watch = SelfWatch(order.worker, transport)
        self._renewed: tuple[bytes, bytes] | None = None  # a line of the head, and what is sent in its place

    # -- before the clock

    async def prepare(self) -> None:
        """Make the first requests and open connections.

        Raises:
            LoadtestError: the requests cannot be made, or the target cannot be reached.
        """
        await self._supply.prepare()
        count = self._slots if self._closed else min(_OPEN_AHEAD, math.ceil(self._level.load.peak_per_s or 0))
        if self._supply.over:
            count = min(count, len(self._supply))
        if self._bystander is not None:
            await self._bystander.prepare()
            count += 1
        await self._transport.open(count)

    # -- the level

    async def run(self, t0_ns: int) -> None:
        """Play from t0 to the last record, and tell Done.

        Raises:
            LoadtestError: the journal cannot be written.
        """
        loop = asyncio.get_running_loop()
        self._t0 = self._recorder.t0_ns = t0_ns
        self._finished = loop.create_future()
        self._timer = DeadlineTimer(loop, self._closed_start if self._closed else self._open_loop)
        duration_s = self._level.duration_s
        ends = [loop.call_at(loop.time() + self._until(t0_ns) + duration_s, self._end_sending)] if duration_s else []
        watched = self._self_watch.lag(t0_ns), self._watch_time(), self._report()
        watches = [asyncio.ensure_future(watch) for watch in watched]
        watches += [task for task in (self._gate.task, self._supply.task) if task is not None]
        for watch in watches:
            watch.add_done_callback(self._watch_ended)
        loop.set_exception_handler(lambda _, context: self._fail(context.get("exception") or context["message"]))
        self._self_watch.start(t0_ns)
        self._sessions.start(t0_ns)
        if self._bystander is not None:
            self._bystander.start(t0_ns)
        if self._supply.spent:
            self._end_sending()
        elif self._closed:
            self._timer.arm(t0_ns)
        else:
            self._next_arrival()
            self._open_loop()
        try:
            await self._finished
        finally:
            health = self._self_watch.end(self._recorder)
            for handle in (*ends, self._cut_handle):
                if handle is not None:
                    handle.cancel()
            for watch in watches:
                watch.cancel()
            self._gate.close()
            self._timer.close()
            self._sessions.end(0)
            if self._bystander is not None:
                self._bystander.stop()
            self._recorder.close()
            await self._supply.close()
        self._tell(self._snapshot())
        self._tell(
            Done(
                health,
                self._scheduled,
                self._recorder.ms(self._sending_ended),
                self._recorder.ms(max(self._last_done, self._sending_ended)),
                self._recorder.unusable,
            )
        )

    def stop(self, grace_s: float) -> None:
        """Send nothing more, and give what is in flight so long."""
        self._end_sending(min(grace_s, self._level.grace_s))
        self._abandon()

    def renew(self, bearer: str) -> None:
        """Send what is sent from now on with another token: requests are made ahead, with the one of that time."""
        if self._wiring.bearer is not None:
            self._recorder.learn(bearer)
            self._renewed = _line(self._wiring.bearer), _line(bearer)

    def turn(self, count: int) -> None:
        """Go on with the journal in a new file."""
        if self._finished is None or self._finished.done():
            return  # nothing is written any more
        try:
            self._recorder.turn()
        except LoadtestError as error:
            self._fail(error)
        else:
            self._turned = count

    def _until(self, at_ns: int) -> float:
        return max(0.0, (at_ns - perf_counter_ns()) / 1e9)

    def _closed_start(self) -> None:
        assert self._timer is not None
        while self._slots_open < self._slots:
            due = self._t0 + self._slots_open * _SLOT_STEP_NS
            if due > perf_counter_ns():
                self._timer.arm(due)
                return
            self._slots_open += 1
            self._issue(due)

    def _next_arrival(self) -> None:
        due_s = next(self._due, None)
        # None: the end of the sending comes with the duration, or came with the last request.
        self._next_due_ns = 0 if due_s is None else self._t0 + round(due_s * 1e9)

    def _open_loop(self) -> None:
        """Send what is due, and wake for the next."""
        while self._issuing and self._next_due_ns and perf_counter_ns() >= self._next_due_ns:
            due_ns = self._next_due_ns
            self._next_arrival()
            self._issue(due_ns)
        if self._issuing and self._next_due_ns:
            assert self._timer is not None
            self._timer.arm(self._next_due_ns)

    def _leave_unsent(self) -> None:
        """What was due before the sending ended and was not sent in time is a request all the same."""
        while 0 < self._next_due_ns <= self._sending_ended and not self._supply.spent:
            self._supply.next(self._next_due_ns)
            self._next_arrival()
        for made, due, failure in self._sessions.end(self._sending_ended):
            self._scheduled += 1
            self._never_send(Exchange(made.payload, due, self._ended, self._part, made), failure)

    def _issue(self, intended: int) -> None:
        """An arrival is due."""
        if self._issuing:
            self._supply.next(intended)

    def _begin(self, unit: Unit, intended: int) -> None:
        """An arrival that is due is there."""
        if not self._issuing:
            exchange = self._exchange(unit[0], intended)
            self._never_send(exchange, Failure("late", "the generator was so late that the sending ended first"))
            return
        made = unit[0] if unit[0].session is None else self._sessions.begin(unit)
        self._gate.admit(self._exchange(made, intended))
        self._end_if_spent()
        if self._issuing and self._supply.low:
            self._work_soon()

    def _turn(self, made: Made, intended: int, waited_ns: int) -> None:
        """A later turn of a session is to be sent."""
        exchange = self._exchange(made, intended)
        exchange.wait_ns = waited_ns
        self._gate.admit(exchange)
        self._end_if_spent()

    def _exchange(self, made: Made, intended: int) -> Exchange:
        self._scheduled += 1
        return Exchange(made.payload, intended, self._ended, self._part, made)

    def _probe(self, made: Made, intended: int) -> None:
        self._send(Exchange(made.payload, intended, self._probe_ended, self._part, made))

    def _probe_ended(self, exchange: Exchange) -> None:
        del self._in_flight[exchange]
        self._part(exchange)

    def _end_if_spent(self) -> None:
        """End the sending with the level's number of requests; a trace lasts to its end, after its last arrival too."""
        if self._issuing and self._supply.spent and not self._sessions and self._level.requests is not None:
            self._end_sending()

    def _send(self, exchange: Exchange) -> None:
        self._in_flight[exchange] = None
        if self._renewed is not None:
            exchange.payload = exchange.payload.replace(*self._renewed, 1)
        self._transport.send(exchange)

    def _never_send(self, exchange: Exchange, failure: Failure) -> None:
        exchange.failure = failure
        exchange.done = perf_counter_ns()
        self._part(exchange)

    def _ended(self, exchange: Exchange) -> None:
        """An exchange has ended: its slot is free. Reading it can wait."""
        del self._in_flight[exchange]
        self._gate.ended()
        self._last_done = exchange.done
        soon_ns = self._sessions.until_next_ns(exchange) if self._sessions else None
        if soon_ns is None:
            self._part(exchange)
            self._free(exchange)
        elif soon_ns > _SOON_NS:
            self._part(exchange)  # the session goes on when it is read
        else:
            try:
                self._recorder.read_now(exchange)
            except LoadtestError as error:
                self._fail(error)
            else:
                self._answered(exchange)
                self._work_soon()

    def _answered(self, exchange: Exchange) -> None:
        """A turn has been read, after which its session goes on or is over."""
        if not self._sessions.answered(exchange):
            self._free(exchange)

    def _free(self, exchange: Exchange) -> None:
        """A slot of a closed loop is free for the next arrival."""
        if not self._issuing or not self._closed:
            return
        if exchange.sent:
            self._issue(exchange.done)
        else:
            # Not even a connection: a slot that tried again at once would only count refusals.
            asyncio.get_running_loop().call_later(_CONNECT_PAUSE_S, lambda: self._issue(perf_counter_ns()))

    def _end_sending(self, grace_s: float | None = None) -> None:
        loop = asyncio.get_running_loop()
        if self._issuing:
            self._issuing = False
            self._sending_ended = perf_counter_ns()
            if self._bystander is not None:
                self._bystander.stop()
            self._leave_unsent()
        elif grace_s is None:
            return
        if self._cut_handle is not None:
            self._cut_handle.cancel()
        grace_s = self._level.grace_s if grace_s is None else grace_s
        self._cut_handle = loop.call_later(grace_s, self._cut, grace_s)
        self._work_soon()  # ends the level if nothing is in flight

    def _cut(self, grace_s: float) -> None:
        self._abandon()
        failure = Failure("cancelled", f"cut off: still unanswered {grace_s:g} s after the sending had ended")
        for exchange in list(self._in_flight):
            self._transport.cancel(exchange, failure)
        self._work_soon()

    def _abandon(self) -> None:
        """What is due and still held back is never sent."""
        failure = Failure("never_sent", "held back by --max-in-flight or --max-rate until the level had ended")
        for exchange in self._gate.abandon():
            self._never_send(exchange, failure)

    # -- afterwards: reading, recording, preparing

    def _part(self, exchange: Exchange) -> None:
        self._recorder.add(exchange)
        self._work_soon()

    def _work_soon(self) -> None:
        if not self._working:
            self._working = True
            self._waiting_since = perf_counter_ns()
            asyncio.get_running_loop().call_later(_GAP_S, self._work)

    def _work(self) -> None:
        """Work off the backlog for a moment, best while no bytes come: a server's step sends to all streams at once."""
        loop, recorder, supply = asyncio.get_running_loop(), self._recorder, self._supply
        now = perf_counter_ns()
        quiet = now - self._transport.last_read > _QUIET_NS
        if not quiet and now - self._waiting_since < _PATIENCE_NS and len(recorder) <= _BACKLOG:
            loop.call_later(_GAP_S, self._work)
            return
        until = now + _SLICE_NS
        try:
            # Requests first: one that had to be made when it is due would be late, and what came in meanwhile with it.
            while self._issuing and supply.wants and perf_counter_ns() < until:
                supply.make()
            while len(recorder) and (perf_counter_ns() < until or len(recorder) > 2 * _BACKLOG):
                exchange = recorder.read_next()
                if exchange is not None and self._sessions and self._sessions.until_next_ns(exchange) is not None:
                    self._answered(exchange)
        except LoadtestError as error:
            self._fail(error)
            return
        if self._issuing and recorder.unusable is not None:
            self._end_sending(0.0)
        self._end_if_spent()
        if len(recorder) or (self._issuing and supply.wants):
            self._waiting_since = perf_counter_ns()
            loop.call_soon(self._work)  # after the loop has read what has come in
        else:
            self._working = False
            self._finish_if_drained()

    def _fail(self, fault: object) -> None:
        """End the level with an error: the journal's, or one that this file should not have had."""
        if not isinstance(fault, LoadtestError):
            fault = LoadtestError(f"the generator failed, which is a bug in loadtest: {fault!r}")
        if self._finished is not None and not self._finished.done():
            self._finished.set_exception(fault)

    def _watch_ended(self, watch: "asyncio.Future[None]") -> None:
        if watch.cancelled():
            return
        if (fault := watch.exception()) is not None:
            self._fail(fault)
        else:
            self._work_soon()  # all requests have been made, and none may be left to wait for

    def _finish_if_drained(self) -> None:
        going_on = self._issuing or self._in_flight or self._supply.waiting or len(self._recorder) or len(self._gate)
        if not going_on and self._finished is not None and not self._finished.done():
            self._finished.set_result(None)

    # -- watching the clock

    async def _watch_time(self) -> None:
        """One sweep for all requests, instead of a timer a read."""
        total, stall = self._wiring.timeout_s, self._wiring.stall_timeout_s
        period = min(0.25, total / 20, stall / 20)
        while True:
            await asyncio.sleep(period)
            now = perf_counter_ns()
            for exchange in list(self._in_flight):
                if exchange.sent and now - exchange.sent > total * 1e9:
                    words = f"no complete answer within {total:g} s (--timeout)"
                elif exchange.last and now - exchange.last > stall * 1e9:
                    words = f"no byte for {stall:g} s between bytes (--stall-timeout)"
                else:
                    continue
                self._transport.cancel(exchange, Failure("timeout", words))

    async def _report(self) -> None:
        while True:
            await asyncio.sleep(0.25)
            self._tell(self._snapshot())

    def _snapshot(self) -> Snapshot:
        seen = self._recorder
        times = dict(seen.ttft), dict(seen.e2e), dict(seen.send_lag), dict(self._self_watch.loop_lags)
        return Snapshot(
            self._issuing,
            len(self._in_flight),
            seen.ok,
            seen.failed,
            seen.output_tokens,
            *times,
            turned=self._turned,
            silent_s=self._silent_s(),
        )

    def _silent_s(self) -> float:
        """For how long nothing has come though an answer is owed."""
        oldest = next(iter(self._in_flight), None)
        if oldest is None or not oldest.sent:
            return 0.0
        return (perf_counter_ns() - max(oldest.sent, self._transport.last_read)) / 1e9


def _ceiling(rate_per_s: float, worker: int, workers: int) -> float:
    """A worker's part of the ceiling, whole where it can be: two that send 2.5 a second each may send 6 in one."""
    whole = int(rate_per_s)
    return share(whole, worker, workers) + (rate_per_s - whole if worker == 0 else 0.0)


def _line(bearer: str) -> bytes:
    """The end of a line of a request's head; nothing in a body comes before it."""
    return f": Bearer {bearer}\r\n".encode("ascii")
