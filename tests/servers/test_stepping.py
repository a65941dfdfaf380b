"""The stepping thread: who runs when, that slots never mix, and that every way out frees them. No real model."""

import queue
import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest
from served import eventually

from servers.batching import Batching
from servers.engine import Engine, Generation, Limits, Output
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
        assert tokens
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

    def clear(self, slot: int, keep: int = 0) -> None:
        self.held[slot] = self.held[slot][:keep]

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

    def __init__(
        self,
        batching: Batching,
        slots: int = 4,
        *,
        stepwise: bool = False,
        limits: Limits | None = None,
        **options: Any,
    ) -> None:
        self.model = Letters(slots, stepwise=stepwise)
        self.outputs: queue.Queue[Output] = queue.Queue()
        self.answers: dict[Generation, str] = {}
        self.failure: Future[Exception] = Future()
        self.engine = Engine(
            self.model, batching, self._published, self.failure.set_result, limits or Limits(), **options
        )
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


def prefills_between_decodes(driven: Driven) -> list[list[int]]:
    """Sizes of the prompt runs between each two decode steps."""
    groups: list[list[int]] = [[]]
    for kind, size in driven.model.runs:
        if kind == "decode":
            groups.append([])
        else:
            groups[-1].append(size)
    return groups


def test_those_who_decode_never_wait_for_more_than_a_chunk_of_prompts(drive: Callable[..., Driven]) -> None:
    driven = drive(Batching("continuous", 4), stepwise=True, limits=Limits(prefill_chunk=64))
    first = driven.submit("a", 1000)
    driven.step(2)
    driven.next()
    others = [driven.submit("#" * size + "a", 1) for size in (149, 39, 19, 9)]
    driven.step(100)
    while len(driven.answers.keys() & set(others)) < len(others):
        driven.next()
    driven.engine.cancel(first)
    groups = [group for group in prefills_between_decodes(driven) if group]
    assert groups == [[1], [64], [64], [22, 40], [20, 10]]
    assert all(driven.answers[other] == "b" for other in others)


def test_who_came_first_starts_first(drive: Callable[..., Driven]) -> None:
    driven = drive(Batching("continuous", 2), stepwise=True)
    generations = [driven.submit("#" * (200 - 30 * i) + "a", 1 + i % 3) for i in range(6)]
    driven.step(1000)
    for _ in generations:
        driven.finished()
    started = [generation.started_s for generation in generations]
    assert started == sorted(started)  # type: ignore[type-var]


def test_who_waits_too_long_is_told_so_and_the_others_are_not(drive: Callable[..., Driven]) -> None:
    now = [0.0]
    limits = Limits(queue_timeout_s=5)
    driven = drive(Batching("none", 1), stepwise=True, limits=limits, clock=lambda: now[0])
    first, second = driven.submit("a", 3), driven.submit("m", 1)
    driven.step()
    driven.next()
    now[0] = 4.0
    third = driven.submit("x", 1)
    now[0] = 5.0
    driven.step(100)
    ends = {end.generation: end.finish for end in (driven.finished() for _ in range(3))}
    assert ends == {first: "length", second: "expired", third: "length"}
    assert second.started_s is None
    assert driven.answers[third] == "y"


def test_a_wait_ends_though_nothing_else_happens(drive: Callable[..., Driven]) -> None:
    driven = drive(Batching("dynamic", 4, 60_000), limits=Limits(queue_timeout_s=0.01))
    driven.submit("a", 3)
    assert driven.finished().finish == "expired"
    assert driven.engine.waiting == 0


def test_eos_and_stop_strings_are_not_heeded_before_the_least_length(drive: Callable[..., Driven]) -> None:
    driven = drive(Batching("continuous", 2))
    early = driven.submit("-", 10, min_tokens=3)
    assert driven.finished().finish == "length"
    assert driven.answers[early] == ".!\"#$%&'()"
    stopped = driven.submit("a", 20, min_tokens=4, stops=("c", "h"))
    assert driven.finished().finish == "stop"
    assert driven.answers[stopped] == "bcdefg"


def test_a_shared_start_is_run_once(drive: Callable[..., Driven]) -> None:
    driven = drive(Batching("continuous", 4), limits=Limits(prefix_cache=True))
    begin = "once upon a time there was "
    first = driven.submit(begin + "a", 3)
    driven.finished()
    second = driven.submit(begin + "k", 3)  # the same slot
    driven.finished()
    third = driven.submit("something else, at least as long as the other", 1000)
    driven.next()
    fourth = driven.submit(begin + "q", 3)  # from the slot to which the first was saved
    driven.engine.cancel(third)
    while (output := driven.next()).generation is not fourth or not output.finish:
        pass
    assert [g.cached for g in (first, second, third, fourth)] == [0, len(begin), 0, len(begin)]
    assert [driven.answers[g] for g in (first, second, fourth)] == ["bcd", "lmn", "rst"]


def test_a_conversation_goes_on_where_it_was(drive: Callable[..., Driven]) -> None:
    driven = drive(Batching("continuous", 4), limits=Limits(prefix_cache=True))
    prompt = "a conversation that begins a"
    driven.submit(prompt, 6)
    driven.finished()
    following = driven.submit(prompt + "bcdefg" + "and so on: m", 2)
    driven.finished()
    assert driven.answers[following] == "no"
    assert following.cached == len(prompt) + 5  # the last token of an answer was never fed


def test_without_a_prefix_cache_every_prompt_is_run_whole(drive: Callable[..., Driven]) -> None:
    driven = drive(Batching("continuous", 4))
    for _ in range(2):
        generation = driven.submit("the same prompt twice", 1)
        driven.finished()
        assert generation.cached == 0
    assert driven.model.runs == [("prefill", 21)] * 2


def test_times_are_in_order(drive: Callable[..., Driven]) -> None:
    driven = drive(Batching("continuous", 2))
    generation = driven.submit("a", 3)
    driven.finished()
    times = [generation.submitted_s, generation.started_s, generation.first_token_s, generation.ended_s]
    assert times == sorted(times)  # type: ignore[type-var]
