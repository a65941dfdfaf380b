from pathlib import Path

import pytest

from loadtest.errors import UsageError
from loadtest.workload.corpus import MOST_BYTES, UNICODE, read


def test_the_texts_of_the_tool_are_long_and_varied() -> None:
    plain, mixed = read(None), read(UNICODE)
    assert plain.isascii()
    assert len(set(plain.split())) > 1500
    assert sum(not character.isascii() for character in mixed) > 1500


def test_a_file_of_the_user_is_read_as_text(tmp_path: Path) -> None:
    path = tmp_path / "book.txt"
    path.write_bytes("\ufeffeins\r\nzwei\rdrei é".encode())
    assert read(str(path)) == "eins\nzwei\ndrei é"


def test_of_a_large_file_the_first_part_is_taken_whole_characters_only(tmp_path: Path) -> None:
    path = tmp_path / "large.txt"
    path.write_bytes(b"x" + "é".encode() * MOST_BYTES)
    text = read(str(path))
    assert len(text.encode()) == MOST_BYTES - 1
    assert set(text) == {"x", "é"}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "cannot read .*: No such file"),
        (b"", "is empty"),
        (b" \n\t", "is empty"),
        (b"fine\nbad \xff\n", r"is not UTF-8 \(line 2\)"),
        (b"cut \xe2\x82", "is not UTF-8"),
    ],
)
def test_what_cannot_be_used_is_named_with_the_mend(tmp_path: Path, content: bytes | None, words: str) -> None:
    path = tmp_path / "corpus.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageError, match=f"corpus: .*{words}"):
        read(str(path))


def test_a_folder_is_no_corpus(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read"):
        read(str(tmp_path))
