"""A server that keeps the heads of what it is asked, and answers as it is told to."""

import contextlib
import http.server
import json
import threading
from collections.abc import Callable, Iterator
from typing import NamedTuple


class Asked(NamedTuple):
    """A request's method, path, and headers by their names in lower case."""

    method: str
    path: str
    headers: dict[str, str]


class Answer(NamedTuple):
    """A whole response."""

    status: int
    body: bytes
    headers: tuple[tuple[str, str], ...] = (("Content-Type", "application/json"),)


def said(text: str = "hello", finish_reason: str = "stop") -> Answer:
    """What a chat endpoint answers, in one piece."""
    choice = {"message": {"role": "assistant", "content": text}, "finish_reason": finish_reason}
    usage = {"prompt_tokens": 5, "completion_tokens": 1}
    return Answer(200, json.dumps({"choices": [choice], "usage": usage}).encode())


def models(*names: str) -> Answer:
    """A list of models."""
    return Answer(200, json.dumps({"object": "list", "data": [{"id": name} for name in names or ("m",)]}).encode())


def usual(asked: Asked) -> Answer:
    """What an endpoint does that works."""
    return models() if asked.method == "GET" else said()


class Telling(NamedTuple):
    """Where it is, and what it was asked so far."""

    url: str
    asked: list[Asked]

    @property
    def posts(self) -> list[Asked]:
        """Those that ask for an answer."""
        return [each for each in self.asked if each.method == "POST"]


@contextlib.contextmanager
def telling(answer: Callable[[Asked], Answer] = usual) -> Iterator[Telling]:
    """The server, as long as it is needed."""
    seen: list[Asked] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", "0")))
            # One that a proxy asks for is asked by its whole URL.
            path = "/" + self.path.split("/", 3)[3] if self.path.startswith("http://") else self.path
            asked = Asked(self.command, path, {name.lower(): value for name, value in self.headers.items()})
            seen.append(asked)
            found = answer(asked)
            self.send_response(found.status)
            for name, value in (*found.headers, ("Content-Length", str(len(found.body)))):
                self.send_header(name, value)
            with contextlib.suppress(OSError):  # who asked has left
                self.end_headers()
                self.wfile.write(found.body)

        def do_GET(self) -> None:
            self._answer()

        def do_POST(self) -> None:
            self._answer()

        def log_message(self, format: str, *args: object) -> None:
            del format, args

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()  # how soon it ends
        yield Telling(f"http://127.0.0.1:{server.server_address[1]}", seen)
        server.shutdown()
