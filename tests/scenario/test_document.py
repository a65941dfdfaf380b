"""What a word in a file means."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.errors import ScenarioError
from loadtest.scenario.document import parse, scalar


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1), ("-3", -3), ("010", 10), ("1:30", "1:30"), ("1_000", "1_000"), ("0x10", "0x10"),
        ("1.5", 1.5), (".5", 0.5), ("5.", 5.0), ("1e3", 1000.0), ("9" * 19, 1e19), (".inf", ".inf"), (".", "."),
        ("true", True), ("FALSE", False), ("yes", "yes"), ("on", "on"), ("", None), ("~", None), ("null", None),
        ("none", "none"), ("2026-01-01", "2026-01-01"), ("٣", "٣"),
    ],
)  # fmt: skip
def test_a_plain_word_is_read_by_yaml_1_2(text: str, value: object) -> None:
    assert scalar(text) == value
    assert type(scalar(text)) is type(value)


def test_quotes_make_text() -> None:
    data = parse("a: '1'\nb: \"true\"\nc: |\n  null\n", "s.yaml").data
    assert data == {"a": "1", "b": "true", "c": "null\n"}


def test_an_alias_stands_for_its_anchor() -> None:
    document = parse("a: &x [1, 2]\nb: *x\n", "s.yaml")
    assert document.data == {"a": [1, 2], "b": [1, 2]}
    assert document.data["a"] is not document.data["b"]


def test_places_count_from_one() -> None:
    document = parse("load:\n  rate: [1, 2]\n", "s.yaml")
    assert str(document.keys["load", "rate"]) == "s.yaml:2:3"
    assert str(document.values["load", "rate", 1]) == "s.yaml:2:13"
    assert document.values["load", "rate", 1].source == "s.yaml:2"


@given(st.text(alphabet=st.characters(codec="utf-8"), max_size=60) | st.text("{}[]:,-#&*!|>'\"%@ \n\tax1", max_size=60))
def test_no_text_whatever_ends_in_another_error(text: str) -> None:
    try:
        parse(text, "s.yaml")
    except ScenarioError as error:
        message = str(error)
    else:
        message = "s.yaml: good"
    assert message.startswith("s.yaml:")
