import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models

from loadtest.schedule import stream
from loadtest.workload import tokenizer as files
from loadtest.workload.corpus import UNICODE, read
from loadtest.workload.prompts import Prompts, Wanted
from loadtest.workload.tokens import Fit, Tokens, by_tokenizer
from tests.workload.vocabularies import ALL, TEMPLATE, byte_level, save

SIZES = (1, 2, 3, 5, 9, 40, 300, 1500)
UNIT = re.compile(r"[A-Za-z]+|\d{1,3}|[^\sA-Za-z\d]")


@pytest.fixture(scope="module", params=ALL)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(ALL[request.param](), tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module")
def chat_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(byte_level(), tmp_path_factory.mktemp("chat"), template=TEMPLATE)


def server_count(folder: Path, text: str, *, chat: bool) -> int:
    """What a server that has this folder counts."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    if chat:
        text = f"<s><|user|>\n{text.strip()}<|end|>\n<|assistant|>\n"
    return len(tokenizer.encode(text, add_special_tokens=not chat).ids)


@given(st.integers(1, 3000), st.integers(0, 40), st.integers(0, 2**31), st.sampled_from([None, UNICODE]))
def test_a_byte_level_prompt_has_exactly_the_tokens_asked(
    tokens: int, overhead: int, seed: int, corpus: str | None
) -> None:
    text = Prompts(Tokens("bytes", overhead), corpus, 0).prompt(tokens, random.Random(seed))
    assert len(text.encode()) == max(1, tokens - overhead)


@given(st.integers(1, 3000), st.sampled_from([None, UNICODE]))
def test_without_a_tokenizer_a_word_stands_for_a_token(tokens: int, corpus: str | None) -> None:
    text = Prompts(Tokens("words"), corpus, 0).prompt(tokens, random.Random(1))
    assert len(UNIT.findall(text)) == tokens


def test_words_are_as_many_as_the_endpoint_counts_in_texts_of_that_corpus() -> None:
    tokens = Tokens("words", fits=(Fit(UNICODE, 3, 2.0, 0.1), Fit(None, 10, 1.25, 0.02)))
    assert len(UNIT.findall(Prompts(tokens, None, 0).prompt(510, random.Random(1)))) == 400
    assert len(UNIT.findall(Prompts(tokens, UNICODE, 0).prompt(503, random.Random(1)))) == 250
    assert Prompts(tokens, None, 0).count("some text") is None


@pytest.mark.parametrize("corpus", [None, UNICODE])
def test_a_prompt_has_exactly_the_tokens_asked_under_tokenizers_of_every_make(folder: Path, corpus: str | None) -> None:
    tokens, _ = by_tokenizer(str(folder), chat=False)
    prompts = Prompts(tokens, corpus, 1)
    for size in SIZES:
        for number in range(3):
            asked = size + tokens.overhead
            text = prompts.prompt(asked, stream(1, corpus, size, number))
            assert server_count(folder, text, chat=False) == asked
            assert text == text.strip(" ")


def test_what_the_chat_template_adds_is_counted_once(chat_folder: Path) -> None:
    tokens, whole = by_tokenizer(str(chat_folder), chat=True)
    assert whole
    assert tokens.overhead == server_count(chat_folder, "the", chat=True) - 1
    for size in SIZES:
        text = Prompts(tokens, None, 1).prompt(size + tokens.overhead, stream(1, size))
        assert server_count(chat_folder, text, chat=True) == size + tokens.overhead


def test_a_text_by_itself_has_the_tokens_asked(chat_folder: Path) -> None:
    tokens, _ = by_tokenizer(str(chat_folder), chat=True)
    prompts = Prompts(tokens, None, 1)
    for size in SIZES:
        assert prompts.count(prompts.text(size, stream(1, size))) == size


def test_an_impossible_length_is_the_nearest_there_is(chat_folder: Path) -> None:
    tokens, _ = by_tokenizer(str(chat_folder), chat=True)
    prompts = Prompts(tokens, None, 1)
    assert prompts.count(prompts.prompt(1, random.Random(1))) == 1


KINDS: list[Callable[[Path], Tokens]] = [
    lambda folder: by_tokenizer(str(folder), chat=True)[0],
    lambda folder: Tokens("bytes", 4),
    lambda folder: Tokens("words"),
]


@pytest.mark.parametrize("kind", KINDS)
def test_no_two_prompts_start_alike_in_any_level_or_run(kind: Callable[[Path], Tokens], chat_folder: Path) -> None:
    tokens = kind(chat_folder)
    prompts = Prompts(tokens, None, 0)
    wanted = [
        Wanted(48, stream(seed, "request", level, number))
        for seed in range(2)
        for level in range(3)
        for number in range(200)
    ]
    texts = prompts.prompts(wanted)
    # A salt of 40 bits: eight characters, or five words.
    starts = {text[:8] if tokens.kind == "bytes" else " ".join(text.split(" ")[:5]) for text in texts}
    assert len(starts) == len(texts) == 1200


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_seed_writes_the_same_prompt_alone_or_with_others(
    kind: Callable[[Path], Tokens], chat_folder: Path
) -> None:
    sizes = [7, 90, 400, 33]
    one, other = (Prompts(kind(chat_folder), UNICODE, 5) for _ in range(2))
    alone = [one.prompt(size, stream(1, size)) for size in sizes]
    assert other.prompts([Wanted(size, stream(1, size)) for size in sizes]) == alone


@pytest.mark.parametrize("kind", KINDS)
def test_a_shared_start_counts_and_the_salt_comes_after_it(kind: Callable[[Path], Tokens], chat_folder: Path) -> None:
    tokens = kind(chat_folder)
    prompts = Prompts(tokens, None, 3)
    start = prompts.shared(0, 100)
    assert start == Prompts(tokens, None, 3).shared(0, 100)
    assert len({start, prompts.shared(1, 100), Prompts(tokens, None, 4).shared(0, 100)}) == 3
    one, other = (prompts.prompt(160, stream(1, number), start) for number in range(2))
    assert one.startswith(start)
    assert other.startswith(start)
    assert one[len(start) :].split(" ")[1:6] != other[len(start) :].split(" ")[1:6]
    if tokens.kind == "tokenizer":
        assert prompts.count(start) == 100
        assert server_count(chat_folder, one, chat=True) == 160
    elif tokens.kind == "bytes":
        assert len(one.encode()) == 156


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_block_is_the_same_text_wherever_it_stands(kind: Callable[[Path], Tokens], chat_folder: Path) -> None:
    tokens = kind(chat_folder)
    prompts = Prompts(tokens, None, 3)
    long, short = prompts.blocks([7, 8, 9], 64, 64 * 2 + 30), prompts.blocks([7, 8], 64, 64 + 30)
    common = prompts.blocks([7, 5], 64, 64 + 30)
    shared = prompts._block(7, 64).lstrip(" ")
    assert long.startswith(shared)
    assert short.startswith(shared)
    assert common.startswith(shared)
    assert short != common
    # What is more than the length needs is left out, and a last block that is short is stretched.
    assert prompts.blocks([7, 8, 9], 64, 64 + 30) == short
    assert prompts.blocks([7], 64, 200).startswith(shared[: len(shared) // 2])
    if tokens.kind == "tokenizer":
        assert server_count(chat_folder, long, chat=True) == 64 * 2 + 30
        assert server_count(chat_folder, prompts.blocks([7], 64, 200), chat=True) == 200


def test_a_text_is_as_long_as_it_is_encoded_again(tmp_path: Path) -> None:
    # work-retokenize: ids of a and b, decoded and encoded again, are half as many.
    path = tmp_path / "tokenizer.json"
    vocabulary = {"a": 0, "b": 1, "c": 2, "ab": 3}
    Tokenizer(models.BPE(vocabulary, [("a", "b")])).save(str(path))
    tokenizer = files.load(str(path))
    assert files.count(tokenizer, ["ababab"], special=False) == [3]
    tokens, _ = by_tokenizer(str(path), chat=False)
    for number in range(20):
        text = Prompts(tokens, None, 1).prompt(6, stream(1, number))
        assert files.count(tokenizer, [text], special=False) == [6]


def test_the_start_token_is_counted_once_and_not_once_a_piece(tmp_path: Path) -> None:
    # work-bos-per-chunk: five pieces with a start token each would be ten.
    vocabulary = {"<unk>": 0, "<s>": 1, "Blue": 2, "ink": 3, "dries": 4, "slowly": 5, ".": 6}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    from tokenizers import pre_tokenizers, processors

    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    save(tokenizer, tmp_path)
    tokens, _ = by_tokenizer(str(tmp_path), chat=False)
    assert tokens.overhead == 1
    prompts = Prompts(tokens, None, 1)
    assert prompts.count("Blue ink dries slowly.") == 5
    text = prompts.prompt(600, stream(1, 1))
    assert len(Tokenizer.from_file(str(tmp_path / "tokenizer.json")).encode(text).ids) == 600


def test_prompts_of_many_scripts_survive_json() -> None:
    # work-unicode-prompts: emoji, right to left, combining marks, U+2028.
    text = Prompts(Tokens("words"), UNICODE, 1).prompt(20_000, random.Random(1))
    for character in ("🦊", "狐", "و", "ש", "\u0301", "\u2028", "ि", "ก"):
        assert character in text
    body: Any = json.loads(json.dumps({"prompt": text}).encode())
    assert body["prompt"] == text
    assert body["prompt"].encode().decode() == text


def test_a_small_corpus_of_the_user_is_enough(tmp_path: Path, chat_folder: Path) -> None:
    path = tmp_path / "word.txt"
    tokens, _ = by_tokenizer(str(chat_folder), chat=True)
    for content in ("hello", "你好世界" * 20, "ein Wort und noch eins\n" * 3):
        path.write_text(content, "utf-8")
        read.cache_clear()
        text = Prompts(tokens, str(path), 1).prompt(300, random.Random(1))
        assert server_count(chat_folder, text, chat=True) == 300
        path = tmp_path / f"{len(content)}.txt"
