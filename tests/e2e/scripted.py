"""A server that answers as a test tells it to."""

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

OK = {"choices": [{"message": {"content": "hi"}, "finish_reason": "stop"}], "usage": {"completion_tokens": 5}}
Answer = Callable[[str, dict[str, Any]], tuple[int, Any]]


class Scripted(ThreadingHTTPServer):
    """Answers as it is told: ``answer(path, body)`` gives status and JSON (or text); bodies of POSTs are kept."""

    daemon_threads = True

    def __init__(self, answer: Answer) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answer = answer
        self.bodies: list[dict[str, Any]] = []
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Scripted

    def do_GET(self) -> None:
        self._send(*self.server.answer(self.path, {}))

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.bodies.append(body)
        self._send(*self.server.answer(self.path, body))

    def _send(self, status: int, said: Any) -> None:
        page = isinstance(said, str)
        data = said.encode() if page else json.dumps(said).encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/html" if page else "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        del format, args


def answers(path: str, body: dict[str, Any]) -> tuple[int, Any]:
    """One model, and the same answer whatever is asked."""
    return (200, {"data": [{"id": "m"}]}) if path.endswith("/models") else (200, OK)
