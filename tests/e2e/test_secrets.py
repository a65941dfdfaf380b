"""A secret that a run is given stands in nothing that it writes or prints, whoever repeats it and however it ends."""

import html
import json
import shlex
import subprocess
import sys
from base64 import b64encode
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from click.testing import CliRunner

from loadtest import run
from loadtest.cli import main
from tests.conftest import Command
from tests.e2e.telling import Answer, Asked, models, said, telling, usual

pytestmark = pytest.mark.e2e
SECRET = "s3cr3t/ÿ+\"'&=x"
PLAIN = "s3cr3t-0123456789"
PASSWORD = "pa55 w0rd:é"
FILES = (
    "-vv", "--json", "all.json", "--junit", "junit.xml", "--markdown", "comment.md", "--live-json", "live.jsonl", "-o",
    "out",
)  # fmt: skip
SHORT = ("--endpoint", "chat", "-c", "2", "-n", "12", "--output-tokens", "3", *FILES)


def printing(text: str) -> str:
    """A command that prints it."""
    return shlex.join([sys.executable, "-c", f"print({text!r})"])


# How it is given, by flags and variables; and the secrets in it.
WAYS: dict[str, tuple[list[str], dict[str, str], list[str]]] = {
    "a key": (["--api-key", PLAIN], {}, [PLAIN]),
    "a key's variable": ([], {"LOADTEST_API_KEY": f"{PLAIN}\n"}, [PLAIN]),
    "headers": (
        ["-H", f"X-Api-Key: {SECRET}", "-H", f"Cookie: sid={PLAIN}; theme=d", "--label", f"note=my key is {PLAIN}"],
        {},
        [SECRET, PLAIN],
    ),
    "a user": (["--basic", f"me:{PASSWORD}"], {}, [PASSWORD, b64encode(f"me:{PASSWORD}".encode()).decode()]),
    "a command": (["--auth-command", printing(PLAIN)], {}, [PLAIN]),
}


def everything(folder: Path, done: Any) -> dict[str, str]:
    """All that was written and printed."""
    found = {str(path.relative_to(folder)): path.read_text("utf-8") for path in folder.rglob("*") if path.is_file()}
    return {**found, "stdout": done.stdout, "stderr": done.stderr}


def forms(secret: str) -> set[str]:
    """A secret as it may stand in files of any kind."""
    return {secret, quote(secret), quote(secret, safe=""), json.dumps(secret)[1:-1], html.escape(secret)} | {
        json.dumps(secret, ensure_ascii=False)[1:-1], repr(secret)[1:-1], secret.replace("'", "'\"'\"'"),
    }  # fmt: skip


def repeating(asked: Asked) -> str:
    """Whatever of a request may be secret, as a server repeats it."""
    heads = [value.encode("latin-1").decode("utf-8", "replace") for value in asked.headers.values()]
    latin = [*asked.headers.values()]
    return f"no access with {heads} {latin} {[*map(quote, latin)]} {asked.path} {[PASSWORD, SECRET, PLAIN]}"


def refuse(asked: Asked) -> Answer:
    """Words of a server that hides nothing."""
    if asked.method == "GET":
        return models()
    return Answer(401, json.dumps({"error": {"message": repeating(asked)}}).encode())


def refuse_all(asked: Asked) -> Answer:
    """The same, also of its models."""
    return Answer(401, repeating(asked).encode())


def chat_on(asked: Asked) -> Answer:
    """An endpoint that works, and repeats what it was told where nobody looks for it."""
    if asked.method == "GET":
        return models(f"model-of-{PLAIN}")
    return said(repeating(asked), finish_reason=f"stop {PLAIN}")


@pytest.mark.parametrize(
    ("way", "answer", "code"),
    [
        ("a key", chat_on, 0),
        ("a key's variable", refuse_all, 1),
        ("headers", refuse, 1),
        ("a user", refuse, 1),
        ("a command", refuse, 1),
    ],
)
def test_a_secret_stands_in_no_file_and_no_stream(
    loadtest: Command, tmp_path: Path, way: str, answer: Any, code: int
) -> None:
    flags, variables, secrets = WAYS[way]
    with telling(answer) as server:
        done = loadtest("run", server.url, *SHORT, *flags, **variables)
        assert done.returncode == code, done.stderr
        heads = [asked.headers for asked in server.posts or server.asked]
    assert heads
    assert all(any(secret in value for secret in secrets for value in head.values()) for head in heads)
    for secret in secrets:
        for name, text in everything(tmp_path, done).items():
            for form in forms(secret):
                assert form not in text, name


