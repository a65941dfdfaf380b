"""What is under test: a URL made ready, or the bundled server started, set to each batching level, and stopped."""

import contextlib
import os
import re
import selectors
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec

from loadtest.credentials import Bearer
from loadtest.errors import ServerError, TargetError
from loadtest.level import Batching
from loadtest.wire import intermediary
from loadtest.wire.control import Reply, ask
from loadtest.wire.origin import Origin, parse, resolve
from loadtest.wire.proxy import Proxy
from loadtest.wire.tls import Tls
from loadtest.workload.tokens import Tokens, by_tokenizer

REACH_S = 4.0  # a target out of reach is reported within five seconds
_START_S = 180.0  # a model may have to be built first
_ASK_S = 20.0  # a small request to a target that may be busy
_BATCHING_S = 60.0
_STOP_S = 10.0


class Known(msgspec.Struct, frozen=True):
    """What a target says of itself before the run: its model, who owns that, and the model's card.

    ``told`` is a JSON object for the dialect's own use.
    """

    model: str
    owner: str | None = None
    card: dict[str, Any] = {}
    told: str = "{}"


Discover = Callable[[Callable[[str], Reply], str | None], Known]
"""Asks a target by GETs of its API's paths what it is; the second argument is the model asked for, if one is."""


class Facts(msgspec.Struct, frozen=True):
    """What is known of a target that is ready. None is "nobody told us"."""

    url: str
    address: str
    model: str
    owner: str | None
    tokens: Tokens
    precision: str | None = None
    software: dict[str, str] = {}
    hardware: str | None = None
    told: str = "{}"


class Target(Protocol):
    """Something to send requests to."""

    def open(self) -> Facts:
        """Make it ready."""

    def ask(self, path: str, body: object) -> Reply:
        """Ask it one thing outside the measurement, by a POST to a path of its API.

        Raises:
            TargetError: it could not be reached, or did not answer in time.
        """

    def set_batching(self, batching: Batching | None) -> None:
        """Set the batching of the next level."""

    def check(self) -> None:
        """Raise if the target is known to have died."""

    def close(self) -> None:
        """Leave it as it was found."""


class GivenURL:
    """An endpoint that runs already, wherever it is, reached through the proxy if there is one."""

    def __init__(
        self, origin: Origin, endpoint: str, model: str | None, headers: Sequence[tuple[str, str]],
        discover: Discover, tls: Tls, proxy: Proxy | None, bearer: Bearer | None = None, around: Origin | None = None,
    ) -> None:  # fmt: skip
        """``around`` is where it is asked what it is, if not at the base of its API."""
        self._bearer = bearer
        self._around = around or origin
        self._endpoint = endpoint
        self._model = model
        self._headers = dict(headers)
        self._origin = origin
        self._discover = discover
        self._tls = tls
        self._proxy = proxy
        self._address = ""

    def open(self) -> Facts:
        """Reach the target and learn its model.

        Raises:
            TargetError: it cannot be reached, or names no model and none was given.
        """
        self._address = self._resolved()
        stood_in: list[str] = []

        def get(path: str) -> Reply:
            reply = self._ask(self._origin, "GET", path, REACH_S, None)
            if (words := _stood_in(reply)) is not None:
                stood_in.append(f"{path}: {reply.status} {words}")
            return reply

        try:
            known = self._discover(get, self._model)
        except TargetError as error:
            words = stood_in[0] if stood_in else str(error)
            raise TargetError(f"{self._origin.url}{words}" if words.startswith("/") else words) from None
        origin = self._origin
        query = f"?{origin.query}" if origin.query else ""
        return Facts(
            url=origin.url + query,
            address=self._address,
            model=known.model,
            owner=known.owner,
            tokens=_tokens(known.card, self._endpoint),
            told=known.told,
        )

    def get(self, path: str) -> Reply:
        """Ask it one thing of what it is, by a GET.

        Raises:
            TargetError: it cannot be reached, or does not answer.
        """
        self._address = self._address or self._resolved()
        return self._ask(self._around, "GET", path, REACH_S, None)

    def ask(self, path: str, body: object) -> Reply:
        """Ask it as every request of the run does."""
        return self._ask(self._origin, "POST", path, _ASK_S, body)

    def _ask(self, origin: Origin, method: str, path: str, timeout_s: float, body: object) -> Reply:
        headers = self._headers if self._bearer is None else dict([*self._headers.items(), self._bearer.header])
        return ask(
            origin, self._address, method, origin.path(path), timeout_s=timeout_s, headers=headers, body=body,
            tls=self._tls, proxy=self._proxy,
        )  # fmt: skip

    def _resolved(self) -> str:
        if self._proxy is None:
            return resolve(self._origin, REACH_S)
        try:
            return resolve(parse(self._proxy.url), REACH_S)  # the target's name is the proxy's to resolve
        except TargetError as error:
            raise TargetError(f"{self._origin.url} goes through a proxy: {error}") from None

    def set_batching(self, batching: Batching | None) -> None:
        """Nothing: its batching is its own."""

    def check(self) -> None:
        """Nothing: how it fares is seen in the requests."""

    def close(self) -> None:
        """Nothing: it goes on as it was."""


