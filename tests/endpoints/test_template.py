"""A template sends what its user wrote, and reads what its user pointed at, from whatever an API answers."""

import itertools
import json
import re
import uuid
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.endpoints import blanks
from loadtest.endpoints.answer import Usage
from loadtest.endpoints.catalog import dialect, speak
from loadtest.endpoints.dialect import Dialect, Settings
from loadtest.endpoints.pattern import Pattern, RequestForm, ResponseForm, Rule, Upload
from loadtest.endpoints.reading import Reading
from loadtest.errors import UsageError
from loadtest.wire.exchange import Exchange
from loadtest.workload.model import Ask, Message
from tests.endpoints.shapes import jsons

QUOTED = 'say "hi"\n\\ é & = %'
ASK = Ask(
    (Message("system", "Be brief."), Message("user", QUOTED)), 7, input_tokens=5, seed=3,
    row='{"label":"a b","n":2.5,"tags":["x"],"none":null}',
)  # fmt: skip


PLAIN, ANY = RequestForm(), ResponseForm()


def template(request: RequestForm = PLAIN, response: ResponseForm = ANY, **more: Any) -> Dialect:
    """A dialect of what a scenario says."""
    return speak(Settings("http", "m", pattern=Pattern(request, response), **more))


def sent(request: RequestForm, ask: Ask = ASK, **more: Any) -> bytes:
    """The body of one request."""
    return template(request, **more).body(ask)


def read(dialect: Dialect, body: bytes, cuts: list[int] | None = None, status: int = 200, kind: str = "") -> Reading:
    """A response with a counted body, read in pieces."""
    head = f"HTTP/1.1 {status} X\r\n{kind and f'Content-Type: {kind}'}\r\nContent-Length: {len(body)}\r\n\r\n"
    data = head.replace("\r\n\r\nContent", "\r\nContent").encode() + body
    exchange, reading = Exchange(b"", 0, lambda _: None, lambda _: None), Reading(dialect)
    at = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts or ())})
    for stamp, (start, stop) in enumerate(itertools.pairwise(at), 1):
        exchange.reads += [stamp, data[start:stop]]
        reading.part(exchange)
    reading.finish(exchange)
    return reading


# -- what is sent


def test_a_json_body_keeps_types_and_escapes_texts() -> None:
    body = {
        "q": "{{ prompt }}",
        "n": "{{ max_tokens }}",
        "long": "<{{prompt}}> of {{ input_tokens }}",
        "row": ["{{ row.label }}", "{{ row.n }}", "{{ row.tags }}", "{{ row.none }}", "{{ row.tags }}!"],
        "model": "{{ model }}",
        "fixed": [1, 2.5, None, True, {}, [], "é"],
        "key {{ row.label }}": 1,
    }
    prompt = f"Be brief.\n\n{QUOTED}"
    assert json.loads(sent(RequestForm(json=json.dumps(body)))) == {
        "q": prompt,
        "n": 7,
        "long": f"<{prompt}> of 5",
        "row": ["a b", 2.5, ["x"], None, '["x"]!'],
        "model": "m",
        "fixed": [1, 2.5, None, True, {}, [], "é"],
        "key a b": 1,
    }


@given(st.text(st.characters(codec="utf-8")), st.text(st.characters(codec="utf-8"), min_size=1))
def test_no_prompt_breaks_the_json_around_it(prompt: str, model: str) -> None:
    ask = Ask((Message("user", prompt),), 1, model)
    body = sent(RequestForm(json='{"a":"{{ prompt }}","b":["x {{ prompt }} y","{{ model }}"]}'), ask)
    assert json.loads(body) == {"a": prompt, "b": [f"x {prompt} y", model]}


def test_a_form_and_a_path_are_percent_coded() -> None:
    request = RequestForm(route="/s/{{ row.label }}?q={{ prompt }}&é=1", form=(("a b", "{{ prompt }}"), ("n", "é 1")))
    made = template(request)
    assert made.body(ASK) == (b"a+b=Be+brief.%0A%0Asay+%22hi%22%0A%5C+%C3%A9+%26+%3D+%25&n=%C3%A9+1")
    head = made.head(ASK)
    assert head is not None
    assert head.path == "/s/a%20b?q=Be%20brief.%0A%0Asay%20%22hi%22%0A%5C%20%C3%A9%20%26%20%3D%20%25&%C3%A9=1"
    assert (made.method, made.content_type) == ("POST", "application/x-www-form-urlencoded")


