"""What one request is still to be sent: filled by the engine's deliveries, emptied by the request's handler."""

import asyncio

from servers.engine import Output


class Inbox:
    """Outputs of one request, waiting to be written. ``open`` until the last of its answers has been taken."""

    __slots__ = ("_left", "_loop", "_outputs", "_quiet", "_transport", "_waiter")

    def __init__(self, loop: asyncio.AbstractEventLoop, transport: asyncio.Transport | None, answers: int) -> None:
        self._loop = loop
        self._transport = transport
        self._outputs: list[Output] = []
        self._waiter: asyncio.Future[None] | None = None
        self._quiet = False
        self._left = answers

    @property
    def open(self) -> bool:
        """Whether there is more to come."""
        return self._left > 0

    def put(self, output: Output) -> int:
        """Add an output; how many wait now."""
        self._outputs.append(output)
        self._quiet = False
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
        return len(self._outputs)

    async def take(self) -> list[Output]:
        """All outputs since the last call: at least one, or none after a long silence."""
        if not self._outputs:
            self._waiter = self._loop.create_future()
            await self._waiter
        outputs, self._outputs = self._outputs, []
        self._left -= sum(output.finish is not None for output in outputs)
        return outputs

    def nudge(self) -> None:
        """Called now and then: ends a silence that has lasted since the last call."""
        if self._quiet and self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
        self._quiet = True

    def hang_up(self) -> None:
        """Close the connection at once; the handler is then cancelled."""
        if self._transport is not None:
            self._transport.abort()
