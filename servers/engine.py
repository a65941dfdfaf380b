"""The stepping thread: it admits requests, runs their prompts, decodes all of them together, and delivers the tokens.

One iteration: start what the policy lets in, run at most ``prefill_chunk`` prompt tokens, decode one token for every
request whose prompt is done. A long prompt is thus spread over iterations, several short ones share one, and those who
are decoding never wait for more than a chunk. ONNX Runtime releases the GIL, so the event loop of the HTTP side runs
meanwhile; it is handed all tokens of a run in one call.

Slots 0 to n-1 hold the requests that decode, slot n the one whose prompt is being run. So a decode step is one run
over the first n slots, and a freed slot is filled by the last one.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from servers.batching import Batching
from servers.model import PREFILL_CHUNK
from servers.prefix import Prefixes
from servers.sampling import Sampler, Scores, greedy, scores
from servers.tokenizer import BYTES, TextStream, Tokenizer
from servers.worker import Worker

FinishReason = Literal["stop", "length", "abort", "error", "expired"]  # expired: it waited too long for a place
Phase = Literal["prefill", "decode", "infer"]
log = logging.getLogger(__name__)


class Runner(Protocol):
    """What the engine needs of a model (``servers.model.Model``)."""

    tokens: NDArray[np.int64]  # [slots]

    def prefill(self, slot: int, tokens: list[int]) -> int: ...
    def decode(self, count: int) -> list[int]: ...
    def logits(self, row: int) -> NDArray[np.float32]: ...
    def clear(self, slot: int, keep: int = 0) -> None: ...
    def move(self, source: int, target: int) -> None: ...


@dataclass(frozen=True)
class Limits:
    """How the engine divides its time, and how long it lets a request wait."""

    prefill_chunk: int = PREFILL_CHUNK  # most prompt tokens between two decode steps
    queue_timeout_s: float | None = None
    prefix_cache: bool = False


@dataclass(eq=False, slots=True)
class Generation:
    """One answer in the making. The HTTP side creates it, and reads counts and times once it has finished.

    Times are by the engine's clock; one that has not come is None.
    """

    prompt: list[int]
    max_tokens: int
    index: int = 0  # among the answers to one HTTP request
    min_tokens: int = 0  # before them neither EOS nor a stop string ends the answer
    logprobs: int | None = None  # how many alternatives to each token are wanted; None: no log-probabilities
    ignore_eos: bool = False
    stops: tuple[str, ...] = ()
    sampler: Sampler | None = None  # None: greedy
    tokenizer: Tokenizer = BYTES
    produced: int = 0  # answer tokens so far, EOS not counted
    prefilled: int = 0  # prompt tokens in the cache
    cached: int = 0  # of them, those that another request had put there
    counted: int | None = None  # answer tokens that the metrics know of; None: nor the prompt
    submitted_s: float = 0.0
    started_s: float | None = None
    first_token_s: float | None = None
    ended_s: float | None = None
    text: TextStream = field(init=False)

    def __post_init__(self) -> None:
        self.text = TextStream(() if self.min_tokens else self.stops, self.tokenizer)

    @property
    def may_end(self) -> bool:
        """Whether EOS may be the next token."""
        return not self.ignore_eos and self.produced >= self.min_tokens

    def accept(self, token: int) -> tuple[str, FinishReason | None]:
        """Take the next token: the text it makes certain, and why the answer ends with it, if it does."""
        if token in self.tokenizer.eos:
            return self.text.finish(), "stop"
        self.produced += 1
        text = self.text.push(token)
        if self.produced == self.min_tokens:
            self.text.stops = self.stops
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
    scores: Scores | None = None  # of the token that made it, if they were asked for


class Engine(Worker[Generation]):
    """Runs generations on a model in a thread of its own, batched by a policy that can be exchanged.

    ``publish`` is called on that thread with the outputs of each run; it must only hand them on. ``failed`` is
    called there, once, if the model raises: every generation has then been published as finished by "error".
    ``ran``, if given, is called there with the phase, the rows and the seconds of each run.
    """

    def __init__(
        self,
        model: Runner,
        batching: Batching,
        publish: Callable[[list[Output]], None],
        failed: Callable[[Exception], None],
        limits: Limits = Limits(),
        ran: Callable[[Phase, int, float], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__("engine", batching, clock)
        self._model = model
        self._publish = publish
        self._failed = failed
        self._limits = limits
        self._ran = ran
        # Shared with other threads, under the condition's lock.
        self._cancelled: list[Generation] = []
        self._aborting = False
        self._dead = False
        # The engine thread's own.
        self._prefilling: deque[Generation] = deque()
        self._decoding: list[Generation] = []
        self._prefixes = Prefixes(len(model.tokens)) if limits.prefix_cache else None

    @property
    def running(self) -> int:
        return len(self._prefilling) + len(self._decoding)

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

    def _work(self) -> None:
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
                now = self._clock()
                waits = [] if self._switches else [self._admit(now)]
                if self._limits.queue_timeout_s is not None:
                    waits.append(self._expire(now, self._limits.queue_timeout_s))
                if self.running:
                    return True
                self._changed.wait(min((wait for wait in waits if wait is not None), default=None))
            return False

    def _admit(self, now: float) -> float | None:
        """Start who may start, first come first; after how many seconds to ask again, as ``Batching.admit`` says."""
        oldest_s = now - self._waiting[0].submitted_s if self._waiting else 0.0
        admission = self._batching.admit(len(self._waiting), oldest_s, self.running)
        for _ in range(admission.count):
            generation = self._waiting.popleft()
            generation.started_s = now
            self._prefilling.append(generation)
        return admission.retry_after_s

    def _expire(self, now: float, timeout_s: float) -> float | None:
        """End those who have waited too long; the seconds until the next one will have."""
        outputs = []
        while self._waiting and (left := self._waiting[0].submitted_s + timeout_s - now) <= 0:
            outputs.append(self._end(self._waiting.popleft(), "expired", now))
        if outputs:
            self._publish(outputs)
        return left if self._waiting else None

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
            now = self._clock()
            self._publish([self._end(generation, reason, now) for generation in generations])

    @staticmethod
    def _end(generation: Generation, reason: FinishReason, now: float) -> Output:
        """End a generation from outside, with the text it has."""
        generation.ended_s = now
        return Output(generation, generation.text.finish(), reason)

    def _prefill(self) -> None:
        """Run one chunk's worth of prompts; a prompt that is done gives its first token and joins the decoding."""
        budget = whole = self._limits.prefill_chunk
        outputs: list[Output] = []
        while self._prefilling and budget:
            generation, slot = self._prefilling[0], len(self._decoding)
            if not generation.prefilled:
                self._begin(generation, slot)
            left = len(generation.prompt) - generation.prefilled
            if budget < whole and left > budget:
                break  # a run of a few tokens costs almost as much as one of many
            chunk = generation.prompt[generation.prefilled : generation.prefilled + budget]
            begun = self._clock()
            token = self._model.prefill(slot, chunk)
            now = self._clock()
            if self._ran:
                self._ran("prefill", 1, now - begun)
            generation.prefilled += len(chunk)
            budget -= len(chunk)
            if self._prefixes:
                self._prefixes.write(slot, generation.prompt[: generation.prefilled])
            if generation.prefilled == len(generation.prompt):
                self._prefilling.popleft()
                self._decoding.append(generation)
                outputs.append(self._accept(slot, 0, token, now))
                if outputs[-1].finish:
                    self._decoding.pop()
        if outputs:  # at once: the first tokens need not wait for the others' next ones
            self._publish(outputs)

    def _begin(self, generation: Generation, slot: int) -> None:
        """Make ``slot`` ready for the prompt: empty, or holding what the prompt shares with an earlier one."""
        if not self._prefixes:
            self._model.clear(slot)
            return
        source, length = self._prefixes.longest(generation.prompt)
        shared = source == slot and length
        free = [other for other in range(slot + 1, len(self._model.tokens)) if other != source or not length]
        self._save(slot, shared or 0, free)
        if length and source != slot:
            self._move(source, slot)
        self._model.clear(slot, keep=length)
        self._prefixes.write(slot, generation.prompt[:length])
        generation.prefilled = generation.cached = length

    def _save(self, slot: int, kept: int, free: Sequence[int]) -> None:
        """Copy what ``slot`` holds to a free slot, if that is worth it: all but ``kept`` tokens will be overwritten."""
        spare = self._prefixes.spare(slot, kept, free) if self._prefixes else None
        if spare is not None:
            self._move(slot, spare)

    def _move(self, source: int, target: int) -> None:
        self._model.move(source, target)
        if self._prefixes:
            self._prefixes.copy(source, target)

    def _decode(self) -> None:
        count = len(self._decoding)
        if not count:
            return
        if self._prefixes:
            self._prefixes.fed(self._model.tokens[:count].tolist())
        begun = self._clock()
        tokens = self._model.decode(count)
        now = self._clock()
        if self._ran:
            self._ran("decode", count, now - begun)
        outputs = [self._accept(slot, slot, token, now) for slot, token in enumerate(tokens)]
        # From the last to the first, so that the slot that fills a freed one is never itself to be freed.
        for slot in range(len(outputs) - 1, -1, -1):
            if outputs[slot].finish:
                self._retire(slot)
        self._publish([output for output in outputs if output.text or output.finish or output.scores])

    def _accept(self, slot: int, row: int, token: int, now: float) -> Output:
        """Settle the token of ``slot``, whose logits are in ``row`` of the last run, and give it to its generation."""
        generation = self._decoding[slot]
        eos = generation.tokenizer.eos
        if generation.sampler is not None:
            ids = generation.tokenizer.ids(eos=generation.may_end)
            token = generation.sampler.choose(self._model.logits(row), ids)
            self._model.tokens[slot] = token
        elif token in eos and not generation.may_end:
            token = greedy(self._model.logits(row), generation.tokenizer.ids(eos=False))
            self._model.tokens[slot] = token
        thought = None
        if generation.logprobs is not None and token not in eos:
            thought = scores(self._model.logits(row), token, generation.logprobs)
        text, finish = generation.accept(token)
        if generation.first_token_s is None and generation.produced:
            generation.first_token_s = now
        if finish:
            generation.ended_s = now
        return Output(generation, text, finish, thought)

    def _retire(self, slot: int) -> None:
        """Free a decoding slot: the last decoding one moves into it, and an unfinished prompt moves up."""
        last = len(self._decoding) - 1
        moved = self._decoding.pop()
        unfinished = bool(self._prefilling and self._prefilling[0].prefilled)
        if slot != last or unfinished:
            self._save(slot, 0, range(last + 1 + unfinished, len(self._model.tokens)))
        if slot != last:
            self._decoding[slot] = moved
            self._move(last, slot)
        if unfinished:
            self._move(last + 1, last)