def test_a_value_in_a_header_cannot_begin_another_header() -> None:
    made = template(RequestForm(headers=(("X-Label", "<{{ prompt }}>"), ("Content-Type", "text/x"))))
    head = made.head(ASK)
    assert head is not None
    assert dict(head.headers)["X-Label"].encode("latin-1").decode() == '<Be brief. say "hi" \\ é & = %>'
    assert made.content_type is None  # the user's stands in its place


def test_what_is_the_same_in_all_requests_is_made_once() -> None:
    made = template(RequestForm(route="/x y", headers=(("A", "b"),), json='{"a":1}'))
    assert (made.path, made.headers, made.head(ASK)) == ("/x%20y", (("A", "b"),), None)
    assert made.body(ASK) is made.body(ASK)


def test_raw_text_is_sent_as_it_is() -> None:
    assert sent(RequestForm(raw="{{ prompt }};{{ row.n }}")) == f"Be brief.\n\n{QUOTED};2.5".encode()
    assert template(RequestForm(raw="<x/>")).content_type == "text/plain; charset=utf-8"
    assert template(RequestForm(raw='{"a": 1}')).content_type == "application/json"
    assert template(RequestForm(raw="<x/>", type="text/xml")).content_type == "text/xml"


def test_without_a_body_it_is_a_get() -> None:
    made = template()
    assert (made.method, made.body(ASK), made.content_type, made.path) == ("GET", b"", None, "")
    assert template(RequestForm(method="DELETE")).method == "DELETE"


def test_a_uuid_is_of_one_request_and_of_one_seed() -> None:
    body = '["{{ uuid }}","{{ uuid }}"]'
    first, again = json.loads(sent(RequestForm(json=body)))
    (other, _) = json.loads(sent(RequestForm(json=body), msgspec.structs.replace(ASK, seed=4)))
    assert first == again != other
    assert uuid.UUID(first).version == 4


def test_a_variable_is_put_in_once() -> None:
    variables = (("KEY", 's"3'),)
    assert sent(RequestForm(json='{"k":"{{ env.KEY }}"}'), variables=variables) == b'{"k":"s\\"3"}'


def test_files_come_one_after_the_other(tmp_path: Path) -> None:
    for name in ("a.png", "b.png", ".hidden"):
        (tmp_path / name).write_bytes(name.encode())
    for path in (str(tmp_path), str(tmp_path / "*.png")):
        made = template(RequestForm(file=Upload(path)))
        assert made.content_type == "image/png"
        bodies = [made.body(msgspec.structs.replace(ASK, number=number)) for number in range(4)]
        assert bodies in ([b"a.png", b"b.png"] * 2, [b"b.png", b"a.png"] * 2)
    with pytest.raises(UsageError, match="there is no file at"):
        template(RequestForm(file=Upload(str(tmp_path / "*.jpg"))))


def test_a_multipart_body_is_read_by_another_library(tmp_path: Path) -> None:
    from email.parser import BytesParser

    (tmp_path / 'x"y.png').write_bytes(b"\x89PNG\r\n--\r\n")
    fields = (("say", "{{ prompt }}"), ("image", Upload(str(tmp_path / 'x"y.png'), "image/x-own")))
    made = template(RequestForm(multipart=fields))
    message = BytesParser().parsebytes(f"Content-Type: {made.content_type}\r\n\r\n".encode() + made.body(ASK))
    say, image = message.get_payload()  # type: ignore[misc]
    assert say.get_payload(decode=True).decode() == f"Be brief.\n\n{QUOTED}"
    assert say.get_param("name", header="content-disposition") == "say"
    assert (image.get_content_type(), image.get_filename()) == ("image/x-own", "x%22y.png")
    assert made.body(ASK).count(b"\r\n\r\n\x89PNG\r\n--\r\n\r\n--") == 1