def test_a_secret_of_the_url_stands_nowhere_either(loadtest: Command, tmp_path: Path) -> None:
    with telling(refuse) as server:
        there = server.url.replace("//", f"//me:{quote(PASSWORD)}@")
        done = loadtest("run", f"{there}?api_key={PLAIN}", *SHORT)
        assert all(f"api_key={PLAIN}" in asked.path for asked in server.asked)
        sent = b64encode(f"me:{PASSWORD}".encode()).decode()
        assert {asked.headers["authorization"] for asked in server.asked} == {f"Basic {sent}"}
    for name, text in everything(tmp_path, done).items():
        for secret in (PLAIN, PASSWORD, sent):
            for form in forms(secret):
                assert form not in text, name


TEMPLATE = """
endpoint: http
request:
  path: /ask
  headers: {X-Api-Key: %s, Authorization: "Bearer {{ env.ASK_TOKEN }}"}
  json: {text: "{{ prompt }}"}
response: {text: "$.choices[0].message.content"}
load: {concurrency: 1, requests: 3}
"""


def test_a_secret_of_a_template_stands_in_its_file_alone(loadtest: Command, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(TEMPLATE % PLAIN, "utf-8")
    with telling(chat_on) as server:
        done = loadtest("run", server.url, "-s", "mine.yaml", *FILES, ASK_TOKEN="token-of-0815")
        assert done.returncode == 0, done.stderr
        assert {asked.headers["authorization"] for asked in server.posts} == {"Bearer token-of-0815"}
        assert {asked.headers["x-api-key"] for asked in server.posts} == {PLAIN}
    for name, text in everything(tmp_path, done).items():
        assert name == "mine.yaml" or PLAIN not in text, name
        assert "token-of-0815" not in text, name
    assert "{{ env.ASK_TOKEN }}" in everything(tmp_path, done)["out/scenario.resolved.yaml"]


@pytest.mark.parametrize("way", ["a key", "a user", "a command"])
@pytest.mark.parametrize("answer", [chat_on, refuse_all])
def test_a_probe_shows_a_variable_in_the_place_of_a_secret(tmp_path: Path, way: str, answer: Any) -> None:
    flags, _, secrets = WAYS[way]
    kept = ("-v", "--json", str(tmp_path / "probe.json"))
    with telling(answer) as server:
        done = CliRunner().invoke(main, ["probe", server.url, "--endpoint", "chat", *kept, *flags])
        told = [asked.headers["authorization"] for asked in server.asked]
    assert told
    assert all(any(secret in value for secret in secrets) for value in told)
    assert done.stdout or done.stderr
    for secret in secrets:
        for name, text in everything(tmp_path, done).items():
            for form in forms(secret):
                assert form not in text, name


def test_a_bug_of_ours_shows_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError(f"cannot take {PLAIN} apart")

    monkeypatch.setattr(run, "run", broken)
    done = CliRunner().invoke(main, ["run", "http://127.0.0.1:1", "--api-key", PLAIN, "-n", "1"])
    assert done.exit_code == 1
    assert "RuntimeError: cannot take [redacted] apart" in done.stderr
    assert "bug in loadtest" in done.stderr
    assert PLAIN not in done.output


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--basic", "nobody"], "NAME:PASSWORD"),
        (["--api-key", "k€y-of-mine"], "--api-key: the header 'Authorization' holds a character"),
        (["-H", "X Y: z"], "-H: the header 'X Y' holds a character"),
        (["--api-key", PLAIN, "--basic", "a:b"], "--api-key and --basic both say who we are"),
        (["--api-key", PLAIN, "-H", "authorization: x"], "-H and --api-key both say who we are"),
        (["--auth-command", "/nowhere/x of-mine"], "cannot start '/nowhere/x'"),
        (["--auth-command", "true", "--auth-refresh", "1ms"], "--auth-refresh"),
    ],
)
def test_what_cannot_be_meant_is_told_in_one_line(flags: list[str], words: str, tmp_path: Path) -> None:
    with telling() as server:
        done = CliRunner().invoke(main, ["run", server.url, *flags, "-n", "1", "-o", str(tmp_path / "out")])
        assert not server.posts
    assert done.exit_code == 2, done.stderr
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    for secret in (PLAIN, "k€y-of-mine", "of-mine"):
        assert secret not in done.stderr


