"""The prefix cache on a real model: whatever is reused, the answers are those of prompts run whole."""

import queue
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import exported
import pytest
from test_serving import refuse

from servers.batching import Batching
from servers.bundle import Bundle
from servers.engine import Engine, Generation, Limits, Output
from servers.model import load
from servers.prefix import WORTHWHILE, Prefixes


def test_the_longest_shared_start_is_found_but_never_the_whole_prompt() -> None:
    prefixes = Prefixes(4)
    shared = [*range(40)]
    prefixes.write(1, [*shared[:30], 99])
    prefixes.write(2, [*shared, 98])
    assert prefixes.longest([*shared, 97]) == (2, 40)
    assert prefixes.longest(shared) == (2, 39)
    assert prefixes.longest([*shared[: WORTHWHILE - 1], 1, 2, 3]) == (0, 0)
    prefixes.fed([1, 2])
    assert prefixes.longest([*shared[:30], 99, 2, 5])[0] == 1


def test_what_was_used_longest_ago_makes_room_and_nothing_is_kept_twice() -> None:
    prefixes = Prefixes(4)
    for slot in range(4):
        prefixes.write(slot, [slot] * 30)
    prefixes.longest([1] * 40)
    assert prefixes.spare(0, 0, [1, 2, 3]) == 2
    assert prefixes.spare(0, 20, [1, 2, 3]) is None  # too little would be lost
    assert prefixes.spare(0, 0, []) is None
    prefixes.copy(0, 3)
    assert prefixes.spare(0, 0, [1, 2]) is None  # slot 3 has it too


def answers(bundle: Bundle, prompts: list[list[int]], limits: Limits, cancelled: set[int]) -> tuple[list[str], int]:
    """The text of each answer, and how many prompt tokens were found in the cache."""
    model = load(bundle, "cpu", slots=6, max_seq_len=256, threads=1)
    outputs: queue.Queue[Output] = queue.Queue()
    engine = Engine(model, Batching("continuous", 3), lambda each: [outputs.put(o) for o in each], print, limits)
    generations = [Generation(prompt, 4 + i % 17, ignore_eos=True) for i, prompt in enumerate(prompts)]
    texts = dict.fromkeys(generations, "")
    engine.start()
    for generation in generations:
        engine.submit(generation)
    left = set(generations)
    while left:
        output = outputs.get(timeout=30)
        texts[output.generation] += output.text
        i = generations.index(output.generation)
        if i in cancelled:
            engine.cancel(output.generation)
        if output.finish or i in cancelled:
            left.discard(output.generation)
    engine.stop()
    kept = [text for i, text in enumerate(texts.values()) if i not in cancelled]
    return kept, sum(generation.cached for generation in generations)


def test_answers_are_those_without_a_cache(bundle: Bundle) -> None:
    rng = random.Random(4)
    starts = [[256, *(rng.randrange(32, 127) for _ in range(length))] for length in (20, 60, 150)]
    prompts = [[*rng.choice(starts), *(rng.randrange(32, 127) for _ in range(rng.randrange(1, 60)))] for _ in range(60)]
    cancelled = {7, 20, 33}
    plain, none = answers(bundle, prompts, Limits(), cancelled)
    cached, hits = answers(bundle, prompts, Limits(prefix_cache=True, prefill_chunk=50), cancelled)
    assert cached == plain
    assert none == 0
    assert hits > sum(map(len, prompts)) / 3


@pytest.mark.e2e
def test_an_exported_model_with_its_caches_in_place_shares_them_too(
    tmp_path: Path, start_server: Callable[..., Any]
) -> None:
    folder = exported.write(tmp_path / "mine", "builder")
    with start_server("--model", str(folder), "--provider", "cpu", "--prefix-cache") as server:
        body = {"model": "mine", "prompt": exported.TEXT[:150], "max_tokens": 12, "ignore_eos": True, "logprobs": 1}
        first, second = (server.ask("POST", "/v1/completions", body)[1] for _ in range(2))
        assert second["choices"][0]["text"] == first["choices"][0]["text"]
        assert first["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}
        cached = second["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert cached == second["usage"]["prompt_tokens"] - 1
        thought = second["choices"][0]["logprobs"]
        assert len(thought["tokens"]) == second["usage"]["completion_tokens"] == 12
        assert all(logprob <= 0 for logprob in thought["token_logprobs"])


@pytest.mark.parametrize("layout", ["optimum", "merged"])
def test_a_model_whose_caches_grow_is_refused_with_what_to_do(layout: str, tmp_path: Path) -> None:
    folder = exported.write(tmp_path / "mine", layout)
    code, error = refuse("--model", str(folder), "--provider", "cpu", "--prefix-cache")
    assert code == 3
    assert error.startswith("error: --prefix-cache: the caches of mine grow with each step")
    assert "onnxruntime-genai builder" in error
    assert error.count("\n") == 1
