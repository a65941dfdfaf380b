"""A small chat server of several manners, each below a path of its own, that says what it was asked.

    python -m tests.e2e.repeating

``/cache`` answers at once what it has answered before, ``/plain`` is slower the second time, ``/random`` never says the
same. None counts tokens. ``/judge`` is a classifier whose labels are not all good. It prints its URL; it ends when its
stdin closes.
"""

import hashlib
import itertools
import json
import random
import time
from http.server import BaseHTTPRequestHandler

from tests.e2e.serving import serve

SEEN: set[bytes] = set()
FIRST_S, SLOWER_S = 0.02, 0.03
NUMBERS = itertools.count()


class Handler(BaseHTTPRequestHandler):
    """One manner a path."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        """The models."""
        self._answer("application/json", json.dumps({"data": [{"id": "m"}]}).encode())

    def do_POST(self) -> None:
        """An answer."""
        body = self.rfile.read(int(self.headers["Content-Length"]))
        manner = self.path.split("/")[1]
        if manner == "judge":
            label = ("good", "bad", "who knows")[next(NUMBERS) % 3]
            self._answer("application/json", json.dumps({"label": label, "scores": [0.5, 1]}).encode())
            return
        asked = json.loads(body)
        prompt = json.dumps(asked["messages"]).encode()
        again = prompt in SEEN
        SEEN.add(prompt)
        time.sleep((0.0 if manner == "cache" else SLOWER_S) if again else FIRST_S)
        word = hashlib.sha256(prompt).hexdigest()[:6] if manner != "random" else str(random.random())
        texts = ["The answer", " is ", word]
        if not asked["stream"]:
            whole = {"choices": [{"message": {"content": "".join(texts)}, "finish_reason": "stop"}]}
            self._answer("application/json", json.dumps(whole).encode())
            return
        events = [{"choices": [{"delta": {"content": text}}]} for text in texts]
        events += [{"choices": [{"delta": {}, "finish_reason": "stop"}]}]
        stream = b"".join(b"data: %b\n\n" % json.dumps(event).encode() for event in events) + b"data: [DONE]\n\n"
        self._answer("text/event-stream", stream)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""

    def _answer(self, kind: str, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


if __name__ == "__main__":
    serve(Handler)
