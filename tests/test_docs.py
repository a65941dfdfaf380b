"""What the README, the docs and the help say is what the code does."""

import re
import shlex
from collections.abc import Sequence
from pathlib import Path

import click
import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from loadtest import errors, scenario
from loadtest.cli import main
from loadtest.headings import HEADINGS

ROOT = Path(__file__).parent.parent
DOCS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]


def commands(group: click.Group, *names: str) -> dict[tuple[str, ...], click.Command]:
    """All commands of a group and of the groups in it, by their names."""
    found: dict[tuple[str, ...], click.Command] = {}
    for name in sorted(group.list_commands(click.Context(group))):
        command = group.get_command(click.Context(group), name)
        assert command is not None
        found[*names, name] = command
        if isinstance(command, click.Group):
            found |= commands(command, *names, name)
    return found


COMMANDS = commands(main)


def command(words: Sequence[str]) -> click.Command:
    """The command that a line calls."""
    depth = max((n for n in range(1, len(words) + 1) if tuple(words[:n]) in COMMANDS), default=0)
    assert depth, f"no command {words[0]}"
    return COMMANDS[tuple(words[:depth])]


def said() -> list[tuple[str, str]]:
    """Each loadtest command line in the docs and in the help texts, with where it stands."""
    texts = {path.name: path.read_text("utf-8") for path in DOCS}
    texts |= {f"{' '.join(names)} --help": found.help or "" for names, found in COMMANDS.items()} | {
        "--help": main.help or ""
    }
    lines = []
    for where, text in texts.items():
        for line in text.splitlines():
            match = re.match(r"(?:\s{4,}|\s*\$ )?(?:LOADTEST_\w+=\S+ )*((?:\.venv/bin/)?loadtest [a-z].*)", line)
            if match and (line.startswith((" ", "$")) or where.endswith("--help")):
                lines.append((where, re.sub(r"\s{2,}(#|[A-Za-z]).*$", "", match[1])))
    return lines


@pytest.mark.parametrize(("where", "line"), said(), ids=lambda value: value[:60])
def test_every_command_line_in_the_docs_is_one(where: str, line: str) -> None:
    words = shlex.split(line.partition(" | ")[0], comments=True)[1:]
    flags = {flag for parameter in command(words).params for flag in (*parameter.opts, *parameter.secondary_opts)}
    for word in words[1:]:
        if word.startswith("-") and word != "-":
            assert word.partition("=")[0] in flags | {"--help"}, f"{where}: {line}"


@pytest.mark.parametrize("path", DOCS, ids=lambda path: path.name)
def test_links_within_the_project_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", path.read_text("utf-8")):
        assert (path.parent / target).exists(), target


def test_the_readme_names_every_preset_and_every_exit_code() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    for preset in scenario.presets():
        assert f"`{preset.name}`" in text, preset.name
    for code in (errors.EXIT_OK, 1, 2, 3, errors.EXIT_INVALID, 99, errors.EXIT_INTERRUPTED):
        assert re.search(rf"\b{code}\b", text), code


def test_the_two_commands_for_a_fresh_machine_are_what_ci_runs() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    ci = (ROOT / ".ci" / "run").read_text("utf-8")
    assert ".venv/bin/loadtest run" in text
    assert ".venv/bin/loadtest run" in ci
    assert ".venv/bin/python -m pytest" in text
    assert ci.rstrip().endswith(".venv/bin/python -m pytest")


@pytest.mark.parametrize("what", ["set up", "test", "lint", "bench", "docs"])
def test_contributing_names_one_command_for_each_thing(what: str) -> None:
    assert re.search(rf"^\| {what} \| `.+` ", (ROOT / "CONTRIBUTING.md").read_text("utf-8"), re.MULTILINE)


@pytest.mark.parametrize("name", COMMANDS, ids=" ".join)
def test_each_command_is_explained_with_three_examples_that_parse(name: tuple[str, ...]) -> None:
    found = re.findall(r"^ *loadtest (.*)$", command(name).help or "", re.MULTILINE)
    assert len(found) >= 3
    for line in found:
        words = shlex.split(re.split(r" [|>] ", line)[0])
        depth = max(n for n in range(1, len(words) + 1) if tuple(words[:n]) in COMMANDS)
        # some name a file or folder that has to be there
        here = ["." if word.startswith("results/") else __file__ if word.endswith(".gguf") else word for word in words]
        assert command(words).make_context(" ".join(words[:depth]), here[depth:]), line


@pytest.mark.parametrize("name", [(), *COMMANDS], ids=" ".join)
def test_help_fits_110_columns(name: tuple[str, ...]) -> None:
    shown = CliRunner().invoke(main, [*name, "--help"], env={"COLUMNS": "140"})
    assert shown.exit_code == 0
    assert max(map(len, shown.output.splitlines())) <= 110


def test_each_option_of_a_long_help_stands_below_a_heading_once() -> None:
    named = [name for names in HEADINGS.values() for name in names]
    assert len(named) == len(set(named))
    options = {each.name: each for found in COMMANDS.values() for each in found.params} | {"help": None}
    assert set(named) <= set(options)
    shown = CliRunner().invoke(main, ["run", "--help"], env={"COLUMNS": "140"}).output
    for flag in {max(each.opts, key=len) for each in command(["run"]).params if isinstance(each, click.Option)}:
        assert len(re.findall(rf"^  (?:-\w, )?{flag}(?: |$)", shown, re.MULTILINE)) == 1, flag


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        (["run", "-s", "soa"], "soak"),
        (["run", "--endpoint", "anth"], "anthropic"),
        (["run", "--scheduler", "none,dy"], "none,dynamic"),
        (["capacity", "--serve-model", "ti"], "tiny"),
        (["scenarios", "copy", "shared"], "shared-prefix"),
        (["mod"], "model"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else value,
)
def test_a_shell_completes_names_as_well_as_flags(typed: list[str], offered: str) -> None:
    found = ShellComplete(main, {}, "loadtest", "_LOADTEST_COMPLETE").get_completions(typed[:-1], typed[-1])
    assert [each.value for each in found] == [offered]


@pytest.mark.parametrize("name", COMMANDS, ids=" ".join)
def test_every_option_says_what_it_is(name: tuple[str, ...]) -> None:
    for parameter in command(name).params:
        if isinstance(parameter, click.Option) and not parameter.hidden:
            assert parameter.help, parameter.name


def test_every_error_kind_of_the_metrics_is_one_the_code_knows() -> None:
    text = (ROOT / "docs" / "metrics.md").read_text("utf-8")
    outcome = text[text.index("## Outcome of a request") :]
    kinds = re.findall(r"← ([a-z_, ]+)", outcome[: outcome.index("##", 5)])
    code = "".join(
        path.read_text("utf-8") for room in ("wire", "endpoints") for path in (ROOT / "loadtest" / room).glob("*.py")
    )
    for kind in {kind.strip() for group in kinds for kind in group.split(",")} - {"", "check_failed"}:
        assert f'"{kind}"' in code, kind
