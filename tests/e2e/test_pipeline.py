"""What a pipeline takes from the real command; and the workflows of docs/ci.md, parsed, and played as they stand."""

import http.server
import os
import re
import shlex
import socket
import subprocess
import sys
import threading
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml

from loadtest import slo
from tests.conftest import Command
from tests.test_docs import COMMANDS

DOCS = Path(__file__).parents[2] / "docs" / "ci.md"


def workflows() -> tuple[dict[str, Any], dict[str, Any]]:
    """GitHub's and GitLab's job as the docs have them."""
    github, gitlab = (yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", DOCS.read_text(), re.DOTALL))
    return github["jobs"]["load-test"], gitlab["load test"]


GITHUB, GITLAB = workflows()
SCRIPTS = {
    "github": [step["run"] for step in GITHUB["steps"] if "run" in step],
    "gitlab": GITLAB["script"],
}


def cases(document: Path) -> list[tuple[str, list[str]]]:
    """The name of each case, with what is in it."""
    return [
        (test.get("name") or "", [child.tag for child in test])
        for test in ElementTree.parse(document).getroot().iter("testcase")
    ]


@pytest.mark.parametrize("service", SCRIPTS)
def test_the_documented_commands_are_what_the_tool_takes(service: str) -> None:
    lines = [line for script in SCRIPTS[service] for line in script.splitlines() if line.startswith("loadtest ")]
    assert [line.split()[1] for line in lines] == ["serve", "run"]
    for line in lines:
        words = shlex.split(line.partition(" > ")[0] if " serve " in line else line)
        flags = {flag for parameter in COMMANDS[(words[1],)].params for flag in parameter.opts}
        assert {word for word in words if re.match(r"--?[a-z]", word)} <= flags
        for flag, value in pairwise(words):
            if flag == "--slo":
                slo.parse(value)


def test_the_documented_workflows_keep_what_was_written() -> None:
    kept = next(step["with"]["path"].split() for step in GITHUB["steps"] if "upload-artifact" in step.get("uses", ""))
    assert {"results/", "junit.xml", "server.log"} <= set(kept)
    assert GITLAB["artifacts"]["reports"]["junit"] == "junit.xml"
    assert GITLAB["artifacts"]["when"] == "always"
    assert GITLAB["allow_failure"]["exit_codes"] == [98]
    for comment in (SCRIPTS["github"][-1], GITLAB["after_script"][0]):
        assert "comment.md" in comment
    for run in (SCRIPTS["github"][2], SCRIPTS["gitlab"][3]):
        assert "--junit junit.xml --markdown comment.md" in run


@pytest.mark.e2e
@pytest.mark.parametrize("service", SCRIPTS)
def test_the_documented_scripts_work_as_they_stand(service: str, environment: dict[str, str], tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    played = [script for script in SCRIPTS[service] if not script.startswith(("pip ", "gh "))]
    script = "\n".join(played).replace("8000", port).replace("-d 60s", "-n 20")
    assert len(played) == len(SCRIPTS[service]) - (2 if service == "github" else 1)
    summary = tmp_path / "summary.md"
    variables = (
        {"GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": str(summary)}
        if service == "github"
        else {"GITLAB_CI": "true"}
    )
    done = subprocess.run(
        ["bash", "-c", f"trap 'kill $(jobs -p)' EXIT\nset -e\n{script}"], cwd=tmp_path, capture_output=True, text=True,
        timeout=90, check=False,
        env={**environment, **variables, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"},
    )  # fmt: skip
    # Twenty requests prove nothing of a p99; and where others use this machine, the client may have been late.
    assert done.returncode in (97, 98), done.stdout + done.stderr
    outcome, element, sign = ("INVALID", "error", "⛔") if done.returncode == 97 else ("INCONCLUSIVE", "failure", "❔")
    assert cases(tmp_path / "junit.xml") == [
        ("20/s: p99(ttft) < 300ms", [element]), ("20/s: error_rate < 1%", [element]),
    ]  # fmt: skip
    comment = (tmp_path / "comment.md").read_text("utf-8")
    assert comment.startswith(f"### {sign} {outcome} · ")
    line = rf"::(warning|error) title={outcome} · 20/s%3A "
    if service == "gitlab":
        line = rf"\x1b\[3[13];1m{outcome}\x1b\[0m 20/s: "
    assert len(re.findall(f"^{line}", done.stderr, re.MULTILINE)) == 2, done.stderr
    assert service == "gitlab" or summary.read_text("utf-8") == comment + "\n"


@pytest.mark.e2e
def test_a_run_that_cannot_begin_is_told_everywhere(loadtest: Command, tmp_path: Path) -> None:
    (tmp_path / "junit.xml").write_text("<testsuites/>")  # an earlier run's
    done = loadtest(
        "run", "http://127.0.0.1:9", "-n", "1", "--junit", "junit.xml", "--markdown", "comment.md",
        GITHUB_ACTIONS="true", GITHUB_STEP_SUMMARY="summary.md",
    )  # fmt: skip
    assert done.returncode == 1
    assert cases(tmp_path / "junit.xml") == [("the run", ["error"])]
    for name in ("comment.md", "summary.md"):
        assert "cannot reach http" in (tmp_path / name).read_text("utf-8")
    assert "::error title=ERROR · the run::cannot reach http://127.0.0.1:9" in done.stderr


@pytest.mark.e2e
def test_a_key_that_the_target_repeats_is_in_no_comment(loadtest: Command, tmp_path: Path) -> None:
    class Refusing(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(401, explain="the key sk-0123456789 is wrong")

        def log_message(self, format: str, *args: object) -> None:
            del format, args

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        done = loadtest(
            "run", f"http://127.0.0.1:{server.server_address[1]}", "-n", "1", "--api-key", "sk-0123456789",
            "--junit", "junit.xml", "--markdown", "comment.md", GITHUB_ACTIONS="true",
        )  # fmt: skip
        server.shutdown()
    said = [done.stderr, *((tmp_path / name).read_text("utf-8") for name in ("junit.xml", "comment.md"))]
    for text in said:
        assert "refuses us: 401" in text
        assert "sk-0123456789" not in text


@pytest.mark.e2e
def test_an_earlier_run_is_reported_as_it_was_and_stdout_is_for_json(
    loadtest: Command, tiny: str, tmp_path: Path
) -> None:
    done = loadtest("run", tiny, "-c", "2", "-n", "8", "-o", "out", "--junit", "out/junit.xml", "--markdown", "a.md")
    assert done.returncode == 0, done.stderr
    again = loadtest("report", "out", "--junit", "b.xml", "--markdown", "b.md", "--json", "-", GITLAB_CI="true")
    assert again.stdout.startswith("{")
    assert again.stdout.endswith("}\n")
    assert (tmp_path / "b.xml").read_text() == (tmp_path / "out" / "junit.xml").read_text()
    assert (tmp_path / "b.md").read_text() == (tmp_path / "a.md").read_text()
    assert cases(tmp_path / "b.xml") == [("c=2: requests", ["system-out"])]


@pytest.mark.e2e
def test_a_file_that_cannot_be_written_ends_it_before_the_first_request(
    loadtest: Command, tiny: str, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    for flag in ("--junit", "--markdown"):
        done = loadtest("run", tiny, "-n", "1", flag, "file/in/folder.xml")
        assert done.returncode == 2
        assert done.stderr.splitlines()[-1].startswith(f"error: {flag} file/in/folder.xml: Not a directory")
