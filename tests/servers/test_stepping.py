"""The stepping thread: who runs when, that slots never mix, and that every way out frees them. No real model."""

import queue
import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future

import numpy as np
import pytest
from served import eventually

from servers.batching import Batching
from servers.engine import Engine, Generation, Output
from servers.model import PREFILL_CHUNK
from servers.tokenizer import EOS

WAIT_S = 10


class Letters:
    """A model whose slots hold what was put into them; the next token of a slot is the next letter of the alphabet.

    Each prefill and decode waits for ``allow`` if ``stepwise``.
    """

    def __init__(self, slots: int, *, stepwise: bool = False) -> None:
        self.tokens = np.zeros(slots, np.int64)
        self.held: list[list[int]] = [[] for _ in range(slots)]
        self.runs: list[tuple[str, int]] = []
        self.stepwise = stepwise
        self.allow = threading.Semaphore(0)
        self.broken: Exception | None = None

    def prefill(self, slot: int, tokens: list[int]) -> int:
        assert 1 <= len(tokens) <= PREFILL_CHUNK
        self._step("prefill", len(tokens))
        self.held[slot] += tokens
        self.tokens[slot] = self._following(self.held[slot][-1])
        return int(self.tokens[slot])

    def decode(self, count: int) -> list[int]:
        self._step("decode", count)
        for slot in range(count):
            self.held[slot].append(int(self.tokens[slot]))
            self.tokens[slot] = self._following(self.held[slot][-1])
        following: list[int] = self.tokens[:count].tolist()
        return following

    def logits(self, row: int) -> "np.ndarray[tuple[int], np.dtype[np.float32]]":
        logits = np.full(512, -1, np.float32)
        logits[ord("!")] = 1
        logits[EOS] = 2
        return logits

    def clear(self, slot: int) -> None:
        self.held[slot] = []

    def move(self, source: int, target: int) -> None:
        self.held[target] = self.held[source].copy()
        self.tokens[target] = self.tokens[source]

    def _step(self, kind: str, size: int) -> None:
        if self.stepwise:
            assert self.allow.acquire(timeout=WAIT_S)
        if self.broken:
            raise self.broken
        self.runs.append((kind, size))

    @staticmethod
    def _following(token: int) -> int:
        return {ord("z"): ord("a"), ord("."): EOS}.get(token, token + 1)


class Driven:
    """An engine and what it published."""

    def __init__(self, batching: Batching, slots: int = 4, *, stepwise: bool = False) -> None:
        self.model = Letters(slots, stepwise=stepwise)
        self.outputs: queue.Queue[Output] = queue.Queue()
        self.answers: dict[Generation, str] = {}
        self.failure: Future[Exception] = Future()
        self.engine = Engine(self.model, batching, self._published, self.failure.set_result)
        self.engine.start()

    def _published(self, outputs: list[Output]) -> None:
        for output in outputs:
            self.outputs.put(output)

    def submit(self, prompt: str, max_tokens: int, **options: object) -> Generation:
        generation = Generation([*prompt.encode()], max_tokens, **options)  # type: ignore[arg-type]
        self.engine.submit(generation)
        return generation

    def next(self) -> Output:
        output = self.outputs.get(timeout=WAIT_S)
        self.answers[output.generation] = self.answers.get(output.generation, "") + output.text
        return output

    def finished(self) -> Output:
        while not (output := self.next()).finish:
            pass
        return output

    def step(self, count: int = 1) -> None:
        self.model.allow.release(count)


@pytest.fixture
def drive() -> Iterator[Callable[..., Driven]]:
    driven: list[Driven] = []

    def start(*arguments: object, **options: object) -> Driven:
        driven.append(Driven(*arguments, **options))  # type: ignore[arg-type]
        return driven[-1]

    yield start
    for each in driven:
        each.step(10_000)
        each.engine.stop()


def alphabet(first: str, count: int) -> str:
    return "".join(chr(ord("a") + (ord(first) - ord("a") + i) % 26) for i in range(count))


