"""The files of docs/deploy: what a linter and an API server would refuse, without either."""

import ast
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from loadtest.cli import main

FOLDER = Path(__file__).parent.parent / "docs" / "deploy"
API = {"Service": "v1", "Deployment": "apps/v1", "Job": "batch/v1"}


def documents() -> list[dict[str, Any]]:
    return [each for path in sorted(FOLDER.glob("*.yaml")) for each in yaml.safe_load_all(path.read_text("utf-8"))]


def pods() -> list[dict[str, Any]]:
    return [each["spec"]["template"] for each in documents() if each["kind"] != "Service"]


def containers() -> list[dict[str, Any]]:
    return [container for pod in pods() for container in pod["spec"]["containers"]]


def flags_of(command: str) -> set[str]:
    told = subprocess.run(
        [sys.executable, "-m", *shlex.split(command), "--help"], capture_output=True, text=True, check=True
    )
    return set(re.findall(r"--[a-z][\w-]*", told.stdout))


def test_each_document_is_of_a_kind_and_api_that_there_is_and_has_a_name_of_its_own() -> None:
    found = documents()
    assert len(found) == 4
    for each in found:
        assert each["apiVersion"] == API[each["kind"]]
        assert re.fullmatch(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?", each["metadata"]["name"])
    assert len({(each["kind"], each["metadata"]["name"]) for each in found}) == 4


def test_selectors_find_the_pods_that_are_made() -> None:
    for each in documents():
        if each["kind"] == "Deployment":
            assert each["spec"]["selector"]["matchLabels"] == each["spec"]["template"]["metadata"]["labels"]
        if each["kind"] == "Service":
            (chosen,) = (pod for pod in pods() if pod["metadata"]["labels"] == each["spec"]["selector"])
            ports = {port["name"] for port in chosen["spec"]["containers"][0]["ports"]}
            assert {port["targetPort"] for port in each["spec"]["ports"]} <= ports
    (job,) = (each for each in documents() if each["kind"] == "Job")
    assert job["spec"]["template"]["spec"]["restartPolicy"] == "Never", "a verdict is not tried again"
    assert job["spec"]["backoffLimit"] == 0


def test_no_container_may_more_than_it_needs_and_each_says_what_it_takes() -> None:
    for pod in pods():
        assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
        assert pod["spec"]["automountServiceAccountToken"] is False
        volumes = {volume["name"] for volume in pod["spec"].get("volumes", ())}
        for container in pod["spec"]["containers"]:
            assert container["securityContext"]["allowPrivilegeEscalation"] is False
            assert {"cpu", "memory"} <= container["resources"]["requests"].keys()
            assert container["resources"]["limits"]["memory"]
            assert {mount["name"] for mount in container.get("volumeMounts", ())} <= volumes


def test_what_the_containers_run_takes_these_flags() -> None:
    run = {name for each in main.commands["run"].params if isinstance(each, click.Option) for name in each.opts}
    for container in containers():
        words = container.get("command") or ["loadtest", *container["args"]]
        given = {word.partition("=")[0] for word in words if word.startswith("--")}
        assert given <= (flags_of(" ".join(words[:2])) if words[0] == "dask" else run)


def test_workers_scheduler_and_run_meet_at_one_address() -> None:
    (service,) = (each for each in documents() if each["kind"] == "Service")
    address = f"tcp://{service['metadata']['name']}:{service['spec']['ports'][0]['port']}"
    words = [word for each in containers() for word in (*each.get("command", ()), *each.get("args", ()))]
    assert [word.partition("=")[2] or word for word in words if "tcp://" in word] == [address] * 2


def instructions() -> Iterator[tuple[str, str]]:
    for line in re.sub(r"\\\n\s*", "", (FOLDER / "Dockerfile").read_text("utf-8")).splitlines():
        if line.strip() and not line.startswith("#"):
            name, _, rest = line.partition(" ")
            yield name, rest


def test_the_image_is_pinned_small_and_not_roots() -> None:
    found = [*instructions()]
    assert found[0][0] == "FROM"
    assert re.fullmatch(r"[\w./-]+:\d+\.\d+\.\d+[\w.-]*", found[0][1]), "a tag that does not move"
    names = [name for name, _ in found]
    assert "ADD" not in names
    assert [rest for name, rest in found if name == "USER"][-1] not in ("root", "0")
    assert all(rest.startswith("/") for name, rest in found if name == "WORKDIR")
    for name, rest in found:
        assert name not in ("CMD", "ENTRYPOINT") or rest.startswith("["), "without a shell, signals arrive"
        assert "pip install" not in rest or "--no-cache-dir" in rest
        assert not re.search(r"\bsudo\b|\bcd /", rest)
    (extras,) = re.findall(r"\.\[([\w,]+)\]", " ".join(rest for _, rest in found))
    assert "cluster" in extras.split(",")


def test_the_script_for_slurm_gives_the_command_flags_that_it_has() -> None:
    tree = ast.parse((FOLDER / "slurm.py").read_text("utf-8"))
    words = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    run = {name for each in main.commands["run"].params if isinstance(each, click.Option) for name in each.opts}
    assert {"--cluster", "--workers"} <= words & run


@pytest.mark.parametrize("path", sorted(FOLDER.iterdir()), ids=lambda path: path.name)
def test_the_page_tells_of_each_file(path: Path) -> None:
    page = (FOLDER / "README.md").read_text("utf-8")
    assert path.name in page or path.name == "README.md"
    for line in re.findall(r"^    (loadtest run .*)$", page, re.MULTILINE):
        run = {name for each in main.commands["run"].params if isinstance(each, click.Option) for name in each.opts}
        assert {word for word in shlex.split(line) if word.startswith("-")} <= run