class ServerOptions(msgspec.Struct, frozen=True):
    """How the bundled server is started; None leaves the choice to it."""

    model: str
    provider: str
    dtype: str
    threads: int | None
    kv_slots: int
    max_seq_len: int | None
    ignore_unsupported: bool = False


class ServerProcess:
    """A server in a process of its own, which says where it serves on its first line and ends when we are gone.

    ``name`` is what messages call it; ``log`` takes what it says on stderr, and goes away again if that is nothing.
    """

    def __init__(self, name: str, module: str, arguments: Sequence[str], log: Path) -> None:
        self._name = name
        # -P: a random.py in the user's folder is none of ours.
        self._command = [sys.executable, "-P", "-m", module, "--port", "0", "--exit-on-stdin-close", *arguments]
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    def open(self) -> str:
        """Start the server, wait until it serves, and return its URL.

        Raises:
            ServerError: it ended, or did not serve in time; the message is the server's own.
        """
        with self._log.open("wb") as log:
            # A session of its own, so that Ctrl-C is ours to handle; its stdin closes when we are gone. What the user
            # has set for servers of her own (LOADTEST_SERVE_API_KEY) is not for this one.
            environment = {key: value for key, value in os.environ.items() if not key.startswith("LOADTEST_SERVE_")}
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, start_new_session=True, env=environment,
            )  # fmt: skip
        return self._ready_url(self._process)

    def check(self) -> None:
        """Raise ServerError if the server has ended by itself."""
        if self._process is not None and (code := self._process.poll()) is not None:
            raise ServerError(f"{self._name} ended by itself (exit code {code}): {self._last_words()}")

    def close(self) -> None:
        """Stop the server: ask it to drain, and end it if it does not."""
        process = self._process
        if process is None:
            return
        process.terminate()
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()
        if not self._log.stat().st_size:
            self._log.unlink()  # it had nothing to say

    def _ready_url(self, process: "subprocess.Popen[bytes]") -> str:
        assert process.stdout is not None
        until = time.monotonic() + _START_S
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while selector.select(max(0.0, until - time.monotonic())):
                line = process.stdout.readline().decode("utf-8", "replace")
                if match := re.search(r"http://\S+", line):
                    return match[0]
                if not line:
                    process.wait(_STOP_S)
                    raise ServerError(f"{self._name} did not start: {self._last_words()}")
        raise ServerError(f"{self._name} was not ready within {_START_S:g} s: {self._last_words()}")

    def _last_words(self) -> str:
        lines = self._log.read_text("utf-8", "replace").strip().splitlines()
        return lines[-1].removeprefix("error: ") if lines else "it said nothing"


