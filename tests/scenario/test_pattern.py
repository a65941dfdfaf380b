"""The sections of a template: every fault has its place and its mend, and what is played can be loaded again."""

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from loadtest.endpoints.pattern import Pattern, RequestForm, ResponseForm, Rule, Upload
from loadtest.errors import ScenarioError
from loadtest.scenario import Override, load
from loadtest.scenario.pattern import body_of


def loaded(folder: Path, text: str, **flags: str) -> Pattern:
    """The pattern of a scenario; what was resolved loads back to the same."""
    path = folder / "mine.yaml"
    path.write_text(text, "utf-8")
    found = load(str(path), {name: Override(value, f"--{name}") for name, value in flags.items()})
    again = folder / "again.yaml"
    again.write_text(found.text, "utf-8")
    back = load(str(again), {})
    assert msgspec.structs.replace(back.scenario, name=found.scenario.name) == found.scenario
    assert back.sha256 == found.sha256
    return found.scenario.pattern


def faults(folder: Path, text: str, **flags: str) -> str:
    """What is wrong with a scenario."""
    with pytest.raises(ScenarioError) as caught:
        loaded(folder, text, **flags)
    return str(caught.value)


def test_a_request_and_a_response_with_everything(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"x")
    found = loaded(
        tmp_path,
        """
endpoint: http
request:
  method: PUT
  path: /v1/{{ row.a }}?x=1
  headers: {X-A: 5, X-B: "b: {{ uuid }}"}
  multipart: {one: {file: ./a.png, type: image/x}, two: 2.5, three: true, four: "a\\nb"}
response:
  success: {status: 201, path: "$['a b'].c", equals: {x: [1, 2.0, null, "é\\u2028"]}}
  text: $.t
  input_tokens: $.i
  output_tokens: $.o
  finish: $.f
  error: $.e
workload: {data: {path: ./mine.yaml, format: jsonl}}
""",
    )
    assert found == Pattern(
        RequestForm(
            "PUT", "/v1/{{ row.a }}?x=1", (("X-A", "5"), ("X-B", "b: {{ uuid }}")),
            multipart=(("one", Upload(str(tmp_path / "a.png"), "image/x")), ("two", "2.5"), ("three", "true"),
                       ("four", "a\nb")),
        ),
        ResponseForm(
            status=(201,), success=Rule("$['a b'].c", '{"x":[1,2.0,null,"é\u2028"]}'), text="$.t", input_tokens="$.i",
            output_tokens="$.o", finish="$.f", error="$.e",
        ),
    )  # fmt: skip