def test_an_unknown_blank_is_told_with_those_there_are() -> None:
    assert blanks.names("{{prompt}} {{ row.a b }} {{ env.X }} {} {{}") == ["prompt", "row.a b", "env.X"]
    with pytest.raises(ValueError, match=re.escape("there is no {{ promt }}: did you mean {{ prompt }}? There are")):
        blanks.names("{{ promt }}")
    for wrong in ("{{ }}", "{{ row }}", "{{ env.A-B }}", "{{ prompt | upper }}"):
        with pytest.raises(ValueError, match="there is no"):
            blanks.names(wrong)


# -- what kind of endpoint it is


@pytest.mark.parametrize(
    ("request_", "response", "reads", "generates"),
    [
        (RequestForm(), ResponseForm(), False, False),
        (RequestForm(json='"{{ prompt }}"'), ResponseForm(), True, False),
        (RequestForm(route="/{{ input_tokens }}"), ResponseForm(text="a"), True, True),
        (RequestForm(), ResponseForm(stream="lines"), False, True),
    ],
)
def test_a_template_says_what_may_be_asked_of_it(
    request_: RequestForm, response: ResponseForm, reads: bool, generates: bool
) -> None:
    kind = dialect("http", Pattern(request_, response))
    assert (kind.reads, kind.generates, kind.converses) == (reads, generates, False)


# -- what is read

PATHS = ResponseForm(
    "sse", "[DONE]", text="$.c[0].d.t", input_tokens="$.u.in", output_tokens="u.out", finish="$.c[0].f",
    error="$.error.message",
)  # fmt: skip
EVENTS = [
    {"c": [{"d": {"t": ""}}]},
    {"c": [{"d": {"t": "Zü"}}]},
    {"c": [{"d": {"t": "rich"}, "f": "stop"}], "u": {"in": 3, "out": 1}},
    {"c": [], "u": {"in": 3, "out": 2}},
]
SSE = "".join(f"data: {json.dumps(event, ensure_ascii=False)}\n\n" for event in EVENTS) + "data: [DONE]\n\n"
NDJSON = "".join(f"{json.dumps(event, ensure_ascii=False)}\n" for event in EVENTS)


@pytest.mark.parametrize(
    ("response", "body"),
    [
        (PATHS, SSE),
        (msgspec.structs.replace(PATHS, stream="ndjson", done=None), NDJSON),
        (msgspec.structs.replace(PATHS, stream="lines", done=None), NDJSON),
    ],
)
@given(st.lists(st.integers(0, 2**20), max_size=8))
def test_a_stream_cut_anywhere_gives_the_same(response: ResponseForm, body: str, cuts: list[int]) -> None:
    reading = read(template(response=response), body.encode(), cuts)
    answer = reading.answer
    assert (reading.outcome, reading.streamed) == ("ok", True)
    assert (answer.texts, len(answer.stamps)) == (["Zü", "rich"], 2)
    assert (answer.usage, answer.finish_reason) == (Usage(3, 2), "stop")


def test_every_byte_may_come_alone() -> None:
    whole, bytewise = (read(template(response=PATHS), SSE.encode(), cuts) for cuts in ([], [*range(2000)]))
    assert whole.answer.texts == bytewise.answer.texts == ["Zü", "rich"]


def test_a_stream_without_its_end_is_no_whole_answer() -> None:
    response = ResponseForm("sse", "[DONE]", text="$.t")
    reading = read(template(response=response), b'data: {"t": "a"}\n\n')
    assert reading.error is not None
    assert reading.error.kind == "no_terminal"
    assert (
        read(template(response=msgspec.structs.replace(response, done=None)), b'data: {"t": "a"}\n\n').outcome == "ok"
    )


@given(st.lists(st.integers(0, 2**20), max_size=20))
def test_chunks_are_text_and_no_character_is_torn(cuts: list[int]) -> None:
    reading = read(template(response=ResponseForm("chunks")), "Grüße 🎈 an 東京".encode(), cuts)
    assert (reading.outcome, "".join(reading.answer.texts)) == ("ok", "Grüße 🎈 an 東京")
    assert len(reading.answer.stamps) == len(reading.answer.texts) >= 1


