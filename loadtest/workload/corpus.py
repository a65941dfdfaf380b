"""The texts that prompts are made from: one of the tool's own, its mix of scripts, or a file of the user's."""

import codecs
import functools
from pathlib import Path

from loadtest.errors import UsageError

UNICODE = "unicode"
MOST_BYTES = 1 << 20
_OWN = {None: "corpus.txt", UNICODE: "unicode.txt"}


@functools.lru_cache(8)
def read(corpus: str | None) -> str:
    """The text of a corpus: None is the tool's own, ``unicode`` its mix of scripts, else a UTF-8 file.

    Of a file no more than its first 1 MiB is taken, which is some 200,000 tokens to draw from.

    Raises:
        UsageError: the file cannot be read, is not UTF-8, or holds nothing but space.
    """
    path = Path(__file__).with_name(_OWN[corpus]) if corpus in _OWN else Path(corpus or "")
    try:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise UsageError(f"corpus: cannot read {path}: {error.strerror}; name a text file") from None
    try:
        # Of a file that goes on, the cut may have gone through a character, which is then left out.
        text = codecs.getincrementaldecoder("utf-8-sig")().decode(data[:MOST_BYTES], final=len(data) <= MOST_BYTES)
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise UsageError(f"corpus: {path} is not UTF-8 (line {line}); save it as UTF-8") from None
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    if not text.strip():
        raise UsageError(f"corpus: {path} is empty; name a file with text in it")
    return text
