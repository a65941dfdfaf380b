"""A path finds what the user meant, quickly for the plain ones, and never raises on an answer of another shape."""

import jsonpath_ng
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.endpoints.jsonpath import compiled, outline

VALUE = {"choices": [{"delta": {"content": "a"}}, {"delta": {"content": "b"}}], "a b": {"x-y": [1, 2, 3]}, "n": None}


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("$.choices[0].delta.content", ["a"]),
        ("choices[1].delta.content", ["b"]),
        ("$.choices[-1].delta.content", ["b"]),
        ("$['a b'].x-y[2]", [3]),
        ("$.n", [None]),
        ("$", [VALUE]),
        ("$.choices[*].delta.content", ["a", "b"]),
        ("$..content", ["a", "b"]),
        ("$.choices[2]", []),
        ("$.choices[-3]", []),
        ("$.choices.delta", []),
        ("$.choices[0][0]", []),
        ("$.n.x", []),
        ("$.absent", []),
    ],
)
def test_a_path_finds_what_is_there_and_no_more(path: str, found: list[object]) -> None:
    assert compiled(path)(VALUE) == found


@pytest.mark.parametrize("path", ["", "$.a[", "a..", "a b"])
def test_what_is_no_path_is_told_with_an_example(path: str) -> None:
    with pytest.raises(ValueError, match=r"expected a JSON path such as \$\.choices\[0\]\.text"):
        compiled(path)


# No texts: the library takes their characters for items, which here they are not.
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=10,
)


@given(JSON, st.lists(st.sampled_from([".a", ".b", ".c", "[0]", "[1]", "[-1]"]), max_size=4))
def test_a_plain_path_finds_what_the_library_finds(value: object, steps: list[str]) -> None:
    path = "$" + "".join(steps)
    assert compiled(path)(value) == [found.value for found in jsonpath_ng.parse(path).find(value)]


def test_an_outline_names_each_path_and_no_long_text() -> None:
    told = outline({"label": "x" * 50, "scores": [{"p": 0.5}, {"p": 0.1}], "odd key": None, "ok": True, "e": []})
    assert told.splitlines() == [
        "$.label: text 'xxxxxxxxxxxxxxxxxxxx…'",
        "$.scores[0].p: number 0.5",
        "$.scores[…]: 2 items in all",
        "$['odd key']: null",
        "$.ok: true",
        "$.e: an empty list",
    ]
    assert len(outline({str(key): key for key in range(100)}).splitlines()) == 10
