"""The template as a user meets it: the examples of the documentation and the plain flags, against a real service."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from click.testing import CliRunner

from loadtest.cli import main
from tests.conftest import Command

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "endpoints.md").read_text(encoding="utf-8")
SECTION = PAGE.partition("## Any JSON or HTTP service: a template")[2].partition("\n## ")[0]
EXAMPLES = re.findall(r"```yaml\n(.*?)```", SECTION, re.DOTALL)
TICKETS = 'body,tenant\n"It ""broke""",a\nThe second line is one that is longer,b\n'


@pytest.fixture(scope="module")
def started() -> Iterator[str]:
    """The URL of a small service of APIs that no dialect knows."""
    command = [sys.executable, "-m", "tests.e2e.anything"]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.terminate()


@pytest.fixture
def service(started: str) -> str:
    """The same, which has seen nothing yet."""
    urlopen(f"{started}/forget").close()
    return started


def seen(service: str) -> list[dict[str, Any]]:
    """The requests that the service got."""
    with urlopen(f"{service}/seen") as reply:
        found: list[dict[str, Any]] = json.load(reply)
    return found


def level(folder: Path) -> dict[str, Any]:
    """The one level of a run."""
    (found,) = json.loads((folder / "out" / "result.json").read_text("utf-8"))["levels"]
    assert isinstance(found, dict)
    return found