class BundledServer:
    """The server that comes with loadtest, in a process of its own on a free loopback port."""

    def __init__(self, options: ServerOptions, endpoint: str, log: Path) -> None:
        arguments = [
            "--model", options.model, "--provider", options.provider, "--dtype", options.dtype,
            "--kv-slots", str(options.kv_slots), "--max-batch-size", str(options.kv_slots),
        ]  # fmt: skip
        if options.threads is not None:
            arguments += ["--threads", str(options.threads)]
        if options.max_seq_len is not None:
            arguments += ["--max-seq-len", str(options.max_seq_len)]
        if options.ignore_unsupported:
            arguments.append("--ignore-unsupported")
        self._endpoint = endpoint
        self._model = options.model
        self._process = ServerProcess("the bundled server", "servers", arguments, log)
        self._origin: Origin | None = None

    def open(self) -> Facts:
        """Start the server and wait until it serves.

        Raises:
            ServerError: it ended, or did not serve in time; the message is the server's own.
        """
        url = self._process.open()
        self._origin = origin = parse(url)
        card = model_cards(ask(origin, origin.host, "GET", "/v1/models", timeout_s=REACH_S))[0]
        tokens = _tokens(card, self._endpoint)
        if tokens.kind == "words" and (Path(self._model) / "tokenizer.json").is_file():
            tokens, _ = by_tokenizer(self._model, chat=self._endpoint == "chat")
        health: dict[str, Any] = ask(origin, origin.host, "GET", "/health", timeout_s=REACH_S).json
        return Facts(
            url=url,
            address=origin.host,
            model=card["id"],
            owner=card.get("owned_by"),
            tokens=tokens,
            precision=health["dtype"],
            software=health["versions"],
            hardware=f"{health['device']} ({health['provider']}), {_threads(health['threads'])}",
        )

    def ask(self, path: str, body: object) -> Reply:
        """Ask it one thing outside the measurement."""
        assert self._origin is not None
        return ask(self._origin, self._origin.host, "POST", self._origin.path(path), timeout_s=_ASK_S, body=body)

    def set_batching(self, batching: Batching | None) -> None:
        """Set the policy without loading the model again.

        Raises:
            ServerError: the server refused, or has died.
        """
        if batching is None:
            return
        assert self._origin is not None
        body = {
            "scheduler": batching.scheduler,
            "max_batch_size": batching.max_batch_size,
            "timeout_ms": batching.timeout_ms,
        }
        try:
            reply = ask(self._origin, self._origin.host, "POST", "/admin/batching", timeout_s=_BATCHING_S, body=body)
        except TargetError as error:
            self.check()
            raise ServerError(f"the bundled server does not answer: {error}") from None
        if reply.status != 200:
            raise ServerError(f"the bundled server refused batching {batching}: {reply.status} {reply.text.strip()}")

    def check(self) -> None:
        """Raise ServerError if the server has ended by itself."""
        self._process.check()

    def close(self) -> None:
        """Stop the server: ask it to drain, and end it if it does not."""
        self._process.close()


def _stood_in(reply: Reply) -> str | None:
    """Who answered in the target's place, if somebody did."""
    location = reply.headers.get("location", "")
    if 300 <= reply.status < 400 and intermediary.signing_in(location):
        return f"redirects to {location}, to sign in there; give a key that the endpoint takes"
    words = intermediary.spoke(reply.status, reply.headers, reply.text.encode())
    return f"with {words}" if words is not None and intermediary.PLACE in words else None


def _threads(count: int) -> str:
    return f"{count} thread{'s' * (count != 1)}"


def model_cards(reply: Reply) -> list[dict[str, Any]]:
    """The model cards of a reply to /v1/models; none if it is not a model list."""
    data = reply.json.get("data") if reply.status == 200 and isinstance(reply.json, dict) else None
    return [card for card in data if isinstance(card, dict) and "id" in card] if isinstance(data, list) else []


def _tokens(card: dict[str, Any], endpoint: str) -> Tokens:
    """How the target makes tokens of text, where its model card says so (ours does)."""
    tokenizer = card.get("tokenizer")
    if isinstance(tokenizer, dict) and tokenizer.get("kind") == "bytes":
        overhead = tokenizer.get("overhead")
        added = int(overhead[endpoint]) if isinstance(overhead, dict) and endpoint in overhead else 0
        return Tokens("bytes", added, how="one byte a token, as the server says, exactly")
    return Tokens("words")