def test_chunks_that_are_no_utf8_are_text_all_the_same() -> None:
    reading = read(template(response=ResponseForm("chunks")), b"a\xff\xfe\xe2\x82", [*range(100)])
    assert (reading.outcome, "".join(reading.answer.texts)) == ("ok", "a\ufffd\ufffd\ufffd")


def test_the_text_of_an_event_may_be_the_event() -> None:
    reading = read(template(response=ResponseForm("sse", "END", text="$")), b"data: 5\n\ndata:  x\n\ndata: END\n\n")
    assert reading.answer.texts == ["5", " x"]
    assert read(template(response=ResponseForm("lines")), b"a\r\nb").answer.texts == ["a", "b"]


def test_a_whole_answer_has_text_and_counts() -> None:
    response = ResponseForm(text="$.labels[*].name", output_tokens="$.n", input_tokens="$.i", finish="$.why")
    reading = read(template(response=response), b'{"labels":[{"name":"cat"},{"name":7}],"n":2.0,"i":0,"why":"stop"}')
    assert (reading.outcome, reading.streamed, reading.answer.stamps) == ("ok", False, [])
    assert (reading.answer.texts, reading.answer.usage, reading.answer.finish_reason) == (["cat7"], Usage(0, 2), "stop")


@pytest.mark.parametrize("body", [b"", b"<html>hello</html>", b"\x89PNG", b"[]"])
def test_where_nothing_is_pointed_at_any_body_will_do(body: bytes) -> None:
    assert read(template(), body).outcome == "ok"
    assert read(template(), b"", status=204).outcome == "ok"
    assert read(template(), b"", status=500).outcome == "http_error"


def test_the_good_statuses_may_be_named() -> None:
    made = template(response=ResponseForm(status=(200, 404)))
    assert read(made, b"gone", status=404).outcome == "ok"
    assert read(made, b"made", status=201).outcome == "http_error"


@pytest.mark.parametrize(
    ("rule", "body", "error"),
    [
        (Rule("$.s", '"ok"'), b'{"s":"ok"}', None),
        (Rule("$.s", '"ok"'), b'{"s":"no"}', 'no success: $.s is no, expected "ok"'),
        (Rule("$.s", "2"), b'{"s":2.0}', None),
        (Rule("$.s", '"ok"'), b'{"t":1}', 'no success: $.s is not there, expected "ok". What came is\n$.t: number 1'),
        (Rule("$.data"), b'{"data":null}', None),
        (Rule("$.data"), b"{}", "no success: $.data is not there. What came is\n$: an empty mapping"),
        (Rule("$.errors", exists=False), b'{"errors":[]}', "no success: $.errors is there"),
        (Rule("$.errors", exists=False), b"{}", None),
    ],
)
def test_success_is_what_the_user_says(rule: Rule, body: bytes, error: str | None) -> None:
    reading = read(template(response=ResponseForm(success=rule)), body)
    assert (reading.error.message if reading.error else None) == error
    assert reading.outcome == ("ok" if error is None else "stream_error")


def test_what_came_is_shown_until_an_answer_was_a_success() -> None:
    made = template(response=ResponseForm(success=Rule("$.s", "1")))
    assert read(made, b'{"s":1}').outcome == "ok"
    error = read(made, b'{"t":1}').error
    assert error is not None
    assert error.message == "no success: $.s is not there, expected 1"


def test_an_error_in_its_own_shape_is_heard() -> None:
    made = template(response=ResponseForm(text="$.t", error="$.errors[0].message"))
    told = read(made, b'{"errors":[{"message":"model is gone"}],"t":"x"}')
    assert told.error is not None
    assert (told.error.kind, told.error.message) == ("json_error", "model is gone")
    assert read(made, b'{"errors":[],"t":"x"}').outcome == "ok"
    told = read(made, b'{"errors":[{"message":"busy"}]}', status=503)
    assert told.error is not None
    assert told.error.message == "503 X: busy"
    stream = template(response=ResponseForm("ndjson", text="$.t", error="$.e"))
    told = read(stream, b'{"t":"a"}\n{"e":{"code":5}}\n')
    assert told.error is not None
    assert (told.error.kind, told.error.message) == ("sse_error", '{"code": 5}')


