"""A wrong answer that came fast is a failure, and says which expectation it did not meet."""

import json
import re
import textwrap
from collections.abc import Iterable
from pathlib import Path

import pytest

from loadtest.endpoints.catalog import speak
from loadtest.endpoints.checks import Answered, Checks, validator
from loadtest.endpoints.dialect import Settings
from loadtest.endpoints.pattern import Pattern, RequestForm, ResponseForm
from loadtest.endpoints.reading import Reading
from loadtest.errors import ScenarioError
from loadtest.level import Level
from loadtest.plan import levels
from loadtest.records import Record
from loadtest.scenario import load
from loadtest.scenario.model import Override
from loadtest.schedule import Load
from loadtest.workload.distribution import Distribution
from loadtest.workload.lengths import Length
from loadtest.workload.model import Check, Conversation, Probe, Workload
from loadtest.workload.tokens import Tokens
from tests.endpoints.cutting import counted, read
from tests.engine.playing import level, play
from tests.workload.vocabularies import byte_level

CHAT = Settings("chat", "m")
HTTP = Settings("http", "", stream=False, pattern=Pattern(RequestForm(), ResponseForm()))
SCHEMA = {"type": "object", "required": ["label"], "properties": {"n": {"type": "integer", "maximum": 9}}}


def streamed(*texts: str, thought: str = "", finish: str | None = "stop") -> Reading:
    """An answer of a chat that came in such pieces."""
    events = [{"choices": [{"delta": {"reasoning_content": thought}}]}] if thought else []
    events += [{"choices": [{"delta": {"content": text}}]} for text in texts]
    events.append({"choices": [{"delta": {}, "finish_reason": finish}]})
    body = b"".join(b"data: %b\n\n" % json.dumps(event).encode() for event in events) + b"data: [DONE]\n\n"
    return read(speak(CHAT), counted(body, "text/event-stream"))


def whole(value: object, kind: str = "application/json") -> Reading:
    """An answer of some API in one piece."""
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    return read(speak(HTTP), counted(body, kind))


def failed(check: Check, reading: Reading, tokens: int | None = None, asked: int | None = None) -> str | None:
    assert reading.outcome == "ok"
    return Checks([check]).failed(Answered(reading, tokens, asked))


LABELLED = {"label": "spam", "n": 3, "items": [{"ok": True}, {"ok": 1}], "none": None}


@pytest.mark.parametrize(
    ("check", "holds"),
    [
        (Check(path="$.label", of="body"), True),
        (Check(path="$.nothing", of="body"), False),
        (Check(path="$.none", of="body"), True),
        (Check(path="$.label", of="body", exists=False), False),
        (Check(path="$.nothing", of="body", exists=False), True),
        (Check(path="$.label", of="body", among=('"ham"', '"spam"')), True),
        (Check(path="$.label", of="body", among=('"ham"',)), False),
        (Check(path="$.n", of="body", among=("3.0",)), True),
        (Check(path="$.none", of="body", among=("null",)), True),
        (Check(path="$.items[0].ok", of="body", among=("true",)), True),
        (Check(path="$.items[*].ok", of="body", among=("true",)), False),  # 1 is not true
        (Check(path="$.items[1]", of="body", among=('{"ok":true}',)), False),
        (Check(status=(200, 201)), True),
        (Check(status=(201,)), False),
        (Check(matches='"label": "s', of="body"), True),
        (Check(matches="^spam", of="body"), False),
        (Check(lacks="error", of="body"), True),
        (Check(lacks="sp.m", of="body"), False),
        (Check(schema=json.dumps(SCHEMA), of="body"), True),
        (Check(schema='{"required": ["x"]}', of="body"), False),
        (Check(not_html=True), True),
    ],
    ids=str,
)
def test_a_whole_answer(check: Check, holds: bool) -> None:
    assert (failed(check, whole(LABELLED)) is None) is holds


