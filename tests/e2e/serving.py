"""A small server of a test as a process: it prints its URL, and ends when its stdin closes."""

import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Server(ThreadingHTTPServer):
    """Room for the connections of a level that begins."""

    request_queue_size = 256
    daemon_threads = True


def serve(handler: type[BaseHTTPRequestHandler]) -> None:
    """Serve until stdin closes."""
    server = Server(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(f"http://127.0.0.1:{server.server_port}", flush=True)
    sys.stdin.read()
