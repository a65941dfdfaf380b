"""Every recipe of the cookbook is run as it stands there, but for the three changes that the page itself tells."""

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent.parent
JUDGED = re.compile(r"^loadtest (compare|capacity)|--slo ")
VERDICTS = {0, 97, 98, 99}  # what so short a run on a busy machine may be found to be


class Recipe(NamedTuple):
    question: str
    files: dict[str, str]
    commands: list[str]


def recipes() -> list[Recipe]:
    text = (ROOT / "docs" / "cookbook.md").read_text("utf-8")
    found = []
    for section in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        files = dict(re.findall(r'^```\w+ title="(.+?)"\n(.*?)^```$', section, re.MULTILINE | re.DOTALL))
        found.append(
            Recipe(section.partition("\n")[0], files, re.findall(r"^    (loadtest .+)$", section, re.MULTILINE))
        )
    return found


@pytest.fixture(scope="module")
def started(environment: dict[str, str]) -> Iterator[Callable[..., str]]:
    """Starts a server of ours and returns the URL that it prints; all end with the page."""
    running: list[subprocess.Popen[str]] = []

    def start(*command: str) -> str:
        pipe = subprocess.PIPE
        process = subprocess.Popen([sys.executable, *command], env=environment, stdin=pipe, stdout=pipe, text=True)
        running.append(process)
        assert process.stdout is not None
        url = re.search(r"http://[\w.:]+", process.stdout.readline())
        assert url
        return url[0]

    yield start
    for process in running:
        with process:
            process.terminate()


@pytest.fixture(scope="module")
def urls(started: Callable[..., str]) -> dict[str, str]:
    fake = started("-m", "servers.fake", "--port", "0", "--ttft-ms", "5", "--itl-ms", "1")
    other = started(str(ROOT / "tests" / "e2e" / "anything.py"))
    return {"http://staging:8000/classify": f"{other}/classify"} | {
        f"http://{name}:8000": fake for name in ("staging", "old", "new")
    }


@pytest.fixture(scope="module")
def kitchen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which all recipes are cooked, since some take what others left."""
    return tmp_path_factory.mktemp("kitchen")


def shortened(text: str) -> str:
    text = re.sub(r"(?<= -d )\S+|(?<=duration: )\w+", "300ms", text)
    return re.sub(r"(?<=--budget )\S+", "3s", text)


def test_there_are_at_least_twenty_recipes_each_with_a_question_and_a_command() -> None:
    assert len(recipes()) >= 20
    for recipe in recipes():
        assert recipe.question.endswith("?")
        assert recipe.commands, recipe.question


@pytest.mark.e2e
@pytest.mark.parametrize("recipe", recipes(), ids=lambda recipe: recipe.question[:50])
def test_the_recipe_is_run(recipe: Recipe, kitchen: Path, urls: dict[str, str], environment: dict[str, str]) -> None:
    for name, text in recipe.files.items():
        (kitchen / name).write_text(shortened(text), "utf-8")
    loadtest = f"'{sys.executable}' -m loadtest "
    for line in recipe.commands:
        command = shortened(line)
        for said, url in urls.items():
            command = command.replace(said, url)
        command = command.partition(" | jq ")[0]
        done = subprocess.run(
            ["sh", "-c", loadtest + command.removeprefix("loadtest ")],
            cwd=kitchen, capture_output=True, text=True, timeout=120, check=False,
            env=environment | {"LOADTEST_WARMUP": "100ms", "LOADTEST_SERVE_MODEL": "tiny"},
        )  # fmt: skip
        assert done.returncode in (VERDICTS if JUDGED.search(line) else {0}), f"{line}\n{done.stderr}{done.stdout}"
        assert "Traceback" not in done.stderr
        for written in re.findall(r"(?:-o|--html|--png|--csv|--junit|--markdown|--live-json) (\S+)", command):
            assert (kitchen / written).exists(), written