@pytest.mark.parametrize(
    ("check", "words"),
    [
        (Check(name="label", path="$.label", of="body", among=('"ham"', '"eggs"')),
         "label: expected $.label \"ham\" or \"eggs\", found 'spam'"),
        (Check(path="$.x", of="body"), "check 1: expected $.x to be there, found nothing there"),
        (Check(path="$.none", of="body", exists=False), "check 1: expected $.none not to be there, found null"),
        (Check(schema=json.dumps({**SCHEMA, "properties": {"n": {"maximum": 2}}}), of="body"),
         "check 1: expected body by its JSON Schema, found $.n: 3 is greater than the maximum of 2"),
        (Check(status=(201, 202)), "check 1: expected status 201 or 202, found 200"),
        (Check(lacks="sp.m", of="body"), "check 1: expected body without sp.m, found 'spam'"),
    ],
)  # fmt: skip
def test_a_failure_names_the_check_what_was_expected_and_what_was_found(check: Check, words: str) -> None:
    assert failed(check, whole(LABELLED)) == words


@pytest.mark.parametrize(
    ("check", "holds"),
    [
        (Check(matches="^42$"), True),
        (Check(matches="Hm"), False),  # that is reasoning, and no part of the text
        (Check(path="$", among=("42",)), True),
        (Check(schema='{"type": "integer"}'), True),
        (Check(schema='{"type": "string"}'), False),
        (Check(matches="42", of="body"), False),  # a stream has none
        (Check(path="$", of="body"), False),
        (Check(finish_reason=("length", "stop")), True),
        (Check(finish_reason=("length",)), False),
        (Check(not_html=True), True),
    ],
    ids=str,
)
def test_a_streamed_answer_is_looked_at_as_its_text(check: Check, holds: bool) -> None:
    assert (failed(check, streamed("4", "2", thought="Hm")) is None) is holds


def test_text_that_is_no_json_is_said_to_be_none() -> None:
    found = failed(Check(name="form", path="$.a"), streamed("Sure! {", "\nfoo"))
    assert found == "form: expected $.a to be there, found text that is not JSON: 'Sure! {\\nfoo'"


@pytest.mark.parametrize(
    ("wanted", "unknown", "tokens", "asked", "found"),
    [
        ((8, 8), "fail", 8, None, None),
        ((8, 8), "fail", 9, None, "check 1: expected 8 output tokens, found 9"),
        ((4, None), "fail", 3, None, "check 1: expected at least 4 output tokens, found 3"),
        ((None, 4), "fail", 5, None, "check 1: expected at most 4 output tokens, found 5"),
        ((2, 4), "fail", 3, None, None),
        ((2, 4), "fail", None, None, "check 1: expected at least 2 and at most 4 output tokens, found a count that is "
         "not known"),
        ((2, 4), "pass", None, None, None),
        ("asked", "fail", 8, 8, None),
        ("asked", "fail", 7, 8, "check 1: expected as many output tokens as were asked for, found 7 instead of 8"),
        ("asked", "fail", 7, None, "check 1: expected as many output tokens as were asked for, found a count that is "
         "not known"),
        ("asked", "pass", 7, None, None),
    ],
)  # fmt: skip
def test_tokens_are_counted_and_an_unknown_count_is_no_pass_unless_the_user_says_so(
    wanted: object, unknown: object, tokens: int | None, asked: int | None, found: str | None
) -> None:
    check = Check(output_tokens=wanted, unknown=unknown)  # type: ignore[arg-type]
    assert failed(check, streamed("a"), tokens, asked) == found


@pytest.mark.parametrize(
    "page",
    [b"<!DOCTYPE html><title>Sign in</title>", b"\n<html>", b"<!-- x -->\n<HEAD>", b'<?xml version="1.0"?><html>'],
)
def test_a_page_in_place_of_an_answer(page: bytes) -> None:
    assert (failed(Check(not_html=True), whole(page)) or "").startswith("check 1: expected no HTML, found '")
    assert failed(Check(not_html=True), whole({"text": page.decode()})) is None
    assert failed(Check(not_html=True), whole(b"plain", "text/html; charset=utf-8")) is not None


def test_what_is_said_of_a_failure_is_short_and_on_one_line() -> None:
    long = Check(name="n" * 90, matches="x" * 500)
    words = failed(long, streamed("line\n" * 500))
    assert words is not None
    assert len(words) <= 200
    assert words.isprintable()


def test_the_first_check_that_does_not_hold_is_told() -> None:
    checks = Checks([Check(matches="a"), Check(matches="b"), Check(matches="c")])
    assert (checks.failed(Answered(streamed("ac"), None, None)) or "").startswith("check 2: expected text matching b")


def test_a_schema_fetches_nothing() -> None:
    with pytest.raises(ValueError, match="nothing is fetched"):
        validator('{"$ref": "http://127.0.0.1:1/schema.json"}')


