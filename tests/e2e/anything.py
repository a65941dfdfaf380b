"""A small service of APIs that no dialect knows: a classifier, an upload, a custom event stream, GraphQL, plain pages.

    python -m tests.e2e.anything

It prints its URL. ``GET /seen`` lists what the requests were and ``GET /forget`` forgets them; it ends when its stdin
closes.
"""

import json
import time
from email.parser import BytesParser
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.e2e.serving import serve

SEEN: list[dict[str, Any]] = []


class Handler(BaseHTTPRequestHandler):
    """One API a path."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        """Pages, a search, and what was seen."""
        self._answer(b"")

    def do_POST(self) -> None:
        """All else."""
        self._answer(self.rfile.read(int(self.headers["Content-Length"])))

    def do_PUT(self) -> None:
        """As a POST."""
        self.do_POST()

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""

    def _answer(self, body: bytes) -> None:
        parts = urlsplit(self.path)
        if parts.path in ("/seen", "/forget", "/metrics"):  # a run looks for metrics beside its requests
            self._whole(404 if parts.path == "/metrics" else 200, SEEN)
            if parts.path == "/forget":
                SEEN.clear()
            return
        kept = {name.lower(): value for name, value in self.headers.items()}
        SEEN.append({"method": self.command, "target": self.path, "headers": kept, "body": body.decode("latin-1")})
        match parts.path:
            case "/classify":
                text = json.loads(body)["text"]
                self._whole(200, {"label": "long" if len(text) > 20 else "short", "score": 0.5, "n": len(text.split())})
            case "/upload":
                message = BytesParser().parsebytes(f"Content-Type: {kept['content-type']}\r\n\r\n".encode() + body)
                sizes = {part.get_filename(): len(part.get_payload(decode=True)) for part in message.get_payload()}
                self._whole(201, {"status": "stored", "sizes": sizes})
            case "/graphql":
                asked = json.loads(body)
                if "id" not in asked["variables"]:
                    self._whole(200, {"errors": [{"message": "Variable $id is required"}], "data": None})
                else:
                    self._whole(200, {"data": {"item": {"id": asked["variables"]["id"], "title": "A"}}})
            case "/tell":
                self._stream(json.loads(body))
            case "/search":
                self._whole(200, {"hits": [], "q": parse_qs(parts.query)["q"]})
            case "/page" | "/v1/":
                self._bytes(200, "text/html", b"<html>hello</html>")
            case "/empty":
                self._bytes(204, None, b"")
            case _:
                self._whole(404, {"fault": {"why": f"no such path: {parts.path}"}})

    def _whole(self, status: int, value: object) -> None:
        self._bytes(status, "application/json", json.dumps(value).encode())

    def _bytes(self, status: int, kind: str | None, body: bytes) -> None:
        self.send_response(status)
        if kind is not None:
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _stream(self, asked: dict[str, Any]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        words = [f"word{number} " for number in range(asked["limit"])]
        events = [{"type": "delta", "piece": {"text": word}} for word in words]
        for event in [*events, {"type": "end", "usage": {"written": len(words)}, "why": "limit"}, "BYE"]:
            data = event if isinstance(event, str) else json.dumps(event)
            frame = f"event: x\ndata: {data}\n\n".encode()
            self.wfile.write(b"%x\r\n%b\r\n" % (len(frame), frame))
            time.sleep(0.005)
        self.wfile.write(b"0\r\n\r\n")


if __name__ == "__main__":
    serve(Handler)
