"""One record a request, and the journal they are kept in.

The journal (``records.jsonl``) is JSON Lines: every finished request is one line, appended by the worker that
played it with a single unbuffered write, so that a crash loses nothing that was acknowledged. It is the only place
where requests are kept: figures, reports and interrupted runs are all computed from it.

A journal that grows long goes on in a new file: its earlier parts are ``records-00001.jsonl.gz`` and so on, without
``.gz`` as long as they are not packed yet. Whoever reads it takes ``lines`` or ``records`` of the folder.
"""

import gzip
import re
import zlib
from array import array
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from loadtest.errors import ResultError

JOURNAL = "records.jsonl"
Mode = Literal["all", "sampled", "none"]
"""Which requests a run leaves behind: all, some of them (``loadtest.keeping`` says which), or none."""
_PASSING_STATUS = frozenset({408, 409, 425, 429})  # 4xx that another try may not meet
_PART = re.compile(r"records-([0-9]{5,})\.jsonl(\.gz)?")

Outcome = Literal["ok", "http_error", "stream_error", "transport_error", "timed_out", "cancelled", "never_sent"]
OUTCOMES: tuple[Outcome, ...] = (
    "ok", "http_error", "stream_error", "transport_error", "timed_out", "cancelled", "never_sent",
)  # fmt: skip
TokenSource = Literal["usage", "tokenizer"]
SessionEnd = Literal["completed", "abandoned"]


