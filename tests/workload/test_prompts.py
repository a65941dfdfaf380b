import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.schedule import stream
from loadtest.workload.lengths import Length
from loadtest.workload.prompts import writer
from loadtest.workload.tokens import Tokens


@given(st.integers(1, 3000), st.integers(0, 40), st.integers(0, 2**31))
def test_a_byte_level_prompt_has_exactly_the_tokens_asked(tokens: int, overhead: int, seed: int) -> None:
    text = writer(Tokens("bytes", overhead))(tokens, random.Random(seed))
    assert len(text.encode()) == max(1, tokens - overhead)


@given(st.integers(1, 3000))
def test_without_a_tokenizer_a_word_stands_for_a_token(tokens: int) -> None:
    text = writer(Tokens("words"))(tokens, random.Random(1))
    assert len(re.findall(r"[A-Za-z]+|\d{1,3}|[^\sA-Za-z\d]", text)) == tokens


@pytest.mark.parametrize("tokens", [Tokens("bytes", 3), Tokens("words")])
def test_no_two_prompts_start_alike(tokens: Tokens) -> None:
    write = writer(tokens)
    prompts = [write(64, stream(1, "request", level, number)) for level in range(3) for number in range(300)]
    starts = {" ".join(prompt.split(" ")[:8]) if tokens.kind == "words" else prompt[:8] for prompt in prompts}
    assert len(starts) == 900


def test_the_same_seed_writes_the_same_prompt() -> None:
    write = writer(Tokens("words"))
    assert write(50, stream(1, "x")) == write(50, stream(1, "x"))


def test_lengths_are_read_from_numbers_and_ranges() -> None:
    assert Length.parse("128") == Length.parse(128) == Length(128, 128)
    assert Length.parse("uniform(64, 192)") == Length(64, 192)
    assert str(Length.parse(" uniform( 64 ,192 ) ")) == "uniform(64, 192)"
    rng = random.Random(1)
    seen = {Length(3, 6).sample(rng) for _ in range(200)}
    assert seen == {3, 4, 5, 6}
    assert Length(3, 6).mean == 4.5


@pytest.mark.parametrize("text", ["", "many", "0", "-3", "1.5", "uniform(5, 2)", "uniform(0, 2)", "normal(5)"])
def test_what_is_no_length_is_named_with_the_mend(text: str) -> None:
    with pytest.raises(ValueError, match="is not a length"):
        Length.parse(text)
