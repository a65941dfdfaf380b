"""Whatever a server sends, reading it ends in one outcome with words, and never in an exception."""

import itertools
import json
import re
from email.utils import formatdate
from time import time

import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from loadtest.endpoints.catalog import speak
from loadtest.endpoints.dialect import Settings
from loadtest.endpoints.reading import Reading
from loadtest.records import OUTCOMES
from loadtest.wire.exchange import Exchange, Failure, FailureKind
from tests.endpoints.shapes import jsons

CHAT = speak(Settings("chat", "m"))
STREAM = (
    b'data: {"choices":[{"delta":{"content":"a"}}]}\n\ndata: {"choices":[{"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
)
ANSWER = b'{"choices":[{"message":{"content":"a"},"finish_reason":"stop"}],"usage":{"completion_tokens":1}}'


def response(body: bytes, headers: str = "", status: str = "200 OK") -> bytes:
    """A response with a counted body."""
    return f"HTTP/1.1 {status}\r\n{headers}Content-Length: {len(body)}\r\n\r\n".encode("latin-1") + body


def read(data: bytes, cuts: list[int] | None = None, failure: Failure | None = None) -> Reading:
    """A response read in pieces, decoded piece by piece."""
    exchange = Exchange(b"", 0, lambda _: None, lambda _: None)
    reading = Reading(CHAT)
    at = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts or ())})
    for stamp, (start, stop) in enumerate(itertools.pairwise(at), 1):
        exchange.reads += [stamp, data[start:stop]]
        if stamp % 2:
            reading.part(exchange)
    exchange.failure = failure
    reading.finish(exchange)
    return reading


def kind(reading: Reading) -> str | None:
    """The kind of its error."""
    return reading.error.kind if reading.error else None


JSON = jsons(
    "choices delta content text message usage error type thinking finish_reason completion_tokens "
    "prompt_tokens prompt_tokens_details cached_tokens tool_calls function name object reasoning",
)
EVENTS = st.lists(
    st.builds(lambda value: b"data: " + repr_json(value) + b"\n\n", JSON)
    | st.binary(max_size=20)
    | st.sampled_from([b"data: [DONE]\n\n", b"event: error\n", b"data: " + b"[" * 50_000 + b"\n\n", STREAM]),
    max_size=5,
)


def repr_json(value: object) -> bytes:
    """JSON as Python's json writes it, with NaN and lone surrogates."""
    return json.dumps(value).encode()


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    EVENTS,
    st.sampled_from(["200 OK", "204 No Content", "302 Found", "429 Too Many", "500 Oh \xff", "101 Other", "99 x"]),
    st.sampled_from(["text/event-stream", "application/json", "text/html", ""]),
    st.sampled_from([*FailureKind.__args__, None]),  # type: ignore[attr-defined]
    st.lists(st.integers(0, 2**30), max_size=6),
    st.integers(0, 3),
)
def test_reading_never_raises_and_always_says_why(
    events: list[bytes], status: str, content: str, failed: FailureKind | None, cuts: list[int], lost: int
) -> None:
    data = response(b"".join(events), f"Content-Type: {content}\r\n" if content else "", status)
    data = data[: len(data) - lost]
    reading = read(data, cuts, Failure(failed, "why") if failed else None)
    assert reading.outcome in OUTCOMES
    assert (reading.error is None) == (reading.outcome == "ok")
    assert reading.error is None or reading.error.message.strip()
    msgspec.json.encode([reading.error, reading.answer.usage, reading.answer.finish_reason, reading.answer.texts])


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.binary(max_size=200), st.lists(st.integers(0, 2**30), max_size=4))
@example(b"HTTP/1.1 200 OK\r\nContent-Encoding: \r\n\r\n", [])
def test_no_bytes_at_all_make_it_raise(data: bytes, cuts: list[int]) -> None:
    assert read(data, cuts).error is not None


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    EVENTS, st.sampled_from(["text/event-stream", "text/plain", ""]), st.lists(st.integers(0, 2**30), max_size=10),
)  # fmt: skip
def test_cuts_do_not_change_what_was_read(events: list[bytes], content: str, cuts: list[int]) -> None:
    data = response(b"".join(events), f"Content-Type: {content}\r\n" if content else "")
    one, many = read(data), read(data, cuts)
    assert (one.outcome, one.error, one.streamed) == (many.outcome, many.error, many.streamed)
    assert one.answer.texts == many.answer.texts
    assert len(one.answer.stamps) == len(many.answer.stamps)
    assert one.bytes_in == many.bytes_in == len(data)


@pytest.mark.parametrize(
    "content", ["text/event-stream", "application/json", "text/plain", "application/octet-stream", ""]
)
@pytest.mark.parametrize("lead", [b"", b"\n", b": hello\n\n", b"\xef\xbb\xbf", b"retry: 10\n\n", b"id: 1\n"])
def test_a_stream_is_known_by_its_first_bytes_whatever_its_type(content: str, lead: bytes) -> None:
    reading = read(response(lead + STREAM, f"Content-Type: {content}\r\n" if content else ""), [*range(200)])
    assert (reading.outcome, reading.streamed, reading.answer.texts) == ("ok", True, ["a"])


@pytest.mark.parametrize("content", ["text/event-stream", "application/json", "text/plain", ""])
def test_a_whole_answer_is_known_by_its_first_bytes_whatever_its_type(content: str) -> None:
    reading = read(response(ANSWER, f"Content-Type: {content}\r\n" if content else ""), [*range(200)])
    assert (reading.outcome, reading.streamed, reading.answer.texts, reading.answer.stamps) == ("ok", False, ["a"], [])


