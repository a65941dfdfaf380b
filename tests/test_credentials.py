"""A token comes from the user's own command, is renewed before it expires, and is never shown."""

import base64
import json
import shlex
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from loadtest import credentials
from loadtest.credentials import Bearer, read
from loadtest.errors import TargetError, UsageError
from loadtest.redact import MARK, Redactor

TOKEN = "ya29.a0-token_of_mine"


def jwt(**claims: object) -> str:
    """A JWT of nobody's signature."""
    parts = [base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in ({}, claims)]
    return ".".join([*parts, "c2lnbmF0dXJl"])


def python(code: str) -> str:
    """A command that runs it."""
    return shlex.join([sys.executable, "-c", code])


@pytest.mark.parametrize(
    ("printed", "holds_s"),
    [
        (f"{TOKEN}\n", None),
        (f"Bearer {TOKEN}", None),
        (json.dumps({"access_token": TOKEN, "expires_in": "3599", "token_type": "Bearer"}), 3599),
        (
            json.dumps({"accessToken": TOKEN, "expires_on": time.time() + 100_000, "expiresOn": "2020-01-01 00:00:00"}),
            100_000,  # from when the tests were collected, which may be a while ago
        ),
        (json.dumps({"token": TOKEN, "expiry": "2020-01-01T00:00:00Z"}), 0),
        (json.dumps({"token": TOKEN, "expiry": "soon"}), None),
        (json.dumps({"kind": "ExecCredential", "status": {"token": TOKEN, "expirationTimestamp": None}}), None),
        (json.dumps({"access_token": TOKEN, "expires_in": [1]}), None),
    ],
)
def test_a_token_is_read_as_commands_print_it(printed: str, holds_s: float | None) -> None:
    token = read(printed.encode())
    assert token.value == TOKEN
    assert token.holds_s == (None if holds_s is None else pytest.approx(holds_s, rel=0.05))


def test_a_jwt_says_itself_how_long_it_holds() -> None:
    assert read(jwt(exp=time.time() + 900).encode()).holds_s == pytest.approx(900, abs=400)
    assert read(jwt(sub="me").encode()).holds_s is None
    assert read(b"a.b.c").holds_s is None


@pytest.mark.parametrize(
    ("printed", "words"),
    [
        ("", "nothing"),
        ("one-of-them\nand-another", "2 lines"),
        ("please log in", "no token"),
        ("tök€n-of-mine", "no token"),
        ('{"error": "not-logged-in"}', "holds no access_token"),
        ('{"access_token": ["list-of-it"]}', "holds no access_token"),
        ('{"access_token": ', "like JSON"),
    ],
)
def test_what_is_no_token_is_refused_without_being_shown(printed: str, words: str) -> None:
    with pytest.raises(TargetError, match=words) as caught:
        read(printed.encode())
    for part in printed.replace('"', " ").split():
        assert len(part) < 8 or part == "access_token" or part not in str(caught.value)


@pytest.mark.parametrize(
    ("command", "error", "words"),
    [
        ("", UsageError, "empty"),
        ("echo 'open", UsageError, "quotes"),
        ("/nowhere/at-all print", UsageError, "cannot start '/nowhere/at-all'.*without a shell"),
        (python("import sys; print('x'); sys.exit('log in first')"), TargetError, "exit code 1.*: log in first"),
        (python("raise SystemExit(7)"), TargetError, "exit code 7.*said nothing"),
    ],
)
def test_a_command_that_gives_no_token_says_why(command: str, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        assert Bearer(command, 60, Redactor()).token


def test_a_command_that_hangs_is_ended_with_what_it_started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The grandchild holds the pipe: were it left alive, waiting for the end of the output would last a minute."""
    monkeypatch.setattr(credentials, "_TIMEOUT_S", 0.5)
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(60)'])"
    with pytest.raises(TargetError, match=r"no token within 0\.5 s"):
        assert Bearer(python(code), 60, Redactor()).token


def counting(folder: Path, last: str) -> str:
    """A command that prints token-0001, token-0002, …, and after the third does as ``last`` says."""
    return python(
        f"import sys; file = open({str(folder / 'n')!r}, 'a'); file.write('.'); n = file.tell(); file.close()\n"
        f"if n > 3: {last}\n"
        "print(f'token-{n:04}')"
    )


def until(condition: Callable[[], bool]) -> None:
    """Wait for it."""
    ends = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < ends
        time.sleep(0.01)


def test_a_token_is_renewed_until_a_renewal_fails_and_then_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(credentials, "_AGAIN_S", 0.01)
    redact = Redactor()
    bearer = Bearer(counting(tmp_path, "sys.exit('no more, token-0002')"), 0.01, redact)
    assert bearer.token == bearer.token == "token-0001"
    assert bearer.header == ("Authorization", "Bearer token-0001")
    with bearer.renewing():
        until(lambda: bearer.failed is not None)
        until(lambda: (tmp_path / "n").stat().st_size > 5)  # it goes on trying
    assert bearer.token == "token-0003"
    assert bearer.failed is not None
    assert bearer.failed.endswith(f"no more, {MARK}; requests went on with the token before")
    assert redact("token-0001 token-0002 token-0003") == f"{MARK} {MARK} {MARK}"
    assert not [thread for thread in threading.enumerate() if thread.name == "auth-command"]


def test_leaving_does_not_wait_for_a_command_that_runs(tmp_path: Path) -> None:
    bearer = Bearer(counting(tmp_path, "import time; time.sleep(60)"), 0.01, Redactor())
    with bearer.renewing():
        until(lambda: (tmp_path / "n").exists() and (tmp_path / "n").stat().st_size == 4)
    assert bearer._process is None  # it was ended, and that is no failure
    assert bearer.failed is None


def test_a_token_is_renewed_before_it_expires_and_never_without_pause() -> None:
    bearer = Bearer("x", 300, Redactor())
    due = [bearer._due_s(credentials.Token("t", holds_s)) for holds_s in (None, 3600, 100, 2, 0.1, 0, float("inf"))]
    assert due == [300, 3540, 80, 1.6, 1, 300, 86_400]
