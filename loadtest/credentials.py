"""A token that a command of the user's prints, and that is renewed before it expires while requests are sent.

Sources: RFC 6749 §5.1 (``access_token``, ``expires_in``), RFC 7519 (``exp`` of a JWT), and what the commands of clouds
print: gcloud a bare token, az ``accessToken`` with ``expires_on``, kubectl an ExecCredential.
"""

import base64
import binascii
import contextlib
import json
import logging
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import msgspec

from loadtest.errors import TargetError, UsageError
from loadtest.redact import Redactor

RENEWED_EVERY_S = 300.0
_TIMEOUT_S = 30.0
_EARLY_S = 60.0  # so long before it expires a token is renewed, or with a fifth of its time left
_LEAVE_S = 2.0
_AGAIN_S = 10.0  # after a failure
_LONGEST_S = 86_400.0
_WORDS = 300

log = logging.getLogger(__name__)


class Token(msgspec.Struct, frozen=True):
    """A bearer token, and for how many seconds it holds; None is "nobody said"."""

    value: str
    holds_s: float | None = None


class Bearer:
    """The newest token of a command. The first is got when it is asked for; a thread renews it within ``renewing``.

    ``redact`` learns each token before anything is sent with it. ``failed`` is set once a renewal has failed: why.
    """

    def __init__(self, command: str, every_s: float, redact: Redactor) -> None:
        try:
            self._words = shlex.split(command)
        except ValueError as error:
            raise UsageError(f"--auth-command: cannot be taken apart ({error}); check its quotes") from None
        if not self._words:
            raise UsageError("--auth-command: is empty; give one that prints a token")
        self.failed: str | None = None
        self._every_s = every_s
        self._redact = redact
        self._process: subprocess.Popen[bytes] | None = None
        self._over = threading.Event()
        self._token: Token | None = None

    @property
    def token(self) -> str:
        """The newest.

        Raises:
            UsageError: there is no such command.
            TargetError: it failed, or printed no token.
        """
        return (self._token or self._renew()).value

    @property
    def header(self) -> tuple[str, str]:
        """As a request says it."""
        return "Authorization", f"Bearer {self.token}"

    @contextlib.contextmanager
    def renewing(self) -> Iterator[None]:
        """Renew it meanwhile. Not while processes are forked: a thread may hold a lock that they would wait for."""
        due_s = self._due_s(self._token or self._renew())
        self._over.clear()
        thread = threading.Thread(target=self._keep, args=(due_s,), name="auth-command", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            if (process := self._process) is not None:
                _end(process)
            thread.join(_LEAVE_S)

    def _keep(self, wait_s: float) -> None:
        while not self._over.wait(wait_s):
            try:
                wait_s = self._due_s(self._renew())
            except (UsageError, TargetError) as error:
                wait_s = _AGAIN_S
                if self.failed is None and not self._over.is_set():
                    self.failed = f"{error}; requests went on with the token before"
                    log.warning("%s", self.failed)

    def _due_s(self, token: Token) -> float:
        holds_s = token.holds_s
        if not holds_s:  # expired already is what a clock that is wrong says
            return self._every_s
        return min(_LONGEST_S, max(1.0, holds_s - min(_EARLY_S, holds_s / 5)))

    def _renew(self) -> Token:
        token = read(self._run())
        self._redact.learn([token.value])
        self._token = token
        log.info("--auth-command gave a token, to be renewed in %.0f s", self._due_s(token))
        return token

    def _run(self) -> bytes:
        """What the command prints."""
        name = self._words[0]
        try:
            # A session of its own: Ctrl-C is for the run, and what the command has started ends with it.
            process = self._process = subprocess.Popen(
                self._words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise UsageError(
                f"--auth-command: cannot start {name!r}: {error.strerror or error}; it is run as it is, without a shell"
            ) from None
        try:
            out, words = process.communicate(timeout=_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise TargetError(f"--auth-command: {name} gave no token within {_TIMEOUT_S:g} s") from None
        finally:
            self._process = None
            if process.poll() is None:
                _end(process)
                process.communicate()
        if process.returncode:
            said = self._redact(" ".join(words.decode("utf-8", "replace").split()))[-_WORDS:]
            raise TargetError(
                f"--auth-command: {name} gave no token (exit code {process.returncode}): "
                f"{said or 'it said nothing on stderr'}"
            )
        return out


def read(printed: bytes) -> Token:
    """The token in what a command printed: alone, or in a JSON object. The message of an error shows none of it.

    Raises:
        TargetError: there is none.
    """
    text = printed.decode("utf-8", "replace").strip()
    said: dict[str, Any] = {}
    if text.startswith("{"):
        said = _object(text)
        found = next((said[key] for key in ("access_token", "accessToken", "token", "id_token") if said.get(key)), None)
        if not isinstance(found, str):
            raise TargetError(
                "--auth-command: its JSON holds no access_token, accessToken, token or id_token; print the token alone"
            )
        text = found.strip()
    text = text.removeprefix("Bearer ").strip()
    if not text or not text.isascii() or not text.isprintable() or " " in text:
        what = "nothing" if not text else f"{len(text.splitlines())} lines" if "\n" in text else "no token"
        raise TargetError(f"--auth-command: printed {what}; it has to print one token, or JSON with access_token")
    return Token(text, _holds_s(said, text))


def _object(text: str) -> dict[str, Any]:
    try:
        said: dict[str, Any] = json.loads(text)
    except (ValueError, RecursionError):
        raise TargetError("--auth-command: printed something like JSON that is none; print the token alone") from None
    status = said.get("status")
    return {**said, **status} if isinstance(status, dict) else said


def _holds_s(said: dict[str, Any], token: str) -> float | None:
    """For how long: as it was said, or as a JWT says it of itself."""
    try:
        if said.get("expires_in") is not None:
            return max(0.0, float(said["expires_in"]))
        for key in ("expires_on", "expiresOn", "expires_at", "expiry", "expirationTimestamp"):
            if said.get(key) is not None:
                return max(0.0, _instant(said[key]) - time.time())
        parts = token.split(".")
        if len(parts) == 3:
            claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
            return max(0.0, float(claims["exp"]) - time.time())
    except (ValueError, TypeError, KeyError, OverflowError, OSError, binascii.Error):
        return None  # of another kind than the known ones: nobody said
    return None


def _instant(value: object) -> float:
    """Seconds since 1970; text without a zone is local time, as az writes it."""
    try:
        return float(value)  # type: ignore[arg-type]
    except ValueError:
        return datetime.fromisoformat(str(value)).timestamp()


def _end(process: "subprocess.Popen[bytes]") -> None:
    """With all that it has started, which may hold its pipes open."""
    try:
        if sys.platform == "win32":
            process.kill()
        else:
            os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass  # it has ended by itself meanwhile
