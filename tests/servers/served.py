"""A bundled server, in a process or in this one, and what tests ask of it."""

import asyncio
import json
import re
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from typing import Any, ClassVar

import pytest
from aiohttp import web

from servers.app import App


@dataclass
class Server:
    """A server process and the URL it printed."""

    process: "subprocess.Popen[str]"
    line: str
    port: int
    host: ClassVar[str] = "127.0.0.1"

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Status and JSON body of one request; ``body`` is sent as JSON unless it is bytes."""
        connection = HTTPConnection(self.host, self.port, timeout=30)
        try:
            connection.request(method, path, body if isinstance(body, bytes | None) else json.dumps(body).encode())
            response = connection.getresponse()
            return response.status, json.loads(response.read())
        finally:
            connection.close()

    def raw(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, dict[str, str], bytes]:
        """Status, headers (names in lower case) and body of one request with ``headers`` (``_`` for ``-``)."""
        connection = HTTPConnection(self.host, self.port, timeout=30)
        try:
            data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
            connection.request(method, path, data, {name.replace("_", "-"): value for name, value in headers.items()})
            response = connection.getresponse()
            return response.status, {k.lower(): v for k, v in response.getheaders()}, response.read()
        finally:
            connection.close()

    def load(self) -> tuple[int, int]:
        """How many requests run and wait."""
        health = self.ask("GET", "/health")[1]
        return health["running"], health["waiting"]

    def begin(self, path: str, body: dict[str, Any]) -> socket.socket:
        """Send a request and leave its answer unread."""
        text = json.dumps(body).encode()
        connection = socket.create_connection((self.host, self.port), timeout=30)
        connection.sendall(
            b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % (path.encode(), len(text)) + text
        )
        return connection

    def stream(self, path: str, body: dict[str, Any]) -> list[Any]:
        """The events of one streamed answer; the last is "[DONE]" if it came."""
        connection = HTTPConnection(self.host, self.port, timeout=30)
        try:
            connection.request("POST", path, json.dumps({**body, "stream": True}).encode())
            response = connection.getresponse()
            assert response.status == 200, response.read()
            assert response.headers["Content-Type"].startswith("text/event-stream")
            blocks = response.read().decode().split("\n\n")
            assert blocks.pop() == ""
            events = [block.removeprefix("data: ") for block in blocks]
            return [event if event == "[DONE]" else json.loads(event) for event in events]
        finally:
            connection.close()


@contextmanager
def running(environment: dict[str, str], *options: str) -> Iterator[Server]:
    command = [sys.executable, "-m", "servers", "--model", "tiny", "--port", "0", "--exit-on-stdin-close", *options]
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        line = process.stdout.readline()
        match = re.search(r" on http://\S+:(\d+) ", line)
        if not match:
            process.kill()
            pytest.fail(f"the server did not start: {line!r} {process.stderr.read()}")
        try:
            yield Server(process, line, int(match[1]))
        finally:
            process.kill()


def eventually(condition: Callable[[], bool], what: str) -> None:
    """Wait until ``condition`` holds, at most 10 s."""
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


@asynccontextmanager
async def listening(app: App) -> AsyncIterator[int]:
    """The app on a free port of the loopback address."""
    runner = web.AppRunner(app.routes(), access_log=None, handler_cancellation=True, shutdown_timeout=1)
    await runner.setup()
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        await web.SockSite(runner, listener).start()
        yield listener.getsockname()[1]
        await runner.cleanup()


async def ask(port: int, method: str, path: str, body: bytes = b"") -> bytes:
    """Everything that one request is answered with, head and body."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    answer = await reader.read()
    writer.close()
    return answer