# Through the engine -------------------------------------------------------------------------------------------

CLOSED = Load("closed", concurrency=2)


def made(*checks: Check, **given: object) -> Workload:
    return Workload(Length(20, 20), Length(8, 8), checks=checks, **given)  # type: ignore[arg-type]


def outcomes(records: Iterable[Record]) -> list[tuple[str, str | None]]:
    return [(record.outcome, record.error and record.error.kind) for record in records]


def test_an_answer_that_fails_a_check_is_a_failed_request(tmp_path: Path) -> None:
    asked = level(CLOSED, made(Check(name="count", matches="^answer to 2")), requests=4)
    played = play(asked, tmp_path)
    assert outcomes(played.load) == [("stream_error", "check_failed")] * 4
    error = played.load[0].error
    assert error is not None
    assert error.status == 200
    assert error.message == "count: expected text matching ^answer to 2, found 'answer to 1'"
    assert played.load[0].first_token_ms is not None  # as far as it got


def test_what_was_found_is_redacted(tmp_path: Path) -> None:
    asked = level(CLOSED, made(Check(lacks="my s.+")), requests=2)
    played = play(asked, tmp_path, lambda _: ("my sesame-open", 0.0), secrets=("sesame-open",))
    error = played.load[0].error
    assert error is not None
    assert "sesame" not in error.message.partition("found")[2]


def test_each_part_of_a_mix_has_its_own_checks(tmp_path: Path) -> None:
    never, always = made(Check(lacks="answer"), name="never"), made(Check(matches="answer"), name="always")
    played = play(level(CLOSED, never, always, requests=20), tmp_path)
    assert {(r.workload, r.outcome) for r in played.load} == {(0, "stream_error"), (1, "ok")}


def test_a_turn_that_fails_a_check_ends_its_session(tmp_path: Path) -> None:
    talk = Conversation(Length(3, 3), Distribution("fixed", (0.0,)))
    asked = level(CLOSED, made(Check(matches="to 1$"), conversation=talk), requests=6)
    played = play(asked, tmp_path)
    assert {(r.turn, r.outcome) for r in played.load} == {(1, "ok"), (2, "stream_error")}


def test_probes_beside_the_load_are_not_checked(tmp_path: Path) -> None:
    probe = Probe(100.0, Length(5, 5), Length(1, 1))
    asked = level(CLOSED, made(Check(lacks="answer")), duration_s=0.2, probe=probe)
    played = play(asked, tmp_path)
    probes = [record for record in played.records if record.probe]
    assert probes
    assert {record.outcome for record in probes} == {"ok"}


# Tokens of the answer -----------------------------------------------------------------------------------------


def tokens(folder: Path) -> Tokens:
    path = folder / "tokenizer.json"
    byte_level().save(str(path))
    return Tokens("tokenizer", path=str(path))


def test_without_usage_the_users_tokenizer_counts(tmp_path: Path) -> None:
    played = play(level(CLOSED, made(Check(output_tokens=(4, 4))), requests=2), tmp_path, tokens=tokens(tmp_path))
    found = {(r.outcome, r.output_tokens, r.token_source, r.input_tokens) for r in played.load}
    assert found == {("ok", 4, "tokenizer", 20)}


def test_without_a_tokenizer_what_is_unknown_stays_so(tmp_path: Path) -> None:
    played = play(level(CLOSED, made(), requests=2), tmp_path)
    assert {(r.output_tokens, r.token_source, r.input_tokens) for r in played.load} == {(None, None, None)}


# In a scenario ------------------------------------------------------------------------------------------------


def scenario(folder: Path, text: str) -> tuple[Level, str]:
    """The first level of a scenario, and its resolved text."""
    path = folder / "s.yaml"
    path.write_text(text)
    resolved = load(str(path), {"seed": Override("1", "--seed")})
    return levels(resolved.scenario, bundled=False)[0], resolved.text


ALL = """\
endpoint: chat
stream: false
checks:
  - {name: a, status: [200, 201]}
  - {path: "$.choices[0].index", equals: 0, of: body}
  - {path: $.label, in: [spam, 2.0, null]}
  - {path: $.error, exists: false}
  - {path: $.label}
  - {matches: "^a"}
  - {lacks: "b: 'c'"}
  - {schema: ./schema.json}
  - {schema: {type: object, properties: {n: {minimum: 1.0}}}, of: body}
  - {output_tokens: 8, unknown: pass}
  - {output_tokens: [1, null]}
  - {output_tokens: asked}
  - {finish_reason: stop}
  - {not_html: true}
"""


