"""The files of docs/deploy: what a linter and an API server would refuse, without either."""

import ast
import re
import shlex
from collections.abc import Iterator
from importlib.metadata import entry_points
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
    kinds = ("initContainers", "containers")
    return [container for pod in pods() for kind in kinds for container in pod["spec"].get(kind, ())]


def taken(words: list[str]) -> dict[str, Any]:
    """What the command itself makes of a line, short of doing it.

    Raises:
        click.ClickException: it does not take it.
    """
    program, name, *rest = words
    found = main.commands[name] if program == "loadtest" else entry_points(group="dask_cli")[name].load()
    assert isinstance(found, click.Command)
    with found.make_context(name, rest) as context:
        return context.params


def told() -> Iterator[list[str]]:
    """The command lines of the pages, in words."""
    for path in (FOLDER / "README.md", FOLDER.parent / "scaling.md"):
        text = path.read_text("utf-8")
        programs = "loadtest|dask|python|kubectl"
        for line in re.findall(rf"^    ((?:{programs}) .*)$|`((?:{programs}) [^`]+)`", text, re.MULTILINE):
            yield shlex.split("".join(line).removesuffix("&"))


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


def test_what_the_containers_run_is_taken() -> None:
    commands = {each["name"]: each.get("command") or ["loadtest", *each["args"]] for each in containers()}
    *_, waits = commands.pop("wait")
    options = {name: taken(words) for name, words in commands.items()}
    assert options["scheduler"]["port"] == "8786"
    assert options["worker"]["nanny"] is False
    calls = [node for node in ast.walk(ast.parse(waits)) if isinstance(node, ast.Call)]
    (awaited,) = (call.args[0] for call in calls if ast.unparse(call.func) == "client.wait_for_workers")
    (deployed,) = (each for each in documents() if each["metadata"]["name"] == "loadtest-worker")
    assert ast.literal_eval(awaited) == options["run"]["workers"] == deployed["spec"]["replicas"]


def test_each_command_of_the_pages_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hosts.txt").write_text("first-host\n", "utf-8")
    root = FOLDER.parent.parent
    named = {f"{each['kind'].lower()}/{each['metadata']['name']}" for each in documents()}
    found = [*told()]
    assert {words[0] for words in found} == {"loadtest", "dask", "python", "kubectl"}
    for words in found:
        match words:
            case ["loadtest" | "dask", *_]:
                taken(words)
            case ["python", script, *rest]:
                assert (root / script).is_file()
                taken(["loadtest", "run", *rest, "--cluster", "tcp://10.0.0.1:8786", "--workers", "16"])
            case ["kubectl", "create", "-f", file]:
                assert (root / file).is_file()
            case ["kubectl", "create", "secret", "generic", name, value]:
                key = value.removeprefix("--from-literal=").partition("=")[0]
                (run,) = (each for each in containers() if each["name"] == "run")
                assert run["env"][0]["valueFrom"]["secretKeyRef"] == {"name": name, "key": key, "optional": True}
            case ["kubectl", "logs" | "scale", *rest]:
                assert {word for word in rest if "/" in word} <= named
            case _:
                pytest.fail(shlex.join(words))


def test_workers_scheduler_and_run_meet_at_one_address() -> None:
    (service,) = (each for each in documents() if each["kind"] == "Service")
    address = f"tcp://{service['metadata']['name']}:{service['spec']['ports'][0]['port']}"
    words = [word for each in containers() for word in (*each.get("command", ()), *each.get("args", ()))]
    assert [word.partition("=")[2] or word for word in words if word.endswith(address)] == [address] * 2
    assert [word.count(address) for word in words if "tcp://" in word] == [1, 1, 1]


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
