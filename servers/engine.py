"""The stepping thread: it admits requests, runs their prompts, decodes all of them together, and delivers the tokens.

One iteration: start what the policy lets in, run at most about ``PREFILL_CHUNK`` prompt tokens, decode one token for
every request whose prompt is done. A long prompt is thus spread over iterations, and those who are decoding wait for
one chunk of it at most. ONNX Runtime releases the GIL, so the event loop of the HTTP side runs meanwhile; it is
handed all tokens of a run in one call.

Slots 0 to n-1 hold the requests that decode, slot n the one whose prompt is being run. So a decode step is one run
over the first n slots, and a freed slot is filled by the last one.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from servers.batching import Batching
from servers.model import PREFILL_CHUNK
from servers.sampling import Sampler, greedy
from servers.tokenizer import BYTES, TextStream, Tokenizer

FinishReason = Literal["stop", "length", "abort", "error"]
log = logging.getLogger(__name__)


class Runner(Protocol):
    """What the engine needs of a model (``servers.model.Model``)."""

    tokens: NDArray[np.int64]

    def prefill(self, slot: int, tokens: list[int]) -> int: ...
    def decode(self, count: int) -> list[int]: ...
    def logits(self, row: int) -> NDArray[np.float32]: ...
    def clear(self, slot: int) -> None: ...
    def move(self, source: int, target: int) -> None: ...


@dataclass(eq=False, slots=True)
class Generation:
    """One request in the engine. The HTTP side makes it, and reads ``produced`` once it has finished."""

    prompt: list[int]
    max_tokens: int
    ignore_eos: bool = False
    stops: tuple[str, ...] = ()
    sampler: Sampler | None = None  # None: greedy
    tokenizer: Tokenizer = BYTES
    produced: int = 0  # answer tokens so far, EOS not counted
    prefilled: int = 0  # prompt tokens in the cache
    submitted_s: float = 0.0
    text: TextStream = field(init=False)

    def __post_init__(self) -> None:
        self.text = TextStream(self.stops, self.tokenizer)

    def accept(self, token: int) -> tuple[str, FinishReason | None]:
        """Take the next token: the text it makes certain, and why the answer ends with it, if it does."""
        if token in self.tokenizer.eos:
            return self.text.finish(), "stop"
        self.produced += 1
        text = self.text.push(token)
        if self.text.stopped:
            return text, "stop"
        if self.produced >= self.max_tokens:
            return text + self.text.finish(), "length"
        return text, None


class Output(NamedTuple):
    """A piece of an answer; the last piece has a reason."""

    generation: Generation
    text: str
    finish: FinishReason | None


class Engine:
    """Runs generations on a model in a thread of its own, batched by a policy that can be exchanged.

    ``publish`` is called on that thread with the outputs of each run; it must only hand them on. ``failed`` is
    called there, once, if the model raises: every generation has then been published as finished by "error".
    """

    def __init__(
        self,
        model: Runner,
        batching: Batching,
        publish: Callable[[list[Output]], None],
        failed: Callable[[Exception], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._model = model
        self._batching = batching
        self._publish = publish
        self._failed = failed
        self._clock = clock
        self._changed = threading.Condition()
        # Shared with other threads, under the condition's lock.
        self._waiting: deque[Generation] = deque()
        self._cancelled: list[Generation] = []
        self._switches: deque[tuple[Batching, Future[Batching]]] = deque()
        self._aborting = False
        self._stopping = False
        self._dead = False
        # The engine thread's own.
        self._prefilling: deque[Generation] = deque()
        self._decoding: list[Generation] = []
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    @property
    def batching(self) -> Batching:
        """The setting in force."""
        return self._batching

    @property
    def running(self) -> int:
        """Generations that have started and not finished."""
        return len(self._prefilling) + len(self._decoding)

    @property
    def waiting(self) -> int:
        """Generations that have not started."""
        return len(self._waiting)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread after the run in progress; nothing more is published."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        self._thread.join()

    def submit(self, generation: Generation) -> None:
        """Queue a generation; its outputs arrive through ``publish``."""
        generation.submitted_s = self._clock()
        with self._changed:
            self._waiting.append(generation)
            if self._dead:
                self._abort("error")
            self._changed.notify()

    def cancel(self, generation: Generation) -> None:
        """Give up a generation, wherever it is, and free its slot. Outputs already on their way may still arrive."""
        with self._changed:
            self._cancelled.append(generation)
            self._changed.notify()

    def abort(self) -> None:
        """Finish every generation now, with reason "abort"."""
        with self._changed:
            self._aborting = True
            self._changed.notify()

    def switch(self, batching: Batching) -> "Future[Batching]":
        """Exchange the policy once nothing runs; what arrives meanwhile waits. The future tells when it is done."""
        done: Future[Batching] = Future()
        with self._changed:
            self._switches.append((batching, done))
            self._changed.notify()
        return done

    def _run(self) -> None:
        try:
            while self._take_in():
                self._prefill()
                self._decode()
        except Exception as error:  # whatever the runtime raises, no client may be left waiting
            log.exception("the engine failed")
            with self._changed:
                self._dead = True
                self._abort("error")
            self._failed(error)

    def _take_in(self) -> bool:
        """Wait until there is something to run, and start what may start; False when the engine shall stop."""
        with self._changed:
            while not self._stopping:
                self._drop_cancelled()
                if self._aborting:
                    self._aborting = False
                    self._abort("abort")
                if not self.running:
                    self._switch_if_asked()
                retry_after_s = None
                if not self._switches:
                    retry_after_s = self._admit()
                if self.running:
                    return True
                self._changed.wait(retry_after_s)
            return False

    def _admit(self) -> float | None:
        oldest_s = self._clock() - self._waiting[0].submitted_s if self._waiting else 0.0
        admission = self._batching.admit(len(self._waiting), oldest_s, self.running)
        for _ in range(admission.count):
            self._prefilling.append(self._waiting.popleft())
        return admission.retry_after_s

    def _switch_if_asked(self) -> None:
        while self._switches:
            self._batching, done = self._switches.popleft()
            # False if the one who asked has gone; the setting is changed all the same.
            if done.set_running_or_notify_cancel():
                done.set_result(self._batching)

    def _drop_cancelled(self) -> None:
        for generation in self._cancelled:
            if generation in self._waiting:
                self._waiting.remove(generation)
            elif generation in self._prefilling:
                # Its place in the pool is simply used again: a prompt starts with an empty cache.
                self._prefilling.remove(generation)
            elif generation in self._decoding:
                self._retire(self._decoding.index(generation))
        self._cancelled.clear()

    def _abort(self, reason: FinishReason) -> None:
        generations = [*self._decoding, *self._prefilling, *self._waiting]
        self._decoding.clear()
        self._prefilling.clear()
        self._waiting.clear()
        if generations:
            self._publish([Output(g, g.text.finish(), reason) for g in generations])

    def _prefill(self) -> None:
        """Run one chunk's worth of prompts; a prompt that is done gives its first token and joins the decoding."""
        budget = PREFILL_CHUNK
        outputs: list[Output] = []
        while self._prefilling and budget > 0:
            generation, slot = self._prefilling[0], len(self._decoding)
            chunk = generation.prompt[generation.prefilled : generation.prefilled + PREFILL_CHUNK]
            if not generation.prefilled:
                self._model.clear(slot)
            token = self._model.prefill(slot, chunk)
            generation.prefilled += len(chunk)
            budget -= len(chunk)
            if generation.prefilled == len(generation.prompt):
                self._prefilling.popleft()
                self._decoding.append(generation)
                outputs.append(self._accept(slot, 0, token))
                if outputs[-1].finish:
                    self._decoding.pop()
        if outputs:  # at once: the first tokens need not wait for the others' next ones
            self._publish(outputs)

    def _decode(self) -> None:
        if not self._decoding:
            return
        tokens = self._model.decode(len(self._decoding))
        outputs = [self._accept(slot, slot, token) for slot, token in enumerate(tokens)]
        # From the last to the first, so that the slot that fills a freed one is never itself to be freed.
        for slot in range(len(outputs) - 1, -1, -1):
            if outputs[slot].finish:
                self._retire(slot)
        self._publish([output for output in outputs if output.text or output.finish])

    def _accept(self, slot: int, row: int, token: int) -> Output:
        """Settle the token of ``slot``, whose logits are in ``row`` of the last run, and give it to its generation."""
        generation = self._decoding[slot]
        tokenizer = generation.tokenizer
        if generation.sampler is not None:
            ids = tokenizer.ids(eos=not generation.ignore_eos)
            token = generation.sampler.choose(self._model.logits(row), ids)
            self._model.tokens[slot] = token
        elif generation.ignore_eos and token in tokenizer.eos:
            token = greedy(self._model.logits(row), tokenizer.ids(eos=False))
            self._model.tokens[slot] = token
        return Output(generation, *generation.accept(token))

    def _retire(self, slot: int) -> None:
        """Free a decoding slot: the last decoding one moves into it, and an unfinished prompt moves up."""
        last = len(self._decoding) - 1
        moved = self._decoding.pop()
        if slot != last:
            self._decoding[slot] = moved
            self._model.move(last, slot)
        if self._prefilling and self._prefilling[0].prefilled:
            self._model.move(last + 1, last)