def play(loadtest: Command, folder: Path, number: int, service: str, many: int, **variables: str) -> dict[str, Any]:
    """Run one example of the documentation, so many requests of it."""
    (folder / "mine.yaml").write_text(EXAMPLES[number])
    done = loadtest(
        "run", service, "-s", "mine.yaml", "-o", "out", "-n", str(many), "--slo", "", "--no-html", **variables
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = level(folder)
    assert found["counts"]["scheduled"] == found["counts"]["ok"] == many
    return found


def test_the_documentation_has_an_example_of_each() -> None:
    assert [re.search(r"path: (/\w+)", example)[1] for example in EXAMPLES] == [  # type: ignore[index]
        "/classify", "/upload", "/tell", "/graphql",
    ]  # fmt: skip


def test_a_classifier_of_rows(loadtest: Command, service: str, tmp_path: Path) -> None:
    (tmp_path / "tickets.csv").write_text(TICKETS)
    found = play(loadtest, tmp_path, 0, service, 40, CLASSIFIER_KEY="sesame-open")
    assert found["throughput"]["samples_per_s"] > 0
    assert found["latency"]["ttft_ms"]["ok"]["n"] == 0
    assert found["latency"]["e2e_ms"]["ok"]["n"] == 40
    requests = seen(service)
    texts = {(json.loads(one["body"])["text"], one["headers"]["x-tenant"]) for one in requests}
    assert texts == {('It "broke"', "a"), ("The second line is one that is longer", "b")}
    assert {one["headers"]["authorization"] for one in requests} == {"Bearer sesame-open"}
    assert len({json.loads(one["body"])["id"] for one in requests[-40:]}) == 40
    for file in (tmp_path / "out").iterdir():
        assert b"sesame-open" not in file.read_bytes(), file


def test_an_upload_of_each_file_in_turn(loadtest: Command, service: str, tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    for name in ("a.png", "b.png", "c.png"):
        (tmp_path / "images" / name).write_bytes(b"\x89PNG\r\n" + name.encode())
    play(loadtest, tmp_path, 1, service, 12)
    bodies = [one["body"] for one in seen(service)][-12:]
    names = [re.search(r'filename="(\w\.png)"', body)[1] for body in bodies]  # type: ignore[index]
    assert {name: names.count(name) for name in names} == {"a.png": 4, "b.png": 4, "c.png": 4}


def test_a_stream_of_its_own(loadtest: Command, service: str, tmp_path: Path) -> None:
    found = play(loadtest, tmp_path, 2, service, 10)
    assert found["workload"]["source"] == "usage"
    assert found["finish_reasons"] == {"limit": found["counts"]["ok"]}
    lines = (tmp_path / "out" / "records.jsonl").read_text("utf-8").splitlines()
    records = [json.loads(line) for line in lines]
    assert {record["asked_output_tokens"] - record["output_tokens"] for record in records} == {0}
    assert all(record["first_token_ms"] < record["last_token_ms"] < record["done_ms"] for record in records)


def test_graphql(loadtest: Command, service: str, tmp_path: Path) -> None:
    rows = [{"id": 7, "x": 1}, {"id": "eight"}]
    (tmp_path / "items.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    play(loadtest, tmp_path, 3, service, 10)
    asked = [json.loads(one["body"])["variables"]["id"] for one in seen(service)[-10:]]
    assert sorted(map(str, asked)) == ["7"] * 5 + ["eight"] * 5
    (tmp_path / "mine.yaml").write_text(EXAMPLES[3].replace("variables: {id:", "variables: {other:"))
    done = loadtest("run", service, "-s", "mine.yaml")
    assert done.returncode == 1
    assert "Variable $id is required" in done.stderr


def test_the_plain_case_without_a_file(loadtest: Command, service: str, tmp_path: Path) -> None:
    (tmp_path / "cat.png").write_bytes(b"\x89PNG")
    body = '{"text": "<{{ prompt }}>", "limit": {{ max_tokens }}}'
    for arguments in (
        (f"{service}/search?q=a+b",),
        (f"{service}/v1/",),
        (f"{service}/classify", "--body", body, "--output-tokens", "9"),
        (f"{service}/page", "--method", "put", "--body", "@cat.png", "-H", "X-A: b"),
    ):
        done = loadtest("run", *arguments, "--endpoint", "http", "-n", "2", "-c", "1", "--no-html")
        assert done.returncode == 0, done.stdout + done.stderr
    search, page, classify, put = seen(service)[::3]  # of a request before the clock and two of the run
    assert (search["method"], search["target"]) == ("GET", "/search?q=a+b")
    assert (page["method"], page["target"]) == ("GET", "/v1/")
    assert not {"content-type", "content-length"} & {*page["headers"]}
    assert re.fullmatch(r'\{"text":"<.+>","limit":9\}', seen(service)[7]["body"])
    assert (classify["method"], classify["headers"]["content-type"]) == ("POST", "application/json")
    assert (put["method"], put["headers"]["content-type"], put["headers"]["x-a"]) == ("PUT", "image/png", "b")
    assert put["body"].encode("latin-1") == b"\x89PNG"


@pytest.mark.parametrize("flags", [(), ("--no-rehearsal",)])
def test_a_path_that_finds_nothing_ends_the_run_and_shows_what_came(
    loadtest: Command, service: str, tmp_path: Path, flags: tuple[str, ...]
) -> None:
    (tmp_path / "mine.yaml").write_text(EXAMPLES[2].replace("$.piece.text", "$.piece.txt"))
    done = loadtest("run", service, "-s", "mine.yaml", *flags)
    assert done.returncode == 1
    assert "response.text ($.piece.txt) finds nothing: no event has that path" in done.stderr
    assert "\n$.piece.text: text 'word0 '\n" in done.stderr
    assert len(seen(service)) < 20  # of 600


def test_a_probe_tries_a_template_and_writes_it_down(loadtest: Command, service: str, tmp_path: Path) -> None:
    body = '{"text": "{{ prompt }}", "k": "{{ env.CLASSIFIER_KEY }}"}'
    flags = ("--endpoint", "http", "--body", body)
    done = loadtest("probe", f"{service}/classify", *flags, "--json", "-", CLASSIFIER_KEY="sesame-open")
    assert done.returncode == 0, done.stderr
    assert "sesame-open" not in done.stdout
    (tmp_path / "mine.yaml").write_text(json.loads(done.stdout)["section"])
    done = loadtest(
        "run", f"{service}/classify", "-s", "mine.yaml", "-n", "3", "--no-html", CLASSIFIER_KEY="sesame-open"
    )
    assert done.returncode == 0, done.stderr
    bodies = [one["body"] for one in seen(service) if one["method"] == "POST"]
    assert len(set(bodies)) == len(bodies) == 5
    assert {json.loads(body)["k"] for body in bodies} == {"sesame-open"}


def test_both_transports_send_the_same(loadtest: Command, service: str, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(EXAMPLES[2])
    for transport in ("fast", "aiohttp"):
        done = loadtest(
            "run", service, "-s", "mine.yaml", "-n", "4", "--seed", "3", "--transport", transport, "--no-html"
        )
        assert done.returncode == 0, done.stdout + done.stderr
    bodies = [one["body"] for one in seen(service)]
    assert sorted(bodies[:5]) == sorted(bodies[5:])


@pytest.mark.parametrize(
    ("scenario", "words"),
    [
        ("endpoint: http\nrequest: {json: {a: '{{ env.NOT_SET }}'}}", "the variable NOT_SET is not set"),
        ("endpoint: http\nrequest: {file: ./none.png}", "mine.yaml:2:17: request.file: no such file"),
        ("endpoint: http\nrequest: {raw: '{{ row.a }}'}", "mine.yaml:2:16: request.raw: {{ row.a }} needs rows"),
        ("endpoint: chat\nrequest: {raw: x}", "mine.yaml:2:10: request: is of the endpoint http"),
        (
            "endpoint: http\nrequest: {raw: '{{ row.b }}'}\nworkload: {data: {path: ./rows.csv}}",
            "there is no column 'b'; there are 'a'",
        ),
        ("endpoint: http\nslo: [p99(ttft) < 1s]", "ttft: http writes no tokens; take e2e"),
    ],
)
def test_a_bad_template_is_told_before_anything_is_sent(
    service: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scenario: str, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.csv").write_text("a\n1\n")
    (tmp_path / "mine.yaml").write_text(scenario)
    done = CliRunner().invoke(main, ["run", service, "-s", "mine.yaml"])
    assert (done.exit_code, seen(service)) == (2, [])
    assert words in done.stderr
    assert "Traceback" not in done.stderr
