"""Every way to fail has its place in the docs, and what the docs quote is what the code says."""

import ast
import functools
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from loadtest import errors
from loadtest.cli import main

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "troubleshooting.md").read_text("utf-8")
ANCHORS = [line.lower().replace(" ", "-") for line in re.findall(r"^#+ (.+)$", PAGE, re.MULTILINE)]


def kinds(kind: type[errors.LoadtestError] = errors.LoadtestError) -> list[type[errors.LoadtestError]]:
    return [kind, *(each for child in kind.__subclasses__() for each in kinds(child))]


@functools.cache
def words() -> list[str]:
    """Every text in the code, those of several lines joined, f-strings in the pieces between their values."""
    files = [path for room in ("loadtest", "servers") for path in (ROOT / room).rglob("*.py")]
    return [
        node.value
        for path in files
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]


@pytest.mark.parametrize("kind", kinds(), ids=lambda kind: kind.__name__)
def test_the_pointer_of_each_error_leads_to_a_section_that_names_it(kind: type[errors.LoadtestError]) -> None:
    error = errors.Stopped("x", 1) if kind is errors.Stopped else kind("x")
    assert error.pointer == f" [docs: troubleshooting#{kind.topic}]"
    assert kind.topic in ANCHORS
    if kind is not errors.LoadtestError:
        assert "topic" in vars(kind)
        assert f"`{kind.__name__}`" in PAGE


def test_the_command_puts_the_pointer_behind_its_message() -> None:
    told = CliRunner().invoke(main, ["scenarios", "show", "nope"])
    assert told.exit_code == 2
    assert told.stderr.startswith("error: no scenario 'nope'")
    assert told.stderr.endswith(" [docs: troubleshooting#scenario]\n")


def test_each_exit_code_has_its_section() -> None:
    for code in (0, 1, 2, 3, 97, 98, 99, 130):
        assert f"exit-code-{code}" in ANCHORS


@pytest.mark.parametrize("message", re.findall(r"^\| `(.+?)` \|", PAGE, re.MULTILINE))
def test_a_message_that_is_quoted_is_one_that_the_code_says(message: str) -> None:
    pieces = [piece for piece in (each.strip(" ;:,") for each in message.split("…")) if len(piece) > 2]
    assert pieces
    for piece in pieces:
        assert any(piece in text for text in words()), piece