YAML = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**17), 10**17) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc", "Cn", "Co"]), max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b c", "7", "null"]), inner),
    max_leaves=10,
)  # fmt: skip


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(YAML)
def test_any_json_body_loads_back_as_it_was(tmp_path: Path, body: object) -> None:
    text = yaml.safe_dump({"endpoint": "http", "request": {"json": {"body": body}}}, allow_unicode=True)
    if "{{" in str(body):
        return
    found = loaded(tmp_path, text).request.json
    assert found is not None
    assert msgspec.json.decode(found) == {"body": body}


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("request: {raw: x}", "mine.yaml:1:10: request: is of the endpoint http: write endpoint: http, or remove it"),
        ("endpoint: http\nrequest: {raw: x, json: {}}", "2:16: request.raw: excludes json: a request has"),
        ("endpoint: http\nrequest: {json: {a: ['{{ promt }}']}}", "2:22: request.json.a.0: there is no {{ promt }}"),
        ("endpoint: http\nrequest: {raw: '{{ row.x }}'}", "request.raw: {{ row.x }} needs rows: give workload.data"),
        ("endpoint: http\nrequest: {raw: '{{ model }}'}", "{{ model }} needs a model: give one, or --model"),
        ("endpoint: http\nrequest: {path: x}", "expected a path that begins with /"),
        ("endpoint: http\nrequest: {type: a/b}", "request.type: applies to a body only"),
        ("endpoint: http\nrequest: {headers: {Content-Length: 1}}", "follows from the body"),
        ("endpoint: http\nrequest: {headers: {X-A: \"a\\r\\nb\"}}", "without control characters"),
        ("endpoint: http\nrequest: {multipart: {a: {fil: x}}}", "expected text, or a file as {file: ./cat.png"),
        ("endpoint: http\nrequest: {file: './*.none'}", "no such file"),
        ("endpoint: http\nresponse: {text: '$.a['}", "2:18: response.text: expected a JSON path such as"),
        ("endpoint: http\nresponse: {stream: sse}", "response.stream: needs text: where in an event that is"),
        ("endpoint: http\nresponse: {done: x}", "response.done: applies to a stream only"),
        ("endpoint: http\nresponse: {stream: chunks, text: $.a}", "does not apply to chunks"),
        ("endpoint: http\nresponse: {success: {equals: 1}}", "response.success.equals: needs path"),
        ("endpoint: http\nresponse: {success: {path: $.a, equals: 1, exists: true}}", "excludes equals; keep one"),
        (
            "endpoint: http\nresponse: {stream: lines, success: {path: $.a}}",
            "response.success.path: does not apply to a stream",
        ),
        ("endpoint: http\nresponse: {success: {status: 99}}", "expected at least 200, got 99"),
        ("endpoint: http\nstream: true", "stream: does not apply: response.stream says it"),
        ("endpoint: http\nworkload: {output_tokens: 5}", "would do nothing: the request has no {{ max_tokens }}"),
        ("endpoint: http\nworkload: {prefix: {share: 1, tokens: 5, pool: 1}}", "has no {{ prompt }}"),
        ("endpoint: http\nworkload: {body: {a: 1}}", "workload.body: does not apply to a template"),
        ("endpoint: http\nworkload: {data: {path: ./mine.yaml}}", "has no {{ prompt }} and no {{ row.COLUMN }}"),
        ("endpoint: http\nlevels: [{input_tokens: 5}]", "levels.0.input_tokens: would do nothing"),
        (
            "endpoint: http\nrequest: {raw: '{{ row.a }}'}\nmix: [{name: x}]",
            "needs rows: give data in each part of the mix, as in mix.0",
        ),
    ],
)  # fmt: skip
def test_a_fault_has_its_place_and_its_mend(tmp_path: Path, text: str, fault: str) -> None:
    assert fault in faults(tmp_path, text)


def test_a_flag_that_needs_a_template_says_so(tmp_path: Path) -> None:
    assert "--body: is of the endpoint http" in faults(tmp_path, "endpoint: chat", body="x")
    assert "--method: expected 'GET', 'POST'" in faults(tmp_path, "endpoint: http", method="HEAD")


def test_a_body_on_the_command_line_takes_the_place_of_the_file_s(tmp_path: Path) -> None:
    text = "endpoint: http\nrequest: {path: /a, json: {a: 1}, type: x/y}"
    found = loaded(tmp_path, text, body="{{ prompt }}", method="put")
    assert found.request == RequestForm("PUT", "/a", raw="{{ prompt }}")


@pytest.mark.parametrize(
    ("text", "body"),
    [
        ('{"a": {{ max_tokens }}, "b": "x {{ prompt }}"}', ("json", {"a": "{{ max_tokens }}", "b": "x {{ prompt }}"})),
        ('["{{ prompt }}"]', ("json", ["{{ prompt }}"])),
        ('{"a": "\\"{{ prompt }}\\""}', ("json", {"a": '"{{ prompt }}"'})),
        ("{{ prompt }}", ("raw", "{{ prompt }}")),
        ("5", ("raw", "5")),
        ("{a: 1}", ("raw", "{a: 1}")),
        ("", ("raw", "")),
    ],
)
def test_a_body_is_json_if_it_can_be(text: str, body: tuple[str, Any]) -> None:
    assert body_of(text, "--body") == body


def test_a_file_with_blanks_is_a_text_and_any_other_is_sent_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "q"
    for data, body in (
        (b'{"a": "{{ prompt }}"}', ("json", {"a": "{{ prompt }}"})),
        (b"q={{ prompt }}", ("raw", "q={{ prompt }}")),
        (b'{"a": 1}', ("file", str(path))),
        (b"\xff{{ prompt }}", ("file", str(path))),
    ):
        path.write_bytes(data)
        assert body_of(f"@{path}", "--body") == body
    path.write_bytes(b"{{ prompt }}" + b"x" * 40_000)
    with pytest.raises(ScenarioError, match="larger than 32 KiB"):
        body_of(f"@{path}", "--body")
    path.write_bytes(b"{{ promt }}")
    with pytest.raises(ScenarioError, match=re.escape("there is no {{ promt }}")):
        body_of(f"@{path}", "--body")
    with pytest.raises(ScenarioError, match=r"cannot read .*none: No such file"):
        body_of(f"@{tmp_path / 'none'}", "--body")