def test_a_path_that_finds_nothing_says_so_once_and_shows_what_came() -> None:
    made = template(response=ResponseForm(text="$.choices[0].text", output_tokens="$.n"))
    body = b'{"generated_text": "a secret that is long enough to be cut", "meta": {"tokens": 4}, "n": 1}'
    reading = read(made, body)
    assert reading.misfit
    assert reading.error is not None
    assert reading.error.message.splitlines() == [
        "response.text ($.choices[0].text) finds nothing: the answer has not that path, or no such value there. "
        "What came is",
        "$.generated_text: text 'a secret that is lon…'",
        "$.meta.tokens: number 4",
        "$.n: number 1",
    ]
    # Once each has been there, the template fits: an answer may then be empty.
    assert read(made, b'{"choices":[{"text":""}],"n":1}').outcome == "ok"
    assert read(made, body).outcome == "ok"


def test_a_stream_in_which_a_path_finds_nothing_shows_what_its_events_have() -> None:
    reading = read(template(response=ResponseForm("sse", text="$.text")), SSE.encode())
    assert reading.error is not None
    assert "no event has that path" in reading.error.message
    assert reading.error.message.splitlines()[1:] == [
        "$.c[0].d.t: text ''",
        "$.c[0].f: text 'stop'",
        "$.u.in: number 3",
        "$.u.out: number 1",
        "$.c: an empty list",
        "text '[DONE]', which is no JSON",
    ]


def test_a_stream_without_the_event_that_ends_it_was_cut_off_whatever_else_it_says() -> None:
    made = template(response=msgspec.structs.replace(PATHS, stream="sse", done="BYE"))
    reading = read(made, SSE.encode())
    assert reading.error is not None
    assert (reading.error.kind, reading.misfit) == ("no_terminal", False)
    assert reading.error.message.startswith("the stream ended without response.done (BYE): ")


def test_a_stream_cut_up_in_another_way_than_it_comes_is_told_with_what_came() -> None:
    reading = read(template(response=msgspec.structs.replace(PATHS, stream="ndjson", done="BYE")), SSE.encode())
    assert reading.misfit
    assert reading.error is not None
    assert "finds nothing: no event has that path" in reading.error.message
    assert "text 'data: {" in reading.error.message


@pytest.mark.parametrize("found", [b"{}", b'{"t":{"a":1}}', b'{"t":null}', b'{"t":[1]}'])
def test_what_is_no_text_is_nothing(found: bytes) -> None:
    assert read(template(response=ResponseForm(text="$.t")), found).misfit


@pytest.mark.parametrize(
    ("response", "body", "words"),
    [
        (ResponseForm(text="$.t"), b"<html>login</html>", "200 with an HTML page"),
        (ResponseForm("chunks"), b"<html>login</html>", "200 with an HTML page"),
        (ResponseForm(text="$.t"), b"warming up", "the body is not JSON: warming up"),
        (ResponseForm("ndjson", text="$.t"), b"junk\n", "response.text ($.t) finds nothing"),
    ],
)
def test_what_is_no_answer_is_told(response: ResponseForm, body: bytes, words: str) -> None:
    reading = read(template(response=response), body)
    assert reading.error is not None
    assert words in reading.error.message


JSON = jsons("c d t u in out f error message")


@given(st.lists(JSON, max_size=4), st.sampled_from([*"sncl"]), st.lists(st.integers(0, 2**20), max_size=4))
def test_no_shape_of_json_makes_it_raise(values: list[object], kind: str, cuts: list[int]) -> None:
    stream = {"s": "sse", "n": "ndjson", "c": "chunks", "l": "none"}[kind]
    before, after = ("data: ", "\n\n") if kind == "s" else ("", "\n")
    body = "".join(f"{before}{json.dumps(value)}{after}" for value in values)
    response = msgspec.structs.replace(PATHS, stream=stream, success=Rule("$.c", '"x"') if kind == "l" else None)
    reading = read(template(response=response), body.encode(), cuts)
    assert (reading.error is None) == (reading.outcome == "ok")
    msgspec.json.encode([reading.error, reading.answer.texts, reading.answer.usage, reading.answer.finish_reason])
