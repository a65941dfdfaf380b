"""What is made out of the code is as the code, what is named is there, and the site needs nobody else."""

import importlib.util
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from loadtest import scenario

ROOT = Path(__file__).parent.parent.parent
DOCS = ROOT / "docs"


def test_the_scenario_reference_is_that_of_the_schema() -> None:
    made = runpy.run_path(str(DOCS / "reference.py"))["page"](scenario.schema())
    assert (DOCS / "scenario-reference.md").read_text("utf-8") == made, "run python docs/reference.py"


def test_what_the_architecture_names_is_there() -> None:
    named = re.findall(
        r"`((?:loadtest|servers|bench|tests|docs)/[\w/.]*)`", (DOCS / "architecture.md").read_text("utf-8")
    )
    assert len(named) > 20
    for path in named:
        assert (ROOT / path).exists(), path


def test_an_anchor_that_a_page_links_to_is_there() -> None:
    headings = {
        path.name: {
            re.sub(r"[^\w -]", "", line.lower()).strip().replace(" ", "-")
            for line in re.findall(r"^#+ (.+)$", path.read_text("utf-8"), re.MULTILINE)
        }
        for path in DOCS.glob("*.md")
    }
    for path in (ROOT / "README.md", *DOCS.glob("*.md")):
        for page, anchor in re.findall(r"\]\((?:docs/)?([\w-]+\.md)?#([\w-]+)\)", path.read_text("utf-8")):
            assert anchor in headings[page or path.name], f"{path.name}: {page}#{anchor}"


@pytest.mark.skipif(importlib.util.find_spec("mkdocs") is None, reason="the docs extra is not installed")
def test_the_site_is_built_without_a_warning_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", tmp_path / "site"],
        cwd=ROOT, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, timeout=120,
        check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    pages = list((tmp_path / "site").rglob("*.html"))
    assert len(pages) > 20
    for page in pages:
        loaded = re.findall(r"<(?:script|link|img|iframe)\b[^>]*?(?:src|href)=\"?(https?:)?//", page.read_text("utf-8"))
        assert not loaded, page.name
    for sheet in (tmp_path / "site").rglob("*.css"):
        assert not re.search(r"url\(\"?(https?:)?//|@import", sheet.read_text("utf-8")), sheet.name