def test_each_answer_is_its_own_whatever_shares_the_batch(drive: Callable[..., Driven]) -> None:
    driven = drive(Batching("continuous", 4))
    rng = random.Random(1)
    expected = {}
    for _ in range(200):
        letter, length = chr(ord("a") + rng.randrange(26)), rng.randint(1, 40)
        generation = driven.submit("#" * rng.choice([0, 1, 60, 200, 300]) + letter, length)
        expected[generation] = alphabet(chr(ord("a") + (ord(letter) - ord("a") + 1) % 26), length)
    for _ in expected:
        assert driven.finished().finish == "length"
    assert driven.answers == expected
    assert driven.engine.running == driven.engine.waiting == 0


def test_continuous_lets_a_newcomer_join(drive: Callable[..., Driven]) -> None:
    driven = drive(Batching("continuous", 2), stepwise=True)
    first = driven.submit("a", 100)
    driven.step(3)
    while len(driven.answers.get(first, "")) < 3:
        driven.next()
    second = driven.submit("m", 1)
    driven.step(3)
    while (output := driven.next()).generation is not second:
        pass
    assert output.finish == "length"


@pytest.mark.parametrize("scheduler", ["dynamic", "static"])
def test_a_closed_batch_ends_before_the_next_begins(scheduler: str, drive: Callable[..., Driven]) -> None:
    driven = drive(Batching(scheduler, 2, 60_000), stepwise=True)  # type: ignore[arg-type]
    driven.submit("a", 2)
    driven.submit("a", 6)
    third, fourth = driven.submit("m", 1), driven.submit("m", 1)
    driven.step(1000)
    order = [driven.finished().generation for _ in range(4)]
    assert order[2:] == [third, fourth]


def test_none_runs_one_at_a_time(drive: Callable[..., Driven]) -> None:
    driven = drive(Batching("none", 4))
    for _ in range(3):
        driven.submit("a", 5)
    for _ in range(3):
        driven.finished()
    assert all(size == 1 for kind, size in driven.model.runs if kind == "decode")


def test_a_long_prompt_lets_the_others_decode_in_between(drive: Callable[..., Driven]) -> None:
    driven = drive(Batching("continuous", 2), stepwise=True)
    driven.submit("a", 100)
    driven.step(2)
    driven.next()
    driven.submit("b" * (3 * PREFILL_CHUNK), 1)
    driven.step(12)
    while driven.next().finish is None:
        pass
    chunks = [i for i, run in enumerate(driven.model.runs) if run == ("prefill", PREFILL_CHUNK)]
    assert len(chunks) == 3
    assert all(driven.model.runs[i + 1][0] == "decode" for i in chunks[:2])


def test_the_first_token_does_not_wait_for_the_decode_step(drive: Callable[..., Driven]) -> None:
    driven = drive(Batching("continuous", 2), stepwise=True)
    driven.submit("a", 3)
    driven.step()  # the prompt only
    assert driven.next().text == "b"


def test_eos_ends_an_answer_and_is_not_counted(drive: Callable[..., Driven]) -> None:
    driven = drive(Batching("continuous", 2))
    generation = driven.submit("-", 10)
    assert driven.finished().finish == "stop"
    assert driven.answers[generation] == "."
    assert generation.produced == 1


def test_ignore_eos_goes_on_with_the_next_best_token(drive: Callable[..., Driven]) -> None:
    driven = drive(Batching("continuous", 2))
    generation = driven.submit("-", 4, ignore_eos=True)
    assert driven.finished().finish == "length"
    assert driven.answers[generation] == '.!"#'


def test_a_stop_string_frees_the_slot_at_once(drive: Callable[..., Driven]) -> None:
    driven = drive(Batching("continuous", 2))
    generation = driven.submit("a", 100, stops=("fgh",))
    assert driven.finished().finish == "stop"
    assert driven.answers[generation] == "bcde"
    assert generation.produced == len("bcdefgh")


