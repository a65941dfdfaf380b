"""Events are the same however the bytes were cut and whatever ends the lines."""

import itertools

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from loadtest.wire.sse import ErrorEvent, EventStream

# Any text without line ends; separators of other alphabets are text.
LINE = st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), max_size=12)
EVENT = st.lists(LINE, min_size=1, max_size=3)
STREAM = st.lists(st.tuples(EVENT, st.sampled_from(["", ": ping", "id: 1", "retry: 5", "event: x", "unknown: y", ":"])))


def events(data: bytes, cuts: list[int]) -> list[bytes]:
    """The events of data that comes in pieces."""
    stream = EventStream()
    at = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    found = [event for start, stop in itertools.pairwise(at) for event in stream.feed(data[start:stop])]
    return [*found, *stream.finish()]


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    STREAM, st.sampled_from(["\n", "\r\n", "\r"]), st.booleans(), st.booleans(), st.booleans(),
    st.lists(st.integers(0, 2**30), max_size=20),
)  # fmt: skip
def test_neither_cuts_nor_line_ends_change_an_event(
    asked: list[tuple[list[str], str]], end: str, blank: bool, bom: bool, closed: bool, cuts: list[int]
) -> None:
    text = "\ufeff" if bom else ""
    for lines, other in asked:
        text += f"{other}{end}" if other else ""
        # Where no blank follows the colon, one that belongs to the text would be taken for it.
        text += "".join(f"data:{' ' if blank or line.startswith(' ') else ''}{line}{end}" for line in lines) + end
    data = text.encode()
    if asked and not closed:
        data = data[: -len(end)]  # the last blank line is missing: a whole body's last event counts all the same
    assert events(data, cuts) == ["\n".join(lines).encode() for lines, _ in asked]


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.binary(max_size=60), st.lists(st.integers(0, 2**30), max_size=20))
def test_any_bytes_cut_anyhow_give_the_same_events(data: bytes, cuts: list[int]) -> None:
    assert events(data, cuts) == events(data, [])


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.sampled_from([b"data", b":", b" ", b"\r", b"\n", b"x", b"\xef\xbb\xbf", b"event:error"]), max_size=20)
)
def test_each_byte_for_itself_gives_the_same_events(parts: list[bytes]) -> None:
    data = b"".join(parts)
    assert events(data, list(range(len(data)))) == events(data, [])


def test_a_megabyte_in_one_event_of_many_pieces() -> None:
    text = b"x" * 1_000_000
    stream = EventStream()
    data = b"data: " + text + b"\n\n"
    found = [event for at in range(0, len(data), 100) for event in stream.feed(data[at : at + 100])]
    assert found == [text]


def test_an_event_named_error_is_one() -> None:
    [first, second] = events(b"event: error\ndata: x\n\ndata: y\n\n", [])
    assert isinstance(first, ErrorEvent)
    assert not isinstance(second, ErrorEvent)


def test_events_without_data_are_none() -> None:
    assert events(b": ping\n\nevent: ping\n\nid: 1\n\n\n\n\n", []) == []