def test_a_flag_stands_above_a_variable_that_says_it_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOADTEST_API_KEY", PLAIN)
    with telling() as server:
        for flags in (
            ["-H", "Authorization: Token abc"],
            ["--auth-command", printing("tok-1")],
        ):
            done = CliRunner().invoke(main, ["probe", server.url, *flags])
            assert done.exit_code == 0, done.output
    told = {asked.headers["authorization"] for asked in server.posts}
    assert told == {"Token abc", "Bearer tok-1"}


def counting(file: Path, last: str = ":") -> str:
    """A command that prints another token of one second each time; from the second on it does as ``last`` says."""
    code = (
        f"printf . >> {shlex.quote(str(file))}; n=$(wc -c < {shlex.quote(str(file))})\n"
        f"if [ $n -gt 1 ]; then {last}; fi\n"
        """printf '{"access_token": "token-%04d", "expires_in": 1}' $n"""
    )
    return shlex.join(["sh", "-c", code])


def test_a_token_is_renewed_while_a_level_is_played(loadtest: Command, tmp_path: Path) -> None:
    """By both transports and by two workers; what was made ahead goes out with the newest."""

    def played(transport: str) -> list[str]:
        with telling() as server:
            done = loadtest(
                "run", server.url, "-r", "40", "-d", "1800ms", "--warmup", "0s", "--workers", "2",
                "--transport", transport, "--no-html", "--auth-command", counting(tmp_path / f"{transport}.n"),
                "-o", transport,
            )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return [asked.headers["authorization"] for asked in server.posts]

    with ThreadPoolExecutor() as pool:  # most of it is waiting
        both = [*pool.map(played, ("fast", "aiohttp"))]
    for told in both:
        assert len(set(told)) >= 2
        assert told[-1] > told[0]
        assert all(token.startswith("Bearer token-") for token in told)
    for path in (path for folder in ("fast", "aiohttp") for path in (tmp_path / folder).iterdir()):
        assert "token-0" not in path.read_text("utf-8")


def test_a_renewal_that_fails_is_warned_of_once_and_what_follows_is_counted_as_it_is(
    loadtest: Command, tmp_path: Path
) -> None:
    def expiring(asked: Asked) -> Answer:
        if asked.method == "GET":
            return usual(asked)
        seen.append(asked)
        if len(seen) < 20:
            return usual(asked)
        return Answer(401, b'{"error": {"message": "expired"}}')

    seen: list[Asked] = []
    with telling(expiring) as server:
        done = loadtest(
            "run", server.url, "-r", "20", "-d", "1800ms", "--warmup", "0s", "--no-html", "--auth-command",
            counting(tmp_path / "n", "echo log in again >&2; exit 1"), "-o", "out",
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "out" / "result.json").read_text("utf-8"))
    warned = [warning for warning in result["warnings"] if "log in again" in warning]
    assert len(warned) == 1
    assert "requests went on with the token before" in warned[0]
    (error,) = result["levels"][0]["errors"]
    assert (error["kind"], error["example"]) == ("http_status", "401 Unauthorized: expired")
    assert done.stderr.count("WARNING loadtest.credentials") == 1


@pytest.mark.parametrize("transport", ["fast", "aiohttp"])
def test_a_key_of_which_only_the_password_is_secret_opens_a_server_that_asks_for_it(
    certificate: tuple[Path, Path], transport: str, tmp_path: Path
) -> None:
    """That the file cannot be read without: the handshake itself is the transports' own matter."""
    locked, given = tmp_path / "locked.pem", ("-in", str(certificate[1]), "-passout", f"pass:{PLAIN}")
    subprocess.run(["openssl", "pkcs8", "-topk8", *given, "-out", str(locked)], check=True, capture_output=True)
    mtls = ("--cert", str(certificate[0]), "--key", str(locked), "--insecure", "--transport", transport)
    asked = ["run", "https://127.0.0.1:1", "-n", "1", *mtls, "-o", str(tmp_path / "out")]
    refused = CliRunner().invoke(main, asked)
    assert refused.exit_code == 2
    assert "LOADTEST_KEY_PASSWORD" in refused.stderr
    read = CliRunner().invoke(main, asked, env={"LOADTEST_KEY_PASSWORD": PLAIN})
    assert read.exit_code == 1, read.stderr
    assert "refused" in read.stderr
    assert PLAIN not in read.stderr