def test_cancelling_frees_the_place_wherever_the_request_is(drive: Callable[..., Driven]) -> None:
    driven = drive(Batching("continuous", 2), stepwise=True)
    decoding = driven.submit("a", 1000)
    driven.step(2)
    driven.next()
    prefilling = driven.submit("b" * 300, 1000)
    waiting = driven.submit("c", 1000)
    driven.step(2)
    eventually(lambda: ("prefill", PREFILL_CHUNK) in driven.model.runs, "the long prompt does not run")
    for generation in (waiting, prefilling, decoding):
        driven.engine.cancel(generation)
    last = driven.submit("x", 3)
    driven.step(20)
    while (output := driven.next()).generation is not last or not output.finish:
        pass
    assert driven.answers[last] == "yza"
    assert driven.engine.running == driven.engine.waiting == 0


def test_a_cancelled_neighbour_does_not_disturb_an_unfinished_prompt(drive: Callable[..., Driven]) -> None:
    driven = drive(Batching("continuous", 3), stepwise=True)
    first, second = driven.submit("a", 1000), driven.submit("m", 6)
    driven.step(4)
    driven.next()
    third = driven.submit("#" * 200 + "q", 3)
    driven.step(2)
    eventually(lambda: ("prefill", PREFILL_CHUNK) in driven.model.runs, "the long prompt does not run")
    driven.engine.cancel(first)
    driven.step(30)
    for _ in range(2):
        driven.finished()
    assert driven.answers[second] == "nopqrs"
    assert driven.answers[third] == "rst"


def test_a_new_policy_waits_until_nothing_runs_and_holds_back_what_arrives(drive: Callable[..., Driven]) -> None:
    driven = drive(Batching("continuous", 4), stepwise=True)
    first = driven.submit("a", 3)
    driven.step()
    driven.next()
    switched = driven.engine.switch(Batching("none", 4))
    second, third = driven.submit("b", 2), driven.submit("c", 2)
    assert not switched.done()
    driven.step(100)
    order = [driven.finished().generation for _ in range(3)]
    assert order == [first, second, third]
    assert switched.result(WAIT_S) == driven.engine.batching == Batching("none", 4)
    assert all(size == 1 for kind, size in driven.model.runs if kind == "decode")


def test_an_idle_engine_switches_at_once(drive: Callable[..., Driven]) -> None:
    driven = drive(Batching("continuous", 4))
    assert driven.engine.switch(Batching("dynamic", 2)).result(WAIT_S) == Batching("dynamic", 2)


def test_a_switch_nobody_waits_for_any_more_still_happens(drive: Callable[..., Driven]) -> None:
    driven = drive(Batching("continuous", 4), stepwise=True)
    driven.submit("a", 2)
    given_up = driven.engine.switch(Batching("none", 4))
    given_up.cancel()
    driven.step(10)
    assert driven.engine.switch(Batching("dynamic", 2)).result(WAIT_S) == Batching("dynamic", 2)


def test_abort_ends_everyone_with_what_they_have(drive: Callable[..., Driven]) -> None:
    driven = drive(Batching("none", 1), stepwise=True)
    running, waiting = driven.submit("a", 1000), driven.submit("b", 1000)
    driven.step(3)
    for _ in range(3):
        driven.next()
    driven.engine.abort()
    driven.step()
    ends = [driven.finished() for _ in range(2)]
    assert {end.generation for end in ends} == {running, waiting}
    assert {end.finish for end in ends} == {"abort"}
    assert driven.answers[running].startswith("bcd")


def test_a_failing_model_leaves_no_client_waiting(drive: Callable[..., Driven]) -> None:
    driven = drive(Batching("none", 1), stepwise=True)
    driven.submit("a", 1000)
    driven.submit("b", 1000)
    driven.model.broken = RuntimeError("the runtime broke")
    driven.step()
    assert [driven.finished().finish for _ in range(2)] == ["error", "error"]
    assert driven.failure.result(WAIT_S) is driven.model.broken
    driven.submit("c", 1)
    assert driven.finished().finish == "error"
