"""A dialect of a user's own package: the documented one, built, installed and played; and what is wrong with others."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import Command
from tests.e2e.test_template import service, started

__all__ = ["service", "started"]

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "docs" / "examples" / "plugin"
HEAD = "from loadtest.endpoints.dialect import Dialect\nclass Teller(Dialect):\n"
BROKEN = {
    "raises": "import a_module_that_is_not_there",
    "other": "Teller = 7",
    "nothing": "",
    "pathless": HEAD + "    def body(self, ask): ...\n    def event(self, answer, data, stamp): ...",
    "failing": HEAD + "    path = '/tell'\n    def body(self, ask): return {}['x']\n    def event(self, *_): ...",
    "abstract": HEAD + "    path = '/'",
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The documented package, built and installed into a folder, without a network."""
    folder = tmp_path_factory.mktemp("plugin")
    package = shutil.copytree(EXAMPLE, folder / "package")  # the build may leave traces in it
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-build-isolation", "--no-deps", "--no-index"]
    subprocess.run(
        [*command, "--disable-pip-version-check", "--target", str(folder / "site"), str(package)],
        check=True, env={key: value for key, value in os.environ.items() if not key.startswith("PIP_")},
    )  # fmt: skip
    return folder / "site"


def test_the_documented_package_is_the_one_in_the_docs() -> None:
    page = (ROOT / "docs" / "plugins.md").read_text("utf-8")
    for name in ("loadtest_teller.py", "pyproject.toml"):
        assert (EXAMPLE / name).read_text("utf-8") in page


def test_the_documented_package_is_installed_and_played(
    loadtest: Command, service: str, site: Path, tmp_path: Path
) -> None:
    path = str(site)
    done = loadtest(
        "run", service, "--endpoint", "teller", "--model", "any", "-n", "10", "-c", "2", "--output-tokens", "4",
        "-o", "out", PYTHONPATH=path,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((tmp_path / "out" / "result.json").read_text("utf-8"))
    (level,) = result["levels"]
    assert (result["conditions"]["endpoint"]["kind"], level["counts"]["ok"]) == ("teller", 10)
    assert level["latency"]["ttft_ms"]["ok"]["n"] == 10
    assert level["workload"]["output_tokens"]["observed"]["mean"] == 4
    assert "teller" in loadtest("run", service, "--endpoint", "tellr", PYTHONPATH=path).stderr


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("raises", "loadtest_teller:Teller cannot be loaded (ModuleNotFoundError"),
        ("other", "7 is not a subclass of loadtest.endpoints.dialect.Dialect"),
        ("nothing", "loadtest_teller:Teller cannot be loaded (AttributeError"),
        ("abstract", "Teller has no body and event; write it"),
        ("pathless", "Teller has no path; write it"),
        ("failing", "Teller.body fails: KeyError('x'); mend its package"),
    ],
)
def test_a_broken_package_is_one_line(
    loadtest: Command, service: str, site: Path, tmp_path: Path, code: str, words: str
) -> None:
    shutil.copytree(site, tmp_path / "site")
    (tmp_path / "site" / "loadtest_teller.py").write_text(BROKEN[code])
    path = str(tmp_path / "site")
    done = loadtest("run", service, "--endpoint", "teller", "--model", "any", PYTHONPATH=path)
    assert done.returncode == 2
    line = done.stderr.splitlines()[-1]
    assert line.startswith("error: endpoint teller: ")
    assert "Traceback" not in done.stderr
    assert words in line


def test_a_broken_package_is_in_nobody_else_s_way(loadtest: Command, site: Path, tmp_path: Path) -> None:
    shutil.copytree(site, tmp_path / "site")
    (tmp_path / "site" / "loadtest_teller.py").write_text(BROKEN["raises"])
    flags = ("--endpoint", "chat", "--model", "any")
    done = loadtest("plan", "http://127.0.0.1:9", *flags, PYTHONPATH=str(tmp_path / "site"))
    assert done.returncode == 0, done.stderr
    assert "endpoint teller: loadtest_teller:Teller cannot be loaded" in done.stderr