@pytest.mark.parametrize("content", ["text/event-stream", "application/json"])
def test_an_error_in_one_piece_is_read_whatever_its_type(content: str) -> None:
    reading = read(response(b'{"error": {"message": "model is gone"}}', f"Content-Type: {content}\r\n"))
    assert reading.error is not None
    assert (reading.error.kind, reading.error.message) == ("json_error", "model is gone")


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"<html>login</html>", "not_a_stream"),
        (b"[]", "not_a_stream"),
        (b"", "empty_body"),
        (b": nothing\n\n", "no_terminal"),
        (b"da", "not_a_stream"),
    ],
)
def test_what_is_no_answer_has_a_kind(body: bytes, expected: str) -> None:
    assert kind(read(response(body))) == expected


@pytest.mark.parametrize(
    ("value", "seconds"),
    [("2", 2.0), (" 1.5 ", 1.5), ("-3", 0.0), ("nan", None), ("inf", None), ("soon", None), ("\xb2", None), ("", None),
     ("Thu, 01 Jan 1970 00:00:00 GMT", 0.0), ("Thu, 01 Jan 99999999999 00:00:00 GMT", None)],
)  # fmt: skip
def test_retry_after_in_any_form(value: str, seconds: float | None) -> None:
    error = read(response(b"", f"Retry-After: {value}\r\n", "429 Too Many Requests")).error
    assert error is not None
    assert error.retry_after_s == seconds


def test_retry_after_as_a_date() -> None:
    error = read(response(b"", f"Retry-After: {formatdate(time() + 100, usegmt=True)}\r\n", "503 Busy")).error
    assert error is not None
    assert error.retry_after_s == pytest.approx(100, abs=60)


def test_of_an_endless_error_only_the_beginning_is_kept() -> None:
    reading = Reading(CHAT)
    exchange = Exchange(b"", 0, lambda _: None, lambda _: None)
    exchange.reads = [1, b"HTTP/1.1 500 Oh\r\n\r\n"]
    for _ in range(100):
        exchange.reads += [1, b"x" * 10_000]
        reading.part(exchange)
    reading.finish(exchange)
    assert reading.bytes_in > 1_000_000
    assert sum(map(len, reading._body)) < 100_000
    assert reading.error is not None
    assert len(reading.error.message) < 1000


def test_a_done_sign_makes_a_lost_tail_good() -> None:
    """The server reset or cut the connection after [DONE]: nothing of the answer is missing."""
    data = response(STREAM + b"x" * 10)[:-10]
    assert read(data, failure=Failure("reset", "reset")).outcome == "ok"
    assert kind(read(data[:-20], failure=Failure("reset", "reset"))) == "reset"


def test_a_redirect_names_its_target() -> None:
    error = read(response(b"", "Location: https://other/v1\r\n", "308 Permanent Redirect")).error
    assert error is not None
    assert re.search("308.*https://other/v1", error.message)


def test_an_answer_in_one_piece_keeps_its_usage() -> None:
    usage = read(response(ANSWER)).answer.usage
    assert usage is not None
    assert usage.output_tokens == 1


def test_a_page_in_the_answers_place_is_named_and_stays_what_it_was() -> None:
    page = b"<!doctype html><title>Sign in</title>"
    error = read(response(page, "Content-Type: text/html\r\n")).error
    assert error is not None
    assert (error.kind, error.status) == ("not_a_stream", 200)
    assert re.search("200 with an HTML page.*Sign in.*not the endpoint", error.message)


def test_an_error_of_what_stands_between_names_it_and_leaves_out_its_page() -> None:
    page = b"<html><title>502 Bad Gateway</title><hr><center>nginx/1.25.3</center></html>"
    error = read(response(page, "Server: nginx/1.25.3\r\n", "502 Bad Gateway")).error
    assert error is not None
    assert (error.kind, error.status) == ("http_status", 502)
    assert re.fullmatch("502 Bad Gateway: an HTML page.*nginx answered in the application's place.*", error.message)
    words = read(response(b"no healthy upstream", "Server: envoy\r\n", "503 Service Unavailable")).error
    assert words is not None
    assert re.fullmatch("503 Service Unavailable: no healthy upstream .said by Envoy.*", words.message)


def test_what_the_application_says_through_a_gateway_is_its_own() -> None:
    """Its headers stand on every answer, and change none."""
    gateway = "Server: cloudflare\r\nCF-RAY: 8f-AMS\r\nVia: 1.1 google\r\nX-Cache: Error from cloudfront\r\n"
    for body in (ANSWER, STREAM):
        assert read(response(body, gateway)).outcome == "ok"
    error = read(response(b'{"error": {"message": "busy"}}', gateway, "503 Busy")).error
    assert error is not None
    assert error.message == "503 Busy: busy"


def test_a_redirect_to_sign_in_is_no_url_to_be_given() -> None:
    error = read(response(b"", "Location: https://login.acme.example/sso?x=1\r\n", "302 Found")).error
    assert error is not None
    assert error.kind == "redirect"
    assert "sign in there" in error.message
    assert "give that URL" not in error.message


def test_an_answer_without_an_end_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadtest.endpoints.reading.MOST_BYTES", 1000)
    head = b"HTTP/1.1 200 OK\r\n\r\n"
    assert read(head + b"x" * 990).error == read(head + b"x" * 990, [500]).error
    reading = read(head + b"x" * 5000, [*range(0, 5000, 100)])
    assert (reading.outcome, reading.body) == ("stream_error", b"")
    assert reading.error is not None
    assert reading.error.kind == "not_a_stream"
    assert "goes on beyond" in reading.error.message
    endless = read(head + b'data: {"choices": [{"delta": {"content": "x"}}]}\n\n' * 50, [*range(0, 2000, 100)])
    assert (endless.outcome, endless.error) == ("stream_error", reading.error)