class RequestError(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why a request failed. ``kind`` is finer than the outcome (docs/metrics.md); ``message`` is never empty."""

    kind: str
    message: str
    status: int | None = None
    retry_after_s: float | None = None


def lasting(error: RequestError) -> bool:
    """Whether the next request would fail the same way: a wrong path, key, model or address, not a busy server."""
    status = error.status or 0
    if error.kind in ("http_status", "redirect"):
        return 300 <= status < 500 and status not in _PASSING_STATUS
    return error.kind in ("connect", "tls", "not_a_stream", "json_error")


class Record(msgspec.Struct, frozen=True, omit_defaults=True):
    """One request. Times are milliseconds from the level's t0 on one monotonic clock; None is "not measured".

    A failed request keeps the times and tokens it got as far as it got; summaries leave them out of every
    latency and throughput figure. ``wait_ms`` is the part of ``sent − intended`` spent behind an in-flight cap,
    opening a connection (``connect_ms``), on a try that had to be resent, or behind the previous turn of its session;
    the rest is the generator's own lateness. ``workload`` is the place in the level's mix, ``turn`` counts from 1.
    ``prompt_hash`` tells repeated prompts: 48 bits of the whole input. A ``probe`` played beside the load and is in
    none of its figures. The input length is None where nobody asked for one, as of a history. ``model`` is named only
    where the workload asks several. ``ends`` says that this turn was to be the last of its session, and why.
    ``samples`` are the items that an endpoint which makes no text was asked for. ``text`` is the whole answer, kept
    where requests are paired.
    """

    id: int
    level: int
    worker: int
    intended_ms: float
    outcome: Outcome
    in_window: bool
    asked_input_tokens: int | None
    asked_output_tokens: int | None
    sent_ms: float | None = None
    wait_ms: float = 0.0
    connected_ms: float | None = None
    connect_ms: float | None = None
    first_byte_ms: float | None = None
    first_token_ms: float | None = None
    first_answer_ms: float | None = None
    last_token_ms: float | None = None
    done_ms: float | None = None
    error: RequestError | None = None
    streamed: bool = True
    input_tokens: int | None = None
    cached_input_tokens: int | None = None
    output_tokens: int | None = None
    token_source: TokenSource | None = None
    events: int = 0
    finish_reason: str | None = None
    itl_ms: Sequence[float] | None = None
    bytes_in: int = 0
    bad_events: int = 0
    resent: bool = False
    workload: int = 0
    session: int | None = None
    turn: int | None = None
    prompt_hash: int | None = None
    probe: bool = False
    model: str | None = None
    ends: SessionEnd | None = None
    samples: int | None = None
    text: str | None = None


def read(path: Path, offset: int = 0) -> tuple[list[Record], int]:
    """The records of a journal's file from a byte offset on, and the offset after the last whole line.

    Raises:
        ResultError: the journal cannot be read, or a line of it is no record.
    """
    found = []
    for record, line in entries(path, offset):
        found.append(record)
        offset += len(line)
    return found, offset


def entries(path: Path, offset: int = 0) -> Iterator[tuple[Record, bytes]]:
    """The records of a journal's file from a byte offset on, each with its line.

    A last line without its end was being written when the writer died; it was never acknowledged and is left out.
    Gaps between tokens are by far the most of it, and come as arrays of four bytes each.

    Raises:
        ResultError: the journal cannot be read, or a line of it is no record.
    """
    decode = msgspec.json.Decoder(Record).decode
    for line in _lines(path, offset):
        try:
            record = decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ResultError(f"{path}: the line at byte {offset} is not a record ({error})") from None
        if record.itl_ms:
            msgspec.structs.force_setattr(record, "itl_ms", array("f", record.itl_ms))
        offset += len(line)
        yield record, line


def files(folder: Path) -> list[Path]:
    """The files of the journal in ``folder``, the one that is written last; empty where there is none."""
    parts: dict[int, Path] = {}
    for path in sorted(folder.glob("records-*")):
        # Where a part is there twice, its packed form is whole and the other was about to be removed.
        if match := _PART.fullmatch(path.name):
            parts[int(match[1])] = path
    found = [path for _, path in sorted(parts.items())]
    return [*found, *(path for path in (folder / JOURNAL,) if path.exists())]


def part(folder: Path, number: int) -> Path:
    """Where the part of that number, from 1, is kept until it is packed."""
    return folder / f"records-{number:05}.jsonl"


def last_part(folder: Path) -> int:
    """The number of the last part of the journal in ``folder``; 0 where there is none."""
    found = (_PART.fullmatch(path.name) for path in files(folder))
    return max((int(match[1]) for match in found if match), default=0)


def lines(folder: Path) -> Iterator[bytes]:
    """The whole lines of the journal in ``folder``, in the order in which the requests ended.

    Raises:
        ResultError: it cannot be read.
    """
    for path in files(folder):
        yield from _lines(path)


def records(folder: Path) -> Iterator[Record]:
    """The records of the journal in ``folder``, in the order in which they ended; none where there is no journal.

    Raises:
        ResultError: it cannot be read, or a line of it is no record.
    """
    for path in files(folder):
        for record, _ in entries(path):
            yield record


def _lines(path: Path, offset: int = 0) -> Iterator[bytes]:
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            file.seek(offset)
            for line in file:
                if not line.endswith(b"\n"):
                    return  # its rest may come meanwhile, and is no line
                yield line
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ResultError(f"{path} is damaged: {error}") from None
    except OSError as error:
        raise ResultError(f"cannot read {path}: {error.strerror}") from None


def cut(folder: Path, levels: Collection[int]) -> bool:
    """Leave of the journal in ``folder`` what it has of these levels, and tell whether that was less than all.

    It is made where there is none.

    Levels are played one after the other, so what is dropped is its end.

    Raises:
        ResultError: it cannot be read or written, or a line of it is no record.
    """
    decode = msgspec.json.Decoder(_OfLevel).decode
    whole = True
    for path in files(folder):
        kept, size = 0, 0
        for line in _lines(path) if whole else ():
            try:
                whole = decode(line).level in levels
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise ResultError(f"{path}: the line at byte {kept} is not a record ({error})") from None
            if not whole:
                break
            kept += len(line)
        try:
            if path.suffix != ".gz":
                with path.open("rb+") as file:
                    size = file.truncate(kept)
            elif not whole and kept:
                with gzip.open(path) as file:
                    left = file.read(kept)
                rewritten = path.with_name(f".{path.name}")
                rewritten.write_bytes(gzip.compress(left, 1))
                rewritten.replace(path)
                size = kept
            if not size and path.name != JOURNAL and not whole:
                path.unlink()
        except OSError as error:
            raise ResultError(f"cannot go on with {path}: {error.strerror}") from None
    try:
        (folder / JOURNAL).touch()
    except OSError as error:
        raise ResultError(f"cannot go on with {folder / JOURNAL}: {error.strerror}") from None
    return not whole


class _OfLevel(msgspec.Struct):
    level: int