def test_every_check_of_a_scenario_comes_back_from_its_resolved_text(tmp_path: Path) -> None:
    (tmp_path / "schema.json").write_text('{"type": "object"}')
    first, text = scenario(tmp_path, ALL)
    (workload,) = first.workloads
    assert len(workload.checks) == 14
    assert workload.checks[0] == Check(name="a", status=(200, 201))
    assert workload.checks[1] == Check(path="$.choices[0].index", among=("0",), of="body")
    assert workload.checks[2].among == ('"spam"', "2.0", "null")
    assert workload.checks[7].schema == '{"type":"object"}'
    assert workload.checks[9] == Check(output_tokens=(8, 8), unknown="pass")
    (tmp_path / "schema.json").unlink()
    again, _ = scenario(tmp_path, text)
    assert again == first


def test_the_examples_of_the_documentation_are_scenarios(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "checks.md").read_text("utf-8")
    blocks = [textwrap.dedent(block) for block in re.findall(r"(?:^ {4}.*\n)+", page, re.MULTILINE)]
    (tmp_path / "answer.schema.json").write_text('{"type": "object"}')
    found = [len(scenario(tmp_path, block)[0].workloads[0].checks) for block in blocks if "checks:" in block]
    assert found == [5, 4]


def test_checks_of_the_whole_scenario_are_of_every_part_of_a_mix(tmp_path: Path) -> None:
    text = "checks: [{matches: a}]\nmix:\n  - {name: one, checks: [{lacks: b}]}\n  - {name: two}\n"
    first, resolved = scenario(tmp_path, text)
    both = Check(matches="a")
    assert [workload.checks for workload in first.workloads] == [(both, Check(lacks="b")), (both,)]
    assert scenario(tmp_path, resolved)[0] == first


def test_what_looks_at_nothing_in_particular_looks_at_the_body_where_there_is_no_text(tmp_path: Path) -> None:
    first, _ = scenario(tmp_path, "endpoint: embeddings\nchecks: [{path: '$.data'}]\n")
    assert first.workloads[0].checks[0].of == "body"


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("checks: [{name: a}]", "checks.0: says nothing to hold: give one of status, path, "),
        ("checks: [{matches: a, lacks: b}]", "checks.0.lacks: excludes matches: write it as a check of its own"),
        ("checks: [{matches: '('}]", "checks.0.matches: expected a regular expression: missing )"),
        ("checks: [{equals: 1, matches: a}]", "checks.0.equals: needs path: where in the answer"),
        ("checks: [{path: $.a, equals: 1, exists: true}]", "checks.0.exists: excludes equals; keep one"),
        ("checks: [{path: '$[', equals: 1}]", "checks.0.path: expected a JSON path such as"),
        ("checks: [{schema: {type: strin}}]", 'checks.0.schema: expected a JSON Schema: "strin" is not valid'),
        ("checks: [{schema: ./none.json}]", "checks.0.schema: no such file:"),
        ("checks: [{status: 200, of: body}]", "checks.0.of: applies to path, matches, lacks, schema only"),
        ("checks: [{status: 200, unknown: pass}]", "checks.0.unknown: applies to output_tokens only: remove it"),
        ("checks: [{output_tokens: many}]", "checks.0.output_tokens: expected [least, most] tokens, such as"),
        ("checks: [{not_html: false}]", "checks.0.not_html: "),
        ("endpoint: chat\nchecks: [{path: $.a, of: body}]", "checks.0.of: does not apply: answers are streamed"),
        ("endpoint: kserve\nchecks: [{path: $.a, of: text}]", "checks.0.of: does not apply: the endpoint writes no"),
        (
            "endpoint: kserve\nchecks: [{output_tokens: 1}]",
            "checks.0.output_tokens: does not apply: the endpoint kserv",
        ),
        ("mix: [{name: a, checks: [{regex: b}]}]", "mix.0.checks.0.regex: unknown key"),
    ],
)
def test_a_check_that_cannot_be_meant_is_refused(text: str, fault: str, tmp_path: Path) -> None:
    with pytest.raises(ScenarioError) as caught:
        scenario(tmp_path, text)
    assert fault in str(caught.value)
