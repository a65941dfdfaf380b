"""Text to ids and back without loss; stop strings found wherever the token borders fall."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servers import tokenizer
from servers.tokenizer import ASSISTANT, BOS, BYTES, EOS, SYSTEM, USER, TextStream, Unencodable


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"])))
def test_prompt_length_is_known_in_advance(text: str) -> None:
    size = len(text.encode())
    assert len(BYTES.encode(text)) == size + tokenizer.OVERHEAD["completions"]
    assert len(BYTES.encode_chat([("user", text)])) == size + tokenizer.OVERHEAD["chat"]


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"])))
def test_text_survives_ids_and_back(text: str) -> None:
    stream = TextStream()
    assert "".join(stream.push(token) for token in BYTES.encode(text)[1:]) + stream.finish() == text


def test_chat_template_marks_each_role() -> None:
    ids = BYTES.encode_chat([("system", "s"), ("user", "u"), ("assistant", "a"), ("user", "v")])
    assert ids == [
        BOS, SYSTEM, ord("s"), EOS, USER, ord("u"), EOS, ASSISTANT, ord("a"), EOS, USER, ord("v"), EOS, ASSISTANT,
    ]  # fmt: skip


def test_a_character_of_several_bytes_appears_when_it_is_whole() -> None:
    stream = TextStream()
    assert [stream.push(token) for token in "é".encode()] == ["", "é"]


def test_a_half_character_at_the_end_is_still_valid_text() -> None:
    stream = TextStream()
    stream.push("é".encode()[0])
    assert stream.finish() == "\ufffd"


@given(
    st.text(alphabet="ab", max_size=30),
    st.lists(st.text(alphabet="ab", min_size=1, max_size=4), min_size=1, max_size=4),
)
def test_the_answer_ends_before_the_first_stop_string(text: str, stops: list[str]) -> None:
    stream = TextStream(stops)
    answer, consumed = "", 0
    for byte in text.encode():
        consumed += 1
        answer += stream.push(byte)
        assert not any(stop in answer for stop in stops), "part of a stop string was shown"
        if stream.stopped:
            break
    answer += stream.finish()
    ends = [text.find(stop) + len(stop) for stop in stops if stop in text]
    assert stream.stopped == bool(ends)
    if ends:
        assert consumed == min(ends), "it stops with the token that completes a stop string"
        seen = text[:consumed]
        assert answer == seen[: min(seen.find(stop) for stop in stops if stop in seen)]
    else:
        assert answer == text


def test_lone_surrogates_are_refused() -> None:
    with pytest.raises(Unencodable):
        BYTES.encode("\ud800")
